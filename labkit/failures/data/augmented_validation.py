"""The transforms of the two loaders are mixed up: validation images are randomly rotated and shifted each time."""

import math

import torch
from torch.nn.functional import affine_grid, grid_sample

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.training.parts import plain_evaluate
from labkit.training.recipe import Recipe

# Share of the samples in the last validation that were not in the first one, pixel for pixel. Healthy: 0.
CHANGED = 0.5
# Training accuracy minus validation accuracy. Healthy: 0.01 to 0.15, largest on photographs; rotated: 0.3 to 0.6.
LOST = 0.1

ANGLE, SHIFT = 60, 0.2  # degrees, and share of half the image: strong, as for a training set
healthy = Recipe(steps=300)


def evaluate_augmented(training, split) -> dict:
    """The plain evaluation, on images after the random rotation and shift meant for training."""
    return plain_evaluate(training, split._replace(x=rotated_and_shifted(split.x)))


def rotated_and_shifted(x):
    """Each image rotated by up to ANGLE and shifted by up to SHIFT, padded with its darkest value."""
    angle = math.radians(ANGLE) * (2 * torch.rand(len(x), device=x.device) - 1)
    across, down = SHIFT * (2 * torch.rand(2, len(x), device=x.device) - 1)
    first, second = (angle.cos(), -angle.sin(), across), (angle.sin(), angle.cos(), down)
    change = torch.stack([torch.stack(first, 1), torch.stack(second, 1)], 1)
    darkest = x.amin(dim=(2, 3), keepdim=True)
    grid = affine_grid(change, list(x.shape), align_corners=False)
    return (grid_sample((x - darkest).float(), grid, align_corners=False) + darkest).to(x.dtype)


sick = healthy.but(evaluate=evaluate_augmented)


def signature(run: Run) -> Evidence | None:
    changed = run.facts.get("val_changed", 0.0)
    lost = float(run["probe_accuracy"][-1] - run["val_accuracy"][-1])
    if changed < CHANGED or not lost > LOST:
        return None
    return Evidence(
        seen=f"{changed:.0%} of the validation images differ from those of the first validation; the accuracy is "
        f"{run['val_accuracy'][-1]:.0%} there and {run['probe_accuracy'][-1]:.0%} on training images",
        usual="0 %: every validation uses the same images",
        onset=0,
        place="validation set",
        confidence=0.95,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Augmented validation",
    cures={"validation images without augmentation": sick.but(evaluate="plain_evaluate")},
    false_cures={
        "dropout 0.5 against what looks like overfitting: 38 %": sick.but(dropout=0.5),
        "weight decay 0.01: 36 %": sick.but(weight_decay=0.01),
    },
    harm=0.3,
    symptom="It looks like overfitting: training is fine and validation is far behind. But two validations of the "
    "same net differ.",
    mechanism="The net is evaluated on images unlike those it was trained on or will see in production. The net is "
    "healthy; the measurement is not.",
    formula=r"p_{\text{val}}(x) \neq p_{\text{use}}(x)",
    first_check="Validate the same net twice: both results must be identical. Then look at the images.",
    remedy="Give each split its own transform: random ones only for training, and for validation only what happens in "
    "production.",
    reference="Shorten and Khoshgoftaar, A survey on Image Data Augmentation for Deep Learning (2019)",
    looks="validation worse",
    shows="val_accuracy",
    knobs=(
        Knob("augment", ("none", "crop", "affine")),
        Knob("steps", (100, 1000)),
        Knob("dropout", (0.0, 0.9)),
    ),
)
