"""All weights 0: no signal forwards, no gradient backwards, and only the last bias ever changes."""

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import unlearned
from labkit.recording.run import Run
from labkit.recording.summaries import matrix_layers
from labkit.training.recipe import Recipe

# Of chance level, at the end: sick runs stay at 1.00, healthy ones end at 0.01 to 0.1. (A single layer of zeros,
# a logistic regression, learns very well.)
STUCK = 0.95

healthy = Recipe()
sick = healthy.but(init="zero")


def signature(run: Run) -> Evidence | None:
    weights, names = matrix_layers(run, "weight_norm")
    gradients, _ = matrix_layers(run, "grad_norm")
    if len(names) < 2 or weights[0].any() or gradients[:, :-1].any() or not unlearned(run, STUCK):
        return None  # no thresholds: a random weight is never exactly 0, nor is its gradient
    return Evidence(
        seen=f"all {len(names)} layers start at exactly 0 (loss {run['loss'][0]:.4f}), and the gradient of "
        f"{names[0]} is exactly 0 at each of {len(run)} steps",
        usual="weight norms of 2 to 20 and gradients of 0.2 to 2",
        onset=0,
        place=names[0],
        confidence=0.98,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Zero init",
    cures={
        "PyTorch's default init": sick.but(init="default"),
        "He init": sick.but(init="he"),
    },
    false_cures={"Adam: rescaling 0 gives 0": sick.but(optimizer="adam", lr=0.003)},
    harm=0.9,
    symptom="The first loss is exactly ln(classes), 2.3026 for ten, and stays there. All outputs are the same for "
    "every image.",
    mechanism="The gradient of a weight contains the activation before it and the weights after it as factors. Both "
    "are 0, so every gradient is 0, and only the last bias learns the class frequencies.",
    formula=r"\frac{\partial L}{\partial W_2} = \delta \, h^\top = 0, \qquad \frac{\partial L}{\partial W_1} = "
    r"(W_2^\top \delta) \, x^\top = 0",
    first_check="The gradient of each layer at step 0: exactly 0 in all but the last.",
    remedy="Use a random init: PyTorch's default or He. Zeros are fine for biases, and for weights only "
    "where another path carries the signal.",
    reference="Goodfellow, Bengio, Courville, Deep Learning (2016), section 8.4",
    looks="never moves",
    shows="grad_norm",
    knobs=(
        Knob("init", ("zero", "default", "he", "xavier")),
        Knob("activation", ("relu", "tanh", "sigmoid")),
        Knob("depth", (1, 4)),
        Knob("optimizer", ("sgd", "adam")),
    ),
    also_causes=("dead_relu", "vanishing_gradients", "learning_rate_left_low"),
)
