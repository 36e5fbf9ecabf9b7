"""A learning rate of 1e-6: everything is in order, and nothing happens."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import fixed_loss, stuck, typical
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# The median update as a share of the layer. Healthy short runs: 1e-3 to 3e-2; LR 1e-6: 3e-6.
TINY = 1e-4
ALIVE = 1e-3  # gradient norm; below it the gradients themselves are the problem, not the rate

healthy = Recipe()
sick = healthy.but(lr=1e-6)


def signature(run: Run) -> Evidence | None:
    ratio = typical(run["update_ratio"]).max()
    gradient = typical(run["grad_norm_total"][:, None])[0]
    if not (stuck(run) and 0 < ratio < TINY and gradient > ALIVE):
        return None
    losses = fixed_loss(run)
    return Evidence(
        seen=f"a step changes no layer by more than {ratio:.1g} of its size, though the gradients are alive "
        f"(norm {gradient:.2g}); the loss moved from {losses[0]:.3f} to {losses[-1]:.3f}",
        usual="updates of 0.001 to 0.03 of a layer",
        onset=0,
        place=run.layers[int(np.argmax(typical(run["update_ratio"])))],
    )


failure = FailureMode(
    title="Learning rate too low",
    healthy=healthy,
    sick=sick,
    cures={"a learning rate of 0.1": sick.but(lr=0.1)},
    false_cures={"ten times as much: LR 1e-5": sick.but(lr=1e-5)},
    signature=signature,
    harm=0.8,
    symptom="The loss stays flat at its first value, without a NaN and with gradients of healthy size.",
    mechanism="Each step moves the weights by a millionth of their size: the road is right, the steps are too "
    "short. The run would need a hundred thousand times as many.",
    first_check="The ratio of update to weight: below 1e-4 with living gradients, the rate is too low.",
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
    cifar10={"momentum": 0.0},  # with momentum, LR 0.1 is itself too high for these larger inputs
)
