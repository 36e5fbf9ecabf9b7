"""Pages of the course: each lesson as students get it, with the outputs of its solution."""

import base64
import hashlib
import html
import re
from typing import Any

from labkit.course.checks import prediction_of
from labkit.course.notebooks import STUB
from labkit.failures.catalogue import FAILURES
from labkit.site import text
from labkit.site.page import Page
from labkit.site.sources import Lesson, Sources, source_of

LEFT_OUT = ("links", "setup")  # generated cells: badges are in the page's head, and there is nothing to install
CHECK = re.compile(r"^labkit\.check\(", re.MULTILINE)
CHOICE = re.compile(r'^labkit\.predict\("\d\d\.0[a-z]?", ', re.MULTILINE)
ANSWER = re.compile(r'labkit\.predict\("(?P<id>\d\d\.0[a-z]?)"\)')
DRAWN = re.compile(r'<img alt="(?P<words>[^"]*)"[^>]* src="data:image/png;base64,(?P<data>[^"]+)">')


def pages(sources: Sources) -> list[Page]:
    return [index(sources), *(page_of(lesson, sources) for lesson in sources.lessons)]


def index(sources: Sources) -> Page:
    lessons = sources.lessons
    minutes = sum(int(lesson.minutes) for lesson in lessons)
    return Page(
        "course/index.html",
        "The course: how training fails, in notebooks",
        f"{len(lessons)} lessons, {minutes / 60:.0f} hours: predict, run, look, turn a knob and cure, on real runs.",
        "course.html",
        "course",
        {
            "lessons": lessons,
            "hours": round(minutes / 60),
            "titles": {name: mode.title for name, mode in FAILURES.items()},
        },
        kind="course",
    )


def page_of(lesson: Lesson, sources: Sources) -> Page:
    place = sources.lessons.index(lesson)
    around = {
        "before": sources.lessons[place - 1] if place else None,
        "after": sources.lessons[place + 1] if place + 1 < len(sources.lessons) else None,
    }
    page = Page(
        lesson.path,
        f"{lesson.title} · lesson {lesson.number}",
        text.shortened(lesson.about),
        "lesson.html",
        "course",
        kind=f"lesson {lesson.number}",
        words=text.plain(lesson.prose),
        structured=[{"@type": "LearningResource", "name": lesson.title, "description": lesson.about,
                     "timeRequired": f"PT{lesson.minutes}M", "educationalLevel": lesson.difficulty}],
    )  # fmt: skip
    cells = Cells(page, sources, {cell["id"]: cell.get("outputs", []) for cell in lesson.solution["cells"]})
    page.content.update(
        lesson=lesson,
        cells=cells.written(lesson.student["cells"]),
        pictures=cells.pictures,
        badges=sources.badges(lesson),
        modes=[FAILURES[name] for name in lesson.modes],
        **around,
    )
    return page


class Cells:
    """The cells of a notebook as HTML; pictures become files beside the page, which it loads when they are seen."""

    def __init__(self, page: Page, sources: Sources, outputs: dict[str, list]):
        self.page, self.sources, self.outputs = page, sources, outputs
        self.pictures: dict[str, bytes] = {}
        self.names: set[str] = set()  # of the headings so far: two may be called "Predict"
        self.heading = page.title
        self.printed = ""  # last, above a picture: what it shows in words

    def written(self, cells: list[dict]) -> list[str]:
        shown = [cell for cell in cells if cell["id"] not in LEFT_OUT]
        return [self.cell(cell, first=number == 0) for number, cell in enumerate(shown)]

    def link(self, address: str) -> str | None:
        found = self.sources.link("notebooks", address)
        return found if found is None or "://" in found else self.page.link(found)

    def cell(self, cell: dict, first: bool) -> str:
        """A cell as students get it; below code, what the solution printed and drew there."""
        source = source_of(cell)
        if cell["cell_type"] == "markdown":
            if headings := re.findall(r"^#+ (.+)$", source, re.MULTILINE):
                self.heading = text.plain(headings[-1])
            if first:  # the title and the minutes are in the head of the page
                source = source.partition("\n\n")[2].partition("\n\n")[2]
            return text.rendered(source, self.link, names=self.names)
        outputs = self.outputs.get(cell["id"], [])
        shown = text.highlighted(source.replace("%matplotlib inline\n", ""))
        if STUB in source:
            return f'<div class="yours"><p class="label">Your turn</p>{shown}{self.folded(outputs)}</div>'
        if CHECK.search(source) or CHOICE.search(source):  # the output is about an answer that is not shown
            return f'<div class="check">{shown}</div>'
        if found := ANSWER.fullmatch(source.strip()):
            return f'<div class="check">{shown}</div>{answer(found["id"])}'
        return shown + "".join(self.output(each) for each in outputs)

    def folded(self, outputs: list) -> str:
        """What a correct answer prints."""
        made = "".join(self.output(each) for each in outputs)
        return f"<details><summary>What a correct answer prints</summary>{made}</details>" if made else ""

    def output(self, output: dict[str, Any]) -> str:
        """An output: printed text, a picture, or a table."""
        if output["output_type"] == "stream":
            return self.text("".join(output["text"]))
        if output["output_type"] == "error":
            return self.text(f"{output['ename']}: {output['evalue']}")
        data = output.get("data", {})
        words = "".join(data.get("text/plain", ""))
        if "image/png" in data:
            return self.picture("".join(data["image/png"]).replace("\n", ""), words)
        if "text/html" in data:
            made = "".join(data["text/html"])
            if found := DRAWN.search(made):
                return self.picture(found["data"], html.unescape(found["words"]))
            return f'<div class="output html" tabindex="0">{plain_html(made)}</div>'
        return self.text(words) if words else ""

    def text(self, words: str) -> str:
        self.printed = words
        return f'<pre class="output" tabindex="0">{html.escape(words.rstrip())}</pre>'

    def picture(self, data: str, words: str) -> str:
        content = base64.b64decode(data)
        name = f"pictures/{hashlib.sha256(content).hexdigest()[:16]}.png"
        self.pictures[name] = content
        width, height = int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")
        if words.startswith("<Figure") or not words:
            words = f"Plots of the runs in the section “{self.heading}”. {' '.join(self.printed.split())}"
        alt = html.escape(text.shortened(words.strip("<> "), 300), quote=True)
        size = f'width="{width}" height="{height}"'
        source = self.page.link(name)
        return f'<img class="output figure" src="{source}" alt="{alt}" {size} loading="lazy" decoding="async">'


def answer(id: str) -> str:
    """The answer of a prediction, folded away: the reader chooses first."""
    asked = prediction_of(id)
    words = html.escape(f"{asked.correct}. {asked.why}")
    return f"<details><summary>What the run showed</summary><p>{words}</p></details>"


def plain_html(made: str) -> str:
    """The HTML of an output without colours of its own, which would not follow the theme."""
    made = re.sub(r"\b(background(-color)?|color):[^;\"']*;?", "", made)
    made = re.sub(r"<(script|style)\b.*?</\1>", "", made, flags=re.DOTALL)
    return re.sub(r'<th style="[^"]*"></th>|<th></th>', "<td></td>", made)  # an empty heading names nothing
