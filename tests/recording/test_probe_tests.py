"""The tests on the probe: against cases worked out by hand, and without a trace in the net."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit.diagnosis.watch import watch
from labkit.recording.probe_tests import TESTED, probe_tests
from labkit.recording.task import perfect_outputs, task_of


def outputs(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


@pytest.mark.parametrize(
    ("shape", "targets", "kind"),
    [
        ((6, 3), torch.tensor([0, 1, 2, 0, 1, 2]), "classes"),
        ((2, 3, 4), torch.tensor([[0, 1, 3], [3, 2, -100]]), "tokens"),
        ((2, 4, 3), torch.tensor([[0, 1, 3], [3, 2, -100]]), "tokens"),  # classes in the second axis
        ((2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.long), "pixels"),
        ((4, 1), torch.tensor([0.0, 1.0, 1.0, 0.0]), "yes or no"),
        ((2, 3), torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]]), "labels"),
        ((4, 1), torch.tensor([0.3, -1.0, 2.0, 0.0]), "numbers"),
        ((4, 2), torch.tensor([0.3, -1.0, 2.0, 0.0]), "unknown"),
        ((4, 2), None, "unknown"),
    ],
)
def test_the_task_is_read_from_outputs_and_targets(shape, targets, kind):
    assert task_of(outputs(*shape), targets) == kind


def test_a_perfect_output_has_a_loss_of_about_zero_for_every_usual_loss():
    classes, numbers = torch.tensor([0, 2, 1]), torch.tensor([0.5, -2.0, 7.0])
    yes_no = torch.tensor([0.0, 1.0, 1.0])
    for loss, shape, targets in [
        (F.cross_entropy, (3, 3), classes),
        (F.nll_loss, (3, 3), classes),
        (F.mse_loss, (3,), numbers),
        (F.binary_cross_entropy_with_logits, (3,), yes_no),
        (lambda said, asked: F.binary_cross_entropy(said.clamp(0, 1), asked), (3,), yes_no),
    ]:
        assert min(float(loss(each, targets)) for each in perfect_outputs(outputs(*shape), targets)) < 1e-3


@pytest.mark.parametrize("classes_first", [False, True])
def test_perfect_tokens_are_found_where_the_loss_shifts_them_but_other_classes_are_not(classes_first):
    """Outputs (sample, token, word), or (sample, word, token) as torch's cross-entropy has them."""
    labels = torch.randint(5, (4, 8), generator=torch.Generator().manual_seed(0))
    shape = (4, 5, 8) if classes_first else (4, 8, 5)

    def best(wanted, places=slice(None)):
        given = [each if classes_first else each.mT for each in perfect_outputs(outputs(*shape), labels)]
        return min(float(F.cross_entropy(each[..., places], wanted)) for each in given)

    assert best(labels) < 1e-3 and best(labels[:, 1:], slice(7)) < 1e-3
    assert best((labels + 1) % 5) > 1 and best((labels - 1) % 5) > 1


def test_perfect_counts_have_the_lowest_loss_as_numbers_or_as_logarithms():
    counts = torch.tensor([3.0, 0.0, 2.0, 5.0])
    lowest = (counts - torch.special.xlogy(counts, counts)).mean()  # of the Poisson loss, whose outputs are logarithms
    losses = [float(F.poisson_nll_loss(each, counts)) for each in perfect_outputs(outputs(4), counts)]
    assert min(losses) == pytest.approx(float(lowest), abs=1e-4) and losses[0] > 5
    assert len(perfect_outputs(outputs(4), counts - 1)) == 1  # a negative number has no logarithm


def line(weight: float = 0.0) -> nn.Linear:
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, weight)
    return net


X = torch.linspace(-1, 1, 64).reshape(-1, 1)


def test_the_best_step_is_the_one_that_reaches_the_minimum():
    kind, found = probe_tests(line(1.0), F.mse_loss, X, 2 * X)  # from weight 1 to weight 2: a step of 1 of its norm
    assert kind == "numbers"
    assert found["best_step"] == pytest.approx(1.0)
    assert found["best_loss"] == pytest.approx(0.0, abs=1e-9) and found["loss"] == pytest.approx(X.square().mean())
    assert found["target_std"] == pytest.approx(2 * X.std(correction=0))


def test_at_the_minimum_no_step_helps():
    assert probe_tests(line(2.0), F.mse_loss, X, 2 * X)[1]["gradient"] == 0
    far = probe_tests(line(2.0), F.mse_loss, X, (2 + 1e-9) * X)[1]
    assert far.get("best_step", 0.0) == 0.0


def test_a_loss_that_broadcasts_prefers_no_target_to_another():
    def broadcast(said, asked):
        return F.mse_loss(*torch.broadcast_tensors(said.reshape(-1, 1), asked.reshape(1, -1)))

    asked = torch.randn(64, generator=torch.Generator().manual_seed(0))
    fits = probe_tests(line(1.0), lambda said, targets: F.mse_loss(said.flatten(), targets), X, asked)[1]
    mixed = probe_tests(line(1.0), broadcast, X, asked)[1]
    assert fits["truth"] == 0 and fits["swapped"] > 0.5
    assert mixed["truth"] == pytest.approx(mixed["swapped"]) and mixed["truth"] > 0.5


