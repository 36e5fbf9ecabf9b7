"""What `labkit.treat` returns: the cure with its effect beside untreated and placebo, and what was tried."""

import dataclasses
import json
import math
import textwrap
import time
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from labkit.diagnosis.diagnose import UNSURE, Diagnosis
from labkit.diagnosis.treatment.arms import DONE, REFUSED, UNTREATED, Arm
from labkit.diagnosis.treatment.experiment import Experiment, is_treated
from labkit.diagnosis.treatment.judgement import Effect, Measure
from labkit.diagnosis.treatment.prescriptions.catalogue import PLACEBO, made_for, named, treatable
from labkit.failures.catalogue import FAILURES
from labkit.recording.files import json_ready
from labkit.recording.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURED, UNPROVEN, NOT_CURED, NOTHING = "cured", "not proven", "not cured", "nothing to treat"
VERDICTS = {
    CURED: "Cured",
    UNPROVEN: "Not proven",
    NOT_CURED: "Not cured",
    NOTHING: "Nothing to treat",
}


@dataclass(frozen=True)
class Tried:
    """One arm: what was changed, and the result."""

    names: tuple[str, ...]
    words: str
    scores: dict[int, float]  # by seed, higher is better
    gain: float  # on the first seed, as a share of what the better arm has learned
    status: str
    why: str = ""


@dataclass(frozen=True)
class Treatment:
    """The result of `labkit.treat`; printed, it says everything. `verdict` is one of the four in VERDICTS."""

    verdict: str
    ending: str  # why it was cut short, if it was
    diagnoses: tuple[Diagnosis, ...]  # of the untreated program
    remaining: tuple[Diagnosis, ...]  # of the treated one
    names: tuple[str, ...]  # the prescriptions of the cure, or of the best arm
    measure: Measure
    tried: tuple[Tried, ...]  # untreated and placebo first
    effect: Effect | None  # over the untreated arm
    over_placebo: Effect | None
    placebo: Effect | None  # of the placebo over the untreated arm
    one_seed: bool  # the program seeds itself: the same weights and data in every run
    stirred: bool  # its runs differ all the same, by the random numbers that it draws after the call of watch
    error: str  # with which the untreated program ended
    spent: int
    seconds: float
    runs: dict[Arm, Run]
    samples: tuple[dict, ...]

    @classmethod
    def of(cls, experiment: Experiment, best: tuple[str, ...], ending: str) -> "Treatment":
        """Read the answer off an experiment."""
        first = Arm((), experiment.seeds[0])
        found = experiment.diagnoses(first)
        placebo = (PLACEBO.name,)
        ended = experiment.results[first]
        has_placebo = bool(experiment.scores(placebo))
        judged = bool(best and experiment.scores(best))
        enough = judged and (experiment.repeats_itself or len(experiment.scores(best)) >= 3)
        verdict = NOTHING if not found else NOT_CURED
        if judged:
            verdict = CURED if enough and experiment.proven(best) else UNPROVEN
        at_first = Arm(best, experiment.seeds[0])
        return cls(
            verdict,
            ending,
            tuple(found),
            tuple(experiment.diagnoses(at_first)) if judged and at_first in experiment.results else (),
            best,
            experiment.measure,
            tuple(tried_of(experiment, best)),
            experiment.effect(best) if judged else None,
            experiment.effect(best, placebo) if judged and has_placebo else None,
            experiment.effect(placebo) if has_placebo else None,
            experiment.repeats_itself or experiment.stirred,
            experiment.stirred and not experiment.repeats_itself,
            "" if ended.status == DONE else f"{ended.status}: {ended.why}",
            experiment.spent,
            time.monotonic() - experiment.began,
            {arm: result.run for arm, result in experiment.results.items() if result.run is not None},
            experiment.results[first].samples,
        )

    # --- what it says ---

    @property
    def cured(self) -> bool:
        """Was a cure seen to work?"""
        return self.verdict == CURED

    @property
    def words(self) -> str:
        """The cure, or the best arm, in words."""
        return Arm(self.names).words

    @property
    def code(self) -> str:
        """The cure in plain PyTorch."""
        return "\n".join(named(name).code for name in self.names)

    @cached_property
    def confirmed(self) -> bool:
        """Is the cure made for the first diagnosis?"""
        return bool(self.cured and self.diagnoses) and any(
            self.diagnoses[0].name in made_for(name) for name in self.names
        )

    @property
    def by_hand(self) -> list[str]:
        """Failures, diagnosed or candidates of an unsure diagnosis, that only the program's author can treat."""
        names = [name for each in self.diagnoses for name in (each.candidates if each.name == UNSURE else (each.name,))]
        return [name for name in names if name in FAILURES and not treatable(name)]

    def __str__(self) -> str:
        from labkit.diagnosis.treatment.words import in_words

        return in_words(self)

    def __repr__(self) -> str:
        return f"<Treatment: {self.verdict}{f', {self.words}' if self.names else ''}, {self.spent} runs>"

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(str(self))}</pre>"

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """The measure over the steps: untreated, placebo, the best arm, and the others in grey."""
        from labkit.diagnosis.treatment.plots import arms

        return arms(self, ax)

    def to_json(self) -> str:
        """Everything but the runs, as JSON."""
        return json.dumps(json_ready(self.as_values()), indent=2)

    def as_values(self) -> dict[str, Any]:
        """Everything but the runs, as plain values."""

        def plain(effect: Effect | None) -> dict | None:
            return dataclasses.asdict(effect) if effect else None

        return {
            "verdict": self.verdict,
            "ending": self.ending,
            "diagnoses": [dataclasses.asdict(each) for each in self.diagnoses],
            "remaining": [dataclasses.asdict(each) for each in self.remaining],
            "cure": {"names": self.names, "words": self.words if self.names else "", "code": self.code},
            "diagnosis confirmed": self.confirmed,
            "measure": dataclasses.asdict(self.measure),
            "effect over untreated": plain(self.effect),
            "effect over placebo": plain(self.over_placebo),
            "placebo over untreated": plain(self.placebo),
            "one seed": self.one_seed,
            "other random numbers after watch": self.stirred,
            "error": self.error,
            "tried": [
                dataclasses.asdict(each)
                | {"scores": {seed: self.measure.sign * score for seed, score in each.scores.items()}}
                for each in self.tried
            ],
            "by hand": self.by_hand,
            "samples": self.samples,
            "runs": self.spent,
            "seconds": round(self.seconds, 1),
        }


