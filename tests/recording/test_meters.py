"""The measuring devices against cases worked out by hand, by autograd, or in float64."""

import math

import numpy as np
import pytest
import torch
from helpers import tiny, trained
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.diagnosis.watch import yes_or_no_of_probabilities
from labkit.recording.guard import Guard
from labkit.recording.meters import (
    BINS,
    BLOCK,
    COUNTED,
    HISTOGRAM_SAMPLES,
    LARGE,
    NEAR_ZERO,
    PAIRS,
    SAMPLES,
    SILENT,
    ActivationMeter,
    AttentionWeights,
    Probe,
    WeightMeter,
    batch_softmax_distance,
    constant_loss,
    dead_share,
    entropy,
    first_weights,
    histogram,
    layer_of,
    looks_fresh,
    nonlinearity,
)
from labkit.recording.run import NoTrace, Run
from labkit.recording.summaries import unexplained
from labkit.recording.undisturbed import captured, evaluating

# --- gradients, weights and updates ---------------------------------------------------------------


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(300, 20), nn.BatchNorm1d(20), nn.Tanh(), nn.Linear(20, 5))


@torch.no_grad()
def measured(model: nn.Module, meter: WeightMeter | None = None) -> dict[str, np.ndarray]:
    """All traces of one look at the gradients that are there."""
    meter = meter or WeightMeter(model)
    return meter.traces([meter.measure(torch.tensor(1.25))])


def with_gradients(model: nn.Module, scale: float = 1.0, dtype=torch.float32) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    for weight in model.parameters():
        weight.grad = (scale * torch.randn(weight.shape, generator=generator)).to(dtype)
    return model


def per_layer(tensors: dict[str, torch.Tensor]) -> list[float]:
    """Norm of all tensors of a layer together, in float64, layer after layer."""
    squares: dict[str, float] = {}
    for name, tensor in tensors.items():
        layer = name.rpartition(".")[0]
        squares[layer] = squares.get(layer, 0.0) + tensor.detach().double().square().sum().item()
    return [math.sqrt(square) for square in squares.values()]


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.grad for name, weight in model.named_parameters()}


def test_norms_against_autograd():
    model = net()
    cross_entropy(model(torch.randn(40, 300)), torch.randint(5, (40,))).backward()
    found = measured(model)
    assert found["grad_norm"][0] == pytest.approx(per_layer(gradients(model)), rel=1e-5)
    everything = torch.cat([weight.grad.flatten() for weight in model.parameters()])
    assert found["grad_norm_total"][0] == pytest.approx(everything.double().norm().item(), rel=1e-5)
    assert found["weight_norm"][0] == pytest.approx(per_layer(dict(model.named_parameters())), rel=1e-5)
    assert found["loss"].tolist() == [1.25]


def test_layers_and_parameters_are_in_forward_order():
    meter = WeightMeter(net())
    assert meter.layers == ("0", "1", "3")
    assert meter.names == ("0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias")
    assert meter.matrices == ["0", "3"]
    assert layer_of("block2.layer1.weight") == "block2.layer1"
    assert layer_of("position") == "position"


def assert_spread_is_right(model: nn.Module, rel: float = 1e-4) -> None:
    found = measured(model)
    for index, (name, weight) in enumerate(model.named_parameters()):
        gradient = weight.grad.double()
        size = gradient.abs().max().item()
        truth = {
            "grad_mean": gradient.mean().item(),
            "grad_std": gradient.std(correction=0).item(),
            "grad_min": gradient.min().item(),
            "grad_max": gradient.max().item(),
            "grad_near_zero": (gradient.abs() < NEAR_ZERO).double().mean().item(),
        }
        for trace, value in truth.items():
            assert found[trace][0, index] == pytest.approx(value, rel=rel, abs=1e-7 * size), (name, trace)


@pytest.mark.parametrize("scale", [1e-25, 1e-9, 1.0, 1e22])
def test_spread_of_each_gradient(scale):
    assert_spread_is_right(with_gradients(net(), scale))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_spread_of_sixteen_bit_gradients(dtype):
    assert_spread_is_right(with_gradients(net().to(dtype), dtype=dtype))


@pytest.mark.parametrize("spread", [0.0, 1e-5, 1e-3, 0.05, 0.2])
def test_spread_of_nearly_equal_gradients(spread):
    """One pass gives 2e-4 where the truth is 0: symmetric weights would not be seen to be symmetric."""
    model = net()
    for weight in model.parameters():
        weight.grad = 0.3 * (1 + spread * torch.randn(weight.shape))
    found = measured(model)["grad_std"][0]
    truth = [weight.grad.double().std(correction=0).item() for weight in model.parameters()]
    assert found == pytest.approx(truth, rel=1e-3, abs=1e-12)


