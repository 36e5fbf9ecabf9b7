"""Slices where the landscape is known: a bowl and a saddle by hand, and a net that must not notice."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from labkit.tools.landscape import line_between, random_direction, slice_1d, slice_2d
from labkit.tools.sharpness import top_eigenpair, top_eigenvalue


class Quadratic(nn.Module):
    """Half of a * w1^2 + b * w2^2, in two parameters."""

    def __init__(self, a: float, b: float, at: tuple[float, float] = (0.0, 0.0)):
        super().__init__()
        self.curvatures = a, b
        self.first, self.second = (nn.Parameter(torch.tensor([value])) for value in at)

    def forward(self, x):
        a, b = self.curvatures
        return (a * self.first.square() + b * self.second.square()).sum() / 2


def itself(outputs, targets):
    return outputs


ALONG = {"first": torch.ones(1)}
ACROSS = {"second": torch.ones(1)}


def net(*more: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), *more, nn.ReLU(), nn.Linear(5, 3))


def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(30, 4, generator=generator), torch.randint(3, (30,), generator=generator)


def test_a_bowl_along_one_direction():
    found = slice_1d(Quadratic(4.0, 1.0), itself, None, None, ALONG, span=2, points=5)
    assert found.distances.tolist() == [-2, -1, 0, 1, 2]
    assert found.losses.tolist() == [8, 2, 0, 2, 8]  # half of 4 w^2
    assert (found.here, found.rise) == (0, 8)


def test_a_slice_begins_where_the_net_stands():
    found = slice_1d(Quadratic(4.0, 1.0, at=(1.0, 2.0)), itself, None, None, ALONG, span=1, points=3)
    assert found.losses.tolist() == [2, 4, 10]  # 2 w1^2 + w2^2 / 2 at w1 = 0, 1, 2 and w2 = 2
    assert found.here == 4


def test_a_saddle_over_two_directions():
    found = slice_2d(Quadratic(2.0, -6.0), itself, None, None, ALONG, ACROSS, span=1, points=3)
    assert found.losses.tolist() == [[-2, -3, -2], [1, 0, 1], [-2, -3, -2]]  # rows: second; columns: first
    assert (found.here, found.rise) == (0, 1)


def test_a_pair_of_ends_and_a_direction_that_leaves_weights_out():
    found = slice_1d(Quadratic(2.0, 2.0, at=(0.0, 3.0)), itself, None, None, ALONG, span=(0, 2), points=3)
    assert found.distances.tolist() == [0, 1, 2]
    assert found.losses.tolist() == [9, 10, 13]


@pytest.mark.parametrize(("span", "points"), [(1, 1), (0, 5), ((2, 1), 5)])
def test_a_ruler_needs_two_marks_and_a_length(span, points):
    with pytest.raises(ValueError, match="expected at least 2 points"):
        slice_1d(Quadratic(1.0, 1.0), itself, None, None, ALONG, span=span, points=points)


def test_the_line_between_two_nets_has_each_at_its_end():
    one, other, (x, y) = net(), net(), batch()
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(-2)
    found = slice_1d(one, cross_entropy, x, y, line_between(one, other.state_dict()), span=(0, 1), points=3)
    assert found.losses[0] == pytest.approx(cross_entropy(one(x), y).item())
    assert found.losses[-1] == pytest.approx(cross_entropy(other(x), y).item(), rel=1e-5)


def test_by_filter_every_row_gets_a_push_of_its_own_length_and_biases_stay():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 5))
    direction = random_direction(model, seed=3)
    assert set(direction) == {"0.weight", "2.weight"}
    for name, push in direction.items():
        rows = model.get_parameter(name).flatten(1).norm(dim=1)
        torch.testing.assert_close(push.flatten(1).norm(dim=1), rows.detach())


def test_by_tensor_every_tensor_gets_a_push_of_its_own_length():
    model = net()
    direction = random_direction(model, by="tensor")
    for name, weight in model.named_parameters():
        torch.testing.assert_close(direction[name].norm(), weight.detach().norm())
    with pytest.raises(ValueError, match="expected 'filter' or 'tensor', got 'layer'"):
        random_direction(model, by="layer")


def test_a_filter_of_zeros_stays_where_it_is():
    model = net()
    nn.init.zeros_(model[0].weight)
    assert random_direction(model)["0.weight"].abs().max() == 0


def test_the_seed_chooses_the_direction():
    model, (x, y) = net(), batch()
    slices = [slice_1d(model, cross_entropy, x, y, seed=seed, points=5).losses.tolist() for seed in (0, 0, 1)]
    assert slices[0] == slices[1] != slices[2]
    plane = slice_2d(model, cross_entropy, x, y, points=5)
    np.testing.assert_allclose(plane.losses[2], slices[0], rtol=1e-6)  # its middle row is the first direction alone
    assert not np.allclose(plane.losses[:, 2], slices[0])  # and the second is another


def test_scaling_a_relu_net_up_and_down_does_not_change_a_slice_by_filter():
    """Ten times the first layer and a tenth of the second is the same function, and equally sharp."""
    one, other, (x, y) = net(), net(), batch()
    with torch.no_grad():
        for weight in (other[0].weight, other[0].bias):
            weight.mul_(10)
        other[2].weight.div_(10)
    slices = [slice_1d(each, cross_entropy, x, y, points=5).losses for each in (one, other)]
    np.testing.assert_allclose(*slices, rtol=1e-4)


@pytest.mark.parametrize("slicer", [slice_1d, slice_2d])
def test_weights_buffers_modes_gradients_and_random_numbers_stay_as_they_were(slicer):
    model, (x, y) = net(nn.BatchNorm1d(5), nn.Dropout(0.5)), batch()
    model[2].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    slicer(model, cross_entropy, x, y, points=4)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert [module.training for module in model] == [True, True, False, True, True] and model.training
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_weights_are_put_back_when_the_loss_fails():
    model = Quadratic(1.0, 1.0, at=(1.0, 1.0))

    def failing(outputs, targets):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        slice_1d(model, failing, None, None, ALONG)
    assert (model.first.item(), model.second.item()) == (1, 1) and model.training


def test_infinite_losses_are_shown_as_they_are():
    found = slice_1d(Quadratic(1e38, 1.0), itself, None, None, ALONG, span=1e3, points=3)
    assert found.losses.tolist() == [np.inf, 0, np.inf]


# --- the top eigenvector --------------------------------------------------------------------------


@pytest.mark.parametrize(("a", "b", "top", "steep"), [(5.0, 1.0, 5.0, "first"), (1.0, -8.0, -8.0, "second")])
def test_the_top_eigenvector_of_a_quadratic_points_along_its_steepest_axis(a, b, top, steep):
    model = Quadratic(a, b, at=(1.0, 1.0))
    value, direction = top_eigenpair(model, itself, None, None, iterations=60)
    assert value == pytest.approx(top, rel=1e-3) == top_eigenvalue(model, itself, None, None, iterations=60)
    assert {name: abs(part.item()) for name, part in direction.items()} == pytest.approx(
        {"first": float(steep == "first"), "second": float(steep == "second")}, abs=1e-3
    )
    along = slice_1d(Quadratic(a, b), itself, None, None, direction, span=1, points=3)
    assert along.losses == pytest.approx([top / 2, 0, top / 2], rel=1e-2)


def test_no_curvature_has_no_direction():
    assert top_eigenpair(Quadratic(0.0, 0.0), itself, None, None) == (0, None)
    linear = nn.Linear(3, 1)
    assert top_eigenpair(linear, lambda outputs, _: outputs.sum(), torch.ones(2, 3), None) == (0, None)


def test_the_direction_has_length_one_over_all_weights():
    model, (x, y) = net(), batch()
    _, direction = top_eigenpair(model, cross_entropy, x, y)
    assert set(direction) == set(dict(model.named_parameters()))
    assert sum(part.square().sum() for part in direction.values()).item() == pytest.approx(1, rel=1e-4)


# --- the drawings ---------------------------------------------------------------------------------


def test_a_line_and_a_map_can_be_drawn_of_any_slice():
    from labkit.drawing.landscape import contour, line

    along = slice_1d(Quadratic(4.0, 1.0), itself, None, None, ALONG, points=5)
    ax = line({"steep": along, "again": along})
    assert [each.get_text() for each in ax.get_legend().get_texts()] == ["steep", "again"]
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), along.losses)
    ax = contour(slice_2d(Quadratic(2.0, -6.0), itself, None, None, ALONG, ACROSS, points=5))
    assert ax.get_aspect() == 1 and len(ax.figure.axes) == 2  # the map and its scale
