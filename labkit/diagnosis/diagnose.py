"""Which failures does a run show, and which came first? From the instruments alone."""

from dataclasses import dataclass, replace

import numpy as np

from labkit.diagnosis.calibration import confidence
from labkit.failures.catalogue import FAILURES
from labkit.failures.mode import Evidence, FailureMode
from labkit.failures.signs import (
    LONG_ENOUGH,
    LOOKS,
    SLOW,
    Look,
    left_over,
    longer_step,
    looks,
    nothing_to_gain,
    ruled_out,
)
from labkit.recording.run import NoTrace, Run
from labkit.recording.summaries import chance_loss, label_shares

# Of two failures with the same onset, the cause is listed before the consequence: a dead net shows every sign
# of a vanishing gradient, a diverged one every sign of dead units, and none of them generalises.
PRECEDENCE = (
    "numerics", "code", "language", "distributed", "data", "learning_rate", "weights", "activations", "gradients",
    "landscape", "generalisation",
)  # fmt: skip


UNSURE = "unsure"
WEAK = 0.7  # evidence with less than this comes from excluding others: it is listed behind direct evidence
COSTS_MEMORY = ("validation_with_gradients",)  # and no accuracy: listed behind what makes training fail
THIN = 0.5  # evidence with less confidence than this is not reported
SHOWN = 4  # candidates, or look-alikes that were ruled out: nobody reads more
ALARMING: tuple[Look, ...] = ("error", "not finite", "jumps", "never moves")  # loss curves that no healthy run has
# The loss at the end over that of a constant prediction. Healthy small programs of every task end at 0.01 to 0.46 on
# the probe (perceptrons on photographs at 0.75) and at 0.02 to 0.61 in validation; where half to three quarters of the
# variance is noise, their best validation is at 0.93 to 1.10. The constant is measured on the probe: on its 96 samples
# the variance of a normal target has a relative standard error of 0.145, so validation may lie that far above 1.
UNLEARNED, USELESS = 0.87, 1.15
LEARNED = (
    0.75  # in validation: a few outliers among 96 samples of the probe keep its loss at 0.94 where this falls to 0.58
)
# Validation that was below USELESS once and rose again is overfitting, which noisy labels or few samples explain: on
# its way there, programs whose labels are a third noise reach 0.69 to 0.82. Accuracy beyond the share of the most
# frequent class, over what is missing from that. A net that memorised 2,000 photographs has a validation loss of 1.09
# times that of a constant prediction, because it is overconfident, and 0.22.
BETTER = 0.15


@dataclass(frozen=True)
class Diagnosis:
    """One failure that a run shows; or, named "unsure", the candidates and how to tell them apart."""

    name: str
    title: str
    onset: int  # the step from which it shows
    place: str  # the layer or tensor, where there is one
    seen: str
    usual: str
    prescription: str
    confidence: float  # how often such a verdict is correct: calibration.py
    rules_out: tuple[str, ...] = ()  # failures whose curves look the same, and whose own signs are not there
    candidates: tuple[str, ...] = ()  # of an unsure one

    @property
    def because(self) -> str:
        """The measured value and the usual one."""
        return f"{self.seen} (usual: {self.usual})"

    @property
    def certainty(self) -> str:
        """The confidence in words: 'about 90 %'."""
        return f"about {5 * round(20 * self.confidence)} %"

    def __str__(self) -> str:
        place = f" in {self.place}" if self.place else ""
        also = f" Not {', '.join(self.rules_out)}: their signs are missing." if self.rules_out else ""
        return f"{self.title} [{self.name}], from step {self.onset}{place}: {self.because}. {self.prescription}{also}"

    def _repr_html_(self) -> str:
        import html

        rest = f"<br>{html.escape(self.prescription)}"
        return f"<p><b>{html.escape(self.title)}</b> (step {self.onset}): {html.escape(self.because)}{rest}</p>"


