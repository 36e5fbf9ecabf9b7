"""A weight decay with the wrong sign: it grows the weights instead of shrinking them, without limit."""

import numpy as np
import torch

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import left_over, unlearned
from labkit.recording.run import Run
from labkit.recording.summaries import fixed_loss, matrix_layers, total_norm
from labkit.training.recipe import Recipe

SHORTEST = 20  # steps; fewer are too short to measure growth
# Weight norm at the end over that in the middle of the run. Healthy runs 1.0 to 1.2, Adam at 0.03 1.3, gradients
# accumulated without zero_grad 2.6; a decay of the wrong sign 14, and 3 where it is weak.
GROWTH = 2.5
# Growth per step in logarithms, in four parts of the second half: slowest over fastest. Exponential growth:
# 0.98; linear growth 0.6; a jump after a corrupt batch 0.01; the escape from a saddle point 0.1 to 0.3.
STEADY = 0.8
# Adam makes every step equally long, and the norm grows linearly: at the end over the start and over the middle of the
# run. Small healthy programs of other tasks 1.1 to 2.4 and 1.04 to 1.35; a decay of the wrong sign 5.6 to 26 and 1.6 to
# 2.4; a learning rate 100 times too high 10 to 60 and 1.0 to 1.2.
GROWN, STILL = 4.0, 1.45
# ... and the slowest layer over the fastest. Sick runs 0.74 to 1; the escape from a saddle point 0.3.
ALIKE = 0.5
ENDLESS = 1e6  # the norm over that in the middle: then one layer is enough, such as a table that has its own optimizer
# Where the net is worse than a constant prediction at the end, and its layers need not be alike (frozen ones, tables,
# norms): the layer that grew most, at the end over the start and over the middle, and the largest early update as a
# share of its layer. A decay of the wrong sign 6 to 45, 1.4 to 2.2 and 0.005 to 0.1; a learning rate 100 times too high
# has updates of 0.5 and more; healthy programs grow 1.1 to 4 times, and learn; an actor beside a critic 6 and 1.2.
MOST, ON, GENTLE, WINDOW = 5.0, 1.25, 0.3, 10
RISEN = 1.2  # the last loss over the lowest: 2 to 50 as the weights grow, 1 where they grow towards large targets
HIGH = 0.5  # of chance level: the loss grows with the weights, to 7 times chance level and more


class WrongSignSGD(torch.optim.SGD):
    """SGD that subtracts the decay term from the gradient instead of adding it."""

    def __init__(self, parameters, decay: float, **options):
        super().__init__(parameters, **options)
        self.decay = decay

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    weight.grad.sub_(weight, alpha=self.decay)
        return super().step(closure)


def sgd_with_wrong_sign_decay(model, recipe):
    """SGD that pushes the weights away from 0 instead of pulling them towards it."""
    return WrongSignSGD(model.parameters(), recipe.weight_decay, lr=recipe.lr, momentum=recipe.momentum)


# With momentum, which multiplies the growth tenfold: at 0.15 % per step 400 steps are too few to see where it leads.
healthy = Recipe(lr=0.03, momentum=0.9, weight_decay=0.05)
sick = healthy.but(optimizer=sgd_with_wrong_sign_decay)


def falling(run: Run) -> bool:
    """Is the loss on the same samples near its lowest at the end? Large targets make the weights grow too."""
    losses = fixed_loss(run)
    return bool(len(losses) and losses[-1] < RISEN * losses.min())


