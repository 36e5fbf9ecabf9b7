"""Tables for the generated pages of the documentation."""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table; a bar inside a cell does not end it."""
    return [_line(head), "|" + "---|" * len(head), *map(_line, rows)]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def sentence(text: str) -> str:
    """With a capital, and a full stop unless it ends with a mark of its own."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")