def diagnose(run: Run, strict: bool = True) -> list[Diagnosis]:
    """The failures a run shows, causes before consequences; an empty list for a healthy run.

    Where a run is clearly wrong and no failure matches, the one entry is named "unsure": it lists the candidates and
    the cheapest test that tells them apart. With `strict=False` a signature that raises on a run of a kind that nobody
    thought of counts as one that could not be tested.
    """
    run, lowest = from_perfect_outputs_on(run)
    answers = {mode.name: answer_of(mode, run, strict) for mode in FAILURES.values()}
    found = [(FAILURES[name], one) for name, one in answers.items() if isinstance(one, Evidence)]
    found = [(mode, evidence) for mode, evidence in found if evidence.confidence >= THIN]
    if not found:
        return unsure(run, answers)
    names = {mode.name for mode, _ in found}
    caused = {effect for mode, _ in found for effect in mode.also_causes if effect in names}

    def rank(finding: tuple[FailureMode, Evidence]) -> tuple[bool, bool, bool, float, int, int, float, str]:
        mode, evidence = finding
        last = mode.name in COSTS_MEMORY
        weak, sure = evidence.confidence < WEAK, confidence(mode.name, evidence.confidence)
        by_exclusion = -evidence.confidence if weak else 0.0  # these have no onset of their own
        order = evidence.onset, PRECEDENCE.index(mode.topic), -sure, mode.name
        return last, mode.name in caused, weak, by_exclusion, *order

    excluded = ruled_out(run)
    diagnoses = [_diagnosis(mode, evidence, answers, excluded) for mode, evidence in sorted(found, key=rank)]
    note = f"; losses are counted from that of perfect outputs on, {lowest:.3g}"
    return [replace(each, seen=each.seen + note) for each in diagnoses] if lowest else diagnoses


LOSSES = ("loss", "probe_loss", "val_loss", "sample_loss_mean")
TESTED = ("truth", "swapped", "loss", "best_loss", "other_inputs")


def from_perfect_outputs_on(run: Run) -> tuple[Run, float]:
    """(The run with losses counted from that of perfect outputs on, that loss) where it is below 0; else the run and 0.

    The Poisson loss and other likelihoods leave out a constant: their sign and size say nothing, and neither do
    ratios. A loss with a flipped sign is below 0 as well, but it rates perfect outputs worst.
    """
    tests, constant = run.facts.get("probe_tests") or {}, run.facts.get("constant_loss", np.nan)
    truth = tests.get("truth", np.nan)
    if run.facts.get("task") != "numbers" or not truth < min(0.0, constant, tests.get("swapped", -np.inf)):
        return run, 0.0
    traces = run.traces | {name: run[name] - truth for name in LOSSES if name in run}
    moved = tests | {name: tests[name] - truth for name in TESTED if name in tests}
    facts = run.facts | {"probe_tests": moved, "constant_loss": constant - truth}
    return replace(run, traces=traces, facts=facts), truth


def evidence_of(mode: FailureMode, run: Run) -> Evidence | None:
    """What a mode's signature finds; None where it finds nothing or an instrument is missing."""
    answer = answer_of(mode, run)
    return answer if isinstance(answer, Evidence) else None


def answer_of(mode: FailureMode, run: Run, strict: bool = True) -> Evidence | NoTrace | None:
    """What a mode's signature finds; None for nothing; a NoTrace where the run lacks an instrument it reads."""
    if not (run.facts.get("error") if mode.raises else len(run)):
        return None
    try:
        return mode.signature(run)
    except NoTrace as missing:
        return missing
    except Exception as error:
        if strict:
            raise
        return NoTrace(f"{mode.name} could not be tested: {type(error).__name__}: {error}")


