"""A cosine that believes in 40 steps where the run has 400: the learning rate is 0 for nine tenths of the way."""

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import asleep_from, quarters
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# Share of the run at less than a thousandth of the peak rate. An aligned cosine: 2 %; this one: 90 %.
ASLEEP = 0.3
HIGH = 0.2  # the loss in the last quarter; aligned runs end at 0.03 to 0.05 here, these at 0.34 to 0.4
AWAKE = 2  # steps of learning before; a rate of 0 from the start is no schedule

healthy = Recipe(schedule="cosine")
sick = healthy.but(schedule_steps=40)


def signature(run: Run) -> Evidence | None:
    start, lr, late = asleep_from(run), run["lr"], quarters(run["loss"])[-1]
    share = 1 - start / len(run)
    if start < AWAKE or share < ASLEEP or not late > HIGH:
        return None
    return Evidence(
        seen=f"the learning rate falls from {lr.max():.2g} to {lr[start]:.1g} by step {start} of {len(run)} and stays "
        f"there, with the loss at {late:.2f}",
        usual="a rate that reaches 0 in the last 5 % of the steps",
        onset=start,
    )


failure = FailureMode(
    title="Schedule too short",
    healthy=healthy,
    sick=sick,
    cures={"a schedule as long as the run": sick.but(schedule_steps=400)},
    false_cures={
        "training three times as long": sick.but(steps=1200),
        "three times the learning rate": sick.but(lr=0.3),
    },
    signature=signature,
    harm=0.06,
    symptom="The loss falls well and then stops dead while it is still high. From there on the validation loss is the "
    "same number to the last digit.",
    mechanism="The schedule was made for another number of steps: for one epoch, for a smaller set, for the run before "
    "the batch size changed. Where it ends the learning rate is 0, and every further step is taken for nothing.",
    first_check="Plot the learning rate over the steps that were taken: it should reach 0 at the end, not before.",
    remedy="Give the schedule the number of steps of this run (epochs times batches per epoch, not epochs), and "
    "compute it, so that it changes when the run does. Training for longer changes nothing.",
    reference="Loshchilov and Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts (2017)",
    looks="stops too high",
    shows="lr",
    knobs=(
        Knob("schedule_steps", (20, 400)),
        Knob("schedule", ("constant", "cosine", "warmup_cosine", "one_cycle")),
        Knob("lr", (0.01, 0.3), log=True),
        Knob("steps", (100, 1000)),
    ),
    cifar10={"momentum": 0.0},  # with momentum, LR 0.1 is itself too high for these larger inputs
)
