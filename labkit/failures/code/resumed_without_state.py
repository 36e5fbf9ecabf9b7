"""Resumed from weights alone at three quarters: the schedule begins anew, and its peak undoes what was learned."""

import numpy as np

from labkit import parts
from labkit.failure_mode import Evidence, FailureMode, Knob
from labkit.recipe import Recipe
from labkit.run import Run

# The learning rate, as shares of its peak: it has been below LOW and is above HIGH again. A schedule that ends where
# the run ends never does that. Sick: 0.15 and 1.
LOW, HIGH = 0.25, 0.5
# The training loss after the return over the one before it, means of WINDOW steps. 0.3 to 0.8 where a restart does no
# harm; sick: 1.7 to 3.
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
    rate, losses = run["lr"] / np.max(run["lr"]), run["loss"]
    peak = int(np.argmax(rate))
    low = peak + int(np.argmin(rate[peak:]))  # where it was lowest, after its peak
    back = np.flatnonzero(rate[low:] > HIGH)
    if rate[low] > LOW or not len(back):
        return None
    before, after = losses[max(0, low - WINDOW) : low], losses[low + back[0] :]
    if not (np.isfinite(before).all() and np.isfinite(after).all() and after.mean() > WORSE * before.mean()):
        return None
    return Evidence(
        seen="x",
        usual="a learning rate that does not return",
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
    harm=0.01,
    symptom="a.",
    mechanism="a.",
    first_check="a.",
    remedy="a.",
    reference="PyTorch documentation, Saving and loading a general checkpoint (2024)",
    shows="lr",
    knobs=(Knob("lr", (0.03, 0.5), log=True),),
    cifar10={"momentum": 0.0},
)
