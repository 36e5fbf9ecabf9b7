"""Forward passes on other images in train mode, under no_grad: the weights do not change, the statistics do."""

import numpy as np
import torch

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.training.parts import plain_evaluate
from labkit.training.recipe import Recipe

# The loss on training images in eval mode minus the smoothed training loss, in nats. Healthy runs with batch norm:
# -0.1 to 0; with statistics of other images: 1 (photographs) to 8 (digits).
APART = 0.6
SHIFT = 3.0  # in standard deviations: much brighter images

healthy = Recipe(depth=3, normalisation="batch", steps=200)


@torch.no_grad()
def evaluate_after_brighter_images_in_train_mode(training, split) -> dict:
    """Forward passes on brighter images in train mode, "just to see the activations"; then the plain evaluation."""
    for x in split.x.split(training.recipe.batch_size):
        training.forward(x + SHIFT)
    return plain_evaluate(training, split)


sick = healthy.but(evaluate=evaluate_after_brighter_images_in_train_mode)


def signature(run: Run) -> Evidence | None:
    modes, probe = run["val_train_mode"], run["probe_loss"]
    mixed = (modes > 0) & (modes < 1)
    if not run.facts.get("batch_norms") or not mixed.any() or not np.isfinite(run["loss"]).all():
        return None
    apart = probe[-1] - run.smoothed()[-1]
    if not apart > APART:
        return None
    return Evidence(
        seen=f"{modes[-1]:.0%} of the forward passes at validation ran in train mode; training images have a "
        f"loss of {probe[-1]:.2f} in eval mode and of {probe[-1] - apart:.2f} in train mode",
        usual="0 % of the passes, and losses that differ by at most 0.2",
        onset=int(run["val_step"][np.argmax(mixed)]),
        place=run.facts["batch_norms"][0],
        confidence=0.9,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Poisoned batch norm",
    cures={
        "eval mode for every pass that is not training": sick.but(evaluate="plain_evaluate"),
        "layer norm, which has no running statistics": sick.but(normalisation="layer"),
    },
    false_cures={"weight decay 0.01, as if the net were overfitting: 22 %": sick.but(weight_decay=0.01)},
    harm=0.3,
    symptom="The training loss is excellent, but in eval mode the same net fails, even on its own training images.",
    mechanism="no_grad() stops gradients, not batch norm: every pass in train mode moves the running mean and "
    "variance towards the current images. After passes on brighter images the statistics no longer fit the training "
    "images.",
    formula=r"\mu \leftarrow 0.9 \, \mu + 0.1 \, \mu_{\text{other images}}",
    first_check="The loss on the same batch in train mode and in eval mode: the two should be close.",
    remedy="Use eval mode for every pass that is not training: inspection, warm-up, calibration. To repair a poisoned "
    "net, run training images through it once in train mode.",
    reference="Ioffe and Szegedy, Batch Normalization: Accelerating Deep Network Training by Reducing Internal "
    "Covariate Shift (2015)",
    looks="validation worse",
    shows="probe_loss",
    knobs=(Knob("normalisation", ("none", "batch", "layer")), Knob("batch_size", (16, 512), log=True)),
)
