"""A fixed loss scale of a million: the loss is fine, its gradients overflow float16, and the first update is NaN."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.recording.traces import FLOAT16_LARGEST
from labkit.training.recipe import Recipe

# The loss scale. Without scaling it is 1; GradScaler starts at 65,536, halves it at every overflow, and
# leaves no non-finite step behind. 2**20 overflows at step 0.
SCALED = 1.0

# A CPU only emulates 16 bits, and slowly: a narrow net, fewer steps and fewer validations than elsewhere.
healthy = Recipe(width=64, optimizer="adam", lr=0.002, steps=100, evaluate_every=10, precision="fp16")
sick = healthy.but(loss_scale=2.0**20)


def signature(run: Run) -> Evidence | None:
    origin = run.facts.get("first_nonfinite") or {}
    if origin.get("stage") != "gradients" or "float16" not in (run.facts.get("dtypes") or {}).get("outputs", ()):
        return None
    step = origin["step"]
    row = run.row_of(step)
    scale, loss = run["loss_scale"][row], run["loss"][row]
    if not scale > SCALED or not np.isfinite(loss) or origin.get("place") == "outputs":
        return None  # not scaled up, or the loss itself is the bug
    return Evidence(
        seen=f"{origin.get('count', 'some')} entries of the gradient of {origin['place']} are not finite at step "
        f"{step}, though the loss is {loss:.3g}: it was multiplied by {scale:,.0f} before the backward pass in float16",
        usual=f"finite gradients; float16 overflows at {FLOAT16_LARGEST:,}, and GradScaler lowers the scale to fit",
        onset=step,
        place=origin["place"],
        confidence=0.95,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="fp16 backward overflow",
    cures={
        "GradScaler, which finds the scale itself": sick.but(loss_scale="dynamic"),
        "a fixed loss scale of 1,024": sick.but(loss_scale=1024.0),
        "bf16, with the range of float32": sick.but(precision="bf16"),
    },
    false_cures={
        "clipping the gradient norm to 1: inf / inf is NaN": sick.but(clip=1.0),
        "a learning rate of 1e-5": sick.but(lr=1e-5),
    },
    harm=0.9,
    symptom="The first loss is correct, the second is NaN, and so is every weight. In float32 the same loop trains.",
    mechanism="The loss is multiplied so that small gradients survive in 16 bits, here by so much that the sum over "
    "the batch exceeds 65,504. Dividing by the scale afterwards leaves infinity.",
    formula=r"s \, \lVert \nabla L \rVert > 65504 \quad \Rightarrow \quad \infty, \qquad \frac{\infty}{s} = \infty",
    first_check="Loss and gradients of the first step: a finite loss with infinite gradients points to the scale.",
    remedy="Let GradScaler choose the scale: it skips a step that overflows and halves the scale. Test a fixed scale "
    "on the largest gradients of the run, not on the first ones. bf16 needs none.",
    reference="Micikevicius et al., Mixed Precision Training (2018), section 3.2 on loss scaling",
    looks="not finite",
    shows="origin",
    knobs=(
        Knob("loss_scale", (1.0, 2.0**24), log=True),
        Knob("precision", ("fp32", "bf16", "fp16")),
        Knob("clip", (None, 1.0)),
        Knob("lr", (1e-5, 0.01), log=True),
    ),
)
