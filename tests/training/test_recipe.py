"""Recipes: frozen, compared, changed, read from text, and refused with words that help."""

import dataclasses
import functools
import json

import pytest

from labkit.training import models
from labkit.training import parts
from labkit.training.recipe import Recipe, RecipeError

FIELDS = {each.name: each for each in dataclasses.fields(Recipe)}
KNOBS = {name: each for name, each in FIELDS.items() if "rule" in each.metadata}
PARTS = {name: each for name, each in FIELDS.items() if "known" in each.metadata}


def test_a_recipe_is_frozen_and_keyword_only():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Recipe().lr = 3
    with pytest.raises(TypeError):
        Recipe(models.mlp)


def test_but_changes_what_is_asked_and_nothing_else():
    before = Recipe(lr=0.3)
    after = before.but(depth=4, lr=0.2)
    assert (after.lr, after.depth) == (0.2, 4)
    assert after.changes_from(before) == {"depth": (2, 4), "lr": (0.3, 0.2)}
    assert before.changes_from(after) == {"depth": (4, 2), "lr": (0.2, 0.3)}
    assert before == Recipe(lr=0.3)


def test_changes_name_parts_by_their_names():
    def my_own_step(training, x, y):
        pass

    changed = Recipe(step=my_own_step, optimizer="adam")
    assert changed.changes_from(Recipe()) == {"optimizer": ("sgd", "adam"), "step": ("plain_step", "my_own_step")}
    assert Recipe().changes_from(Recipe()) == {}


def test_equal_recipes_are_one_key():
    assert len({Recipe(lr=0.5), Recipe().but(lr=0.5), Recipe(lr=0.25).but(lr=0.5), Recipe(lr=0.25)}) == 2


@pytest.mark.parametrize(
    "ask",
    [
        lambda: Recipe(batchsize=3),
        lambda: Recipe().but(batchsize=3),
        lambda: Recipe.parse("batchsize=3"),
    ],
    ids=["constructor", "but", "parse"],
)
def test_an_unknown_name_is_told_the_nearest(ask):
    with pytest.raises(RecipeError, match=r"a recipe has no 'batchsize'\. Did you mean 'batch_size'\?"):
        ask()


def test_a_name_like_no_other_is_told_all_of_them():
    with pytest.raises(RecipeError, match=r"a recipe has no 'xyzzy'. Known: activation, .*weight_decay, width"):
        Recipe(xyzzy=3)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("lr", 0, "lr: expected a number above 0, got 0"),
        ("lr", "0.1", "lr: expected a number above 0, got '0.1' of type str"),
        ("steps", 2.5, "steps: expected a whole number at least 1, got 2.5"),
        ("samples", None, "samples: expected a whole number at least 1, got None of type NoneType"),
        ("dropout", 1.0, "dropout: expected a number at least 0 and at most 0.99, got 1.0"),
        ("clip", 0, "clip: expected a number above 0 or None, got 0"),
        (
            "loss_scale",
            "static",
            "loss_scale: expected a number above 0 or 'dynamic' or None, got 'static' of type str",
        ),
        ("activation", "rellu", "activation: expected one of relu, leaky_relu, .*, got 'rellu'. Did you mean 'relu'?"),
        ("residual", 1, "residual: expected True or False, got 1"),
        ("model", "convnets", "model: expected a function or the name of one, got 'convnets'. Did you mean 'convnet'?"),
        ("model", ["mlp"], r"model: expected a function or the name of one, got \['mlp'\]"),
        ("optimizer", 3, "optimizer: expected a function or the name of one, got 3. Known: adam, adamw, sgd"),
    ],
)
def test_a_bad_value_is_told_where_what_was_expected_and_what_came(name, value, words):
    for ask in (lambda: Recipe(**{name: value}), lambda: Recipe().but(**{name: value})):
        with pytest.raises(RecipeError, match=words.replace("?", r"\?")):
            ask()


@pytest.mark.parametrize("name", PARTS)
def test_a_part_may_be_given_by_its_name(name):
    for known, function in PARTS[name].metadata["known"].items():
        assert getattr(Recipe(**{name: known}), name) is function
        assert Recipe(**{name: function}).summary()[name] == known


def test_a_part_without_a_name_of_its_own_is_still_summarised():
    assert Recipe(model=functools.partial(models.mlp)).summary()["model"] == "partial"


@pytest.mark.parametrize("name", FIELDS)
def test_every_entry_says_what_it_means(name):
    assert len(FIELDS[name].metadata["meaning"]) > 5


@pytest.mark.parametrize("name", KNOBS)
def test_every_default_survives_the_way_through_text(name):
    default = KNOBS[name].default
    assert Recipe.parse(f"{name}={default}") == {name: default}


def test_assignments_are_read():
    assert Recipe.parse("lr=3") == {"lr": 3.0}
    assert Recipe.parse("depth=4") == {"depth": 4}
    assert Recipe.parse("clip=none") == {"clip": None}
    assert Recipe().but(**Recipe.parse("schedule=cosine")).schedule is parts.cosine
    with pytest.raises(RecipeError, match="expected NAME=VALUE, got 'lr'; for example lr=3"):
        Recipe.parse("lr")


def test_the_summary_is_plain_and_complete():
    summary = Recipe().summary()
    assert set(summary) == set(FIELDS)
    assert json.loads(json.dumps(summary)) == summary
