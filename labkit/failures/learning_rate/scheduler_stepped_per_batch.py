"""`scheduler.step()` inside the batch loop: the learning rate is multiplied by 0.9 at every step and soon vanishes."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import left_over, lr_decayed_from
from labkit.recording.run import Run
from labkit.recording.summaries import quarters
from labkit.training.recipe import Recipe

# The factor from one step to the next. Decay per epoch: 1 at nearly all steps; a decay meant for epochs: 0.9 to 0.98.
FACTOR = 0.99
SAME = 0.005  # how much the factor may differ from step to step; a cosine's runs from 1 to 0
STEPS = 10  # factors needed to call them constant
HIGH = 0.45  # the loss in the last quarter; decay per epoch ends at 0.19 to 0.2, per batch at 0.97 to 1.07
LEFT = 0.47  # or, for losses of any unit, over that of a constant prediction; healthy programs 0.01 to 0.46


def exponential_per_batch(step, recipe):
    """Multiply by `decay` after each batch: the scheduler is called in the inner loop."""
    return recipe.lr * recipe.decay**step


healthy = Recipe(schedule="exponential")
sick = healthy.but(schedule=exponential_per_batch)


def signature(run: Run) -> Evidence | None:
    end, late = lr_decayed_from(run), quarters(run["loss"])[-1]
    lr = run["lr"][:end]
    if len(lr) <= STEPS or end == len(run) or not (late > HIGH or left_over(run) > LEFT) or not (lr > 0).all():
        return None
    factors = lr[1:] / lr[:-1]
    factor = float(np.median(factors))
    if factor > FACTOR or np.abs(factors - factor).max() > SAME:
        return None
    return Evidence(
        seen=f"every step multiplies the learning rate by {factor:.3g}: by step {end} a thousandth of it is left, with "
        f"the loss at {late:.2f}",
        usual="the same learning rate for at least 1 epoch, then the factor",
        onset=1,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Scheduler stepped per batch",
    cures={
        "step the scheduler once per epoch": sick.but(schedule="exponential"),
        "no decay, in a run this short": sick.but(schedule="constant"),
    },
    false_cures={
        "three times the learning rate": sick.but(lr=0.3),
        "training three times as long": sick.but(steps=1200),
    },
    harm=0.06,
    symptom="The loss falls steeply in the first few dozen steps, then stays flat far above where it should end.",
    mechanism="The decay was chosen per epoch; one indent too many applies it per batch. 0.9 to the power of 66 is a "
    "thousandth: all learning happens before the first epoch is over.",
    formula=r"0.9^{66} \approx 10^{-3}",
    first_check="Print the learning rate after each epoch, or plot it on a log axis: a straight line down from step 0 "
    "is this bug.",
    remedy="Call `scheduler.step()` at the end of its unit: after the epoch for a decay per epoch, after the batch "
    "only for schedules that count batches.",
    reference="PyTorch documentation, torch.optim: How to adjust learning rate (2.x), on calling scheduler.step()",
    looks="stops too high",
    shows="lr",
    knobs=(
        Knob("decay", (0.5, 1.0)),
        Knob("schedule", ("constant", "exponential", "cosine")),
        Knob("lr", (0.01, 0.3), log=True),
    ),
    also_causes=("schedule_too_short", "learning_rate_too_low"),
)
