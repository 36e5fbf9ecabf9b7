"""The poster: the healthy run and the failures, one card each, drawn from real runs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_pdf import PdfPages

from labkit import __version__
from labkit.course.poster.content import PREFLIGHT, TREE
from labkit.diagnosis import look_alikes
from labkit.diagnosis.study import Study, run_studies
from labkit.drawing import plots
from labkit.drawing.page import PAPERS, Box, Sheet
from labkit.errors import RecipeError, near
from labkit.failures.catalogue import FAILURES, HEADLINES
from labkit.recording.files import written_whole
from labkit.recording.measure import ACCURACY
from labkit.recording.traces import RANGES
from labkit.training.recipe import COUNT, changes_in_words

DEFAULT = ("failure-modes.pdf", "failure-modes.png")
COLUMNS, ROWS = 3, 2
MARGIN, GUTTER = 9.0, 4.5
HEADER, STRIP, FOOTER = 16.0, 51.0, 6.0  # millimetres of the A3 page
EMBEDDED = {"pdf.fonttype": 42}  # TrueType fonts in the file: text can be searched and copied
QUIET, CARD, CHIP = "#555555", "#f4f4f0", "#e3e3dc"
GOOD, BAD = "#00557f", "#a33c00"  # Okabe-Ito's blue and vermilion, darkened for text
TITLE, SUBTITLE = (
    "How training fails",
    "and how to tell why. Every curve is a real run with its healthy twin.",
)


# --- from names to files --------------------------------------------------------------------------


def make(
    paths: Iterable[str] = DEFAULT, *, modes: Sequence[str] | None = None, everything: bool = False,
    dataset: str = "mnist", paper: str = "a3", seed: int = 0, jobs: int = 1, width: int | None = None,
    remake: str = "labkit poster",
) -> list[Path]:  # fmt: skip
    """Train the modes, draw them, and write one file per path (per page, for pictures of several pages).

    `width` is the width of a .png in pixels; by default A3 has 4960, at 300 dots per inch.
    """
    if paper not in PAPERS:
        raise RecipeError(f"paper: expected one of {', '.join(PAPERS)}, got {paper!r}. {near(paper, PAPERS)}")
    paths = [Path(path) for path in paths]
    kinds = {path.suffix.lower() for path in paths}
    if not kinds <= {".pdf", ".png", ".svg"}:
        raise RecipeError(f"expected files that end in .pdf, .png or .svg, got {', '.join(map(str, paths))}")
    if width is not None and (problem := COUNT.problem(width)):
        raise RecipeError(f"width: {problem}")
    whole = [name for name, mode in FAILURES.items() if mode.on(dataset)]
    names = list(modes or (whole if everything else HEADLINES))
    studies = run_studies(names, seed=seed, dataset=dataset, jobs=jobs)
    pages = draw(studies, paper=paper, remake=remake, tables=everything)
    return [written for path in paths for written in write(pages, path, width)]


def write(pages: list[Sheet], path: Path, width: int | None = None) -> list[Path]:
    """A PDF holds all pages; pictures of several pages get numbers."""
    words = {"Title": f"{TITLE}: failure modes of neural-network training"}
    if path.suffix.lower() == ".pdf":
        made = words | {"CreationDate": None}
        with matplotlib.rc_context(EMBEDDED), written_whole(path) as stream, PdfPages(stream, metadata=made) as pdf:
            for page in pages:
                pdf.savefig(page.figure)
        return [path]
    several = len(pages) > 1
    names = [path.with_stem(f"{path.stem}-{number}") if several else path for number in range(1, len(pages) + 1)]
    dots = width / pages[0].figure.get_figwidth() if width else None
    return [
        plots.save(page.figure, name, dots, **words | _description(page, name))
        for page, name in zip(pages, names, strict=True)
    ]


def _description(page: Sheet, path: Path) -> dict[str, str]:
    """A description of the cards of this page, for screen readers (.svg only)."""
    return {"Description": "Cards: " + "; ".join(page.titles)} if path.suffix.lower() == ".svg" else {}


# --- pages ----------------------------------------------------------------------------------------


def draw(
    studies: list[Study], *, paper: str = "a3", remake: str = "labkit poster", tables: bool = False
) -> list[Sheet]:
    """The healthy card and one per study, six per page; symptom tree and checklist are on the first."""
    cards = [studies[0], *studies]  # the first card is the healthy run
    per_page = COLUMNS * ROWS
    groups = [cards[start : start + per_page] for start in range(0, len(cards), per_page)]
    last = _tables_pages(studies, paper, len(groups), _provenance(studies, remake)) if tables else []
    pages = []
    for number, group in enumerate(groups):
        with matplotlib.rc_context({"hatch.linewidth": 0.5}):
            pages.append(_page(group, paper, number, len(groups) + len(last), _provenance(studies, remake)))
    return pages + last


def _page(group: list[Study], paper: str, number: int, of: int, provenance: str) -> Sheet:
    sheet = Sheet(paper)
    sheet.titles = []
    first = number == 0
    _header(sheet, f"page {number + 1} of {of}" if of > 1 else "")
    _footer(sheet, provenance)
    bottom = sheet.height - FOOTER - MARGIN / 2 - (STRIP + GUTTER if first else 0)
    area = Box(MARGIN, MARGIN + HEADER, sheet.width - 2 * MARGIN, bottom - MARGIN - HEADER)
    for place, each in enumerate(group):
        box = _cell(area, place)
        if first and place == 0:
            healthy_card(sheet, box, each)
        else:
            card(sheet, box, each)
    if first:
        strip = Box(area.x, bottom + GUTTER, area.width, STRIP)
        wide = strip.width * 0.72
        tree(sheet, Box(strip.x, strip.y, wide, strip.height))
        preflight(sheet, Box(strip.x + wide + GUTTER, strip.y, strip.width - wide - GUTTER, strip.height))
    return sheet


def _tables_pages(studies: list[Study], paper: str, before: int, provenance: str) -> list[Sheet]:
    """The last pages: losses that look alike, and how early each instrument shows a failure."""
    tables = [look_alike_table(studies), lead_time_table(studies)]
    parts = [part for table in tables for part in table.parts(ROWS_PER_TABLE)]
    if sum(len(table.rows) for table in tables) <= ROWS_PER_TABLE:
        groups = [parts]  # both fit on one page
    else:
        groups = [[part] for part in parts]
    pages = []
    for number, group in enumerate(groups, start=before + 1):
        sheet = Sheet(paper)
        sheet.titles = [table.title for table in group]
        _header(sheet, f"page {number} of {before + len(groups)}")
        _footer(sheet, provenance)
        box = Box(MARGIN, MARGIN + HEADER, sheet.width - 2 * MARGIN, sheet.height - MARGIN - HEADER - FOOTER - MARGIN)
        shares = [0.42, 0.58] if len(group) > 1 else [1.0]
        for table, share in zip(group, shares, strict=True):
            height = box.height * share - (GUTTER if share < 0.5 else 0)
            _table(sheet, Box(box.x, box.y, box.width, height), table.title, table.note, [table.head, *table.rows])
            box = Box(box.x, box.y + height + GUTTER, box.width, box.height)
        pages.append(sheet)
    return pages


ROWS_PER_TABLE = 36  # a table of this many rows is still readable on one page


@dataclass(frozen=True)
class Table:
    """Rows of text with a title, a note and a header."""

    title: str
    note: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def parts(self, count: int) -> list["Table"]:
        """The same table in parts of at most `count` rows."""
        starts = range(0, max(1, len(self.rows)), count)
        return [replace(self, rows=self.rows[start : start + count]) for start in starts]


def look_alike_table(studies: list[Study]) -> Table:
    rows = [
        (FAILURES[pair.one].title, FAILURES[pair.other].title, f"{pair.difference:.1%}",
         pair.instrument or "no instrument", *(f"{value:.2g}" for value in pair.readings))
        for pair in look_alikes.look_alikes(studies)
    ]  # fmt: skip
    head = ("failure", "looks like", "losses differ by", "told apart by", "first", "second")
    note = "Pairs of failures with the same training loss, and the instrument that tells them apart."
    return Table("Look-alikes", note, head, rows)


def lead_time_table(studies: list[Study]) -> Table:
    names = [one.words for one in RANGES if one.name in look_alikes.SERIES]
    rows = [
        (FAILURES[row.name].title, "never" if row.loss is None else f"step {row.loss}",
         *("" if row.lead(name) is None else f"{row.lead(name):+d}" for name in names))
        for row in look_alikes.lead_times(studies)
    ]  # fmt: skip
    note = (
        "Steps by which an instrument leaves its healthy range before (+) or after (-) the loss shows it; empty: never."
    )
    return Table("Lead time", note, ("failure", "loss shows it at", *names), rows)


def _table(sheet: Sheet, box: Box, title: str, note: str, rows: list[tuple[str, ...]]) -> None:
    """A titled table; the first two columns are wider, and the type shrinks until every row and cell fits."""
    sheet.panel(box, CARD)
    inside = box.inset(4, 3)
    sheet.write(Box(inside.x, inside.y, inside.width, 8), title, 16, color=GOOD, fontweight="bold")
    sheet.write(Box(inside.x, inside.y + 8, inside.width, 6), note, 9.5, color=QUIET)
    top, step = inside.y + 16, min(7.5, (inside.height - 16) / len(rows))
    shares = [1.6, 1.3, *([1.0] * (len(rows[0]) - 2))]
    widths = [inside.width * share / sum(shares) for share in shares]
    size = min(9.5, step / sheet.line_height(1))
    for number, row in enumerate(rows):
        y = top + number * step
        sheet.line([(inside.x, y - 0.9), (inside.x + inside.width, y - 0.9)], color="#d5d5cc", width=0.5)
        for column, text in enumerate(row):
            cell = Box(inside.x + sum(widths[:column]), y, widths[column] - 1, step)
            style = {"fontweight": "bold"} if number == 0 or column == 0 else {}
            _one_line(sheet, cell, text, size, **style)


def _footer(sheet: Sheet, provenance: str) -> None:
    sheet.write(Box(MARGIN, sheet.height - FOOTER - 1, sheet.width - 2 * MARGIN, FOOTER), provenance, 7, color=QUIET)


def _cell(area: Box, place: int) -> Box:
    row, column = divmod(place, COLUMNS)
    width = (area.width - (COLUMNS - 1) * GUTTER) / COLUMNS
    height = (area.height - (ROWS - 1) * GUTTER) / ROWS
    return Box(area.x + column * (width + GUTTER), area.y + row * (height + GUTTER), width, height)


def _header(sheet: Sheet, note: str) -> None:
    width = sheet.width - 2 * MARGIN
    sheet.write(Box(MARGIN, MARGIN - 2, width * 0.4, HEADER), TITLE, 34, fontweight="bold")
    shift = sheet.text_width(TITLE, 34, fontweight="bold") + 4
    sheet.write(Box(MARGIN + shift, MARGIN + 4.2, 150, HEADER), SUBTITLE, 11, color=QUIET)
    x = sheet.width - MARGIN - 106
    for role, style in plots.ROLES.items():
        line = {name: value for name, value in style.items() if name in ("color", "linestyle")}
        sheet.line([(x, MARGIN + 6), (x + 12, MARGIN + 6)], width=style["linewidth"] * 1.3, **line)
        sheet.write(Box(x + 14, MARGIN + 3.2, 24, 8), role, 13)
        x += 36
    if note:
        sheet.write(Box(sheet.width - MARGIN - 60, MARGIN + 10, 60, 6), note, 8, color=QUIET, align="right")


def _provenance(studies: list[Study], remake: str) -> str:
    recipe = studies[0].recipes["healthy"]
    healthy = [each.recipes["healthy"] for each in studies]
    steps, sizes = sorted({each.steps for each in healthy}), sorted({each.batch_size for each in healthy})
    return (
        f"labkit {__version__} with torch {torch.__version__}; data {recipe.data.__name__}, seed {recipe.seed}, "
        f"{_some(steps)} steps of batch {_some(sizes)}. Reproduce: {remake}"
    )


def _some(numbers: list[int]) -> str:
    """'150 or 400'; for more than two, '100 to 1000'."""
    return " or ".join(map(str, numbers)) if len(numbers) < 3 else f"{numbers[0]} to {numbers[-1]}"


# --- cards ----------------------------------------------------------------------------------------


def card(sheet: Sheet, box: Box, each: Study) -> None:
    """One failure: what was changed, its loss over the healthy one, its instrument, the diagnosis, the explanation."""
    inside = _frame(
        sheet,
        box,
        each.mode.title,
        changes_in_words(each.recipes["sick"], each.recipes["healthy"]),
        BAD,
        each.mode.topic,
    )
    left, right, below = _split(inside)
    _small(sheet, plots.losses(each, sheet.axes(left)))
    _small(sheet, plots.instrument(each.mode.shows)(each, ax=sheet.axes(right)))
    y = below.y + _verdict(sheet, below, each)
    cured, healthy = (run.measure.text(run.score) for run in (each.cured, each.healthy))
    correct = " correct" if each.mode.measure.name == ACCURACY else ""
    cure = f"{next(iter(each.mode.cures))}: {cured}{correct}, healthy twin {healthy}."
    mode = each.mode
    words = {"Looks like": mode.symptom, "Because": mode.mechanism, "Check first": mode.first_check}
    items = [(label, first_sentence(text)) for label, text in words.items()] + [("Cure", capital(cure))]
    if (
        next(iter(mode.cures.values())) == mode.healthy
    ):  # it undoes the change, which nobody knows in a run of their own
        items.append(("In practice", first_sentence(mode.remedy)))
    sheet.paragraphs(Box(below.x, y, below.width, box.y + box.height - y - 1.5), items, 8.4)


def capital(text: str) -> str:
    """Capitalise the first letter, unless the first word is a name from the code."""
    return text[0].upper() + text[1:] if text.split()[0].isalpha() else text


def first_sentence(text: str) -> str:
    """The first sentence only; `labkit explain` shows the rest."""
    return text.split(". ")[0].removesuffix(".") + "."


def healthy_card(sheet: Sheet, box: Box, each: Study) -> None:
    """The healthy run, and the healthy ranges of the instruments."""
    runs = {"healthy": each.healthy}
    reached = f"{each.healthy.measure.words} {each.healthy.measure.text(each.healthy.score)}"
    inside = _frame(sheet, box, "Healthy", reached, GOOD)
    left, right, below = _split(inside)
    _small(sheet, plots.losses(runs, sheet.axes(left)))
    _small(sheet, plots.update_ratio(runs, sheet.axes(right)))
    _ranges(sheet, Box(below.x, below.y, below.width, box.y + box.height - below.y - 1))


def _ranges(sheet: Sheet, box: Box) -> None:
    """The table of healthy ranges, in the largest type in which every cell fits on one line."""
    columns, ends = (0, 33, 80), (33, 80, box.width)
    rows = [("instrument", "healthy", "warning sign"), *((one.words, one.healthy, one.warning) for one in RANGES)]
    step = box.height / len(rows)
    cells = [(row[column], ends[column] - columns[column] - 1.5, column) for row in rows for column in range(3)]
    size = min(
        8.6 * width / max(width, sheet.text_width(text, 8.6, **_weight(column))) for text, width, column in cells
    )
    for number, row in enumerate(rows):
        y = box.y + number * step
        if number:
            sheet.line([(box.x, y - 0.7), (box.x + box.width, y - 0.7)], color="#d5d5cc", width=0.5)
        for column, text in enumerate(row):
            cell = Box(box.x + columns[column], y, ends[column] - columns[column], step)
            style = {"fontweight": "bold", "color": GOOD} if number == 0 else _weight(column)
            sheet.write(cell, text, size, **style)


def _weight(column: int) -> dict:
    return {"fontweight": "bold"} if column == 0 else {}


def _one_line(sheet: Sheet, box: Box, text: str, size: float, **style) -> None:
    while sheet.text_width(text, size, **style) > box.width and size > 5:
        size -= 0.1
    sheet.write(box, text, size, **style)


def _frame(sheet: Sheet, box: Box, title: str, note: str, color: str, topic: str = "") -> Box:
    """The card's background and coloured edge, its title, what was changed, and its topic in the corner."""
    sheet.titles.append(title)
    sheet.panel(box, CARD)
    sheet.panel(Box(box.x, box.y, 1.6, box.height), color, radius=0.6)
    inside = box.inset(5, 2.2, 3, 0)
    _one_line(sheet, Box(inside.x, inside.y, inside.width - 26, 8), title, 16, color=color, fontweight="bold")
    corner = Box(inside.x + inside.width - 34, inside.y, 34, 5)
    sheet.write(corner, topic.replace("_", " "), 7.6, color=QUIET, align="right")
    _one_line(sheet, Box(inside.x, inside.y + 7.4, inside.width, 5), note, 9.5, family="DejaVu Sans Mono")
    return inside.inset(0, 13.5, 0, 0)


