"""Other nets for a mode, to see whether its failure and its cure hold there too."""

from collections.abc import Callable
from dataclasses import dataclass

from labkit.training import models
from labkit.training.recipe import Recipe


def deeper_by(layers: int) -> Callable[[Recipe], dict | None]:
    # A recurrent net has one layer here.
    return lambda recipe: None if recipe.model is models.rnn else {"depth": recipe.depth + layers}


def activation_from(others: dict[str, str]) -> Callable[[Recipe], dict | None]:
    def changes(recipe: Recipe) -> dict | None:
        other = others.get(recipe.activation)
        return {"activation": other} if other and recipe.model is not models.rnn else None

    return changes


@dataclass(frozen=True)
class Net:
    """Another net for a mode: what changes in its recipes, and the recipe entries that the mode must not depend on."""

    changes: Callable[[Recipe], dict | None]  # None where there is no such net
    touches: tuple[str, ...] = ()


NETS = {
    "own": Net(lambda recipe: {}),
    "wider": Net(lambda recipe: {"width": 2 * recipe.width}, ("width",)),
    "narrower": Net(lambda recipe: {"width": max(1, 5 * recipe.width // 8)}, ("width",)),
    "deeper": Net(deeper_by(1), ("depth",)),
    "another activation": Net(activation_from({"relu": "gelu", "tanh": "silu", "gelu": "relu"}), ("activation",)),
    "two layers deeper": Net(deeper_by(2), ("depth",)),
    "a third activation": Net(activation_from({"relu": "silu", "tanh": "gelu", "gelu": "silu"}), ("activation",)),
}
