"""Lesson 03: the usual mistakes are told what they are, and right answers are right."""

import copy

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import labkit
from labkit.course.exercises import lesson_03
from labkit.training.loop import Training


def slipping(*, empty=True, groups=slice(None), late=False, weights=copy.deepcopy, memory=copy.deepcopy, first=None):
    """A range test with one slip, or none. `weights` and `memory` keep (or fail to keep) what was there before."""

    def range_test(net, optimizer, batches, lrs):
        kept, remembered, losses = weights(net.state_dict()), memory(optimizer.state_dict()), []
        for lr, (x, y) in list(zip(lrs, batches, strict=True))[:first]:
            for group in optimizer.param_groups[groups]:
                group["lr"] = lr
            if empty:
                optimizer.zero_grad()
            loss = cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            losses.append((cross_entropy(net(x), y) if late else loss).item())
        net.load_state_dict(kept or net.state_dict())
        optimizer.load_state_dict(remembered or optimizer.state_dict())
        return losses

    return range_test


def rates_only(net, optimizer, batches, lrs):
    """Puts back the weights and the rates, and leaves the momentum."""
    before = [group["lr"] for group in optimizer.param_groups]
    losses = slipping(memory=lambda state: None)(net, optimizer, batches, lrs)
    for group, lr in zip(optimizer.param_groups, before, strict=True):
        group["lr"] = lr
    return losses


def forgets_everything(net, optimizer, batches, lrs):
    """Puts back weights and rates, and leaves the optimizer without any memory."""
    losses = rates_only(net, optimizer, batches, lrs)
    optimizer.state.clear()
    return losses


def parameters_only(net, optimizer, batches, lrs):
    """Puts back the parameters, and forgets what batch norm keeps beside them."""
    before = [weight.detach().clone() for weight in net.parameters()]
    losses = slipping(weights=lambda state: None)(net, optimizer, batches, lrs)
    with torch.no_grad():
        for weight, old in zip(net.parameters(), before, strict=True):
            weight.copy_(old)
    return losses


def clip_without_return(net, limit):
    clip(net, limit)


def gradients(net):
    return [weight.grad for weight in net.parameters() if weight.grad is not None]


def clip(net, limit):
    norm = torch.cat([each.flatten() for each in gradients(net)]).norm()
    for each in gradients(net):
        each.mul_(min(1, limit / norm))
    return norm


def clip_each(net, limit):
    for each in gradients(net):
        each.mul_(min(1, limit / each.norm()))
    return 5.0


def clip_values(net, limit):
    torch.nn.utils.clip_grad_value_(net.parameters(), limit)
    return 5.0


def clip_by_sum(net, limit):
    norm = sum(each.norm() for each in gradients(net))
    for each in gradients(net):
        each.mul_(limit / norm)
    return norm


def clip_always(net, limit):
    norm = torch.cat([each.flatten() for each in gradients(net)]).norm()
    for each in gradients(net):
        each.mul_(limit / norm)
    return norm


def clip_copies(net, limit):
    norm = torch.cat([each.flatten() for each in gradients(net)]).norm()
    for each in gradients(net):
        each = each * limit / norm
    return norm


def clip_and_tell_after(net, limit):
    clip(net, limit)
    return torch.cat([each.flatten() for each in gradients(net)]).norm()


def accumulating(*, divided=True, cleared="after", every_batch=False):
    """Gradient accumulation, correct or with one of the usual mistakes."""

    def train(model, optimizer, loader, together):
        optimizer.zero_grad()
        for count, (x, y) in enumerate(loader, start=1):
            if cleared == "always":
                optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            (loss / together if divided else loss).backward()
            if every_batch or count % together == 0:
                optimizer.step()
                if cleared == "after":
                    optimizer.zero_grad()

    return train


EXPERIMENTS = {
    "A": "gradients per layer",
    "B": "update over weight",
    "C": "larger batch",
    "D": "first ten steps",
}
FOUND_DEAD = {"failure": "learning_rate_too_high", "place": "layer2", "evidence": "update_ratio", "value": 3.6}

