"""Exercises of lesson 03, learning rate too high and too low; and its sealed patients."""

import copy
import math

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from labkit.course.grading import (
    Student,
    build,
    changed_tensors,
    cure,
    everything_but,
    expect,
    expect_close,
    explain,
    sealed_runs,
    short,
)
from labkit.recording.run import Run

# --- the sealed patients of 03.5: all of them end at chance level ---

SEALED = {"A": "labels_detached", "B": "learning_rate_too_high", "C": "dead_relu", "D": "learning_rate_too_low"}


def patients() -> dict[str, Run]:
    """Four runs, named by letters. The student finds which failure each one shows."""
    own = {"B": {"depth": 2, "steps": 400}}  # the variant without a NaN, trained until it plateaus
    return sealed_runs(SEALED, own, steps=100)


# --- 03.1 ---

RATES = (0.01, 0.03, 0.1, 0.3, 1.0)


def small_training() -> tuple:
    """A net with batch norm, an optimizer with momentum and two parameter groups, and five batches."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))
        batches = [(torch.randn(16, 4), torch.randint(0, 3, (16,))) for _ in RATES]
    groups = [{"params": net[:2].parameters()}, {"params": net[3].parameters(), "lr": 0.2}]
    optimizer = torch.optim.SGD(groups, lr=0.5, momentum=0.9)
    cross_entropy(net(batches[0][0]), batches[0][1]).backward()
    optimizer.step()  # so that there is a momentum buffer to lose
    optimizer.zero_grad()
    return net, optimizer, batches


def range_test_losses(*, empty: bool = True, groups: slice = slice(None), late: bool = False) -> list[float]:
    """The losses of a range test: correct, or with one of the usual mistakes."""
    net, optimizer, batches = small_training()
    losses = []
    for lr, (x, y) in zip(RATES, batches, strict=True):
        for group in optimizer.param_groups[groups]:
            group["lr"] = lr
        if empty:
            optimizer.zero_grad()
        loss = cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append((cross_entropy(net(x), y) if late else loss).item())
    return losses


def judge_range_test(mine: Student) -> str:
    net, optimizer, batches = small_training()
    weights, memory = copy.deepcopy(net.state_dict()), copy.deepcopy(optimizer.state_dict())
    seen = mine.in_place(net, optimizer, batches, list(RATES))
    expect(hasattr(seen, "__len__"), f"Expected a list of losses, one for each learning rate, got {short(seen)}.")
    expect(len(seen) == len(RATES), f"{len(RATES)} learning rates: expected as many losses, got {len(seen)}.")
    seen = [float(each) for each in seen]
    slips = {
        "These are the losses of a test that never clears the gradients. Call zero_grad before each backward.": {
            "empty": False
        },
        "The optimizer has two parameter groups, and only the first got your learning rates.": {"groups": slice(1)},
        "Each loss was measured after its step. Record the loss that was backpropagated.": {"late": True},
    }
    right = range_test_losses()
    for words, slip in slips.items():
        expect(all_close(seen, right) or not all_close(seen, range_test_losses(**slip)), words)
    expect_close(seen, right, "Five learning rates, five batches: the losses", tolerance=1e-3)
    moved = changed_tensors(net, weights)
    advice = "state_dict() returns the tensors themselves, not copies: copy.deepcopy it first."
    if moved and all(name not in dict(net.named_parameters()) for name in moved):
        advice = "Batch norm keeps running means beside its weights: state_dict() has them, parameters() does not."
    expect(not moved, f"Correct losses, but {', '.join(moved[:3])} were not restored. {advice}")
    rates = [group["lr"] for group in optimizer.param_groups]
    expect(
        rates == [0.5, 0.2],
        f"Correct losses, but the optimizer had the learning rates 0.5 and 0.2 and is left with {rates}.",
    )
    left = optimizer.state_dict()["state"]
    same = left.keys() == memory["state"].keys() and all(
        torch.equal(kept["momentum_buffer"], memory["state"][key]["momentum_buffer"]) for key, kept in left.items()
    )
    expect(same, "Correct losses, but the optimizer's momentum was not restored.")
    return "Correct losses, and net and optimizer are unchanged."


def all_close(seen: list[float], other: list[float]) -> bool:
    return all(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(seen, other, strict=True))


# --- 03.3 ---


def net_with_gradients(factor: float = 1.0) -> nn.Module:
    """Gradients of norm 3 and 4 in two layers, 5 together, times a factor; a frozen layer has none."""
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), nn.Linear(2, 2))
    net[0].weight.grad = factor * torch.tensor([[3.0, 0.0], [0.0, 0.0]])
    net[1].weight.grad = factor * torch.tensor([[0.0, -2.4], [3.2, 0.0]])
    return net


def clip_with(mine: Student, factor: float, limit: float) -> tuple:
    """What the student's function returned, and the norms of both layers afterwards."""
    net = net_with_gradients(factor)
    before = [net[index].weight.grad.clone() for index in (0, 1)]
    returned = mine.in_place(net, limit)
    after = [net[index].weight.grad for index in (0, 1)]
    expect(all(torch.is_tensor(each) for each in after), "A gradient is missing afterwards. Scale it in place.")
    return returned, before, after


