"""What says how good a run is: its accuracy, its nats per token, or how legible its samples are.

A run names its measure in the fact "measure". Whoever compares runs reads `run.measure` and `run.score`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """A result of the last validation: which trace has it, in which direction it is good, and how it is written."""

    name: str
    trace: str
    words: str
    higher_is_better: bool
    close: float  # a cure comes this close to the healthy twin
    learned: dict[str, float]  # data set -> a run that is at least as good has learned
    chance: Callable[[int], float]  # what guessing among so many classes reaches
    nats: bool = False  # else it is a share

    @property
    def worst(self) -> float:
        return 0.0 if self.higher_is_better else math.inf

    @property
    def perfect(self) -> float:
        return 1.0 if self.higher_is_better else 0.0

    @property
    def bound(self) -> str:
        return "at least" if self.higher_is_better else "at most"

    def text(self, value: float | None) -> str:
        """'92.3%' or '0.592 nats'; '-' for None."""
        return "-" if value is None else f"{value:.3f} nats" if self.nats else f"{value:.1%}"

    def brief(self, value: float | None) -> str:
        """'92%' or '0.59'; '-' for None."""
        return "-" if value is None else f"{value:.2f}" if self.nats else f"{value:.0%}"

    def gain(self, value: float, other: float) -> float:
        """By how much a value is better than another; negative where it is worse."""
        return value - other if self.higher_is_better else other - value

    def reaches(self, value: float | None, goal: float, slack: float = 0.0) -> bool:
        """Is a value as good as the goal, or worse by at most the slack? None and NaN are not."""
        if value is None:
            return False
        return value >= goal - slack if self.higher_is_better else value <= goal + slack

    def harm(self, value: float | None, healthy: float | None, classes: int) -> float:
        """What was lost of the healthy value's distance from chance, as a share; 1 where nothing was validated."""
        if value is None or healthy is None or not math.isfinite(value):
            return 1.0
        chance = self.chance(classes)
        return 1 - (value - chance) / (healthy - chance)


ACCURACY = "accuracy"
MEASURES = {
    measure.name: measure
    for measure in (
        # Chance is 0.1; healthy short runs reach 0.91 or more on MNIST and, as perceptrons without convolutions, 0.36
        # or more on CIFAR-10.
        Measure(ACCURACY, "val_accuracy", "validation accuracy", True, close=0.02,
                learned={"mnist": 0.85, "cifar10": 0.3}, chance=lambda classes: 1 / classes),
        # Healthy GPTs reach 0.60 to 0.62 nats per token on seeds 0 to 4; targets that are shifted twice 0.67 to 0.69.
        Measure("nats", "val_nats", "validation loss per token", False, close=0.03,
                learned={"mnist_tokens": 0.65}, chance=math.log, nats=True),
        # Of 100 samples of healthy GPTs 71 to 78 are legible, of those with a leak 0 to 31. Two nets that are equally
        # good differ by 0.06 in the usual case: the standard error of one is 0.045.
        Measure("legible", "val_legible", "legible samples", True, close=0.15,
                learned={"mnist_tokens": 0.5}, chance=lambda classes: 0.1),
        # All of 100 samples of a healthy GPT stop, and none where the end is ignored.
        Measure("stopped", "val_stopped", "samples that stop", True, close=0.05,
                learned={"digits_that_end": 0.9}, chance=lambda classes: 0.0),
    )
}  # fmt: skip