def test_the_spread_of_each_look_is_kept_apart():
    model, rows, truth = net(), [], []
    meter = WeightMeter(model)
    for spread in (1.0, 1e-4, 1.0, 1e-4):
        for weight in model.parameters():
            weight.grad = 0.3 * (1 + spread * torch.randn(weight.shape))
        with torch.no_grad():
            rows.append(meter.measure(torch.tensor(0.0)))
        truth.append([weight.grad.double().std(correction=0).item() for weight in model.parameters()])
    assert meter.traces(rows)["grad_std"] == pytest.approx(np.array(truth), rel=1e-3)


def test_near_zero_counts_exactly_the_entries_below_its_limit():
    model = nn.Linear(10, 10, bias=False)
    model.weight.grad = torch.full((10, 10), 1.0)
    model.weight.grad.view(-1)[:7] = torch.tensor([0, 0.99, -0.99, 1.01, -1.01, 1e-20, -1e-30]) * NEAR_ZERO
    assert measured(model)["grad_near_zero"].tolist() == [[pytest.approx(5 / 100)]]


def half(gradient: torch.Tensor, what: str) -> None:
    places = {"rows": (slice(None, 64),), "every other row": (slice(None, None, 2),), "columns": (..., slice(392)),
              "every other column": (..., slice(None, None, 2)), "middle": (..., slice(196, 588))}  # fmt: skip
    gradient[places[what]] = 0


@pytest.mark.parametrize("what", ["rows", "every other row", "columns", "every other column", "middle"])
def test_near_zero_of_a_large_gradient_is_told_by_a_sample(what):
    model = nn.Linear(784, 128)
    assert model.weight.numel() > COUNTED >= model.bias.numel()
    model.weight.grad, model.bias.grad = torch.ones(128, 784), torch.ones(128)
    half(model.weight.grad, what)
    model.bias.grad[:3] = 0
    found = measured(model)["grad_near_zero"][0]
    assert found[0] == pytest.approx(0.5, abs=0.02)
    assert found[1] == pytest.approx(3 / 128)  # all of a small one


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_every_look_is_measured_whatever_the_block(extra):
    model = net()
    meter, rows, truth = WeightMeter(model), [], []
    for look in range(2 * BLOCK + extra):
        with_gradients(model, 1.0 + look)
        truth.append([per_layer(gradients(model)), per_layer(dict(model.named_parameters()))])
        with torch.no_grad():
            rows.append(meter.measure(torch.tensor(float(look))))
            for weight in model.parameters():
                weight.mul_(1.01)
        found = meter.traces(rows)  # at any time, and it changes nothing
    assert found["loss"].tolist() == list(range(len(rows)))
    assert found["grad_norm"] == pytest.approx(np.array([one for one, _ in truth]), rel=1e-5)
    assert found["weight_norm"] == pytest.approx(np.array([one for _, one in truth]), rel=1e-5)
    assert found["update_norm"] == pytest.approx(0.01 * found["weight_norm"], rel=1e-3)


@pytest.mark.parametrize(("scale", "finite"), [(1.0, True), (1e38, True), (math.inf, False), (math.nan, False)])
def test_a_look_tells_at_once_whether_all_is_finite(scale, finite):
    model = net()
    for weight in model.parameters():
        weight.grad = torch.full_like(weight, scale)  # 1e38: the float32 sum overflows, no entry does
    with torch.no_grad():
        row = WeightMeter(model).measure(torch.tensor(2.5))
    assert row[0] == 2.5 and math.isfinite(sum(row)) == finite


@pytest.mark.parametrize("scale", [1e-25, 1e22])
def test_norms_of_tiny_and_huge_gradients_and_weights(scale):
    model = with_gradients(net(), scale)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(scale)
    found = measured(model)
    assert found["grad_norm"][0] == pytest.approx(per_layer(gradients(model)), rel=1e-5, abs=0)
    assert found["weight_norm"][0] == pytest.approx(per_layer(dict(model.named_parameters())), rel=1e-5, abs=0)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_layer_that_is_not_finite_does_not_hide_the_others(bad):
    model = with_gradients(net())
    expected = measured(model)
    model[3].weight.grad[2, 3] = bad
    found = measured(model)
    assert np.isfinite(found["grad_norm"][0]).tolist() == [True, True, False]
    assert found["grad_norm"][0, :2] == pytest.approx(expected["grad_norm"][0, :2])
    assert np.isfinite(found["grad_mean"][0]).tolist() == [True, True, True, True, False, True]
    assert found["weight_norm"] == pytest.approx(expected["weight_norm"])
    assert not np.isfinite(found["grad_norm_total"][0])


def test_updates_are_what_the_weights_did_between_two_looks():
    model = with_gradients(net())
    meter, rows, snapshots = WeightMeter(model), [], []
    with torch.no_grad():
        for size in (0.1, 0.02, 1e-24, 0.5):
            rows.append(meter.measure(torch.tensor(0.0)))
            snapshots.append({name: weight.clone() for name, weight in model.named_parameters()})
            for weight in model.parameters():
                weight.add_(size * torch.randn(weight.shape))
    snapshots.append(dict(model.named_parameters()))
    found = meter.traces(rows)
    for step in range(4):
        before, after = snapshots[step], snapshots[step + 1]
        moved = per_layer({name: after[name].double() - before[name].double() for name in before})
        assert found["update_norm"][step] == pytest.approx(moved, rel=1e-5)
        assert found["weight_norm"][step] == pytest.approx(per_layer(before), rel=1e-5)
        assert found["update_ratio"][step] == pytest.approx(np.array(moved) / per_layer(before), rel=1e-5)


