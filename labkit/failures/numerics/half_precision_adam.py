"""model.half() with Adam: its epsilon of 1e-8 is 0 in float16, and so is the square of a small gradient."""

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import broken_update
from labkit.recording.run import Run
from labkit.training.recipe import Recipe

healthy = Recipe(width=64, optimizer="adam", lr=0.002, steps=150, evaluate_every=15)
sick = healthy.but(precision="half")


def signature(run: Run) -> Evidence | None:
    origin = broken_update(run, "float16")
    if not origin:
        return None
    gradient = run["grad_norm_total"][run.row_of(origin["step"])]
    return Evidence(
        seen=f"the update of step {origin['step']} left {origin['count']:,} entries of {origin['place']} not finite, "
        f"from a gradient of norm {gradient:.2g}; weights and optimizer state are float16",
        usual="finite weights after a finite gradient; in float16 anything below 3e-8 is 0, an epsilon of 1e-8 too",
        onset=origin["step"],
        place=origin["place"],
        confidence=0.9,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Adam in half precision",
    cures={
        "weights in bf16, where 1e-8 is not 0": sick.but(precision="bf16_pure"),
        "fp16 autocast: weights and Adam state stay in float32": sick.but(precision="fp16"),
    },
    false_cures={
        "a hundredth of the learning rate: it still divides by 0": sick.but(lr=2e-5),
        "an epsilon of 1e-7, just above 0 in float16: the first update is 1,800 times as large as the layer": sick.but(
            adam_eps=1e-7
        ),
        "clipping the gradient norm to 1: the gradients were never the problem": sick.but(clip=1.0),
    },
    harm=0.9,
    symptom="The first loss and the first gradients are healthy; after one update three quarters of the first layer "
    "are infinite and the loss is NaN.",
    mechanism="Adam divides by the root of the mean squared gradient plus 1e-8. In float16 the square of anything "
    "below 2e-4 is 0, and 1e-8 is 0 too: Adam divides by 0.",
    formula=r"g^2 < 6 \cdot 10^{-8}, \ \epsilon = 10^{-8} \ \Rightarrow \ \frac{g}{\sqrt{0} + 0} = \infty",
    first_check="The dtype of weights and optimizer state, and your epsilon in that dtype: torch.tensor(1e-8).half().",
    remedy="Keep the weights in float32 and use autocast, or use bf16. An epsilon of 1e-4 works, but the loss "
    "jumps to 11 at the start.",
    reference="Micikevicius et al., Mixed Precision Training (2018), section 3.1 on float32 master weights",
    looks="not finite",
    shows="origin",
    knobs=(
        Knob("precision", ("fp32", "fp16", "bf16_pure", "half")),
        Knob("adam_eps", (1e-8, 1e-3), log=True),
        Knob("optimizer", ("adam", "sgd")),
        Knob("lr", (1e-5, 0.01), log=True),
    ),
)
