"""What is made from the catalogue and from solutions/: student notebooks, the syllabus, and the README's table."""

import copy
import os
import re
import tomllib
from pathlib import Path
from urllib.parse import quote, urlsplit

import nbformat

from labkit import _HOME
from labkit.failures.mode import FailureMode
from labkit.failures import FAILURES
from labkit.training.rules import RecipeError, near
from labkit.course.poster.content import RANGES
from labkit.diagnosis.report import changes_in_words
from labkit.recording.run import written_whole

README = Path("README.md")
SYLLABUS = Path("notebooks/README.md")
BEGIN, END = "<!-- failure modes: made by `labkit lessons` -->", "<!-- end of failure modes -->"
DIFFICULTIES = ("easy", "medium", "hard")
STUB = "pass  # YOUR CODE HERE"  # runs, and shows nothing: a lesson can be run to its end before anything is filled in
CHECK = re.compile(r'labkit\.check\("(?P<id>\d\d\.\d+)", (?P<answer>.+)\)')  # a cell with a check has nothing else
HEAD = re.compile(r"# (?P<number>\d\d) (?P<title>.+)\n\n\*\*(?P<minutes>\d+) minutes · (?P<difficulty>\w+)\*\*")
TIMEOUT = 600  # seconds for one cell: four times the whole of a lesson on a slow machine

# --- all of it ---


def renew(root: Path, check: bool = False) -> list[Path]:
    """Make the generated files anew; returns those that were, or with `check` would be, changed.

    The tables come first: they need no nbgrader.
    """
    changed = [path for path, text in tables(root).items() if _put(path, text, check)]
    repository = repository_url(root)
    for path in solutions(root):
        source = with_own_cells(read(path), path, repository)
        changed += [path] if _put(path, as_text(source), check) else []
        student = root / "notebooks" / path.name
        changed += [student] if _put(student, as_text(student_version(source, student, repository)), check) else []
    return changed


def tables(root: Path) -> dict[Path, str]:
    made = {root / README: renewed((root / README).read_text(encoding="utf-8"))}
    if solutions(root):
        made[root / SYLLABUS] = syllabus(root)
    return made


def _put(path: Path, text: str, check: bool) -> bool:
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    if not check:
        with written_whole(path) as stream:
            stream.write(text.encode())
    return True


# --- the README's table of failure modes ---


def renewed(text: str) -> str:
    """A text with its generated part made anew."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise RecipeError(f"{README} has no place for the failure modes: expected the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n{failure_table()}\n{END}{after}"


def failure_table() -> str:
    """One row per failure mode, by topic."""
    lines = ["| mode | what is changed in the healthy twin | what it looks like |", "|---|---|---|"]
    topic = None
    for mode in FAILURES.values():
        if mode.topic != topic:
            topic = mode.topic
            lines.append(f"| **{topic.replace('_', ' ')}** | | |")
        lines.append(f"| `{mode.name}` | {_cell(_changed(mode))} | {_cell(mode.symptom)} |")
    return "\n".join(lines)


def _changed(mode: FailureMode) -> str:
    return changes_in_words(mode.sick, mode.healthy)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


# --- the syllabus ---


def syllabus(root: Path) -> str:
    """The page that lists the lessons: how long, how hard, which failures, instruments and exercises."""
    rows = [_row(path, read(path)) for path in solutions(root)]
    return "\n".join(
        [
            "# The course",
            "",
            "Made by `labkit lessons`. As handed out, most lessons run from top to bottom in about 20 seconds and the "
            "longest (11) in about 45; solved, in 15 to 55 (two at a time on two cores of an AMD EPYC, torch 2.13, no "
            "GPU, no network). The answers are in [solutions](../solutions), with pictures and numbers.",
            "",
            "| lesson | minutes | difficulty | failures met | instruments and tools | exercises (kind, points) |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _row(path: Path, notebook) -> str:
    from labkit.course.exercises import EXERCISES

    head, code = head_of(notebook, path), "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    exercises = EXERCISES.of(head["number"])
    met = sorted({*failures_in(code), *(mode for each in exercises for mode in each.modes)})  # no order tells a key
    columns = [
        f"[{head['number']} {head['title']}]({path.name})",
        head["minutes"],
        head["difficulty"],
        ", ".join(f"`{name}`" for name in met),
        ", ".join(f"`{name}`" for name in instruments_in(code)),
        "; ".join(f"{each.title} ({each.kind}, {each.points})" for each in exercises),
    ]
    return f"| {' | '.join(map(_cell, columns))} |"


def failures_in(code: str) -> set[str]:
    """The failure modes that a lesson's code names."""
    return set(re.findall(r'"(\w+)"', code)) & set(FAILURES)


def instruments_in(code: str) -> list[str]:
    """The traces a lesson reads or draws and the tools it uses, in the order of the lesson."""
    traces = {each.trace for each in RANGES} | {mode.shows for mode in FAILURES.values()}
    tools = {name for name, home in _HOME.items() if home.startswith("tools.")} | {"checkup", "watch"}
    found = re.findall(r'"(\w+)"|labkit\.(\w+)\(|labkit\.tools(?:\.| import )(\w+)', code)
    named = dict.fromkeys(
        trace if trace in traces else (tool if tool in tools else part) for trace, tool, part in found
    )
    return [name for name in named if name]


