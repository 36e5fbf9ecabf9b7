"""One mode played out, and whether a recipe cures: by behaviour, with the reason in words."""

import dataclasses
import importlib
import re

import numpy as np
import pytest
from helpers import hand_made, tiny, trained
from played import played, short

from labkit.diagnosis import report
from labkit.diagnosis.study import Study, is_cured, play, run_studies, study, why_not_cured
from labkit.errors import RecipeError
from labkit.failures.catalogue import FAILURES, UnknownFailure
from labkit.recording.measure import ACCURACY, MEASURES
from labkit.training import run_store
from labkit.training.recipe import Recipe
from labkit.training.run_store import Memory, RunStore

module = importlib.import_module("labkit.diagnosis.study")
LOW = FAILURES["learning_rate_too_low"]


@pytest.fixture
def calls(monkeypatch) -> list[Recipe]:
    """The recipes that were trained; each is really trained once for all tests."""
    asked = []

    def train(recipe, **_):
        asked.append(recipe)
        return trained(recipe)

    monkeypatch.setattr(run_store, "train", train)
    return asked


@pytest.fixture
def quick(monkeypatch):
    """learning_rate_too_low in ten steps, and with a setting of its own on CIFAR-10."""
    short = {"steps": 10, "samples": 256, "evaluate_every": 5}
    mode = dataclasses.replace(
        LOW,
        healthy=LOW.healthy.but(**short),
        sick=LOW.sick.but(**short),
        cures={words: recipe.but(**short) for words, recipe in LOW.cures.items()},
        cifar10={"width": 32},
    )
    monkeypatch.setattr(module, "FAILURES", {mode.name: mode})
    return mode


def test_a_cure_that_is_the_healthy_twin_is_not_trained_again(calls, quick):
    found = study(LOW.name)
    assert calls == [quick.healthy, quick.sick]
    assert found.cured is found.healthy and found.sick is not found.healthy


def test_a_run_that_is_known_is_not_trained_again(calls, quick):
    store = RunStore(memory=Memory())
    one = study(LOW.name, store=store)
    other = study(LOW.name, changes={"lr": 0.05}, store=store)
    assert calls == [quick.healthy, quick.sick, quick.sick.but(lr=0.05)] and len(store.memory.runs) == 3
    assert other.healthy is one.healthy and other.sick is not one.sick


def test_a_study_holds_the_three_runs_and_the_diagnosis(calls, quick):
    found = study(LOW.name)
    assert found.name == LOW.name and list(found.runs) == ["healthy", "sick", "cured"]
    assert found.diagnoses[0].name == LOW.name and found.named
    assert found.recipes["sick"].changes_from(found.recipes["healthy"]) == {"lr": (0.1, 1e-6)}


def test_changes_are_made_to_the_sick_recipe_alone(calls, quick):
    found = study(LOW.name, changes={"lr": 0.05})
    assert {role: recipe.lr for role, recipe in found.recipes.items()} == {"healthy": 0.1, "sick": 0.05, "cured": 0.1}
    assert not found.named


def test_seed_and_data_set_go_to_all_three(calls, quick):
    found = study(LOW.name, 3, "cifar10")
    settings = {(each.seed, each.data.__name__, each.width) for each in found.recipes.values()}
    assert settings == {(3, "cifar10", 32)}
    assert found.sick.recipe["seed"] == 3


def test_options_go_to_the_training(monkeypatch, quick):
    seen = []
    monkeypatch.setattr(run_store, "train", lambda recipe, **options: seen.append(options) or trained(recipe))
    study(LOW.name, progress=False)
    is_cured(LOW.name, quick.sick, progress=False)
    assert seen == [{"progress": False, "errors": "record"}] * 4


def test_an_interrupted_study_ends(monkeypatch, quick):
    monkeypatch.setattr(run_store, "train", lambda recipe, **_: hand_made(facts={"stopped": "interrupted"}))
    with pytest.raises(KeyboardInterrupt):
        study(LOW.name)


