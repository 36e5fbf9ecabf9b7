"""A learning rate of 1e-6: everything works, and nothing is learned."""

import numpy as np

from labkit.failures.mode import Branch, ClassicCurve, Evidence, FailureMode, Knob
from labkit.failures.signs import stuck
from labkit.recording.run import Run
from labkit.recording.summaries import fixed_loss, typical
from labkit.training.recipe import Recipe

# The median update as a share of the layer. Healthy short runs: 1e-3 to 3e-2; LR 1e-6: 3e-7.
TINY = 1e-4
# Gradient norm, or that over the loss where this is below 1; below it the gradients themselves are the problem, not the
# learning rate. A mean that was divided by the number of samples once more: 9e-4 and 0.4.
ALIVE = 1e-3

healthy = Recipe()
sick = healthy.but(lr=1e-6)


def signature(run: Run) -> Evidence | None:
    ratio = typical(run["update_ratio"]).max()
    gradient = typical(run["grad_norm_total"][:, None])[0]
    losses = fixed_loss(run)
    if not (stuck(run) and 0 < ratio < TINY and gradient > ALIVE * min(1.0, abs(losses[-1]))):
        return None
    return Evidence(
        seen=f"no step changes a layer by more than {ratio:.1g} of its size, though the gradients are healthy "
        f"(norm {gradient:.2g}); the loss moved from {losses[0]:.3f} to {losses[-1]:.3f}",
        usual="updates of 0.001 to 0.03 of a layer",
        onset=0,
        place=run.layers[int(np.argmax(typical(run["update_ratio"])))],
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Learning rate too low",
    cures={"a learning rate of 0.1": sick.but(lr=0.1)},
    false_cures={"ten times as much: LR 1e-5": sick.but(lr=1e-5)},
    harm=0.8,
    symptom="The loss stays at its first value, without a NaN and with gradients of healthy size.",
    mechanism="Each step changes the weights by less than a millionth of their size: the direction is right, the steps "
    "are too short. The run would need a hundred thousand times as many.",
    formula=r"\frac{\lVert \Delta \theta \rVert}{\lVert \theta \rVert} = \frac{\eta \lVert g \rVert}{\lVert "
    r"\theta \rVert} < 10^{-6}",
    first_check="The ratio of update to weight: below 1e-4 with healthy gradients, the learning rate is too low.",
    remedy="Raise the learning rate by factors of ten until the loss falls clearly within the first epoch.",
    reference="Smith, Cyclical Learning Rates for Training Neural Networks (2017), on the range test",
    looks="never moves",
    shows="update_ratio",
    knobs=(
        Knob("lr", (1e-6, 0.3), log=True),
        Knob("optimizer", ("sgd", "adam")),
        Knob("momentum", (0.0, 0.9)),
        Knob("steps", (100, 1000)),
    ),
    headline=2,
    symptom_tree=(Branch("never moves", "Update-to-weight ratio?", "below 0.0001, healthy gradients"),),
    classic=ClassicCurve(2, "never moves"),
)
