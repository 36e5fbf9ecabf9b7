"""Runs that this notebook has already seen: a setting that comes back is shown at once."""

import threading
from collections import OrderedDict

from labkit.training.recipe import Recipe
from labkit.recording.run import Run
from labkit.training.loop import train

MOST = 100  # runs kept, the ones used last; one of 400 steps takes a megabyte or so

_runs: OrderedDict[Recipe, Run] = OrderedDict()
_guard = threading.Lock()


def remembered(recipe: Recipe) -> Run | None:
    """The run of this recipe, if it was trained here before."""
    with _guard:
        run = _runs.get(recipe)
        if run is not None:
            _runs.move_to_end(recipe)
        return run


def remember(recipe: Recipe, run: Run) -> None:
    with _guard:
        _runs[recipe] = run
        _runs.move_to_end(recipe)
        while len(_runs) > MOST:
            _runs.popitem(last=False)


def trained(recipe: Recipe, each_step=None) -> Run:
    """The run of this recipe: remembered, or trained now. A run that was stopped half-way is not remembered."""
    run = remembered(recipe)
    if run is None:
        run = train(recipe, each_step=each_step, progress=False, errors="record")
        if run.facts["stopped"] not in ("on request", "interrupted"):
            remember(recipe, run)
    return run


def forget() -> None:
    """Empty the memory."""
    with _guard:
        _runs.clear()
