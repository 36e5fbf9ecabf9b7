"""Resumed from weights alone at three quarters: the schedule begins anew, and its peak undoes what was learned."""

import numpy as np

from labkit.training import parts
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# The learning rate, as shares of its peak: it has been below LOW and is above HIGH again. A schedule that ends where
# the run ends never does that. Sick: 0.03 and 1.
LOW, HIGH = 0.25, 0.5
# Mean training loss of the last WINDOW steps over that of the WINDOW steps before the lowest rate. A warm restart that
# does no harm ends below 1; sick: 1.8 to 2.3.
WORSE, WINDOW = 1.3, 30

healthy = Recipe(lr=0.3, schedule="warmup_cosine")


def resumes_at(recipe) -> int:
    """The step at which the job was interrupted and started again."""
    return recipe.steps * 3 // 4


def schedule_started_anew(step, recipe):
    """Warmup and cosine, counted from 0 again after the interruption."""
    return parts.warmup_cosine(step % resumes_at(recipe), recipe)


def step_of_a_resumed_run(training, x, y) -> None:
    """The plain step; the new process has the weights, but an optimizer without memory."""
    if training.recorder.steps == resumes_at(training.recipe):
        training.optimizer.state.clear()
    parts.plain_step(training, x, y)


sick = healthy.but(schedule=schedule_started_anew, step=step_of_a_resumed_run)


def signature(run: Run) -> Evidence | None:
    rate, losses = run["lr"] / max(np.max(run["lr"]), 1e-30), run["loss"]
    peak = int(np.argmax(rate))
    low = peak + int(np.argmin(rate[peak:]))  # where it was lowest, after its peak
    back = np.flatnonzero(rate[low:] > HIGH)
    if rate[low] > LOW or not len(back) or low == 0:
        return None
    before, after = losses[max(0, low - WINDOW) : low], losses[low + back[0] :][-WINDOW:]
    if not (len(before) and len(after) and np.isfinite([*before, *after]).all()):
        return None
    if not after.mean() > WORSE * before.mean():
        return None
    return Evidence(
        seen=f"the learning rate was down to {rate[low]:.0%} of its peak and came back to {rate[low:].max():.0%}; "
        f"the loss went from {before.mean():.3f} to {after.mean():.3f}",
        usual="a rate that, once below 25 % of its peak, stays there, and a loss that goes on falling",
        onset=low,
    )


failure = FailureMode(
    title="Resumed without state",
    healthy=healthy,
    sick=sick,
    cures={
        "the schedule's and the optimizer's state restored with the weights": sick.but(
            schedule=parts.warmup_cosine, step=parts.plain_step
        ),
    },
    false_cures={
        "the optimizer's state alone": sick.but(step=parts.plain_step),
        "a longer warmup: 60 steps": sick.but(warmup=60),
    },
    signature=signature,
    harm=0.015,
    costs="Two to nine points of accuracy, and the last quarter of the run, which ends with three times the loss.",
    symptom="After a restart the loss goes up instead of on, and what the last, small steps had gained is gone.",
    mechanism="A checkpoint with weights alone starts the schedule at step 0: the rate climbs back "
    "to its peak, and the optimizer has lost its memory of past gradients. The net is shaken as it was at the start, "
    "and the run ends before it can settle again.",
    first_check="The learning rate over the whole job, across the restart: it must have no step in it.",
    remedy="Save and restore weights, optimizer, scheduler, step count and loss scaler together. After a restart "
    "compare the first loss and the first learning rate with the last ones before it.",
    reference="PyTorch documentation, Saving and loading a general checkpoint (2024)",
    looks="jumps",
    shows="lr",
    knobs=(
        Knob("schedule", ("constant", "cosine", "warmup_cosine", "one_cycle")),
        Knob("lr", (0.03, 0.5), log=True),
        Knob("warmup", (1, 100), log=True),
        Knob("steps", (200, 800)),
    ),
    cifar10="Six points of accuracy are lost there too, but the training loss ends at 1.44 instead of 1.30: too little "
    "to tell it from a restart that does no harm.",
    also_causes=("overconfidence",),
)
