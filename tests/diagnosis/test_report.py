"""A study in words and in plain values: what was changed, what came of it, the verdict, and whether the cure cures."""

import json
import warnings

import numpy as np
import pytest
from helpers import hand_made
from played import made_of, played, with_traces

from labkit.diagnosis import report
from labkit.failures.catalogue import FAILURES
from labkit.training.recipe import Recipe


def one_line(text: str) -> str:
    return " ".join(text.split())


# --- what was changed -----------------------------------------------------------------------------


def test_changes_are_named_with_old_and_new():
    before = Recipe()
    assert report.changes_in_words(before.but(lr=10.0, depth=3), before) == "depth 2 -> 3, lr 0.1 -> 10"
    assert report.changes_in_words(before.but(lr=1e-6), before) == "lr 0.1 -> 1e-06"
    assert (
        report.changes_in_words(before.but(optimizer="adam", clip=1.0), before)
        == "optimizer sgd -> adam, clip None -> 1"
    )


def test_nothing_changed_is_said():
    assert report.changes_in_words(Recipe(), Recipe()) == "nothing"


# --- a run ----------------------------------------------------------------------------------------


def test_a_run_that_becomes_nan_is_described_without_a_warning():
    loss = np.where(np.arange(40) < 30, 2.0, np.nan)
    run = hand_made(loss=loss, update_ratio=np.full((40, 3), np.nan))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        said = one_line(report.exam(run))
    assert "loss 2 at the start, nan at the end" in said and "trend" not in said
    assert "trend -1" in one_line(report.exam(hand_made(loss=np.linspace(2, 0.8889, 40))))


# --- a study --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["learning_rate_too_high", "vanishing_gradients"])
def test_a_study_in_words_has_the_change_the_numbers_the_verdict_and_the_cure(name):
    study = played(name)
    text, found = report.study_in_words(study), study.diagnoses[0]
    assert text.startswith(f"{study.mode.title}  (mnist, seed 0)")
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line and not line.startswith(" ")}
    for role, run in study.runs.items():
        accuracy, loss, steps = rows[role][:3]
        assert (accuracy, steps) == (f"{run.accuracy:.1%}", str(len(run)))
        assert float(loss) == pytest.approx(run["val_loss"][-1], rel=1e-3, nan_ok=True)
    flowing = one_line(text)
    for words in (
        f"changed {report.changes_in_words(study.recipes['sick'], study.recipes['healthy'])}",
        f"verdict {found.title}, from step {found.onset}, in {found.place}",
        f"seen {found.seen}",
        f"usual {found.usual}",
        f"what to do {found.prescription}",
    ):
        assert one_line(words) in flowing