# --- notebooks: reading, their own cells, writing ---


def solutions(root: Path, wanted: list[str] | None = None) -> list[Path]:
    """The lessons as written; `wanted` are beginnings of their names, such as 06."""
    paths = sorted((root / "solutions").glob("[0-9][0-9]_*.ipynb"))
    for name in wanted or []:
        if not any(path.name.startswith(name) for path in paths):
            raise RecipeError(f"there is no lesson {name!r} in solutions/. {near(name, [path.stem for path in paths])}")
    return [path for path in paths if not wanted or path.name.startswith(tuple(wanted))]


def read(path: Path):
    return nbformat.read(path, as_version=4)


def as_text(notebook) -> str:
    """As it is stored: always the same bytes for the same notebook."""
    nbformat.validate(notebook)
    return nbformat.writes(notebook) + "\n"


def head_of(notebook, path: Path) -> dict[str, str]:
    """Number, title, minutes and difficulty, which stand in the first cell."""
    found = HEAD.match(notebook.cells[0].source) if notebook.cells else None
    if not found or found["difficulty"] not in DIFFICULTIES or not path.name.startswith(found["number"]):
        raise RecipeError(
            f"{path}: expected a first cell '# {path.name[:2]} Title', an empty line and "
            f"'**25 minutes · {' or '.join(DIFFICULTIES)}**'"
        )
    return found.groupdict()


def with_own_cells(notebook, path: Path, repository: str):
    """A lesson with the two cells after its title that are the same in all: links, and the cell for Colab."""
    head_of(notebook, path)
    notebook = copy.deepcopy(notebook)
    rest = [cell for cell in notebook.cells[1:] if cell.id not in ("links", "setup")]
    links = nbformat.v4.new_markdown_cell(links_of(path, repository), id="links")
    old = next((cell for cell in notebook.cells if cell.id == "setup"), None)
    setup = nbformat.v4.new_code_cell(setup_code(repository), id="setup")
    if old:
        setup.execution_count = old.execution_count
    notebook.cells = [notebook.cells[0], links, setup, *rest]
    return normalised(notebook)


def links_of(path: Path, repository: str) -> str:
    """Where else to go from here; badges, where the repository has an address."""
    if path.parent.name == "solutions":
        parts = [f"[the lesson without answers](../notebooks/{path.name})", "[all lessons](../notebooks/README.md)"]
    else:
        parts = ["[all lessons](README.md)", f"[the same with answers](../solutions/{path.name})"]
    return " · ".join([*badges(repository, f"{path.parent.name}/{path.name}"), *parts])


def badges(repository: str, path: str) -> list[str]:
    """Links that open a notebook on Binder and, from GitHub, on Colab; none while nobody knows the address."""
    if not repository:
        return []
    place = urlsplit(repository).path.strip("/").removesuffix(".git")
    on_github = urlsplit(repository).netloc == "github.com"
    binder = f"gh/{place}" if on_github else f"git/{quote(repository, safe='')}"
    made = [f"[open on Binder](https://mybinder.org/v2/{binder}/HEAD?labpath={quote(path, safe='')})"]
    if on_github:
        made.insert(0, f"[open in Colab](https://colab.research.google.com/github/{place}/blob/HEAD/{path})")
    return made


def setup_code(repository: str) -> str:
    """The first code of every lesson: installs the lab where it is not, which is on Colab.

    Without its dependencies: Colab has torch and all that a lesson needs, and the pins of Colab's own kernel would be
    broken by ours.
    """
    address = f'"{repository}"' if repository else 'input("Address of the repository you opened this from: ")'
    return f"""\
# In a clone and on Binder there is nothing to do here. On Colab this installs the lab.
import importlib.util
from pathlib import Path

if importlib.util.find_spec("labkit") is None:
    if Path("../pyproject.toml").exists():
        raise ModuleNotFoundError("this kernel has no labkit: open the course with `make lab`")
    address = {address}
    %pip install --quiet --no-deps "failure-mode-labkit @ git+{{address}}\""""


def repository_url(root: Path) -> str:
    """The address in pyproject.toml, [project.urls] Repository; empty while there is none."""
    path = root / "pyproject.toml"
    project = tomllib.loads(path.read_text(encoding="utf-8"))["project"] if path.exists() else {}
    return project.get("urls", {}).get("Repository", "")


# --- running ---


def run(root: Path, wanted: list[str] | None = None) -> list[Path]:
    """Execute solutions and keep their outputs; a lesson that fails or complains is not written."""
    paths, repository = solutions(root, wanted), repository_url(root)
    for path in paths:
        text = as_text(executed(with_own_cells(read(path), path, repository), path))
        with written_whole(path) as stream:
            stream.write(text.encode())
    return paths


