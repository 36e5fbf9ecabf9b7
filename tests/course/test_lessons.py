"""What `labkit lessons` makes: up to date, the same bytes each time, nothing given away, and accepted by nbgrader."""

import builtins
import importlib.util
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from helpers import ROOT

from labkit.cli import main as __main__
from labkit.course import notebooks
from labkit.errors import MissingExtra, RecipeError

needs_nbgrader = pytest.mark.skipif(
    importlib.util.find_spec("nbgrader") is None, reason="nbgrader is not installed (the extra `instructor`)"
)


def cell(source: str, *tags: str, id: str = "one"):
    metadata = {"tags": list(tags)} if tags else {}
    return nbformat.v4.new_code_cell(source, id=id, metadata=metadata)


HEAD = "# 06 A made-up lesson\n\n**5 minutes · easy**"
SOLVED = """\
def dead_share(outputs):
    ### BEGIN SOLUTION
    return (outputs == 0).all(0).float().mean().item()
    ### END SOLUTION"""


def made_up(*cells):
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(HEAD, id="head"), *cells])


@pytest.fixture
def small(tmp_path):
    """A repository with one lesson of four cells."""
    (tmp_path / "solutions").mkdir()
    cells = [
        cell("import labkit", id="import"),
        cell(SOLVED, id="solved"),
        cell('labkit.check("06.1", dead_share)', "nbval-check-output", id="check"),
        cell('print(labkit.FAILURES["dead_relu"].title, "lr")\nlabkit.dead_units', id="look"),
    ]
    nbformat.write(made_up(*cells), tmp_path / "solutions/06_made_up.ipynb")
    return tmp_path


# --- the syllabus ---


@needs_nbgrader
def test_everything_in_the_repository_is_up_to_date():
    assert notebooks.regenerate(ROOT, check=True) == [], "regenerate it with `labkit lessons`"


def test_the_syllabus_is_up_to_date():
    path = ROOT / notebooks.SYLLABUS
    assert path.read_text(encoding="utf-8") == notebooks.syllabus(ROOT), "regenerate it with `labkit lessons`"


def test_the_syllabus_has_one_row_per_lesson_read_from_the_lesson(small):
    [row] = [line for line in notebooks.syllabus(small).splitlines() if "made-up" in line]
    columns = [column.strip() for column in row.strip("|").split("|")]
    assert columns[:3] == ["[06 A made-up lesson](06_made_up.ipynb)", "5", "easy"]
    met = columns[3].replace("`", "").split(", ")
    assert met == sorted(met) and {"dead_relu", "partly_dead_layer"} <= set(met)
    assert "The share of dead units (build, 2)" in columns[5]


def test_instruments_are_read_from_the_code():
    code = 'run["dead"]; plot(run, "lr"); run["sick"]; labkit.find_lr(x); labkit.train(y); import labkit.tools.numerics'
    assert notebooks.instruments_in(code) == ["dead", "lr", "find_lr", "numerics"]


def test_no_column_of_the_syllabus_is_empty():
    rows = [line for line in notebooks.syllabus(ROOT).splitlines() if ".ipynb)" in line]
    assert len(rows) == len(notebooks.solutions(ROOT))
    for row in rows:
        assert all(column.strip() for column in row.strip("|").split("|")), row


# --- deriving ---


@needs_nbgrader
def test_deriving_twice_gives_the_same_bytes(small):
    first = notebooks.regenerate(small)
    names = {"notebooks/README.md", "notebooks/06_made_up.ipynb", "solutions/06_made_up.ipynb"}
    assert {path.relative_to(small).as_posix() for path in first} == names
    before = {path: path.read_bytes() for path in first}
    shutil.rmtree(small / "notebooks")
    assert notebooks.regenerate(small) == [small / "notebooks/README.md", small / "notebooks/06_made_up.ipynb"]
    assert before == {path: path.read_bytes() for path in first}
    assert notebooks.regenerate(small) == []


@needs_nbgrader
def test_a_student_gets_stubs_and_no_answers(small):
    notebooks.regenerate(small)
    text = (small / "notebooks/06_made_up.ipynb").read_text(encoding="utf-8")
    assert "outputs == 0" not in text and "assert" not in text and "nbval-check-output" not in text
    cells = {each.id: each for each in notebooks.read(small / "notebooks/06_made_up.ipynb").cells}
    assert cells["solved"].source == f"def dead_share(outputs):\n    {notebooks.STUB}"
    assert cells["solved"].metadata.tags == ["raises-exception"]
    assert cells["check"].source == 'labkit.check("06.1", dead_share)'
    assert cells["check"].metadata.nbgrader.points == 2