def without_limit(run: Run) -> Evidence | None:
    """Does a layer still grow at the end, and the net is worse than a constant prediction, after a gentle start?"""
    layers, names = matrix_layers(run, "weight_norm")
    layers = layers[np.isfinite(layers).all(axis=1)]
    if len(layers) < SHORTEST or left_over(run) < 1 or not unlearned(run, 1.0) or falling(run):
        return None
    with np.errstate(all="ignore"):
        total, late = (np.nan_to_num(layers[-1] / layers[row]) for row in (0, len(layers) // 2))
    place = int(np.argmax(total))
    if not (total[place] > MOST and late[place] > ON and np.nanmax(run["update_ratio"][:WINDOW]) < GENTLE):
        return None
    return Evidence(
        seen=f"the norm of {names[place]} grew to {total[place]:.3g} times its first value, to {late[place]:.2g} times "
        "in the second half alone, and the loss with it, though the first updates were small",
        usual="a growth of 1.2 to 4 times that slows down",
        onset=int(np.argmax(layers[:, place] > 2 * layers[0, place])),
        place=names[place],
    )


def signature(run: Run) -> Evidence | None:
    return in_step(run) or without_limit(run)


def in_step(run: Run) -> Evidence | None:
    """Do all layers grow alike, exponentially or linearly, without slowing down?"""
    layers, names = matrix_layers(run, "weight_norm")
    layers = layers[np.isfinite(total_norm(layers))]
    size = total_norm(layers)
    if len(size) < SHORTEST or not (layers > 0).all():
        return None
    marks = np.linspace(len(size) // 2, len(size) - 1, 5).astype(int)
    paces = np.diff(np.log(size[marks])) / np.diff(marks)
    growth = np.log(layers[-1] / layers[marks[0]])
    exponential = size[-1] > GROWTH * size[marks[0]] and paces.min() > STEADY * paces.max()
    added = np.diff(size[marks]) / np.diff(marks)
    linear = size[-1] > GROWN * size[0] and size[-1] > STILL * size[marks[0]] and added.min() > STEADY * added.max()
    alike = growth.min() > ALIKE * growth.max() or (exponential and size[-1] > ENDLESS * size[marks[0]])
    if not (exponential or linear) or not alike or not unlearned(run, HIGH):
        return None
    return Evidence(
        seen=f"the norm of all weights grew from {size[0]:.3g} to {size[-1]:.3g}, without slowing down: by "
        f"{np.expm1(paces[-1]):.1%} per step at the end",
        usual="a growth of 1.2 to 3 times that slows down: below 0.1 % per step at the end",
        onset=int(np.argmax(size > 2 * size[0])),
        place=names[int(np.argmax(layers[-1] / layers[0]))],
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Runaway weights",
    cures={
        "weight decay with the correct sign": sick.but(optimizer="sgd"),
        "no weight decay": sick.but(weight_decay=0.0),
    },
    false_cures={"clipping the gradient norm to 1: the decay is added after it": sick.but(clip=1.0)},
    harm=0.0,
    costs="The loss: in validation it ends at 370 to 390, where the twin has 0.36. Accuracy does not fall on digits, "
    "because a ReLU net that grows evenly makes the same predictions, with more and more confidence.",
    symptom="The loss falls at first, then rises without end, while accuracy hardly changes. The weight norm is a "
    "straight line upwards on a log axis.",
    mechanism="Each step adds a fixed share of every weight to itself, which is exponential growth. The net becomes "
    "overconfident, its mistakes cost more and more, and gradients no longer matter.",
    formula=r"w_{t+1} = (1 + c) \, w_t - \eta g_t \quad \Rightarrow \quad w \sim (1 + c)^t",
    first_check="The weight norm over time, on a log axis. Healthy norms grow too, but slow down.",
    remedy="Check the sign of hand-written decay or penalty terms: decay times weight is added to the gradient.",
    reference="Krogh and Hertz, A Simple Weight Decay Can Improve Generalization (1991)",
    looks="jumps",
    shows="weight_norm",
    knobs=(
        Knob("weight_decay", (0.0, 0.05)),
        Knob("lr", (0.01, 0.3), log=True),
        Knob("momentum", (0.0, 0.9)),
        Knob("steps", (100, 600)),
    ),
    also_causes=("too_few_samples", "too_much_dropout"),
)