def executed(notebook, path: Path):
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    place = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, timeout=TIMEOUT, kernel_name="python3", record_timing=False, resources=place)
    try:
        client.execute(env=os.environ | {"TQDM_DISABLE": "1"})
    except CellExecutionError as error:
        raise RecipeError(f"{path}: {error}") from None
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                raise RecipeError(f"{path}: cell {cell.id!r} writes to stderr: {output.text}")
    return normalised(notebook)


OF_THIS_MACHINE = "this-machine"  # a tag: what the cell shows is different everywhere, and is not kept
WIDGET = "application/vnd.jupyter.widget-view+json"


def normalised(notebook):
    """Without what differs from run to run or from machine to machine."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = nbformat.from_dict({"kernelspec": kernel, "language_info": {"name": "python"}})
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if OF_THIS_MACHINE in cell.metadata.get("tags", []):
            cell.outputs = []
        if cell.cell_type == "code":
            cell.outputs = _streams_joined(cell.outputs)
        for output in cell.get("outputs", []):
            if WIDGET in output.get("data", {}):  # its model lives in a kernel: a page can only say that it was there
                output.data = nbformat.from_dict({"text/plain": "(a panel with knobs: run this cell to turn them)"})
    return notebook


def _streams_joined(outputs: list) -> list:
    """What a cell printed in one piece: how it was cut depends on how fast it came."""
    joined = []
    for output in outputs:
        before = joined[-1] if joined else {}
        if output.output_type == "stream" and output.name == before.get("name"):
            before.text += output.text
        else:
            joined.append(output)
    return joined


# --- what students are given ---


def student_version(source, path: Path, repository: str):
    """A lesson without solutions, outputs and hidden tests, by nbgrader's own steps."""
    notebook = graded(source)
    for step in _nbgrader_steps():
        notebook, _ = step.preprocess(notebook, {})
    for cell in notebook.cells:
        tags = [
            tag for tag in cell.metadata.pop("tags", []) if tag != "nbval-check-output"
        ]  # no output to compare with
        if cell.metadata.get("nbgrader", {}).get("solution"):
            tags.append("raises-exception")  # half an answer must not keep the rest of the lesson from running
        if tags:
            cell.metadata["tags"] = tags
    return with_own_cells(notebook, path, repository)


def graded(source):
    """A solution with nbgrader's marks: solution cells, and checks with the hidden assertion that gives the points."""
    from labkit.course.exercises import EXERCISES

    notebook = copy.deepcopy(source)
    for cell in notebook.cells:
        found = CHECK.fullmatch(cell.source.strip()) if cell.cell_type == "code" else None
        if found:
            points = EXERCISES[found["id"]].points
            cell.source = "\n".join([found[0], "### BEGIN HIDDEN TESTS", f"assert {found[0]}", "### END HIDDEN TESTS"])
            cell.metadata["nbgrader"] = _marks(f"check-{found['id']}", grade=True, locked=True, points=points)
        elif "### BEGIN SOLUTION" in cell.source:
            cell.metadata["nbgrader"] = _marks(f"answer-{cell.id}", solution=True)
    return notebook


def _marks(name: str, *, grade=False, locked=False, solution=False, **points) -> dict:
    marks = {"schema_version": 3, "grade_id": name.replace(".", "-"), "task": False, **points}
    return marks | {"grade": grade, "locked": locked, "solution": solution}


def _nbgrader_steps() -> list:
    try:
        from nbgrader import preprocessors as steps
    except ModuleNotFoundError:
        raise RecipeError(
            "student notebooks are made with nbgrader, which is not installed here. "
            "Install it with: pip install -e '.[instructor]' -c constraints.txt"
        ) from None
    clear = steps.ClearSolutions(code_stub={"python": STUB})
    return [
        steps.LockCells(),
        clear,
        steps.ClearOutput(),
        steps.CheckCellMetadata(),
        steps.ClearHiddenTests(),
        steps.ComputeChecksums(),
    ]


# --- a course for nbgrader itself ---

CONFIGURATION = f"""\
# Made by `labkit lessons --nbgrader`. Next: nbgrader generate_assignment LESSON; later nbgrader autograde LESSON.
c = get_config()
c.CourseDirectory.course_id = "labkit"
c.ClearSolutions.code_stub = {{"python": {STUB!r}}}
c.ExecutePreprocessor.timeout = {TIMEOUT}
"""


def course(root: Path, folder: Path) -> list[Path]:
    """A course directory as nbgrader wants it: one assignment per lesson, of one notebook."""
    made = {} if (folder / "nbgrader_config.py").exists() else {folder / "nbgrader_config.py": CONFIGURATION}
    for path in solutions(root):
        notebook = graded(with_own_cells(read(path), path, repository_url(root)))
        notebook.cells = [cell for cell in notebook.cells if cell.id != "links"]  # they lead nowhere from there
        made[folder / "source" / path.stem / path.name] = as_text(notebook)
    return [path for path, text in made.items() if _put(path, text, check=False)]