def test_an_update_of_weights_that_are_all_zero_is_a_number():
    model = nn.Linear(3, 2, bias=False)
    nn.init.zeros_(model.weight)
    meter = WeightMeter(with_gradients(model))
    with torch.no_grad():
        row = meter.measure(torch.tensor(0.0))
        model.weight.add_(1e-3)
    assert np.isfinite(meter.traces([row])["update_ratio"]).all()


def test_a_frozen_parameter_has_no_gradient_and_is_named():
    model = with_gradients(net())
    model[0].weight.requires_grad_(False).grad = None
    meter = WeightMeter(model)
    found = measured(model, meter)
    assert meter.without_gradient == {"0.weight"}
    assert found["grad_norm"][0, 0] == pytest.approx(model[0].bias.grad.norm().item(), rel=1e-5)
    assert found["grad_near_zero"][0, 0] == 1
    assert [found[name][0, 0] for name in ("grad_mean", "grad_std", "grad_min", "grad_max")] == [0, 0, 0, 0]


def large_and_small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 600), nn.Linear(600, 40), nn.Linear(40, 5))


def test_layers_may_be_frozen_and_unfrozen_on_the_way():
    model = large_and_small()
    meter, rows, truth = WeightMeter(model), [], []
    for look in range(2 * BLOCK + 3):
        with_gradients(model, 1.0 + look)
        frozen = [[], [0, 1], [2, 3], [0, 1, 2, 3]][look // 3 % 4]
        for layer in frozen:
            model[layer].weight.grad = model[layer].bias.grad = None
        with torch.no_grad():
            rows.append(meter.measure(torch.tensor(0.0)))
            for weight in model.parameters():
                weight.mul_(1.0 if weight.grad is None else 1.01)
        assert rows[-1][1] == pytest.approx(norm_of_all(model), rel=1e-5)
        found = {name: torch.zeros_like(weight) if weight.grad is None else weight.grad
                 for name, weight in model.named_parameters()}  # fmt: skip
        truth.append([per_layer(found), [each.std(correction=0).item() for each in found.values()], frozen])
    found = meter.traces(rows)
    assert found["grad_norm"] == pytest.approx(np.array([each for each, _, _ in truth]), rel=1e-5)
    assert found["grad_std"] == pytest.approx(np.array([each for _, each, _ in truth]), rel=1e-4)
    for look, (_, _, frozen) in enumerate(truth):
        moved = [0.0 if layer in frozen else 0.01 * found["weight_norm"][look, layer] for layer in range(4)]
        assert found["update_norm"][look] == pytest.approx(moved, rel=1e-3)
        assert [found[name][look, ::2].tolist() == [0.0] * 4 for name in ("grad_min", "grad_max")] == [
            len(frozen) == 4
        ] * 2
    assert meter.without_gradient == set(meter.names)


def norm_of_all(model: nn.Module) -> float:
    return math.sqrt(
        sum(weight.grad.double().square().sum().item() for weight in model.parameters() if weight.grad is not None)
    )


class Widened(TorchDispatchMode):
    """Counts the entries that are converted to float64 and the zeros that are allocated."""

    def __init__(self):
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if name == "zeros_like" or (name == "_to_copy" and found.dtype == torch.float64):
            self.entries += found.numel()
        return found


@pytest.mark.parametrize("without", ["no gradient", "a gradient of zeros"])
def test_a_layer_that_does_not_move_is_not_measured_in_float64(without):
    """It took as long as the step itself: a norm of 0 was taken for one that underflows."""
    model = with_gradients(large_and_small())
    for layer in model[1:3]:
        for weight in layer.parameters():
            weight.grad = None if without == "no gradient" else torch.zeros_like(weight)
    meter = WeightMeter(model)
    with torch.no_grad(), Widened() as widened:
        for _ in range(BLOCK + 1):
            meter.hold(full=False)
            for layer in (model[0], model[3]):
                layer.weight.mul_(1.01)
                layer.bias.mul_(1.01)
    assert widened.entries < 100 * (BLOCK + 1)  # the norms themselves; the layers have 42,000 entries


@pytest.mark.parametrize("at", [0, 1])  # a small matrix, and a large one
def test_gradients_and_updates_whose_squares_underflow_are_not_taken_for_zero(at):
    model = with_gradients(large_and_small(), 1e-25)
    nn.init.zeros_(model[at].weight)
    meter = WeightMeter(model)
    with torch.no_grad():
        row = [meter.measure(torch.tensor(0.0))]
        model[at].weight.fill_(1e-24)
        row.append(meter.measure(torch.tensor(0.0)))
    found = meter.traces(row)
    assert found["update_norm"][0, at] == pytest.approx(1e-24 * math.sqrt(model[at].weight.numel()), rel=1e-5, abs=0)
    assert found["grad_norm"][0] == pytest.approx(per_layer(gradients(model)), rel=1e-5, abs=0)


def test_a_scalar_parameter_is_measured_too():
    model = nn.ParameterDict({"scale": nn.Parameter(torch.tensor(3.0))})
    model["scale"].grad = torch.tensor(-2.0)
    found = measured(model)
    assert [found[name][0, 0] for name in ("grad_norm", "weight_norm", "grad_mean")] == [2, 3, -2]
    assert found["grad_std"][0, 0] == 0


def test_no_look_gives_empty_traces_of_the_right_width():
    found = WeightMeter(net()).traces([])
    assert found["grad_norm"].shape == (0, 3) and found["grad_mean"].shape == (0, 6) and found["loss"].shape == (0,)


# --- activations ----------------------------------------------------------------------------------


class Told(nn.Module):
    """A net whose activations are told: `layers` by name, their values by `forward`."""

    def __init__(self, **layers: nn.Module):
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x):
        for layer in self.children():
            x = layer(x)
        return x


