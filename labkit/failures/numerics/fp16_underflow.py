"""A loss with a tiny weight, in fp16: every gradient is rounded to exactly 0, and nothing is learned."""

import numpy as np
from torch.nn.functional import cross_entropy

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import stuck
from labkit.recording.run import Run
from labkit.training.recipe import Recipe

# Share of the steps at which every gradient is exactly 0. Healthy runs have none, whatever the weight of the loss; here
# it is every step.
NOTHING = 0.9
WEIGHT = 1e-6  # of this loss term; Adam divides it out again, so in float32 nobody notices


def tiny_weight_cross_entropy(outputs, targets):
    """Cross-entropy as a loss term with a weight of one in a million."""
    return WEIGHT * cross_entropy(outputs, targets)


# A CPU only emulates 16 bits, and slowly: a narrow net, fewer steps and fewer validations than elsewhere.
healthy = Recipe(
    loss=tiny_weight_cross_entropy, width=64, optimizer="adam", lr=0.002, adam_eps=1e-15, steps=100, evaluate_every=10
)
sick = healthy.but(precision="fp16")


def signature(run: Run) -> Evidence | None:
    formats = run.facts.get("dtypes") or {}
    if "float16" not in (*formats.get("outputs", ()), *formats.get("weights", ())):
        return None
    nothing = (run["grad_norm"] == 0).all(axis=1)
    share = float(np.mean(nothing))
    if share < NOTHING or not run["loss"][-1] > 0 or not stuck(run):
        return None
    return Evidence(
        seen=f"at {share:.0%} of the steps the gradient of every parameter is exactly 0, in a net that computes in "
        f"float16, while the loss stays at {run['loss'][-1]:.2g}",
        usual="0 % of such steps; float16 has no number between 0 and 6e-8",
        onset=int(np.argmax(nothing)),
        place=run.layers[0],
        confidence=0.85,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="fp16 underflow",
    cures={
        "GradScaler, which multiplies the loss before the backward pass": sick.but(loss_scale="dynamic"),
        "bf16, with the range of float32": sick.but(precision="bf16"),
        "a fixed loss scale of 65,536": sick.but(loss_scale=65536.0),
    },
    false_cures={
        "a learning rate a hundred times higher": sick.but(lr=0.2),
        "He init": sick.but(init="he"),
    },
    harm=0.8,
    symptom="The loss does not move at all: the weights are exactly the same after a hundred steps. In float32 the "
    "same loop trains. No warning.",
    mechanism="The smallest float16 above 0 is 6e-8. The backward pass starts from the loss weight of 1e-6, divides "
    "by the batch size, and rounds to 0 before it reaches the first layer.",
    formula=r"\frac{10^{-6}}{B} < 6 \cdot 10^{-8} \quad \Rightarrow \quad 0",
    first_check="The share of gradients that are exactly 0. Not small: 0.",
    remedy="Scale the loss up before the backward pass and the gradients down after it, as GradScaler does, or use "
    "bf16. No learning rate helps: anything times 0 is 0.",
    reference="Micikevicius et al., Mixed Precision Training (2018), section 3.2 on loss scaling",
    looks="never moves",
    shows="grad_norm",
    knobs=(
        Knob("loss_scale", (None, "dynamic")),
        Knob("precision", ("fp32", "bf16", "fp16")),
        Knob("lr", (1e-4, 0.3), log=True),
        Knob("batch_size", (16, 1024), log=True),
    ),
)
