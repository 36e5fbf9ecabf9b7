"""The sample log: which samples, under which labels, in which mode; checked against cases made by hand."""

import math

import numpy as np
import pytest
import torch
from helpers import tiny, trained
from torch import nn

from labkit.recording import sample_log
from labkit.recording.sample_log import (
    Columns,
    SampleLog,
    Samples,
    columns_apart,
    entropy,
    fingerprints,
    foreign_weights,
    fresh_steps,
    not_in_optimizer,
    order_repeats,
    overlap_by_chance,
    pixels,
    relabelled,
)
from labkit.training import parts
from labkit.training.data import load
from labkit.training.loop import Training


def test_no_two_of_the_first_digits_have_the_same_fingerprint():
    prints = fingerprints(pixels(load("mnist", "train").x[:10_000]))
    assert len(np.unique(prints.numpy())) == 10_000


def test_a_sample_has_the_same_fingerprint_in_any_company():
    x = load("mnist", "train").x[:300]
    one = torch.cat([fingerprints(pixels(x[index : index + 1])) for index in range(300)])
    order = torch.randperm(300, generator=torch.Generator().manual_seed(1))
    assert torch.equal(fingerprints(pixels(x)), one)
    assert torch.equal(fingerprints(pixels(x[order])), one[order])
    assert not torch.isin(fingerprints(pixels(x * 1.0001)), one).any()


def test_the_random_generator_is_left_alone():
    state = torch.get_rng_state()
    pixels(torch.rand(2, 3, 41, 41, generator=torch.Generator().manual_seed(0)))  # a size not met before
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("prints", "share"),
    [([], 0), ([1, 2, 3], 0), ([1, 2, 3, 1, 2, 3], 1), ([1, 2, 3, 4, 1, 2, 4, 3], 0.5), ([1, 2, 3, 3, 1, 2], 1)],
)
def test_how_much_of_an_order_comes_again(prints, share):
    assert order_repeats(np.array(prints)) == share


@pytest.mark.parametrize(
    ("prints", "labels", "share"),
    [([1, 2, 1, 2], [5, 6, 5, 6], 0), ([1, 2, 1, 2], [5, 6, 5, 7], 0.5), ([1, 2, 3], [0, 0, 0], 0)],
)
def test_how_many_samples_change_their_label(prints, labels, share):
    assert relabelled(np.array(prints), np.array(labels)) == share


def test_the_entropy_of_labels():
    assert entropy(np.array([8, 0, 0])) == 0
    assert entropy(np.array([4, 4])) == pytest.approx(math.log(2))


class WithList(nn.Module):
    """A layer that the net does not know of, because it stands in a plain list."""

    def __init__(self):
        super().__init__()
        self.known, self.hidden = nn.Linear(3, 3), [nn.Linear(3, 2)]

    def forward(self, x):
        return self.hidden[0](self.known(x))


def test_tensors_that_the_net_does_not_own_are_found_in_the_graph():
    net = WithList()
    assert foreign_weights(net(torch.ones(1, 3)).sum(), net) == [[2], [2, 3]]
    assert foreign_weights(net.known(torch.ones(1, 3)).sum(), net) == []
    assert foreign_weights(torch.ones(()), net) == []  # a loss without a graph


def test_parameters_that_the_optimizer_does_not_hold_are_named():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(net[0].parameters(), lr=0.1)
    assert not_in_optimizer(net, [optimizer]) == ["1.weight", "1.bias"]
    assert not_in_optimizer(net[0], [optimizer]) == []


def test_a_healthy_run_has_a_clean_ledger():
    run = trained(tiny(steps=20, normalisation="batch", dropout=0.1, evaluate_every=5))
    facts = run.facts
    assert facts["batch_norms"] == ["norm1"] and facts["dropouts"] == ["dropout1"]
    assert facts["unregistered"] == facts["not_in_optimizer"] == facts["batch_norms_unmoved"] == []
    assert facts["order_repeats"] < 0.1 and facts["relabelled"] == 0 and facts["val_changed"] == 0
    assert facts["val_trained_on"] < 0.01 and facts["batch_length"] == 32
    assert sum(facts["label_shares"]) == pytest.approx(1, abs=1e-4)
    assert (run["train_mode"] == 1).all() and (run["val_train_mode"] == 0).all()
    assert (run["val_with_gradients"] == 0).all()
    assert run["val_input_mean"][-1] == pytest.approx(0, abs=0.1)
    assert (run["label_entropy"] > 1.5).all() and (run["input_max"] < 3).all()