def with_a_prediction_and_a_test(small: Path) -> None:
    path = small / "solutions/06_made_up.ipynb"
    notebook = notebooks.read(path)
    notebook.cells += [
        cell('labkit.predict("06.0", 3)', id="choice"),
        cell('labkit.predict("06.0b", 12); labkit.predict("06.0")', id="answer"),
        cell("tested = 40 + 2", "test-only", id="tested"),
    ]
    nbformat.write(notebook, path)


@needs_nbgrader
def test_a_student_chooses_and_gets_no_cell_that_only_tests(small):
    with_a_prediction_and_a_test(small)
    notebooks.regenerate(small)
    cells = {each.id: each.source for each in notebooks.read(small / "notebooks/06_made_up.ipynb").cells}
    assert cells["choice"] == 'labkit.predict("06.0", ...)'
    assert cells["answer"] == 'labkit.predict("06.0b", ...); labkit.predict("06.0")'
    assert "tested" not in cells
    solved = {each.id: each.source for each in notebooks.read(small / "solutions/06_made_up.ipynb").cells}
    assert solved["choice"] == 'labkit.predict("06.0", 3)' and solved["tested"] == "tested = 40 + 2"


def test_what_nbgrader_releases_has_no_choice_and_no_cell_that_only_tests(small):
    with_a_prediction_and_a_test(small)
    notebooks.course(small, small / "course")
    cells = {each.id: each.source for each in notebooks.read(small / "course/source/06_made_up/06_made_up.ipynb").cells}
    assert cells["choice"] == 'labkit.predict("06.0", ...)' and "tested" not in cells


@needs_nbgrader
def test_a_changed_student_notebook_is_found(small):
    notebooks.regenerate(small)
    path = small / "notebooks/06_made_up.ipynb"
    path.write_text(path.read_text(encoding="utf-8").replace("made-up", "edited"), encoding="utf-8")
    assert notebooks.regenerate(small, check=True) == [path]
    assert notebooks.regenerate(small) == [path]


def test_without_nbgrader_the_tables_are_made_and_the_rest_says_what_to_install(small, monkeypatch):
    monkeypatch.setitem(sys.modules, "nbgrader", None)
    monkeypatch.setitem(sys.modules, "nbgrader.preprocessors", None)
    with pytest.raises(MissingExtra, match=r'nbgrader.*pip install -e "\.\[instructor\]" -c constraints\.txt'):
        notebooks.regenerate(small)
    assert "06 A made-up lesson" in (small / "notebooks/README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("head", ["# A lesson", "# 07 Other\n\n**5 minutes · easy**", "# 06 X\n\n**5 minutes · cosy**"])
def test_a_lesson_without_its_head_is_told_what_is_expected(small, head):
    notebook = made_up()
    notebook.cells[0].source = head
    with pytest.raises(RecipeError, match=r"expected a first cell '# 06 Title'"):
        notebooks.head_of(notebook, small / "solutions/06_made_up.ipynb")


def test_an_unknown_lesson_suggests_the_nearest(small):
    with pytest.raises(RecipeError, match=r"no lesson '06_made_ip'.*Did you mean '06_made_up'"):
        notebooks.solutions(small, ["06_made_ip"])
    assert len(notebooks.solutions(small, ["06"])) == 1


# --- links, Colab, Binder ---


def test_badges_come_with_an_address_and_only_then():
    assert notebooks.badges("", "notebooks/06_x.ipynb") == []
    colab, binder = notebooks.badges("https://github.com/some/lab.git", "notebooks/06_x.ipynb")
    assert "(https://colab.research.google.com/github/some/lab/blob/HEAD/notebooks/06_x.ipynb)" in colab
    assert "(https://mybinder.org/v2/gh/some/lab/HEAD?labpath=notebooks%2F06_x.ipynb)" in binder
    [binder] = notebooks.badges("https://git.example.org/lab", "notebooks/06_x.ipynb")
    assert "/v2/git/https%3A%2F%2Fgit.example.org%2Flab/HEAD" in binder


def test_the_address_is_that_of_pyproject(tmp_path):
    assert notebooks.repository_url(tmp_path) == ""
    (tmp_path / "pyproject.toml").write_text('[project.urls]\nRepository = "https://git.example.org/lab"\n')
    assert notebooks.repository_url(tmp_path) == "https://git.example.org/lab"


@pytest.mark.parametrize("address", ["", "https://git.example.org/known"])
@pytest.mark.parametrize("present", [True, False])
def test_the_first_code_installs_the_lab_only_where_it_is_missing(monkeypatch, tmp_path, present, address):
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.chdir(tmp_path)
    shell, asked = InteractiveShell(), []
    shell.register_magic_function(asked.append, "line", "pip")
    ordinary = importlib.util.find_spec
    labkits = {"labkit": object() if present else None}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: labkits[name] if name in labkits else ordinary(name))
    monkeypatch.setattr(builtins, "input", lambda question: "https://git.example.org/typed")
    result = shell.run_cell(notebooks.setup_code(address))
    result.raise_error()
    wanted = address or "https://git.example.org/typed"
    assert asked == ([] if present else [f'install --quiet --no-deps "failure-mode-labkit @ git+{wanted}"'])


