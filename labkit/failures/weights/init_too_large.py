"""Weights drawn with a standard deviation of 1: the first outputs are in the hundreds, and so is the loss."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import first_weights, left_over, unlearned
from labkit.recording.run import Run
from labkit.recording.summaries import chance_loss, hidden_sizes, typical
from labkit.training.recipe import Recipe

LARGE_INPUTS = 3.0  # standard deviation of the inputs; normalised 1. Raw pixels are another failure
# Standard deviation of a hidden activation in the first forward pass. Default, He and Xavier init: 0.2 to 1.2; N(0, 1):
# 15 to 38.
LARGE = 5.0
# First loss over ln(classes). Default 1.0, He 1.1 to 2.4; N(0, 1): 80 to 286.
WRONG = 5.0
# The number of hidden layers and the gradient norm at step 0 from which it is an explosion through many layers; here
# 64 to 140. With the squared error of a regression two layers alone can have 1e5.
STACK, EXPLODED = 4, 1e3
SLOW = 0.1  # of chance level, at the end: healthy runs 0.01 to 0.06, N(0, 1) 0.53 and more
# The gain of the middle layer: the size of a weight times the root of the number of inputs. PyTorch's default 0.58, He
# 1.4, N(0, 1) in a layer of 128 inputs 11; 20 times too large weights of small programs of every task 8 to 20. And what
# is left of the loss of a constant prediction: healthy ones 0.01 to 0.46, these 0.5 and more.
GAIN, LEFT = 5.0, 0.47
SATURATED = 0.8  # share of saturated activations: then they are the failure

healthy = Recipe(init="he", width=64)
sick = healthy.but(init="normal")


def oversized(run: Run) -> Evidence | None:
    """For nets of any kind: are the weights of most layers far too large before the first step, and was it harmful?"""
    gains = first_weights(run, "gain")
    middle = sorted(gains.values())[(len(gains) - 1) // 2] if gains else 0.0  # of two the smaller
    if not middle > GAIN or not left_over(run) > LEFT or has_exploded(run):
        return None
    if "activation_saturated" in run and np.nanmax(typical(run["activation_saturated"]), initial=0) > SATURATED:
        return None
    place = max(gains, key=lambda name: gains[name])
    return Evidence(
        seen=f"before the first step the weights of {place} make a signal {gains[place]:.2g} times larger, those of "
        f"the middle layer {middle:.2g} times; {left_over(run):.2f} of the loss of a constant prediction is left",
        usual="0.5 to 1.5 times",
        onset=0,
        place=place,
    )


def has_exploded(run: Run) -> bool:
    """Is it the product of many layers, which is a failure of its own?"""
    return len(run.activations) - 2 >= STACK and run["grad_norm_total"][0] > EXPLODED


def signature(run: Run) -> Evidence | None:
    return wrong_from_the_start(run) or oversized(run)


def wrong_from_the_start(run: Run) -> Evidence | None:
    """Are activations and the first loss far too large?"""
    inputs, hidden, outputs = hidden_sizes(run)
    sizes = hidden if len(hidden) else np.array([outputs])  # a net without activation modules, such as an LSTM
    first, chance = float(run["loss"][0]), chance_loss(run)
    if not inputs < LARGE_INPUTS or not sizes.max() > LARGE:
        return None
    if has_exploded(run) or not first > WRONG * chance or not unlearned(run, SLOW):
        return None
    place = run.activations[1 + int(np.argmax(sizes))]
    return Evidence(
        seen=f"a first loss of {first:.3g}; the inputs have a standard deviation of {inputs:.2g}, but {place} has "
        f"{sizes.max():.2g}",
        usual=f"a first loss of {chance:.2f} to {2.4 * chance:.1f}, and a standard deviation of 0.2 to 1.2",
        onset=0,
        place=place,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Init too large",
    cures={
        "He init": sick.but(init="he"),
        "PyTorch's default init": sick.but(init="default"),
    },
    false_cures={
        "Adam: the large weights hardly change, and accuracy stops at 81 %": sick.but(optimizer="adam", lr=0.003),
        "clipping the gradient norm to 1": sick.but(clip=1.0),
    },
    harm=0.08,
    symptom="The first loss is eighty times ln(classes) or more. It falls fast as the outputs shrink, then stops well "
    "above what the same net reaches with a better init.",
    mechanism="A unit sums 784 inputs, so weights of size 1 make the sum about 28 times larger than the inputs. The "
    "net starts confident and wrong, and what training adds is small compared with the random weights.",
    formula=r"\mathrm{std}(W x) = \sqrt{784} \cdot 1 \cdot \mathrm{std}(x) = 28 \, \mathrm{std}(x)",
    first_check="The first loss: an untrained net should have ln(classes), 2.3 for ten.",
    remedy="Scale the random weights by the number of inputs: He for ReLU, Xavier for tanh, or PyTorch's default.",
    reference="He et al., Delving Deep into Rectifiers (2015), section 2.2",
    looks="stops too high",
    shows="activation_size",
    knobs=(
        Knob("init", ("normal", "default", "he", "xavier")),
        Knob("init_scale", (0.01, 1.0), log=True),
        Knob("lr", (0.001, 0.3), log=True),
        Knob("optimizer", ("sgd", "adam")),
    ),
    also_causes=(
        "learning_rate_too_high",
        "dead_relu",
        "learning_rate_too_high_late",
        "learning_rate_left_low",
        "too_much_dropout",
    ),
)