@pytest.mark.parametrize(
    ("options", "training", "unmoved"),
    [
        ({}, True, []),
        ({"momentum": 0.0}, True, ["0"]),
        ({}, False, ["0"]),  # the trace of train modes tells this one apart
        ({"track_running_stats": False}, True, []),
    ],
)
def test_batch_norms_whose_statistics_never_move_are_named(options, training, unmoved):
    net = nn.Sequential(nn.BatchNorm1d(3, **options), nn.Linear(3, 2)).train(training)
    log = SampleLog(net, [torch.optim.SGD(net.parameters(), lr=0.1)])
    net(torch.randn(8, 3))
    assert log.facts()["batch_norms_unmoved"] == unmoved


def in_order(split, recipe, generator):
    """The same order in every epoch, with labels that move on by one."""
    while True:
        for start in range(0, 256, 32):
            yield split.x[start : start + 32], (split.y[start : start + 32] + torch.randint(10, (1,))) % 10


def test_a_fixed_order_and_changing_labels_show():
    facts = trained(tiny(steps=24, batches=in_order)).facts
    assert facts["order_repeats"] == 1 and facts["relabelled"] > 0.7


def evaluated_on_training_images_with_gradients(training, split):
    """On training images, without eval() and without no_grad()."""
    return parts.score(training, training.data.train.x[:64], training.data.train.y[:64])


def test_a_leak_a_wrong_mode_and_gradients_at_validation_show():
    run = trained(tiny(steps=24, evaluate=evaluated_on_training_images_with_gradients, normalisation="batch"))
    assert run.facts["val_trained_on"] > 0.9
    assert (run["val_train_mode"] == 1).all() and (run["val_with_gradients"] == 1).all()


def in_eval_mode(training, x, y):
    training.model.eval()
    parts.plain_step(training, x, y)


def test_training_in_eval_mode_shows_in_the_modules_that_care():
    assert (trained(tiny(step=in_eval_mode, normalisation="batch"))["train_mode"] == 0).all()


def test_what_the_instruments_pass_through_the_net_is_not_written_down():
    training = Training(tiny(steps=3, evaluate_every=0))
    recorder = training.new_recorder(True)
    with recorder:
        recorder.probe.examine  # noqa: B018 (the probe is there)
        recorder.validate()
    assert recorder.samples.passes == [] and recorder.samples.evaluation() == {}


def test_a_ledger_takes_batches_of_any_size_and_labels_that_are_numbers():
    net = nn.Linear(4, 1)
    log = SampleLog(net, [torch.optim.SGD(net.parameters(), lr=0.1)])
    log.attach()
    for size in (3, 5, 1):
        loss = net(torch.ones(size, 4)).sum()
        log.step(loss, torch.zeros(size))
    log.detach()
    assert log.traces()["input_max"].tolist() == [1, 1, 1] and "label_entropy" not in log.traces()
    assert log.facts()["batch_length"] == 3 and "relabelled" not in log.facts()
    assert not net._forward_pre_hooks


@pytest.mark.parametrize(
    ("targets", "shares"),
    [
        ([0.0, 1.0, 1.0, 1.0], [0.25, 0.75]),
        ([[0.0], [1.0], [1.0], [1.0]], [0.25, 0.75]),  # one column
        ([0, 2, 2, 2], [0.25, 0.0, 0.75]),
        ([0.0, 0.5, 1.0, 1.0], None),  # numbers
        ([[0.0, 1.0]] * 4, None),  # several answers for each sample
    ],
)
def test_floats_of_0_and_1_are_classes_too(targets, shares):
    net = nn.Linear(4, 1)
    log = SampleLog(net, [torch.optim.SGD(net.parameters(), lr=0.1)])
    log.attach()
    for _ in range(3):
        log.step(net(torch.eye(4)).sum(), torch.tensor(targets))
    log.detach()
    assert log.facts().get("label_shares") == shares and log.facts()["different_samples"] == 4


def test_samples_that_waited_together_are_written_as_if_each_came_alone(monkeypatch):
    batches = [torch.randn(5, 8), torch.randn(3, 8), torch.randn(4, 6), torch.randn(2, 6)]
    books = {}
    for together in (1, 7, 1000):
        monkeypatch.setattr(sample_log, "TOGETHER", together)
        books[together] = sample_log.Book()
        for batch in batches:
            books[together].write([batch])
    alone = books[1].read()
    assert alone[2].tolist() == [5, 3, 4, 2]
    for together in (7, 1000):
        assert all(np.array_equal(a, b) for a, b in zip(books[together].read(), alone, strict=True))
        assert all(np.array_equal(a, b) for a, b in zip(books[together].read(), alone, strict=True))  # and again


