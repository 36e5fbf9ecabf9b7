"""Recipes: frozen, compared, changed, read from text, and refused with words that help."""

import copy
import dataclasses
import functools
import inspect
import json
import pickle
from collections.abc import Callable

import pytest

from labkit.training import models, parts
from labkit.training.loop import train
from labkit.training.recipe import Recipe, RecipeError, knob, part
from labkit.training.rules import Number

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
        ("optimizer", 3, "optimizer: expected .* got 3. Known: adam, adamw, adamw_on_matrices, sgd"),
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


# --- a recipe with more entries -------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixedRecipe(Recipe):
    """A recipe with a knob and a part of its own."""

    cutmix: float = knob(0.0, Number(0, 1), "probability that a batch is mixed")
    mixing: Callable = part(max, (max, min), "how a batch is mixed")


def test_a_subclass_adds_entries_that_behave_like_the_others():
    mixed = MixedRecipe(lr=0.3).but(cutmix=0.5, mixing="min")
    assert type(mixed) is MixedRecipe and mixed.mixing is min
    assert mixed.changes_from(MixedRecipe()) == {"lr": (0.1, 0.3), "cutmix": (0.0, 0.5), "mixing": ("max", "min")}
    assert mixed.summary()["cutmix"] == 0.5
    assert MixedRecipe.parse("cutmix=0.25") == {"cutmix": 0.25}
    with pytest.raises(RecipeError, match="cutmix: expected a number at least 0 and at most 1, got 2"):
        mixed.but(cutmix=2)
    with pytest.raises(RecipeError, match="mixing: expected a function or the name of one, got 'mox'"):
        mixed.but(mixing="mox")


@pytest.mark.parametrize(
    "ask",
    [
        lambda: MixedRecipe(cutmux=0.5),
        lambda: MixedRecipe().but(cutmux=0.5),
        lambda: MixedRecipe.parse("cutmux=0.5"),
    ],
    ids=["constructor", "but", "parse"],
)
def test_a_subclass_suggests_its_own_entries(ask):
    with pytest.raises(RecipeError, match=r"a recipe has no 'cutmux'\. Did you mean 'cutmix'\?"):
        ask()


def test_a_recipe_does_not_know_the_entries_of_its_subclasses():
    with pytest.raises(RecipeError, match="a recipe has no 'cutmix'"):
        Recipe(cutmix=0.5)


def test_an_entry_that_one_recipe_lacks_counts_as_its_default_there():
    plain, mixed = Recipe(lr=0.3), MixedRecipe(cutmix=0.5)
    assert mixed.changes_from(plain) == {"lr": (0.3, 0.1), "cutmix": (0.0, 0.5)}
    assert plain.changes_from(mixed) == {"lr": (0.1, 0.3), "cutmix": (0.5, 0.0)}


def test_a_subclass_is_trained_and_its_parts_read_its_own_entries():
    seen = []

    def step(training, x, y):
        seen.append(training.recipe.cutmix)
        parts.plain_step(training, x, y)

    recipe = MixedRecipe(step=step, cutmix=0.5, samples=64, batch_size=32, width=4, steps=2, device="cpu")
    run = train(recipe, progress=False)
    assert seen == [0.5, 0.5] and run.recipe["cutmix"] == 0.5


@pytest.mark.parametrize("recipe", [Recipe(lr=0.3), MixedRecipe(cutmix=0.5)], ids=["recipe", "subclass"])
@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, dataclasses.replace, lambda recipe: pickle.loads(pickle.dumps(recipe))],
    ids=["copy", "deepcopy", "replace", "pickle"],
)
def test_a_copy_is_an_equal_recipe(recipe, again):
    assert again(recipe) == recipe and type(again(recipe)) is type(recipe)


@pytest.mark.parametrize("cls", [Recipe, MixedRecipe])
def test_help_shows_the_entries(cls):
    shown = inspect.signature(cls).parameters
    assert list(shown) == [each.name for each in dataclasses.fields(cls)]
    assert shown["lr"].default == 0.1


@pytest.mark.parametrize("name", ["steps", "samples", "seed", "lr", "clip"])
@pytest.mark.parametrize("digits", [400, 5000])  # beyond float; beyond what Python writes out
def test_an_enormous_whole_number_is_refused_in_words(name, digits):
    words = rf"{name}: expected a .*number.*, got a whole number of about {digits + 1} digits; the largest possible is"
    with pytest.raises(RecipeError, match=words):
        Recipe(**{name: 10**digits})


def test_a_subclass_without_a_decorator_shows_the_same_entries():
    class Mine(Recipe):
        pass

    assert list(inspect.signature(Mine).parameters) == list(inspect.signature(Recipe).parameters)


def test_a_plain_field_in_a_subclass_says_how_to_declare_it():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Mine(Recipe):
        extra: int = 3

    with pytest.raises(RecipeError, match=r"extra: declare an entry of a recipe with knob\("):
        Mine()
