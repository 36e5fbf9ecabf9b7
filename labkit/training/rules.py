"""Which values a knob of a recipe may have: one rule each, for checks, for the command line and for sliders."""

import contextlib
import math
import sys
from dataclasses import dataclass
from typing import Any, Protocol

from labkit.errors import near

LARGEST = 2**63 - 1  # the largest whole number that a tensor can hold


class Rule(Protocol):
    """Checks the values of a knob, and reads them from text. `str(rule)` says in words what is allowed."""

    def problem(self, value: object) -> str | None:
        """What is wrong with a value, or None if it is allowed."""

    def parse(self, text: str) -> Any:
        """The value that a text means; text without a meaning is returned as it is, for `problem` to refuse."""


@dataclass(frozen=True)
class Number:
    """A finite number within bounds; `optional` also allows None, and `words` some names."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False  # low itself is excluded
    whole: bool = False
    optional: bool = False
    words: tuple[str, ...] = ()

    def problem(self, value: object) -> str | None:
        if (value is None and self.optional) or (isinstance(value, str) and value in self.words):
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"expected {self}, got {value!r} of type {type(value).__name__}"
        limit = LARGEST if self.whole else sys.float_info.max
        if isinstance(value, int) and not -limit <= value <= limit:
            digits = int(abs(value).bit_length() * math.log10(2)) + 1  # Python refuses to write out very long ones
            return f"expected {self}, got a whole number of about {digits} digits; the largest possible is {limit:g}"
        inside = self.low < value <= self.high if self.above else self.low <= value <= self.high
        good = inside and math.isfinite(value) and not (self.whole and isinstance(value, float))
        return None if good else f"expected {self}, got {value!r}"

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        bounds = [f"{'above' if self.above else 'at least'} {self.low:g}"] if self.low > -math.inf else []
        bounds += [f"at most {self.high:g}"] if self.high < math.inf else []
        others = [repr(word) for word in self.words] + ["None"] * self.optional
        return " ".join([kind, " and ".join(bounds), *(f"or {other}" for other in others)]).replace("  ", " ")

    def parse(self, text: str) -> float | int | str | None:
        if text.lower() == "none" and self.optional:
            return None
        if text in self.words:
            return text
        if self.whole:
            with contextlib.suppress(ValueError):
                return int(text)  # as a float, a number above 2**53 would become another one
        try:
            value = float(text)
        except ValueError:
            return text  # `problem` will say what was expected
        return int(value) if self.whole and value.is_integer() else value


@dataclass(frozen=True)
class OneOf:
    """One of a few names."""

    names: tuple[str, ...]

    def problem(self, value: object) -> str | None:
        return None if value in self.names else f"expected {self}, got {value!r}. {near(value, self.names)}"

    def __str__(self) -> str:
        return "one of " + ", ".join(self.names)

    def parse(self, text: str) -> str:
        return text


@dataclass(frozen=True)
class Flag:
    """True or False."""

    def problem(self, value: object) -> str | None:
        return None if isinstance(value, bool) else f"expected {self}, got {value!r}"

    def __str__(self) -> str:
        return "True or False"

    def parse(self, text: str) -> bool | str:
        return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(text.lower(), text)
