"""What the site is made from: the documents and lessons of a clone, and where on the site each of them goes."""

import functools
import json
import posixpath
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.course.notebooks import badges, repository_url
from labkit.errors import RecipeError
from labkit.failures.catalogue import FAILURES
from labkit.site import text

HEAD = re.compile(r"# (?P<number>\d\d) (?P<title>.+)\n\n\*\*(?P<minutes>\d+) minutes · (?P<difficulty>\w+)\*\*")
COPIED = (".png", ".json", ".csv")  # files that documents link to, copied beside the pages
MODES_FOLDER = "labkit/failures/"
# Documents with a page of another kind; what they link to in a clone is a page here.
OTHERS = {"labkit/failures/README.md": "modes/index.html", "notebooks/README.md": "course/index.html"}
# The names of documents in links, where the file's heading is no title for a menu.
NAMES = {
    "README.md": ("use/index.html", "Install and first run"),
    "CONTRIBUTING.md": ("use/contributing.html", "Contributing"),
    "CHANGELOG.md": ("changelog.html", "Changelog"),
    "labkit/cli/README.md": ("use/commands.html", "Commands"),
    "labkit/course/README.md": ("use/teachers.html", "For teachers"),
    "labkit/diagnosis/README.md": ("use/watch.html", "Watch, diagnose and treat your own loop"),
    "labkit/panels/README.md": ("use/panels.html", "Panels"),
    "datasets/README.md": ("use/datasets.html", "Data sets"),
}


@dataclass(frozen=True)
class Document:
    """A Markdown file of the repository with a page of its own."""

    source: str  # from the top of the repository
    path: str  # from the top of the site
    title: str
    section: str

    @property
    def folder(self) -> str:
        return posixpath.dirname(self.source)


@dataclass(frozen=True)
class Lesson:
    """A lesson: the student notebook, with the outputs of its solution."""

    name: str  # 02_the_loss_curve_gallery
    number: str
    title: str
    minutes: str
    difficulty: str
    student: dict = field(repr=False)
    solution: dict = field(repr=False)

    @property
    def path(self) -> str:
        return f"course/{self.name}.html"

    @property
    def about(self) -> str:
        """Its first paragraph."""
        paragraphs = source_of(self.student["cells"][0]).split("\n\n")
        return text.plain(paragraphs[2]) if len(paragraphs) > 2 else self.title

    @property
    def prose(self) -> str:
        """All of its text, without code."""
        return " ".join(source_of(cell) for cell in self.student["cells"] if cell["cell_type"] == "markdown")

    @functools.cached_property
    def modes(self) -> list[str]:
        """The failure modes that it names."""
        words = {word for cell in self.solution["cells"] for word in re.findall(r"\w+", source_of(cell))}
        return [name for name in FAILURES if name in words]


def source_of(cell: dict) -> str:
    return "".join(cell["source"])


@dataclass(frozen=True)
class Sources:
    """A clone, and what pages need of it."""

    root: Path
    documents: list[Document]
    lessons: list[Lesson]
    repository: str  # its address; empty where it is not set
    record: dict[str, Any] = field(repr=False)  # the recorded runs
    copied: dict[str, Path] = field(default_factory=dict)  # path on the site -> file, filled while links are made

    @classmethod
    def of(cls, root: Path, record: dict[str, Any]) -> "Sources":
        if not (root / "solutions").is_dir() or not (root / "README.md").exists():
            raise RecipeError("run `labkit site` at the top of a clone: there is no folder solutions/ here")
        return cls(root, documents_of(root), lessons_of(root), repository_url(root), record)

    def read(self, document: Document) -> str:
        return (self.root / document.source).read_text(encoding="utf-8")

    def badges(self, lesson: Lesson) -> list[tuple[str, str]]:
        """(words, address) of the links that open a lesson elsewhere; none where the repository has no address."""
        found = [
            re.fullmatch(r"\[(.*)\]\((.*)\)", each)
            for each in badges(self.repository, f"notebooks/{lesson.name}.ipynb")
        ]
        return [(each[1], each[2]) for each in found if each]

    @functools.cached_property
    def places(self) -> dict[str, str]:
        """Path in the repository -> path on the site."""
        found = {each.source: each.path for each in self.documents} | OTHERS
        found |= {
            f"{folder}/{each.name}.ipynb": each.path for each in self.lessons for folder in ("notebooks", "solutions")
        }
        found |= {f"{MODES_FOLDER}{mode.topic}/{name}.py": f"modes/{name}.html" for name, mode in FAILURES.items()}
        return found | {"solutions": "course/index.html", "notebooks": "course/index.html"}

    def link(self, folder: str, address: str) -> str | None:
        """Where a link in a file of this folder of the repository leads on the site, from its top; None for nowhere."""
        place, fragment = text.joined(folder, address)
        if place in self.places:
            return self.places[place] + fragment
        there = self.root / place
        if there.suffix in COPIED and there.is_file():
            self.copied[f"files/{place}"] = there
            return f"files/{place}"
        if self.repository and there.exists():
            return f"{self.repository.removesuffix('.git')}/blob/HEAD/{place}"
        return None


def documents_of(root: Path) -> list[Document]:
    """The documents at the top, and in the rooms: READMEs are for use, pages in capitals are evidence."""
    found = []
    for path in [
        *sorted(root.glob("*.md")),
        *sorted((root / "datasets").glob("*.md")),
        *sorted((root / "labkit").rglob("*.md")),
    ]:
        source = path.relative_to(root).as_posix()
        if source in OTHERS:
            continue
        title = heading_of(path)
        evidence = path.stem.isupper() and path.stem != "README" and source.startswith("labkit/")
        if source in NAMES:
            place, title = NAMES[source]
            found.append(Document(source, place, title, "use"))
        elif evidence:
            found.append(Document(source, f"evidence/{path.stem.lower()}.html", title, "evidence"))
        else:
            found.append(Document(source, f"use/{path.parent.name or path.stem.lower()}.html", title, "use"))
    return found


def heading_of(path: Path) -> str:
    """The first heading of a Markdown file."""
    found = re.search(r"^# (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return text.plain(found[1]) if found else path.stem


def lessons_of(root: Path) -> list[Lesson]:
    """The lessons whose student edition is there, in order."""
    found = []
    for path in sorted((root / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        student, solution = (
            json.loads((root / folder / path.name).read_text("utf-8")) for folder in ("notebooks", "solutions")
        )
        head = HEAD.match(source_of(student["cells"][0]))
        if head is None:
            raise RecipeError(f"{path}: expected a first cell '# NN Title' with minutes and difficulty")
        found.append(Lesson(path.stem, **head.groupdict(), student=student, solution=solution))
    return found
