"""The catalogue as a table: HTML in Jupyter, columns in the terminal."""

import html

from rich.markup import escape
from rich.table import Table

from labkit.training.recipe import changes_in_words


def catalogue_html(catalogue) -> str:
    """The failure modes as an HTML table."""
    rows = "".join(
        f"<tr><td>{mode.topic}</td><td><code>{mode.name}</code></td>"
        f"<td>{html.escape(_changed(mode))}</td>"
        f"<td style='text-align:left'>{html.escape(mode.symptom)}</td></tr>"
        for mode in catalogue.values()
    )
    head = "<tr><th>topic</th><th>name</th><th>changed in the healthy twin</th><th>looks like</th></tr>"
    return f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>"


class CatalogueTable:
    """The failure modes by topic for the terminal; if it is wide enough, with what was changed."""

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


WIDE = 120  # characters per line from which the third column fits


def _changed(mode) -> str:
    return changes_in_words(mode.sick, mode.healthy)