RIGHT = {
    "03.1": slipping(),
    "03.2": "0.2",
    "03.3": accumulating(),
    "03.4": clip,
    "03.6": EXPERIMENTS,
    "03.7": FOUND_DEAD,
    "03.8": lesson_03.largest_rate,
}
WRONG = [
    ("03.1", slipping(empty=False), "never clears the gradients"),
    ("03.1", slipping(groups=slice(1)), "only the first got your learning rates"),
    ("03.1", slipping(late=True), "after its step"),
    ("03.1", slipping(weights=lambda state: state), "copy.deepcopy it first"),
    ("03.1", slipping(memory=lambda state: None), "is left with"),
    ("03.1", rates_only, "optimizer's momentum was not restored"),
    ("03.1", forgets_everything, "optimizer's momentum was not restored"),
    ("03.1", parameters_only, "Batch norm keeps running means"),
    ("03.1", slipping(first=3), "expected as many losses"),
    ("03.1", lambda *_: 0.05, "Expected a list"),
    ("03.1", lambda *_: [2.0, 1.0, 0.5, 1.0, 9.0], "Five learning rates, five batches"),
    ("03.2", "1", "about to rise"),
    ("03.2", "0.0001", "still flat"),
    ("03.2", "3", "left for good"),
    ("03.2", "0.06", "is not a choice"),
    ("03.3", accumulating(divided=False), "learning rate too high"),
    ("03.3", accumulating(cleared="always"), "a correct loop reaches"),
    ("03.3", accumulating(cleared="never"), "a correct loop reaches"),
    ("03.3", accumulating(every_batch=True), "stepped after every batch"),
    ("03.4", clip_each, "each layer alone"),
    ("03.4", clip_values, "single entries"),
    ("03.4", clip_by_sum, "global norm is 7"),
    ("03.4", clip_always, "only ever scales down"),
    ("03.4", clip_copies, "in place"),
    ("03.4", clip_without_return, "is a `return` missing"),
    ("03.4", clip_and_tell_after, "the norm after clipping"),
    ("03.6", EXPERIMENTS | {"A": "a tenth of the learning rate"}, "both stay flat"),
    ("03.6", EXPERIMENTS | {"C": "a tenth of the learning rate", "D": "update over weight"}, "Correct: A, B."),
    ("03.7", FOUND_DEAD | {"failure": "dead_relu"}, "before the first step they were alive"),
    ("03.7", FOUND_DEAD | {"evidence": "dead"}, "does not tell this failure from its look-alikes"),
    ("03.7", FOUND_DEAD | {"value": 0.02}, "Read it again"),
    ("03.8", lambda curvature, momentum, nesterov: 2 / curvature, "still shrinks"),
    ("03.8", lambda curvature, momentum, nesterov: 2 * (1 - momentum) / curvature, "still shrinks"),
    ("03.8", lambda curvature, momentum, nesterov: 2 * (1 + momentum) / curvature, "Nesterov: at 0.99 times"),
    ("03.8", lambda *_: -1.0, "above 0"),
]


@pytest.mark.parametrize("id", RIGHT)
def test_a_right_answer_is_right(id):
    assert labkit.check(id, RIGHT[id]).state == "right"


@pytest.mark.parametrize(("id", "answer", "words"), WRONG)
def test_a_usual_mistake_is_named(id, answer, words):
    found = labkit.check(id, answer)
    assert found.state == "not yet" and words in str(found), str(found)


def test_the_untouched_loop_is_told_what_its_run_shows():
    def untouched(model, optimizer, loader, together):
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()

    assert "batch too small" in str(labkit.check("03.3", untouched))


def test_pytorchs_own_clipping_is_right():
    assert labkit.check("03.4", lambda net, limit: torch.nn.utils.clip_grad_norm_(net.parameters(), limit))


def test_the_cure_may_change_nothing_but_the_rate():
    sick = labkit.FAILURES["dead_relu_by_learning_rate"].sick
    found = labkit.check("03.5", sick.but(lr=0.003, normalisation="batch"))
    assert found.state == "not yet" and "has to keep" in str(found)
    assert labkit.check("03.5", sick.but(lr=0.05)).state == "not yet"


@pytest.mark.slow
def test_what_the_range_test_suggests_cures():
    patient = Training(labkit.FAILURES["dead_relu_by_learning_rate"].sick)
    found = labkit.find_lr(patient.model, cross_entropy, tuple(patient.data.train), patient.optimizer)
    assert labkit.check("03.5", patient.recipe.but(lr=found.suggestion))


@pytest.mark.slow
def test_the_sealed_run_shows_what_the_exercise_accepts():
    run = lesson_03.patient()
    [first, *_] = labkit.diagnose(run)
    assert first.name == FOUND_DEAD["failure"] and first.place == FOUND_DEAD["place"]
    assert 1 < run["update_ratio"][0].max() < 8 and 100 < run["loss"].max() < 1e6
    assert run["dead"][0, 1] < 0.2 and run["dead"][-1, 1] > 0.5


def test_the_stored_runs_have_every_size_and_seed():
    table = lesson_03.accuracy_by_batch_size()
    assert list(table) == list(lesson_03.RULES)
    for rows in table.values():
        assert list(rows) == list(lesson_03.SIZES)
        assert all(len(scores) == len(lesson_03.SEEDS) and min(scores) > 0 for scores in rows.values())


def test_the_stored_runs_are_those_that_are_trained_now():
    stored, now = lesson_03.accuracy_by_batch_size(), lesson_03.measure(sizes=(2048,))
    assert np.allclose(stored[lesson_03.RULES[0]][2048], now[lesson_03.RULES[0]][2048], atol=0.03)
    assert max(now[lesson_03.RULES[1]][2048]) < 0.5 < min(stored[lesson_03.RULES[1]][512])
