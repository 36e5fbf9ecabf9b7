"""Ten sigmoid layers: the gradient shrinks at each of them, and the first layers never learn."""

import numpy as np

from labkit.failures.mode import Branch, Evidence, FailureMode, Knob
from labkit.failures.signs import stuck
from labkit.recording.run import Run
from labkit.recording.summaries import matrix_layers, typical, worst_dead
from labkit.training.recipe import Recipe

# The first layer's gradient norm over the last layer's. Healthy nets of 2 to 10 layers: 0.5 to 8; ten sigmoid
# layers: 3e-5 (Xavier) to 2e-7 (PyTorch's default init).
RATIO = 1e-3
FAINT = 1e-4  # the first layer's norm itself; sigmoid nets have 1e-5 to 1e-7, healthy ones 0.4 to 2
# A dead layer passes no gradient back either, and is another failure: 100 %. Behind vanished signals every sample looks
# the same, and 40 to 94 % of the units of the next ReLU are off for all of them.
DEAD = 0.97

healthy = Recipe(depth=10, width=64, activation="tanh", init="xavier")
sick = healthy.but(activation="sigmoid")


def signature(run: Run) -> Evidence | None:
    trace, names = matrix_layers(run, "grad_norm")
    norms = typical(trace)
    if len(norms) < 3 or not np.isfinite(norms).all() or norms[-1] == 0 or worst_dead(run)[0][-1] > DEAD:
        return None
    ratio = norms[0] / norms[-1]
    if not (0 < norms[0] < FAINT and ratio < RATIO and stuck(run, share=0.25)):
        return None
    factor = ratio ** (1 / (len(norms) - 1))
    return Evidence(
        seen=f"the gradient of {names[0]} is {ratio:.1g} of that of {names[-1]}: a factor of {factor:.2g} per layer",
        usual="a ratio of 0.5 to 8, about 1 per layer",
        onset=0,
        place=names[0],
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Vanishing gradients",
    cures={
        "tanh, with a derivative of up to 1 instead of 1/4": sick.but(activation="tanh"),
        "ReLU with He init": sick.but(activation="relu", init="he"),
        # With SGD 0.1 it ends up to 2.5 points below the twin after 400 steps (2 of 5 seeds beyond two).
        "batch normalisation before each sigmoid, with Adam and cosine decay": sick.but(
            normalisation="batch", optimizer="adam", lr=0.01, schedule="cosine"
        ),
    },
    false_cures={
        "ReLU with PyTorch's default init": sick.but(activation="relu", init="default"),
        "Adam, which rescales the tiny gradients": sick.but(optimizer="adam", lr=0.003),
    },
    harm=0.8,
    symptom="The loss stays at chance level: the last layer changes, the first ones do not. No NaN, no warning.",
    mechanism="Each sigmoid passes back at most a quarter of the gradient, so ten of them leave less than a "
    "ten-thousandth for the first layer.",
    formula=r"\sigma'(z) = \sigma(z) (1 - \sigma(z)) \leq \tfrac{1}{4}, \qquad \left(\tfrac{1}{4}\right)^{9} "
    r"\approx 4 \cdot 10^{-6}",
    first_check="Gradient norms per layer on a log axis: a straight line downwards towards the input.",
    remedy="Use an activation whose derivative reaches 1 with a matching init (tanh with Xavier, ReLU with He), or "
    "batch normalisation; skip connections help in part. ReLU alone, with PyTorch's default init, does not cure ten "
    "layers.",
    also_causes=("dead_relu",),
    reference="Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks (2010)",
    looks="never moves",
    shows="grad_norm",
    knobs=(
        Knob("activation", ("sigmoid", "tanh", "relu", "leaky_relu", "gelu")),
        Knob("depth", (2, 12)),
        Knob("init", ("default", "xavier", "he")),
        Knob("normalisation", ("none", "batch", "layer")),
        Knob("residual", (False, True)),
        Knob("lr", (0.01, 1.0), log=True),
    ),
    headline=4,
    symptom_tree=(Branch("never moves", "Gradients per layer?", "first layer below 0.001 of the last", place=2),),
)