def test_a_net_that_ignores_its_inputs_has_the_same_loss_with_others():
    asked = 2 * X
    blind, seeing = (probe_tests(line(weight), F.mse_loss, X, asked)[1] for weight in (0.0, 2.0))
    assert blind["other_inputs"] == blind["loss"]
    assert seeing["other_inputs"] > seeing["loss"] + 1e-4


def test_a_loss_that_refuses_what_is_no_probability_is_tested_as_far_as_it_goes():
    class Probability(nn.Linear):
        def forward(self, x):
            return super().forward(x).clamp(-1, 2)  # a long step leaves the range from 0 to 1

    net = Probability(1, 1)
    nn.init.constant_(net.weight, 0.1), nn.init.constant_(net.bias, 0.5)
    asked = (X > 0).float()
    with pytest.raises(RuntimeError):
        F.binary_cross_entropy(net(10 * X + 10), asked)
    found = probe_tests(net, F.binary_cross_entropy, X, asked)[1]
    assert 0 < found["best_step"] < 3 and found["best_loss"] < found["loss"]
    assert found["truth"] < 0.01 < found["swapped"]


def test_only_the_first_samples_are_tested():
    seen = []

    class Counting(nn.Linear):
        def forward(self, x):
            seen.append(len(x))
            return super().forward(x)

    probe_tests(Counting(1, 1), F.mse_loss, torch.randn(3 * TESTED, 1), torch.randn(3 * TESTED, 1))
    assert set(seen) == {TESTED}


def test_the_net_is_left_as_it_was():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    net[0].weight.grad = torch.ones_like(net[0].weight)
    before, state = {name: each.clone() for name, each in net.state_dict().items()}, torch.get_rng_state()
    probe_tests(net, F.cross_entropy, torch.randn(32, 4), torch.randint(3, (32,)))
    torch.set_rng_state(state)
    gradient = net[0].weight.grad
    assert all(torch.equal(before[name], each) for name, each in net.state_dict().items())
    assert net.training and gradient is not None and torch.equal(gradient, torch.ones_like(gradient))


def watched_line(lr: float, steps: int = 20):
    net = line(1.0)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    with watch(net, optimizer, probe=(X, 2 * X), loss_fn=F.mse_loss, strict=True) as record:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = F.mse_loss(net(X), 2 * X)
            loss.backward()
            optimizer.step()
            record.step(loss)
        record.validation(loss=loss)
    return record.run


def test_watch_runs_them_at_the_end_and_keeps_them_with_the_run(tmp_path):
    run = watched_line(lr=1e-4)
    kept = type(run).load(run.save(tmp_path / "run.npz") or tmp_path / "run.npz")
    assert run.facts["task"] == kept.facts["task"] == "numbers"
    assert kept.facts["probe_tests"] == run.facts["probe_tests"]
    assert run.facts["probe_tests"]["best_step"] > 1000 * run["update_ratio"][-1, 0]


def test_an_error_in_them_does_not_reach_the_loop(capsys):
    net = line(1.0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    calls = []

    def fragile(said, asked):
        calls.append(1)
        if len(calls) > 200:
            raise KeyError("no more")  # not what a loss says to outputs that it does not take
        return F.mse_loss(said, asked)

    with watch(net, optimizer, probe=(X, 2 * X), loss_fn=fragile) as record:
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.mse_loss(net(X), 2 * X)
            loss.backward()
            optimizer.step()
            record.step(loss)
        record.validation(loss=loss)  # else the probe is examined at the end, which would fail first
        calls.extend([1] * 200)
    assert "probe_tests" not in record.run.facts
    assert record.run.facts["switched_off"][0]["instrument"] == "the tests on the probe"
    assert "the tests on the probe" in capsys.readouterr().err


# --- of a large probe the first samples -------------------------------------------------------------


class Graph(nn.Module):
    """Mixes the values of nodes that are neighbours."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, nodes, neighbours):
        return neighbours @ self.layer(nodes)


@pytest.mark.parametrize("sparse", [True, False])
def test_a_graph_is_tested_as_a_whole(sparse):
    torch.manual_seed(0)
    nodes, labels, chosen = torch.randn(300, 4), torch.randint(3, (300,)), torch.arange(280, 300)
    neighbours = torch.eye(300).to_sparse() if sparse else torch.eye(300)

    def loss(outputs, targets):
        return F.cross_entropy(outputs[chosen], targets[chosen])

    net = Graph()
    _, found = probe_tests(net, loss, (nodes, neighbours), labels)
    assert found["loss"] == pytest.approx(float(loss(net(nodes, neighbours), labels))) and found["truth"] < 0.01


@pytest.mark.parametrize("named", [True, False])
def test_inputs_and_targets_are_cut_alike(named):
    class Named(nn.Linear):
        def forward(self, x):
            return super().forward(x)

    torch.manual_seed(0)
    net, x, y = Named(4, 3), torch.randn(300, 4), torch.randint(3, (300,))
    _, found = probe_tests(net, F.cross_entropy, {"x": x} if named else x, y)
    assert found["loss"] == pytest.approx(float(F.cross_entropy(net(x)[:TESTED], y[:TESTED])))
