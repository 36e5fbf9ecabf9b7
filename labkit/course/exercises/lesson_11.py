"""Exercises and predictions of lesson 11, the loss landscape; and its sealed patients."""

import copy

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from labkit.course.grading import (
    Student,
    build,
    changed_tensors,
    expect,
    expect_close,
    explain,
    number,
    sealed_runs,
)
from labkit.course.loops import Outcome, images, loop
from labkit.course.predictions import prediction
from labkit.recording.run import Run
from labkit.tools.landscape import line_between, slice_1d

# --- the sealed patients of 11.5 ---

SEALED = {"A": "vanishing_gradients", "B": "saddle_point", "C": "learning_rate_too_low", "D": "plateau"}


def patients() -> dict[str, Run]:
    """Four runs, stopped while the loss was flat. The student finds which failure each one shows."""
    return sealed_runs(SEALED, steps=60, evaluate_every=0)


# --- 11.1 ---


def with_eigenvalues(*eigenvalues: float):
    """The product with a symmetric matrix of these eigenvalues, rotated; and a start vector whose norm is not 1."""
    generator = torch.Generator().manual_seed(len(eigenvalues))
    rotation, _ = torch.linalg.qr(torch.randn(len(eigenvalues), len(eigenvalues), generator=generator))
    matrix = rotation @ torch.diag(torch.tensor(eigenvalues)) @ rotation.T
    return (lambda vector: matrix @ vector), 7.0 * rotation.sum(1)


def judge_top_curvature(mine: Student) -> str:
    seen = mine(*with_eigenvalues(3.0, 1.0, 0.5), 40)
    size = number(seen, "the curvature")
    expect(
        size == size and abs(size) < 1e4,
        f"{size:.3g} for a top eigenvalue of 3: normalise v to length 1 after each product.",
    )
    expect_close(size, 3.0, "A curvature of 3 (is the last v of length 1 when you take v · Hv?)", 1e-3)
    size = number(mine(*with_eigenvalues(-5.0, 2.0, 1.0, 0.1), 60), "the curvature")
    if abs(size - 5.0) < 1e-2:
        expect(False, "Expected -5, got 5. The norm of Hv has no sign: take v · Hv for a v of length 1.")
    expect(abs(size - 2.0) > 1e-2, "Got 2, but the largest in absolute value is -5: a negative curvature counts, too.")
    expect_close(size, -5.0, "A saddle: curvatures of -5, 2, 1 and 0.1", 1e-3)
    expect_close(
        number(mine(*with_eigenvalues(4e4, 1e2, 1.0), 60), "the curvature"), 4e4, "A large one, 60 iterations", 1e-3
    )
    size = number(mine(lambda vector: 0 * vector, torch.ones(3), 10), "the curvature")
    expect(size == size, "Where Hv is 0 you divide by its norm, 0. Return 0.0 there.")
    expect_close(size, 0.0, "No curvature at all")
    calls = []
    mine(lambda vector: calls.append(1) or 2 * vector, torch.ones(3), 7)
    expect(len(calls) <= 2 * 7 + 1, f"Expected 7 iterations, but you multiplied {len(calls)} times.")
    return "The largest in absolute value, with its sign, and no division by 0."


# --- 11.2 ---


def judge_lowest_curvature(mine: Student) -> str:
    size = number(mine(*with_eigenvalues(4.0, -1.0, 0.5), 60), "the lowest curvature")
    expect(abs(size - 4.0) > 1e-2, "Got 4, the largest of 4, -1 and 0.5. Shift before you iterate: Hv - s v.")
    expect(
        abs(size + 5.0) > 1e-2,
        "Got -5 for a lowest eigenvalue of -1: that is the eigenvalue of the shifted matrix. Return v · Hv.",
    )
    expect_close(size, -1.0, "Eigenvalues of 4, -1 and 0.5", 1e-2)
    size = number(mine(*with_eigenvalues(2.0, -2.0, 1.0), 60), "the lowest curvature")
    otherwise = f"A pair, 2 and -2: got {size:.3g}, expected -2. Shift by the length of Hv, not by v · Hv."
    expect(abs(size + 2.0) < 2e-2, otherwise)
    size = number(mine(*with_eigenvalues(-5.0, 2.0, 1.0, 0.1), 60), "the lowest curvature")
    expect_close(size, -5.0, "The lowest is also the largest in size: -5, 2, 1 and 0.1", 1e-2)
    size = number(mine(*with_eigenvalues(3.0, 2.0, 1.0), 60), "the lowest curvature")
    expect_close(size, 1.0, "A minimum: eigenvalues of 3, 2 and 1", 2e-2)
    size = number(mine(lambda vector: 0 * vector, torch.ones(3), 10), "the lowest curvature")
    expect(size == size, "Where Hv is 0 you divide by its norm, 0. Return 0.0 there.")
    expect_close(size, 0.0, "No curvature at all")
    return "The lowest eigenvalue, also where two have the same size and opposite signs."


# --- 11.3 ---


