"""reduction='sum': the gradient is too large by a factor of the batch size."""

import numpy as np
from torch.nn.functional import cross_entropy

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import left_over, tested
from labkit.recording.run import Run
from labkit.recording.summaries import chance_loss, label_shares
from labkit.training.recipe import Recipe

# The loss of the probe over the mean loss of its single images, at its lowest. A mean gives about 1 (0.5 to 2), a
# sum gives the number of images: 512.
TIMES = 10.0
RISE = 3.0  # the loss over its first value; healthy runs never rise by half. With a matching LR a sum does no harm.
# The loss of a constant prediction over what the mean loss would give, the entropy of the labels or the variance of the
# targets; and that over the number of samples in a batch. A mean of cross-entropies or squared errors: 0.8 to 1.1; a
# sum: as many as samples, within a fifth. MANY: fewer samples could be a weight of the loss. ADDED: what perfect
# outputs have of it; a sum 0, a penalty inside the loss 0.3 and more.
MANY, SAME, ADDED = 8, 1.5, 0.1
LEFT = 0.47  # of the loss of a constant prediction, at the end; healthy programs 0.01 to 0.46

healthy = Recipe(steps=200)


def summed_cross_entropy(outputs, targets):
    """Cross entropy summed over the batch instead of averaged."""
    return cross_entropy(outputs, targets, reduction="sum")


sick = healthy.but(loss=summed_cross_entropy)


def times_too_large(run: Run) -> float:
    """How many times larger the loss of a constant prediction is than a mean over samples; NaN where it is unknown."""
    shares, width = label_shares(run), tested(run).get("target_std", np.nan)
    shares = shares[shares > 0]
    expected = -float(shares @ np.log(shares)) if len(shares) > 1 else width**2
    constant = run.facts.get("constant_loss", np.nan)
    return constant / expected if expected > 0 else np.nan


def as_many_as_samples(run: Run) -> Evidence | None:
    """Is the loss as many times too large as a batch has samples, and did it do harm?"""
    times, size = times_too_large(run), run.facts.get("batch_length") or 0
    harmed = not np.isfinite(run["loss"]).all() or left_over(run) > LEFT
    if size < MANY or not harmed or not size < times * SAME < size * SAME**2:
        return None
    if tested(run).get("truth", 0.0) > ADDED * run.facts["constant_loss"]:
        return None
    return Evidence(
        seen=f"a constant prediction has a loss {times:.0f} times as high as the mean over samples would be, in "
        f"batches of {size}",
        usual="a factor of 1",
        onset=0,
        place="loss",
        confidence=0.93,
    )


def signature(run: Run) -> Evidence | None:
    return as_many_as_samples(run) or larger_than_its_samples(run)


def larger_than_its_samples(run: Run) -> Evidence | None:
    """Is the loss of a batch many times that of its single samples?"""
    losses, probe, single = run["loss"], run["probe_loss"], run["sample_loss_mean"]
    known = np.isfinite(probe) & np.isfinite(single) & (single > 0)
    if not known.any() or not np.isfinite(losses[0]):
        return None
    times = float((probe[known] / single[known]).min())
    bad = ~(losses < RISE * losses[0])  # written so that NaN counts as bad
    if times < TIMES or not bad.any():
        return None
    peak = np.max(losses, initial=losses[0], where=np.isfinite(losses))
    return Evidence(
        seen=f"the loss of a batch is {times:.0f} times the mean loss of its images; it starts at {losses[0]:.0f} and "
        f"rises to {peak:.3g}",
        usual=f"a factor of 1, and a first loss of about {chance_loss(run):.2f}",
        onset=0,
        place="loss",
        confidence=0.95,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Summed loss",
    cures={
        "the mean over the batch": sick.but(loss="cross_entropy"),
        "the learning rate divided by the batch size": sick.but(lr=0.1 / 128),
        "Adam, which is invariant to the scale": sick.but(optimizer="adam", lr=0.003),
    },
    false_cures={"a tenth of the learning rate: 39 %": sick.but(lr=0.01)},
    harm=0.8,
    symptom="The first loss is in the hundreds, the second in the thousands, and then the net is dead or NaN, at a "
    "learning rate that worked before. Twice the batch size gives twice the loss.",
    mechanism="With reduction='sum' the gradient grows with the batch: for 128 images it is 128 times the mean, so a "
    "harmless learning rate of 0.1 acts like 12.8.",
    formula=r"\nabla \sum_{i=1}^{N} \ell_i = N \, \nabla \bar{\ell} \quad \Rightarrow \quad "
    r"\eta_{\text{effective}} = N \eta",
    first_check="The first loss: about ln(classes) for a mean, batch size times ln(classes) for a sum.",
    remedy="Average over the batch, or divide the learning rate by the batch size, which is equivalent. Adam hides "
    "the bug because it is invariant to the scale; clipping and weight decay are not.",
    reference="Goyal et al., Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour (2017)",
    looks="jumps",
    shows="probe_loss",
    knobs=(Knob("lr", (1e-4, 1.0), log=True), Knob("batch_size", (16, 512), log=True), Knob("clip", (None, 1.0))),
    also_causes=(
        "learning_rate_too_high",
        "learning_rate_too_low",
        "dead_relu",
        "vanishing_gradients",
        "dead_relu_by_learning_rate",
    ),
)