def tried_of(experiment: Experiment, best: tuple[str, ...]) -> list[Tried]:
    """One entry per set of prescriptions: untreated, placebo, the cure, then by score."""
    groups: dict[tuple[str, ...], list[Arm]] = {}
    for arm in experiment.order:
        if is_treated(arm) or arm.is_placebo or not arm.names:
            groups.setdefault(arm.names, []).append(arm)
    entries = []
    for names, arms in groups.items():
        result = experiment.results[arms[0]]
        counts = result.status == DONE
        entries.append(
            Tried(
                names,
                arms[0].words if names else UNTREATED,
                {arm.seed: experiment.score(arm) for arm in arms if experiment.results[arm].status != REFUSED},
                experiment.gain(names) if counts and arms[0].seed == experiment.seeds[0] else -math.inf,
                result.status,
                result.why,
            )
        )

    def key(each: Tried) -> tuple[bool, bool, bool, float]:
        first = each.scores.get(experiment.seeds[0], -math.inf) if each.status == DONE else -math.inf
        return each.names != (), each.names != (PLACEBO.name,), each.names != best, -first

    return sorted(entries, key=key)


def wrapped(label: str, text: str) -> str:
    return textwrap.fill(text, 110, initial_indent=f"{label:12}", subsequent_indent=" " * 12, break_on_hyphens=False)
