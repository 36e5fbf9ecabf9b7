"""A weight decay of 2: the pull towards 0 is stronger than the gradient of the loss, and the weights collapse."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import left_over, unlearned
from labkit.recording.run import Run
from labkit.recording.summaries import matrix_layers, total_norm
from labkit.training.recipe import Recipe

# Norm of all weights at the end over that at the start. Healthy runs grow (1.2 to 3 times), or keep 0.9 with a
# decay of 0.01 and 0.45 with 0.1; a decay of 2 leaves 0.002 to 0.02.
FADED = 0.05
# The same, with the standard deviation of the outputs in the last quarter over that of the first step. Small programs
# of other tasks, healthy: 1.1 to 2.4 and 3 to 150; a decay or a penalty that is too strong: 0 to 0.26 and 0 to 0.65.
SHRUNK, SILENCED = 0.3, 0.7
# The same where batch norm keeps the outputs large, with what is left of the loss of a constant prediction: 0.14 and
# 0.8 in a small program of images.
THIN, LEFT = 0.2, 0.6
LOST = 0.9  # of chance level, at the end: a net with no weights left is at 1.00

healthy = Recipe(weight_decay=1e-4)
sick = healthy.but(weight_decay=2.0)


def faded(run: Run, size: np.ndarray) -> bool:
    """Have nearly all weights gone, and the loss not fallen?"""
    return bool(size[-1] < FADED * size[0]) and unlearned(run, LOST)


def silenced(run: Run, size: np.ndarray) -> bool:
    """Have the weights shrunk, and the outputs with them? A penalty may be a part of the loss, which then falls."""
    outputs = run["activation_std"][:, -1]
    late = float(np.median(outputs[-max(1, len(outputs) // 4) :]))
    return bool(size[-1] < SHRUNK * size[0] and late < SILENCED * outputs[0])


def signature(run: Run) -> Evidence | None:
    layers, names = matrix_layers(run, "weight_norm")
    trained = layers[-1] != layers[0]  # frozen ones keep their size
    size = total_norm(layers[:, trained] if trained.any() else layers)
    thin = bool(size[-1] < THIN * size[0]) and left_over(run) > LEFT
    if not size[0] > 0 or not (thin or faded(run, size) or silenced(run, size)):
        return None
    with np.errstate(all="ignore"):
        place = names[int(np.nanargmin(layers[-1] / layers[0]))]
    return Evidence(
        seen=f"the norm of all weights fell from {size[0]:.3g} to {size[-1]:.2g}",
        usual="1.2 to 3 times the norm at the start, or 0.45 of it under a strong decay",
        onset=int(np.argmax(size < size[0] / 2)),
        place=place,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Weight collapse",
    cures={
        "a weight decay of 0.0001": sick.but(weight_decay=1e-4),
        "no weight decay": sick.but(weight_decay=0.0),
    },
    false_cures={
        "half the weight decay: 49 to 61 %": sick.but(weight_decay=1.0),
        "a learning rate ten times lower": sick.but(lr=0.01),
    },
    harm=0.7,
    symptom="The loss rises back to ln(classes) and stays there. The outputs are the same for every image, and the "
    "weight norm falls step by step towards 0.",
    mechanism="Each step shrinks every weight by LR times decay, here a fifth. Smaller weights pass on less signal and "
    "less gradient, so nothing pulls the other way.",
    formula=r"w_{t+1} = (1 - \eta \lambda) \, w_t - \eta g_t, \qquad \eta \lambda = \tfrac{1}{5}",
    first_check="The weight norm over time: a straight line downwards on a log axis.",
    remedy="Use a weight decay of 1e-4 to 1e-2 with SGD. AdamW tolerates more: a decay of 1 is harmless at LR 0.003.",
    reference="Krogh and Hertz, A Simple Weight Decay Can Improve Generalization (1991)",
    looks="never moves",
    shows="weight_norm",
    knobs=(
        Knob("weight_decay", (1e-4, 2.0), log=True),
        Knob("lr", (0.001, 0.3), log=True),
        Knob("optimizer", ("sgd", "adam", "adamw")),
        Knob("momentum", (0.0, 0.9)),
    ),
    also_causes=("dead_relu", "vanishing_gradients", "dead_relu_by_learning_rate", "learning_rate_left_low"),
)
