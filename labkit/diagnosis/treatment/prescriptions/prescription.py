"""What a prescription is."""

from collections.abc import Callable
from dataclasses import dataclass

from labkit.diagnosis.treatment.patient import DoesNotApply, Patient


@dataclass(frozen=True)
class Prescription:
    """One change to a training program: which diagnoses it answers, what it does, and how to write it."""

    name: str
    words: str  # what is changed, as it stands behind "with ..."
    answers: tuple[str, ...]  # failure modes that it may cure; the first three are what it is made for
    apply: Callable[[Patient], None]
    code: str  # the same in plain PyTorch
    repeats: int = 1  # how often the program is run in a row, each time from the weights that the last one reached
    parts: tuple[str, ...] = ()  # names of those that it is made of: one of them may be enough

    @property
    def price(self) -> int:
        """In runs of the program."""
        return self.repeats


def prescription(
    words: str, *answers: str, code: str, parts: tuple[str, ...] = ()
) -> Callable[[Callable], Prescription]:
    """Make a Prescription of the function that applies it; it has the function's name."""

    def made(apply: Callable[[Patient], None]) -> Prescription:
        return Prescription(apply.__name__, words, answers, apply, code, parts=parts)

    return made


def need(condition: object, missing: str) -> None:
    if not condition:
        raise DoesNotApply(missing)
