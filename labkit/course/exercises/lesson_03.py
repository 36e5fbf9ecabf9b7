"""Exercises of lesson 03, learning rate too high and too low; and its sealed patients."""

import copy
import math

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from labkit.course.grading import Student, build, cure, everything_but, expect, expect_close, explain, recorded, short
from labkit.recording.run import Run

# --- the sealed patients of 03.5: all of them end at chance level ---

SEALED = {"A": "labels_detached", "B": "learning_rate_too_high", "C": "dead_relu", "D": "learning_rate_too_low"}


def patients() -> dict[str, Run]:
    """Four recorded runs, with letters for names. What was done to them is for the reader to find out."""
    own = {"B": {"depth": 2, "steps": 400}}  # the face without a NaN, after it has come to rest
    return recorded(SEALED, own, steps=100)


# --- 03.1 ---

RATES = (0.01, 0.03, 0.1, 0.3, 1.0)


def small_training() -> tuple:
    """A net with batch norm, an optimizer that remembers and has two groups of weights, and five batches."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))
        batches = [(torch.randn(16, 4), torch.randint(0, 3, (16,))) for _ in RATES]
    groups = [{"params": net[:2].parameters()}, {"params": net[3].parameters(), "lr": 0.2}]
    optimizer = torch.optim.SGD(groups, lr=0.5, momentum=0.9)
    cross_entropy(net(batches[0][0]), batches[0][1]).backward()
    optimizer.step()  # so that there is a memory to lose
    optimizer.zero_grad()
    return net, optimizer, batches


def rising(*, empty: bool = True, groups: slice = slice(None), late: bool = False) -> list[float]:
    """The losses of a range test, right, or with one of the usual slips."""
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
    seen = mine.on(net, optimizer, batches, list(RATES))
    expect(hasattr(seen, "__len__"), f"Expected a list of losses, one for each rate, got {short(seen)}.")
    expect(len(seen) == len(RATES), f"{len(RATES)} rates: expected as many losses, got {len(seen)}.")
    seen = [float(each) for each in seen]
    slips = {
        "The losses are those of a test that never empties the gradients. zero_grad before each backward.": {
            "empty": False
        },
        "The optimizer has two groups of weights, and only the first got your rates.": {"groups": slice(1)},
        "Each loss was measured after its step. Note the loss that the step was made from.": {"late": True},
    }
    right = rising()
    for words, slip in slips.items():
        expect(alike(seen, right) or not alike(seen, rising(**slip)), words)
    expect_close(seen, right, "Five rates, five batches: the losses", tolerance=1e-3)
    moved = [name for name, value in net.state_dict().items() if not torch.equal(value, weights[name])]
    advice = "state_dict() hands out the tensors themselves, not copies: copy.deepcopy it first."
    if moved and all(name not in dict(net.named_parameters()) for name in moved):
        advice = "Batch norm keeps running means beside its weights: state_dict() has them, parameters() has not."
    expect(not moved, f"Right losses, but afterwards {', '.join(moved[:3])} are not what they were. {advice}")
    rates = [group["lr"] for group in optimizer.param_groups]
    expect(rates == [0.5, 0.2], f"Right losses, but the optimizer had the rates 0.5 and 0.2 and is left with {rates}.")
    left = optimizer.state_dict()["state"]
    same = left.keys() == memory["state"].keys() and all(
        torch.equal(kept["momentum_buffer"], memory["state"][key]["momentum_buffer"]) for key, kept in left.items()
    )
    expect(same, "Right losses, but the optimizer remembers the test: its momentum is not what it was.")
    return "The right losses, and net and optimizer never noticed."


def alike(seen: list[float], other: list[float]) -> bool:
    return all(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(seen, other, strict=True))


# --- 03.3 ---


def net_with_gradients(factor: float = 1.0) -> nn.Module:
    """Gradients of norm 3 and 4 in two layers, 5 together, times a factor; a frozen layer has none."""
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), nn.Linear(2, 2))
    net[0].weight.grad = factor * torch.tensor([[3.0, 0.0], [0.0, 0.0]])
    net[1].weight.grad = factor * torch.tensor([[0.0, -2.4], [3.2, 0.0]])
    return net


def clipped(mine: Student, factor: float, limit: float) -> tuple:
    """What the student's function returned, and the norms of both layers afterwards."""
    net = net_with_gradients(factor)
    before = [net[index].weight.grad.clone() for index in (0, 1)]
    returned = mine.on(net, limit)
    after = [net[index].weight.grad for index in (0, 1)]
    expect(all(torch.is_tensor(each) for each in after), "Afterwards a gradient is gone. Scale it in place.")
    return returned, before, after


