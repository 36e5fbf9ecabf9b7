"""Other nets for a mode, to see whether its failure and its cure hold there too."""

from collections.abc import Callable
from dataclasses import dataclass

from labkit.diagnosis.evaluation.characters import english_text, evaluate_in_use
from labkit.training import models
from labkit.training.language import LanguageRecipe
from labkit.training.recipe import Recipe


def deeper_by(layers: int) -> Callable[[Recipe], dict | None]:
    # A recurrent net has one layer here.
    return lambda recipe: None if recipe.model is models.rnn else {"depth": recipe.depth + layers}


def activation_from(others: dict[str, str]) -> Callable[[Recipe], dict | None]:
    def changes(recipe: Recipe) -> dict | None:
        other = others.get(recipe.activation)
        return {"activation": other} if other and recipe.model is not models.rnn else None

    return changes


def on_characters(recipe: Recipe) -> dict | None:
    """The same language model on English text."""
    if not isinstance(recipe, LanguageRecipe):
        return None
    return {"data": english_text, "evaluate": evaluate_in_use, "measure": "nats"}


@dataclass(frozen=True)
class Net:
    """Another net for a mode: what changes in its recipes, and the recipe entries that the mode must not depend on."""

    changes: Callable[[Recipe], dict | None]  # None where there is no such net
    touches: tuple[str, ...] = ()
    enough: float | None = None  # the score from which a twin on it has learned; None: the mode says it


NETS = {
    "own": Net(lambda recipe: {}),
    "wider": Net(lambda recipe: {"width": 2 * recipe.width}, ("width",)),
    "narrower": Net(lambda recipe: {"width": max(1, 5 * recipe.width // 8)}, ("width",)),
    "deeper": Net(deeper_by(1), ("depth",)),
    "another activation": Net(activation_from({"relu": "gelu", "tanh": "silu", "gelu": "relu"}), ("activation",)),
    "two layers deeper": Net(deeper_by(2), ("depth",)),
    # The frequencies of the characters alone give 2.9 nats. Faults that show in written samples only cannot be seen.
    "characters": Net(on_characters, ("data", "evaluate", "measure", "write", "places", "temperature"), enough=2.6),
    "a third activation": Net(activation_from({"relu": "silu", "tanh": "gelu", "gelu": "silu"}), ("activation",)),
}
