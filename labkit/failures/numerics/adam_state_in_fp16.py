"""Adam with its state in float16 to save memory: squares of small gradients become 0, and it divides by them."""

import torch

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import broken_update
from labkit.recording.run import Run
from labkit.training.recipe import Recipe


class LowPrecisionAdam(torch.optim.Optimizer):
    """Textbook Adam with both of its averages in a dtype of your choice."""

    def __init__(self, parameters, lr: float, eps: float, dtype: torch.dtype):
        super().__init__(parameters, {"lr": lr, "eps": eps, "betas": (0.9, 0.999)})
        self.dtype = dtype

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._move(weight, self.state[weight], **group)

    def _move(self, weight, state, lr, eps, betas, **_) -> None:
        if not state:
            state["m"] = torch.zeros_like(weight, dtype=self.dtype)
            state["v"] = torch.zeros_like(weight, dtype=self.dtype)
            state["count"] = 0
        state["count"] += 1
        gradient = weight.grad.to(self.dtype)
        state["m"].lerp_(gradient, 1 - betas[0])
        state["v"].mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
        mean, square = (state[name] / (1 - beta ** state["count"]) for name, beta in zip("mv", betas, strict=True))
        weight.sub_(lr * (mean / (square.sqrt() + eps)))


def adam_with_float16_state(model, recipe):
    """Adam with float32 weights and both averages in float16."""
    return LowPrecisionAdam(model.parameters(), recipe.lr, recipe.adam_eps, torch.float16)


def adam_with_bfloat16_state(model, recipe):
    """The same with bfloat16, which has the range of float32."""
    return LowPrecisionAdam(model.parameters(), recipe.lr, recipe.adam_eps, torch.bfloat16)


healthy = Recipe(optimizer="adam", lr=0.002)
sick = healthy.but(optimizer=adam_with_float16_state)


def signature(run: Run) -> Evidence | None:
    origin = broken_update(run, "float32")
    if not origin:
        return None
    gradient = run["grad_norm_total"][run.row_of(origin["step"])]
    return Evidence(
        seen=f"the update of step {origin['step']} left {origin['count']:,} entries of {origin['place']} not finite, "
        f"from a gradient of norm {gradient:.2g}; the weights are float32, the optimizer state is float16",
        usual="finite weights after a finite gradient; in float16 the square of 2e-4 is already 0",
        onset=origin["step"],
        place=origin["place"],
        confidence=0.9,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Adam state in fp16",
    cures={
        "the averages in bfloat16: as small, with the range of float32": sick.but(optimizer=adam_with_bfloat16_state),
        "the averages in float32": sick.but(optimizer="adam"),
    },
    false_cures={
        "an epsilon of 1e-7: no division by 0, but by 1e-7 instead of 1e-3": sick.but(adam_eps=1e-7),
        "a hundredth of the learning rate": sick.but(lr=2e-5),
        "clipping the gradient norm to 1": sick.but(clip=1.0),
    },
    harm=0.9,
    symptom="Weights, activations, gradients and the first loss are float32 and healthy; the second loss is NaN.",
    mechanism="The mean of squared gradients starts at a thousandth of a square. For a gradient of 1e-3 that is "
    "1e-9, which is 0 in float16. So is the epsilon of 1e-8: Adam divides by 0.",
    formula=r"v_1 = 0.001 \cdot (10^{-3})^2 = 10^{-9} < 6 \cdot 10^{-8} \quad \Rightarrow \quad \frac{m}{\sqrt{0} + 0}",
    first_check="Check optimizer.state for the dtype of every tensor, and for zeros where the gradient was not 0.",
    remedy="Save memory with bfloat16, or with 8 bits and a scale per block, never with plain float16. The second "
    "average needs range much more than precision.",
    reference="Dettmers et al., 8-bit Optimizers via Block-wise Quantization (2022)",
    looks="not finite",
    shows="origin",
    knobs=(
        Knob("optimizer", ("adam", "adamw", "sgd")),
        Knob("adam_eps", (1e-8, 1e-3), log=True),
        Knob("lr", (1e-5, 0.01), log=True),
    ),
)
