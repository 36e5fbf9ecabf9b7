"""Every lesson, solved and unsolved: the rhythm, the exercises, the stubs, the outputs, and nothing given away."""

import ast
import re
from pathlib import Path

import nbformat
import pytest
from helpers import ROOT

import labkit
from labkit.course import notebooks
from labkit.course.checks import EXERCISES, lesson_predictions

SOLUTIONS = notebooks.solutions(ROOT)
STUDENTS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PAGES = sorted({*ROOT.glob("*.md"), *(page for page in ROOT.glob("[a-z]*/**/*.md"))})
RHYTHM = (
    "What you will be able to do",
    "Predict",
    "Run",
    "Look",
    "Turn a knob",
    "Cure it",
    "Interview questions",
    "Further reading",
)
LONGEST_CELL = 20  # lines of code; a reader should see a cell and its output at once. Solutions may be longer
LONGEST_LINE = 100  # characters; beyond that a page scrolls sideways

every_solution = pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: path.stem)
every_student = pytest.mark.parametrize("path", STUDENTS, ids=lambda path: path.stem)
every_notebook = pytest.mark.parametrize(
    "path", SOLUTIONS + STUDENTS, ids=lambda path: f"{path.parent.name}-{path.stem}"
)


def code_cells(path: Path) -> list:
    return [cell for cell in notebooks.read(path).cells if cell.cell_type == "code"]


def prose(path: Path) -> str:
    return "\n".join(cell.source for cell in notebooks.read(path).cells if cell.cell_type == "markdown")


def tags(cell) -> list[str]:
    return cell.metadata.get("tags", [])


def solved_part(source: str) -> list[str]:
    """The lines between the marks of a solution."""
    parts = re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", source, re.DOTALL)
    return [line.strip() for part in parts for line in part.splitlines() if line.strip()]


def without_solutions(source: str) -> str:
    return re.sub(r"### BEGIN SOLUTION.*?### END SOLUTION", "", source, flags=re.DOTALL)


def handed_out(source: str) -> list[str]:
    """The lines that a student edits: what stands outside the marks in a cell with a solution."""
    return without_solutions(source).splitlines() if "### BEGIN SOLUTION" in source else []


# --- both ---


def test_every_solution_has_its_lesson_and_the_other_way_round():
    assert [path.name for path in SOLUTIONS] == [path.name for path in STUDENTS]


@every_notebook
def test_a_notebook_is_valid_and_stored_as_we_store_it(path):
    notebook = notebooks.read(path)
    nbformat.validate(notebook)
    assert notebooks.as_text(notebook) == path.read_text(encoding="utf-8")
    assert notebooks.as_text(notebooks.normalised(notebook)) == path.read_text(encoding="utf-8"), (
        "run `labkit lessons --run`"
    )
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)


@every_notebook
def test_a_lesson_has_all_parts_of_the_rhythm_in_their_order(path):
    headings = re.findall(r"^## (.+)$", prose(path), re.MULTILINE)
    places = [next((i for i, each in enumerate(headings) if each.startswith(part)), None) for part in RHYTHM]
    assert None not in places, f"missing: {[part for part, place in zip(RHYTHM, places, strict=True) if place is None]}"
    assert places == sorted(places)


@every_notebook
def test_a_lesson_has_minutes_and_a_difficulty(path):
    head = notebooks.head_of(notebooks.read(path), path)
    assert 5 <= int(head["minutes"]) <= 90


@every_notebook
def test_answers_to_questions_are_folded_away(path):
    text = prose(path).split("## Interview questions")[1]
    questions, answers = re.findall(r"^\*\*.+\?.*\*\*$", text, re.MULTILINE), text.count("<details><summary>")
    assert answers == text.count("</details>") >= 1
    assert len(questions) == answers


@every_notebook
def test_cells_are_short(path):
    for cell in code_cells(path):
        shown = re.sub(r"### BEGIN SOLUTION.*?### END SOLUTION", "", cell.source, flags=re.DOTALL).splitlines()
        assert len(shown) <= LONGEST_CELL, cell.id
        assert max(map(len, cell.source.splitlines())) <= LONGEST_LINE, cell.id


@every_notebook
def test_links_within_the_repository_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)]+)\)", prose(path)):
        if not re.match(r"https?://", target):
            assert (path.parent / target.split("#")[0]).exists(), target


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_of_the_other_pages_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
        if not re.match(r"https?://", target):
            assert (path.parent / target.split("#")[0]).exists(), target


@every_notebook
def test_every_compared_cell_has_something_to_compare(path):
    for cell in code_cells(path):
        if "nbval-check-output" in tags(cell):
            assert cell.execution_count and cell.outputs, f"{cell.id}: run `labkit lessons --run`"


# --- solutions ---


@every_solution
def test_a_lesson_has_at_least_three_exercises_and_checks_each_once(path):
    ids = [found["id"] for cell in code_cells(path) if (found := notebooks.CHECK.fullmatch(cell.source))]
    assert ids == [each.id for each in EXERCISES.of(path.name[:2])]
    assert len(ids) >= 3
    kinds = {each.kind for each in EXERCISES.of(path.name[:2])}
    assert "build" in kinds and kinds & {"cure", "loop"} and kinds & {"explain", "diagnose"}


def test_every_exercise_is_in_a_lesson():
    assert {id[:2] for id in EXERCISES} == {path.name[:2] for path in SOLUTIONS}