def test_in_a_clone_nothing_is_downloaded_even_with_a_foreign_kernel(monkeypatch):
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.chdir(ROOT / "notebooks")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="this kernel has no labkit: open the course with `make lab`"):
        InteractiveShell().run_cell(notebooks.setup_code("")).raise_error()


# --- running ---


def test_normalising_keeps_what_is_the_same_everywhere():
    notebook = made_up(cell("panel"), cell("where()", "this-machine", id="two"))
    notebook.metadata = {"widgets": {"state": 1}, "language_info": {"version": "3.11.9", "name": "python"}}
    view = {notebooks.WIDGET: {"model_id": "abc"}, "text/plain": "VBox(children=(FloatSlider(...),))"}
    notebook.cells[1].outputs = [nbformat.v4.new_output("display_data", view)]
    notebook.cells[1].metadata["execution"] = {"iopub.execute_input": "2020-01-01"}
    notebook.cells[2].outputs = [nbformat.v4.new_output("stream", text="on this very machine")]
    text = json.dumps(notebooks.normalised(notebook))
    for gone in ("abc", "VBox", "3.11.9", "state", "2020", "on this very machine"):
        assert gone not in text
    assert "an interactive panel" in text


def test_of_a_panel_its_picture_is_kept_with_its_status_line_as_alt_text():
    notebook = made_up(cell("panel"))
    view = {notebooks.WIDGET: {"model_id": "abc"}, "text/plain": 'Your run: "30" steps.', "image/png": "iVBOR"}
    notebook.cells[1].outputs = [nbformat.v4.new_output("display_data", view)]
    first = json.dumps(notebooks.normalised(notebook))
    [output] = notebook.cells[1].outputs
    assert 'src="data:image/png;base64,iVBOR"' in output.data["text/html"] and "image/png" not in output.data
    assert 'alt="Your run: &quot;30&quot; steps. (an interactive panel' in output.data["text/html"]
    assert json.dumps(notebooks.normalised(notebook)) == first and "abc" not in first


@pytest.mark.slow
def test_a_panel_in_a_lesson_that_is_run_waits_for_its_picture(small):
    path = small / "solutions/06_panel.ipynb"
    panel = 'import labkit\nlabkit.knobs(labkit.FAILURES["learning_rate_too_high"].sick.but(steps=40))'
    nbformat.write(made_up(cell(panel)), path)
    notebooks.run(small, ["06_panel"])
    [output] = notebooks.read(path).cells[-1].outputs
    assert 'src="data:image/png;base64,iVBOR' in output.data["text/html"]
    assert "steps" in output.data["text/plain"]


def test_what_was_printed_is_kept_in_one_piece_however_it_came():
    notebook = made_up(cell("print(1); print(2); picture"))
    one, two, three = (nbformat.v4.new_output("stream", text=f"{number}\n") for number in (1, 2, 3))
    picture = nbformat.v4.new_output("display_data", {"text/plain": "x"})
    notebook.cells[1].outputs = [one, two, picture, three]
    kept = notebooks.normalised(notebook).cells[1].outputs
    assert [output.get("text") for output in kept] == ["1\n2\n", None, "3\n"]


