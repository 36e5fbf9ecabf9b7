"""Exercises: a title, hints, and a judge that tests what the student's object does."""

import copy
import html
import inspect
import re
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from labkit.course import bounds
from labkit.course.bounds import bounded_check, call_seconds, time_limit
from labkit.diagnosis.study import is_cured
from labkit.errors import RecipeError, near
from labkit.failures.catalogue import FAILURES
from labkit.recording.files import PACKAGE
from labkit.recording.run import Run
from labkit.recording.traces import TRACES
from labkit.training import run_store
from labkit.training.loop import train
from labkit.training.recipe import Recipe, changes_in_words

KINDS = ("build", "cure", "loop", "explain", "diagnose")
RIGHT, NOT_YET, NOT_ATTEMPTED = "right", "not yet", "not attempted"
# Shape and colour. As text these colours have a contrast of 4.7 and more on white, and of 3.8 on a dark theme.
MARKS = {RIGHT: ("✔", "#1d7f4a"), NOT_YET: ("…", "#a66200"), NOT_ATTEMPTED: ("○", "#737373")}
HIDDEN_SEED = 11  # used by no lesson: a cure that works for one seed only is luck
SHORT = 70  # characters shown of a student's value
LONG = 1000  # items from which on a collection is not shown: that would take longer than anybody reads
LONGEST = 500  # characters shown of an error's message


class NotYet(Exception):
    """Attempted and not correct: the message tells the student what was found."""


class NotAttempted(Exception):
    """The stub is still a stub."""


class Words(str):
    """A string whose repr has no quotes, in a notebook and at the prompt."""

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """One exercise. `judge(mine)` returns (with an optional comment) or raises `NotYet`."""

    id: str  # "06.2": lesson and number
    title: str
    kind: str  # one of KINDS
    judge: Callable
    hints: tuple[str, ...]  # from a nudge to nearly the answer
    points: int = 1
    modes: tuple[str, ...] = ()  # the failures it is about

    def __post_init__(self):
        if not re.fullmatch(r"\d\d\.\d+", self.id):
            raise RecipeError(f"exercise {self.id!r}: expected an id such as '06.2', the lesson and a number")
        if self.kind not in KINDS:
            raise RecipeError(f"exercise {self.id}: expected a kind among {', '.join(KINDS)}, got {self.kind!r}")
        if not self.hints or self.points < 0:
            raise RecipeError(f"exercise {self.id}: expected at least one hint, and points of 0 (optional) or more")
        for name in self.modes:
            FAILURES[name]  # an unknown name raises here, not when a student checks

    def check(self, answer) -> "Feedback":
        """Grade an answer. Returns whatever the student's code does, within the bounds of `bounds.py`."""
        try:
            with bounded_check():
                if is_blank(answer):
                    raise NotAttempted
                return self._feedback(RIGHT, self.judge(answer) or "")
        except NotAttempted:
            return self._feedback(NOT_ATTEMPTED, "")
        except NotYet as found:
            return self._feedback(NOT_YET, str(found))
        except KeyboardInterrupt:  # Ctrl-C, or the stop button of the notebook
            raise
        except BaseException as error:  # a student's code may raise anything, SystemExit and GeneratorExit too
            return self._feedback(NOT_YET, error_in_words(error))

    def hint(self, number: int = 1) -> Words:
        if not (isinstance(number, int) and 1 <= number <= len(self.hints)):
            return Words(f"{self.id} has hints 1 to {len(self.hints)}; you asked for {number!r}.")
        more = f"  (hint {number} of {len(self.hints)})"
        return Words(self.hints[number - 1] + more)

    def _feedback(self, state: str, seen: str) -> "Feedback":
        return Feedback(exercise=self, state=state, seen=seen)


@dataclass(frozen=True, kw_only=True)
class Feedback:
    """The result of a check: truthy when the answer is correct, and readable as text or HTML."""

    exercise: Exercise
    state: str
    seen: str

    def __bool__(self) -> bool:
        return self.state == RIGHT

    def hint(self, number: int = 1) -> Words:
        return self.exercise.hint(number)

    @property
    def _advice(self) -> str:
        if self.state == RIGHT:
            return self.seen
        start = "Fill in the cell above, run it, and check again." if self.state == NOT_ATTEMPTED else self.seen
        return f'{start}\nFor a hint: labkit.hint("{self.exercise.id}", 1)'

    def __str__(self) -> str:
        head = f"{MARKS[self.state][0]} {self.exercise.id} {self.exercise.title}: {self.state}"
        return "\n".join([head, *(f"  {line}" for line in self._advice.splitlines())])

    __repr__ = __str__

    def __rich__(self):
        from rich.text import Text

        return Text(str(self))

    def _repr_html_(self) -> str:
        mark, colour = MARKS[self.state]
        title = html.escape(f"{self.exercise.id} {self.exercise.title}")
        lines = "<br>".join(html.escape(line) for line in self._advice.splitlines())
        return framed_html(mark, colour, self.state, title, lines)


