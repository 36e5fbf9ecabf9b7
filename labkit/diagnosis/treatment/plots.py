"""The arms of a treatment as curves."""

import math
import textwrap
from typing import TYPE_CHECKING

from labkit.diagnosis.treatment.answer import VERDICTS
from labkit.diagnosis.treatment.arms import Arm
from labkit.diagnosis.treatment.experiment import is_treated
from labkit.diagnosis.treatment.prescriptions.catalogue import PLACEBO

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from labkit.diagnosis.treatment.answer import Treatment


def arms(treatment: "Treatment", ax: "Axes | None" = None) -> "Axes":
    """The measure at every validation: untreated, placebo and the best arm on all seeds, the others in grey."""
    import matplotlib.pyplot as plt

    ax = ax or plt.subplots(figsize=(7, 4), layout="constrained")[1]
    labelled: set[str] = set()
    special: list[float] = []  # values of what the picture is about
    shown = {arm: run for arm, run in treatment.runs.items() if is_treated(arm) or is_special(treatment, arm)}
    for arm, run in sorted(shown.items(), key=lambda pair: rank(treatment, pair[0])):
        curve = treatment.measure.curve(run)
        style = style_of(treatment, arm)
        label = style.pop("label")
        values = [treatment.measure.sign * value for value in curve.values]
        ax.plot(curve.steps, values, label=None if label in labelled else label, **style)
        labelled.add(label)
        special += values if is_special(treatment, arm) else []
    frame(ax, special)
    ax.set_xlabel("step")
    ax.set_ylabel(treatment.measure.words)
    words = [VERDICTS[treatment.verdict], *([treatment.words] if treatment.names else [])]
    ax.set_title(textwrap.fill(": ".join(words), 70), fontsize="medium")
    ax.legend(fontsize="small")
    return ax


WIDE = 30.0  # from here on a range is shown on a logarithmic axis


def frame(ax: "Axes", values: list[float]) -> None:
    """Make room for these values, whatever an arm that diverged has reached."""
    values = [value for value in values if math.isfinite(value)]
    if not values:
        return
    low, high = min(values), max(values)
    if low > 0 and high > WIDE * low:
        ax.set_yscale("log")
        ax.set_ylim(low / 1.3, high * 1.3)
    elif high > low:
        ax.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))


def rank(treatment: "Treatment", arm: Arm) -> int:
    """What is drawn last lies on top."""
    return [not is_special(treatment, arm), not arm.names, arm.is_placebo, arm.names == treatment.names].index(True)


def is_special(treatment: "Treatment", arm: Arm) -> bool:
    return not arm.names or arm.is_placebo or arm.names == treatment.names


def style_of(treatment: "Treatment", arm: Arm) -> dict:
    if not arm.names:
        return {"label": "untreated", "color": "C3"}
    if arm.is_placebo:
        return {"label": PLACEBO.name, "color": "C1", "linestyle": "--"}
    if arm.names == treatment.names:
        return {"label": treatment.words, "color": "C2", "linewidth": 2}
    return {"label": "other arms", "color": "0.75", "linewidth": 0.8}
