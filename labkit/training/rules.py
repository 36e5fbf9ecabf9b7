"""What a knob of a recipe may be set to: one rule each, for checking, for the command line and for sliders."""

import difflib
import math
from dataclasses import dataclass


class RecipeError(ValueError):
    """A wish that cannot be granted: an unknown name or a bad value, and what would do instead."""


FEW = 20  # names of a list that is too long to be shown whole


def near(name: str, known) -> str:
    """' Did you mean ...?' when a known name is close, else the list of them."""
    known = sorted(str(item) for item in known)
    close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {close[0]!r}?"
    more = f" and {len(known) - FEW} more" if len(known) > 2 * FEW else ""
    return f"Known: {', '.join(known[:FEW] if more else known)}{more}."


@dataclass(frozen=True)
class Number:
    """A finite number within bounds; `optional` also allows None, and `words` some names."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False  # low itself is excluded
    whole: bool = False
    optional: bool = False
    words: tuple[str, ...] = ()

    def problem(self, value) -> str | None:
        if (value is None and self.optional) or (isinstance(value, str) and value in self.words):
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"expected {self}, got {value!r} of type {type(value).__name__}"
        inside = self.low < value <= self.high if self.above else self.low <= value <= self.high
        good = inside and math.isfinite(value) and not (self.whole and isinstance(value, float))
        return None if good else f"expected {self}, got {value!r}"

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        bounds = [f"{'above' if self.above else 'at least'} {self.low:g}"] if self.low > -math.inf else []
        bounds += [f"at most {self.high:g}"] if self.high < math.inf else []
        others = [repr(word) for word in self.words] + ["None"] * self.optional
        return " ".join([kind, " and ".join(bounds), *(f"or {other}" for other in others)]).replace("  ", " ")

    def parse(self, text: str):
        if text.lower() == "none" and self.optional:
            return None
        if text in self.words:
            return text
        try:
            value = float(text)
        except ValueError:
            return text  # `problem` will say what was expected
        return int(value) if self.whole and value.is_integer() else value


@dataclass(frozen=True)
class OneOf:
    """One of a few names."""

    names: tuple[str, ...]

    def problem(self, value) -> str | None:
        return None if value in self.names else f"expected {self}, got {value!r}. {near(value, self.names)}"

    def __str__(self) -> str:
        return "one of " + ", ".join(self.names)

    def parse(self, text: str) -> str:
        return text


@dataclass(frozen=True)
class Flag:
    """True or False."""

    def problem(self, value) -> str | None:
        return None if isinstance(value, bool) else f"expected {self}, got {value!r}"

    def __str__(self) -> str:
        return "True or False"

    def parse(self, text: str):
        return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(text.lower(), text)
