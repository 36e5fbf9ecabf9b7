"""The small tools: gradient flow, clip log, schedules ahead of time, stable and unstable numerics."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from labkit.recording.nan_hunt import scan
from labkit.tools import numerics, schedules
from labkit.tools.clipping import ClipLog
from labkit.tools.dead_units import dead_units
from labkit.tools.gradient_flow import EXPLODING, VANISHING, gradient_flow
from labkit.training import parts
from labkit.training.recipe import Recipe

# --- gradient flow --------------------------------------------------------------------------------


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))


@pytest.mark.parametrize(
    ("factor", "status"),
    [
        (1.0, "ok"),
        (0.0, "zero"),
        (1.1 * VANISHING, "ok"),
        (0.9 * VANISHING, "vanishing"),
        (0.9 * EXPLODING, "ok"),
        (1.1 * EXPLODING, "exploding"),
        (math.nan, "not finite"),
        (None, "no gradient"),
    ],
)
def test_each_status_has_its_threshold(factor, status):
    net = two_layers()
    net[1].weight.grad = torch.ones(4, 4)
    net[0].weight.grad = None if factor is None else torch.full((4, 4), factor)
    flow = gradient_flow(net)
    assert [row.status for row in flow.rows] == [status, "ok"]
    assert (status == "ok") == (not flow.problems)
    assert status in str(flow) and flow.plot() is not None


@pytest.mark.parametrize("factor", [0.5 * VANISHING, 2 * EXPLODING])
def test_a_status_stands_beside_its_bar(factor):
    net = two_layers()
    net[0].weight.grad, net[1].weight.grad = torch.full((4, 4), factor), torch.ones(4, 4)
    ax = gradient_flow(net).plot()
    ax.figure.canvas.draw()
    (status,) = ax.texts
    assert status.get_window_extent().x0 > ax.patches[0].get_window_extent().x1


def test_with_a_batch_the_gradients_are_put_back():
    net = nn.Sequential(nn.Linear(4, 3))
    x, y = torch.ones(2, 4), torch.tensor([0, 1])
    assert not gradient_flow(net, cross_entropy, (x, y)).problems
    assert net[0].weight.grad is None


# --- clipping -------------------------------------------------------------------------------------


def test_norms_are_logged_before_clipping():
    weight = nn.Parameter(torch.zeros(2))
    log = ClipLog(1.0)
    for size in (0.5, 3.0, 4.0):
        weight.grad = torch.tensor([size, 0.0])
        log([weight])
        assert weight.grad.norm() <= 1.0001
    assert log.norms.tolist() == [0.5, 3.0, 4.0] and log.clipped == pytest.approx(2 / 3)
    assert "67%" in str(log) and log.plot().get_yscale() == "log"


def test_a_nan_raises_before_it_spreads():
    weight = nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([math.nan, 1.0])
    with pytest.raises(RuntimeError, match="non-finite"):
        ClipLog(1.0)([weight])
    assert weight.grad[1] == 1


def test_a_threshold_is_above_0():
    with pytest.raises(ValueError, match="above 0"):
        ClipLog(0.0)
    assert str(ClipLog(1.0)) == "no step yet"


# --- schedules ------------------------------------------------------------------------------------


def test_our_schedules_can_be_seen_before_they_are_used():
    rates = schedules.preview(parts.warmup_cosine, 100, Recipe(steps=100, warmup=10, lr=0.5))
    assert rates.argmax() == 9 and rates.max() == 0.5 and rates[-1] < 0.01
    assert "0.5 at step 9 (its peak)" in schedules.describe(rates)


def test_a_torch_scheduler_is_left_as_it_was():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    rates = schedules.preview(scheduler, 20)
    assert rates[0] == 1 and rates[10] == pytest.approx(0, abs=1e-9) and rates[-1] > 0.9
    assert optimizer.param_groups[0]["lr"] == 1.0 and scheduler.last_epoch == 0
    assert "rises again after step 10" in schedules.describe(rates)


def test_wasted_steps_are_counted():
    rates = np.array([0.1] * 50 + [0.0] * 50)
    assert "50 of 100 steps at a rate of 0" in schedules.describe(rates)
    assert "at a rate of 0" not in schedules.describe(rates[:50])


# --- numerics -------------------------------------------------------------------------------------


def test_stable_versions_agree_with_torch_and_naive_ones_break_where_they_say():
    x = torch.tensor([[3.0, 1.0, -2.0], [200.0, 0.0, 1.0]])
    torch.testing.assert_close(numerics.stable_softmax(x), x.softmax(-1))
    torch.testing.assert_close(numerics.stable_log_softmax(x), x.log_softmax(-1))
    assert torch.isfinite(numerics.naive_softmax(x[:1])).all() and torch.isnan(numerics.naive_softmax(x[1:])).any()
    assert torch.isinf(numerics.naive_log_softmax(x[1:])).any()


def test_the_largest_exponents_are_as_written():
    assert torch.isfinite(torch.tensor(88.7).exp()) and torch.isinf(torch.tensor(88.8).exp())
    half = torch.tensor([11.0, 11.1]).half().exp()
    assert torch.isfinite(half[0]) and torch.isinf(half[1])


def test_the_clamp_hides_the_nan_and_kills_the_gradient():
    rows = {(row.function, row.size): row for row in numerics.compare_losses()}
    assert math.isnan(rows["naive", 200.0].value) or math.isinf(rows["naive", 200.0].value)
    assert math.isfinite(rows["clamped", 200.0].value) and rows["clamped", 200.0].gradient == 0
    assert rows["stable", 200.0].value == pytest.approx(200) and rows["stable", 200.0].gradient > 1
    assert "stable loss" in numerics.table(list(rows.values()))


# --- dead units, bad batches ----------------------------------------------------------------------


def with_a_dead_unit() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        net[0].weight.fill_(1.0)
        net[0].bias.copy_(torch.tensor([0.0, -100.0, 1.0, -2.5]))
    return net


def test_a_unit_is_dead_when_it_is_silent_on_the_whole_set():
    net = with_a_dead_unit()
    x = torch.ones(10, 3) * torch.linspace(0, 1, 10)[:, None]
    found = dead_units(net, x, batch_size=3)
    assert found.dead == {"1": [1]} and found.units == {"1": 4} and found.samples == 10
    assert dead_units(net, x[:5]).dead == {"1": [1, 3]}  # the last one speaks only for the largest inputs
    assert "1 of     4 dead   25.0%" in str(found) and found.plot() is not None and net.training


def test_a_loader_will_do_and_a_net_without_activations_says_so():
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 3), torch.zeros(4)), 2)
    assert dead_units(with_a_dead_unit(), loader).samples == 4
    assert "no activation module" in str(dead_units(nn.Linear(3, 1), torch.ones(2, 3)))


def test_batches_with_a_nan_are_found_with_their_samples():
    x = torch.zeros(6, 2)
    x[4, 1] = math.nan
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, torch.zeros(6)), 3)
    assert scan(loader) == [{"batch": 1, "part": 0, "samples": [1]}] and scan([x[:4]]) == []
