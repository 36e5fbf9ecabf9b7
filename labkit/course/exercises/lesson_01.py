"""Exercises of lesson 01, what healthy looks like; and its sealed exam sheets."""

import math

import numpy as np
import torch
from torch import nn

from labkit.course.grading import Student, build, cure, expect, expect_close, explain, number, short
from labkit.diagnosis.report import exam
from labkit.failures.catalogue import FAILURES
from labkit.training.loop import train
from labkit.training.recipe import Recipe

# --- the sealed sheets of 01.5 ---

NONE, UPDATES, RATIO, DEAD = "none", "update / weight", "first / last layer", "dead units"
SEALED = {
    "A": Recipe(depth=3, init="he", optimizer="adam", lr=1e-3),
    "B": FAILURES["learning_rate_too_low"].sick,
    "C": FAILURES["vanishing_gradients"].sick,
    "D": FAILURES["partly_dead_layer"].sick,
}
STEPS = 150  # enough for every sign to show, and for the healthy net to learn


def sheets() -> dict[str, str]:
    """Four exam sheets without the verdict. The student finds the row that is out of its range."""
    runs = {letter: train(recipe.but(steps=STEPS), progress=False) for letter, recipe in SEALED.items()}
    return {letter: exam(run).partition("\n\n")[0] for letter, run in runs.items()}


# --- 01.1 ---


def judge_chance_loss(mine: Student) -> str:
    seen = number(mine(10), "chance_loss(10)")
    slips = {
        math.log2(10): "3.32 is log2(10), in bits. Cross-entropy in PyTorch is in nats: the natural logarithm.",
        1.0: "1 is log10(10). Cross-entropy uses the natural logarithm.",
        0.1: "0.1 is the probability of the correct class. The loss is minus the logarithm of it.",
        -math.log(10): "Correct except for the sign: a loss is positive, minus the logarithm of a probability below 1.",
    }
    for slip, words in slips.items():
        expect(abs(seen - slip) > 1e-3, words)
    for classes in (10, 2, 1000):
        expect_close(number(mine(classes), "the loss"), math.log(classes), f"{classes} classes", tolerance=1e-4)
    expect_close(number(mine(1), "the loss"), 0.0, "One class: nothing to guess")
    return "ln(classes), from 2 classes to 1000."


# --- 01.2 ---


def net_with_gradients() -> nn.Module:
    """Gradients set by hand: norms 3 and 4 in one layer, 12 in the next, whose bias is frozen, as is the whole stem."""
    net = nn.Sequential()
    net.add_module("stem", nn.Linear(3, 3).requires_grad_(False))
    net.add_module("body", nn.Sequential(nn.Linear(3, 2), nn.ReLU()))
    net.add_module("head", nn.Linear(2, 2))
    first, last = net.body[0], net.head
    first.weight.grad, first.bias.grad = torch.zeros(2, 3), torch.tensor([0.0, -4.0])
    first.weight.grad[1, 2] = 3.0
    last.weight.grad = torch.full((2, 2), -6.0)
    last.bias.requires_grad_(False)
    return net


def judge_gradient_norms(mine: Student) -> str:
    net = net_with_gradients()
    before = [None if weight.grad is None else weight.grad.clone() for weight in net.parameters()]
    seen = mine.in_place(net)
    expect(isinstance(seen, dict), f"Expected a dict, name of the layer -> norm, got {short(seen)}.")
    names = {"stem", "body.0", "head", "total"}
    layers = "The layers are 'stem' (frozen, so it counts as 0), 'body.0' and 'head', and there is 'total'"
    expect(set(seen) == names, f"{layers}; your keys: {list(seen)}.")
    seen = {name: number(value, f"the norm of {name!r}") for name, value in seen.items()}
    hand = "Weight and bias of 'body.0' have gradients of norm 3 and 4"
    expect(seen["body.0"] != 7, f"{hand}. You added them to get 7; the combined norm is the root of 9 + 16.")
    expect(seen["body.0"] != 3, f"{hand}. You got 3: where is the bias?")
    expect_close(seen["body.0"], 5.0, hand)
    expect_close(seen["stem"], 0.0, "'stem' is frozen, and has no gradient at all")
    expect_close(seen["head"], 12.0, "'head' has a weight gradient of four times -6, and a frozen bias")
    expect(seen["total"] != 17, "Layers of norm 5 and 12: you added them to get 17. Squares add up, norms do not.")
    expect_close(seen["total"], 13.0, "Layers of norm 5 and 12, together")
    after = [weight.grad for weight in net.parameters()]
    same = all(
        old is new if old is None or new is None else torch.equal(old, new)
        for old, new in zip(before, after, strict=True)
    )
    expect(same, "Correct numbers, but the gradients have changed. A logger must only read them.")
    return "Every layer, frozen ones included, and squares that add up."


