"""Healthy runs of many kinds, to count false alarms on: nets, optimizers, schedules, batches, losses, data sizes."""

import random

from labkit.diagnosis.evaluation import characters
from labkit.training.language import LanguageRecipe
from labkit.training.recipe import Recipe, short

# Each kind of net with the settings under which it is known to learn. Hard cases are included on purpose: sparse
# ReLU nets (Adam 1e-2), converged runs (small sets, many steps), noisy small batches, warm-ups, He-initialised deep
# nets with first losses of 3, saturating tanh nets, squared error, dropout, batch norm, augmentation.
KINDS = {
    "perceptron, SGD": {
        "depth": (2, 3, 4),
        "width": (32, 64, 128, 256),
        "activation": ("relu", "leaky_relu", "gelu", "tanh"),
        "init": ("default", "xavier"),
        "lr": (0.05, 0.1, 0.2),
        "momentum": (0.0, 0.5),
        "batch_size": (64, 128, 256),
        "schedule": ("constant", "cosine", "warmup_cosine"),
    },
    "perceptron, momentum": {
        "depth": (2, 3),
        "lr": (0.02, 0.05),
        "momentum": (0.9,),
        "batch_size": (128, 256),
        "schedule": ("constant", "cosine", "warmup_cosine", "one_cycle"),
        "normalisation": ("none", "batch", "layer"),
    },
    "perceptron, Adam": {
        "optimizer": ("adam", "adamw"),
        "depth": (2, 3, 4),
        "width": (64, 128, 256),
        "activation": ("relu", "leaky_relu", "gelu", "silu", "tanh"),
        "lr": (1e-3, 3e-3),
        "batch_size": (32, 64, 128, 256),
        "schedule": ("constant", "cosine", "warmup_cosine"),
        "dropout": (0.0, 0.2),
    },
    "sparse ReLU net": {"optimizer": ("adam",), "lr": (0.006, 0.01), "width": (128, 256), "depth": (2, 3)},
    "deep, He": {
        "depth": (6, 8, 10),
        "width": (64,),
        "init": ("he",),
        "optimizer": ("adam",),
        "lr": (5e-4, 1e-3),
        "schedule": ("constant", "cosine"),
    },
    "deep, tanh": {
        "depth": (6, 10),
        "width": (64,),
        "activation": ("tanh",),
        "init": ("xavier",),
        "lr": (0.05, 0.1),
        "momentum": (0.0,),
    },
    "deep, residual": {
        "depth": (6, 10),
        "width": (64,),
        "residual": (True,),
        "optimizer": ("adam",),
        "lr": (1e-3,),
        "normalisation": ("none", "batch"),
    },
    "noisy small batches": {"batch_size": (16, 32), "lr": (0.02, 0.05), "momentum": (0.0,), "steps": (600,)},
    "converged": {"samples": (3000,), "steps": (600,), "lr": (0.05,), "momentum": (0.0,), "weight_decay": (0.0, 1e-3)},
    "squared error": {
        "loss": ("mean_squared_error",),
        "lr": (0.5, 1.0),
        "momentum": (0.0, 0.5),
        "depth": (2, 3),
        "batch_size": (64, 128),
    },
    "convolutions": {
        "model": ("convnet",),
        "depth": (3,),
        "width": (8, 16),
        "optimizer": ("adam",),
        "lr": (1e-3, 3e-3),
        "batch_size": (64,),
        "steps": (250,),
        "normalisation": ("none", "batch"),
        "augment": ("none", "crop"),
    },
    "recurrent": {
        "model": ("rnn",),
        "activation": ("tanh",),
        "width": (64,),
        "optimizer": ("adam",),
        "lr": (1e-3, 2e-3),
        "clip": (1.0,),
        "steps": (300,),
    },
    "transformer": {
        "model": ("vit",),
        "depth": (2,),
        "width": (32,),
        "activation": ("gelu",),
        "optimizer": ("adam",),
        "lr": (2e-3, 3e-3),
        "schedule": ("warmup_cosine",),
        "batch_size": (64,),
        "steps": (300,),
    },
    "clipped": {"clip": (1.0, 2.0), "lr": (0.1,), "momentum": (0.9,), "depth": (2, 3)},
    "decayed": {"weight_decay": (1e-4, 1e-3), "lr": (0.1,), "momentum": (0.0, 0.5), "schedule": ("exponential",)},
}
# Language models: shapes that train well in 300 steps, on digits and on characters of a text.
SHAPES = {
    "depth": (1, 2, 3),
    "width": (32, 48, 64),
    "heads": (2, 4),
    "norm_order": ("pre", "post"),
    "qk_norm": (False, True),
    "tied": (False, True),
    "embedding_scale": (0.1, 0.2),
    "lr": (3e-3, 6e-3),
    "dropout": (0.0, 0.1),
}
ON_TEXT = SHAPES | {"data": (characters.english_text,), "evaluate": (characters.evaluate_in_use,)}
LANGUAGE_KINDS = {
    "GPT on digits": SHAPES,
    "GPT on text": ON_TEXT,
    "GPT on text, smoothed labels": ON_TEXT | {"loss": (characters.smoothed_loss,)},
    "GPT on text, packed": ON_TEXT | {"data": (characters.packed_text,)},
    "GPT on text, padded": ON_TEXT | {"data": (characters.padded_text,)},
    "GPT on text, accumulated": ON_TEXT | {"data": (characters.padded_text,), "step": (characters.accumulating_step,)},
}
COMMON = {"steps": (200, 300, 400), "samples": (5_000, 10_000, 20_000)}
# Lowest validation accuracy of a run of this kind; below it the run has not learned, and is not counted as healthy.
# Language models: nats per token, at most.
ENOUGH = {"transformer": 0.55, "recurrent": 0.6, "GPT on digits": 0.8}
ENOUGH |= {kind: 2.6 for kind in LANGUAGE_KINDS if kind not in ENOUGH}
USUAL = 0.8


def draw(count: int, seed: int = 0) -> list[tuple[str, Recipe]]:
    """(kind, recipe) for `count` healthy runs, kind after kind, with choices drawn at random from the seed."""
    chance = random.Random(seed)
    kinds = list(KINDS)
    return [(kind, recipe(kind, chance)) for kind in (kinds[index % len(kinds)] for index in range(count))]


def draw_language(count: int, seed: int = 0) -> list[tuple[str, Recipe]]:
    """The same for language models."""
    chance = random.Random(f"language {seed}")
    kinds = list(LANGUAGE_KINDS)
    return [(kind, recipe(kind, chance)) for kind in (kinds[index % len(kinds)] for index in range(count))]


def choices_of(kind: str) -> dict[str, tuple]:
    return LANGUAGE_KINDS[kind] if kind in LANGUAGE_KINDS else COMMON | KINDS[kind]


def recipe(kind: str, chance: random.Random) -> Recipe:
    chosen = {name: chance.choice(values) for name, values in choices_of(kind).items()}
    made = LanguageRecipe if kind in LANGUAGE_KINDS else Recipe
    return made(**chosen, seed=chance.randrange(1000, 10_000))


def choices_as_text(kind: str) -> str:
    """The choices of a kind: 'lr 0.05, 0.1; depth 2, 3'."""
    choices = choices_of(kind).items()
    return "; ".join(f"{name} {', '.join(map(in_word, values))}" for name, values in choices)


def in_word(value: object) -> str:
    """A choice as people write it; a part by its name."""
    return value.__name__ if callable(value) else short(value)