def framed_html(mark: str, colour: str, state: str, title: str, lines: str) -> str:
    """The frame of feedback in a notebook, which screen readers announce; title and lines are HTML already."""
    return (
        f'<div role="status" style="border-left: 4px solid {colour}; padding: 0.3em 0.8em; margin: 0.3em 0">'
        f'<b><span style="color: {colour}">{mark} {state}</span> · {title}</b><br>{lines}</div>'
    )


# --- building blocks for the judges ---


class Student:
    """A student's function, called on copies so that it cannot change the test cases."""

    def __init__(self, function, example: str):
        if not callable(function):
            raise NotYet(f"Expected a function such as {example}, got {short(function)}.")
        self.function = function

    def __call__(self, *arguments, **options):
        arguments, options = copy.deepcopy((arguments, options))  # in one call, so that shared objects stay shared
        return self.in_place(*arguments, **options)

    def in_place(self, *arguments, **options):
        """Call it on the originals, for a function that should change them: build them again for each call."""
        call = self.call_as_text(arguments, options)
        answer = self.call_or_none(*arguments, **options)
        if is_blank(answer):
            raise NotYet(f"Called: {call}\nIt returned {answer!r}: is a `return` missing on this path?")
        return answer

    def call_or_none(self, *arguments, **options):
        """Call it where None is a valid result; a stub still counts as not attempted."""
        call = self.call_as_text(arguments, options)
        try:
            with time_limit(call_seconds()):
                answer = self.function(*arguments, **options)
        except NotImplementedError:
            raise NotAttempted from None
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise NotYet(f"Called: {call}\n{error_in_words(error)}") from error
        if is_blank(answer) and is_stub(self.function):
            raise NotAttempted
        return answer

    def call_as_text(self, arguments: tuple, options: dict | None = None) -> str:
        words = [short(each) for each in arguments] + [
            f"{key}={short(value)}" for key, value in (options or {}).items()
        ]
        return f"{getattr(self.function, '__name__', 'your function')}({', '.join(words)})"


def expect(condition, otherwise: str) -> None:
    if not condition:
        raise NotYet(otherwise)


def expect_close(seen, expected, what: str, tolerance: float = 1e-5) -> None:
    """Numbers, lists, arrays, tensors, or dicts of them: equal within a relative and absolute tolerance."""
    if isinstance(expected, Mapping):
        expect(isinstance(seen, Mapping), f"{what}: expected a dict, got {short(seen)}.")
        expect(set(seen) == set(expected), f"{what}: expected the keys {list(expected)}, got {list(seen)}.")
        for key, value in expected.items():
            expect_close(seen[key], value, f"{what}, at {key!r}", tolerance)
        return
    try:
        mine, theirs = (np.asarray(torch.as_tensor(each).detach().double()) for each in (seen, expected))
    except (TypeError, ValueError, RuntimeError):
        raise NotYet(f"{what}: expected {short(expected)}, got {short(seen)}.") from None
    expect(mine.shape == theirs.shape, f"{what}: expected the shape {theirs.shape}, got {mine.shape}.")
    close = np.allclose(mine, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)
    expect(close, f"{what}: expected {short(expected)}, got {short(seen)}.")


def number(value, what: str) -> float:
    """A student's value as a float, from any library's scalar."""
    try:
        if not isinstance(value, str):
            return float(value)
    except (TypeError, ValueError, RuntimeError):
        pass
    raise NotYet(f"Expected one number as {what}, got {short(value)}.")


def changed_tensors(net: torch.nn.Module, before: Mapping[str, torch.Tensor]) -> list[str]:
    """The names of parameters and buffers that differ from an earlier copy of `net.state_dict()`."""
    return [name for name, value in net.state_dict().items() if not torch.equal(value, before[name])]


def build(id: str, title: str, judge: Callable[[Student], str | None], *, example: str, **fields) -> Exercise:
    """`judge` calls the student's function, which should look like `example`: "dead_share(outputs)"."""
    return Exercise(id=id, title=title, kind="build", judge=lambda mine: judge(Student(mine, example)), **fields)


