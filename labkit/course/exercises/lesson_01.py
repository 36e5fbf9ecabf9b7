"""Exercises of lesson 01, what healthy looks like; its two nets, its sealed sheets, and its runs over five seeds.

`python -m labkit.course.exercises.lesson_01` trains the runs over five seeds again and writes them beside this file.
"""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from labkit.course.grading import Student, build, diagnose, expect, expect_close, explain, number, short
from labkit.course.loops import images, loop
from labkit.course.predictions import prediction
from labkit.diagnosis.report import exam
from labkit.failures.catalogue import FAILURES
from labkit.recording.files import written_whole
from labkit.recording.run import Run
from labkit.training.loop import Training, train
from labkit.training.recipe import Recipe

# --- the two nets of the riddle ---

RIDDLE = {
    "A": FAILURES["partly_dead_layer"].sick,
    "B": FAILURES["partly_dead_layer"].healthy.but(lr=0.001),  # so that the two curves fall alike
}


def two_nets(steps: int = 150) -> tuple[dict[str, nn.Module], dict[str, Run]]:
    """Two trained nets of three layers and their runs; in one of them nine tenths of the first layer are dead."""
    trainings = {name: Training(recipe.but(steps=steps)) for name, recipe in RIDDLE.items()}
    runs = {name: each.run(progress=False) for name, each in trainings.items()}
    return {name: each.model for name, each in trainings.items()}, runs


# --- what helps small batches, over five seeds ---

REMEDIES = Path(__file__).with_name("lesson_01_remedies.json")


def small_batch_recipes() -> dict[str, Recipe]:
    """The healthy baseline, batches of 4, and five attempts to help them."""
    mode = FAILURES["batch_too_small"]
    cosine, accumulated = list(mode.cures.values())[1:]
    return {
        "healthy": mode.healthy,
        "sick": mode.sick,
        "clipped to norm 1": mode.sick.but(clip=1.0),
        "8 × as long": mode.sick.but(steps=3200),
        "8 × as long, cosine": cosine,
        "8 × as long, 8 batches per update": accumulated,
    }


def measure_remedies(seeds=range(5)) -> dict[str, list[float]]:
    """Validation accuracy at the end of each, one number per seed."""
    recipes = small_batch_recipes().items()
    return {
        name: [round(train(recipe.but(seed=seed), progress=False).accuracy, 4) for seed in seeds]
        for name, recipe in recipes
    }


def remedies() -> dict[str, list[float]]:
    """What `measure_remedies` found, as stored beside this file."""
    return json.loads(REMEDIES.read_text(encoding="utf-8"))


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


# --- 01.4: a loop with batches of 4 ---


def small_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


def sgd(weights) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=0.2)


TOGETHER, EPOCHS = 8, 3


def train_on_small_batches(model, optimizer, loader) -> None:
    """The reference: one update for the mean gradient of eight batches."""
    model.train()
    optimizer.zero_grad()
    for _ in range(EPOCHS):
        for number_of_batch, (x, y) in enumerate(loader, start=1):
            (cross_entropy(model(x), y) / TOGETHER).backward()
            if number_of_batch % TOGETHER == 0:
                optimizer.step()
                optimizer.zero_grad()


# With these batches of 4 at LR 0.2 the plain loop ends at 44 to 58 %, and sums instead of means at 10 to 16 %; means of
# 4 batches reach 87 to 90 %, of 8 91 to 92 %, of 16 87 to 90 % (four seeds).
SMALL_BATCHES, BELOW = images(small_net, sgd, batch_size=4), 0.06

# --- 01.6: a sealed run ---


def sealed() -> Run:
    """A run to be diagnosed, without its recipe."""
    run = train(FAILURES["head_init_too_large"].sick.but(seed=5, steps=150), progress=False)
    return dataclasses.replace(run, recipe={})


# --- 01.7: spikes ---

NOISY = Recipe(batch_size=16, lr=0.03, evaluate_every=0)
PHOTOGRAPHS = Recipe(data="cifar10", steps=300, evaluate_every=0)


def spiked(losses: np.ndarray, spikes: dict[int, float], length: int = 1) -> np.ndarray:
    """The same losses, multiplied by a factor from a step on, which fades within `length` steps."""
    losses = losses.astype(float)
    for step, factor in spikes.items():
        for later in range(length):
            losses[step + later] *= factor ** (1 - later / length)
    return losses