def _diagnosis(mode: FailureMode, evidence: Evidence, answers: dict, excluded: dict[str, str]) -> Diagnosis:
    alike = [name for name, other in FAILURES.items() if other.looks == mode.looks and answers[name] is None]

    def likely(name: str) -> tuple[bool, int]:
        """Those that a test on the probe has excluded, then those of the same topic."""
        topic = FAILURES[name].topic
        return name not in excluded, -1 if topic == mode.topic else PRECEDENCE.index(topic)

    alike.sort(key=likely)
    return Diagnosis(
        name=mode.name,
        title=mode.title,
        onset=evidence.onset,
        place=evidence.place,
        seen=evidence.seen,
        usual=evidence.usual,
        prescription=mode.remedy,
        confidence=confidence(mode.name, evidence.confidence),
        rules_out=tuple(alike[:SHOWN]),
    )


COMMON = ("learning_rate", "data", "code", "weights", "gradients", "activations", "numerics")  # where to look first


def _how_common(name: str) -> int:
    topic = FAILURES[name].topic
    return COMMON.index(topic) if topic in COMMON else len(COMMON)


def alarming(run: Run) -> tuple[Look, str] | None:
    """What is clearly wrong with a run, and the same in words; None where nothing is."""
    try:
        look = looks(run)
        if look in ALARMING:
            return look, LOOKS[look]
        left, validated = left_over(run), best_validation(run)
        of_use = classifies(run) and nothing_to_gain(run)  # the rest of the labels may be noise
        if len(run) >= LONG_ENOUGH and left > UNLEARNED and not validated < LEARNED and not of_use:
            return "stops too high", f"at the end {left:.2f} of the loss of a constant prediction is left"
        if len(run) >= LONG_ENOUGH and left < UNLEARNED and validated > USELESS and not classifies(run):
            words = (
                f"{left:.2f} of the loss of a constant prediction is left on the probe, and in validation never less "
                f"than {validated:.2f}"
            )
            return "validation worse", words
    except NoTrace:
        pass
    return None


def best_validation(run: Run) -> float:
    """The lowest validation loss over that of a constant prediction; NaN where either is unknown."""
    losses = run["val_loss"] if "val_loss" in run else np.full(1, np.nan)
    return float(np.min(losses / chance_loss(run), initial=np.inf)) if np.isfinite(losses).all() else float("nan")


def classifies(run: Run) -> bool:
    """Is the validation accuracy far above that of always predicting the most frequent class?"""
    shares = label_shares(run)
    return bool(len(shares) and run.accuracy is not None and run.accuracy - shares.max() > BETTER * (1 - shares.max()))


def unsure(run: Run, answers: dict) -> list[Diagnosis]:
    """The candidates for a run that looks wrong and matches no signature."""
    wrong = alarming(run)
    if wrong is None:
        return []
    look, words = wrong
    excluded = ruled_out(run)
    alike = sorted((name for name, mode in FAILURES.items() if mode.looks == look), key=_how_common)
    if "grad_norm" in run:  # with instruments, a failure they could not test is likelier than one they did
        alike = [name for name in alike if isinstance(answers[name], NoTrace)] or alike
    alike = [name for name in alike if name not in excluded] or alike
    longer = longer_step(run)
    if longer and look in ("stops too high", "never moves"):
        alike = list(dict.fromkeys((*SLOW, *alike)))
    chosen = alike[:SHOWN]
    first = FAILURES[chosen[0]]
    more = f" and {len(alike) - SHOWN} more" if len(alike) > SHOWN else ""
    origin = run.facts.get("first_nonfinite") or {}
    titles = ", ".join(FAILURES[name].title.lower() for name in chosen)
    tested = "".join(f"; {each}" for each in dict.fromkeys((*excluded.values(), *([longer] if longer else []))))
    return [
        Diagnosis(
            name=UNSURE,
            title="Unsure",
            onset=int(origin.get("step", 0)),
            place=origin.get("place", ""),
            seen=f"{words}, and no failure shows its own signs in what was recorded over {len(run)} steps{tested}",
            usual="a loss that falls from the first 10 steps on",
            prescription=f"It may be {titles}{more}. The cheapest test: {first.first_check}",
            confidence=0.3,
            rules_out=tuple(excluded),
            candidates=tuple(alike),
        )
    ]
