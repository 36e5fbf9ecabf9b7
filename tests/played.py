"""Short studies of the real modes, trained once per process, and where things are on a drawn page."""

import dataclasses
import functools

import matplotlib
import numpy as np
from helpers import tiny, trained
from matplotlib.colors import to_rgba
from matplotlib.patches import FancyBboxPatch
from matplotlib.text import Text

from labkit.diagnosis.diagnose import diagnose
from labkit.diagnosis.study import Study
from labkit.drawing.page import INCH, Box, Sheet
from labkit.failures.catalogue import FAILURES, HEADLINES
from labkit.recording.run import Run
from labkit.training.recipe import Recipe

MODES = (*HEADLINES, "dead_relu")  # one more than a page of the poster holds
STEPS = {"fp16_overflow": 20}  # each costs as much as five others on a CPU; the overflow is there in the first one
TOLERANCE = 0.3  # millimetres, about the width of a stroke


def short(recipe: Recipe, name: str = "") -> Recipe:
    """Sixty steps: enough for every mode to show itself."""
    return recipe.but(steps=STEPS.get(name, 60), device="cpu")


@functools.cache
def played(name: str) -> Study:
    """A mode played out in sixty steps. Do not change it."""
    recipes = {role: short(recipe, name) for role, recipe in FAILURES[name].recipes().items()}
    return made_of(name, recipes, **{role: trained(recipe) for role, recipe in recipes.items()})


def made_of(name: str, recipes: dict | None = None, **runs: Run) -> Study:
    """A study of these runs under the name of a mode; a role that is missing is played by the healthy run."""
    runs = {role: runs.get(role, runs["healthy"]) for role in ("healthy", "sick", "cured")}
    recipes = recipes or FAILURES[name].recipes()
    return Study(mode=FAILURES[name], recipes=recipes, diagnoses=diagnose(runs["sick"]), **runs)


@functools.cache
def attentive() -> Run:
    """Six steps of a small transformer."""
    return trained(tiny(model="vit", depth=2, heads=2, width=16))


def with_traces(run: Run, **traces) -> Run:
    """The same run with some traces replaced; a number stands for a trace that has this value everywhere."""
    changed = {name: np.asarray(value, dtype=float) for name, value in traces.items()}
    filled = {name: value if value.ndim else np.full(run[name].shape, value) for name, value in changed.items()}
    return dataclasses.replace(run, traces=run.traces | filled)


# --- where things are on a page -------------------------------------------------------------------


def in_millimetres(sheet: Sheet, bounds) -> Box:
    """A rectangle that matplotlib gives in pixels from the lower left, as a box on the page."""
    design = INCH / sheet.figure.dpi / sheet.scale
    top = sheet.height - bounds.y1 * design
    return Box(bounds.x0 * design, top, bounds.width * design, bounds.height * design)


def extent_now(sheet: Sheet, text: Text) -> Box:
    """Where a text is, by the renderer's own measure, with the settings of this moment."""
    return in_millimetres(sheet, text.get_window_extent(sheet.renderer))


def extent(sheet: Sheet, text: Text) -> Box:
    """The same in a file: those are written without hinting, which makes small type wider."""
    with matplotlib.rc_context({"text.hinting": "none"}):
        return extent_now(sheet, text)


def within(inner: Box, outer: Box, tolerance: float = TOLERANCE) -> bool:
    right, bottom = inner.x + inner.width, inner.y + inner.height
    across = outer.x - tolerance <= inner.x and right <= outer.x + outer.width + tolerance
    return across and outer.y - tolerance <= inner.y and bottom <= outer.y + outer.height + tolerance


def overlap(one: Box, other: Box, tolerance: float = TOLERANCE) -> bool:
    across = min(one.x + one.width, other.x + other.width) - max(one.x, other.x)
    down = min(one.y + one.height, other.y + other.height) - max(one.y, other.y)
    return across > tolerance and down > tolerance


def astray(sheet: Sheet, measure=extent) -> list[str]:
    """The texts of a page that leave their box or the paper."""
    paper = Box(0, 0, sheet.width, sheet.height)
    places = [(text.get_text(), measure(sheet, text), box) for text, box in sheet.texts]
    return [words for words, place, box in places if not (within(place, box) and within(place, paper))]


def panels(sheet: Sheet, color: str) -> list[Box]:
    """The filled rectangles of one colour."""
    shapes = [shape for shape in sheet.figure.artists if isinstance(shape, FancyBboxPatch)]
    same = [shape for shape in shapes if np.allclose(shape.get_facecolor(), to_rgba(color))]
    return [in_millimetres(sheet, shape.get_window_extent(sheet.renderer)) for shape in same]
