"""Exercises of lesson 06, dead and saturated units; and its sealed patients."""

import copy

import torch
from torch import nn

from labkit.course.grading import Student, build, cure, expect, expect_close, explain, recorded
from labkit.recording.run import Run

# --- the sealed patients of 06.4 ---

SEALED = {
    "A": "dead_relu_by_learning_rate",
    "B": "dead_branch",
    "C": "saturated_units",
    "D": "partly_dead_layer",
}


OWN = {"A": {"steps": 400}}  # of the others 200 show all there is to see


def patients() -> dict[str, Run]:
    """Four recorded runs, with letters for names. What was done to them is for the reader to find out."""
    return recorded(SEALED, OWN, steps=200)


# --- 06.1 ---


def judge_dead_share(mine: Student) -> str:
    quarter = torch.tensor([[0.0, 1.0, 0.0, 2.0], [0.0, 0.0, 0.0, 1.0], [0.0, 3.0, 0.5, 0.0]])
    seen = mine(quarter)
    zeros = float((quarter == 0).float().mean())
    if abs(float(seen) - zeros) < 1e-6:
        expect(False, f"{zeros:.3g} is the share of zeros. A unit is dead when its whole column is silent.")
    expect_close(seen, 0.25, "One column of four is all zeros")
    late = torch.zeros(300, 2)
    late[-1, 0] = 0.1
    expect_close(mine(late), 0.5, "One unit speaks for the last of 300 samples only, the other never")
    expect_close(mine(-torch.ones(5, 3)), 0.0, "Answers of -1 (a leaky ReLU gives some) are not silence")
    expect_close(mine(torch.zeros(4, 6)), 1.0, "Nobody speaks")
    faint = torch.tensor([[1e-7, 1.0], [-1e-7, 0.0]])
    expect_close(mine(faint), 0.5, "Answers of 1e-7 count as silence: at most 1e-6 in size")
    return "It told silence on a batch from death, and negative from silent."


# --- 06.2 ---


def net_with_dead_units() -> tuple[nn.Module, torch.Tensor]:
    """Two ReLU layers of which some units are off, batch norm and dropout between them; unit 5 fires for one image."""
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(
        nn.Linear(8, 6), nn.ReLU(), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)
    )
    with torch.no_grad():
        for weight in net.parameters():
            weight.copy_(torch.rand(weight.shape, generator=generator))
        net[0].bias[[1, 4]] = -100.0
        net[4].bias[2] = -100.0
        net[0].weight[5], net[0].bias[5] = torch.eye(8)[0], -1.5  # answers only where the first entry is above 1.5
    x = torch.rand(900, 8, generator=generator)
    x[-1, 0] = 2.0
    return net, x


def judge_find_dead(mine: Student) -> str:
    net, x = net_with_dead_units()
    before = copy.deepcopy(net.state_dict())
    found = mine.on(net, x.clone())
    expect(isinstance(found, dict), f"Expected a dict, name of the ReLU -> numbers of its dead units, got {found!r}.")
    expect(set(found) == {"1", "5"}, f"The net has ReLUs named '1' and '5'; your dict has {sorted(found)}.")
    first = sorted(int(number) for number in found["1"])
    expect(5 not in first, "Unit 5 of '1' answers to the last of 900 images. Look at all of them.")
    expect(first == [1, 4], f"In '1' the units 1 and 4 are dead; you found {first}.")
    second = sorted(int(number) for number in found["5"])
    expect(second == [2], f"In '5' unit 2 is dead; you found {second}. Is dropout off while you look?")
    hooks = [name for name, module in net.named_modules() if module._forward_hooks]
    expect(not hooks, f"Right numbers, but your hooks are still on {', '.join(hooks)}. Remove what you register.")
    moved = [name for name, value in net.state_dict().items() if not torch.equal(value, before[name])]
    expect(not moved, f"Right numbers, but looking changed {', '.join(moved)}. Batch norm learns in train mode.")
    expect(net.training, "Right numbers, but the net came to you in train mode and left in eval mode.")
    mine.on(net.eval(), x.clone())
    expect(not net.training, "Right numbers, but a net that came to you in eval mode left in train mode.")
    return "Right units, the whole set, and the net is as it was."


# --- 06.3 is a cure, 06.4 the evidence ---

LOOKS_ELSEWHERE = "Look again at where the zeros are: in which layers, and from which step on."

exercises = (
    build(
        "06.1",
        "The share of dead units",
        judge_dead_share,
        example="dead_share(outputs)",
        points=2,
        hints=(
            "One column is one unit. Ask of each column: was there any sample for which it was not silent?",
            "`outputs.abs().amax(0)` is the loudest answer of each unit.",
            "Silent means at most 1e-6. The mean of a boolean tensor, as float, is a share.",
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
            "Remember net.training, call net.eval(), and put it back at the end; run under torch.no_grad().",
            "register_forward_hook returns a handle. Collect the handles and call remove() on each.",
        ),
    ),
    cure(
        "06.3",
        "Bring nine tenths of a layer back",
        "partly_dead_layer",
        keep=("model",),
        seeds=(11,),
        points=3,
        hints=(
            "The biases sit at -30. What, between the layer and its ReLU, would not care?",
            "A layer that subtracts each unit's own mean undoes any bias.",
            "Look at the knob `normalisation`. labkit.Recipe names its choices when you try a wrong one.",
        ),
    ),
    explain(
        "06.4",
        "Which patient has what?",
        modes=tuple(SEALED.values()),
        points=4,
        right=SEALED,
        because="A was alive and was killed; B has layers with a gradient of exactly 0; C is loud, not silent; "
        "and D, whose loss looks so good, was mostly dead before it began.",
        wrong={
            "A": {
                "dead_branch": "a dead branch is dead from the first evaluation; this layer began alive.",
                "saturated_units": "saturation belongs to tanh and sigmoid, and these units are silent, not loud.",
                "partly_dead_layer": "it began alive, and its loss ended at chance level. What happened on the way?",
            },
            "B": {
                "dead_relu_by_learning_rate": "its loss falls, and what is dead was dead before the first step.",
                "saturated_units": "saturation belongs to tanh and sigmoid. " + LOOKS_ELSEWHERE,
                "partly_dead_layer": "partly dead layers still get some gradient. Here whole layers get exactly 0.",
            },
            "C": {
                "dead_relu_by_learning_rate": "not one of its units is silent.",
                "dead_branch": "not one of its units is silent, and no gradient is 0.",
                "partly_dead_layer": "not one of its units is silent. They are loud: nearly always +1 or -1.",
            },
            "D": {
                "dead_relu_by_learning_rate": "its loss falls, and what is dead was dead before the first step.",
                "dead_branch": "every layer gets a gradient: some units are left in each.",
                "saturated_units": "saturation belongs to tanh and sigmoid. " + LOOKS_ELSEWHERE,
            },
        },
        hints=(
            "Three questions to each: does the loss fall? was it dead before the first step? is a gradient exactly 0?",
            "Only one patient has units at the ends of their range. Only one was alive and died.",
            "Of the two that remain, one has layers with a gradient of exactly 0: nothing in them is alive.",
        ),
    ),
)