def cure(
    id: str, title: str, mode: str, *, keep: tuple[str, ...] = (), also=None, seeds=(0, HIDDEN_SEED), **fields
) -> Exercise:
    """Graded by training the student's recipe beside the healthy twin. Entries in `keep` must not be changed.

    `also(recipe)` first tests the student's own code, where the recipe contains some.
    """

    def judge(recipe) -> str:
        sick = FAILURES[mode].sick
        if not isinstance(recipe, Recipe):
            raise NotYet(f"Expected a recipe, such as sick.but(width=64), got {short(recipe)}.")
        touched = [name for name in recipe.changes_from(sick) if name in keep]
        expect(not touched, f"You changed {' and '.join(touched)}, which this patient has to keep.")
        expect(recipe.but(seed=sick.seed) != sick, "This is the sick recipe itself: nothing in it was changed.")
        if also:
            also(recipe)
        for seed in seeds:
            verdict = is_cured(mode, recipe.but(seed=seed), store=run_store.in_memory, progress=False)
            expect(verdict, f"Trained again with {changes_in_words(recipe, sick)} and seed {seed}. {verdict.why}.")
        return (
            f"Trained again with {changes_in_words(recipe, sick)}: no failure found, as accurate as the healthy twin."
        )

    return Exercise(id=id, title=title, kind="cure", judge=judge, modes=(mode,), **fields)


def everything_but(*names: str) -> tuple[str, ...]:
    """For `keep`: every entry of a recipe except these and the seed, which the judge sets."""
    return tuple(name for name in Recipe.__dataclass_fields__ if name not in (*names, "seed"))


def explain(id: str, title: str, *, right: dict | str, wrong: dict, because: str = "", **fields) -> Exercise:
    """Multiple-choice questions: right={"A": "this"}, wrong={"A": {"that": "why not", ...}}.

    For a single question: right="this", wrong={"that": "why not"}, and the student's answer is a string.
    `because`, the explanation, is shown when everything is correct.
    """
    single = isinstance(right, str)
    if single:
        right, wrong = {"your answer": right}, {"your answer": wrong}
    choices = {question: (right[question], *others) for question, others in wrong.items()}

    def judge(answers) -> str:
        answers = {"your answer": answers} if single and not isinstance(answers, Mapping) else answers
        if not isinstance(answers, Mapping):
            raise NotYet(f"Expected a dict with the keys {', '.join(right)}, got {short(answers)}.")
        if all(is_blank(answers.get(question)) for question in right):
            raise NotAttempted
        remarks = {question: remark(question, answers.get(question)) for question in right}
        good = [question for question, words in remarks.items() if not words]
        bad = [f"{question}: {words}" for question, words in remarks.items() if words]
        expect(not bad, "\n".join([f"Correct: {', '.join(good)}."] * bool(good) + bad))
        return because

    def remark(question: str, answer) -> str:
        if is_blank(answer):
            return "not answered yet."
        answer = str(answer).strip()
        if answer == right[question]:
            return ""
        return wrong[question].get(answer) or f"{short(answer)} is not a choice. {near(answer, choices[question])}"

    return Exercise(id=id, title=title, kind="explain", judge=judge, **fields)


