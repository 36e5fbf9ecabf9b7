"""Exercises of lesson 06, dead and saturated units; and its sealed patients."""

import copy

import torch
from torch import nn

from labkit.course.grading import Student, build, changed_tensors, cure, expect, expect_close, explain, sealed_runs
from labkit.recording.run import Run

# --- the sealed patients of 06.4 ---

SEALED = {
    "A": "dead_relu_by_learning_rate",
    "B": "dead_branch",
    "C": "saturated_units",
    "D": "partly_dead_layer",
}


OWN = {"A": {"steps": 400}}  # 200 steps are enough for the others


def patients() -> dict[str, Run]:
    """Four runs, named by letters. The student finds which failure each one shows."""
    return sealed_runs(SEALED, OWN, steps=200)


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
    explain(
        "06.4",
        "Which failure does each run show?",
        modes=tuple(SEALED.values()),
        points=4,
        right=SEALED,
        because="A was alive and its units died in training; B has layers with a gradient of exactly 0; C is "
        "saturated, "
        "not dead; and D, whose loss looks good, was mostly dead before training.",
        wrong={
            "A": {
                "dead_branch": "a dead branch is dead from the first evaluation; this layer started alive.",
                "saturated_units": "saturation happens to tanh and sigmoid units, and these units are dead.",
                "partly_dead_layer": "it started alive, and its loss ended at chance level. What happened in between?",
            },
            "B": {
                "dead_relu_by_learning_rate": "its loss falls, and its dead units were dead before the first step.",
                "saturated_units": "saturation happens to tanh and sigmoid units. " + LOOKS_ELSEWHERE,
                "partly_dead_layer": "partly dead layers still get some gradient. Here whole layers get exactly 0.",
            },
            "C": {
                "dead_relu_by_learning_rate": "none of its units is dead.",
                "dead_branch": "none of its units is dead, and no gradient is 0.",
                "partly_dead_layer": "none of its units is dead. They are saturated: nearly always +1 or -1.",
            },
            "D": {
                "dead_relu_by_learning_rate": "its loss falls, and its dead units were dead before the first step.",
                "dead_branch": "every layer gets a gradient: some units are alive in each.",
                "saturated_units": "saturation happens to tanh and sigmoid units. " + LOOKS_ELSEWHERE,
            },
        },
        hints=(
            "Three questions for each: does the loss fall? was it dead before the first step? is a gradient exactly 0?",
            "Only one patient has saturated units. In only one did the units die during training.",
            "Of the other two, one has layers with a gradient of exactly 0: every unit in them is dead.",
        ),
    ),
)
