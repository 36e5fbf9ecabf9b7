"""Eight times the batch, so eight times the learning rate, from the first step on: the rule of thumb has an end."""

import numpy as np

from labkit.failure_mode import Evidence, FailureMode, Knob
from labkit.readings import quarters
from labkit.recipe import Recipe
from labkit.run import Run

MANY = 512  # samples in a batch; the rule was seen to hold up to 256 here
# The largest of the first updates as a share of its layer. LR 0.2: 0.14 to 0.16, LR 0.8 after 100 steps: 1.3 to 1.5.
VIOLENT = 0.7
WINDOW = 10
HIGH = 0.5  # the loss in the last quarter; with a rate that fits 0.24, here 0.9 to 1.2

healthy = Recipe(batch_size=1024, lr=0.2, momentum=0.0, steps=100)
sick = healthy.but(lr=0.8)


def signature(run: Run) -> Evidence | None:
    size, late = run.facts.get("batch_length") or 0, quarters(run["loss"])[-1]
    ratio = run["update_ratio"][:WINDOW].max(axis=1)
    violent = np.flatnonzero(ratio > VIOLENT)
    if size < MANY or not len(violent) or late < HIGH:
        return None
    step = int(violent[0])
    return Evidence(
        seen=f"batches of {size} at a rate of {run['lr'][step]:.2g}: step {step} changed a layer by {ratio[step]:.2g} "
        f"times its own size, and the loss ends at {late:.2f}",
        usual="first updates of 0.01 to 0.2 of a layer, whatever the batch",
        onset=step,
        place=run.layers[int(np.argmax(run["update_ratio"][step]))],
        confidence=0.75,
    )


failure = FailureMode(
    title="Learning rate scaled too far",
    healthy=healthy,
    sick=sick,
    cures={
        "a quarter of the rate": sick.but(lr=0.2),
        "20 steps of warm-up to the full rate, then a cosine": sick.but(schedule="warmup_cosine", warmup=20),
    },
    false_cures={"a cosine from the full rate": sick.but(schedule="cosine")},
    signature=signature,
    harm=0.15,
    symptom="Larger batches, a rate scaled with them as the rule says, and a worse net than before: the loss jumps in "
    "the first steps, kills units, and comes down late and not all the way.",
    mechanism="A gradient of eight times as many images is less noisy, but the valley is as narrow as before. Once the "
    "step and not the noise sets the limit, the rate cannot grow with the batch any more, least of all at the start.",
    first_check="The ratio of update to weight in the first ten steps: above a half, the rate was scaled beyond what the "
    "net can take.",
    remedy="Scale the rate with the batch only as long as the first updates stay below a fifth of a layer; beyond that, "
    "warm up, or grow it with the root of the batch.",
    reference="Goyal et al., Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour (2017)",
    shows="update_ratio",
    knobs=(
        Knob("lr", (0.05, 1.0), log=True),
        Knob("batch_size", (64, 2048), log=True),
        Knob("schedule", ("constant", "cosine", "warmup_cosine")),
        Knob("warmup", (0, 50)),
    ),
    also_causes=("learning_rate_too_high", "learning_rate_too_high_late", "dead_relu", "vanishing_gradients"),
    cifar10="at batches of 1,024 the healthy perceptron learns too little in runs short enough for an exhibit",
)