def _split(inside: Box) -> tuple[Box, Box, Box]:
    """Two panels side by side (with room for their labels), and the rest below them."""
    height = max(28.0, inside.height * 0.385)
    left = Box(inside.x + 9, inside.y + 4, inside.width * 0.54 - 9, height - 4)
    right = Box(inside.x + inside.width * 0.54 + 13, inside.y + 4, inside.width * 0.46 - 13, height - 4)
    return left, right, Box(inside.x, inside.y + height + 8.5, inside.width, inside.height - height - 8.5)


def _small(sheet: Sheet, ax: Axes) -> None:
    """Scale text and lines of a panel to the size of the page."""
    scale = sheet.scale
    ax.tick_params(labelsize=7 * scale, length=2.5 * scale, width=0.6 * scale, pad=2 * scale)
    ax.set_title(ax.get_title(loc="left"), loc="left", fontsize=8 * scale, fontweight="bold", pad=3 * scale)
    for label in (ax.xaxis.label, ax.yaxis.label):
        label.set_fontsize(7.5 * scale)
    ax.xaxis.labelpad = ax.yaxis.labelpad = 1.5 * scale
    for text in ax.texts:
        text.set_fontsize(7 * scale)
    for line in ax.get_lines():
        line.set_linewidth(line.get_linewidth() * scale)
        line.set_markersize(line.get_markersize() * scale)
    for shape in ax.patches:
        shape.set_linewidth(shape.get_linewidth() * scale)
    for spine in ax.spines.values():
        spine.set_linewidth(0.6 * scale)
    ax.set_facecolor("white")


