"""The range test: a sane suggestion on curves made by hand and on real nets, and nothing changed."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from labkit.tools.lr_finder import MARGIN, STOP, find_lr, with_suggestion
from labkit.training.data import load
from labkit.training.loop import Training
from labkit.training.recipe import Recipe

LRS = np.geomspace(1e-5, 10, 100)


def valley(lowest: int, floor: float = 0.5) -> np.ndarray:
    """Flat, down to a lowest point, then up without end."""
    place = np.arange(100)
    down = 2.3 - (2.3 - floor) / (1 + np.exp(-(place - lowest + 15) / 4))
    return down * np.where(place > lowest + 5, 1.5 ** (place - lowest - 5), 1)


def test_the_suggestion_lies_on_the_slope_before_the_lowest_point():
    found = with_suggestion(LRS, valley(60))
    assert LRS[40] < found.suggestion < LRS[60] < found.diverged_at
    assert found.suggestion <= found.diverged_at / MARGIN


def test_a_steep_descent_after_a_spike_is_not_taken():
    """The textbook rule, the steepest slope anywhere, would take the fall back from the spike."""
    losses = valley(50)
    losses[75:] = np.linspace(400, 3, 25)
    found = with_suggestion(LRS, losses)
    assert found.suggestion < LRS[50]


def test_no_descent_gives_no_suggestion():
    assert with_suggestion(LRS, np.full(100, 2.3)).suggestion is None
    assert with_suggestion(LRS, np.full(100, np.nan)).suggestion is None


def test_a_curve_that_never_diverges_says_so():
    assert with_suggestion(LRS, np.linspace(2.3, 0.5, 100)).diverged_at is None


def setting(optimizer: str, seed: int = 0):
    training = Training(Recipe(seed=seed, optimizer=optimizer, device="cpu"))
    return training.model, cross_entropy, tuple(training.data.train), training.optimizer


@pytest.mark.parametrize(("optimizer", "low", "high"), [("sgd", 0.005, 0.5), ("adam", 3e-4, 0.02)])
def test_real_nets_get_a_rate_that_trains_on_every_seed(optimizer, low, high):
    for seed in range(5):
        found = find_lr(*setting(optimizer, seed))
        assert low < found.suggestion < high, (seed, found)


def test_it_stops_early_and_leaves_everything_as_it_was():
    model, loss, data, optimizer = setting("adam")
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    state = torch.get_rng_state()
    found = find_lr(model, loss, data, optimizer, high=1e4)
    assert (len(found.lrs) < 100 and found.smoothed[-1] > STOP * np.nanmin(found.smoothed)) or np.isnan(
        found.smoothed[-1]
    )
    for name, value in before[0].items():
        assert torch.equal(value, model.state_dict()[name])
    assert before[1]["param_groups"] == optimizer.state_dict()["param_groups"] and not optimizer.state_dict()["state"]
    assert torch.equal(torch.get_rng_state(), state) and all(weight.grad is None for weight in model.parameters())


def test_a_loader_will_do():
    x, y = (part[:256] for part in load("mnist", "train"))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 32)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    found = find_lr(model, cross_entropy, loader, torch.optim.SGD(model.parameters(), lr=1.0), steps=20, high=0.1)
    assert len(found.lrs) == 20 and found.lrs[-1] == pytest.approx(0.1)


@pytest.mark.parametrize("wrong", [{"low": 0.0}, {"low": 1.0, "high": 0.5}, {"steps": 1}])
def test_bad_wishes_are_refused(wrong):
    with pytest.raises(ValueError, match="expected"):
        find_lr(*setting("sgd"), **wrong)


def test_it_can_be_drawn():
    found = with_suggestion(LRS, valley(60))
    ax = found.plot()
    assert ax.get_xscale() == "log" and any("suggestion" in text.get_text() for text in ax.get_legend().get_texts())
    assert "<img" in found._repr_html_() and "suggestion" in repr(found)
