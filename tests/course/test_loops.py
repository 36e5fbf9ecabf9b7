"""Exercises of the kind `loop`: a plain PyTorch loop is run on unseen images, and graded by what it does."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from labkit.course.grading import NotYet
from labkit.course.loops import Follower, Outcome, follow, images, loop
from labkit.training.data import load


def make_model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))


def make_optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


SETTING = images(make_model, make_optimizer, 3, samples=1_000)


def train(model, optimizer, loader, epochs):
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()


def without_zero_grad(model, optimizer, loader, epochs):
    for _ in range(epochs):
        for x, y in loader:
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()


def one_batch_only(model, optimizer, loader, epochs):
    x, y = next(iter(loader))
    for _ in range(epochs * len(loader)):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


def half_an_epoch(model, optimizer, loader, epochs):
    for x, y in list(loader)[: len(loader) // 4]:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


LOOP = loop("99.1", "Repair it", SETTING, train, hints=("Look at the gradients.",))


def test_a_right_loop_is_right_and_says_how_it_was_tried_without_numbers_of_this_machine():
    found = LOOP.check(train)
    assert found and "other images and with another seed" in found.seen and "no failure" in found.seen
    assert not any(letter.isdigit() for letter in found.seen)


def test_a_loop_written_another_way_is_right_too():
    def mine(net, opt, batches, passes):
        for step in range(passes * len(batches)):
            if step % len(batches) == 0:
                order = iter(batches)
            images, labels = next(order)
            loss = nn.CrossEntropyLoss()(net(images), labels)
            net.zero_grad()
            loss.backward()
            opt.step()

    assert LOOP.check(mine)


@pytest.mark.parametrize(
    ("broken", "words"),
    [(without_zero_grad, "the run shows"), (half_an_epoch, "a correct loop reaches"), (one_batch_only, "correct")],
)
def test_a_broken_loop_is_told_what_its_run_shows_or_how_far_a_right_one_comes(broken, words):
    found = LOOP.check(broken)
    assert found.state == "not yet" and words in str(found).lower()


def test_a_loop_that_never_steps_or_never_goes_backward_is_told_so():
    def forgets_step(model, optimizer, loader, epochs):
        for x, y in loader:
            cross_entropy(model(x), y).backward()

    def forgets_backward(model, optimizer, loader, epochs):
        for x, y in loader:
            cross_entropy(model(x), y)
            optimizer.step()

    assert "The optimizer never stepped" in str(LOOP.check(forgets_step))
    assert "stepped before any `.backward()`" in str(LOOP.check(forgets_backward))


def test_a_stub_is_not_attempted_and_an_error_is_the_students_own():
    def stub(model, optimizer, loader, epochs):
        pass

    def breaks(model, optimizer, loader, epochs):
        loader.shuffle_now()

    assert LOOP.check(stub).state == LOOP.check(...).state == "not attempted"
    assert "loader.shuffle_now()" in str(LOOP.check(breaks))
    assert "Expected a function such as train(model, optimizer, loader)" in str(LOOP.check(3))


def test_only_the_failures_it_is_about_count_where_they_are_named():
    lenient = loop(
        "99.1", "Repair it", SETTING, train, free_of=("learning_rate_too_high",), margin=1.0, hints=("Look.",)
    )
    assert lenient.check(without_zero_grad)
    assert not LOOP.check(without_zero_grad)
    assert lenient.modes == ("learning_rate_too_high",)


def test_a_loop_may_make_its_own_optimizer_and_more_can_be_asked_of_it():
    def own(model, loader):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, optimizer, loader, 3)
        return "history"

    def too_fast(model, loader):
        train(model, torch.optim.SGD(model.parameters(), lr=10.0), loader, 3)

    def also(outcome: Outcome) -> str:
        if outcome.returned != "history":
            raise NotYet("It returned no history.")
        return "It kept a history."

    asked = loop("99.1", "All yours", images(make_model, samples=1_000), own, also=also, hints=("Look.",))
    assert "It kept a history." in str(asked.check(own))
    assert "It returned no history." in str(asked.check(lambda model, loader: own(model, loader) and None))
    assert "learning rate too high" in str(asked.check(too_fast))
    assert "no optimizer" in str(asked.check(lambda model, loader: [model(x) for x, _ in loader]))


def test_watching_changes_no_bit_of_the_result():
    watched, alone = SETTING(7), SETTING(7)
    torch.manual_seed(0)
    follow(train, watched)
    torch.manual_seed(0)
    train(*alone.arguments)
    for mine, theirs in zip(watched.model.parameters(), alone.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_the_loop_is_recorded_with_losses_batches_and_validations():
    run = follow(train, SETTING(1)).run
    assert len(run) == 48 and len(run["val_loss"]) == 13
    assert run["loss"][0] == pytest.approx(2.3, abs=0.3) and run["loss"][-1] < 1


def test_nothing_is_left_behind_in_torch():
    before = torch.Tensor.backward, torch.optim.Optimizer.__init__
    with pytest.raises(ZeroDivisionError), Follower(SETTING(0)):
        1 / 0  # noqa: B018
    assert (torch.Tensor.backward, torch.optim.Optimizer.__init__) == before
    setting = SETTING(0)
    follow(train, setting)
    assert not setting.optimizer._optimizer_step_pre_hooks


def test_the_images_are_none_that_a_lesson_shows():
    known = load("mnist", "train", samples=10_000).x[:10_000].flatten(1).unique(dim=0)
    seen = SETTING(11).loader.dataset.tensors[0].flatten(1)
    both = torch.cat([known, seen]).unique(dim=0)
    assert len(both) == len(known) + len(seen.unique(dim=0))
    cifar = images(make_model, dataset="cifar10", samples=100)(0)
    assert len(cifar.loader.dataset) == 100 and cifar.held_out.size == 2_000


def test_what_the_diagnosis_says_of_the_reference_too_does_not_count(monkeypatch):
    alarm = SimpleNamespace(name="learning_rate_too_high_late", title="LR", because="it is noisy")
    monkeypatch.setattr(Outcome, "diagnoses", property(lambda self: [alarm]))
    assert loop("99.1", "Repair it", SETTING, train, hints=("Look.",)).check(train)
    named = loop("99.1", "Repair it", SETTING, train, free_of=(alarm.name,), hints=("Look.",))
    assert "The run shows lr: it is noisy" in str(named.check(train))
