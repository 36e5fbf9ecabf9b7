"""Every lesson in a real JupyterLab, as a student opens it for the first time: it runs from top to bottom."""

import shutil
from pathlib import Path

import browser
import pytest

from labkit.course.checks import EXERCISES

LESSONS = sorted((browser.ROOT / "notebooks").glob("*.ipynb"))
A_LESSON = 600  # seconds until a lesson is called stuck: many times what it takes, for busy machines
# Of every panel on the page: does its chart have points, and does it take up room? It came while its cell was out of
# sight, and JupyterLab may take a cell that is out of sight off the page again.
CHARTS = """() => [...document.querySelectorAll(".labkit-picture")].filter(each => each.style.display !== "none").map(
    each => {
        const canvas = each.querySelector("canvas");
        if (!canvas) return each.outerHTML.slice(0, 300);
        return canvas.clientWidth > 150 && canvas.clientHeight > 100 && Number(canvas.dataset.points) > 0;
    })"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(bool(browser.missing()), reason=browser.missing() or "-"),
]


@pytest.fixture(scope="module")
def jupyter(tmp_path_factory):
    """A server on a copy of the course, so that nothing is changed in this one."""
    folder = tmp_path_factory.mktemp("course")
    shutil.copytree(browser.ROOT / "notebooks", folder / "notebooks")
    with browser.labkit_server("lab", folder, str(folder / "notebooks")) as server:
        yield server


@pytest.fixture
def course(jupyter):
    yield jupyter
    jupyter.end_kernels()


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_runs_without_traceback_warning_or_complaint(chromium, course, path: Path):
    with browser.open_page(chromium, browser.in_lab(course, path.name)) as page:
        browser.run_all(page, course, path.name, patience=A_LESSON)
        assert page.locator(browser.TRACEBACK).all_text_contents() == []
        assert page.locator(browser.STDERR).all_text_contents() == []
        feedback = "".join(page.locator(".jp-OutputArea-output").all_text_contents())
        for exercise in EXERCISES.of(path.name[:2]):
            states = ("not attempted", *["not yet"] * (exercise.kind == "loop"))  # a broken loop is handed out
            assert any(f"{state} · {exercise.id} " in feedback for state in states), exercise.id
        browser.wait_for(
            lambda: all(drawn is True for drawn in page.evaluate(CHARTS)),
            "a chart in every panel",
            detail=lambda: (page.evaluate(CHARTS), page.locator(".labkit-panel [role=status]").all_text_contents()),
        )
        assert page.complaints.heard == []