def judge_spikes(mine: Student) -> str:
    def expect_spikes(losses, right: list[int], what: str, otherwise: str) -> None:
        seen = mine(losses)
        expect(isinstance(seen, list | tuple | np.ndarray), f"Expected a list of steps, got {short(seen)}.")
        seen = [int(number(step, "a step")) for step in seen]
        expect(seen == right, f"{what}: expected {right}, got {short(seen)}. {otherwise}")

    expect_spikes(np.full(200, 2.3), [], "A loss that does not move at all", "Without any noise, is your threshold 0?")
    noisy, photographs = (train(recipe.but(seed=11), progress=False)["loss"] for recipe in (NOISY, PHOTOGRAPHS))
    ordinary = "Measure the noise of the steps before, and compare with that."
    expect_spikes(noisy, [], "A healthy run with batches of 16, where single losses are 3 times the usual", ordinary)
    expect_spikes(photographs, [], "A healthy run on photographs", ordinary)
    small = "The noise of this run is a few percent, so twice the usual loss is an event."
    expect_spikes(spiked(photographs, {200: 2.0}), [200], "Photographs, twice the usual loss at step 200", small)
    expect_spikes(spiked(noisy, {250: 200.0}), [250], "Batches of 16, 200 times the loss at step 250", ordinary)
    once = "Report the step at which it begins, and not every step of it."
    expect_spikes(spiked(photographs, {220: 8.0}, 6), [220], "A spike that takes six steps to fade", once)
    again = "After the first spike the noise must not be measured from the spike itself: use a median."
    expect_spikes(spiked(photographs, {150: 50.0, 200: 3.0}), [150, 200], "Two spikes, the first much larger", again)
    return "It measures the noise of each run first, and reports each spike once."


# --- 01.5 is evidence from sheets ---

NOT_THIS = "that row is inside its range."

predictions = (
    prediction(
        "01.0",
        correct=2,
        why="The first steps may raise the norm, and a net that is nearly done still gets a different gradient from "
        "every batch. A norm that falls smoothly with the loss is the exception.",
        wrong={
            1: "The loss falls to a tenth, the norm does not: what is left at the end is mostly noise.",
            3: "It may rise in the first steps, but not by powers of ten, and it comes back.",
        },
    ),
    prediction(
        "01.0b",
        correct=1,
        why="The variance is multiplied by 4, and the eye sees its root, the standard deviation.",
        wrong={2: "4 is the factor of the variance."},
    ),
)

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
    loop(
        "01.4",
        "Make small batches converge",
        SMALL_BATCHES,
        train_on_small_batches,
        free_of=("batch_too_small",),
        margin=BELOW,
        points=3,
        hints=(
            "Gradients add up in .grad until zero_grad() clears them. You need not update after every batch.",
            "Update after every eighth batch. What is then in .grad: the mean of eight gradients, or their sum?",
            "Divide the loss by 8 before backward(); step() and zero_grad() only after every eighth batch.",
        ),
    ),
    explain(
        "01.5",
        "Which row is out of its range?",
        modes=("learning_rate_too_low", "vanishing_gradients", "partly_dead_layer"),
        points=2,
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
    diagnose(
        "01.6",
        "What is wrong with this run?",
        failure="head_init_too_large",
        place="layer2",
        evidence={"loss": (30, 60), "weight_norm": (150, 220)},
        wrong={
            "learning_rate_too_high": "the first loss, before any step, is already far above ln 10. No learning rate "
            "can do that.",
            "init_too_large": "not all layers: compare the first weight norm of each with that of the healthy run.",
            "inputs_not_normalised": "then the first layer would be the one to look at. Compare the weight norms.",
            "runaway_weights": "the weights are large before the first step.",
        },
        because="Step 0 tells everything: a loss of 41 where ln 10 is 2.3, and a last layer a hundred times as large "
        "as a healthy one. The jump that follows is a consequence: a gradient of norm 300 at a learning rate of 0.1.",
        points=2,
        hints=(
            "Start at step 0, before anything was updated. Which instrument is already far from a healthy run?",
            "run['weight_norm'][0] has one number per layer, in the order of run.layers. So has the healthy run.",
            "labkit.FAILURES has names that begin with `head_`. The value is that of your evidence at step 0.",
        ),
    ),
    build(
        "01.7",
        "Optional: a spike detector",
        judge_spikes,
        example="spikes(losses)",
        points=0,
        hints=(
            "No fixed factor does it: with batches of 16 a healthy loss jumps to 4 times the usual, and on photographs "
            "twice the usual is an event.",
            "Take the logarithm. The median of the last 30 values is the usual one, and the median distance from it "
            "says how noisy they are.",
            "1.48 times that median distance is about a standard deviation. Healthy steps stay within 5 of them; skip "
            "a step when the one before was a spike too.",
        ),
    ),
)


if __name__ == "__main__":
    with written_whole(REMEDIES) as stream:
        stream.write((json.dumps(measure_remedies(), ensure_ascii=False) + "\n").encode())
