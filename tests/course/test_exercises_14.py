"""Lesson 14: the usual mistakes are told what they are, and right answers are right."""

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy

import labkit
from labkit.course.exercises import lesson_14
from labkit.diagnosis.watch import watch

# --- 14.1 ---


def watched(
    model, optimizer, loader, probe, test, *, seen_probe=True, batches=True, late=True, noted=True, every=1, eval=True
):
    with watch(model, optimizer, probe=probe if seen_probe else None, every=every) as record:
        model.train()
        for data, target in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(data), target)
            loss.backward()
            if not late:
                record.step(loss, batch=(data, target))
            optimizer.step()
            if late:
                record.step(loss, batch=(data, target) if batches else None)
        model.train(not eval)
        if noted:
            record.validation(**test(model))
    return record


def with_option(**options):
    return lambda *arguments: watched(*arguments, **options)


def never_entered(model, optimizer, loader, probe, test):
    record = watch(model, optimizer, probe=probe)
    for data, target in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        record.step(loss, batch=(data, target))
    model.eval()
    record.validation(**test(model))
    return record


def never_told(model, optimizer, loader, probe, test):
    with watch(model, optimizer, probe=probe) as record:
        for data, target in loader:
            optimizer.zero_grad()
            cross_entropy(model(data), target).backward()
            optimizer.step()
    return record


def without_zero_grad(model, optimizer, loader, probe, test):
    optimizer.zero_grad = lambda: None
    return watched(model, optimizer, loader, probe, test)


# --- 14.2 ---


def guarded(model, optimizer, loop):
    try:
        with watch(model, optimizer, on_alarm="raise") as record:
            loop(record)
    except labkit.Alarm as alarm:
        return alarm.diagnosis.name
    return "quiet"


def swallows(model, optimizer, loop):
    try:
        return guarded(model, optimizer, loop)
    except Exception:
        return "quiet"


def takes_any_for_an_alarm(model, optimizer, loop):
    try:
        return guarded(model, optimizer, loop)
    except RuntimeError as alarm:
        return getattr(alarm, "diagnosis", "quiet")


def goes_on(model, optimizer, loop):
    inbox = []
    with watch(model, optimizer, on_alarm=inbox.append) as record:
        loop(record)
    return inbox[0].name if inbox else "quiet"


def never_looks(model, optimizer, loop):
    with watch(model, optimizer) as record:
        loop(record)
    return "quiet"


def always_the_same(model, optimizer, loop):
    guarded(model, optimizer, loop)
    return "learning_rate_too_high"


# --- 14.5 ---


def decayed(model, loader, *, decay=0.7, per_batch=False, epochs=6):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, decay)
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
            if per_batch:
                scheduler.step()
        if not per_batch:
            scheduler.step()


def loop_with(**options):
    return lambda *arguments: decayed(*arguments, **options)


# --- 14.6 ---


def checkpoint(model, optimizer, scheduler):
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
    return copy.deepcopy(states) | {"random": torch.get_rng_state()}


def references(model, optimizer, scheduler):
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
    return states | {"random": torch.get_rng_state()}


def references_in_the_optimizer(model, optimizer, scheduler):
    return checkpoint(model, optimizer, scheduler) | {"optimizer": optimizer.state_dict()}


def other_random_numbers(model, optimizer, scheduler):
    return checkpoint(model, optimizer, scheduler) | {"random": torch.Generator().manual_seed(3).get_state()}


def without_optimizer(model, optimizer, scheduler):
    found = checkpoint(model, optimizer, scheduler)
    del found["optimizer"]
    return found


def draws(model, optimizer, scheduler):
    torch.rand(1)
    return checkpoint(model, optimizer, scheduler)


def the_objects(model, optimizer, scheduler):
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "random": torch.get_rng_state()}


PLAN = lesson_14.TESTS | {"first": "loss against metric", "last": "a tenth of the rate"}
CAUSES = {letter: cause for letter, (cause, _) in lesson_14.SEALED.items()}
RIGHT = [("14.1", watched), ("14.2", guarded), ("14.3", PLAN), ("14.4", CAUSES)]
RIGHT += [("14.5", decayed), ("14.6", checkpoint)]
WRONG = [
    ("14.1", never_told, "The record is empty"),
    ("14.1", with_option(every=2), "the record has 5"),
    ("14.1", without_zero_grad, "other weights"),
    ("14.1", with_option(late=False), "just after optimizer.step()"),
    ("14.1", never_entered, "never entered"),
    ("14.1", with_option(noted=False), "validation is not recorded"),
    ("14.1", with_option(eval=False), "in eval mode"),
    ("14.1", with_option(seen_probe=False), "No probe was given"),
    ("14.1", with_option(batches=False), "batches are not recorded"),
    ("14.1", lambda *arguments: watched(*arguments).run, "Return the record"),
    ("14.2", swallows, "you swallowed it"),
    ("14.2", takes_any_for_an_alarm, "you swallowed it"),
    ("14.2", goes_on, "your loop continued to"),
    ("14.2", never_looks, "you report 'quiet'"),
    ("14.2", always_the_same, "expected 'quiet'"),
    ("14.3", PLAN | {"saddle": "rate really used"}, "weights can still change"),
    ("14.3", PLAN | {"first": "a tenth of the rate"}, "costs a run"),
    ("14.4", CAUSES | {"C": lesson_14.CONVERGED}, "at chance level"),
    ("14.4", CAUSES | {"B": lesson_14.CONVERGED}, "can that be"),
    ("14.4", CAUSES | {"D": "decayed rate"}, "the same from the first step"),
    ("14.5", loop_with(per_batch=True), "shows scheduler stepped per batch"),
    ("14.5", loop_with(decay=1.0), "within epoch 1"),
    ("14.5", loop_with(decay=0.7 ** (1 / 32), per_batch=True), "within epoch 0"),
    ("14.5", loop_with(epochs=7), "Expected 6 epochs"),
    ("14.6", references, "refers, it does not copy"),
    ("14.6", references_in_the_optimizer, "ends elsewhere"),
    ("14.6", other_random_numbers, "ends elsewhere"),
    ("14.6", without_optimizer, "has no 'optimizer'"),
    ("14.6", draws, "only read"),
    ("14.6", the_objects, "it fails"),
    ("14.6", lambda *parts: list(parts), "Return a dict"),
]


@pytest.mark.parametrize(("id", "answer"), RIGHT)
def test_a_right_answer_is_right(id, answer):
    found = labkit.check(id, answer)
    assert found, found


@pytest.mark.parametrize(("id", "answer", "words"), WRONG)
def test_a_usual_mistake_is_told_what_it_is(id, answer, words):
    found = labkit.check(id, answer)
    assert found.state == "not yet" and words in str(found), found


@pytest.mark.slow
def test_the_sealed_runs_have_what_the_key_says():
    modes = {
        lesson_14.RATE: "scheduler_stepped_per_batch",
        lesson_14.METRIC: "metric_broadcast",
        lesson_14.SADDLE: "saddle_point",
        lesson_14.OVERFIT: "too_few_samples",
    }
    for letter, run in lesson_14.patients().items():
        found = [each.name for each in labkit.diagnose(run)]
        assert found[:1] == [modes[CAUSES[letter]]] if CAUSES[letter] in modes else not found, (letter, found)