def activations(model: nn.Module, *batches: torch.Tensor) -> dict[str, np.ndarray]:
    meter = ActivationMeter(model)
    meter.attach()
    for batch in batches:
        model(batch)
        meter.keep(len(meter.measured))
    meter.detach()
    return meter.traces(len(batches))


def test_activations_against_the_definition():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 50), nn.ReLU(), nn.Linear(50, 40), nn.Sigmoid())
    batch = torch.randn(100, 30)
    found = activations(model, batch)
    part = batch[:SAMPLES]
    values = [part, model[:2](part), model(part), model(part)]  # inputs, relu, sigmoid, outputs
    assert found["activation_mean"][0] == pytest.approx([value.mean().item() for value in values], rel=1e-5)
    stds = [value.double().std(correction=0).item() for value in values]
    assert found["activation_std"][0] == pytest.approx(stds, rel=1e-5)


def test_every_step_is_measured_whatever_the_number_of_steps():
    for steps in (1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3):
        found = activations(Told(relu=nn.ReLU()), *(torch.full((4, 3), float(step)) for step in range(steps)))
        assert found["activation_mean"][:, 1].tolist() == list(range(steps))


def test_batches_may_change_their_size_on_the_way():
    sizes = [4, 4, 2, 2, 4, 300]
    found = activations(Told(relu=nn.ReLU()), *(torch.full((size, 3), float(size)) for size in sizes))
    assert found["activation_mean"][:, 0].tolist() == sizes


@pytest.mark.parametrize("units", [7, 64, 784, 5000])
def test_the_spread_of_a_collapsed_sigmoid_layer(units):
    """Values of 0.7310586 that differ by 1e-7: one pass was wrong by 4500x, a rounded mean by 1.5x."""
    torch.manual_seed(0)
    wanted = 0.7310586 + 1e-7 * torch.randn(SAMPLES, units, dtype=torch.float64)
    found = activations(Told(sigmoid=nn.Sigmoid()), torch.logit(wanted).float())
    truth = torch.sigmoid(torch.logit(wanted).float()).double().std(correction=0).item()
    assert 5e-8 < truth < 3e-7
    assert found["activation_std"][0, 1] == pytest.approx(truth, rel=0.02)


@pytest.mark.parametrize("scale", [1e-25, 1e22])
def test_tiny_and_huge_activations(scale):
    torch.manual_seed(0)
    batch = scale * (3 + torch.randn(SAMPLES, 40))
    found = activations(Told(relu=nn.LeakyReLU(1.0)), batch)
    assert found["activation_mean"][0] == pytest.approx([batch.mean().item()] * 3, rel=1e-5, abs=0)
    assert found["activation_std"][0] == pytest.approx([batch.double().std(correction=0).item()] * 3, rel=1e-5, abs=0)


def test_an_activation_that_is_not_finite_does_not_hide_the_others():
    class Overflow(nn.ReLU):
        def forward(self, x):
            return super().forward(x) / 0

    found = activations(Told(one=nn.Tanh(), two=Overflow()), torch.ones(4, 3))
    assert np.isfinite(found["activation_mean"][0]).tolist() == [True, True, False, False]
    assert np.isfinite(found["activation_std"][0]).tolist() == [True, True, False, False]
    assert found["activation_mean"][0, 1] == pytest.approx(math.tanh(1), rel=1e-5)


