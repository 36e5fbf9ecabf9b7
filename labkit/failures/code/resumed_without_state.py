"""Resumed at three quarters with only the weights: the schedule restarts, and its peak undoes what was learned."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.training import parts
from labkit.training.recipe import Recipe

# The learning rate as a share of its peak: it was below LOW and is above HIGH again. A schedule that ends with the run
# never does that. Sick: 0.03 and 1.
LOW, HIGH = 0.25, 0.5
# Mean training loss of the last WINDOW steps over that of the WINDOW steps before the lowest learning rate. A harmless
# warm restart ends below 1; sick: 1.8 to 2.3.
WORSE, WINDOW = 1.3, 30

# With momentum: plain SGD has no state to lose.
healthy = Recipe(lr=0.3, momentum=0.9, schedule="warmup_cosine")


def resumes_at(recipe) -> int:
    """The step at which the job was interrupted and started again."""
    return recipe.steps * 3 // 4


def restarted_schedule(step, recipe):
    """Warmup and cosine, counted from 0 again after the interruption."""
    return parts.warmup_cosine(step % resumes_at(recipe), recipe)


def step_with_lost_optimizer_state(training, x, y) -> None:
    """The plain step, but the resumed process starts with an empty optimizer state."""
    if training.recorder.steps == resumes_at(training.recipe):
        training.optimizer.state.clear()
    parts.plain_step(training, x, y)


sick = healthy.but(schedule=restarted_schedule, step=step_with_lost_optimizer_state)


def signature(run: Run) -> Evidence | None:
    rate, losses = run["lr"] / max(np.max(run["lr"]), 1e-30), run["loss"]
    peak = int(np.argmax(rate))
    low = peak + int(np.argmin(rate[peak:]))  # its lowest value after the peak
    back = np.flatnonzero(rate[low:] > HIGH)
    if rate[low] > LOW or not len(back) or low == 0:
        return None
    before, after = losses[max(0, low - WINDOW) : low], losses[low + back[0] :][-WINDOW:]
    if not (len(before) and len(after) and np.isfinite([*before, *after]).all()):
        return None
    if not after.mean() > WORSE * before.mean():
        return None
    return Evidence(
        seen=f"the learning rate fell to {rate[low]:.0%} of its peak and rose again to {rate[low:].max():.0%}; "
        f"the loss went from {before.mean():.3f} to {after.mean():.3f}",
        usual="a learning rate that stays below 25 % of its peak once it is there, and a loss that keeps falling",
        onset=low,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Resumed without state",
    cures={
        "the schedule's and the optimizer's state restored with the weights": sick.but(
            schedule=parts.warmup_cosine, step=parts.plain_step
        ),
    },
    false_cures={
        "only the optimizer's state restored": sick.but(step=parts.plain_step),
        "a longer warmup: 60 steps": sick.but(warmup=60),
    },
    harm=0.015,
    costs="Two to nine points of accuracy, and the last quarter of the run, which ends with three times the loss.",
    symptom="After a restart the loss goes up instead of down, and the progress of the last, small steps is lost.",
    mechanism="A checkpoint with only the weights restarts the schedule at step 0: the learning rate climbs back to "
    "its peak, and the optimizer has lost its state. The large steps undo progress, and the run ends before it can "
    "converge again.",
    formula=r"\eta(t_{\text{resumed}}) = \eta_{\max} \gg \eta(t), \qquad m = v = 0",
    first_check="The learning rate over the whole job, across the restart: it must not jump.",
    remedy="Save and restore weights, optimizer, scheduler, step count and loss scaler together. After a restart, "
    "compare the first loss and learning rate with the last ones before it.",
    reference="PyTorch documentation, Saving and loading a general checkpoint (2024)",
    looks="jumps",
    shows="lr",
    knobs=(
        Knob("schedule", ("constant", "cosine", "warmup_cosine", "one_cycle")),
        Knob("lr", (0.03, 0.5), log=True),
        Knob("warmup", (1, 100), log=True),
        Knob("steps", (200, 800)),
    ),
    not_on_cifar10="It costs six points of accuracy there too, but the training loss ends at 1.44 instead of 1.30: "
    "too little to tell it from a harmless restart.",
    also_causes=("overconfidence",),
)