def test_an_unknown_name_suggests_the_nearest():
    for ask in (lambda: study("vanishing_gradient"), lambda: is_cured("vanishing_gradient", Recipe())):
        with pytest.raises(UnknownFailure, match="Did you mean 'vanishing_gradients'"):
            ask()


@pytest.mark.parametrize(("healthy", "sick", "harm"), [(0.9, 0.1, 1), (0.9, 0.9, 0), (0.9, 0.5, 0.5), (0.9, 0.02, 1.1)])
def test_harm_is_the_share_of_what_was_learned_above_chance(healthy, sick, harm):
    runs = {role: hand_made(val_accuracy=value) for role, value in (("healthy", healthy), ("sick", sick))}
    found = Study(mode=LOW, recipes=LOW.recipes(), cured=runs["healthy"], diagnoses=[], **runs)
    assert found.harm == pytest.approx(harm)
    assert not found.named


def test_a_study_says_in_one_line_what_it_is():
    runs = {role: hand_made(val_accuracy=0.9) for role in ("healthy", "sick", "cured")}
    del runs["sick"].traces["val_accuracy"]  # a run that was never validated
    found = Study(mode=LOW, recipes=LOW.recipes(), diagnoses=[], **runs)
    assert repr(found) == f"<Study of {LOW.name}: healthy 90.0%, sick -, cured 90.0%; diagnosis: []>"


@pytest.mark.parametrize("role", ["sick", "healthy"])
def test_a_study_without_validations_is_refused_before_anything_is_trained(calls, quick, role):
    recipes = quick.recipes()
    recipes[role] = recipes[role].but(evaluate_every=0)
    with pytest.raises(RecipeError, match=f"evaluate_every: .* with 0 the {role} run has none; expected .* above 0"):
        play(quick, recipes)
    with pytest.raises(RecipeError, match="evaluate_every"):
        study(LOW.name, changes={"evaluate_every": 0})
    assert calls == []


def test_every_run_of_a_study_is_diagnosed_once(calls, quick, monkeypatch):
    asked, really = [], module.diagnose
    monkeypatch.setattr(module, "diagnose", lambda run: asked.append(run) or really(run))
    found = study(LOW.name)
    for _ in range(3):
        assert isinstance(found.is_cured, bool) and isinstance(found.is_clean, bool) and found.named
    assert asked == [found.sick, found.healthy]  # the cured run is the healthy one
    assert found.verdicts["sick"] is found.diagnoses and found.verdicts["cured"] is found.verdicts["healthy"]


# --- is it cured? ---------------------------------------------------------------------------------


def verdict(accuracy: float = 0.93, twin: float = 0.94, recipe: Recipe | None = None, **changes) -> str:
    healthy = hand_made(val_accuracy=twin)
    return why_not_cured(
        LOW, hand_made(val_accuracy=accuracy, **{"val_loss": 2.0, **changes}), healthy, recipe or Recipe()
    )


def test_as_good_as_the_twin_and_clean_is_cured():
    assert verdict() == ""
    assert verdict(accuracy=0.99, twin=0.9) == ""


CLOSE, LEARNED = MEASURES[ACCURACY].close, MEASURES[ACCURACY].learned


def test_two_points_below_the_twin_are_too_many():
    assert verdict(accuracy=0.94 - CLOSE + 0.001) == ""
    assert verdict(accuracy=0.94 - CLOSE - 0.001) == "not yet: validation accuracy 91.9%, the healthy twin has 94.0%"


@pytest.mark.parametrize("dataset", LEARNED)
def test_a_run_has_to_learn_something(dataset):
    recipe, enough = Recipe(data=dataset), LEARNED[dataset]
    assert verdict(accuracy=enough + 0.001, twin=0.1, recipe=recipe) == ""
    words = verdict(accuracy=enough - 0.001, twin=0.1, recipe=recipe)
    assert words == f"not yet: validation accuracy {enough - 0.001:.1%}, expected at least {enough:.0%}"


def test_a_failure_that_still_shows_is_named_with_its_evidence():
    words = verdict(update_ratio=1e-6, probe_loss=2.3)
    assert words.startswith(
        "not yet: the run still shows learning rate too low: no step changes a layer by more than 1e-06"
    )
    assert "(usual: updates of 0.001 to 0.03 of a layer)" in words