@pytest.mark.parametrize(
    ("layer", "values", "share"),
    [
        (nn.Sigmoid(), [-4, -3, 0, 3, 4, 5], 3 / 6),  # sigmoid(3) = 0.953, sigmoid(4) = 0.982
        (nn.Tanh(), [-3, -2, 0, 1, 2, 3], 2 / 6),  # tanh(2) = 0.964, tanh(3) = 0.995
        (nn.Hardtanh(), [-3, -0.98, -0.96, 0.96, 0.98, 3], 4 / 6),
    ],
)
def test_saturated_is_beyond_097_of_the_range(layer, values, share):
    found = activations(Told(layer=layer), torch.tensor(values, dtype=torch.float32)[:, None])
    assert found["activation_saturated"][0, 1] == pytest.approx(share)
    assert np.isnan(found["activation_saturated"][0, [0, 2]]).all()  # inputs and outputs do not saturate


def test_what_cannot_saturate_is_not_said_to_be_unsaturated():
    found = activations(Told(relu=nn.ReLU(), tanh=nn.Tanh()), torch.full((4, 3), 100.0))
    assert np.isnan(found["activation_saturated"][0, 1]) and found["activation_saturated"][0, 2] == 1


def test_large_activations_are_measured_alike():
    torch.manual_seed(0)
    batch = torch.randn(LARGE // 500, 600)
    assert batch.numel() > LARGE
    found = activations(Told(tanh=nn.Tanh()), batch)
    assert found["activation_mean"][0, 1] == pytest.approx(torch.tanh(batch[:SAMPLES]).mean().item(), rel=1e-4)


def test_a_recurrent_layer_shows_its_states():
    torch.manual_seed(0)
    layer = nn.RNN(5, 7, batch_first=True)

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = layer

        def forward(self, x):
            return self.rnn(x)[0][:, -1]

    batch = torch.randn(3, 4, 5)
    found = activations(Reader(), batch)
    assert found["activation_mean"][0, 1] == pytest.approx(layer(batch)[0].mean().item(), rel=1e-4)


def test_no_hook_is_left_behind_and_nothing_is_held():
    model = net()
    meter = ActivationMeter(model)
    meter.attach()
    model(torch.randn(4, 300))
    assert meter.latest
    meter.detach()
    assert not meter.latest
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


# --- the probe ------------------------------------------------------------------------------------


def test_dead_is_silent_on_every_sample():
    values = torch.tensor([[0.0, 0.0, SILENT / 2, 1.0], [0.0, 2.0, -SILENT / 2, 2 * SILENT]])
    assert dead_share(values).item() == pytest.approx(2 / 4)
    assert dead_share(torch.full((3, 4), -1.0)).item() == 0  # negative is not silent: leaky ReLU


def test_dead_channels_of_pictures_and_features_of_tokens():
    pictures = torch.zeros(5, 4, 3, 3)
    pictures[2, 1, 0, 2] = 1  # one pixel of one image keeps its channel alive
    assert dead_share(pictures).item() == pytest.approx(3 / 4)
    tokens = torch.zeros(5, 16, 8)
    tokens[1, 3, :2] = 1
    assert dead_share(tokens).item() == pytest.approx(6 / 8)


def test_a_histogram_counts_every_value_between_its_extremes():
    values = torch.randn(100, 30)
    counts, (low, high) = histogram(values)
    assert counts.sum() == 3000
    assert (low, high) == (values.min(), values.max())
    expected, _ = np.histogram(values.numpy(), bins=BINS, range=(low.item(), high.item()))
    assert np.abs(counts.numpy() - expected).sum() <= 4  # a value on an edge may fall to either side


def test_a_histogram_by_hand():
    counts, limits = histogram(torch.tensor([0.0, 1.0, 1.0, 31.5, 32.0]))
    assert limits.tolist() == [0, 32]
    assert {index: int(count) for index, count in enumerate(counts) if count} == {0: 1, 1: 2, 31: 2}


@pytest.mark.parametrize("values", [[5.0, 5.0, 5.0], [1.0, math.nan, 2.0], [1.0, math.inf, 2.0]])
def test_a_histogram_of_odd_values_still_counts_them(values):
    assert histogram(torch.tensor(values))[0].sum() == 3


def test_entropy_of_attention():
    uniform = torch.full((2, 3, 16, 16), 1 / 16)
    torch.testing.assert_close(entropy(uniform), torch.full((3,), math.log(16)))
    one_hot = torch.eye(16).expand(2, 3, 16, 16)
    torch.testing.assert_close(entropy(one_hot), torch.zeros(3))
    both = torch.cat([uniform[:, :1], one_hot[:, :1]], dim=1)
    torch.testing.assert_close(entropy(both), torch.tensor([math.log(16), 0.0]))


class LittleNet(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.relu = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU()
        self.dropout, self.last = nn.Dropout(0.5), nn.Linear(8, 3)
        self.attention = AttentionWeights()

    def forward(self, x):
        tokens = x.view(len(x), 1, 3, 2)
        self.attention(tokens, tokens)
        return self.last(self.dropout(self.relu(self.norm(self.first(x)))))


def probed(count: int = 100):
    torch.manual_seed(1)
    model, x, y = LittleNet(), torch.randn(count, 6), torch.randint(3, (count,))
    return model, x, y, Probe(model, cross_entropy, x, y)


def test_the_probe_against_the_definition():
    model, x, y, probe = probed()
    found = probe.examine()
    model.eval()
    outputs = model(x)
    assert found["probe_loss"].item() == pytest.approx(cross_entropy(outputs, y).item())
    assert found["probe_accuracy"].item() == pytest.approx((outputs.argmax(1) == y).float().mean().item())
    losses = cross_entropy(outputs, y, reduction="none")[:HISTOGRAM_SAMPLES]
    assert found["sample_loss_variance"].item() == pytest.approx(losses.var().item(), rel=1e-4)
    hidden = model.relu(model.norm(model.first(x)))
    assert found["dead"][1].item() == dead_share(hidden).item()
    assert found["dead"].isnan().tolist() == [True, False, True]  # inputs and outputs are not units
    for index, values in enumerate((x, hidden, outputs)):
        counts, limits = histogram(values[:HISTOGRAM_SAMPLES])
        assert torch.equal(found["histogram"][index], counts)
        assert torch.equal(found["histogram_range"][index], limits)
    assert probe.heads == ("attention.0",)
    tokens = x.view(-1, 1, 3, 2)
    torch.testing.assert_close(found["attention_entropy"], entropy(model.attention(tokens, tokens)))


@pytest.mark.parametrize("count", [3, 100])
def test_the_variance_of_the_sample_losses_is_that_of_any_loss(count):
    *_, probe = probed(count)
    probe.loss = lambda outputs, targets: cross_entropy(outputs, targets)  # nobody knows what it calls: one by one
    one_by_one = probe.examine()["sample_loss_variance"].item()
    probe.loss = cross_entropy
    assert probe.examine()["sample_loss_variance"].item() == pytest.approx(one_by_one, rel=1e-5)


def test_the_probe_changes_nothing():
    model, _, _, probe = probed()
    model.train()
    model.dropout.eval()  # somebody's own choice
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    weights = [weight.clone() for weight in model.parameters()]
    state = torch.get_rng_state()
    probe.examine()
    assert {name for name, module in model.named_modules() if not module.training} == {"dropout"}
    assert all(torch.equal(buffers[name], buffer) for name, buffer in model.named_buffers())
    assert all(torch.equal(*pair) for pair in zip(weights, model.parameters(), strict=True))
    assert all(weight.grad is None for weight in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(module._forward_hooks for module in model.modules())


def test_a_probe_of_numbers_instead_of_classes_has_no_accuracy():
    model, x = nn.Linear(6, 1), torch.randn(10, 6)
    found = Probe(model, nn.functional.mse_loss, x, torch.randn(10, 1)).examine()
    assert "probe_accuracy" not in found and found["probe_loss"].item() > 0


def bent(model: nn.Module, x=None) -> float | None:
    torch.manual_seed(2)
    found = nonlinearity(model, torch.randn(40, 6) if x is None else x)
    return None if found is None else float(found)


def test_nonlinearity_against_the_definition():
    torch.manual_seed(1)
    model, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(40, 6)
    first, second = x[:PAIRS], x[PAIRS : 2 * PAIRS]
    with torch.no_grad():
        off = model((first + second) / 2) - (model(first) + model(second)) / 2
        deviation = model(x[: 2 * PAIRS]).var(0, correction=0).mean().sqrt()
    assert bent(model, x) == pytest.approx(float(off.square().mean().sqrt() / deviation), rel=1e-4)
    assert Probe(model, cross_entropy, x, torch.zeros(40).long()).examine()["nonlinearity"] == bent(model, x)


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(6, 3),
        nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 8), nn.Linear(8, 3)),
        nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 1), nn.Sigmoid()),  # an activation after the last layer
        nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3), nn.AvgPool1d(2), nn.Flatten(), nn.Linear(8, 2)),
    ],
)
def test_affine_nets_are_affine_up_to_rounding(model):
    assert bent(model) < 1e-5


