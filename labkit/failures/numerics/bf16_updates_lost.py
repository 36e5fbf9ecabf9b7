"""Weights in bfloat16 and a small learning rate: most updates are rounded away, and learning almost stops."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.recording.summaries import typical
from labkit.training.recipe import Recipe

# Length of the update over learning rate times gradient, the median over the steps. Plain SGD: 1.0000 in float32, at
# least 0.999 in bfloat16 with LR 0.01; 0.5 to 0.75 with LR 0.001 to 0.002. With momentum or Adam it is above 1, and
# says nothing.
APPLIED = 0.85

# A CPU only emulates 16 bits, and slowly: a narrow net and few validations.
healthy = Recipe(width=64, lr=0.0015, steps=400, evaluate_every=50)
sick = healthy.but(precision="bf16_pure")


def signature(run: Run) -> Evidence | None:
    formats = (run.facts.get("dtypes") or {}).get("weights", ())
    if not {"bfloat16", "float16"} & set(formats) or run.clipped.any():
        return None
    with np.errstate(all="ignore"):
        moved = np.sqrt((run["update_norm"] ** 2).sum(axis=1))
        applied = moved / (run["lr"] * run["grad_norm_total"])
    applied = applied[np.isfinite(applied)]
    share = float(np.median(applied)) if len(applied) else 1.0
    if not 0 < share < APPLIED:  # 0: there was no update
        return None
    with np.errstate(all="ignore"):
        layers = typical(run["update_norm"] / (run["lr"][:, None] * run["grad_norm"]))
    worst = int(np.nanargmin(layers)) if np.isfinite(layers).any() else 0
    return Evidence(
        seen=f"an update is {share:.2f} of learning rate times gradient: the rest is rounded away in {formats[0]}",
        usual="1.00 for plain SGD; bfloat16 has a resolution of 1/256 of a weight, and drops less than half of that",
        onset=0,
        place=run.layers[worst],
        confidence=0.85,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Updates lost in bf16",
    cures={
        "bf16 autocast: the weights stay in float32": sick.but(precision="bf16"),
        "everything in float32": sick.but(precision="fp32"),
    },
    false_cures={
        "half the learning rate, for a finer descent": sick.but(lr=0.00075),
    },
    harm=0.2,
    symptom="The loss falls for a while, then plateaus, though gradients are large and the same run in float32 keeps "
    "learning. No NaN, no warning.",
    mechanism="A bfloat16 has eight significant bits. An update below a 512th of its weight is rounded away, at "
    "every step again; only the smallest weights still change.",
    formula=r"w + \Delta w = w \quad \text{if } |\Delta w| < 2^{-9} \, |w|",
    first_check="The length of an update over learning rate times gradient. Or count the weights that did not change.",
    remedy="Keep the weights in float32 and compute in bf16 (autocast). If memory is short, use stochastic "
    "rounding, or a second bf16 number per weight for the remainder (Kahan summation).",
    reference="Zamirai et al., Revisiting BFloat16 Training (2020)",
    looks="stops too high",
    shows="update_ratio",
    knobs=(
        Knob("precision", ("fp32", "bf16", "bf16_pure")),
        Knob("lr", (0.0005, 0.1), log=True),
        Knob("momentum", (0.0, 0.9)),
    ),
    learned={"mnist": 0.55},
    not_on_cifar10="at the learning rate at which bfloat16 loses updates the float32 twin is too slow on photographs: "
    "30 % after 300 steps, and its own diagnosis is a learning rate left low",
)
