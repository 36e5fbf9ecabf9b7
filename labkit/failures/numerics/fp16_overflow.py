"""Raw pixels and large weights in 16 bits: an activation exceeds 65,504 and becomes infinite, and the loss is NaN."""

from labkit.failures.mode import Branch, Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.recording.traces import FLOAT16_LARGEST as LARGEST
from labkit.training.recipe import Recipe

# A CPU only emulates 16 bits, and slowly: a narrow net, fewer steps and fewer validations than elsewhere.
healthy = Recipe(
    depth=4, width=32, init="he", optimizer="adam", lr=0.002, steps=150, evaluate_every=15, precision="fp16"
)
sick = healthy.but(inputs="raw", init="normal")


def signature(run: Run) -> Evidence | None:
    origin = run.facts.get("first_nonfinite") or {}
    if origin.get("stage") != "activations" or origin.get("dtype") != "float16":
        return None
    size = origin.get("float32")
    if size is not None and not size > LARGEST:  # "not >", because it may be NaN in float32 too
        return None  # infinite for another reason: the same tensor fits in float32
    wanted = f"is {size:,.0f}" if size else "is infinite"
    return Evidence(
        seen=f"{origin['count']} entries of {origin['place']} are not finite at step {origin['step']}: "
        f"in float32 the largest {wanted}",
        usual=f"activations of 1 to 100; the largest float16 is {LARGEST:,}",
        onset=origin["step"],
        place=origin["place"],
        confidence=0.98,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="fp16 overflow",
    cures={"normalised inputs and He init": sick.but(inputs="normalised", init="he")},
    false_cures={
        "GradScaler": sick.but(loss_scale="dynamic"),
        "bf16: finite, but the first loss is still in the thousands": sick.but(precision="bf16"),
    },
    harm=0.9,
    symptom="The very first loss is NaN in half precision, while the same net trains in float32.",
    mechanism="The largest float16 is 65,504, and each layer makes large inputs about four times larger, until one "
    "becomes infinite. The next layer computes inf - inf, which is NaN.",
    formula=r"\max |h_l| \approx 4^l \max |x| > 65504 \quad \Rightarrow \quad \infty - \infty = \mathrm{NaN}",
    first_check="The largest activation of each layer in float32, on one batch, before any training.",
    remedy="Normalise the inputs and use an init that keeps the scale. bf16 avoids the overflow but not the bad "
    "scale. GradScaler cannot help: it rescales gradients, and this is the forward pass.",
    reference="Micikevicius et al., Mixed Precision Training (2018)",
    looks="not finite",
    shows="activation_size",
    knobs=(
        Knob("precision", ("fp32", "bf16", "fp16")),
        Knob("inputs", ("normalised", "unit", "raw")),
        Knob("init", ("default", "he", "normal")),
        Knob("init_scale", (0.05, 1.0), log=True),
        Knob("loss_scale", (None, "dynamic")),
    ),
    cifar10={"width": 64, "lr": 0.001},  # 32 units are too few to learn CIFAR-10 in 150 steps
    headline=5,
    symptom_tree=(Branch("not finite", "Where does it first appear?", "in a 16-bit activation"),),
)
