"""Exercises of lesson 06, dead and saturated units; and its sealed patient."""

import copy
import math

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from labkit.course.grading import Student, build, changed_tensors, cure, diagnose, expect, expect_close
from labkit.course.loops import Outcome, Setting, images, loop
from labkit.course.predictions import prediction
from labkit.failures.catalogue import FAILURES
from labkit.recording.run import Run
from labkit.tools.dead_units import dead_units
from labkit.training.loop import train

# --- the sealed patient of 06.5: a loss that falls while a layer is dead ---


def patient() -> Run:
    """One run whose loss falls. The student finds out what is wrong with it."""
    return train(FAILURES["dead_branch"].sick.but(steps=200, seed=5), progress=False)


# --- 06.1 ---


def judge_dead_share(mine: Student) -> str:
    quarter = torch.tensor([[0.0, 1.0, 0.0, 2.0], [0.0, 0.0, 0.0, 1.0], [0.0, 3.0, 0.5, 0.0]])
    seen = mine(quarter)
    zeros = float((quarter == 0).float().mean())
    if abs(float(seen) - zeros) < 1e-6:
        expect(False, f"{zeros:.3g} is the share of zeros. A unit is dead when its whole column is zero.")
    expect_close(seen, 0.25, "One column of four is all zeros")
    late = torch.zeros(300, 2)
    late[-1, 0] = 0.1
    expect_close(mine(late), 0.5, "One unit fires for the last of 300 samples only, the other never")
    expect_close(mine(-torch.ones(5, 3)), 0.0, "Outputs of -1 (as from a leaky ReLU) are not dead")
    expect_close(mine(torch.zeros(4, 6)), 1.0, "No unit fires")
    faint = torch.tensor([[1e-7, 1.0], [-1e-7, 0.0]])
    expect_close(mine(faint), 0.5, "Outputs of 1e-7 count as zero: at most 1e-6 in size")
    return "It tells dead units from rarely active and from negative ones."


# --- 06.2 ---


def net_with_dead_units() -> tuple[nn.Module, torch.Tensor]:
    """Two ReLU layers with dead units, batch norm and dropout between them; unit 5 fires for one image."""
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(
        nn.Linear(8, 6), nn.ReLU(), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)
    )
    with torch.no_grad():
        for weight in net.parameters():
            weight.copy_(torch.rand(weight.shape, generator=generator))
        net[0].bias[[1, 4]] = -100.0
        net[4].bias[2] = -100.0
        net[0].weight[5], net[0].bias[5] = torch.eye(8)[0], -1.5  # fires only where the first entry is above 1.5
    x = torch.rand(900, 8, generator=generator)
    x[-1, 0] = 2.0
    return net, x


def judge_find_dead(mine: Student) -> str:
    net, x = net_with_dead_units()
    before = copy.deepcopy(net.state_dict())
    found = mine.in_place(net, x.clone())
    expect(isinstance(found, dict), f"Expected a dict, name of the ReLU -> numbers of its dead units, got {found!r}.")
    expect(set(found) == {"1", "5"}, f"The net has ReLUs named '1' and '5'; your dict has {sorted(found)}.")
    first = sorted(int(number) for number in found["1"])
    expect(5 not in first, "Unit 5 of '1' fires for the last of 900 images. Look at all of them.")
    expect(first == [1, 4], f"In '1' the units 1 and 4 are dead; you found {first}.")
    second = sorted(int(number) for number in found["5"])
    expect(second == [2], f"In '5' unit 2 is dead; you found {second}. Is dropout off while you measure?")
    hooks = [name for name, module in net.named_modules() if module._forward_hooks]
    expect(not hooks, f"Correct units, but your hooks are still on {', '.join(hooks)}. Remove what you register.")
    moved = changed_tensors(net, before)
    expect(not moved, f"Correct units, but your detector changed {', '.join(moved)}. Batch norm updates in train mode.")
    expect(net.training, "Correct units, but the net was in train mode and is left in eval mode.")
    mine.in_place(net.eval(), x.clone())
    expect(not net.training, "Correct units, but a net that was in eval mode is left in train mode.")
    return "Correct units over the whole set, and the net is unchanged."


# --- 06.4: revive dead units in the loop ---

DEAD, BIAS = 100, -30.0  # units of 128 in the first layer whose bias no image can outweigh
# Dead units of the first layer at the end. Revived once: 0 to 5 over seeds 0 to 2 and 11; not revived: DEAD and more.
STILL_DEAD = 30


def mostly_dead_net() -> nn.Sequential:
    """The net of the lesson, as from a checkpoint in which most of the first layer is dead."""
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )
    with torch.no_grad():
        net[1].bias[:DEAD] = BIAS
    return net


def with_checkpoint(seed: int) -> Setting:
    return images(mostly_dead_net, lambda weights: torch.optim.Adam(weights, lr=0.001))(seed)


@torch.no_grad()
def revive(model, loader) -> None:
    dead = torch.tensor(dead_units(model, loader).dead["2"])
    model[1].weight[dead] = nn.Linear(784, len(dead)).weight
    model[1].bias[dead] = 0.0
    model[3].weight[:, dead] = 0.0


def reviving(model, optimizer, loader) -> None:
    for epoch in range(4):
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
        if epoch == 0:
            revive(model, loader)


