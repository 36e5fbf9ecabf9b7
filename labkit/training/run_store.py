"""Runs kept on disk from one session to the next, in a format that cannot execute code."""

import hashlib
import importlib
import json
import os
import warnings
from pathlib import Path

import torch

from labkit import __version__
from labkit.training.data import download_folder
from labkit.training.recipe import Recipe
from labkit.recording.run import FORMAT, Run, RunError


def archive_folder() -> Path:
    """Where finished runs are kept: $LABKIT_CACHE, else beside the data in the user's cache folder."""
    named = os.environ.get("LABKIT_CACHE")
    return Path(named).expanduser() if named else download_folder() / "runs"


class Archive:
    """A folder of runs by their recipes. A file that is damaged or of another run is as good as none."""

    def __init__(self, folder: str | os.PathLike | None = None):
        self.folder = Path(folder).expanduser() if folder else archive_folder()
        self.writable = True

    def get(self, recipe: Recipe) -> Run | None:
        """The run of this recipe, if it was kept by this labkit on this PyTorch."""
        if not lasting(recipe):
            return None
        try:
            run = Run.load(self.path(recipe))
        except (RunError, OSError):
            return None
        same = run.recipe == recipe.summary() and run.facts.get("torch") == torch.__version__
        return run if same and whole(run) else None

    def put(self, recipe: Recipe, run: Run) -> None:
        """Keep a finished run. A folder that cannot be written to is said once, and nothing else is lost."""
        if not self.writable or not lasting(recipe):
            return
        try:
            run.save(self.path(recipe))
        except OSError as error:
            self.writable = False
            words = f"runs are not kept for the next time: {error}. Name another folder in LABKIT_CACHE."
            warnings.warn(words, stacklevel=2)

    def path(self, recipe: Recipe) -> Path:
        parts = {name: f"{value.__module__}.{value.__qualname__}" for name, value in _parts(recipe).items()}
        made_of = [recipe.summary(), parts, __version__, torch.__version__, FORMAT]
        digest = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()
        return self.folder / f"{digest[:32]}.npz"


def lasting(recipe: Recipe) -> bool:
    """Will the names of its parts mean the same tomorrow? Not those of a notebook, nor of functions without a name."""
    for part in _parts(recipe).values():
        module, name = getattr(part, "__module__", None), getattr(part, "__qualname__", None)
        if not module or not name or module == "__main__":
            return False
        if getattr(importlib.import_module(module), name, None) is not part:
            return False
    return True


def _parts(recipe: Recipe) -> dict:
    values = {name: getattr(recipe, name) for name in recipe.summary()}
    return {name: value for name, value in values.items() if callable(value)}


def whole(run: Run) -> bool:
    """Are all its traces numbers, one row for each step or evaluation?"""
    steps, evaluations = len(run), len(run.traces.get("val_step", ()))
    rows = {steps, evaluations}
    return steps > 0 and all(trace.dtype.kind in "biuf" and len(trace) in rows for trace in run.traces.values())
