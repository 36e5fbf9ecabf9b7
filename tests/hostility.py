"""What the tests of hostile input share: how many inputs, which errors are clear, how bytes are damaged."""

import functools
import math
import os
import random
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable

from hypothesis import HealthCheck, settings

from labkit.errors import RecipeError
from labkit.failures.catalogue import UnknownFailure
from labkit.recording.run import RunError

QUICK = 60  # inputs of each kind in an ordinary test run; `make hostile` sets LABKIT_HOSTILE=1000
AMOUNT = int(os.environ.get("LABKIT_HOSTILE", QUICK))
SEED = int(os.environ.get("LABKIT_HOSTILE_SEED", 0))
CLEAR = (RecipeError, RunError, UnknownFailure)  # the errors that say what was expected, what came and what to do

COUNTS: dict[str, Counter] = {}  # test -> how many inputs were tried, accepted, got a clear error, gave a traceback

# The same inputs in every run, so that a failure can be repeated; no deadline, because the machine may be busy.
drawn = settings(
    max_examples=AMOUNT, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)


def counts() -> Counter:
    """Of the test that runs now."""
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition("::")[2].partition(" ")[0]
    return COUNTS.setdefault(test, Counter())


def count(what: str) -> None:
    """One more, for the table at the end of `make hostile`."""
    counts()[what] += 1


def hostile(test: Callable) -> Callable:
    """A test that is given AMOUNT inputs by hypothesis, and counts them."""
    inner = test.hypothesis.inner_test

    @functools.wraps(inner)
    def counted(*given, **named):
        count("tried")
        try:
            return inner(*given, **named)
        except Exception:
            count("failed")
            raise

    test.hypothesis.inner_test = counted
    return drawn(test)


def both_ways(test: Callable) -> Callable:
    """A hostile test that fails unless at least a tenth of its inputs are accepted, and a tenth refused."""

    @functools.wraps(test)
    def whole(*given, **named):
        test(*given, **named)
        assert min(counts()["accepted"], counts()["clear errors"]) >= counts()["tried"] / 10, dict(counts())

    return whole


NUMBERS = (
    0, -1, 1, 2, 10**18, 2**63, 10**400, -(10**400), 0.0, -0.0, 0.5, 1e-320, 1e308, -1e308,
    math.nan, math.inf, -math.inf,
)  # fmt: skip
TEXTS = ("", " ", "nan", "1e999", "None", "true", "../../etc/passwd", "\x00", "\ud800", "é" * 300, "🧪", "0x10", "½")
ODD = (*NUMBERS, *TEXTS, None, True, [], {}, [[1]], {"step": "x"}, (1, 2), b"bytes", object())


def chances(kind: str) -> Iterable[random.Random]:
    """One source of random numbers for each input of a kind."""
    return (random.Random(f"{kind} {SEED} {number}") for number in range(AMOUNT))


def damaged(content: bytes, chance: random.Random) -> bytes:
    """Some bytes flipped, inserted, removed or doubled, or the end cut off."""
    content = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 3, 20))):
        place = chance.randrange(len(content) + 1)
        some = chance.randbytes(chance.choice((1, 1, 4, 64)))
        how = chance.choice(("flip", "flip", "insert", "remove", "double", "cut"))
        if how == "flip":
            content[place : place + len(some)] = some
        elif how == "insert":
            content[place:place] = some
        elif how == "remove":
            del content[place : place + len(some)]
        elif how == "double":
            content[place:place] = content[place : place + 200]
        else:
            del content[place:]
    return bytes(content)


def tracebacks(cases: Iterable, use: Callable, clear: tuple[type[BaseException], ...] = CLEAR) -> list[str]:
    """Every case whose use raised something else than a clear error, with that error in words."""
    found = []
    for number, case in enumerate(cases):
        count("tried")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                use(case)
        except clear as error:
            if isinstance(error, CLEAR):
                count("clear errors")
            if len(str(error)) < 10:  # words, and not only a name
                found.append(f"{number}: too short: {error!r}")
        except Exception as error:
            found.append(f"{number}: {where(error)}: {type(error).__name__}: {str(error)[:200]}")
            count("failed")
    return found


def where(error: BaseException) -> str:
    """The innermost line of labkit in a traceback."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if "/labkit/" in frame.filename]
    return f"{own[-1].filename.rpartition('/labkit/')[2]}:{own[-1].lineno}" if own else "elsewhere"


def summary(found: list[str]) -> str:
    """For an assertion: how many, and the first one of each place in the code."""
    places = Counter(each.partition(": ")[2].partition(": ")[0] for each in found)
    first = {each.partition(": ")[2].partition(": ")[0]: each for each in reversed(found)}
    return f"{len(found)} of {AMOUNT}:\n" + "\n".join(
        f"{count} x {first[each]}" for each, count in places.most_common()
    )
