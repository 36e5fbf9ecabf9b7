"""Lesson 15: the exam's patient is sealed, prescriptions are followed, signatures are tried on what is not ill."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import labkit
from labkit.course.exercises import lesson_15
from labkit.course.ward.game import Treated


def small_updates(run):
    return 0 < np.median(run["update_ratio"]) < 1e-4


def test_the_key_is_the_patient_of_the_ward():
    assert labkit.check("15.1", lesson_15.SEALED)
    found = labkit.check("15.1", "learning_rate_too_high")
    assert found.state == "not yet" and "before the first step" in str(found)


def test_the_class_has_one_ward_and_it_gives_nothing_away():
    one, two = lesson_15.class_ward("Ada"), lesson_15.class_ward("Alan")
    assert [each.complaint for each in one] == [each.complaint for each in two]
    assert len(one) == lesson_15.BEDS and lesson_15.SEALED not in f"{one} {one!r} {one._repr_html_()}"


@pytest.mark.parametrize(
    ("prescription", "words"),
    [
        ({"learning_rate": 0.1}, "no setting"),
        ({"seed": 3}, "cannot be prescribed"),
        ({"lr": 1, "width": 2, "depth": 3, "momentum": 0.5}, "at most 3"),
        ("he", "Expected a dict"),
        ({}, "empty prescription"),
    ],
)
def test_what_cannot_be_prescribed_is_said_and_not_trained(prescription, words):
    found = labkit.check("15.2", prescription)
    assert found.state == "not yet" and words in str(found), str(found)


def test_a_prescription_is_judged_by_what_came_of_it(monkeypatch):
    def treated_with(settings):
        good = dict(settings) == {"clip": 1.0}
        return Treated("", 10 if good else 0, "Cured." if good else "Not cured: 40 %.", 0.4)

    monkeypatch.setattr(lesson_15, "treated_with", treated_with)
    assert labkit.check("15.2", {"clip": 1.0})
    assert "Not cured: 40 %." in str(labkit.check("15.2", {"clip": 2.0}))


@pytest.mark.parametrize("signature", [small_updates, labkit.FAILURES["learning_rate_too_low"].signature])
def test_a_signature_that_looks_at_the_updates_is_right(signature):
    assert labkit.check("15.3", signature), str(labkit.check("15.3", signature))


@pytest.mark.parametrize(
    ("signature", "words"),
    [
        (lambda run: True, "fires on a healthy run"),
        (lambda run: False, "does not fire on a run with the failure"),
        (lambda run: run["loss"][-10:].mean() > 0.9 * run["loss"][0], "units are dead"),
        (lambda run: run["lr"].max() < 1e-4, "no trace 'lr'"),
        (lambda run: run["update_ratio"].max() < 1e-4, "detached from its weights"),
        (lambda run: 0 < np.median(run["update_ratio"]) < 0.01, "Adam"),
        (lambda run: np.median(run["update_ratio"]) < 1e-4, "units are dead"),
        (lambda run: object(), "Expected True or False"),
    ],
)
def test_a_signature_that_fires_on_others_or_never_is_told_so(signature, words):
    found = labkit.check("15.3", signature)
    assert found.state == "not yet" and words in str(found), str(found)


# --- 15.4 and 15.5 ---


def script(model, optimizer, loader, val_x, val_y, *, factor=0.5, per_epoch=True, again=True, compared_alike=True):
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, factor)
    scores = []
    model.train()
    for _ in range(3):
        if again:
            model.train()
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
            if not per_epoch:
                scheduler.step()
        if per_epoch:
            scheduler.step()
        model.eval()
        with torch.no_grad():
            right = model(val_x).argmax(1, keepdim=not compared_alike) == val_y
        scores.append(right.float().mean().item())
    return scores


def test_a_script_without_its_three_faults_is_right():
    assert labkit.check("15.4", script), str(labkit.check("15.4", script))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"per_epoch": False}, "a correct loop reaches"),
        ({"factor": 1.0}, "half of it after each epoch"),
        ({"again": False}, "trains in eval mode"),
        ({"compared_alike": False}, "The last accuracy is"),
    ],
)
def test_a_script_with_a_fault_left_is_told_which(fault, words):
    found = labkit.check("15.4", lambda *given: script(*given, **fault))
    assert found.state == "not yet" and words in str(found), str(found)


def ended_early(run):
    rates = run["lr"]
    return bool((rates[rates.argmax() :] < rates.max() / 1000).sum() > len(rates) / 4)


def test_a_signature_of_a_schedule_that_ended_early_is_right():
    assert labkit.check("15.5", ended_early), str(labkit.check("15.5", ended_early))


@pytest.mark.parametrize(
    ("signature", "words"),
    [
        (lambda run: False, "does not fire on a schedule that ended early"),
        (lambda run: run["lr"][-1] < 1e-5, "a constant, tiny learning rate"),
        (lambda run: run["lr"][-1] < 0.1 * run["lr"].max(), "a cosine that ends with the run"),
        (lambda run: run["lr"][-1] < 0.01 or run["lr"].argmax() == len(run["lr"]) - 1, "fires on"),
    ],
)
def test_a_signature_that_fires_on_sound_schedules_is_told_which(signature, words):
    found = labkit.check("15.5", signature)
    assert found.state == "not yet" and words in str(found), str(found)
