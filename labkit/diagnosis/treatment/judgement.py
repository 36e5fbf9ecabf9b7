"""Is one arm better than another? By the program's own validation measure, paired over seeds, with an interval."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from labkit.diagnosis.treatment.arms import Result
from labkit.diagnosis.treatment.intervention import PROGRAM_LOSS, Curve
from labkit.errors import RecipeError
from labkit.recording.run import Run
from labkit.recording.summaries import chance_loss, label_shares

# What names of measures contain, abbreviations of few letters as a word of their own; LOWER is asked first.
LOWER = (
    "loss", "error", "mse", "msle", "mae", "mape", "perplexity", "deviance", "distance", "entropy", "brier", "huber",
    "regret", "negative", "false",
)  # fmt: skip
LOWER_WORDS = ("ppl", "nll", "wer", "cer", "bits", "fid", "ece", "bce", "ce", "kl", "fpr", "fnr", "err", "bpc")
HIGHER = (
    "acc", "r2", "f1", "iou", "auc", "auroc", "auprc", "dice", "precision", "recall", "bleu", "rouge", "score",
    "reward", "agreement", "correlation", "ndcg", "kappa", "elbo", "likelihood", "return", "sensitivity", "specificity",
)  # fmt: skip
HIGHER_WORDS = ("map", "hit", "hits", "mrr", "top", "mcc", "psnr", "ssim", "tpr", "tnr", "true")
# A gain counts from this share of what the better arm has learned. Healthy programs differ by 2 % to 15 % of theirs
# between seeds; a fault that counts costs at least 20 %.
MATERIAL = 0.1
# An arm that has learned less than this share of what there is to learn is measured by it: beside an untreated program
# that learned nothing, 2 % of the way to a perfect score are the least that counts, and not whatever the arm gained.
LITTLE = 0.2
FAR = 10.0  # times the usual: an untreated program that diverged so far tells nothing about where it began
# Student's t at 97.5 %, by degrees of freedom: an interval of 95 % from few seeds.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


@dataclass(frozen=True)
class Measure:
    """What the arms are judged by."""

    name: str  # of a validation result, or "training loss"
    higher: bool  # is better

    @property
    def sign(self) -> float:
        return 1.0 if self.higher else -1.0

    @property
    def words(self) -> str:
        return self.name if self.name == TRAINING else f"validation {self.name}"

    def curve(self, run: Run | None) -> Curve:
        """Oriented values: higher is better."""
        if run is None:
            return Curve()
        if self.name == TRAINING:
            losses = run[PROGRAM_LOSS if PROGRAM_LOSS in run else "loss"]  # the same loss in every arm
            size = max(1, len(run) // 20)
            parts = [
                (int(run["step"][at]), float(np.mean(losses[max(0, at - size) : at + 1])))
                for at in range(size - 1, len(run), size)
            ]
            return Curve([step for step, _ in parts], [self.sign * value for _, value in parts])
        trace = f"val_{self.name}"
        if trace not in run:
            return Curve()
        values = np.asarray(run[trace], dtype=float).reshape(len(run[trace]), -1).mean(1)
        return Curve([int(step) for step in run["val_step"]], [float(self.sign * value) for value in values])

    def score(self, result: Result) -> float:
        """The value at the end, oriented; minus infinity for an arm that failed or whose value is not finite."""
        values = self.curve(result.run).values if result.counts else []
        return values[-1] if values and math.isfinite(values[-1]) else -math.inf

    def shown(self, score: float) -> str:
        return in_figures(self.sign * score).removeprefix("+") if math.isfinite(score) else "failed"


TRAINING = "training loss"


def direction(name: str) -> bool | None:
    """Is higher better? None where the name does not say."""
    plain = name.lower()
    words = set(re.findall(r"[a-z]+\d?", plain)) | set(re.findall("[a-z]+", plain))  # "top5" is "top" too
    if words & set(LOWER_WORDS) or any(each in plain for each in LOWER):
        return False
    return True if words & set(HIGHER_WORDS) or any(each in plain for each in HIGHER) else None


def chosen(results: Iterable[Result], asked: str | None = None) -> Measure:
    """The program's own measure: the first that is not a loss; a loss where there is none; else the training loss.

    `asked` names one; with a minus before it, lower is better.
    """
    names = list(dict.fromkeys(name for each in results for name in each.measures))
    if asked:
        name, lower = asked.removeprefix("-"), asked.startswith("-")
        if names and name not in names:
            raise RecipeError(f"measure: expected one of {', '.join(names)}, got {asked!r}")
        known = direction(name)
        return Measure(name, higher=not lower and known is not False)
    for name in sorted(names, key=lambda name: "loss" in name.lower()):
        if (higher := direction(name)) is not None:
            return Measure(name, higher)
    return Measure(TRAINING, higher=False)


@dataclass(frozen=True)
class Effect:
    """The difference between two arms over the same seeds."""

    mean: float
    low: float
    high: float
    seeds: int
    share: float  # of what the better one has learned

    @property
    def proven(self) -> bool:
        """Better beyond chance, and by an amount that matters."""
        return self.low > 0 and self.share >= MATERIAL

    def __str__(self) -> str:
        if self.seeds < 2:
            return f"{in_figures(self.mean)} (one seed)"
        low, high = in_figures(self.low), in_figures(self.high)
        return f"{in_figures(self.mean)} (95 % interval {low} to {high}, {self.seeds} seeds)"


def in_figures(value: float) -> str:
    """Four figures with the sign; dollars in thousands without an exponent."""
    return f"{value:+,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:+.4g}"


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Student's 95 % interval of the mean; for one value the value itself."""
    mean, count = float(np.mean(values)), len(values)
    if count < 2:
        return mean, mean
    half = STUDENT[min(count - 1, len(STUDENT)) - 1] * float(np.std(values, ddof=1)) / math.sqrt(count)
    return mean - half, mean + half


