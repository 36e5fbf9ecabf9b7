"""A transformer at full learning rate from step 0: its attention collapses to single patches before it learns."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.recording.summaries import quarters
from labkit.training.recipe import Recipe

# The largest of the first updates, as a share of its layer. With warm-up: 0.06 to 0.12; Adam 0.03 at once: 1.4 to 1.5
# (position embeddings, whose init has a standard deviation of 0.02; the queries change by 0.3).
VIOLENT = 0.5
WINDOW = 10
FULL = 0.5  # the first learning rate over the highest; a warm-up begins at a hundredth
# Attention entropy, mean over the heads, as a share of its value at the start. With warm-up it ends at 0.4 to 0.55;
# without, at 0.09 to 0.23.
NARROW = 0.3
HIGH = 0.3  # the loss in the last quarter; sick runs 1.1 to 1.5

healthy = Recipe(
    model="vit",
    width=32,
    activation="gelu",
    optimizer="adam",
    lr=0.03,
    schedule="warmup_cosine",
    warmup=100,
    batch_size=64,
    steps=200,
)
sick = healthy.but(schedule="constant")


def signature(run: Run) -> Evidence | None:
    entropy, lr, late = run["attention_entropy"].mean(axis=1), run["lr"], quarters(run["loss"])[-1]
    first = run["update_ratio"][:WINDOW].max(axis=1)
    if not np.isfinite(entropy).all() or not late > HIGH or lr[0] < FULL * lr.max():
        return None
    if not first.max() > VIOLENT or entropy[-1] > NARROW * entropy[0]:
        return None
    step = int(first.argmax())
    return Evidence(
        seen=f"step {step}, at the full LR of {lr[step]:.2g}, changed a layer by {first[step]:.2g} times its own "
        f"size; the attention entropy fell from {entropy[0]:.2f} to {entropy[-1]:.2f}",
        usual="first updates of 0.01 to 0.1 of a layer, and an attention entropy above 1",
        onset=step,
        place=run.layers[int(np.argmax(run["update_ratio"][step]))],
        confidence=0.8,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Warm-up missing",
    cures={"100 steps of warm-up to the same learning rate, then cosine decay": sick.but(schedule="warmup_cosine")},
    false_cures={"cosine decay from the full learning rate: it does not start gently": sick.but(schedule="cosine")},
    harm=0.15,
    symptom="No NaN and no jump: the loss falls, but slowly, and ends far above what the same learning rate reaches "
    "with a warm-up.",
    mechanism="Adam's first updates are as large as the learning rate whatever the gradient, because its averages "
    "contain only one batch. Queries and keys grow too large; softmax picks one patch, and passes hardly any gradient "
    "to change that.",
    formula=r"\Delta \theta_1 = -\eta \, \frac{\hat{m}_1}{\sqrt{\hat{v}_1} + \epsilon} \approx -\eta \, "
    r"\mathrm{sign}(g_1)",
    first_check="The ratio of update to weight at steps 0 to 10, and the attention entropy at the first validations.",
    remedy="Raise the learning rate gradually over the first steps: here half of a short run, usually 1 to 10 %. A "
    "lower learning rate throughout works too, but is slower.",
    reference="Liu et al., On the Variance of the Adaptive Learning Rate and Beyond (2019)",
    looks="stops too high",
    shows="attention_entropy",
    knobs=(
        Knob("schedule", ("constant", "cosine", "warmup_cosine")),
        Knob("warmup", (0, 150)),
        Knob("lr", (0.001, 0.1), log=True),
        Knob("depth", (1, 4)),
    ),
    # On CIFAR-10 0.03 costs 2 to 4 of 31 points without a warm-up, too little to detect; 0.06 costs 5 to 9 of 30.
    cifar10={"lr": 0.06},
    learned={"mnist": 0.6, "cifar10": 0.25},  # two small blocks and 200 steps: 70 to 83 %, and 29 to 31 %
    also_causes=("attention_entropy_collapse",),
    not_in_ward="its transformer trains three times as long as any other patient",
)
