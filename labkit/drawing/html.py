"""A run as HTML with a figure, for Jupyter; and a figure with its alt text."""

import base64
import html
import io

from matplotlib.figure import Figure, SubFigure

from labkit.drawing import plots

# Set in the environment by `labkit lessons --run`: a panel waits for its run, so that the notebook keeps its picture.
WAIT = "LABKIT_PANELS_WAIT"


def run_html(run) -> str:
    """A run: its numbers in one line, and plots of loss and gradients where they were recorded."""
    drawings = {"loss": plots.losses, "grad_norm": plots.gradient_bars, "update_ratio": plots.update_ratio}
    there = [draw for name, draw in drawings.items() if name in run]
    if run.facts.get("pictures"):
        there.append(plots.written)
    words = repr(run).strip("<>")
    if not there:
        return f"<p>{html.escape(words)}</p>"
    figure = Figure(figsize=(3 * len(there), 2.8), layout="constrained")
    for draw, ax in zip(there, figure.subplots(1, len(there), squeeze=False)[0], strict=True):
        draw(run, ax)
    return picture_html(figure, words)


def picture_html(figure: Figure | SubFigure, words: str) -> str:
    """Text, and below it a figure with the same text as its alt text."""
    return f"<p>{html.escape(words)}</p>{figure_html(figure, words)}"


def figure_html(figure: Figure, alternative: str) -> str:
    """A figure as an `<img>` with alt text."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=100)
    return image_html(base64.b64encode(stream.getvalue()).decode(), alternative)


def image_html(png: str, alternative: str) -> str:
    """A picture in base64 as an `<img>` with alt text."""
    words = html.escape(alternative, quote=True)
    return f'<img alt="{words}" style="max-width: 100%" src="data:image/png;base64,{png}">'