def compared(better: Mapping[int, float], other: Mapping[int, float], floor: float, least: float = 0.0) -> Effect:
    """The paired difference of two arms, on the seeds that both have; an arm that failed has the score of the floor."""
    seeds = sorted(better.keys() & other.keys())
    one, two = ([finite(scores[seed], floor) for seed in seeds] for scores in (better, other))
    differences = [a - b for a, b in zip(one, two, strict=True)]
    low, high = interval(differences)
    learned = max(abs(float(np.mean(one)) - floor), least)
    mean = float(np.mean(differences))
    return Effect(mean, low, high, len(seeds), mean / learned if learned > 0 else 0.0)


def finite(score: float, floor: float) -> float:
    return score if math.isfinite(score) else floor


def least_of(measure: Measure, floor: float) -> float:
    """The least that an arm's gain is measured by: LITTLE of the way from the floor to a perfect score."""
    perfect = 1.0 if measure.higher else 0.0
    return LITTLE * max(0.0, perfect - floor)


def floor_of(measure: Measure, results: Sequence[Result]) -> float:
    """The score of a net that has learned nothing: a constant prediction's where it is known, else as it was seen."""
    runs = [each.run for each in results if each.run is not None]
    if measure.higher and "acc" in measure.name.lower() and "balanced" not in measure.name.lower():
        shares = [label_shares(run) for run in runs]
        if known := [float(each.max()) for each in shares if len(each)]:
            return max(known)
    if measure.higher and measure.name.lower() in ("r2", "iou", "f1", "auc", "dice"):
        return 0.0
    if not measure.higher:
        constants = [chance_loss(run) for run in runs]
        known = [each for each in constants if math.isfinite(each) and each > 0]
        if known and "loss" in measure.name.lower():
            return -min(known)
        if begun := [each for result in results if (each := where_it_began(measure, result)) is not None]:
            return where_arms_begin(
                begun, [end for each in results if not each.arm.names for end in last(measure, each)]
            )
    seen = [value for run in runs for value in measure.curve(run).values if math.isfinite(value)]
    return min(seen) if seen else 0.0


def where_it_began(measure: Measure, result: Result) -> float | None:
    """Of the first and the last value of an arm the worse: about where it began. None without a finite one."""
    values = [value for value in measure.curve(result.run).values if math.isfinite(value)]
    return min(values[0], values[-1]) if values else None


def last(measure: Measure, result: Result) -> list[float]:
    """The last value of an arm, if it is finite."""
    return [value for value in measure.curve(result.run).values[-1:] if math.isfinite(value)]


def where_arms_begin(begun: Sequence[float], untreated: Sequence[float]) -> float:
    """Where nets begin, in the units of the measure: the median of all arms, or the untreated one that got no better.

    The loss of a constant prediction does not help: a mean error in dollars has another unit than a loss of scaled
    targets.
    """
    usual = float(np.median(begun))
    return min(usual, max(min(untreated, default=usual), usual - FAR * abs(usual)))
