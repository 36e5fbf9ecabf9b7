"""How runs, studies and the catalogue show themselves: HTML with a picture in Jupyter, tables in the terminal."""

import base64
import html
import io

from matplotlib.figure import Figure
from rich.markup import escape
from rich.table import Table

from labkit.diagnosis import report
from labkit.drawing import plots


def run_html(run) -> str:
    """A run: its numbers in one line; loss and gradients below, where they were recorded."""
    drawings = {"loss": plots.losses, "grad_norm": plots.gradient_bars, "update_ratio": plots.update_ratio}
    there = [draw for name, draw in drawings.items() if name in run]
    words = repr(run).strip("<>")
    if not there:
        return f"<p>{html.escape(words)}</p>"
    figure = Figure(figsize=(3 * len(there), 2.8), layout="constrained")
    for draw, ax in zip(there, figure.subplots(1, len(there), squeeze=False)[0], strict=True):
        draw(run, ax)
    return picture_html(figure, words)


def picture_html(figure: Figure, words: str) -> str:
    """A picture with its text, for readers who see and readers who hear."""
    return f"<p>{html.escape(words)}</p>{_picture(figure, words)}"


def study_html(study) -> str:
    """A study: its picture, and what the diagnosis says."""
    words = report.study_in_words(study)
    return f"{_picture(plots.study_picture(study), words)}<pre>{html.escape(words)}</pre>"


def catalogue_html(catalogue) -> str:
    """The failure modes as a table."""
    rows = "".join(
        f"<tr><td>{mode.topic}</td><td><code>{mode.name}</code></td>"
        f"<td>{html.escape(_changed(mode))}</td>"
        f"<td style='text-align:left'>{html.escape(mode.symptom)}</td></tr>"
        for mode in catalogue.values()
    )
    head = "<tr><th>topic</th><th>name</th><th>changed in the healthy twin</th><th>looks like</th></tr>"
    return f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>"


class CatalogueTable:
    """The failure modes for the terminal, by topic; where it is wide enough, with what was changed."""

    def __init__(self, catalogue):
        self.catalogue = catalogue

    def __rich_console__(self, console, options):
        wide = options.max_width >= WIDE
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("name", no_wrap=True)
        for head in ("title", "changed in the healthy twin") if wide else ("title",):
            table.add_column(head)
        topic = None
        for mode in self.catalogue.values():
            if mode.topic != topic:
                topic = mode.topic
                table.add_row(f"[bold]{topic}[/bold]")
            table.add_row(f"  {mode.name}", mode.title, *([escape(_changed(mode))] if wide else []))
        yield table


WIDE = 120  # columns from which the third column of the catalogue has room


def _changed(mode) -> str:
    return report.changes_in_words(mode.sick, mode.healthy)


def _picture(figure: Figure, alternative: str) -> str:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=100)
    data = base64.b64encode(stream.getvalue()).decode()
    words = html.escape(alternative, quote=True)
    return f'<img alt="{words}" style="max-width: 100%" src="data:image/png;base64,{data}">'
