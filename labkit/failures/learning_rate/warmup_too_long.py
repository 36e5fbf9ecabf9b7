"""A warm-up of 4,000 steps in a run of 400: the learning rate is still rising when the run ends."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.recording.summaries import quarters
from labkit.training.recipe import Recipe

GROWTH = 3.0  # the last learning rate over the first; constant: 1, a warm-up over the whole run: its length
SAME = 0.01  # how much the increase may differ from step to step; in a range test it grows with the learning rate
STEPS = 20  # anything shorter may be the start of a longer run
WHOLE = 0.9  # of the planned steps; a run that was stopped during its warm-up does not count
HIGH = 0.2  # the loss in the last quarter; here 0.48 to 0.5, with a warm-up of 40 steps 0.14

healthy = Recipe(schedule="warmup_cosine", lr=0.2)
sick = healthy.but(warmup=4000)


def signature(run: Run) -> Evidence | None:
    lr, late = run["lr"], quarters(run["loss"])[-1]
    if len(run) < max(STEPS, WHOLE * run.facts.get("planned_steps", 0)) or not late > HIGH:
        return None
    rises = np.diff(lr)
    rise = float(np.median(rises))
    if not rise > 0 or lr[-1] < GROWTH * lr[0] or np.abs(rises - rise).max() > SAME * rise:
        return None
    return Evidence(
        seen=f"the learning rate rises from {lr[0]:.1g} in a straight line to {lr[-1]:.2g} at the last of {len(run)} "
        f"steps, with the loss at {late:.2f}",
        usual="a rise over the first 1 to 10 % of the steps",
        onset=0,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Warm-up too long",
    cures={
        "a warm-up of a tenth of the run": sick.but(warmup=40),
        "no warm-up: cosine decay alone": sick.but(schedule="cosine"),
    },
    false_cures={"half as long, 2,000 steps: 89 %, and still rising": sick.but(warmup=2000)},
    harm=0.04,
    symptom="The loss falls slowly at first, faster later, and is still falling at the end, as if the run had been "
    "stopped too early.",
    mechanism="The warm-up is given in steps and was copied from a recipe with a hundred times as many. At the last "
    "step the learning rate is a tenth of its target, and on average a twentieth.",
    formula=r"\eta_t = \eta \, \frac{t}{t_{\text{warm-up}}}, \qquad t_{\max} = \tfrac{1}{10} \, t_{\text{warm-up}}",
    first_check="Where is the highest learning rate of the run? If it is at the last step, the warm-up never ended.",
    remedy="Set the warm-up as a share of the run: 1 to 10 % of its steps.",
    reference="Vaswani et al., Attention Is All You Need (2017), section 5.3: 4,000 warm-up steps, of 100,000",
    looks="stops too high",
    shows="lr",
    costs="five points of accuracy, and a loss three times as high as with a warm-up that ends",
    knobs=(
        Knob("warmup", (0, 4000)),
        Knob("schedule", ("constant", "cosine", "warmup_cosine")),
        Knob("lr", (0.01, 0.5), log=True),
        Knob("steps", (100, 1000)),
    ),
)
