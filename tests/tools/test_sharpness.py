"""Sharpness where it is known: quadratics with a given Hessian, and a Hessian written out by autograd."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from labkit.tools.sharpness import extreme_eigenvalues, perturbed_rise, top_eigenvalue


class Quadratic(nn.Module):
    """Half w' diag(curvatures) w, in two parameters; its gradient at the origin is 0."""

    def __init__(self, *curvatures: float, at: float = 1.0):
        super().__init__()
        self.register_buffer("curvatures", torch.tensor(curvatures))
        self.first, self.rest = nn.Parameter(torch.full((1,), at)), nn.Parameter(torch.full((len(curvatures) - 1,), at))

    def forward(self, x):
        return (self.curvatures * torch.cat([self.first, self.rest]).square()).sum() / 2


def itself(outputs, targets):
    return outputs


@pytest.mark.parametrize("at", [0.0, 1.0])
@pytest.mark.parametrize("curvatures", [(5.0, 1.0, 0.5), (1.0, 0.0, 7.0), (3.0, -8.0, 1.0), (-4.0, -1.0, -2.0)])
def test_the_top_eigenvalue_of_a_quadratic_with_its_sign(curvatures, at):
    top = max(curvatures, key=abs)
    found = top_eigenvalue(Quadratic(*curvatures, at=at), itself, None, None, iterations=60)
    assert found == pytest.approx(top, rel=1e-3)  # negative at a maximum or a saddle


@pytest.mark.parametrize("at", [0.0, 1.0])
@pytest.mark.parametrize("curvatures", [(5.0, 1.0, 0.5), (4.0, -4.0, 1.0), (3.0, -8.0, 1.0), (-4.0, -1.0, -2.0)])
def test_the_extreme_eigenvalues_also_where_two_have_the_same_size(curvatures, at):
    found = extreme_eigenvalues(Quadratic(*curvatures, at=at), itself, None, None, iterations=60)
    assert found == pytest.approx((min(curvatures), max(curvatures)), rel=1e-3)


def test_the_lowest_eigenvalue_tells_a_saddle_from_a_minimum():
    """Two layers of weights near 0: along their common direction down, against each other up."""

    class Product(nn.Module):
        def __init__(self, at):
            super().__init__()
            self.first, self.last = nn.Parameter(torch.tensor([at])), nn.Parameter(torch.tensor([at]))

        def forward(self, x):
            return (self.first * self.last - 1).square().sum()

    assert extreme_eigenvalues(Product(0.0), itself, None, None) == pytest.approx((-2, 2), rel=1e-3)
    lowest, highest = extreme_eigenvalues(Product(1.0), itself, None, None)
    assert lowest == pytest.approx(0, abs=1e-3) and highest == pytest.approx(4, rel=1e-3)


def test_no_curvature_is_zero():
    assert extreme_eigenvalues(Quadratic(0.0, 0.0), itself, None, None) == (0, 0)
    assert top_eigenvalue(Quadratic(0.0, 0.0), itself, None, None) == 0
    linear = nn.Linear(3, 1)
    assert top_eigenvalue(linear, lambda outputs, _: outputs.sum(), torch.ones(2, 3), None) == 0


def test_the_top_eigenvalue_of_a_small_net_against_its_whole_hessian():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = torch.randn(30, 4, dtype=torch.float64), torch.randint(3, (30,))
    shapes = {name: weight.shape for name, weight in net.named_parameters()}

    def loss(flat):
        pieces = flat.split([math.prod(shape) for shape in shapes.values()])
        weights = {name: piece.view(shape) for piece, (name, shape) in zip(pieces, shapes.items(), strict=True)}
        return cross_entropy(torch.func.functional_call(net, weights, (x,)), y)

    flat = torch.cat([weight.detach().flatten() for weight in net.parameters()])
    eigenvalues = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, flat))
    top = eigenvalues[eigenvalues.abs().argmax()].item()
    assert top_eigenvalue(net, cross_entropy, x, y, iterations=100) == pytest.approx(top, rel=1e-3)
    assert top_eigenvalue(net, cross_entropy, x, y, iterations=20) == pytest.approx(top, rel=0.1)


def test_frozen_and_unused_weights_have_no_part_in_it():
    model = Quadratic(9.0, 2.0, 1.0)
    around = nn.ModuleDict({"before": nn.Linear(3, 3), "model": model, "after": nn.Linear(3, 3)})
    around.forward = model.forward
    assert top_eigenvalue(around, itself, None, None, iterations=40) == pytest.approx(9, rel=1e-3)
    model.first.requires_grad_(False)
    assert top_eigenvalue(model, itself, None, None, iterations=40) == pytest.approx(2, rel=1e-3)


def test_a_weight_in_which_the_loss_is_linear_has_no_part_in_it():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.straight, self.curved = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))

        def forward(self, x):
            return self.straight.sum() + (torch.tensor([6.0, 1.0]) * self.curved.square()).sum() / 2

    assert top_eigenvalue(Half(), itself, None, None, iterations=40) == pytest.approx(6, rel=1e-3)


def test_measuring_leaves_weights_gradients_and_random_numbers_alone():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    x, y = torch.randn(30, 4), torch.randint(3, (30,))
    before = [weight.clone() for weight in net.parameters()]
    state = torch.get_rng_state()
    one = top_eigenvalue(net, cross_entropy, x, y), perturbed_rise(net, cross_entropy, x, y)
    assert all(torch.equal(*pair) for pair in zip(before, net.parameters(), strict=True))
    assert all(weight.grad is None for weight in net.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    assert one == (top_eigenvalue(net, cross_entropy, x, y), perturbed_rise(net, cross_entropy, x, y))


def test_weights_are_put_back_when_the_loss_fails():
    model, calls = Quadratic(1.0, 1.0), []

    def failing(outputs, targets):
        calls.append(1)
        if len(calls) == 3:
            raise ZeroDivisionError
        return outputs

    with pytest.raises(ZeroDivisionError):
        perturbed_rise(model, failing, None, None)
    assert torch.equal(model.first, torch.ones(1)) and torch.equal(model.rest, torch.ones(1))


def test_the_rise_is_that_of_a_push_of_the_given_size():
    """Around the minimum of |w - 1|^2 / 2 a push of `size` times |w| costs size^2 |w|^2 / 2, whatever its direction."""

    class Bowl(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(50))

        def forward(self, x):
            return (self.weight - 1).square().sum() / 2

    for size in (0.1, 0.2):
        assert perturbed_rise(Bowl(), itself, None, None, size=size) == pytest.approx(size**2 * 50 / 2, rel=1e-3)


def test_a_sharper_valley_rises_more():
    flat, sharp = (perturbed_rise(Quadratic(*[scale] * 8), itself, None, None) for scale in (1.0, 10.0))
    assert flat != 0 and sharp == pytest.approx(10 * flat, rel=1e-3)
    others = {perturbed_rise(Quadratic(*[1.0] * 8), itself, None, None, seed=seed) for seed in range(3)}
    assert len(others) == 3  # the seed chooses the pushes
