"""Small recipes, remembered runs, and runs written by hand."""

import dataclasses
import functools
import json
import signal
from pathlib import Path

import numpy as np

from labkit.recording.run import FORMAT, Run
from labkit.training.data import Data
from labkit.training.language import LanguageRecipe
from labkit.training.loop import Training, train
from labkit.training.recipe import Recipe
from labkit.training.tokens import mnist_tokens

ROOT = Path(__file__).resolve().parents[1]  # the clone
LAYERS = ("layer1", "layer2", "layer3")
ACTIVATIONS = ("inputs", "relu1", "relu2", "outputs")
TINY = Recipe(samples=256, batch_size=32, width=16, steps=6, evaluate_every=1000, device="cpu")


def tiny(**changes) -> Recipe:
    """Six steps on 256 digits, validated at both ends: about a tenth of a second."""
    return TINY.but(**changes)


def stopping_tokens(recipe: Recipe) -> Data:
    """MNIST as tokens, where samples stop at the first blank patch."""
    return dataclasses.replace(mnist_tokens(recipe), end=0)


def tiny_gpt(**changes) -> LanguageRecipe:
    """Six steps of a small language model, of which every instrument can be read."""
    small = {"samples": 64, "batch_size": 8, "width": 16, "heads": 2, "depth": 1, "steps": 6, "device": "cpu"}
    return LanguageRecipe(**{"data": stopping_tokens, **small, **changes})


@functools.cache
def trained(recipe: Recipe) -> Run:
    """The run of a recipe, trained once per process. Do not change it."""
    return train(recipe, progress=False, errors="record")


def watched(recipe: Recipe, each_step) -> tuple[Run, Training]:
    """A run and its training; `each_step(training)` sees the net after every step."""
    training = Training(recipe)
    return training.run(each_step=lambda _: each_step(training), progress=False), training


def hand_made(steps: int = 40, facts: dict | None = None, **traces) -> Run:
    """A run as a healthy three-layer net would give it; `traces` replace some of its own.

    A number stands for a trace that has this value everywhere.
    """
    evaluations = 5
    healthy = {
        "step": np.arange(steps),
        "loss": np.linspace(2.3, 0.2, steps),
        "lr": np.full(steps, 0.1),
        "loss_scale": np.ones(steps),
        "grad_norm": np.ones((steps, 3)),
        "grad_norm_total": np.full(steps, 3**0.5),
        "weight_norm": np.full((steps, 3), 5.0),
        "update_norm": np.full((steps, 3), 0.05),
        "update_ratio": np.full((steps, 3), 0.01),
        "activation_mean": np.full((steps, 4), 0.5),
        "activation_std": np.ones((steps, 4)),
        "val_step": np.linspace(0, steps, evaluations).astype(int),
        "val_loss": np.linspace(2.3, 0.3, evaluations),
        "val_accuracy": np.linspace(0.1, 0.92, evaluations),
        "probe_loss": np.linspace(2.3, 0.2, evaluations),
        "probe_accuracy": np.linspace(0.1, 0.95, evaluations),
        "dead": np.full((evaluations, 4), 0.05),
    }
    for name, value in traces.items():
        value = np.asarray(value, dtype=float)
        healthy[name] = value if value.ndim else np.full(healthy[name].shape, float(value))
    known = {"first_nonfinite": None, "matrices": list(LAYERS), "stopped": None, "planned_steps": steps, "error": None}
    return Run(healthy, layers=LAYERS, activations=ACTIVATIONS, facts=known | {"classes": 10} | (facts or {}))


def write_unchecked(run: Run, path: Path) -> Path:
    """Write a run as `Run.save` does, but whatever it holds."""
    names = ("layers", "parameters", "activations", "heads", "recipe", "facts", "events")
    head = json.dumps({"format": FORMAT} | {name: getattr(run, name) for name in names})
    arrays = {f"trace/{name}": values for name, values in run.traces.items()}
    np.savez_compressed(path, head=np.frombuffer(head.encode(), np.uint8), **arrays)
    return path


def hear_ctrl_c() -> None:
    """For `preexec_fn`: what is started in the background of a script ignores Ctrl-C, and hands that on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def cut_off(figure) -> list[str]:
    """The titles, labels and words of a drawn figure that reach beyond its edge."""
    figure.canvas.draw()
    width, height = figure.canvas.get_width_height()
    found = []
    for ax in figure.axes:
        for text in (ax.title, ax._left_title, ax.xaxis.label, ax.yaxis.label, *ax.texts):
            if text.get_visible() and text.get_text():
                box = text.get_window_extent()
                inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1
                found += [] if inside else [text.get_text()]
    return found
