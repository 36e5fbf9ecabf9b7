"""The arms of a treatment as curves."""

from typing import TYPE_CHECKING

from labkit.diagnosis.treatment.arms import Arm
from labkit.diagnosis.treatment.prescriptions.catalogue import PLACEBO

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from labkit.diagnosis.treatment.answer import Treatment


def arms(treatment: "Treatment", ax: "Axes | None" = None) -> "Axes":
    """The measure at every validation: untreated, placebo and the best arm on all seeds, the others in grey."""
    import matplotlib.pyplot as plt

    ax = ax or plt.subplots(figsize=(7, 4), layout="constrained")[1]
    labelled: set[str] = set()
    for arm, run in sorted(treatment.runs.items(), key=lambda pair: rank(treatment, pair[0])):
        curve = treatment.measure.curve(run)
        style = style_of(treatment, arm)
        label = style.pop("label")
        values = [treatment.measure.sign * value for value in curve.values]
        ax.plot(curve.steps, values, label=None if label in labelled else label, **style)
        labelled.add(label)
    ax.set_xlabel("step")
    ax.set_ylabel(treatment.measure.words)
    ax.set_title(repr(treatment).strip("<>"), fontsize="medium")
    ax.legend(fontsize="small")
    return ax


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