def test_every_failure_of_the_catalogue_is_met_in_a_lesson():
    cells = [cell.source for path in SOLUTIONS for cell in notebooks.read(path).cells]
    met = {*re.findall(r"\w+", "\n".join(cells)), *(mode for id in EXERCISES for mode in EXERCISES[id].modes)}
    assert sorted(set(labkit.FAILURES) - met) == [], "name them where they are taught"


@every_solution
def test_a_solution_passed_its_own_checks_when_it_was_run(path):
    for cell in code_cells(path):
        if notebooks.CHECK.fullmatch(cell.source):
            assert "nbval-check-output" in tags(cell), f"{cell.id}: nbval must run it again and compare"
            assert ": right" in cell.outputs[0].data["text/plain"].splitlines()[0], cell.id


@every_solution
def test_a_solution_was_run_from_top_to_bottom_without_complaint(path):
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run `labkit lessons --run`"
    for cell in cells:
        assert "raises-exception" not in tags(cell), f"{cell.id}: a broken solution would pass"
        for output in cell.outputs:
            assert output.output_type != "error" and output.get("name") != "stderr", cell.id


@every_solution
def test_outputs_hold_nothing_of_this_machine(path):
    text = "\n".join(str(output) for cell in code_cells(path) for output in cell.outputs)
    assert not re.search(r"\bat 0x[0-9a-f]{6,}|/home/|/tmp/|/root/", text)


@every_solution
def test_every_picture_has_its_words(path):
    for cell in code_cells(path):
        if any("image/png" in output.get("data", {}) for output in cell.outputs):
            assert any(output.output_type == "stream" for output in cell.outputs), (
                f"{cell.id}: give the picture its words with `plots.described`, or print what is to be seen"
            )


@every_solution
def test_every_prediction_is_asked_before_it_is_answered_and_the_lesson_chooses_right(path):
    source = "\n".join(cell.source for cell in code_cells(path))
    calls = re.findall(r'labkit\.predict\("(\d\d\.0[a-z]?)"(?:, (\d+))?\)', source)
    known = lesson_predictions(path.name[:2])
    assert {id for id, _ in calls} == set(known)
    for id, asked in known.items():
        assert [choice for each, choice in calls if each == id] == [str(asked.correct), ""], id


# --- what students get ---


@every_student
def test_a_student_gets_no_outputs_and_no_answers(path):
    assert not any(cell.outputs or cell.execution_count for cell in code_cells(path))
    text = path.read_text(encoding="utf-8")
    for mark in ("BEGIN SOLUTION", "END SOLUTION", "HIDDEN TESTS", "assert labkit.check"):
        assert mark not in text


@every_student
def test_a_student_chooses_and_nothing_in_the_notebook_says_what_is_right(path):
    text = "\n".join(cell.source for cell in notebooks.read(path).cells)
    for id, asked in lesson_predictions(path.name[:2]).items():
        assert f'labkit.predict("{id}", ...)' in text, id
        assert asked.why not in text, id
    assert not re.search(r'labkit\.predict\("[^"]+", (?!\.\.\.\))', text)
    assert not any(notebooks.TEST_ONLY in tags(cell) for cell in code_cells(path))


@every_student
def test_nothing_says_what_a_sealed_patient_has(path):
    assert re.findall(r"[Pp]atients? [A-H]\b.*", prose(path)) == []
    for cell in code_cells(path):  # to take one of them out for a picture of something is to name it
        assert re.findall(r"""\[["'][A-H]["']\].*""", cell.source) == [], cell.id


@every_solution
def test_no_line_of_a_solution_is_left_in_the_lesson(path):
    source = "\n".join(cell.source for cell in code_cells(path))
    lines = {line for cell in code_cells(path) for line in solved_part(cell.source) if len(line) > 12}
    elsewhere = without_solutions(source)
    given = "\n".join(cell.source for cell in notebooks.read(ROOT / "notebooks" / path.name).cells)
    assert lines, "the lesson has no solution to hide"
    assert [line for line in lines if line in given and line not in elsewhere] == []
    edited = {line.strip() for cell in code_cells(path) for line in handed_out(cell.source)}
    found = [line for line in lines - edited if len(line) > 40 and line in given]
    assert found == [], "it stands in another cell"


@every_student
def test_every_stub_is_a_stub(path):
    stubs = [cell for cell in code_cells(path) if cell.metadata.get("nbgrader", {}).get("solution")]
    solved = {cell.id: cell.source for cell in code_cells(ROOT / "solutions" / path.name)}
    assert len(stubs) >= 3
    for cell in stubs:
        assert cell.source.count(notebooks.STUB) == solved[cell.id].count("### BEGIN SOLUTION"), cell.id
        assert "raises-exception" in tags(cell), cell.id
        ast.parse(cell.source)


@every_student
def test_every_check_of_a_stub_says_not_attempted(path):
    names = {"labkit": labkit}
    for cell in code_cells(path):
        marks = cell.metadata.get("nbgrader", {})
        if marks.get("solution"):
            exec(cell.source, names)
        elif marks.get("grade"):
            id = notebooks.CHECK.fullmatch(cell.source)["id"]
            edited = EXERCISES[id].kind == "loop"  # a broken loop is handed out, and says what is wrong with it
            assert eval(cell.source, names).state in ("not attempted", *["not yet"] * edited), cell.id
    assert any(cell.metadata.get("nbgrader", {}).get("grade") for cell in code_cells(path))
