"""What the page Diagnose does with a file: the words of `labkit diagnose`, and what the page draws beside them."""

import json

import numpy as np

from labkit.diagnosis.diagnose import UNSURE, diagnose
from labkit.diagnosis.report import exam
from labkit.recording.logs import read
from labkit.recording.run import Run, RunError

MOST = 600  # points of a curve


def answer(path: str) -> str:
    """JSON with the text, the failures found and the curves; or with the error, in the words of the command line."""
    try:
        run = read(path)
        words = exam(run)
    except (RunError, OSError) as error:
        return json.dumps({"error": f"labkit: {error}"})
    found = [{"name": each.name, "title": each.title, "candidates": list(each.candidates)} for each in diagnose(run)]
    return json.dumps({"text": words, "found": found, "unsure": UNSURE, "curves": curves(run)})


def curves(run: Run) -> dict[str, dict]:
    """Training and validation loss."""
    return {name: points(run.steps_of(name), run[name]) for name in ("loss", "val_loss") if name in run}


def points(x, y) -> dict[str, list]:
    chosen = np.unique(np.linspace(0, len(x) - 1, min(len(x), MOST)).astype(int)) if len(x) else []
    return {"x": [int(x[i]) for i in chosen], "y": [float(y[i]) if np.isfinite(y[i]) else None for i in chosen]}
