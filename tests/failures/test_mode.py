"""A failure mode gives its recipes in any setting, and says which settings it has."""

import pytest

from labkit.failures import FAILURES
from labkit.training.recipe import RecipeError

HIGH, LOW = FAILURES["learning_rate_too_high"], FAILURES["learning_rate_too_low"]


def test_recipes_share_the_setting_and_the_seed():
    recipes = HIGH.recipes(dataset="cifar10", face="two_layers", seed=7)
    assert list(recipes) == ["healthy", "sick", "cured"]
    assert {(each.data.__name__, each.depth, each.seed, each.momentum) for each in recipes.values()} == {
        ("cifar10", 2, 7, 0.0)
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