def judge_living(outcome: Outcome) -> str:
    x, _ = outcome.setting.loader.dataset.tensors
    dead = len(dead_units(outcome.setting.model, x).dead["2"])
    expect(dead <= STILL_DEAD, f"It learns, but {dead} of 128 units of the first layer are still dead on all images.")
    return f"{outcome.accuracy:.1%} correct, and {128 - dead} of 128 units are alive; at the start {128 - DEAD} were."


# --- 06.6: the share of silent units, exactly ---


def judge_expected_silent(mine: Student) -> str:
    tiny = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 2.0], [0.0, 0.0, 3.0]])  # silent on 2, 3 and 1 of 3 images
    expect_close(mine(tiny, 1), 2 / 3, "One of three images: the mean of 2/3, 3/3 and 1/3")
    seen = mine(tiny, 2)
    replaced = float(((tiny == 0).double().mean(0) ** 2).mean())
    expect(abs(float(seen) - replaced) > 1e-6, f"{replaced:.3g} is (1 - p)^n: that draws the same image twice.")
    expect_close(seen, (1 / 3 + 1 + 0) / 3, "Two of three images")
    expect_close(mine(tiny, 3), 1 / 3, "All three images: only the unit that never fires is silent")
    many = torch.zeros(4000, 3)
    many[:2, 0], many[:, 1] = 1.0, 1.0  # fires on 2, on all, and on none of 4,000
    expected = (math.comb(3998, 1000) / math.comb(4000, 1000) + 0 + 1) / 3
    expect_close(mine(many, 1000), expected, "1,000 of 4,000 images, of which one unit fires on two", 1e-6)
    return "Exact, and with numbers that no float could hold."


# --- 06.3 is a cure, 06.5 a diagnosis ---

predictions = (
    prediction(
        "06.0",
        correct=2,
        why="The living tenth of the layer solves the task nearly as well. The loss tells that something learns, not "
        "that everything does.",
        wrong={1: "That is what happens if every unit is dead.", 3: "Nothing pushes it up again: dead is dead."},
    ),
)

exercises = (
    build(
        "06.1",
        "The share of dead units",
        judge_dead_share,
        example="dead_share(outputs)",
        points=2,
        hints=(
            "One column is one unit. For each column: is there any sample for which it is not zero?",
            "`outputs.abs().amax(0)` is the largest output of each unit.",
            "Zero means at most 1e-6. The mean of a boolean tensor, as float, is a share.",
        ),
    ),
    build(
        "06.2",
        "A detector for any net",
        judge_find_dead,
        example="find_dead(net, x)",
        points=3,
        hints=(
            "A forward hook gets (module, inputs, output). Keep the output in a dict under the module's name.",
            "Save net.training, call net.eval(), and restore the mode at the end; run under torch.no_grad().",
            "register_forward_hook returns a handle. Collect the handles and call remove() on each.",
        ),
    ),
    cure(
        "06.3",
        "Revive a layer that is nine tenths dead",
        "partly_dead_layer",
        keep=("model",),
        seeds=(11,),
        points=3,
        hints=(
            "The biases are at -30. What could you put between the layer and its ReLU to undo that?",
            "A layer that subtracts each unit's own mean undoes any bias.",
            "Look at the entry `normalisation`. labkit.Recipe lists the choices when you try an unknown one.",
        ),
    ),
    loop(
        "06.4",
        "Revive units while the loop runs",
        with_checkpoint,
        reviving,
        example="train_reviving(model, optimizer, loader)",
        also=judge_living,
        points=3,
        hints=(
            "Which units are dead? You have written find_dead: give it the images of the loader.",
            "torch.cat([x for x, y in loader]) has all images. The ReLU behind model[1] is called '2'.",
            "Under torch.no_grad(): model[1].weight[dead] from a fresh nn.Linear, model[1].bias[dead] = 0, "
            "model[3].weight[:, dead] = 0.",
        ),
    ),
    diagnose(
        "06.5",
        "A loss that falls while a layer is dead",
        failure="dead_branch",
        place=(*(f"block{n}.block.layer{n}" for n in (2, 3, 4)), *(f"block{n}.block.relu{n}" for n in (2, 3, 4))),
        evidence={"dead": (0.999, 1.0), "grad_norm": (0.0, 0.0)},
        wrong={
            "partly_dead_layer": "a partly dead layer still gets some gradient. Here whole layers get exactly 0.",
            "dead_relu": "then nothing would be learned. Its loss falls.",
            "dead_relu_by_learning_rate": "its dead units were dead before the first step.",
            "vanishing_gradients": "small is not 0, and the layer below them has an ordinary gradient again.",
            "frozen_layers": "frozen layers are not dead: they pass the images on. What do these pass on?",
        },
        because="Three blocks are dead from the first evaluation to the last, with gradients of exactly 0. The skip "
        "connections carry images and gradients past them, so the rest learns.",
        points=3,
        hints=(
            "Look at the bars: which layers have no gradient at all, and what is alive on either side of them?",
            "How can a layer below three dead ones have a gradient? Something must lead around them.",
            'run["dead"][-1] has the share of each activation at the end; np.nanargmax finds the worst one.',
        ),
    ),
    build(
        "06.6",
        "Hard: silence by the numbers",
        judge_expected_silent,
        example="expected_silent(outputs, n)",
        points=0,
        hints=(
            "In how many ways can you choose n of N images? In how many of them is the unit silent on all?",
            "A unit that is silent on q of N images: choose(q, n) / choose(N, n), and 0 where q < n.",
            "choose(q, n) / choose(N, n) is a ratio of factorials: exp of differences of torch.lgamma, in float64.",
        ),
    ),
)