@pytest.mark.parametrize("values, drawn, shared", [(1000, 5000, 0.99), (10**9, 5000, 0.0), (50_000, 5000, 0.1)])
def test_equal_samples_are_expected_where_inputs_have_few_values(values, drawn, shared):
    random = np.random.default_rng(0)
    samples = Samples(random.integers(values, size=drawn), lengths=np.full(drawn // 50, 50))
    true = np.isin(random.integers(values, size=2000), samples.prints).mean()
    assert true == pytest.approx(shared, abs=0.02)
    assert true - 0.02 <= overlap_by_chance(samples) <= true + 0.15  # rounded up


def test_no_overlap_is_expected_without_pairs():
    assert overlap_by_chance(Samples()) == 0
    assert overlap_by_chance(Samples(np.arange(5), lengths=np.ones(5, dtype=int))) == 0


def trained_once(net: nn.Module, loss_of) -> SampleLog:
    log = SampleLog(net, [torch.optim.SGD(net.parameters(), lr=0.1)])
    log.attach()
    loss = loss_of(net(torch.ones(2, 3)))
    loss.backward()
    log.step(loss, None)
    log.detach()
    return log


def test_a_second_net_inside_the_loss_is_not_taken_for_unregistered_layers():
    """A critic or a teacher is another net; a layer in a plain list is inside this one."""
    critic = nn.Linear(2, 1)
    assert trained_once(nn.Linear(3, 2), lambda outputs: critic(outputs).mean()).foreign == []
    assert trained_once(WithList(), lambda outputs: critic(outputs).mean()).foreign == [[2], [2, 3]]


def test_unregistered_layers_are_found_where_the_loop_calls_parts_of_the_net():
    net, head = nn.Sequential(nn.Linear(3, 2)), nn.Linear(2, 1)
    log = SampleLog(net, [])
    log.attach()
    log.step(head(net[0](torch.ones(2, 3))).mean(), None)
    log.detach()
    assert log.foreign == [[1], [1, 2]]


@pytest.mark.parametrize(
    ("prints", "lengths", "steps"),
    [
        ([1, 2, 3, 4, 2, 1, 4, 3], [2, 2, 2, 2], 2),  # two epochs
        ([1, 2, 3, 4, 5, 6], [2, 2, 2], 3),  # no sample came again
        ([1, 1, 1, 1, 2, 3], [2, 2, 2], 1),  # equal samples in one batch are not repeated, in the next they are
        ([1, 2, 1, 3, 4, 5], [2, 2, 2], 3),  # one of two is not most of them
        ([1, 2, 3, 4], [2, 0, 2, 2], 3),  # the last batch was not kept
        ([], [], 0),
    ],
)
def test_how_long_the_first_pass_is(prints, lengths, steps):
    assert fresh_steps(Samples(np.array(prints, dtype=np.int64), lengths=np.array(lengths, dtype=int))) == steps


def test_columns_of_training_and_validation_inputs_are_compared():
    torch.manual_seed(0)
    scale, shift = torch.tensor([1.0, 1.0, 5.0, 1.0]), torch.tensor([0.0, 3.0, 0.0, 0.0])
    one, other = (shift + scale * torch.randn(1000, 4) for _ in range(2))
    assert columns_apart(Columns.of(one), Columns.of(other)) == 0
    assert columns_apart(Columns.of(one), Columns.of(other[:, [0, 1, 3, 2]])) == 0.5  # another deviation
    assert columns_apart(Columns.of(one), Columns.of(other[:, [1, 0, 2, 3]])) == 0.5  # another mean
    assert columns_apart(Columns.of(one), Columns.of(other + torch.tensor([0.2, 0, 0, 0]))) == 0  # MATTERS
    assert columns_apart(Columns.of(one[:60]), Columns.of(other)) is None  # COMPARABLE
    assert columns_apart(Columns.of(one), Columns.of(other[:, :3])) is None
    assert columns_apart(None, Columns.of(other)) is None


def test_a_few_samples_differ_by_chance():
    """ERRORS: a mean of 70 samples is off by 0.12 of a standard deviation, and more than MATTERS."""
    torch.manual_seed(0)
    assert columns_apart(Columns.of(torch.randn(70, 200)), Columns.of(torch.randn(70, 200))) == 0


def test_a_run_knows_its_first_pass_and_the_columns_of_its_inputs():
    def turned(training, split):
        return parts.plain_evaluate(training, split._replace(x=split.x.flip(2)))

    recipe = tiny(samples=256, batch_size=32, steps=12)
    facts, other = trained(recipe).facts, trained(recipe.but(evaluate=turned)).facts
    assert facts["fresh_steps"] == other["fresh_steps"] == 8  # 256 samples in batches of 32
    assert facts["val_columns_apart"] < 0.1 < 0.2 < other["val_columns_apart"]


def test_samples_that_came_again_count_once():
    few = trained(tiny(samples=60, batch_size=60, steps=20))  # 1,200 samples, 60 different ones: too few to compare
    assert "val_columns_apart" not in few.facts