def test_a_run_that_was_stopped_is_no_proof():
    assert verdict(facts={"stopped": "interrupted"}) == "not yet: the run ended after 40 of 40 steps (interrupted)"


def test_a_run_that_was_never_validated_is_no_proof():
    run = hand_made()
    del run.traces["val_accuracy"]
    words = why_not_cured(LOW, run, hand_made(), Recipe())
    assert words == "not yet: the run was never validated; leave evaluate_every at None"


def test_the_cure_is_a_cure(calls):
    found = is_cured(LOW.name, LOW.recipes()["cured"])
    assert found and found.cured
    assert found.why.startswith("cured: 9") and "the healthy twin has 9" in found.why
    assert found.run.accuracy > LEARNED["mnist"]
    assert len(calls) == 1  # it is the healthy twin itself: one run serves both


def test_the_sick_recipe_is_not(calls):
    found = is_cured(LOW.name, LOW.sick)
    assert not found
    assert found.why.startswith("not yet: the run still shows learning rate too low")


def test_a_false_cure_is_not(calls):
    (recipe,) = LOW.false_cures.values()
    found = is_cured(LOW.name, recipe)
    assert not found and found.why.startswith("not yet:")


def test_the_twin_has_the_data_set_the_seed_and_the_setting_of_the_recipe(calls, quick):
    recipe = quick.sick.but(data="cifar10", seed=4)
    is_cured(LOW.name, recipe)
    assert calls == [recipe, quick.healthy.but(data="cifar10", seed=4, width=32)]


def test_a_data_set_of_ones_own_keeps_the_healthy_recipe(calls, quick):
    def my_data(recipe):
        return Recipe().data(recipe)

    is_cured(LOW.name, quick.sick.but(data=my_data))
    assert calls[1] == quick.healthy.but(data=my_data)


def test_a_study_whose_sick_run_was_never_validated_can_be_shown():
    def evaluate(training, split):
        raise ValueError("bug in the validation")

    mode = FAILURES["learning_rate_too_low"]
    recipes = {role: short(recipe) for role, recipe in mode.recipes().items()}
    recipes["sick"] = recipes["sick"].but(evaluate=evaluate)
    found = play(mode, recipes, progress=False)
    assert found.sick.accuracy is None and found.harm == 1.0
    assert re.search(r"sick +- +-  ", report.study_in_words(found)) and found._repr_html_()
    assert report.study_as_values(found)["runs"]["sick"]["val_loss"] is None


# --- several studies ---


def test_studies_come_in_the_order_of_their_names(monkeypatch):
    monkeypatch.setattr(module, "study", lambda name, *_, **__: played(name))
    names = ["vanishing_gradients", "dead_relu", "learning_rate_too_high"]
    assert [study.name for study in run_studies(names, seed=0, dataset="mnist")] == names


def test_in_one_process_the_studies_share_their_runs(monkeypatch):
    asked = []
    monkeypatch.setattr(run_store, "train", lambda recipe, **_: asked.append(recipe) or trained(tiny()))
    names = ["learning_rate_too_low", "zero_init"]
    one, other = run_studies(names, seed=0, dataset="mnist")
    assert asked == [one.recipes["healthy"], one.recipes["sick"], other.recipes["sick"]]


@pytest.mark.slow  # two fresh processes load torch
def test_two_processes_give_the_same_studies_as_one():
    names = ["learning_rate_too_high", "learning_rate_too_high"]
    [alone] = run_studies(names[:1], seed=1, dataset="mnist", jobs=1)
    together = run_studies(names, seed=1, dataset="mnist", jobs=2)
    assert len(together) == 2
    for each in together:
        assert each.name == "learning_rate_too_high" and each.diagnoses == alone.diagnoses
        for role, run in each.runs.items():
            assert run.facts["weights_sha256"] == alone.runs[role].facts["weights_sha256"], role
            np.testing.assert_array_equal(run["loss"], alone.runs[role]["loss"])
