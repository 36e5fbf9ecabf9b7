"""Which failures does a run show, and which came first? From the instruments alone."""

from dataclasses import dataclass

from labkit.failures.mode import Evidence, FailureMode
from labkit.failures import FAILURES
from labkit.failures.signs import LOOKS, looks
from labkit.recording.run import NoTrace, Run

# Of two failures seen at the same step, the cause stands before the consequence: a dead net shows every sign
# of a vanishing gradient, a diverged one every sign of death, and any of them fails to generalise.
PRECEDENCE = (
    "numerics", "code", "distributed", "data", "learning_rate", "weights", "activations", "gradients",
    "landscape", "generalisation",
)  # fmt: skip


UNSURE = "unsure"
THIN = 0.5  # evidence of less confidence than this is no diagnosis
SHOWN = 4  # candidates, or look-alikes that were ruled out: more than that nobody reads
ALARMING = ("error", "not finite", "jumps", "never moves")  # looks that no healthy run has


@dataclass(frozen=True)
class Diagnosis:
    """One failure that a run shows; or, under the name "unsure", what it may be and how to find out."""

    name: str
    title: str
    onset: int  # the step from which it shows
    place: str  # the layer or tensor, where there is one
    seen: str
    usual: str
    prescription: str
    confidence: float
    rules_out: tuple[str, ...] = ()  # failures whose curves look the same, and whose own signs are not there
    candidates: tuple[str, ...] = ()  # of an unsure one

    @property
    def because(self) -> str:
        """The number seen beside the usual one."""
        return f"{self.seen} (usual: {self.usual})"

    def __str__(self) -> str:
        place = f" in {self.place}" if self.place else ""
        also = f" Not {', '.join(self.rules_out)}: their signs are missing." if self.rules_out else ""
        return f"{self.title} [{self.name}], from step {self.onset}{place}: {self.because}. {self.prescription}{also}"

    def _repr_html_(self) -> str:
        import html

        rest = f"<br>{html.escape(self.prescription)}"
        return f"<p><b>{html.escape(self.title)}</b> (step {self.onset}): {html.escape(self.because)}{rest}</p>"


def diagnose(run: Run) -> list[Diagnosis]:
    """The failures a run shows, causes before consequences; an empty list for a healthy run.

    Where something is plainly wrong and no failure can be named, one entry is called "unsure": it has the candidates,
    and the cheapest test that would tell them apart.
    """
    answers = {mode.name: answer_of(mode, run) for mode in FAILURES.values()}
    found = [(FAILURES[name], one) for name, one in answers.items() if isinstance(one, Evidence)]
    found = [(mode, evidence) for mode, evidence in found if evidence.confidence >= THIN]
    if not found:
        return unsure(run, answers)
    names = {mode.name for mode, _ in found}
    caused = {effect for mode, _ in found for effect in mode.also_causes if effect in names}

    def rank(finding: tuple[FailureMode, Evidence]):
        mode, evidence = finding
        return mode.name in caused, evidence.onset, PRECEDENCE.index(mode.topic), mode.name

    return [_diagnosis(mode, evidence, answers) for mode, evidence in sorted(found, key=rank)]


def evidence_of(mode: FailureMode, run: Run) -> Evidence | None:
    """What a mode's signature sees, if it sees anything and has the instruments for it."""
    answer = answer_of(mode, run)
    return answer if isinstance(answer, Evidence) else None


def answer_of(mode: FailureMode, run: Run) -> Evidence | NoTrace | None:
    """What a mode's signature sees; None for nothing; a NoTrace where the run lacks the instrument it reads."""
    if not (run.facts.get("error") if mode.raises else len(run)):
        return None
    try:
        return mode.signature(run)
    except NoTrace as missing:
        return missing


def _diagnosis(mode: FailureMode, evidence: Evidence, answers: dict) -> Diagnosis:
    alike = [name for name, other in FAILURES.items() if other.looks == mode.looks and answers[name] is None]
    alike.sort(key=lambda name: PRECEDENCE.index(FAILURES[name].topic) if FAILURES[name].topic != mode.topic else -1)
    return Diagnosis(
        name=mode.name,
        title=mode.title,
        onset=evidence.onset,
        place=evidence.place,
        seen=evidence.seen,
        usual=evidence.usual,
        prescription=mode.remedy,
        confidence=evidence.confidence,
        rules_out=tuple(alike[:SHOWN]),
    )


COMMON = ("learning_rate", "data", "code", "weights", "gradients", "activations", "numerics")  # where to look first


def _how_common(name: str) -> int:
    topic = FAILURES[name].topic
    return COMMON.index(topic) if topic in COMMON else len(COMMON)


def unsure(run: Run, answers: dict) -> list[Diagnosis]:
    """What may be wrong with a run that looks wrong and shows no failure's own signs."""
    try:
        look = looks(run)
    except NoTrace:
        return []
    if look not in ALARMING:
        return []
    alike = sorted((name for name, mode in FAILURES.items() if mode.looks == look), key=_how_common)
    if "grad_norm" in run:  # where there are instruments, what they could not judge is likelier than what they did
        alike = [name for name in alike if isinstance(answers[name], NoTrace)] or alike
    chosen = alike[:SHOWN]
    first = FAILURES[chosen[0]]
    more = f" and {len(alike) - SHOWN} more" if len(alike) > SHOWN else ""
    origin = run.facts.get("first_nonfinite") or {}
    titles = ", ".join(FAILURES[name].title.lower() for name in chosen)
    return [
        Diagnosis(
            name=UNSURE,
            title="Unsure",
            onset=int(origin.get("step", 0)),
            place=origin.get("place", ""),
            seen=f"{LOOKS[look]}, and no failure shows its own signs in what was recorded over {len(run)} steps",
            usual="a loss that falls from the first 10 steps on",
            prescription=f"It may be {titles}{more}. The cheapest test: {first.first_check}",
            confidence=0.3,
            candidates=tuple(alike),
        )
    ]