class Bare(nn.Module):
    """Weights without layers; and a linear shortcut that is called last."""

    def __init__(self, activation):
        super().__init__()
        self.activation, self.inner, self.shortcut = activation, nn.Linear(6, 8), nn.Linear(6, 3)
        self.weight = nn.Parameter(torch.randn(3, 8))

    def forward(self, x):
        return nn.functional.linear(self.activation(self.inner(x)), self.weight) + self.shortcut(x)


class Tied(nn.Module):
    """A layer of which only the weight is used."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return nn.functional.linear(self.inner(x).relu(), self.head.weight)


def test_an_activation_is_seen_wherever_it_is():
    assert bent(Bare(torch.relu)) > 0.01 and bent(Bare(torch.tanh)) > 0.001
    assert bent(Bare(lambda x: x)) < 1e-5
    assert bent(Tied()) > 0.01
    assert bent(nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))) > 0.01


def test_nonlinearity_is_not_measured_where_there_is_nothing_between_two_samples():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    table = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(24, 2))
    x = torch.randn(40, 6)
    for net, inputs in ((table, torch.randint(5, (40, 6))), (model, (x,)), (model, {"x": x}), (model, "x")):
        assert bent(net, inputs) is None
    assert bent(model, x[:3]) is None and bent(model, x[:0]) is None and bent(model, x[:4]) > 0
    assert bent(model, x.to_sparse()) is None and bent(model, x[0]) is None
    assert math.isnan(bent(model, x[:1].expand(40, 6)))  # equal samples: no deviation to compare with


def test_a_net_that_takes_only_its_own_batch_size_switches_the_instrument_off_and_nothing_else(capsys):
    class Fixed(nn.Linear):
        def forward(self, x):
            return super().forward(x) + torch.ones(20, 3)

    guard = Guard(strict=False)
    probe = Probe(Fixed(6, 3), cross_entropy, torch.randn(20, 6), torch.zeros(20).long(), guard=guard)
    assert "nonlinearity" not in probe.examine() and "probe_loss" in probe.examine()
    assert "the non-linearity" not in guard and capsys.readouterr().err.count("Your training goes on") == 1


def test_nonlinearity_leaves_the_net_and_the_random_numbers_alone():
    class Noisy(nn.Linear):
        def forward(self, x):
            return super().forward(x) + torch.randn(3)  # in eval mode too

    model = nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(0.5), Noisy(6, 3)).train()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    torch.manual_seed(3)
    state = torch.get_rng_state()
    nonlinearity(model, torch.randn(40, 6, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert all(module.training and not module._forward_hooks for module in model.modules())


def test_modes_and_hooks_are_put_back_after_an_error():
    model = LittleNet().train()
    with pytest.raises(ZeroDivisionError), evaluating(model), captured({"relu": model.relu}):
        assert not model.relu.training and model.relu._forward_hooks
        raise ZeroDivisionError
    assert all(module.training for module in model.modules())
    assert not model.relu._forward_hooks


def test_on_a_device_the_row_stays_a_tensor_with_the_loss_and_the_sign_of_bad_gradients():
    meter = WeightMeter(net())
    assert meter.row(torch.tensor(2.0), torch.tensor(0.0)).tolist() == [2, 0]
    loss, bad = meter.row(torch.tensor(2.0), torch.tensor(float("nan"))).tolist()
    assert loss == 2 and np.isnan(bad)


# --- what a prediction without any information reaches --------------------------------------------


def test_the_loss_of_the_best_constant_prediction_whatever_the_task():
    random = torch.Generator().manual_seed(0)
    classes = torch.randint(3, (200,), generator=random).clamp(max=1)  # a third, two thirds, none
    shares = classes.bincount() / 200
    entropy = -(shares * shares.log()).sum().item()
    scores = torch.randn(200, 3, generator=random)
    assert constant_loss(nn.functional.cross_entropy, scores, classes) == pytest.approx(entropy, abs=0.01)
    numbers = 5 + 3 * torch.randn(200, 2, generator=random)
    variance = numbers.var(0, correction=0).mean().item()
    assert constant_loss(nn.functional.mse_loss, scores[:, :2], numbers) == pytest.approx(variance, rel=1e-3)
    median = (numbers - numbers.median(0).values).abs().mean().item()
    assert constant_loss(nn.functional.l1_loss, scores[:, :2], numbers) == pytest.approx(median, rel=0.02)
    yes = (torch.rand(200, 1, generator=random) < 0.1).float()
    share = yes.mean()
    expected = -(share * share.log() + (1 - share) * (1 - share).log()).item()
    found = constant_loss(nn.functional.binary_cross_entropy_with_logits, scores[:, :1], yes)
    assert found == pytest.approx(expected, abs=1e-3)


def test_from_zero_some_losses_have_no_way_to_the_best_constant_but_from_the_mean_target_they_have():
    """Probabilities of 0 are where the derivative of their logarithm ends."""
    yes = (torch.arange(200) % 10 == 0).float()[:, None]
    expected = -(0.1 * np.log(0.1) + 0.9 * np.log(0.9))
    scores = torch.rand(200, 1)
    assert constant_loss(nn.functional.binary_cross_entropy, scores, yes) == pytest.approx(expected, rel=1e-3)
    assert constant_loss(yes_or_no_of_probabilities, scores, yes) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("shape", [(200, 3), (200, 3, 2)])
def test_a_net_that_ends_in_a_log_softmax_cannot_predict_just_any_number(shape):
    """The likelihood of free numbers has no lowest value; that of logits is none."""
    classes = (torch.arange(200) % 4 == 0).long()
    wanted = classes if len(shape) == 2 else classes[:, None].expand(200, 2)
    entropy = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    scores = torch.randn(shape)
    found = constant_loss(nn.functional.nll_loss, scores.log_softmax(1), wanted)
    assert found == pytest.approx(entropy, rel=1e-3)
    assert constant_loss(nn.functional.nll_loss, scores.softmax(1), wanted) < -1e6
    wide = scores + 2 * torch.randn(200, *(1,) * (len(shape) - 1))  # NORMALISED
    assert constant_loss(nn.functional.nll_loss, wide.log_softmax(1) + 0.01, wanted) < -1e6


def test_a_loss_with_weights_of_its_own_gets_no_gradient():
    critic = nn.Linear(3, 1)
    constant_loss(lambda outputs, targets: critic(outputs).square().mean(), torch.randn(8, 3), torch.zeros(8))
    assert critic.weight.grad is None


def test_a_run_knows_what_share_of_its_loss_is_unexplained():
    run = trained(tiny(steps=60, evaluate_every=20))
    shares = unexplained(run)
    assert run.facts["constant_loss"] == pytest.approx(np.log(10), abs=0.1)
    assert shares[0] > 0.9 and shares[-1] < 0.8 * shares[0]
    with pytest.raises(NoTrace, match="give `watch` a probe"):
        unexplained(Run({"probe_loss": np.ones(2)}))


@pytest.mark.parametrize(
    "odd",
    [
        lambda outputs, targets: torch.tensor(1.0),  # no graph
        lambda outputs, targets: targets.float().mean().requires_grad_(),  # does not depend on the outputs
        lambda outputs, targets: outputs.sum() * float("nan"),
        lambda outputs, targets: outputs.sum().abs().log(),  # falls without end
    ],
)
def test_a_loss_of_any_kind_gives_a_number_or_none(odd):
    assert isinstance(constant_loss(odd, torch.randn(8, 3), torch.zeros(8)), float)


def test_an_activation_of_single_numbers_is_one_unit():
    assert dead_share(torch.zeros(8)) == 1 and dead_share(torch.ones(8)) == 0


@pytest.mark.parametrize("init", ["default", "he", "xavier"])
def test_weights_after_an_init_look_fresh_and_trained_ones_do_not(init):
    torch.manual_seed(0)
    layer = nn.Linear(30, 40)
    if init != "default":
        {"he": nn.init.kaiming_normal_, "xavier": nn.init.xavier_uniform_}[init](layer.weight)
    assert looks_fresh(layer.weight)
    x = torch.randn(500, 30)
    y = torch.cat([x[:, :3] * x[:, 3:6], torch.zeros(500, 37)], 1) + 1
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.mse_loss(torch.relu(layer(x)), y).backward()
        optimizer.step()
    assert not looks_fresh(layer.weight)
    assert not looks_fresh(torch.zeros(30, 40)) and not looks_fresh(torch.randn(20, 20))


def test_a_softmax_over_the_batch_has_no_distance_and_logits_have_one():
    logits = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
    for outputs in (logits.softmax(0), logits.log_softmax(0)):
        assert batch_softmax_distance(outputs) < 1e-5
    for outputs in (logits, logits.softmax(1), logits.log_softmax(1), torch.zeros(20, 5)):
        assert batch_softmax_distance(outputs) > 0.5
    assert batch_softmax_distance(logits.reshape(4, 5, 5).softmax(0)) < 1e-5


@pytest.mark.parametrize(("samples", "known"), [(8, True), (1, False)])
def test_the_probe_measures_the_distance_where_there_is_a_batch(samples, known):
    probe = Probe(nn.Linear(3, 2), None, torch.ones(samples, 3))
    assert ("batch_softmax_distance" in probe.examine()) is known


def test_the_constant_prediction_of_classes_at_every_position():
    """Outputs (samples, classes, positions), as torch's cross-entropy takes them."""
    targets = (torch.rand(50, 7, generator=torch.Generator().manual_seed(0)) < 0.1).long()
    share = targets.float().mean()
    entropy = -(share * share.log() + (1 - share) * (1 - share).log()).item()
    assert constant_loss(cross_entropy, torch.zeros(50, 3, 7), targets) == pytest.approx(entropy, abs=0.01)


