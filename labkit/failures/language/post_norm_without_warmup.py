"""Twelve blocks with the norm after each sum, at full learning rate from step 0: the net stops reading its inputs."""

import numpy as np

from labkit.failures.language_signs import ON_TOKENS
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import left_over
from labkit.recording.run import Run
from labkit.training.language import LanguageRecipe

FULL = 0.5  # the first learning rate over the highest; a warm-up begins far lower
# Gradient of the first block with a weight matrix over that of the last one, median of the last quarter. Norm before:
# 4.2 to 6.9; norm after: 0 to 0.01.
STARVED = 0.2
# Change of the logits when the token at this position is replaced, relative to their deviation: before training 0.7 to
# 1.3 in both; at the end 0.4 to 0.6 with the norm before, at most 0.0004 after.
OWN, LOST = 0.3, 0.05
LEFT = 0.71  # of the loss of a constant prediction: norm before 0.60 to 0.63, after 0.82 to 1.0
DEEP = 4  # blocks of attention; with two the norm after each sum trains as well

# Deep and narrow, so that a run takes no longer than others; even the healthy one cannot write legible digits.
healthy = LanguageRecipe(depth=12, width=32, init_scale=0.15, warmup=0, batch_size=16, steps=150)
sick = healthy.but(norm_order="post")


def starved(run: Run) -> float:
    """The gradient of the first block over that of the last one, in the last quarter of the run."""
    blocks = [index for index, name in enumerate(run.layers) if name.endswith(".layer2")]
    if len(blocks) < DEEP:
        return float("nan")
    late = run["grad_norm"][len(run) * 3 // 4 :]
    with np.errstate(all="ignore"):
        return float(np.median(late[:, blocks[0]] / late[:, blocks[-1]]))


def signature(run: Run) -> Evidence | None:
    own, flow, lr = run["own_token"], starved(run), run["lr"]
    if run["val_step"][0] > 0 or lr[0] < FULL * lr.max() or not flow < STARVED:
        return None
    if not (own[0] > OWN and own[-1] < LOST and left_over(run) > LEFT):
        return None
    return Evidence(
        seen=f"another token changed the logits at its own position by {own[0]:.2g} of their deviation at first and by "
        f"{own[-1]:.1g} at the end; the first block receives {flow:.1g} times the gradient of the last",
        usual="0.4 to 0.6 at the end, and about as much gradient in the first block as in the last",
        onset=0,
        place="blocks",
        confidence=0.75,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Post-norm without warm-up",
    cures={"the norm before attention and perceptron, and one at the end": sick.but(norm_order="pre")},
    false_cures={"clipping the gradient norm to 0.1": sick.but(clip=0.1)},
    harm=0.06,
    symptom="The loss falls in a few steps to that of the token frequencies, and stays there or close to it. There is "
    "no NaN and no jump.",
    mechanism="A norm after each sum rescales the skip connection too, so in a deep net little of an early block's "
    "gradient is left. The first full steps of Adam change the last blocks most, these then ignore what they read, and "
    "hardly any gradient passes.",
    formula=r"x_{l+1} = \mathrm{norm}(x_l + f(x_l)) \quad \text{instead of} \quad x_l + f(\mathrm{norm}(x_l))",
    first_check="The gradient norm of the first block over that of the last. And shuffle the inputs: the loss stays "
    "the same.",
    remedy="Put the norm before attention and perceptron, as GPT-2 does: then no warm-up is needed at this learning "
    "rate. Or keep it and warm up, or lower the learning rate.",
    reference="Xiong et al., On Layer Normalization in the Transformer Architecture, arXiv 2002.04745 (2020)",
    looks="stops too high",
    shows="own_token",
    knobs=(
        Knob("norm_order", ("post", "pre")),
        Knob("warmup", (0, 75)),
        Knob("lr", (5e-4, 1e-2), log=True),
        Knob("depth", (2, 12)),
    ),
    learned={"mnist_tokens": 0.9},  # twelve narrow blocks and 150 small batches: 0.79 to 0.82
    not_on_cifar10=ON_TOKENS,
    where=("blocks",),
)
