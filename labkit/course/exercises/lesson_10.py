"""Exercises of lesson 10, the loss landscape; and its sealed patients."""

import copy

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from labkit.course.grading import (
    Student,
    build,
    changed_tensors,
    cure,
    expect,
    expect_close,
    explain,
    number,
    sealed_runs,
)
from labkit.recording.run import Run
from labkit.tools.landscape import line_between, slice_1d

# --- the sealed patients of 10.4 ---

SEALED = {"A": "vanishing_gradients", "B": "saddle_point", "C": "learning_rate_too_low", "D": "plateau"}


def patients() -> dict[str, Run]:
    """Four runs, stopped while the loss was flat. The student finds which failure each one shows."""
    return sealed_runs(SEALED, steps=60, evaluate_every=0)


# --- 10.1 ---


def judge_top_curvature(mine: Student) -> str:
    def case(*eigenvalues: float):
        """A symmetric matrix with these eigenvalues, rotated; and a start vector whose norm is not 1."""
        generator = torch.Generator().manual_seed(len(eigenvalues))
        rotation, _ = torch.linalg.qr(torch.randn(len(eigenvalues), len(eigenvalues), generator=generator))
        matrix = rotation @ torch.diag(torch.tensor(eigenvalues)) @ rotation.T
        return (lambda vector: matrix @ vector), 7.0 * rotation.sum(1)

    seen = mine(*case(3.0, 1.0, 0.5), 40)
    size = number(seen, "the curvature")
    expect(
        size == size and abs(size) < 1e4,
        f"{size:.3g} for a top eigenvalue of 3: normalise v to length 1 after each product.",
    )
    expect_close(size, 3.0, "A curvature of 3 (is the last v of length 1 when you take v · Hv?)", 1e-3)
    size = number(mine(*case(-5.0, 2.0, 1.0, 0.1), 60), "the curvature")
    if abs(size - 5.0) < 1e-2:
        expect(False, "Expected -5, got 5. The norm of Hv has no sign: take v · Hv for a v of length 1.")
    expect(abs(size - 2.0) > 1e-2, "Got 2, but the largest in absolute value is -5: a negative curvature counts, too.")
    expect_close(size, -5.0, "A saddle: curvatures of -5, 2, 1 and 0.1", 1e-3)
    expect_close(number(mine(*case(4e4, 1e2, 1.0), 60), "the curvature"), 4e4, "A large one, 60 iterations", 1e-3)
    size = number(mine(lambda vector: 0 * vector, torch.ones(3), 10), "the curvature")
    expect(size == size, "Where Hv is 0 you divide by its norm, 0. Return 0.0 there.")
    expect_close(size, 0.0, "No curvature at all")
    calls = []
    mine(lambda vector: calls.append(1) or 2 * vector, torch.ones(3), 7)
    expect(len(calls) <= 2 * 7 + 1, f"Expected 7 iterations, but you multiplied {len(calls)} times.")
    return "The largest in absolute value, with its sign, and no division by 0."


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
    seen = torch.as_tensor(mine.in_place(net, other, cross_entropy, x, y, 5)).detach().double()
    expect(seen.shape == (5,), f"Expected 5 points; you returned the shape {tuple(seen.shape)}.")
    _expect_untouched((net, other), before)
    expect(net.training and not other.training, "The nets were in train and in eval mode, and are left in other modes.")
    expected = torch.as_tensor(right)
    if torch.allclose(seen, expected.flip(0), rtol=1e-4):
        expect(False, "Correct losses in the wrong order: start at `net` and end at `other`.")
    if torch.allclose(seen, torch.linspace(0, 1, 5).double() * (right[-1] - right[0]) + right[0], rtol=1e-3):
        expect(False, "You interpolated the two losses. Interpolate the weights, and compute the loss of that net.")
    again = torch.as_tensor(mine.in_place(net, other, cross_entropy, x, y, 5)).detach().double()
    expect(torch.equal(seen, again), "Two identical calls gave different losses: dropout is on. Measure in eval mode.")
    expect_close(seen[0], right[0], "The first loss is that of `net` itself", 1e-4)
    expect_close(seen[-1], right[-1], "The last loss is that of `other`", 1e-4)
    expect_close(seen, right, "Five points between two nets (does each point start from `net` again?)", 1e-4)
    return "From one net to the other in eval mode, and both are unchanged."