def test_the_first_weights_say_how_many_units_a_layer_has_how_large_they_are_and_whether_they_are_alike():
    net = nn.Sequential(nn.Embedding(9, 4), nn.Linear(400, 3), nn.ReLU(), nn.LSTM(3, 5), nn.BatchNorm1d(5))
    with torch.no_grad():
        net[1].weight.copy_(0.1 * torch.randn(3, 400))
        for weight in net[3].parameters():
            weight.fill_(0.5)
    found = first_weights(net)
    assert list(found) == ["1", "3"]  # a table that is looked up and a norm multiply nothing by a matrix
    assert found["1"]["units"] == 3 and found["1"]["gain"] == pytest.approx(2.0, rel=0.1) and not found["1"]["alike"]
    assert found["3"] == {"units": 5.0, "inputs": 3.0, "gain": pytest.approx(0.5 * 5**0.5), "alike": 1.0}


class WithPositions(nn.Module):
    """A net with a position table, and in it a convolution with one filter."""

    def __init__(self):
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(1, 7, 8))
        self.layer, self.filter = nn.Linear(8, 4), nn.Conv1d(4, 1, 3)


def test_a_position_table_is_no_layer_of_one_unit():
    found = first_weights(WithPositions())
    assert {name: each["units"] for name, each in found.items()} == {"layer": 4.0, "filter": 1.0}
