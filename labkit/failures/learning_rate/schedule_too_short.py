"""A cosine schedule of 40 steps in a run of 400: the learning rate is 0 for nine tenths of the run."""

from labkit.failures.mode import ClassicCurve, Evidence, FailureMode, Knob
from labkit.failures.signs import lr_decayed_from
from labkit.recording.run import Run
from labkit.recording.summaries import quarters
from labkit.training.recipe import Recipe

# Share of the run below a thousandth of the peak learning rate. A cosine as long as the run: 2 %; this one: 90 %.
ASLEEP = 0.3
HIGH = 0.2  # the loss in the last quarter, here 0.59 to 0.63; below, the run was done before its schedule was
AWAKE = 2  # steps of learning before; a learning rate of 0 from the start is not a schedule

healthy = Recipe(schedule="cosine")
sick = healthy.but(schedule_steps=40)


def signature(run: Run) -> Evidence | None:
    start, lr, late = lr_decayed_from(run), run["lr"], quarters(run["loss"])[-1]
    share = 1 - start / len(run)
    if start < AWAKE or share < ASLEEP or not late > HIGH:
        return None
    return Evidence(
        seen=f"the learning rate falls from {lr.max():.2g} to {lr[start]:.1g} by step {start} of {len(run)} and stays "
        f"there, with the loss at {late:.2f}",
        usual="a learning rate that reaches 0 in the last 5 % of the steps",
        onset=start,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Schedule too short",
    cures={"a schedule as long as the run": sick.but(schedule_steps=400)},
    false_cures={
        "training three times as long": sick.but(steps=1200),
        "three times the learning rate": sick.but(lr=0.3),
    },
    harm=0.06,
    symptom="The loss falls well, then stalls while it is still high. From then on the validation loss is the same "
    "to the last digit.",
    mechanism="The schedule was made for another number of steps: for one epoch, a smaller data set or "
    "another batch size. Once it ends, the learning rate is 0, and further steps change nothing.",
    formula=r"\eta_t = \tfrac{1}{2} \eta_0 \left(1 + \cos \frac{\pi t}{T}\right), \qquad t > T \Rightarrow \eta_t = 0",
    first_check="Plot the learning rate over the steps: it should reach 0 at the end, not before.",
    remedy="Compute the length of the schedule from the run (epochs times batches per epoch, not epochs), so that it "
    "changes when the run does. Training longer changes nothing.",
    reference="Loshchilov and Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts (2017)",
    looks="stops too high",
    shows="lr",
    also_causes=("learning_rate_too_low",),
    knobs=(
        Knob("schedule_steps", (20, 400)),
        Knob("schedule", ("constant", "cosine", "warmup_cosine", "one_cycle")),
        Knob("lr", (0.01, 0.3), log=True),
        Knob("steps", (100, 1000)),
    ),
    classic=ClassicCurve(7, "stalls early"),
)
