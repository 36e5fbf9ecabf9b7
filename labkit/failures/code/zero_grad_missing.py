"""zero_grad() is missing: every batch adds its gradient to the sum of all previous ones, and the net overshoots."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.recording.summaries import fixed_loss
from labkit.training.recipe import Recipe

# Gradient norm in the last quarter over that of the first step. Healthy runs: 0.3 to 2, up to 6 after a plateau;
# a sum of all gradients: 13 to 120.
GROWN = 8.0
# How much a gradient's mean changes from one step to the next, as a share of its size, in the median parameter.
# New batches: 0.5 to 1.5, because each has its own noise; a sum of many hardly changes with one more: 0.01 to 0.06.
FRESH = 0.3
# The loss on the same images, at the end over at the start; healthy runs end at 0.02 to 0.1 on digits.
LEFT = 0.2

healthy = Recipe()


def step_without_zero_grad(training, x, y) -> None:
    """The plain step, but new gradients are added to those of all previous steps."""
    loss = training.loss(x, y)
    training.backward(loss)
    training.look(loss, x, y)
    training.clip()
    training.update()


sick = healthy.but(step=step_without_zero_grad)


def change_per_step(run: Run) -> float:
    """The median change of a gradient's mean from step to step, as a share of that mean, in the median parameter."""
    means = run["grad_mean"]
    with np.errstate(all="ignore"):
        shares = np.median(np.abs(np.diff(means, axis=0)), axis=0) / np.median(np.abs(means), axis=0)
    shares = shares[np.isfinite(shares)]
    return float(np.median(shares)) if len(shares) else np.inf


def signature(run: Run) -> Evidence | None:
    norms, losses = run["grad_norm_total"], fixed_loss(run)
    if len(run) < 8 or run.facts.get("batch_length", 0) >= run.facts.get("samples", np.inf):
        return None  # too short; or each batch is the whole set, and successive gradients are similar anyway
    if not np.isfinite(norms[0]) or norms[0] == 0 or len(losses) < 2 or losses[-1] < LEFT * losses[0]:
        return None
    finite = norms[np.isfinite(norms)]
    grown, change = np.median(finite[-max(1, len(finite) // 4) :]) / norms[0], change_per_step(run)
    if grown < GROWN or change > FRESH:
        return None
    return Evidence(
        seen=f"the gradient norm grew to {grown:.3g} times its first value, and the gradients only change by "
        f"{change:.1%} from one batch to the next",
        usual="changes of 50 % or more, because each batch has its own noise; a norm of at most 6 times the first",
        onset=int(np.argmax(norms > GROWN * norms[0])),
        place="optimizer",
        confidence=0.85,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Gradients never cleared",
    cures={"zero_grad() before each backward": sick.but(step="plain_step")},
    false_cures={
        "a cosine schedule: 56 %, because the sum remains": sick.but(schedule="cosine"),
        "batch normalisation: 89 %, at a loss of 1.65": sick.but(normalisation="batch"),
    },
    harm=0.5,
    symptom="The loss falls for a few steps, then rises and oscillates above chance level. The gradient norm keeps "
    "growing, and its curve is unusually smooth.",
    mechanism="backward() adds to .grad and never overwrites it. Without zero_grad() the step follows the sum of all "
    "gradients since the start: momentum without decay, which overshoots every minimum.",
    formula=r"\theta_{t+1} = \theta_t - \eta \sum_{s \leq t} g_s",
    first_check="The gradient norm over time: a healthy one is noisy from batch to batch, a sum rises in a smooth "
    "line.",
    remedy="Call optimizer.zero_grad() once per step, before backward. Clipping to 1 hides the bug, because it "
    "shrinks the stored sum too (94 % here): check the loop, not only the result.",
    reference="Paszke et al., PyTorch: An Imperative Style, High-Performance Deep Learning Library (2019)",
    looks="jumps",
    shows="grad_norm_total",
    knobs=(
        Knob("lr", (1e-3, 0.3), log=True),
        Knob("momentum", (0.0, 0.9)),
        Knob("clip", (None, 1.0)),
        Knob("optimizer", ("sgd", "adam")),
    ),
    also_causes=(
        "dead_relu",
        "learning_rate_too_high",
        "vanishing_gradients",
        "runaway_weights",
        "too_much_dropout",
        "dead_relu_by_learning_rate",
    ),
    cifar10={"lr": 0.01},  # at LR 0.1 the larger net diverges to 1e16, and other failures hide this one
)
