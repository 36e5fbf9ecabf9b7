"""The check-up: each test finds its own fault, stays silent on a healthy set-up, and changes nothing."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, TensorDataset

from labkit.diagnosis.checkup import checkup as run_checkup
from labkit.training.data import load

X, Y = (part[:600] for part in load("mnist", "train"))
VX, VY = (part[:300] for part in load("mnist", "val"))


def net(*, last=()) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10), *last)


def examine(model=None, loss_fn=cross_entropy, train=(X, Y), val=(VX, VY), lr=0.1, **options):
    model = model or net()
    optimizer = options.pop("optimizer", None) or torch.optim.SGD(model.parameters(), lr=lr)
    return run_checkup(model, loss_fn, train, val, optimizer, **options)


def test_a_healthy_set_up_has_no_fault_and_no_warning():
    found = examine()
    assert found and {each.state for each in found.findings} == {"ok", "skipped"}
    assert "one batch memorised: shuffled labels" in str(found)


def test_nothing_is_changed():
    model = net(last=(nn.Dropout(0.5), nn.BatchNorm1d(10)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    cross_entropy(model(X[:32]), Y[:32]).backward()
    optimizer.step()
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict(), [w.grad for w in model.parameters()]))
    state = torch.get_rng_state()
    examine(model, optimizer=optimizer)
    after = (model.state_dict(), optimizer.state_dict(), [w.grad for w in model.parameters()])
    for one, other in zip(_leaves(before), _leaves(after), strict=True):
        assert torch.equal(one, other) if torch.is_tensor(one) else one == other
    assert torch.equal(torch.get_rng_state(), state) and model.training


def _leaves(thing):
    if isinstance(thing, dict):
        return [leaf for value in thing.values() for leaf in _leaves(value)]
    if isinstance(thing, list | tuple):
        return [leaf for value in thing for leaf in _leaves(value)]
    return [thing]


def summed(outputs, targets):
    return cross_entropy(outputs, targets, reduction="sum")


class Mixing(nn.Module):
    """A mean over the batch where one over the features was meant."""

    def forward(self, x):
        return x - x.mean(0)


class Blind(nn.Module):
    """Forgets its inputs."""

    def __init__(self):
        super().__init__()
        self.outputs = nn.Parameter(torch.zeros(10))

    def forward(self, x):
        return self.outputs.expand(len(x), 10) + 0 * x.flatten(1).sum(1, keepdim=True)


class Hidden(nn.Module):
    """A layer in a plain list."""

    def __init__(self):
        super().__init__()
        self.first, self.rest = nn.Linear(784, 32), [nn.Linear(32, 10)]

    def forward(self, x):
        return self.rest[0](torch.relu(self.first(x.flatten(1))))


def stale():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model[3] = nn.Linear(32, 10)
    return {"model": model, "optimizer": optimizer}


def frozen():
    model = net()
    model[1].requires_grad_(False)
    return {"model": model}


def large_head():
    model = net()
    with torch.no_grad():
        model[3].weight *= 100
    return {"model": model}


def noisy(batch):
    return torch.randn_like(batch[0]), batch[1]


def augmented_validation():
    loader = DataLoader(TensorDataset(VX, VY), 100)
    return {"val": Augmented(loader)}


class Augmented:
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return ((x + 0.1 * torch.randn_like(x), y) for x, y in self.loader)


FAULTS = {
    "first loss": large_head,
    "one batch memorised": lambda: {"model": net(last=(nn.Softmax(1),))},
    "inputs matter": lambda: {"model": Blind()},
    "inputs": lambda: {"train": (torch.where(torch.arange(600)[:, None, None, None] == 3, float("nan"), X), Y)},
    "output shape": lambda: {"train": (X, Y + 5)},
    "gradients": stale,
    "one step": lambda: {"lr": 30.0},
    "splits": lambda: {"val": (torch.cat([VX, X[:100]]), torch.cat([VY, Y[:100]]))},
    "validation data": augmented_validation,
    "modes": lambda: {"model": net().eval()},
    "samples apart": lambda: {"model": net(last=(Mixing(),))},
    "loss is a mean": lambda: {"loss_fn": summed},
    "labels": lambda: {"train": (X[Y == 3], Y[Y == 3])},
    "outputs are logits": lambda: {"model": net(last=(nn.Softmax(1),))},
    "checkpoint": lambda: {"checkpoint": {"model": {}, "epoch": 3}},
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_test_finds_its_own_fault(name):
    found = examine(**FAULTS[name]())
    assert found[name].state == "fault", str(found)
    assert found[name].advice and not found


@pytest.mark.parametrize("make", [frozen, lambda: {"model": Hidden()}])
def test_frozen_and_unregistered_layers_are_found(make):
    assert examine(**make())["gradients"].state == "fault"


def test_a_loss_that_refuses_is_a_finding_and_not_the_end():
    found = examine(**FAULTS["output shape"]())
    assert any("IndexError" in each.found for each in found.faults) and found["inputs"].state == "ok"


def test_validation_scaled_otherwise_is_found():
    assert "standard deviation" in examine(val=(VX * 80, VY))["validation data"].found


def test_an_overfit_test_passes_with_shuffled_labels_and_says_so():
    shuffled = Y[torch.randperm(600, generator=torch.Generator().manual_seed(0))]
    found = examine(train=(X, shuffled))
    assert found["one batch memorised"].state == "ok" and "shuffled labels" in found["one batch memorised"].blind_to


def test_uneven_classes_are_a_warning():
    few = torch.cat([torch.flatnonzero(Y == 0) if hasattr(torch, "flatnonzero") else (Y == 0).nonzero().flatten()[:2]])
    chosen = torch.cat([(Y == 1).nonzero().flatten(), few[:2]])
    assert examine(train=(X[chosen], Y[chosen]))["labels"].state == "warning"


def test_a_regression_skips_what_is_about_classes():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 1), nn.Flatten(0))
    found = examine(model, mse_loss, (X, Y.float() / 10), (VX, VY.float() / 10), lr=0.01)
    skipped = {each.name for each in found.findings if each.state == "skipped"}
    assert {"first loss", "labels", "output shape"} <= skipped and found, str(found)


def test_loaders_will_do_and_an_empty_one_is_refused():
    loader = DataLoader(TensorDataset(X, Y), 64, shuffle=True)
    assert examine(train=loader, val=DataLoader(TensorDataset(VX, VY), 64))
    with pytest.raises(ValueError, match="contain no batch"):
        examine(train=[])
