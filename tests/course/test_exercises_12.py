"""Lesson 12: the usual mistakes are told what they are, and right answers are right."""

import math

import pytest
from torch.nn.functional import cross_entropy

import labkit
from labkit.course.exercises import lesson_12
from labkit.diagnosis.watch import watch
from labkit.failures.catalogue import FAILURES

# --- 12.1 ---


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


# --- 12.2 ---


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


# --- 12.5 ---


def per_epoch(step, recipe):
    return recipe.lr * recipe.decay ** (step // math.ceil(recipe.samples / recipe.batch_size))


PLAN = lesson_12.TESTS | {"first": "loss against metric", "last": "train on"}
CAUSES = {letter: cause for letter, (cause, _) in lesson_12.SEALED.items()}
SICK = FAILURES["scheduler_stepped_per_batch"].sick
RIGHT = [("12.1", watched), ("12.2", guarded), ("12.3", PLAN), ("12.4", CAUSES)]
RIGHT += [("12.5", SICK.but(schedule=per_epoch))]
WRONG = [
    ("12.1", never_told, "The record is empty"),
    ("12.1", with_option(every=2), "the record has 5"),
    ("12.1", without_zero_grad, "other weights"),
    ("12.1", with_option(late=False), "just after optimizer.step()"),
    ("12.1", never_entered, "never entered"),
    ("12.1", with_option(noted=False), "validation is not recorded"),
    ("12.1", with_option(eval=False), "in eval mode"),
    ("12.1", with_option(seen_probe=False), "No probe was given"),
    ("12.1", with_option(batches=False), "batches are not recorded"),
    ("12.1", lambda *arguments: watched(*arguments).run, "Return the record"),
    ("12.2", swallows, "you swallowed it"),
    ("12.2", takes_any_for_an_alarm, "you swallowed it"),
    ("12.2", goes_on, "your loop continued to"),
    ("12.2", never_looks, "you report 'quiet'"),
    ("12.2", always_the_same, "expected 'quiet'"),
    ("12.3", PLAN | {"saddle": "rate really used"}, "weights can still change"),
    ("12.3", PLAN | {"first": "train on"}, "costs a run"),
    ("12.4", CAUSES | {"C": "convergence"}, "at chance level"),
    ("12.4", CAUSES | {"B": "convergence"}, "can that be"),
    ("12.4", CAUSES | {"D": "decayed rate"}, "the same from the first step"),
    ("12.5", SICK.but(decay=0.99), "You changed decay"),
    ("12.5", SICK.but(schedule="constant"), "which is in epoch 1"),
    ("12.5", SICK.but(schedule=lambda step, recipe: recipe.lr * recipe.decay ** (step // recipe.samples)), "epoch 1"),
    ("12.5", SICK.but(schedule=lambda step, recipe: recipe.lr * recipe.decay ** (step // 78)), "batches of 50"),
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
        lesson_12.RATE: "scheduler_stepped_per_batch",
        lesson_12.METRIC: "metric_broadcast",
        lesson_12.SADDLE: "saddle_point",
        lesson_12.OVERFIT: "too_few_samples",
    }
    for letter, run in lesson_12.patients().items():
        found = [each.name for each in labkit.diagnose(run)]
        assert found[:1] == [modes[CAUSES[letter]]] if CAUSES[letter] in modes else not found, (letter, found)