def test_running_keeps_outputs_and_refuses_complaints(small):
    path = small / "solutions/06_quiet.ipynb"
    nbformat.write(made_up(cell("print(6 * 7)")), path)
    assert notebooks.run(small, ["06_quiet"]) == [path]
    [links, setup, printed] = notebooks.read(path).cells[1:]
    assert (links.id, setup.execution_count) == ("links", 1)
    assert printed.outputs[0].text == "42\n" and printed.execution_count == 2
    before = path.read_bytes()
    notebooks.run(small, ["06_quiet"])
    assert path.read_bytes() == before
    for bad, words in [("import sys; print('oh', file=sys.stderr)", "writes to stderr: oh"), ("1 / 0", "ZeroDivision")]:
        nbformat.write(made_up(cell(bad)), path)
        before = path.read_bytes()
        with pytest.raises(RecipeError, match=words):
            notebooks.run(small, ["06_quiet"])
        assert path.read_bytes() == before


# --- the command ---


def test_the_command_checks_runs_and_exports(small, monkeypatch, capsys):
    pytest.importorskip("nbgrader")
    monkeypatch.chdir(small)
    assert __main__.main(["lessons", "--check"]) == 1
    assert "regenerate it with `labkit lessons`" in capsys.readouterr().out
    assert __main__.main(["lessons"]) == 0
    assert __main__.main(["lessons", "--check"]) == 0
    assert __main__.main(["lessons", "--run", "07"]) == 2
    assert "there is no lesson '07'" in capsys.readouterr().err
    assert __main__.main(["lessons", "--nbgrader", "course"]) == 0
    assert (small / "course/source/06_made_up/06_made_up.ipynb").exists()
    (small / "course/nbgrader_config.py").write_text("# a teacher's own\n")
    assert __main__.main(["lessons", "--nbgrader", "course"]) == 0
    assert (small / "course/nbgrader_config.py").read_text() == "# a teacher's own\n"
    with pytest.raises(SystemExit):
        __main__.main(["lessons", "--check", "--nbgrader", "course"])
    assert "not allowed with argument" in capsys.readouterr().err


# --- nbgrader itself ---


def nbgrader(course: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "nbgrader", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # nbgrader calls alembic
    done = subprocess.run(command, cwd=course, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def hand_in(course: Path, student: str, name: str, answers: dict[str, str]) -> None:
    """The released notebook with these answers in its cells, where a student hands it in."""
    notebook = notebooks.read(course / "release" / name / f"{name}.ipynb")
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("solution"):
            cell.source = answers.get(cell.id, cell.source)
    path = course / "submitted" / student / name / f"{name}.ipynb"
    path.parent.mkdir(parents=True)
    nbformat.write(notebook, path)


def scores(course: Path) -> dict[str, dict[str, float]]:
    """student -> {name of the graded cell: points}, from nbgrader's own gradebook."""
    query = (
        "select submitted_assignment.student_id, base_cell.name, grade.auto_score from grade "
        "join base_cell on base_cell.id = grade.cell_id "
        "join submitted_notebook on submitted_notebook.id = grade.notebook_id "
        "join submitted_assignment on submitted_assignment.id = submitted_notebook.assignment_id"
    )
    found: dict[str, dict[str, float]] = {}
    with sqlite3.connect(course / "gradebook.db") as gradebook:
        for student, name, score in gradebook.execute(query):
            found.setdefault(student, {})[name] = score
    return found


GRADED = ("00_start_here", "06_dead_and_saturated_units")  # with every kind of exercise between them


@pytest.mark.slow
@needs_nbgrader
def test_nbgrader_releases_every_lesson_and_gives_all_points_to_all_right_and_none_to_stubs(tmp_path):
    from labkit.course.checks import EXERCISES

    course = tmp_path / "course"
    notebooks.course(ROOT, course)
    nbgrader(course, "generate_assignment", "*")
    for path in notebooks.solutions(ROOT):
        released = (course / "release" / path.stem / path.name).read_text(encoding="utf-8")
        assert notebooks.STUB in released and "BEGIN SOLUTION" not in released and "HIDDEN TESTS" not in released
    points = {}
    for graded in GRADED:
        right = {cell.id: cell.source for cell in notebooks.read(ROOT / "solutions" / f"{graded}.ipynb").cells}
        hand_in(course, "all_right", graded, right)
        hand_in(course, "all_stubs", graded, {})
        for step in ("autograde", "generate_feedback"):
            nbgrader(course, step, graded)
        points |= {f"check-{each.id.replace('.', '-')}": each.points for each in EXERCISES.of(graded[:2])}
    nbgrader(course, "export")
    assert scores(course) == {"all_right": points, "all_stubs": dict.fromkeys(points, 0)}
    assert len(list((course / "feedback").rglob("*.html"))) == 2 * len(GRADED)
    assert "all_right" in (course / "grades.csv").read_text(encoding="utf-8")
