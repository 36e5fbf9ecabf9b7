"""A thousand images in one batch: without the noise of sampling, descent settles in the first narrow hole it meets."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

WHOLE = 0.5  # batch over samples, from which a batch hardly differs from the next. Healthy: 0.01 to 0.06; here 1.
FITTED = 0.99  # training accuracy: a minimum, not a slope; all runs here reach 1
# Training loss, mean per image, in which nets can be compared: below, every net looks flat (100 images end at 0.001).
MATCHED = (0.015, 0.06)
SHARP = 6.0  # top Hessian eigenvalue there. One batch of all: 7.4 to 8; the same at three times the rate: 4.3 to 4.6.

healthy = Recipe(samples=1000, batch_size=16, width=64, momentum=0.0, steps=600)
sick = healthy.but(batch_size=1000, steps=300)


def signature(run: Run) -> Evidence | None:
    samples, length = run.facts.get("samples") or np.inf, run.facts.get("batch_length", 0)
    curvature, loss = run.facts.get("top_eigenvalue"), run["probe_loss"][-1]
    if curvature is None or length < WHOLE * samples or run["probe_accuracy"][-1] < FITTED:
        return None
    if not (MATCHED[0] < loss < MATCHED[1] and curvature > SHARP):
        return None
    return Evidence(
        seen=f"top Hessian eigenvalue {curvature:.1f} at a training loss of {loss:.3f}, reached with {length} of "
        f"{samples} images in every batch",
        usual="2 to 5 at that loss, with batches of 1 to 6 % of the images",
        onset=int(run["val_step"][-1]),
        confidence=0.6,
    )


failure = FailureMode(
    title="Sharp minimum",
    healthy=healthy,
    sick=sick,
    cures={
        "batches of 16": sick.but(batch_size=16, steps=600),
        "one batch of all, at three times the rate": sick.but(lr=0.3, steps=120),
    },
    signature=signature,
    harm=0.0,
    costs="About one point of validation accuracy, and a net that bears less: stopped at the same training loss of "
    "0.03, the top eigenvalue over all 1,000 images is 6.2, and 2.3 after batches of 16 (one seed).",
    symptom="The training loss is as low as it should be, and the validation accuracy a point lower than with small "
    "batches.",
    mechanism="Descent can only rest in a minimum flatter than 2 over the learning rate, and the noise of small "
    "batches throws it out of narrower ones than that. Without the noise and with a small rate every hole holds.",
    first_check="The top Hessian eigenvalue at the same training loss: a lower loss alone makes any net look flat.",
    remedy="Smaller batches, or a learning rate that grows with the batch. The rate matters as much as the batch: 16 "
    "images at half the rate end at an eigenvalue of 4.0 in place of 2.3.",
    reference="Keskar et al., On Large-Batch Training for Deep Learning: Generalization Gap and Sharp Minima (2017)",
    looks="validation worse",
    shows="gap",
    knobs=(
        Knob("batch_size", (8, 1000), log=True),
        Knob("lr", (0.03, 0.5), log=True),
        Knob("steps", (150, 600)),
        Knob("width", (32, 128), log=True),
    ),
    cifar10="On 1,000 photographs batches of 16 do not settle at this rate (28.5 %), and one batch of all overfits.",
)
