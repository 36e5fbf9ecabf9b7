"""A recurrent matrix that doubles the state at every row: after 28 rows the gradient norm is in the thousands."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import unlearned
from labkit.recording.run import Run
from labkit.training.recipe import Recipe

# Norm of the whole gradient before any update. Recurrent nets with an orthogonal matrix: 0.2 to 1.1; with
# twice that matrix: 3e3 to 7e5.
EXPLODED = 300.0
LOST = 0.3  # of chance level: healthy runs on MNIST end at 0.15 to 0.2, a doubled matrix at 0.6 (clipped) to 4

healthy = Recipe(model="rnn", width=64, init="orthogonal", optimizer="adam", lr=0.001, steps=250)
sick = healthy.but(init_scale=2.0)


def signature(run: Run) -> Evidence | None:
    recurrent = [name for name in run.parameters if "weight_hh" in name]
    first, per_layer = float(run["grad_norm_total"][0]), run["grad_norm"][0]
    if not recurrent or not first > EXPLODED or not unlearned(run, LOST):
        return None
    largest = run.layers[int(np.argmax(per_layer))]
    place = next((name for name in recurrent if name.rpartition(".")[0] == largest), None)
    if place is None:
        return None
    return Evidence(
        seen=f"a gradient norm of {first:.2g} before the first update, and {largest} alone has {per_layer.max():.2g}",
        usual="0.2 to 1.1 with an orthogonal recurrent matrix",
        onset=0,
        place=place,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Exploding recurrent gradients",
    cures={"an orthogonal recurrent matrix of scale 1": sick.but(init_scale=1.0)},
    false_cures={"clipping the gradient norm to 1: 45 %": sick.but(clip=1.0)},
    harm=0.7,
    symptom="The first loss is 100 or more and the gradient norm 3,000 or more, though the net has only one "
    "recurrent layer. With plain SGD the next loss is NaN; with Adam the accuracy stays near chance.",
    mechanism="The same matrix is applied once per row, so its gain counts 28 times: any gain above 1 grows "
    "exponentially, forwards and backwards.",
    formula=r"\frac{\partial h_T}{\partial h_0} = \prod_{t=1}^{T} D_t W \sim \sigma_{\max}(W)^T",
    first_check="The gradient norm of the recurrent weight at step 0, and the largest singular value of that matrix.",
    remedy="Initialise the recurrent matrix as orthogonal (or as the identity) with gain 1. Clipping helps against "
    "later peaks, but does not fix the start.",
    reference="Pascanu, Mikolov, Bengio, On the difficulty of training recurrent neural networks (2013)",
    looks="jumps",
    shows="grad_norm_total",
    where=("rnn",),
    knobs=(
        Knob("init_scale", (0.5, 2.0), log=True),
        Knob("clip", (None, 1.0)),
        Knob("activation", ("relu", "tanh")),
        Knob("lr", (1e-4, 0.1), log=True),
        Knob("optimizer", ("sgd", "adam")),
    ),
    also_causes=("init_too_large", "learning_rate_too_high", "dead_relu"),
    learned={"mnist": 0.7, "cifar10": 0.2},  # a plain recurrent net of 64 units in 250 steps
)
