"""The phase diagram as a figure: colour and letter for the outcome of each run, its score below."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from labkit.diagnosis.phase_diagram import OUTCOMES, Phase, Place
from labkit.drawing.plots import new_axes
from labkit.errors import RecipeError
from labkit.recording.measure import MEASURES
from labkit.training.recipe import short

# Okabe-Ito fills, light enough or dark enough for the letter on them; letters serve where there is no colour.
# Outcome -> letter, fill, ink.
MARKS = {
    "learned": ("L", "#56B4E9", "black"),
    "slow": ("S", "#F0E442", "black"),
    "never moved": ("N", "#BBBBBB", "black"),
    "dead": ("X", "#333333", "white"),
    "diverged": ("D", "#D55E00", "black"),
    "error": ("E", "#CC79A7", "black"),
}
UNKNOWN = ("", "#FFFFFF", "black")
Outcomes = Mapping[Place, tuple[str, float | None]]


def phase_diagram(found: Phase, ax: Axes | None = None, page=None, known: Outcomes | None = None) -> Axes:
    """One square for each run of the first two axes; `page` is the value on the third axis, where there is one.

    `known` has outcome and score of cells that were trained elsewhere.
    """
    ax = ax or new_axes()
    (across, columns), (down, rows), *third = found.axes.items()
    rest = _page(third, page)
    outcomes = (known or {}) | {place: (cell.outcome, cell.score) for place, cell in found.cells.items()}
    measure = MEASURES[found.recipe.measure]
    for row, low in enumerate(rows):
        for column, left in enumerate(columns):
            outcome, score = outcomes.get((left, low, *rest), (None, None))
            _draw_cell(ax, column, row, outcome, "" if score is None else measure.brief(score))
    ax.set_xlim(-0.5, len(columns) - 0.5)
    ax.set_ylim(-0.5, len(rows) - 0.5)
    ax.set_xticks(range(len(columns)), [in_short(value) for value in columns])
    ax.set_yticks(range(len(rows)), [in_short(value) for value in rows])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_xlabel(axis_label(across))
    ax.set_ylabel(axis_label(down))
    title = "".join(f", {axis_label(name)} {in_short(rest[0])}" for name, _ in third)
    ax.set_title(f"Outcome of each run{title}", fontsize="medium", loc="left")
    _legend(ax, [outcome for place, (outcome, _) in outcomes.items() if place[2:] == rest])
    return ax


def _page(third: list, page) -> tuple:
    """The value of the third axis as the end of a place: none where there are two axes."""
    if not third:
        return ()
    name, values = third[0]
    if page is not None and page not in values:
        raise RecipeError(f"page: expected one of {', '.join(map(str, values))}, the values of {name}; got {page!r}")
    return (values[0] if page is None else page,)


def _draw_cell(ax: Axes, column: int, row: int, outcome: str | None, score: str) -> None:
    letter, fill, ink = MARKS[outcome] if outcome else UNKNOWN
    edge = {"edgecolor": "white" if outcome else "#999999", "linewidth": 1.5 if outcome else 0.5}
    ax.add_patch(Rectangle((column - 0.48, row - 0.46), 0.96, 0.92, facecolor=fill, **edge))
    common = {"ha": "center", "color": ink}
    ax.text(column, row + 0.12, letter, va="center", fontweight="bold", **common)
    if score:
        ax.text(column, row - 0.24, score, va="center", fontsize="x-small", **common)


def _legend(ax: Axes, outcomes: list[str]) -> None:
    shown = [name for name in OUTCOMES if name in outcomes]
    patches = [Patch(facecolor=MARKS[name][1], edgecolor="white", label=f"{MARKS[name][0]}  {name}") for name in shown]
    if patches:
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "ncols": len(patches)}
        ax.legend(handles=patches, frameon=False, fontsize="small", handlelength=1, columnspacing=1.2, **place)


def axis_label(name: str) -> str:
    return {"lr": "learning rate"}.get(name, name.replace("_", " "))


def in_short(value) -> str:
    return short(value).replace("_", " ")
