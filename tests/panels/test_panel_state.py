"""A panel's setting goes into a short string and comes back."""

import pytest
from helpers import tiny

from labkit.errors import RecipeError
from labkit.failures.catalogue import FAILURES, UnknownFailure
from labkit.panels.panel_state import PanelState
from labkit.training.recipe import Recipe

STATES = [
    "learning_rate_too_high/sick",
    "learning_rate_too_high/sick: lr=3.0, depth=4",
    "learning_rate_too_high/healthy@cifar10: lr=0.02",
    "learning_rate_too_high/cure: clip=None",
    "zero_grad_missing/sick: lr=0.05",
    "recipe: optimizer=adam, residual=True, lr=3.0",
    "recipe@cifar10: width=32",
    "recipe",
]


@pytest.mark.parametrize("state", STATES)
def test_a_state_is_read_and_written_as_it_was(state):
    assert str(PanelState.read(state)) == state
    assert PanelState.read(str(PanelState.read(state))).recipe == PanelState.read(state).recipe


@pytest.mark.parametrize("name", FAILURES)
def test_every_preset_of_every_mode_survives_the_string_and_its_code_makes_the_same_recipe(name):
    mode = FAILURES[name]
    for dataset in ("mnist", "cifar10"):
        if not mode.on(dataset):
            continue
        for preset in PanelState(mode, dataset=dataset).presets:
            setting = PanelState(mode, preset, dataset).but(lr=0.0123)
            assert PanelState.read(str(setting)).recipe == setting.recipe
            assert recipe_of(setting.code()) == setting.recipe


def recipe_of(code: str) -> Recipe:
    """The recipe that copied code makes, without the training."""
    names = {}
    exec(code.partition("run = ")[0], names)
    return names["recipe"]


def test_the_code_of_a_plain_recipe_makes_it_again():
    recipe = tiny(lr=0.5, optimizer="adam")
    assert recipe_of(PanelState.read(recipe).code()) == recipe


def test_presets_are_the_modes_own_recipes():
    mode = FAILURES["learning_rate_too_high"]
    found = PanelState(mode).presets
    assert found["sick"][1] == mode.sick.but(data="mnist")
    cures = [key for key in found if key.startswith("cure")]
    aids = [key for key in found if key.startswith("aid")]
    assert (len(cures), len(aids)) == (len(mode.cures), len(mode.false_cures))


def test_the_twin_has_the_same_seed_and_data():
    twin = PanelState.read("learning_rate_too_high/sick@cifar10: seed=7").twin
    assert (twin.seed, twin.summary()["data"]) == (7, "cifar10")
    assert twin.lr == FAILURES["learning_rate_too_high"].recipes(dataset="cifar10")["healthy"].lr


def test_a_knob_back_on_the_presets_value_is_not_turned():
    setting = PanelState.read("learning_rate_too_high")
    assert setting.but(lr=3.0).but(lr=setting.base.lr) == setting


@pytest.mark.parametrize(
    ("thing", "error", "words"),
    [
        ("learning_rate_to_high", UnknownFailure, "learning_rate_too_high"),
        ("learning_rate_too_high/ill", RecipeError, "no preset 'ill'"),
        ("learning_rate_too_high: lr=-1", RecipeError, "above 0"),
        ("learning_rate_too_high: lrr=1", RecipeError, "Did you mean 'lr'"),
        ("learning_rate_too_high: lr", RecipeError, "NAME=VALUE"),
        ("learning_rate_too_high@imagenet", RecipeError, "one of mnist, cifar10"),
        (3, RecipeError, "expected the name of a failure mode"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_reason(thing, error, words):
    with pytest.raises(error, match=words):
        PanelState.read(thing)
