"""An Adam that saves memory by keeping its averages in float16: squares of small gradients become 0, and it divides."""

import torch

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import broken_update
from labkit.training.recipe import Recipe
from labkit.recording.run import Run


class ThriftyAdam(torch.optim.Optimizer):
    """Adam by the book, with both of its averages in a format of your choice."""

    def __init__(self, parameters, lr: float, eps: float, keep: torch.dtype):
        super().__init__(parameters, {"lr": lr, "eps": eps, "betas": (0.9, 0.999)})
        self.keep = keep

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._move(weight, self.state[weight], **group)

    def _move(self, weight, state, lr, eps, betas, **_) -> None:
        if not state:
            state["m"] = torch.zeros_like(weight, dtype=self.keep)
            state["v"] = torch.zeros_like(weight, dtype=self.keep)
            state["count"] = 0
        state["count"] += 1
        gradient = weight.grad.to(self.keep)
        state["m"].lerp_(gradient, 1 - betas[0])
        state["v"].mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
        mean, square = (state[name] / (1 - beta ** state["count"]) for name, beta in zip("mv", betas, strict=True))
        weight.sub_(lr * (mean / (square.sqrt() + eps)))


def adam_kept_in_float16(model, recipe):
    """Adam with float32 weights and both averages in float16."""
    return ThriftyAdam(model.parameters(), recipe.lr, recipe.adam_eps, torch.float16)


def adam_kept_in_bfloat16(model, recipe):
    """The same saving in bfloat16, which has the range of float32."""
    return ThriftyAdam(model.parameters(), recipe.lr, recipe.adam_eps, torch.bfloat16)


healthy = Recipe(optimizer="adam", lr=0.002)
sick = healthy.but(optimizer=adam_kept_in_float16)


def signature(run: Run) -> Evidence | None:
    origin = broken_update(run, "float32")
    if not origin:
        return None
    gradient = run["grad_norm_total"][origin["step"]]
    return Evidence(
        seen=f"the update of step {origin['step']} left {origin['count']:,} entries of {origin['place']} not finite, "
        f"from a gradient of norm {gradient:.2g}; the weights are float32, what the optimizer remembers is float16",
        usual="finite weights after a finite gradient; in float16 the square of 2e-4 is already 0",
        onset=origin["step"],
        place=origin["place"],
        confidence=0.9,
    )


failure = FailureMode(
    title="Adam's memory in fp16",
    healthy=healthy,
    sick=sick,
    cures={
        "the averages in bfloat16: as small, with the range of float32": sick.but(optimizer=adam_kept_in_bfloat16),
        "the averages in float32": sick.but(optimizer="adam"),
    },
    false_cures={
        "an epsilon of 1e-7: no division by 0, but by 1e-7 where 1e-3 was due": sick.but(adam_eps=1e-7),
        "a hundredth of the learning rate": sick.but(lr=2e-5),
        "clipping the gradient norm to 1": sick.but(clip=1.0),
    },
    signature=signature,
    harm=0.9,
    symptom="Weights, activations and gradients are float32 and in order, so is the first loss; the second is NaN.",
    mechanism="The mean of squared gradients begins with a thousandth of a square. For a gradient of 1e-3 that is "
    "1e-9, in float16 it is 0, and so is the epsilon of 1e-8 beside it: 0 in the divisor.",
    first_check="Go through optimizer.state for the dtype of every tensor, and for zeros where the gradient was none.",
    remedy="Save the memory with bfloat16, or with 8 bits and a scale per block, never with plain float16. The second "
    "average needs range much more than digits.",
    reference="Dettmers et al., 8-bit Optimizers via Block-wise Quantization (2022)",
    looks="not finite",
    shows="origin",
    knobs=(
        Knob("optimizer", ("adam", "adamw", "sgd")),
        Knob("adam_eps", (1e-8, 1e-3), log=True),
        Knob("lr", (1e-5, 0.01), log=True),
    ),
)
