"""The sliders of the page Play: one entry of a recipe over its range, a recorded run and its verdict at every place."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.diagnosis.diagnose import diagnose
from labkit.diagnosis.study import finished
from labkit.failures.catalogue import FAILURES
from labkit.failures.mode import FailureMode
from labkit.recording.run import Run
from labkit.site.curves import line_of
from labkit.training.recipe import Recipe, short
from labkit.training.run_store import Memory, RunStore, on_disk

POINTS = 60  # of a line: the sliders show one run at a time


@dataclass(frozen=True)
class Slider:
    """An entry of a mode's healthy recipe to vary, a question to try it on, and further changes to all of its runs."""

    title: str
    mode: str
    knob: str
    values: tuple
    question: str
    changes: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.mode}-{self.knob}"

    @property
    def failure(self) -> FailureMode:
        return FAILURES[self.mode]

    def recipes(self) -> list[Recipe]:
        base = self.failure.recipes()["healthy"].but(**dict(self.changes))
        return [base.but(**{self.knob: value}) for value in self.values]

    def made_of(self) -> list:
        return json.loads(json.dumps([recipe.summary() for recipe in self.recipes()]))


SLIDERS = (
    Slider(
        "Learning rate",
        "learning_rate_too_high",
        "lr",
        (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0),
        "How far below the learning rate that breaks is the one that works best?",
    ),
    Slider(
        "Depth",
        "vanishing_gradients",
        "depth",
        (2, 3, 4, 5, 6, 8, 10, 12),
        "With sigmoid units: from how many layers on does the loss stay at ln(10) = 2.30?",
        (("activation", "sigmoid"),),
    ),
    Slider(
        "Number of samples",
        "too_few_samples",
        "samples",
        (50, 100, 200, 500, 1000, 2000, 5000, 10_000),
        "How many images does it take until the validation loss stops rising?",
    ),
    Slider(
        "Dropout",
        "too_much_dropout",
        "dropout",
        (0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95),
        "At which probability does dropout stop helping and start to erase the signal?",
    ),
    Slider(
        "Initialisation scale",
        "exploding_gradients",
        "init_scale",
        (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7),
        "Ten layers, normal initialisation: which standard deviation is neither too small nor too large?",
        (("init", "normal"),),
    ),
    Slider(
        "Batch size",
        "batch_too_small",
        "batch_size",
        (2, 4, 8, 16, 32, 64, 128, 256),
        "At a learning rate of 0.1: how small can a batch be before noise wins?",
    ),
    Slider(
        "Gradient clipping",
        "clipping_too_tight",
        "clip",
        (0.0001, 0.001, 0.01, 0.03, 0.1, 0.3, 1.0, 5.0),
        "Clipping protects from jumps. When does it become the brake?",
    ),
    Slider(
        "Warm-up",
        "warmup_too_long",
        "warmup",
        (0, 20, 40, 100, 200, 400, 1000, 4000),
        "The run has 400 steps. What happens when the warm-up is longer than that?",
    ),
    Slider(
        "Momentum",
        "momentum_too_high",
        "momentum",
        (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999),
        "Momentum multiplies the step by 1 / (1 - momentum). Where does the loss begin to oscillate?",
    ),
    Slider(
        "Width",
        "underfit",
        "width",
        (1, 2, 3, 4, 8, 16, 32, 128),
        "How many units does it take to tell ten digits apart?",
    ),
)


def current(kept: dict[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
    """The recorded sliders; what is missing, or of other recipes than today's, is trained now."""
    found = {}
    for slider in SLIDERS:
        if kept.get(slider.name, {}).get("made of") != slider.made_of():
            say(f"slider {slider.name}")
            kept = kept | {slider.name: record_of(slider)}
        found[slider.name] = kept[slider.name]
    return found


def record_of(slider: Slider) -> dict[str, Any]:
    store = RunStore(on_disk().folder, memory=Memory(4))
    runs = [finished(store, recipe, progress=False) for recipe in slider.recipes()]
    places = [place_of(run, value) for run, value in zip(runs, slider.values, strict=True)]
    return {"made of": slider.made_of(), "places": places}


def place_of(run: Run, value) -> dict[str, Any]:
    """One place of a slider: the curves of its run, and the verdict."""
    found = diagnose(run)
    first = {"name": found[0].name, "title": found[0].title, "seen": found[0].seen} if found else {}
    curves = {"loss": line_of(run, "loss", POINTS)}
    curves |= {name: line_of(run, name) for name in ("val_loss", "val_accuracy") if name in run}
    finite = run["loss"][np.isfinite(run["loss"])]
    end = {"first": float(finite[0]) if len(finite) else None, "last": float(run["loss"][-1])}
    return {
        "value": short(value),
        "score": run.measure.text(run.score),
        "steps": len(run),
        "end": {name: f"{number:.3g}" for name, number in end.items() if number is not None},
        "curves": curves,
        "verdict": first,
        "also": [each.title for each in found[1:]],
    }
