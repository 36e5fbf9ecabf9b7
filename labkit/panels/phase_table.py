"""The outcomes of the standard phase diagram, shipped with labkit so that the panel is full when it is opened.

Every line is the result of a real run. To train them again: `python -m labkit.panels.phase_table`.
"""

import json
from pathlib import Path

import torch

from labkit.diagnosis.phase_diagram import Phase, Place
from labkit.recording.files import written_whole
from labkit.training.run_store import Memory, RunStore

TABLE = Path(__file__).with_name("phase_table.json")
COMMAND = "python -m labkit.panels.phase_table"


def shipped(found: Phase) -> dict[Place, tuple[str, float | None]]:
    """Place -> outcome and score; empty for a grid that is not the shipped one."""
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    if table["made of"] != made_of(found):
        return {}
    return {tuple(place): (outcome, score) for place, outcome, score in table["cells"]}


def made_of(found: Phase) -> dict:
    """What a table belongs to: the recipe and the axes, as JSON has them."""
    return json.loads(json.dumps({"recipe": found.recipe.summary(), "axes": found.axes}))


def renew(path: Path = TABLE) -> Phase:
    """Train every cell of the standard grid now, whatever was stored before, and write the table."""
    found = Phase()
    for place in found.explore(store=RunStore(memory=Memory())):
        print(*place, found[place].outcome, flush=True)
    cells = [[list(place), cell.outcome, cell.score] for place, cell in found.cells.items()]
    table = {"made of": made_of(found), "torch": torch.__version__, "cells": cells}
    with written_whole(path) as stream:
        stream.write((json.dumps(table, indent=1) + "\n").encode())
    return found


if __name__ == "__main__":
    print(renew())