def diagnose(
    id: str,
    title: str,
    *,
    failure: str | tuple[str, ...],
    place: str | tuple[str, ...] = (),
    evidence: Mapping[str, tuple[float, float] | None],
    wrong: Mapping[str, str] | None = None,
    because: str = "",
    **fields,
) -> Exercise:
    """A free-form diagnosis of a sealed run: {"failure": ..., "place": ..., "evidence": ..., "value": ...}.

    `failure` and `place` are the names that are accepted; without a place none is asked for. `evidence` has the traces
    that show the failure, each with the range in which a measured `value` lies, or None where no number is asked for.
    `wrong` says of failures that look alike why they are not it.
    """
    failures, places = _as_tuple(failure), _as_tuple(place)
    asked = ["failure", *["place"] * bool(places), "evidence", *["value"] * any(evidence.values())]
    wrong = wrong or {}
    for name in (*failures, *wrong):
        FAILURES[name]
    for name in evidence:
        if name not in TRACES:
            raise RecipeError(f"exercise {id}: there is no trace {name!r}. {near(name, TRACES)}")

    def judge(answers) -> str:
        if not isinstance(answers, Mapping):
            raise NotYet(f"Expected a dict with the keys {', '.join(asked)}, got {short(answers)}.")
        if all(is_blank(answers.get(question)) for question in asked):
            raise NotAttempted
        given = {question: answers.get(question) for question in asked}
        judges = {"failure": _of_failure, "place": _of_place, "evidence": _of_evidence, "value": _of_value}
        remarks = {
            question: "not answered yet." if is_blank(value) else judges[question](value, given)
            for question, value in given.items()
        }
        good = [question for question, words in remarks.items() if not words]
        bad = [f"{question}: {words}" for question, words in remarks.items() if words]
        expect(not bad, "\n".join([f"Correct: {', '.join(good)}."] * bool(good) + bad))
        return because

    def _of_failure(name, _) -> str:
        if name in failures:
            return ""
        if name not in FAILURES:
            return f"{short(name)} is no failure of the lab. {near(name, FAILURES)} labkit.FAILURES lists them."
        return wrong.get(name) or f"the run does not show {FAILURES[name].title.lower()}."

    def _of_place(name, _) -> str:
        return "" if name in places else f"it does not begin at {short(name)}. Where does it show first or most?"

    def _of_evidence(name, _) -> str:
        if name in evidence:
            return ""
        if name not in TRACES:
            return f"{short(name)} is no trace of a run. {near(name, TRACES)}"
        return f"{name} does not tell this failure from its look-alikes. Which trace leaves its healthy range?"

    def _of_value(value, given) -> str:
        limits = evidence.get(given["evidence"]) if isinstance(given["evidence"], str) else None
        if limits is None:
            return "" if given["evidence"] in evidence else "it is compared once the evidence is right."
        low, high = limits
        seen = number(value, "value")
        return "" if low <= seen <= high else f"{seen:.3g} is not what {given['evidence']} shows there. Read it again."

    return Exercise(id=id, title=title, kind="diagnose", judge=judge, modes=failures, **fields)


def _as_tuple(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def sealed_runs(sealed: dict[str, str], own: dict[str, dict] | None = None, **changes) -> dict[str, Run]:
    """Patients for an `explain`: letter -> sick run of a mode, with changes for all and `own` changes for some."""
    own = own or {}
    recipes = {letter: FAILURES[name].sick.but(**changes | own.get(letter, {})) for letter, name in sealed.items()}
    return {letter: train(recipe, progress=False) for letter, recipe in recipes.items()}


# --- messages ---


def is_blank(answer) -> bool:
    return answer is None or answer is Ellipsis or (isinstance(answer, str) and not answer.strip())


def is_stub(function) -> bool:
    """Whether the body is still empty: it uses no name and assigns none."""
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    given = code.co_argcount + code.co_kwonlyargcount
    given += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return not code.co_names and not code.co_freevars and len(code.co_varnames) == given


def short(value) -> str:
    """A value as short text: the student needs to see the test case, not ten thousand numbers."""
    if isinstance(value, torch.nn.Module):
        return f"a net ({type(value).__name__})"
    if torch.is_tensor(value) and value.numel() > 6:
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, np.ndarray) and value.size > 6:
        return f"an array of shape {value.shape}"
    words = " ".join(shown(value).split())
    return words if len(words) <= SHORT else f"{words[: SHORT - 1]}…"


def shown(value) -> str:
    """The repr of a value; of a long collection, its length; of one that cannot show itself, its type."""
    try:
        if isinstance(value, str | bytes | list | tuple | dict | set | frozenset) and len(value) > LONG:
            start = f": {value[:SHORT]!r}" if isinstance(value, str | bytes) else ""
            return f"a {type(value).__name__} of length {len(value)}{start}"
        return repr(value)
    except Exception as error:
        return f"a {type(value).__name__} whose repr raises {type(error).__name__}"


def error_in_words(error: BaseException) -> str:
    """The error, and the last line of the student's own code in its traceback."""
    words = message_of(error)
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame.filename)]
    if not own:  # the judge failed on what the student's code returned
        return f"Your answer could not be read ({words}). Check its type: what is expected, and what is it?"
    return f"It raised {words}\nin your line {own[-1].lineno}: {own[-1].line}"


def message_of(error: BaseException) -> str:
    """'ValueError: what it says'; of a message that is too long, its start; of one that cannot be read, its type."""
    try:
        message = str(error)
    except Exception as problem:
        message = f"its message cannot be read: {type(problem).__name__}"
    if isinstance(error, MemoryError) and not message:
        message = f"it needs more than {bounds.MORE_MEMORY / 2**30:g} GB. Look for a list that grows without an end"
    if len(message) > LONGEST:
        message = f"{message[:LONGEST]}…"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


LIBRARIES = tuple({str(PACKAGE), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))})


def _is_own(filename: str) -> bool:
    """Not part of labkit, of Python or of an installed package."""
    return not filename.startswith((*LIBRARIES, "<frozen", "<__array_function__"))