def checkpoint() -> nn.Module:
    """A net whose weights are all close to 0: a saddle point."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.Tanh(), nn.Linear(64, 10))
    for weight in net.parameters():
        nn.init.normal_(weight, std=1e-8)
    return net


def with_momentum(model: nn.Module, loader: DataLoader) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(6):
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()


def in_six_passes(outcome: Outcome) -> None:
    passes = outcome.run["step"][-1] / len(outcome.setting.loader)
    expect(passes < 7, f"Six passes through the loader, please; yours took {passes:.0f}.")


# --- 11.4 ---


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


# --- 11.6 ---


def judge_sam_backward(mine: Student) -> str:
    """A net without hidden units and a squared error: its gradient at any place is known."""

    def case() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(5)
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        with torch.no_grad():
            for weight in net.parameters():
                weight.copy_(torch.randn(weight.shape, generator=generator))
        x = torch.randn(20, 3, generator=generator).double()
        return net, x, torch.randint(0, 2, (20,), generator=generator)

    def gradients(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.autograd.grad(cross_entropy(net(x), y), list(net.parameters())))

    def seen(rho: float) -> list[torch.Tensor]:
        net, x, y = case()
        before = copy.deepcopy(net.state_dict())
        mine.call_or_none(net, cross_entropy, x, y, rho)
        moved = changed_tensors(net, before)
        expect(not moved, "The weights of the net are not what they were: undo the step before you return.")
        found = [weight.grad for weight in net.parameters()]
        expect(
            all(each is not None for each in found), "Some weights have no .grad: call .backward() at the new place."
        )
        return found

    def at(rho: float, each_layer: bool = False) -> list[torch.Tensor]:
        net, x, y = case()
        slopes = gradients(net, x, y)
        norm = torch.cat([slope.flatten() for slope in slopes]).norm()
        with torch.no_grad():
            for weight, slope in zip(net.parameters(), slopes, strict=True):
                weight.add_(rho * slope / (slope.norm() if each_layer else norm))
        return gradients(net, x, y)

    def same(ones: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
        return all(torch.allclose(*pair, rtol=1e-4, atol=1e-7) for pair in zip(ones, others, strict=True))

    expect(same(seen(0.0), at(0.0)), "With rho = 0 it should be the ordinary gradient.")
    found, plain, wanted = seen(0.5), at(0.0), at(0.5)
    expect(not same(found, plain), "With rho = 0.5 you return the gradient at the old place. Take it at the new one.")
    both = [one + two for one, two in zip(plain, wanted, strict=True)]
    expect(not same(found, both), "The two gradients were added up: clear the first before the second .backward().")
    expect(not same(found, at(0.5, each_layer=True)), "You took the norm of each tensor. Take one over all weights.")
    expect(not same(found, at(-0.5)), "You walked downhill. The worst place nearby lies uphill, along +g.")
    expect(same(found, wanted), "With rho = 0.5 the gradients are not those at w + rho g / |g|.")
    return "The gradient of the worst place nearby, and the net is unchanged."


# --- 11.5 is the evidence ---

ALIVE = "its gradients and updates are of normal size. Compare the first layer with the last, and over time."

exercises = (
    build(
        "11.1",
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
    build(
        "11.2",
        "The lowest curvature",
        judge_lowest_curvature,
        example="lowest_curvature(times, start, iterations)",
        points=2,
        hints=(
            "Two loops: the first finds the size s, the second iterates with Hv - s v.",
            "Take s = (Hv).norm() for a v of length 1. For a pair, v · Hv may be anything between -s and s.",
            "The eigenvalue is still v · Hv, not v · (Hv - s v).",
        ),
    ),
    loop(
        "11.3",
        "Escape the saddle with the same weights",
        images(checkpoint),
        with_momentum,
        example="train(model, loader)",
        free_of=("saddle_point",),
        also=in_six_passes,
        points=3,
        hints=(
            "The gradient of the first layer is tiny, but it points in the same direction at every step.",
            "What accumulates steps in one direction? What turns a small gradient into a full step?",
            "torch.optim.SGD has momentum=..., and torch.optim.Adam divides by the size of the gradient.",
        ),
    ),
    build(
        "11.4",
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
        "11.5",
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
    build(
        "11.6",
        "Optional: a sharpness-aware gradient",
        judge_sam_backward,
        example="sam_backward(net, loss, x, y, rho)",
        hints=(
            "Four parts: backward here, step uphill, backward there, step back.",
            "Copies of the weights before the step are safer than subtracting it again.",
            "One norm over all gradients: torch.cat([weight.grad.flatten() for weight in weights]).norm().",
            "Clear the gradients between the two backward passes.",
        ),
    ),
)

predictions = (
    prediction(
        "11.0",
        correct=2,
        why="The gradient of each layer is proportional to the weights of the other, and so is its noise. Near 0 there "
        "is next to nothing to shake.",
        wrong={
            1: "Smaller batches are noisier in relation to the gradient, but here both shrink together.",
            3: "It does escape: the way down doubles every eight steps, with small batches too.",
        },
    ),
)
