"""Tiny training programs for the tests of `labkit.treat`: one fault each, some seconds for a whole treatment."""

from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import cross_entropy

STEPS = 60


def data(seed: int, count: int = 240) -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(100 + seed)
    x = torch.randn(count, 6, generator=chance)
    return x, (x[:, 0] + x[:, 1] * x[:, 2] > 0).long()


def train(watch, seed, *, lr=0.05, clear=True, scale=1.0, noise=0.0, each_step=lambda step, model: None, flip=1.0):
    """A small net on two classes; every keyword is a fault."""
    x, y = data(seed)
    x = x * scale
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    with watch(model, optimizer, probe=(x[:64], y[:64]), loss_fn=cross_entropy) as record:
        for step in range(STEPS):
            rows = torch.randint(0, 160, (32,))
            if clear:
                optimizer.zero_grad()
            loss = flip * cross_entropy(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            record.step(loss, batch=(x[rows], y[rows]))
            each_step(step, model)
            if step % 10 == 9:
                with torch.no_grad():
                    right = (model(x[160:]).argmax(1) == y[160:]).float().mean().item()
                record.validation(accuracy=min(1.0, right + noise * torch.randn(1).item()))


def healthy(watch, seed):
    train(watch, seed)


def slow(watch, seed):
    """A learning rate 10,000 times too low."""
    train(watch, seed, lr=5e-6)


def ascending(watch, seed):
    """The loss has the wrong sign."""
    train(watch, seed, flip=-1.0)


def ascending_and_slow(watch, seed):
    """Two faults at once."""
    train(watch, seed, flip=-1.0, lr=5e-5)


def seeds_itself(watch):
    """The same run each time, whatever seed it is given."""
    train(watch, 0, lr=5e-6)


def frozen_behind_sigmoids(watch, seed):
    """A deep net with sigmoids, of which only the last layers are trained: it does not move."""
    x, y = data(seed)
    torch.manual_seed(seed)
    sizes = (6, 32, 32, 32, 32)
    hidden = [each for a, b in pairwise(sizes) for each in (nn.Linear(a, b), nn.Sigmoid())]
    model = nn.Sequential(*hidden, nn.Linear(32, 2))
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.05, momentum=0.9)
    with watch(model, optimizer, probe=(x[:64], y[:64])) as record:
        for step in range(2 * STEPS):
            rows = torch.randint(0, 160, (32,))
            optimizer.zero_grad()
            loss = cross_entropy(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            record.step(loss, batch=(x[rows], y[rows]))
            if step % 20 == 19:
                with torch.no_grad():
                    right = (model(x[160:]).argmax(1) == y[160:]).float().mean()
                record.validation(accuracy=right)