def judge_clip(mine: Student) -> str:
    returned, before, after = clipped(mine, 1.0, 1.0)
    norms = [round(each.norm().item(), 3) for each in after]
    case = "Two layers with gradients of norm 3 and 4 (5 together), limit 1"
    expect(norms != [3, 4], f"{case}: the gradients are as they were. Change weight.grad itself, in place.")
    expect(norms != [1, 1], f"{case}: you clipped each layer alone, to 1 and 1. It takes one factor for all.")
    expect(norms != [1, 1.414], f"{case}: you cut single entries. It takes one factor for all.")
    expect(norms != [0.429, 0.571], f"{case}: your whole has norm 7. Squares add up, norms do not.")
    expect_close(after[0], before[0] / 5, f"{case}, the first layer", tolerance=1e-4)
    expect_close(after[1], before[1] / 5, f"{case}, the second layer", tolerance=1e-4)
    expect(torch.as_tensor(returned).numel() == 1, f"Expected the norm before clipping back, got {short(returned)}.")
    expect(abs(float(returned) - 1) > 1e-3, "Well clipped, but you gave back the norm after it. The one before tells.")
    expect_close(float(returned), 5.0, "Well clipped, but what it gives back should be the norm before")
    returned, before, after = clipped(mine, 0.1, 1.0)
    case = "Gradients of norm 0.5 together, limit 1"
    expect(torch.equal(after[0], before[0]), f"{case}: they were changed. Clipping only ever shortens.")
    expect_close(float(returned), 0.5, case)
    _, before, after = clipped(mine, 1000.0, 2.0)
    expect_close(after[1], before[1] / 2500, "Norm 5000, limit 2, the second layer", tolerance=1e-4)
    return "One factor for all, only ever shorter, and it tells how long it was."


# --- 03.2 and 03.5 are evidence, 03.4 a cure ---

exercises = (
    build(
        "03.1",
        "A range test",
        judge_range_test,
        example="range_test(net, optimizer, batches, lrs)",
        points=4,
        hints=(
            "It is a training loop with another rate at each step. Before it, keep copies; after it, put them back.",
            "Set group['lr'] in every group of optimizer.param_groups. Note loss.item() before optimizer.step().",
            "copy.deepcopy(net.state_dict()) and copy.deepcopy(optimizer.state_dict()) first; load_state_dict of both "
            "at the end. The second holds the rates, too.",
        ),
    ),
    explain(
        "03.2",
        "Read the curve",
        right="0.05",
        because="Where the loss falls steeply, and a power of ten from the edge. The lowest point is too late: there "
        "the rate is already so high that the loss is about to turn.",
        wrong={
            "0.0001": "safe, and slow: at that rate the curve is still flat. Flat means that nothing is learned.",
            "0.3": "that is near the lowest point, where the loss is about to turn. One bad batch, and it is over the "
            "edge. A little later in this lesson you will see what 0.3 does.",
            "1": "there the loss has left the picture already.",
        },
        hints=(
            "You do not want the lowest loss, you want the rate at which the loss falls fastest.",
            "And you want a good distance to the rate at which it turns upwards: a factor of ten.",
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
        "A rate for Adam",
        "dead_relu_by_learning_rate",
        keep=everything_but("lr"),
        seeds=(11,),
        points=2,
        hints=(
            "Rates of one optimizer say nothing about another. You have an instrument that asks the net itself.",
            "labkit.find_lr(patient.model, cross_entropy, tuple(patient.data.train), patient.optimizer)",
            "Take the rate that the range test suggests, or one near it.",
        ),
    ),
    explain(
        "03.5",
        "Four losses stuck near 2.3",
        modes=tuple(SEALED.values()),
        points=4,
        right=SEALED,
        because="A trains with all its might and there is nothing to learn: look at the data. B was alive until one "
        "update threw it. C was dead before the first step. D is well, and stands still.",
        wrong={
            "A": {
                "learning_rate_too_low": "its updates are of healthy size: it moves, and gets nowhere.",
                "learning_rate_too_high": "no update was violent, and no unit died.",
                "dead_relu": "all of its units answer, and each layer has a gradient.",
            },
            "B": {
                "learning_rate_too_low": "how large was its first update?",
                "dead_relu": "dead at the end, yes. But before the first step it was alive: what killed it?",
                "labels_detached": "wrong labels kill no units.",
            },
            "C": {
                "learning_rate_too_low": "a low rate leaves gradients alive. Here two layers have exactly 0.",
                "learning_rate_too_high": "its first update was small, and it was dead before that.",
                "labels_detached": "wrong labels kill no units.",
            },
            "D": {
                "learning_rate_too_high": "its updates are a millionth of the weights.",
                "dead_relu": "all of its units answer, and each layer has a gradient.",
                "labels_detached": "with wrong labels a net still moves. Look at the size of its updates.",
            },
        },
        hints=(
            "Two questions: is a gradient exactly 0? How large is an update beside its weights?",
            "Two patients have dead units. Were they dead before the first step?",
            "Of the two that are alive, one takes steps of ordinary size and one does not.",
        ),
    ),
)
