"""An L1 penalty of 0.05 inside the loss: the optimizer shrinks the weights, and the labels hardly count."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import tested
from labkit.recording.run import Run
from labkit.recording.summaries import late_loss, matrix_layers, whole_norm
from labkit.training.recipe import Recipe

# What the reported loss has beside the loss of the same net on the probe, as a share of it, at the first step.
# Penalties that do no harm (L1 up to 5e-4): 0.05 to 0.44; L1 of 0.02 and more, L2 of 0.3 and more: 0.86 to 0.99. All
# four thresholds are ratios; measured on digits and photographs, with SGD and Adam.
DOMINATES = 0.8
PAID = 0.5  # reported loss at the end over its first value: the penalty was paid off. L1 0.05: 0.05 to 0.27
# Norm of all weights at the end over that at the start. Healthy runs: 1.07 to 3, with a harmless penalty 0.5 to 0.8; L1
# 0.05: 0.13 (SGD) and 0.02 (Adam), L2 of 1: 0.002.
SHRUNK = 0.4
# Loss on the probe at the end over its first value: constant outputs keep 1.00, L2 of 0.3 keeps 0.54. Healthy runs:
# 0.1, photographs 0.6, but their weights grow.
LEFT = 0.5
# By the tests on the probe, where the penalty is a part of every loss: that of perfect outputs over that at the end,
# and that with the inputs of other samples over the same. L1 in small programs: 0.88 to 0.97, and 1.00: the net ignores
# its inputs. Healthy programs: 0 to 0.1 (rankings 2), and 1.6 to 5,000.
UNAVOIDABLE, IGNORED = 0.5, 1.02
SMALLER = 0.9  # norm of all weights over that at the start: a penalty shrinks them

healthy = Recipe(steps=300)


def penalised_step(training, x, y, strength: float) -> None:
    """The plain step, with the sum of all absolute weights in the loss."""
    training.optimizer.zero_grad()
    penalty = sum(weight.abs().sum() for weight in training.model.parameters())
    loss = training.loss(x, y) + strength * penalty
    training.backward(loss)
    training.look(loss, x, y)
    training.clip()
    training.update()


def step_with_strong_penalty(training, x, y) -> None:
    """An L1 penalty of 0.05 on each of a hundred thousand weights: 40 times the cross entropy."""
    penalised_step(training, x, y, 0.05)


def step_with_weak_penalty(training, x, y) -> None:
    """An L1 penalty of 0.00005: at the start a twentieth of the loss."""
    penalised_step(training, x, y, 5e-5)


sick = healthy.but(step=step_with_strong_penalty)


def outweighs(run: Run) -> Evidence | None:
    """Would perfect outputs hardly lower the loss, and does the net ignore its inputs?"""
    tests = tested(run)
    truth, loss, other = (tests.get(name, np.nan) for name in ("truth", "loss", "other_inputs"))
    size = whole_norm(run, "weight_norm")
    if not (0 < UNAVOIDABLE * loss < truth < loss and other < IGNORED * loss) or size[-1] > SMALLER * size[0]:
        return None
    return Evidence(
        seen=f"perfect outputs would still have {truth / loss:.0%} of the loss of {loss:.3g}, and with the inputs of "
        f"other samples it is {other:.3g}: a term that does not depend on the outputs outweighs the rest",
        usual="0 to 10 %, and a loss that is many times higher with other inputs",
        onset=0,
        place="loss",
        confidence=0.93,
    )


def signature(run: Run) -> Evidence | None:
    return paid_off(run) or outweighs(run)


def paid_off(run: Run) -> Evidence | None:
    """Did the reported loss fall with the weights, while the loss on the probe did not?"""
    losses, size, fits = run["loss"], whole_norm(run, "weight_norm"), run["probe_loss"]
    (layers, names), late = matrix_layers(run, "weight_norm"), late_loss(run)
    if not np.isfinite([losses[0], fits[0], fits[-1], size[-1]]).all() or not (size[0] > 0 and fits[0] > 0):
        return None
    penalty = losses[0] - fits[0]
    if penalty < DOMINATES * losses[0] or not late < PAID * losses[0]:
        return None
    if size[-1] > SHRUNK * size[0] or fits[-1] < LEFT * fits[0]:
        return None
    with np.errstate(all="ignore"):
        place = names[int(np.nanargmin(layers[-1] / layers[0]))]
    return Evidence(
        seen=f"the reported loss fell from {losses[0]:.3g} to {late:.3g}, while the loss on the probe went from "
        f"{fits[0]:.2f} to {fits[-1]:.2f}: {penalty / losses[0]:.0%} of the first was a penalty, and the norm of all "
        f"weights fell from {size[0]:.3g} to {size[-1]:.2g}",
        usual="a penalty of at most 10 % of the loss, and weights that grow to 1.1 to 3 times their first norm",
        onset=0,
        place=place,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Penalty too strong",
    cures={
        "a penalty of 0.00005": sick.but(step=step_with_weak_penalty),
        "no penalty": sick.but(step="plain_step"),
    },
    false_cures={
        "a tenth of the learning rate: chance level": sick.but(lr=0.01),
        "a net four times as wide, with four times the penalty": sick.but(width=512),
        "Adam: chance level": sick.but(optimizer="adam", lr=0.003),
    },
    harm=0.7,
    symptom="The reported loss falls steeply, from 95 to 15, and looks like success. The accuracy stays at chance, and "
    "every image gets the same output.",
    mechanism="The penalty is summed over all weights and the cross entropy is a mean over images. At 0.05 the sum is "
    "40 times as large, so nearly the whole gradient points to weights of 0, where the labels have no influence.",
    formula=r"\nabla \left( \bar{\ell} + \lambda \sum_i |w_i| \right) \approx \lambda \, \mathrm{sign}(w)",
    first_check="Print the terms of the loss separately, at the first step and at the last.",
    remedy="Choose the factor so that the penalty is at most a tenth of the loss at the start. Report the terms "
    "separately, and compare runs by the loss without the penalty. Use the mean over the weights, or the optimizer's "
    "weight_decay, so that the factor does not depend on the size of the net.",
    reference="Goodfellow, Bengio, Courville, Deep Learning (2016), section 7.1",
    looks="stops too high",
    shows="weight_norm",
    knobs=(
        Knob("width", (16, 512), log=True),
        Knob("lr", (0.001, 0.3), log=True),
        Knob("optimizer", ("sgd", "adam")),
    ),
    also_causes=("weight_collapse", "dead_relu", "dead_relu_by_learning_rate", "vanishing_gradients"),
)