# --- 01.3 ---


def judge_expected_noise(mine: Student) -> str:
    losses = 3 + 2 * np.tile([-1.0, 1.0], 5000)  # a standard deviation of 2
    seen = number(mine(losses, 25), "the noise")
    slips = {
        4 / 25: "0.16 is the variance of the mean. The noise is its square root, the standard deviation.",
        2 / 25: "0.08 is the standard deviation divided by 25. It is the variance that is divided by the batch size.",
        2.0: "2 is the standard deviation of single samples. A mean of 25 of them is less noisy.",
    }
    for slip, words in slips.items():
        expect(abs(seen - slip) > 1e-3, f"Per-sample losses with standard deviation 2, batches of 25. {words}")
    expect_close(seen, 0.4, "Per-sample losses with standard deviation 2, batches of 25", tolerance=1e-3)
    expect_close(mine(losses, 100), 0.2, "The same losses, batches of 100: a quarter of the variance", tolerance=1e-3)
    expect_close(mine(losses + 10, 100), 0.2, "All losses higher by 10: no more noise", tolerance=1e-3)
    skewed = np.random.default_rng(0).exponential(1.5, 20_000)
    means = skewed[np.random.default_rng(1).integers(20_000, size=(5000, 64))].mean(1)
    expect_close(
        mine(skewed, 64), means.std(), "The standard deviation measured over 5000 random batches of 64", tolerance=0.02
    )
    return "It predicts what 5000 random batches measure."


# --- 01.4 is a cure, 01.5 the evidence ---

NOT_THIS = "that row is inside its range."

exercises = (
    build(
        "01.1",
        "The loss of an untrained net",
        judge_chance_loss,
        example="chance_loss(classes)",
        hints=(
            "It gives every class the same probability. Which one does the correct class get?",
            "Cross-entropy is minus the natural logarithm of that probability.",
        ),
    ),
    build(
        "01.2",
        "A gradient logger",
        judge_gradient_norms,
        example="gradient_norms(net)",
        points=3,
        hints=(
            "Go through net.named_parameters(). Sum the squares first, and take roots at the very end.",
            "'head.weight'.rpartition('.')[0] is 'head'. A weight whose .grad is None adds 0.",
            "squares[layer] = squares.get(layer, 0) + weight.grad.square().sum(); 'total' is the root of all of them.",
        ),
    ),
    build(
        "01.3",
        "How noisy is a batch loss?",
        judge_expected_noise,
        example="expected_noise(losses, batch_size)",
        points=2,
        hints=(
            "The variance of a mean of B independent numbers is their variance divided by B.",
            "The noise is a standard deviation, in the units of the loss: the square root of a variance.",
        ),
    ),
    cure(
        "01.4",
        "Make small batches converge",
        "batch_too_small",
        keep=("batch_size",),
        seeds=(11,),
        points=3,
        hints=(
            "What counts is learning rate / batch size. The batch size has to stay; what is left?",
            "A lower learning rate is less noisy, but slow, and 400 batches of 4 are few images. Train longer, and "
            "start with a higher learning rate than you end with.",
            "Eight times as many steps, and a decay to 0: look at the entries `steps` and `schedule`.",
        ),
    ),
    explain(
        "01.5",
        "Which row is out of its range?",
        modes=("learning_rate_too_low", "vanishing_gradients", "partly_dead_layer"),
        points=4,
        right={"A": NONE, "B": UPDATES, "C": RATIO, "D": DEAD},
        because="A is healthy: a first loss above ln 10 is normal for He init. B has the gradients of a healthy run, "
        "but its updates are tiny. In C the gradient vanishes on its way to the first layer. D learns nearly as well "
        "as A, with a tenth of one layer alive.",
        wrong={
            "A": dict.fromkeys((UPDATES, RATIO, DEAD), NOT_THIS + " Compare each number with its range."),
            "B": {
                NONE: "its loss has not moved. Which number is far too small?",
                RATIO: NOT_THIS + " The gradients reach the first layer.",
                DEAD: NOT_THIS + " No unit is dead.",
            },
            "C": {
                NONE: "its loss has not moved. Which number is far too small?",
                UPDATES: "that row shows its most active layer, and is inside the range. What about the first layer?",
                DEAD: NOT_THIS + " The output of a sigmoid is never 0.",
            },
            "D": {
                NONE: "its loss is good, but one row is far outside its range. Read to the end of the sheet.",
                UPDATES: NOT_THIS,
                RATIO: NOT_THIS,
            },
        },
        hints=(
            "The ranges are in parentheses. Compare powers of ten, not digits.",
            "Two sheets have a loss that never moved, for two different reasons.",
            "A good loss proves nothing: one of the two that learned is healthy, the other is not.",
        ),
    ),
)
