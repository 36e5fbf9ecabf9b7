"""A failure mode gives its recipes in any setting, and says which settings it has."""

import dataclasses
from typing import get_args

import pytest
from helpers import tiny, tiny_gpt, trained
from played import attentive

from labkit.drawing.plots import INSTRUMENTS
from labkit.errors import RecipeError
from labkit.failures.catalogue import FAILURES
from labkit.failures.mode import Branch, Shown
from labkit.failures.signs import LOOKS, Look

HIGH, LOW = FAILURES["learning_rate_too_high"], FAILURES["learning_rate_too_low"]


def test_recipes_share_the_setting_and_the_seed():
    mode = dataclasses.replace(HIGH, cifar10={"width": 32})
    recipes = mode.recipes(dataset="cifar10", face="two_layers", seed=7)
    assert list(recipes) == ["healthy", "sick", "cured"]
    assert {(each.data.__name__, each.depth, each.seed, each.width) for each in recipes.values()} == {
        ("cifar10", 2, 7, 32)
    }
    assert recipes["sick"].changes_from(recipes["healthy"]) == {"lr": (0.1, 10.0)}


def test_the_plain_recipes_are_those_of_the_file():
    recipes = HIGH.recipes()
    assert recipes["healthy"] == HIGH.healthy and recipes["sick"] == HIGH.sick
    assert recipes["cured"] == next(iter(HIGH.cures.values()))


def test_an_unknown_setting_is_told_the_nearest():
    with pytest.raises(
        RecipeError, match=r"dataset: expected one of mnist, cifar10, got 'cifar'\. Did you mean 'cifar10'\?"
    ):
        HIGH.recipes(dataset="cifar")
    with pytest.raises(
        RecipeError, match=r"learning_rate_too_high has no face 'two_layer'\. Did you mean 'two_layers'\?"
    ):
        HIGH.recipes(face="two_layer")
    with pytest.raises(RecipeError, match=r"learning_rate_too_low has no face 'two_layers'\. It has only one\."):
        LOW.recipes(face="two_layers")


def test_a_mode_without_a_cifar10_version_says_why():
    mode = dataclasses.replace(LOW, not_on_cifar10="photographs take too long")
    assert mode.on("mnist") and not mode.on("cifar10")
    with pytest.raises(RecipeError, match=r"learning_rate_too_low has no CIFAR-10 version: photographs take too long"):
        mode.recipes(dataset="cifar10")
    with pytest.raises(RecipeError, match="has changes for CIFAR-10"):
        dataclasses.replace(LOW, cifar10={"width": 32}, not_on_cifar10="photographs take too long")


# --- what is checked when a mode is made ----------------------------------------------------------


def test_its_name_and_topic_are_those_of_its_file():
    assert (HIGH.name, HIGH.topic, HIGH.module) == (
        "learning_rate_too_high",
        "learning_rate",
        "labkit.failures.learning_rate.learning_rate_too_high",
    )
    notebook = dataclasses.replace(HIGH, module="__main__")
    assert (notebook.name, notebook.topic) == ("__main__", "")


@pytest.mark.parametrize(
    ("entry", "given", "words"),
    [
        ("looks", "never move", r"learning_rate_too_high: looks .* got 'never move'\. Did you mean 'never moves'\?"),
        ("looks", "odd", r"looks .* got 'odd'\. Known: error, jumps, never moves"),
        (
            "symptom_tree",
            (Branch("stops too high", "?", ""),),
            r"symptom of a Branch .* got 'stops too high'\. Known: ",
        ),
        ("shows", "update_ratios", r"shows .* got 'update_ratios'\. Did you mean 'update_ratio'\?"),
    ],
)
def test_an_unknown_look_trace_or_symptom_is_refused_with_the_nearest(entry, given, words):
    with pytest.raises(RecipeError, match=words):
        dataclasses.replace(HIGH, **{entry: given})


def test_the_type_of_a_look_has_the_names_of_the_looks():
    assert get_args(Look) == tuple(LOOKS)


def test_what_can_be_shown_is_every_trace_that_can_be_drawn():
    recorded = {*trained(tiny()).traces, *attentive().traces, *trained(tiny_gpt()).traces}
    not_drawn = {"step", "val_step", "histogram", "histogram_range", "leak_changed_by_position", "leak_cut_by_position"}
    not_drawn |= {"cached_ahead", "cached_position_signal"}  # one number at each validation, read by signatures
    assert set(get_args(Shown)) == (recorded | set(INSTRUMENTS)) - not_drawn
