"""Ten layers of N(0, 0.5): each makes the signal three times larger, and the gradient norm starts near a million."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import unlearned
from labkit.recording.run import Run
from labkit.recording.summaries import hidden_sizes, matrix_layers
from labkit.training.recipe import Recipe

# Norm of the whole gradient before any update. Ten He layers: 2 to 28; ten layers of N(0, 0.5): 1e5 to 1e6.
# Two layers of N(0, 1) have 80 to 140: too large an init, yet no explosion.
EXPLODED = 1e3
# Growth from one hidden activation to the next. Healthy nets 0.7 to 1.1; N(0, 0.5) 2.7 to 3.1.
GROWTH = 1.4
STACK = 4  # minimum number of hidden activations: an explosion is a product of many factors
LOST = 1.0  # of chance level: with clipping the loss ends at 1e3 instead of NaN

healthy = Recipe(depth=10, width=64, init="he", lr=0.05)
sick = healthy.but(init="normal", init_scale=0.5)


def signature(run: Run) -> Evidence | None:
    _, hidden, _ = hidden_sizes(run)
    first = float(run["grad_norm_total"][0])
    if len(hidden) < STACK or not first > EXPLODED or not hidden[0] > 0 or not unlearned(run, LOST):
        return None
    factor = float(np.exp((np.log(hidden[-1]) - np.log(hidden[0])) / (len(hidden) - 1))) if hidden[-1] > 0 else 0.0
    if not factor > GROWTH:
        return None
    norms, names = matrix_layers(run, "grad_norm")
    return Evidence(
        seen=f"a gradient norm of {first:.2g} before the first update: each of {len(hidden)} hidden layers makes the "
        f"signal {factor:.2g} times larger",
        usual="a norm of 2 to 28 for ten layers, and a factor of about 1",
        onset=0,
        place=names[int(np.argmax(norms[0]))],
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Exploding gradients",
    cures={"He init, which keeps the scale of the signal": sick.but(init="he", init_scale=1.0)},
    false_cures={
        "clipping the gradient norm to 1: no NaN, but only 27 %": sick.but(clip=1.0),
        "batch normalisation: no explosion, but such large weights hardly change, and accuracy stops at 66 %": sick.but(
            normalisation="batch"
        ),
        "a learning rate a hundred times lower": sick.but(lr=0.0005),
    },
    harm=0.9,
    symptom="The first loss is 76,000 or more, and NaN follows within three steps. Every layer's gradient is huge "
    "before the first update.",
    mechanism="Each layer multiplies the signal by the same factor, forwards and backwards. Three to the power of "
    "ten is sixty thousand, and the first update swamps every weight.",
    formula=r"\left\lVert \frac{\partial L}{\partial h_1} \right\rVert \approx a^{10} \left\lVert \frac{\partial "
    r"L}{\partial h_{10}} \right\rVert, \qquad a > 1",
    first_check="The gradient norm at step 0, and the standard deviation of each layer's activations: a straight line "
    "upwards on a log axis. With a learning rate that is too high, the first gradient is healthy.",
    remedy="Use an init that keeps the scale: He for ReLU, Xavier for tanh. Clipping only prevents the NaN; the "
    "activations stay out of scale.",
    reference="He et al., Delving Deep into Rectifiers (2015), section 2.2",
    looks="not finite",
    shows="grad_norm_total",
    knobs=(
        Knob("init_scale", (0.1, 1.0), log=True),
        Knob("init", ("default", "he", "xavier", "normal")),
        Knob("normalisation", ("none", "batch", "layer")),
        Knob("depth", (3, 12)),
        Knob("clip", (None, 1.0)),
    ),
    also_causes=("learning_rate_too_high", "clipping_too_tight", "dead_relu"),
)
