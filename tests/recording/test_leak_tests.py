"""Targets among the inputs are found, and inputs that only predict them are not."""

import math

import pytest
import torch
from torch import nn

from labkit.diagnosis.watch import watch
from labkit.failures.catalogue import FAILURES
from labkit.recording.leak_tests import best_column, token_tests
from labkit.recording.token_tests import looks_ahead, reads_and_predicts_tokens


def table(count=400, columns=6, seed=0):
    chance = torch.Generator().manual_seed(seed)
    x = torch.randn(count, columns, generator=chance)
    return x, chance


@pytest.mark.parametrize("kinds", [2, 5, 40])
def test_a_column_that_holds_the_class_is_explained_by_it_completely(kinds):
    x, chance = table()
    y = torch.randint(kinds, (400,), generator=chance)
    assert best_column(x, y) < 0.3
    x[:, 2] = (y - 1.5) / 3
    assert best_column(x, y) == pytest.approx(1)
    x[:, 2] = (y == 1).float()  # one class is marked
    assert best_column(x, y) == pytest.approx(1)


def test_a_column_that_separates_the_classes_does_not_give_them_away():
    x, _ = table()
    y = (x[:, 0] > 0).long()
    assert 0.5 < best_column(x, y) < 0.8
    assert best_column(torch.cat([x, 4 * y[:, None] + x[:, :1]], 1), y) < 0.98


def test_a_number_that_is_a_column_is_found_and_one_that_depends_on_it_is_not():
    x, chance = table()
    y = 2 * x[:, 1] + 0.5 * torch.randn(400, generator=chance)
    assert 0.9 < best_column(x, y) < 0.97
    assert best_column(torch.cat([x, 3 - y[:, None]], 1), y) == pytest.approx(1)


def test_where_nothing_can_be_said_nothing_is():
    x, _ = table()
    y = x[:, 0] > 0
    assert math.isnan(best_column(x[:60], y[:60].long())) and not math.isnan(best_column(x[:64], y[:64].long()))
    assert math.isnan(best_column(x, torch.zeros(400))) and math.isnan(best_column(torch.ones(400, 6), y.long()))
    assert math.isnan(best_column(x[:, :2], x[:, 0])) and best_column(x[:, :3], x[:, 0]) == pytest.approx(1)
    assert math.isnan(best_column(x * math.inf, y.long())) and math.isnan(best_column(x, y.long()[:300]))


def test_samples_that_come_again_and_rare_classes_give_nothing_away():
    x, chance = table(12)
    again = torch.randint(12, (400,), generator=chance)
    assert math.isnan(best_column(x[again], again % 3))
    x, chance = table()
    y = torch.randint(5, (400,), generator=chance)
    x[:, 3], y[:2] = 0, 7
    x[:2, 3] = 1  # as a pixel at the border, bright in two images only
    assert best_column(x, y) < 0.3
    y[:8], x[:8, 3] = 7, 1
    assert best_column(x, y) == pytest.approx(1)


class Reader(nn.Module):
    """Predicts a token from the mean of the tokens before it, or of all."""

    def __init__(self, causal):
        super().__init__()
        self.causal = causal
        self.embed, self.head = nn.Embedding(9, 8), nn.Linear(8, 9)

    def forward(self, tokens):
        x = self.embed(tokens)
        x = x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None] if self.causal else x + x.mean(1, keepdim=True)
        return self.head(x)


@pytest.mark.parametrize("causal", [True, False])
def test_a_language_model_that_sees_later_tokens_is_found(causal):
    torch.manual_seed(0)
    text, net = torch.randint(9, (32, 13)), Reader(causal)
    x, y = text[:, :-1], text[:, 1:]
    found = token_tests(net, x, y, net(x))
    assert (found["future"] == 0) == causal and found["copied"] < 0.3
    assert found["future"] == 0 or found["future"] > 0.1
    assert token_tests(net, x, x, net(x)) == {"copied": 1.0}
    tags = torch.where(x > 3, x, -100)
    assert token_tests(net, x, tags, net(x))["copied"] == 1
    assert token_tests(net, x.float(), y, None) == token_tests(net, x, y[:, 0], None) == {}


@pytest.mark.parametrize("kind", [torch.uint8, torch.int32])
def test_tokens_may_be_bytes(kind):
    """255 is the last word there is, and one more would be 0."""

    class OfBytes(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(256, 8), nn.Linear(8, 256)

        def forward(self, tokens):
            x = self.embed(tokens.long())
            return self.head(x + x.mean(1, keepdim=True))

    torch.manual_seed(0)
    text = torch.randint(250, 256, (32, 13)).to(kind)
    net, x, y = OfBytes(), text[:, :-1], text[:, 1:]
    assert reads_and_predicts_tokens(x, net(x))
    assert looks_ahead(net, x, net(x))["leak_changed"] > 0.01 and token_tests(net, x, y, net(x))["future"] > 0.01


@pytest.mark.parametrize("leak", [True, False])
def test_a_watched_table_with_the_target_in_it_is_named(leak):
    torch.manual_seed(0)
    x = torch.randn(640, 8)
    y = (x[:, 0] * x[:, 1] > 0).long()
    if leak:
        x[:, 7] = y * 2.0 - 1
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with watch(net, optimizer, probe=(x[:64], y[:64]), strict=True) as record:
        for start in range(0, 640, 32):
            loss = nn.functional.cross_entropy(net(x[start : start + 32]), y[start : start + 32])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            record.step(loss, batch=(x[start : start + 32], y[start : start + 32]))
    assert (FAILURES["target_in_inputs"].signature(record.run) is not None) == leak