def _expect_untouched(nets, before) -> None:
    for name, net, state in zip(("net", "other"), nets, before, strict=True):
        moved = changed_tensors(net, state)
        expect(not moved, f"The weights of `{name}` were changed. Work on a copy, or restore them.")


# --- 10.2 is a cure, 10.4 the evidence ---

ALIVE = "its gradients and updates are of normal size. Compare the first layer with the last, and over time."

exercises = (
    build(
        "10.1",
        "Power iteration",
        judge_top_curvature,
        example="top_curvature(times, start, iterations)",
        points=3,
        hints=(
            "Which component of v does H amplify most? And what keeps v from exploding?",
            "In a loop: product = times(v); then v = product, normalised to length 1.",
            "With v of length 1, the eigenvalue is v · Hv. It has a sign; the norm of Hv has none.",
            "Before you divide by product.norm(), test whether it is 0.",
        ),
    ),
    cure(
        "10.2",
        "Escape the saddle with the same init",
        "saddle_point",
        keep=("init", "init_scale"),
        seeds=(11,),
        points=3,
        hints=(
            "The gradient of the first layer is tiny, but it points in the same direction at every step.",
            "What accumulates steps in one direction? What turns a small gradient into a full step?",
            "Look at the entries `momentum` and `optimizer` (with a matching learning rate).",
        ),
    ),
    build(
        "10.3",
        "A slice through two nets",
        judge_losses_between,
        example="losses_between(net, other, loss, x, y, points)",
        points=3,
        hints=(
            "Interpolate weights, not losses. And whose weights may you overwrite?",
            "Make a copy with copy.deepcopy(net).eval() and change only that one.",
            "zip(copy.parameters(), net.parameters(), other.parameters()) gives the three versions of each parameter.",
            "weight.copy_(a + share * (b - a)) under torch.no_grad(), for share in torch.linspace(0, 1, points).",
        ),
    ),
    explain(
        "10.4",
        "Four flat losses",
        modes=tuple(SEALED.values()),
        points=4,
        right=SEALED,
        because="The gradient of A's first layer is tens of thousands of times smaller than that of its last. "
        "B's grows "
        "manyfold while the loss is flat. C has large gradients, and updates of less than a millionth of the "
        "weights. D has constant, normal gradients and is slow.",
        wrong={
            "A": {
                "plateau": "compare its first layer with its last: on a plateau they differ by a factor of a "
                "few tens at most.",
                "saddle_point": "at a saddle the first layer's gradient grows by itself. This one stays constant.",
                "learning_rate_too_low": "its last layer changes by a hundredth per step. That learning rate is "
                "not low.",
                "zero_init": "then the first layer's gradient would be exactly 0, not merely tiny.",
            },
            "B": {
                "plateau": "on a plateau the first layer's gradient stays constant. What does this one do?",
                "learning_rate_too_low": "its updates are large relative to its weights.",
                "vanishing_gradients": "small at the start, yes. But look at how it grows within 60 steps.",
                "zero_init": "then the first layer's gradient would be exactly 0, and stay 0.",
            },
            "C": {
                "plateau": "its gradients are as large as those of a healthy net. How large are its updates?",
                "saddle_point": "its gradients are as large as those of a healthy net. How large are its updates?",
                "vanishing_gradients": "its first layer gets a larger gradient than its last.",
                "zero_init": "its first layer has a gradient, and a large one.",
            },
            "D": {
                "saddle_point": "at a saddle the first layer's gradient grows manyfold. This one is constant.",
                "learning_rate_too_low": ALIVE,
                "vanishing_gradients": "the first layer's gradient is about a sixth of the last one's. "
                "Vanishing means a thousandth.",
                "zero_init": "then the first layer's gradient would be exactly 0.",
            },
        },
        hints=(
            "Three ratios for each: first layer over last layer; step 60 over step 0; update over weight.",
            "One has updates of less than a millionth. One has a first-layer gradient that grows. No other run shows "
            "these.",
            "In one of the other two, gradients shrink by tens of thousands from the last layer to the first.",
        ),
    ),
)
