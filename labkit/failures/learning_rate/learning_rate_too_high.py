"""A learning rate of 10: the first updates blow up the weights, and the loss with them."""

import numpy as np

from labkit.failures.mode import Branch, ClassicCurve, Evidence, FailureMode, Knob
from labkit.failures.signs import broken_loss
from labkit.recording.run import Run
from labkit.recording.summaries import chance_loss, late_loss
from labkit.training.recipe import Recipe

# One update as large as half of the weights it changes. Healthy runs here stay below 0.2 (Adam's first step on a small
# layer; 0.49 at LR 0.01, with a loss that hardly rises); LR 10 gives 1.4 to 3.6 in the first step, LR 1 1 to 5
# within six.
VIOLENT = 0.5
WINDOW = 10  # steps: later the ratio looks small again, because the weights have blown up
RISE = 3.0  # the loss over its first value; healthy: at most 1.7, but see BACK; LR 10: 50 (clipped) to 1e32
# The loss of the last quarter over its first value, or over chance level if it began above that. A high learning rate
# may move the net into a wider valley where it learns: with squared error and LR 1 the second loss was 4 to 5 times
# the first, the fourth below it, and 0.11 to 0.13 were left at the end. Sick runs keep 1.1 or more, or NaN; other
# faults that cause the same jump (too large a head, raw inputs) 0.6 or more.
BACK = 0.3

healthy = Recipe(depth=3)
sick = healthy.but(lr=10.0)


def signature(run: Run) -> Evidence | None:
    ratio = run["update_ratio"].max(axis=1)[:WINDOW]
    violent = np.flatnonzero(ratio > VIOLENT)
    losses = run["loss"]
    if not len(violent) or not np.isfinite(losses[0]):
        return None
    after = losses[violent[0] :]
    peak = np.max(after, initial=losses[0], where=np.isfinite(after))
    # A loss that never rose and then is NaN for finite outputs is itself the bug.
    if peak < RISE * losses[0] and (np.isfinite(after).all() or broken_loss(run)):
        return None
    chance = chance_loss(run)
    usual = np.fmin(losses[0], chance if chance > 0 else np.nan)  # losses that may be below 0 have no such level
    if np.isfinite(after).all() and late_loss(run) < BACK * usual:
        return None
    step = int(violent[0])
    return Evidence(
        seen=f"step {step} changed a layer by {ratio[step]:.2g} times its own size; "
        f"the loss went from {losses[0]:.3g} to {peak:.3g}" + ("" if np.isfinite(after).all() else " and then to NaN"),
        usual="updates of 0.001 to 0.2 of a layer, and a loss that does not rise",
        onset=step,
        place=run.layers[int(np.argmax(run["update_ratio"][step]))],
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Learning rate too high",
    cures={"a learning rate of 0.1": sick.but(lr=0.1)},
    false_cures={
        "a tenth of it: LR 1": sick.but(lr=1.0),
        "clipping the gradient norm to 1": sick.but(clip=1.0),
    },
    harm=0.9,
    symptom="The loss jumps by orders of magnitude within ten steps and becomes NaN; or it returns to "
    "chance level and stays there, because the jump killed every unit.",
    mechanism="A step longer than the valley is wide lands higher on the other side, where the gradient is "
    "larger and the next step longer still.",
    formula=r"L(\theta - \eta g) \approx L - \eta \lVert g \rVert^2 + \tfrac{1}{2} \eta^2 \, g^\top H g > L \quad "
    r"\text{if } \eta > \frac{2 \lVert g \rVert^2}{g^\top H g}",
    first_check="The ratio of update to weight in the first ten steps: above 0.5, the learning rate is too high.",
    remedy="Lower the learning rate by factors of ten until the loss falls from the start, or use a "
    "range test. A tenth is often not enough, and clipping only hides the NaN.",
    reference="Goodfellow, Bengio, Courville, Deep Learning (2016), sections 8.3 and 11.4",
    looks="not finite",
    shows="update_ratio",
    knobs=(
        Knob("lr", (1e-3, 10.0), log=True),
        Knob("depth", (2, 6)),
        Knob("momentum", (0.0, 0.9)),
        Knob("optimizer", ("sgd", "adam")),
        Knob("clip", (None, 1.0)),
    ),
    also_causes=(
        "dead_relu",
        "vanishing_gradients",
        "dead_relu_by_learning_rate",
        "learning_rate_too_low",  # of the few units that are left alive, the updates are tiny
    ),
    faces={"two_layers": {"depth": 2}},  # no NaN: a jump, then dead units at chance level
    headline=1,
    symptom_tree=(
        Branch("not finite", "Where does it first appear?", "after updates larger than the weights", place=2),
        Branch("jumps", "How large was the first update?", "over half of the weights"),
    ),
    classic=ClassicCurve(1, "jumps"),
)
