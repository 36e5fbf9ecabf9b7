"""Exercises of lesson 10, the loss landscape; and its sealed patients."""

import copy

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from labkit.course.grading import Student, build, cure, expect, expect_close, explain, recorded
from labkit.recording.run import Run
from labkit.tools.landscape import line_between, slice_1d

# --- the sealed patients of 10.4 ---

SEALED = {"A": "vanishing_gradients", "B": "saddle_point", "C": "learning_rate_too_low", "D": "plateau"}


def patients() -> dict[str, Run]:
    """Four runs that were cut while their loss lay flat. What was done to them is for the reader to find out."""
    return recorded(SEALED, steps=60, evaluate_every=0)


# --- 10.1 ---


def judge_top_curvature(mine: Student) -> str:
    def case(*eigenvalues: float):
        """A symmetric matrix with these eigenvalues, turned; and a start that is not of length 1."""
        generator = torch.Generator().manual_seed(len(eigenvalues))
        turn, _ = torch.linalg.qr(torch.randn(len(eigenvalues), len(eigenvalues), generator=generator))
        matrix = turn @ torch.diag(torch.tensor(eigenvalues)) @ turn.T
        return (lambda vector: matrix @ vector), 7.0 * turn.sum(1)

    seen = mine(*case(3.0, 1.0, 0.5), 40)
    size = _number(seen)
    expect(
        size == size and abs(size) < 1e4, f"{size:.3g} for a top of 3: give v the length 1 again after each product."
    )
    expect_close(size, 3.0, "A curvature of 3 (is the last v of length 1 when you take v · Hv?)", 1e-3)
    size = _number(mine(*case(-5.0, 2.0, 1.0, 0.1), 60))
    if abs(size - 5.0) < 1e-2:
        expect(False, "5 where -5 is right. The length of Hv has no sign: take v · Hv for a v of length 1.")
    expect(abs(size - 2.0) > 1e-2, "2, where the largest in size is -5: a negative curvature counts, too.")
    expect_close(size, -5.0, "A saddle: curvatures of -5, 2, 1 and 0.1", 1e-3)
    expect_close(_number(mine(*case(4e4, 1e2, 1.0), 60)), 4e4, "A large one, 60 iterations", 1e-3)
    size = _number(mine(lambda vector: 0 * vector, torch.ones(3), 10))
    expect(size == size, "Where H v is 0 you divide by its length, 0. Return 0.0 there.")
    expect_close(size, 0.0, "No curvature at all")
    calls = []
    mine(lambda vector: calls.append(1) or 2 * vector, torch.ones(3), 7)
    expect(len(calls) <= 2 * 7 + 1, f"7 iterations were asked for, and you multiplied {len(calls)} times.")
    return "The largest in size, with its sign, and no division by 0."


def _number(answer) -> float:
    expect(
        isinstance(answer, int | float | np.number) or (torch.is_tensor(answer) and answer.numel() == 1),
        "Expected a number.",
    )
    return float(answer)


# --- 10.3 ---


def two_nets() -> tuple[nn.Module, nn.Module, torch.Tensor, torch.Tensor]:
    """Two nets with dropout, far apart, one of them in train mode; and some data."""
    generator = torch.Generator().manual_seed(3)
    nets = [nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3)) for _ in range(2)]
    with torch.no_grad():
        for net in nets:
            for weight in net.parameters():
                weight.copy_(torch.randn(weight.shape, generator=generator))
    x, y = torch.randn(40, 5, generator=generator), torch.randint(0, 3, (40,), generator=generator)
    return nets[0].train(), nets[1].eval(), x, y


def judge_losses_between(mine: Student) -> str:
    net, other, x, y = two_nets()
    there = {name: weight.detach() for name, weight in other.named_parameters()}
    right = slice_1d(net, cross_entropy, x, y, line_between(net, there), span=(0, 1), points=5).losses
    before = [copy.deepcopy(each.state_dict()) for each in (net, other)]
    seen = torch.as_tensor(mine.on(net, other, cross_entropy, x, y, 5)).detach().double()
    expect(seen.shape == (5,), f"5 points were asked for; you returned the shape {tuple(seen.shape)}.")
    _expect_untouched((net, other), before)
    expect(net.training and not other.training, "The nets came in train and in eval mode, and left in other modes.")
    expected = torch.as_tensor(right)
    if torch.allclose(seen, expected.flip(0), rtol=1e-4):
        expect(False, "Right losses in the wrong order: begin at `net` and end at `other`.")
    if torch.allclose(seen, torch.linspace(0, 1, 5).double() * (right[-1] - right[0]) + right[0], rtol=1e-3):
        expect(False, "You mixed the two losses. Mix the weights, and take the loss of the mixed net.")
    again = torch.as_tensor(mine.on(net, other, cross_entropy, x, y, 5)).detach().double()
    expect(torch.equal(seen, again), "Twice the same call, two answers: dropout is on. Measure in eval mode.")
    expect_close(seen[0], right[0], "The first loss is that of `net` itself", 1e-4)
    expect_close(seen[-1], right[-1], "The last loss is that of `other`", 1e-4)
    expect_close(seen, right, "Five points between two nets (does each step begin at `net` again?)", 1e-4)
    return "From one net to the other in eval mode, and both are as they were."