def _verdict(sheet: Sheet, below: Box, each: Study) -> float:
    """The diagnosis in one bar, its evidence below it; returns the height used."""
    found = each.diagnoses[0] if each.diagnoses else None
    place = f", {found.place}" if found and found.place else ""
    text = f"Diagnosis: {found.title}, step {found.onset}{place}" if found else "Diagnosis: no failure shows"
    sheet.panel(Box(below.x, below.y, below.width, 5.4), CHIP)
    _one_line(sheet, Box(below.x + 1.5, below.y + 1.1, below.width - 3, 4), text, 9, fontweight="bold", color=BAD)
    if not found:
        return 7
    seen = f"Seen: {found.seen}. Usual: {found.usual}."
    return 6.6 + sheet.write(Box(below.x, below.y + 6.4, below.width, 12), seen, 8, color=QUIET) + 0.8


# --- the strip at the bottom ----------------------------------------------------------------------


def tree(sheet: Sheet, box: Box) -> None:
    """The symptom tree, from symptom to instrument to cause: one column per cause."""
    sheet.panel(box, CARD)
    inside = box.inset(4, 2.5)
    sheet.write(Box(inside.x, inside.y, inside.width, 6), "What is wrong? From symptom to cause", 12, fontweight="bold")
    leaves = sum(len(found) for questions in TREE.values() for found in questions.values())
    width = inside.width / leaves
    x, top = inside.x, inside.y + 8
    for symptom, questions in TREE.items():
        span = width * sum(len(found) for found in questions.values())
        _chip(sheet, Box(x, top, span - 2, 9), symptom, GOOD, "white")
        for question, found in questions.items():
            block = Box(x, top + 11, width * len(found) - 2, 7)
            sheet.line([(block.x + block.width / 2, top + 9), (block.x + block.width / 2, top + 11)], color=QUIET)
            sheet.write(block, question, 8.2, align="center", fontstyle="italic")
            for reading, cause in found:
                middle = x + (width - 2) / 2
                sheet.line([(middle, top + 18), (middle, top + 19.6)], color=QUIET)
                sheet.write(Box(x, top + 20.2, width - 2, 7.5), reading, 8.2, align="center")
                _chip(sheet, Box(x, top + 28.4, width - 2, 9), FAILURES[cause].title, BAD, "white")
                x += width


def preflight(sheet: Sheet, box: Box) -> None:
    """The checklist."""
    sheet.panel(box, CARD)
    inside = box.inset(4, 2.5)
    sheet.write(Box(inside.x, inside.y, inside.width, 6), "Before every run", 12, fontweight="bold")
    step = (inside.height - 8) / len(PREFLIGHT)
    for index, point in enumerate(PREFLIGHT):
        y = inside.y + 8 + index * step
        sheet.panel(Box(inside.x, y + 0.2, 2.8, 2.8), "white", edge=QUIET, radius=0.4)
        _one_line(sheet, Box(inside.x + 4.5, y, inside.width - 4.5, step), point, 8.6)


def _chip(sheet: Sheet, box: Box, text: str, ground: str, color: str) -> None:
    sheet.panel(box, ground)
    size = 9.0
    lines = sheet.wrap(text, box.width - 2, size, fontweight="bold")
    top = box.y + (box.height - len(lines) * sheet.line_height(size)) / 2
    place = Box(box.x + 1, top, box.width - 2, box.height)
    sheet.write(place, text, size, color=color, align="center", fontweight="bold")