def judge_clip(mine: Student) -> str:
    returned, before, after = clip_with(mine, 1.0, 1.0)
    norms = [round(each.norm().item(), 3) for each in after]
    case = "Two layers with gradients of norm 3 and 4 (5 together), limit 1"
    expect(norms != [3, 4], f"{case}: the gradients did not change. Scale weight.grad itself, in place.")
    expect(norms != [1, 1], f"{case}: you clipped each layer alone, to 1 and 1. Use one factor for all.")
    expect(norms != [1, 1.414], f"{case}: you clipped single entries. Use one factor for all.")
    expect(norms != [0.429, 0.571], f"{case}: your global norm is 7. Squares add up, norms do not.")
    expect_close(after[0], before[0] / 5, f"{case}, the first layer", tolerance=1e-4)
    expect_close(after[1], before[1] / 5, f"{case}, the second layer", tolerance=1e-4)
    expect(
        torch.as_tensor(returned).numel() == 1,
        f"Expected the norm before clipping as the return value, got {short(returned)}.",
    )
    expect(
        abs(float(returned) - 1) > 1e-3,
        "Clipped correctly, but you returned the norm after clipping. Return the one before.",
    )
    expect_close(float(returned), 5.0, "Clipped correctly, but the return value should be the norm before clipping")
    returned, before, after = clip_with(mine, 0.1, 1.0)
    case = "Gradients of norm 0.5 together, limit 1"
    expect(torch.equal(after[0], before[0]), f"{case}: they were changed. Clipping only ever scales down.")
    expect_close(float(returned), 0.5, case)
    _, before, after = clip_with(mine, 1000.0, 2.0)
    expect_close(after[1], before[1] / 2500, "Norm 5000, limit 2, the second layer", tolerance=1e-4)
    return "One factor for all gradients, never above 1, and it returns the norm before clipping."


# --- 03.2 and 03.5 are evidence, 03.4 a cure ---

exercises = (
    build(
        "03.1",
        "A range test",
        judge_range_test,
        example="range_test(net, optimizer, batches, lrs)",
        points=4,
        hints=(
            "It is a training loop with a new learning rate at each step. Save copies before it and restore "
            "them after.",
            "Set group['lr'] in every group of optimizer.param_groups. Record loss.item() before optimizer.step().",
            "copy.deepcopy(net.state_dict()) and copy.deepcopy(optimizer.state_dict()) first; load_state_dict of both "
            "at the end. The second also holds the learning rates.",
        ),
    ),
    explain(
        "03.2",
        "Read the curve",
        right="0.2",
        because="There the loss falls steeply, and it is about a factor of ten below the point of divergence. At the "
        "lowest points the learning rate is already so high that the loss jumps.",
        wrong={
            "0.0001": "safe but slow: at that learning rate the curve is still flat, so nothing is learned.",
            "1": "the loss is still low there, but it has jumped before and is about to rise for good. A little later "
            "in this lesson you will see what 1 does.",
            "2": "there the loss is already off the plot.",
        },
        hints=(
            "You do not want the lowest loss, but the learning rate at which the loss falls fastest.",
            "And keep a factor of ten below the learning rate at which the loss starts to rise.",
        ),
    ),
    build(
        "03.3",
        "Clip by the global norm",
        judge_clip,
        example="clip_gradients(net, limit)",
        points=3,
        hints=(
            "First the norm of all gradients as if they were one long vector: the root of all squares.",
            "The factor is limit / norm, the same for every tensor, and only if the norm is above the limit.",
            "weight.grad.mul_(factor) works in place. Skip weights whose grad is None. Return the norm.",
        ),
    ),
    cure(
        "03.4",
        "A learning rate for Adam",
        "dead_relu_by_learning_rate",
        keep=everything_but("lr"),
        seeds=(11,),
        points=2,
        hints=(
            "A learning rate for one optimizer says nothing about another. Which tool measures a good one?",
            "labkit.find_lr(patient.model, cross_entropy, tuple(patient.data.train), patient.optimizer)",
            "Take the learning rate that the range test suggests, or one near it.",
        ),
    ),
    explain(
        "03.5",
        "Four losses stuck near 2.3",
        modes=tuple(SEALED.values()),
        points=4,
        right=SEALED,
        because="A has healthy updates but nothing to learn: look at the data. B was alive until one huge "
        "update killed "
        "it. C was dead before the first step. D is healthy, but its updates are tiny.",
        wrong={
            "A": {
                "learning_rate_too_low": "its updates are of healthy size: the weights move, and the loss does "
                "not fall.",
                "learning_rate_too_high": "no update was too large, and no unit died.",
                "dead_relu": "none of its units is dead, and each layer has a gradient.",
            },
            "B": {
                "learning_rate_too_low": "how large was its first update?",
                "dead_relu": "dead at the end, yes. But before the first step it was alive: what killed it?",
                "labels_detached": "wrong labels do not kill units.",
            },
            "C": {
                "learning_rate_too_low": "a low learning rate does not change the gradients. Here they are "
                "exactly 0 in two layers.",
                "learning_rate_too_high": "its first update was small, and it was dead before that.",
                "labels_detached": "wrong labels do not kill units.",
            },
            "D": {
                "learning_rate_too_high": "its updates are less than a millionth of the weights.",
                "dead_relu": "none of its units is dead, and each layer has a gradient.",
                "labels_detached": "with wrong labels the weights still move. Look at the size of its updates.",
            },
        },
        hints=(
            "Two questions: is a gradient exactly 0? How large is an update relative to its weights?",
            "Two patients have dead units. Were they dead before the first step?",
            "Of the two that are alive, one has updates of normal size and one does not.",
        ),
    ),
)
