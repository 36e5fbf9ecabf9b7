"""The headline failures on one page, from real runs."""

from collections.abc import Iterable
from pathlib import Path

import matplotlib
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from tqdm.auto import tqdm

from labkit import __version__, plots, report
from labkit.study import Study, study

HEADLINES = (
    "learning_rate_too_high", "learning_rate_too_low", "too_few_samples", "vanishing_gradients", "fp16_overflow",
)  # fmt: skip
DEFAULT = ("failure-modes.pdf", "failure-modes.png")
A3 = (16.54, 11.69)  # inches, landscape


def make(paths: Iterable[str], *, dataset: str = "mnist", seed: int = 0) -> list[Path]:
    """Train all headline modes and draw them; one file per path, each whole or not at all."""
    studies = [study(name, seed, dataset, progress=False) for name in tqdm(HEADLINES, unit="study", leave=False)]
    figure = draw(studies)
    return [plots.save(figure, path) for path in paths]


def draw(studies: list[Study]) -> Figure:
    """One row per study, four panels each, and where it all comes from at the foot."""
    with matplotlib.rc_context({"pdf.fonttype": 42, "font.size": 8}):
        figure = Figure(figsize=A3, layout="constrained")
        FigureCanvasAgg(figure)
        rows = figure.subfigures(len(studies), 1)
        for row, each in zip(rows, studies, strict=True):
            row.suptitle(report.heading(each), x=0.01, ha="left", fontsize=11, fontweight="bold")
            plots.draw_study(each, row.subplots(1, 4))
        first = studies[0].recipes["sick"]
        command = f"labkit poster --dataset {first.data.__name__} --seed {first.seed}"
        note = f"labkit {__version__}, torch {torch.__version__}, from real runs; remake with `{command}`"
        figure.supxlabel(note, fontsize=8, x=0.01, ha="left")
    return figure