@pytest.mark.parametrize(("columns", "widest"), [("60", 60), ("300", 100)])
def test_lines_are_as_long_as_the_terminal_but_not_longer_than_reads_well(columns, widest, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    for text in (report.mode_in_words(FAILURES["dead_relu"]), report.study_in_words(played("learning_rate_too_high"))):
        assert widest - 15 < max(map(len, text.splitlines())) <= widest


def test_a_run_that_ended_early_says_why():
    text = report.study_in_words(played("learning_rate_too_high"))
    [sick] = [line for line in text.splitlines() if line.startswith("sick")]
    assert sick.endswith("non-finite")


def test_consequences_come_after_the_verdict_and_get_no_prescription():
    study = played("learning_rate_too_high")
    found = study.diagnoses[0]
    both = made_of(study.name, study.recipes, **study.runs)
    both.diagnoses[:] = [found, played("dead_relu").diagnoses[0]]
    lines = report.study_in_words(both).splitlines()
    assert [line.split()[0] for line in lines if line.startswith(("verdict", "and "))] == ["verdict", "and"]
    assert sum(line.startswith("what to do") for line in lines) == 1


def test_where_nothing_shows_it_says_so():
    calm = made_of("learning_rate_too_low", healthy=hand_made())
    assert "verdict no failure shows" in one_line(report.study_in_words(calm))
    assert "diagnosis: no failure shows" in report.heading(calm)


def test_whether_the_cure_cures():
    study = played("learning_rate_too_low")
    cure = next(iter(study.mode.cures))
    good = with_traces(study.healthy, val_accuracy=0.95)
    cured = made_of(study.name, study.recipes, healthy=good, sick=study.sick)
    assert f"{cure}: cures (95.0%, healthy 95.0%)" in one_line(report.study_in_words(cured))
    still_sick = made_of(study.name, study.recipes, healthy=good, cured=study.sick)
    assert f"{cure}: does not cure ({study.sick.accuracy:.1%}, healthy 95.0%)" in one_line(
        report.study_in_words(still_sick)
    )


def test_the_heading_is_one_line():
    study = played("learning_rate_too_high")
    assert report.heading(study) == (
        "Learning rate too high: lr 0.1 -> 10   (diagnosis: Learning rate too high; mnist)"
    )


def test_a_study_as_values_is_what_a_program_needs():
    study = played("learning_rate_too_high")
    values = json.loads(json.dumps(report.study_as_values(study)))
    assert {name: values[name] for name in ("name", "dataset", "seed", "changes", "named", "cured")} == {
        "name": "learning_rate_too_high", "dataset": "mnist", "seed": 0, "changes": {"lr": [0.1, 10.0]},
        "named": True, "cured": study.is_cured,
    }  # fmt: skip
    assert list(values["runs"]) == ["healthy", "sick", "cured"]
    for role, run in study.runs.items():
        assert values["runs"][role]["accuracy"] == run.accuracy
        assert values["runs"][role]["steps"] == len(run)
        assert values["runs"][role]["stopped"] == run.facts["stopped"]
        np.testing.assert_equal(values["runs"][role]["val_loss"], float(run["val_loss"][-1]))
    assert values["runs"]["sick"]["first_nonfinite"]["step"] == study.sick.facts["first_nonfinite"]["step"]
    assert values["runs"]["healthy"]["first_nonfinite"] is None
    first = values["diagnoses"][0]
    assert (first["name"], first["seen"]) == (study.diagnoses[0].name, study.diagnoses[0].seen)


# --- a mode ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAILURES)
def test_the_card_of_a_mode_has_all_its_words(name):
    mode = FAILURES[name]
    text = one_line(report.mode_in_words(mode))
    for words in (mode.title, mode.name, mode.topic, mode.symptom, mode.mechanism, mode.first_check, mode.remedy,
                  mode.reference, *mode.cures, *mode.false_cures, *mode.also_causes):  # fmt: skip
        assert one_line(words) in text
    assert report.changes_in_words(mode.sick, mode.healthy) in text
    for face in mode.faces:
        assert f"--face {face}" in text
    for knob in mode.knobs:
        assert knob.name in text
    assert ("no cure" in text) == bool(mode.false_cures) and ("brings on" in text) == bool(mode.also_causes)


@pytest.mark.parametrize("name", FAILURES)
def test_a_mode_as_values_can_be_written_as_json_and_read_back(name):
    mode = FAILURES[name]
    values = json.loads(json.dumps(report.mode_as_values(mode), allow_nan=False))
    assert values["name"] == name and values["topic"] == mode.topic and values["symptom"] == mode.symptom
    assert values["changes"] == {key: list(pair) for key, pair in mode.sick.changes_from(mode.healthy).items()}
    assert list(values["cures"]) == list(mode.cures) and list(values["false_cures"]) == list(mode.false_cures)
    cure, recipe = next(iter(mode.cures.items()))
    assert values["cures"][cure] == {key: new for key, (_, new) in recipe.changes_from(mode.sick).items()}
    assert [knob["name"] for knob in values["knobs"]] == [knob.name for knob in mode.knobs]
    assert values["healthy"]["lr"] == mode.healthy.lr and values["healthy"]["model"] == mode.healthy.model.__name__
