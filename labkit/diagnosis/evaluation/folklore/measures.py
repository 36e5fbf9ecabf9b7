"""What a claim is measured by: one finite number of a run, so that runs can be compared seed by seed."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from labkit.recording.run import Run
from labkit.recording.summaries import chance_loss, late_loss, matrix_layers, whole_norm


@dataclass(frozen=True)
class Measure:
    """A number that is read from a run, in the unit in which effects are told."""

    name: str
    read: Callable[[Run], float]
    unit: str
    digits: int = 1

    def words(self, value: float, sign: bool = False) -> str:
        """The number without its unit, with as many digits as make sense."""
        return f"{value:{'+' if sign else ''}.{self.digits}f}"


def accuracy(run: Run) -> float:
    """In points. A run that was never validated has learned nothing: chance."""
    return 100 * (1 / run.facts["classes"] if run.accuracy is None else run.accuracy)


def validation_loss(run: Run) -> float:
    """In nats; a loss that is not finite counts as that of a constant prediction, so that a mean can be taken."""
    value = float(run["val_loss"][-1])
    return value if math.isfinite(value) else chance_loss(run)


def nats_per_token(run: Run) -> float:
    """The cross-entropy of every validation token, whatever the loss of the run leaves out or adds."""
    value = float(run["val_nats"][-1])
    return value if math.isfinite(value) else chance_loss(run)


def best_validation_loss(run: Run) -> float:
    """The lowest of all validations: what early stopping returns."""
    finite = run["val_loss"][np.isfinite(run["val_loss"])]
    return float(finite.min()) if len(finite) else chance_loss(run)


def first_loss(run: Run) -> float:
    value = float(run["loss"][0])
    return value if math.isfinite(value) else 1e9


def diverged(run: Run) -> float:
    """100 where a loss, a gradient or a weight became NaN or infinite, else 0."""
    return 100.0 * (run.facts.get("first_nonfinite") is not None)


def miscalibration(run: Run) -> float:
    """How far the mean confidence is from the accuracy, in points: 0 for a net that knows how often it is right."""
    return 100 * abs(float(run["val_confidence"][-1]) - float(run["val_accuracy"][-1]))


def accuracy_after_lowest_loss(run: Run) -> float:
    """Accuracy at the end minus accuracy where the validation loss was lowest, in points."""
    lowest = int(np.nanargmin(run["val_loss"]))
    return 100 * float(run["val_accuracy"][-1] - run["val_accuracy"][lowest])


def update_ratio(run: Run) -> float:
    """log10 of the median update / weight ratio, over all steps and weight matrices."""
    ratios, _ = matrix_layers(run, "update_ratio")
    return float(np.log10(np.median(ratios)))


def loss_noise(run: Run) -> float:
    """log2 of the standard deviation of the batch loss over the last 100 steps, without the trend."""
    return float(np.log2(run.batch_loss_variance(100)[-1])) / 2


def peak_gradient(run: Run) -> float:
    """log10 of the largest gradient norm over the first."""
    norms = run["grad_norm_total"]
    return float(np.log10(np.nanmax(norms) / norms[0]))


def late_growth(run: Run) -> float:
    """By how many percent the weight norm grew in the last quarter of the run."""
    norm = whole_norm(run, "weight_norm")
    return 100 * float(norm[-1] / norm[-1 - len(norm) // 4] - 1)


def curvature(run: Run) -> float:
    """log2 of the largest eigenvalue of the Hessian at the end, on training images."""
    return float(np.log2(run.facts["top_eigenvalue"]))


def memorised(run: Run) -> float:
    """100 where the loss on the training batches fell below 0.05, as in the test "overfit one batch", else 0."""
    return 100.0 * (late_loss(run) < 0.05)


def gradient_reaching_first_layer(run: Run) -> float:
    """log10 of the gradient norm of the first layer over that of the last, at the first step."""
    norms, _ = matrix_layers(run, "grad_norm")
    return float(np.log10(norms[0, 0] / norms[0, -1]))


POINTS = "points"  # of accuracy: 0.01
ACCURACY = Measure("validation accuracy", accuracy, POINTS, 1)
LOSS = Measure("validation loss", validation_loss, "nats", 3)
NATS = Measure("validation loss per token", nats_per_token, "nats", 3)
BEST_LOSS = Measure("lowest validation loss", best_validation_loss, "nats", 3)
FIRST_LOSS = Measure("first loss", first_loss, "nats", 2)
DIVERGED = Measure("share of runs that became NaN or infinite", diverged, "%", 0)
MISCALIBRATION = Measure("confidence minus accuracy", miscalibration, POINTS, 1)
AFTER_LOWEST_LOSS = Measure("accuracy since the lowest validation loss", accuracy_after_lowest_loss, POINTS, 1)
UPDATE_RATIO = Measure("median update / weight ratio", update_ratio, "powers of ten", 2)
LOSS_NOISE = Measure("standard deviation of the batch loss", loss_noise, "doublings", 2)
PEAK_GRADIENT = Measure("largest gradient norm / first", peak_gradient, "powers of ten", 2)
LATE_GROWTH = Measure("growth of the weight norm in the last quarter", late_growth, "%", 1)
CURVATURE = Measure("largest Hessian eigenvalue", curvature, "doublings", 2)
MEMORISED = Measure("share of runs that pass the test", memorised, "%", 0)
FIRST_LAYER_GRADIENT = Measure("gradient norm, first layer / last", gradient_reaching_first_layer, "powers of ten", 2)
