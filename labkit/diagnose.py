"""Which failures does a run show, and which came first? From the instruments alone."""

from dataclasses import dataclass

from labkit.failure_mode import Evidence, FailureMode
from labkit.failures import FAILURES
from labkit.run import NoTrace, Run

# Of two failures seen at the same step, the cause stands before the consequence: a dead net shows every sign
# of a vanishing gradient, a diverged one every sign of death, and any of them fails to generalise.
PRECEDENCE = (
    "numerics", "code", "distributed", "data", "learning_rate", "weights", "activations", "gradients",
    "landscape", "generalisation",
)  # fmt: skip


@dataclass(frozen=True)
class Diagnosis:
    """One failure that a run shows."""

    name: str
    title: str
    onset: int  # the step from which it shows
    place: str  # the layer or tensor, where there is one
    seen: str
    usual: str
    prescription: str
    confidence: float

    @property
    def because(self) -> str:
        """The number seen beside the usual one."""
        return f"{self.seen} (usual: {self.usual})"

    def __str__(self) -> str:
        place = f" in {self.place}" if self.place else ""
        return f"{self.title} [{self.name}], from step {self.onset}{place}: {self.because}. {self.prescription}"


def diagnose(run: Run) -> list[Diagnosis]:
    """The failures a run shows, causes before consequences; an empty list for a healthy run."""
    found = [(mode, evidence) for mode in FAILURES.values() if (evidence := evidence_of(mode, run))]
    names = {mode.name for mode, _ in found}
    caused = {effect for mode, _ in found for effect in mode.also_causes if effect in names}

    def rank(finding: tuple[FailureMode, Evidence]):
        mode, evidence = finding
        return mode.name in caused, evidence.onset, PRECEDENCE.index(mode.topic), mode.name

    return [_diagnosis(mode, evidence) for mode, evidence in sorted(found, key=rank)]


def evidence_of(mode: FailureMode, run: Run) -> Evidence | None:
    """What a mode's signature sees; nothing where the run has no step, or lacks the instrument it reads."""
    if not (run.facts.get("error") if mode.raises else len(run)):
        return None
    try:
        return mode.signature(run)
    except NoTrace:
        return None


def _diagnosis(mode: FailureMode, evidence: Evidence) -> Diagnosis:
    return Diagnosis(
        name=mode.name,
        title=mode.title,
        onset=evidence.onset,
        place=evidence.place,
        seen=evidence.seen,
        usual=evidence.usual,
        prescription=mode.remedy,
        confidence=evidence.confidence,
    )