def _expect_untouched(nets, before) -> None:
    for name, net, state in zip(("net", "other"), nets, before, strict=True):
        moved = any(not torch.equal(value, state[key]) for key, value in net.state_dict().items())
        expect(not moved, f"The weights of `{name}` were changed. Walk with a copy, or put them back.")


# --- 10.2 is a cure, 10.4 the evidence ---

ALIVE = "its gradients and its updates are of ordinary size. Compare the first layer with the last, and over time."

exercises = (
    build(
        "10.1",
        "Power iteration",
        judge_top_curvature,
        example="top_curvature(times, start, iterations)",
        points=3,
        hints=(
            "What does H do to the part of v that bends most, beside the rest of v? And what keeps v from exploding?",
            "In a loop: product = times(v); then v = product, made of length 1 again.",
            "With v of length 1, the eigenvalue is v · Hv. It has a sign; the length of Hv has none.",
            "Before you divide by product.norm(), ask whether it is 0.",
        ),
    ),
    cure(
        "10.2",
        "Off the saddle, with the weights it has",
        "saddle_point",
        keep=("init", "init_scale"),
        seeds=(11,),
        points=3,
        hints=(
            "The gradient of the first layer is tiny, but it points the same way at every step.",
            "What adds up steps that agree? What makes a full step of a small gradient?",
            "Look at the knobs `momentum` and `optimizer` (with a rate that suits it).",
        ),
    ),
    build(
        "10.3",
        "A slice through two nets",
        judge_losses_between,
        example="losses_between(net, other, loss, x, y, points)",
        points=3,
        hints=(
            "Mix weights, not losses. And whose weights may you overwrite?",
            "Make a copy with copy.deepcopy(net).eval() and walk with that one.",
            "zip(copy.parameters(), net.parameters(), other.parameters()) gives the three tensors of each place.",
            "weight.copy_(a + share * (b - a)) under torch.no_grad(), for share in torch.linspace(0, 1, points).",
        ),
    ),
    explain(
        "10.4",
        "Four flat losses",
        modes=tuple(SEALED.values()),
        points=4,
        right=SEALED,
        because="A's first layer hears tens of thousands of times less than its last. B's grows manyfold "
        "while the loss sleeps. C has large gradients and updates of a millionth. D is level, alive and slow.",
        wrong={
            "A": {
                "plateau": "compare its first layer with its last: on a plateau they are a few tens apart at most.",
                "saddle_point": "at a saddle the first layer's gradient grows by itself. This one stays.",
                "learning_rate_too_low": "its last layer moves by a hundredth per step. That is no low rate.",
                "zero_init": "then the first layer's gradient would be exactly 0, not merely tiny.",
            },
            "B": {
                "plateau": "on a plateau the first layer's gradient stays level. What does this one do?",
                "learning_rate_too_low": "its updates are large beside its weights.",
                "vanishing_gradients": "small at first, yes. But look at what becomes of it within 60 steps.",
                "zero_init": "then the first layer's gradient would be exactly 0, and would stay so.",
            },
            "C": {
                "plateau": "its gradients are as large as those of a healthy net. What becomes of them?",
                "saddle_point": "its gradients are as large as those of a healthy net. What becomes of them?",
                "vanishing_gradients": "its first layer hears more than its last.",
                "zero_init": "its first layer has a gradient, and a large one.",
            },
            "D": {
                "saddle_point": "at a saddle the first layer's gradient grows manyfold. This one is level.",
                "learning_rate_too_low": ALIVE,
                "vanishing_gradients": "the first layer hears about a sixth of the last. Vanishing is a thousandth.",
                "zero_init": "then the first layer's gradient would be exactly 0.",
            },
        },
        hints=(
            "Three ratios for each: first layer over last layer; step 60 over step 0; update over weight.",
            "One has updates of a millionth. One has a first layer that grows. Both are unlike all others.",
            "Of the two that remain, one loses a factor of tens of thousands from the last layer to the first.",
        ),
    ),
)
