"""A thousand images in one batch: without gradient noise, training converges to the first sharp minimum it finds."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.training.recipe import Recipe

WHOLE = 0.5  # batch size over samples; above this, batches hardly differ. Healthy: 0.01 to 0.06; here 1.
FITTED = 0.99  # training accuracy: the net has reached a minimum; all runs here reach 1
# Range of the mean training loss in which nets can be compared: below it, every net looks flat (100 images: 0.001).
MATCHED = (0.015, 0.06)
SHARP = 6.0  # top Hessian eigenvalue there. Full batch: 7.4 to 8; with three times the learning rate: 4.3 to 4.6.

healthy = Recipe(samples=1000, batch_size=16, width=64, steps=600)
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
    __name__,
    healthy,
    sick,
    signature,
    title="Sharp minimum",
    cures={
        "batches of 16": sick.but(batch_size=16, steps=600),
        "full batch with three times the learning rate": sick.but(lr=0.3, steps=120),
    },
    harm=0.0,
    costs="About one point of validation accuracy and a less robust net: stopped at the same training loss of 0.03, "
    "the top eigenvalue over all 1,000 images is 6.2, and 2.3 with batches of 16 (one seed).",
    symptom="The training loss is as low as it should be, but the validation accuracy is a point lower than with "
    "small batches.",
    mechanism="Gradient descent only converges where the curvature is below 2 / learning rate, and the noise of small "
    "batches drives it to even flatter minima. With no noise and a small learning rate, sharp minima are stable.",
    formula=r"\text{gradient descent is stable only if} \quad \lambda_{\max} < \frac{2}{\eta}",
    first_check="The top Hessian eigenvalue at the same training loss: a lower loss alone makes any net look flat.",
    remedy="Smaller batches, or a learning rate that grows with the batch size. Both matter equally: batches of 16 at "
    "half the learning rate end at an eigenvalue of 4.0 instead of 2.3.",
    reference="Keskar et al., On Large-Batch Training for Deep Learning: Generalization Gap and Sharp Minima (2017)",
    looks="validation worse",
    shows="gap",
    knobs=(
        Knob("batch_size", (8, 1000), log=True),
        Knob("lr", (0.03, 0.5), log=True),
        Knob("steps", (150, 600)),
        Knob("width", (32, 128), log=True),
    ),
    not_on_cifar10="On 1,000 photographs batches of 16 do not converge at this LR (28.5 %), and the full batch "
    "overfits.",
)
