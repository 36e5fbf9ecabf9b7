"""The panels in a real browser: in JupyterLab, in Notebook 7 and on the page of `labkit play`."""

import re

import browser
import pytest

from labkit.course.ward.game import CURED, MOST, RIGHT, truth
from labkit.failures.catalogue import FAILURES
from labkit.panels.play_page import SECTIONS

NOTEBOOK = "knobs.ipynb"
PANEL = 'import labkit\n\nlabkit.knobs("learning_rate_too_high")'
# A number under the panel: how many runs have been trained to their last step.
COUNTER = """
import ipywidgets
from labkit.panels.live_view import Frames

finished = ipywidgets.IntText(description="finished")
finished.add_class("finished")
def counted(self, recorder, call=Frames.__call__):
    stop = call(self, recorder)
    finished.value += not stop and recorder.steps == self.recipe.steps
    return stop

Frames.__call__ = counted
finished
"""
# How many cells there are, and which one is active.
CELLS = """() => {
  const cells = [...document.querySelectorAll('.jp-Notebook .jp-Cell')];
  return [cells.length, cells.findIndex(cell => cell.matches('.jp-mod-active'))];
}"""
# Whether a panel and its parts need no scrolling to the side.
FITS = "panel => [panel, ...panel.children].every(part => part.scrollWidth <= part.clientWidth + 1)"
WARD, CLASS = "ward.ipynb", {"seed": 3, "patients": 1}
LONG = "learning_rate_too_high/healthy: steps=100000"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(bool(browser.missing()), reason=browser.missing() or "-"),
]
needs_voila = pytest.mark.skipif(bool(browser.missing("voila")), reason=browser.missing("voila") or "-")


@pytest.fixture(scope="module")
def jupyter(tmp_path_factory):
    """One server for JupyterLab and Notebook 7."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / "notebooks").mkdir()
    browser.write_notebook(folder / "notebooks" / NOTEBOOK, PANEL, COUNTER)
    browser.write_notebook(folder / "notebooks" / WARD, f"import labkit\n\nlabkit.ward_panel(**{CLASS})")
    with browser.labkit_server("lab", folder, str(folder / "notebooks")) as server:
        yield server


@pytest.fixture(scope="module")
def lab(chromium, jupyter):
    """The panel in JupyterLab. Tests leave it as they like: each begins with a preset or a state of its own."""
    with browser.open_page(chromium, browser.in_lab(jupyter, NOTEBOOK)) as page:
        browser.run_all(page, jupyter, NOTEBOOK)
        yield browser.Panel(page, jupyter)


@pytest.fixture(scope="module")
def played(chromium, tmp_path_factory):
    """The page of `labkit play`, at the link that it printed."""
    with browser.labkit_server("play", tmp_path_factory.mktemp("play")) as server:
        link = re.search(r"http://\S+", server.printed())[0]
        with browser.open_page(chromium, link) as page:
            yield browser.Panel(page, server)


def finished(lab) -> int:
    return int(lab.page.locator(".finished input").input_value())


# --- JupyterLab -----------------------------------------------------------------------------------


def test_the_sick_run_is_trained_drawn_and_named(lab):
    lab.press("Sick")
    lab.wait("Your run:", "Healthy: 400 steps", "Diagnosis: Learning rate too high.")
    assert lab.progress == 100
    charts = lab.charts()
    assert charts["width"] > 500 and len(charts["points"]) == 4 and min(charts["points"][:2]) > 10
    assert "What to do:" in lab.verdict


def test_a_dragged_knob_trains_a_new_run_with_a_new_picture_and_verdict(lab):
    lab.press("Sick")
    lab.wait("Diagnosis: Learning rate too high.")
    before = lab.charts()
    lab.drag("lr", 0.5)  # from 10 to the middle of the decades: about 0.1
    lab.wait("Your run: 400 steps", "Diagnosis: no failure shows.")
    assert 0.05 < float(lab.readout("lr")) < 0.2
    browser.wait_for(lambda: lab.charts()["hash"] != before["hash"], "a new chart")
    assert "No failure shows" in lab.verdict
    assert lab.progress == 100


def test_dragging_through_ten_values_leaves_one_run(lab):
    lab.press("Healthy")
    lab.wait("Diagnosis:")
    done = finished(lab)
    lab.drag("lr", *(place / 20 for place in range(4, 14)))
    browser.wait_for(lambda: finished(lab) > done, "the run of the last value")
    lab.wait("Your run: 400 steps")
    lab.press("Sick")  # remembered: a run that still waited would be done before it is shown
    lab.wait("Diagnosis: Learning rate too high.")
    assert finished(lab) == done + 1


def hover_zoom_and_reset(panel) -> None:
    """What people know from TensorBoard, on the first chart of a finished panel."""
    panel.page.mouse.move(0, 0)
    home = panel.charts()["limits"][0]
    panel.point(0.5)
    panel.tip.wait_for()
    words = panel.tip.inner_text()
    step = int(re.search(r"step (\d+)", words)[1])
    assert abs(step - 200) < 25 and "healthy" in words and "your run" in words
    panel.point(0.75)
    browser.wait_for(lambda: abs(int(re.search(r"step (\d+)", panel.tip.inner_text())[1]) - 306) < 25, "the next value")
    panel.drag_over((0.25, 0.3), (0.5, 0.31))
    browser.wait_for(lambda: panel.charts()["limits"][0] != home, "the zoom")
    low, high, *_ = panel.charts()["limits"][0]
    assert abs(low - 94) < 12 and abs(high - 200) < 12
    panel.root.get_by_role("button", name="Reset zoom").first.wait_for()
    panel.canvas.dblclick()
    browser.wait_for(lambda: panel.charts()["limits"][0] == home, "the whole run again")
    panel.drag_over((0.5, 0.2), (0.9, 0.8))  # a box: both axes
    browser.wait_for(lambda: panel.charts()["limits"][0][1:3] != home[1:3], "the zoom of both axes")
    panel.root.get_by_role("button", name="Reset zoom").first.click()
    browser.wait_for(lambda: panel.charts()["limits"][0] == home, "the whole run again")


def test_hovering_reads_values_dragging_zooms_and_a_double_click_resets(lab):
    lab.press("Healthy")
    lab.wait("Your run: 400 steps", "Diagnosis: no failure shows.")
    hover_zoom_and_reset(lab)


def test_values_are_read_and_zoomed_by_keyboard(lab):
    lab.press("Healthy")
    lab.wait("Your run: 400 steps", "Diagnosis: no failure shows.")
    home = lab.charts()["limits"][0]
    cells = lab.page.evaluate(CELLS)
    lab.canvas.focus()
    aloud = lab.root.locator(".labkit-chart-aloud").first
    lab.canvas.press("End")
    browser.wait_for(lambda: "step 400" in aloud.text_content(), "the last step")
    lab.canvas.press("ArrowLeft")
    browser.wait_for(
        lambda: re.search(r"step 399: .*healthy 0\.\d+.*your run 0\.\d+", aloud.text_content()), "its values"
    )
    lab.canvas.press("+")
    browser.wait_for(lambda: lab.charts()["limits"][0][0] > 150, "the half near the cursor")
    lab.canvas.press("Escape")
    browser.wait_for(lambda: lab.charts()["limits"][0] == home, "the whole run again")
    for key in ("ArrowDown", "ArrowLeft", "b"):  # JupyterLab would go to another cell, fold one, and make a new one
        lab.canvas.press(key)
    assert lab.page.evaluate(CELLS) == cells
    name = lab.canvas.get_attribute("aria-label")
    assert lab.canvas.get_attribute("role") == "application" and "Loss" in name and "healthy from" in name
    assert lab.canvas.get_attribute("aria-roledescription") == "chart"


def test_a_value_that_is_not_a_number_is_read_as_such(lab):
    lab.press("Sick")
    lab.wait("Diagnosis: Learning rate too high.")
    lab.point(0.9)
    browser.wait_for(lambda: re.search(r"your run\s+NaN", lab.tip.inner_text()), "NaN", detail=lab.tip.inner_text)


def test_progress_and_picture_move_while_it_trains_and_stop_ends_it(lab):
    lab.paste(LONG)
    lab.wait("Training: step", "of 100000")
    early = lab.charts()["points"], lab.progress
    browser.wait_for(lambda: lab.charts()["points"][0] > early[0][0], "the next frame")
    browser.wait_for(lambda: lab.progress > early[1], "a longer bar")
    lab.press("Stop")
    assert re.search(r"Stopped after \d+ of 100000 steps", lab.wait("Stopped after"))


def test_the_keyboard_alone_turns_runs_and_stops(lab):
    lab.paste(LONG.replace("100000", "200000"))
    lab.wait("Training: step", "of 200000")
    done, before = finished(lab), float(lab.readout("lr"))
    lab.handle("lr").focus()
    for _ in range(10):
        lab.handle("lr").press("ArrowRight")
    browser.wait_for(lambda: float(lab.readout("lr")) > 1.4 * before, "ten steps of the slider")
    # The front end holds the last value back while the kernel is busy: Stop must not overtake it.
    browser.wait_for(lambda: lab.trained_value("lr") == pytest.approx(float(lab.readout("lr")), rel=0.02), "the last")
    lab.press_by_keyboard("Stop")
    lab.wait("Stopped after")
    lab.press_by_keyboard("Run")
    lab.wait("Training: step")
    lab.press_by_keyboard("Stop")
    lab.wait("Stopped after")
    assert finished(lab) == done


def test_what_is_refused_says_why_in_the_panel(lab):
    lab.paste("learning_rate_too_high/sick: lr=-1")
    assert "lr" in lab.wait("This cannot be trained")
    assert lab.page.locator(browser.TRACEBACK).count() == 0
    lab.press("Healthy")
    lab.wait("Diagnosis: no failure shows.")


def test_every_control_has_a_name_and_the_status_a_role(lab):
    for words in ("More knobs", "Copy as code"):  # by keyboard, so that what is folded can be reached without a mouse
        lab.root.get_by_role("button", name=words).press("Enter")
        lab.page.wait_for_timeout(300)
        assert lab.complain(browser.NAMELESS) == []
    assert lab.root.locator("[role=status][aria-live=polite]").count() == 1


@pytest.mark.parametrize("theme", ["JupyterLab Dark", "JupyterLab Light"])
def test_it_can_be_read_in_both_themes_and_at_125_percent(lab, theme):
    choose_theme(lab.page, theme)
    lab.press("Sick")
    lab.wait("Diagnosis:")
    assert lab.complain(browser.PALE) == []
    bright = lab.canvas.evaluate(browser.AXIS)
    assert bright > 0.6 if theme.endswith("Dark") else bright < 0.5, (
        "the axes of the charts have the colour of the page"
    )
    for width in (1280, 1024):  # the second is what a window of 1280 has at 125 percent
        lab.page.set_viewport_size({"width": width, "height": 1400})
        assert lab.complain(browser.CUT_OFF) == []


def choose_theme(page, theme: str) -> None:
    page.locator(".lm-MenuBar-itemLabel", has_text="Settings").click()
    page.locator(".lm-Menu-itemLabel", has_text=re.compile("^Theme$")).hover()
    page.locator(".lm-Menu-itemLabel", has_text=re.compile(f"^{theme}$")).click()
    light = "true" if theme.endswith("Light") else "false"
    page.locator(f"body[data-jp-theme-light={light}]").wait_for(state="attached")


def test_jupyterlab_had_nothing_to_complain_of(lab):
    assert lab.page.complaints.heard == []


def test_the_ward_to_its_final_grade(chromium, jupyter):
    (patient,) = truth(**CLASS)
    name, value = re.search(r"prescribe\((\w+)=([^,)]+)", patient["prescribe"]).groups()
    with browser.open_page(chromium, browser.in_lab(jupyter, WARD)) as page:
        browser.run_all(page, jupyter, WARD)
        ward = browser.Panel(page, jupyter)
        ward.wait("patient 1, free.")
        page.locator(".labkit-order-validation").click()
        ward.wait("of patient 1, 1 point.")
        assert min(ward.charts()["points"]) > 10
        assert ward.complain(browser.NAMELESS) == []
        page.locator(".labkit-ward-failure input").fill(patient["failure"])
        page.locator(".labkit-ward-name").click()
        ward.wait("Correct:")
        page.locator(".labkit-ward-setting-1 select").select_option(name)
        page.locator(".labkit-ward-value-1 input").fill(value)
        page.locator(".labkit-ward-treat").click()
        ward.wait("Cured:", f"{RIGHT + CURED - 1} of {MOST} points")
        page.locator(".labkit-ward-reveal").click()
        ward.wait(f"Patient 1 has: {FAILURES[patient['failure']].title}.")
        assert f"{RIGHT + CURED - 1} of {MOST} points" in page.locator(".labkit-score").inner_text()
        assert page.locator(".labkit-ward-sheet a[download]").count() == 2
        assert page.complaints.heard == []


# --- Notebook 7 -----------------------------------------------------------------------------------

# What Notebook 7.6 complains of in every notebook: it asks for a command and a setting of JupyterLab's file browser,
# and for its font before it has shown its token.
OF_NOTEBOOK_ITSELF = ("reading 'schema'", "filebrowser:open-path", ".woff2")


def test_notebook_7(chromium, jupyter):
    with browser.open_page(chromium, browser.in_notebook_7(jupyter, NOTEBOOK), device_scale_factor=2) as page:
        browser.run_all(page, jupyter, NOTEBOOK)
        panel = browser.Panel(page, jupyter)
        panel.wait("Diagnosis: Learning rate too high.")
        panel.drag("lr", 0.5)
        panel.wait("Your run: 400 steps", "Diagnosis: no failure shows.")
        assert panel.complain(browser.NAMELESS) == []
        assert panel.charts()["density"] == pytest.approx(2, rel=0.01)  # sharp on a dense screen
        hover_zoom_and_reset(panel)
        ours = [words for words in page.complaints.heard if not any(known in words for known in OF_NOTEBOOK_ITSELF)]
        assert ours == []


# --- Voila ----------------------------------------------------------------------------------------


@needs_voila
def test_the_page_without_code_turns_stops_and_names(played):
    played.wait("Diagnosis: Learning rate too high.")
    before = played.charts()
    played.drag("lr", 0.5)
    played.wait("Your run: 400 steps", "Diagnosis: no failure shows.")
    browser.wait_for(lambda: played.charts()["hash"] != before["hash"], "a new chart")
    hover_zoom_and_reset(played)
    played.paste(LONG)
    played.wait("Training: step")
    played.press("Stop")
    played.wait("Stopped after")
    assert played.page.title() == "labkit"
    assert played.page.locator("pre, .jp-Cell-inputWrapper").count() == 0, "code is to be seen"


@needs_voila
def test_another_failure_can_be_chosen_on_the_page(played):
    played.page.get_by_label("topic").select_option("gradients")
    played.page.get_by_label("failure", exact=True).select_option("Clipping too tight")
    heading = played.page.locator(".labkit-panel h3", has_text="Clipping too tight")
    heading.wait_for()
    played.wait("Diagnosis: Clipping too tight.")
    assert played.complain(browser.NAMELESS) == []


@needs_voila
def test_every_tab_of_the_page_opens_its_panel(played):
    tabs = played.page.locator(".labkit-play > .widget-tab > .lm-TabBar .lm-TabBar-tab")
    assert tabs.all_inner_texts() == [section.title for section in SECTIONS]
    for tab in tabs.all()[1:]:
        tab.click()
        panel = played.page.locator(".labkit-panel:visible").first
        panel.wait_for()
        browser.wait_for(lambda panel=panel: panel.evaluate(browser.NAMELESS) == [], f"names in {tab.inner_text()}")
    said = played.page.locator(".labkit-panel [role=status]").all_text_contents()
    assert len(said) >= len(SECTIONS) and not [words for words in said if "cannot" in words]


@needs_voila
def test_the_page_fits_a_laptop_and_a_phone_and_follows_the_system_into_the_dark(played):
    page = played.page
    page.get_by_role("button", name="See a failure").click()
    played.wait("Diagnosis: Learning rate too high.")
    try:
        for width, height in ((1366, 768), (390, 844)):
            page.set_viewport_size({"width": width, "height": height})
            browser.wait_for(lambda: page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "no overflow")
        tab = page.locator(".labkit-play > .widget-tab > .lm-TabBar .lm-TabBar-tab")
        for title in ("Learning rate", "Phase diagram", "Ward"):  # those with wide controls
            tab.filter(has_text=title).click()
            panel = page.locator(".labkit-panel:visible").first
            browser.wait_for(lambda panel=panel: panel.evaluate(FITS), f"no overflow in {title}")
        tab.filter(has_text="Knobs").click()
        page.emulate_media(color_scheme="dark")
        browser.wait_for(lambda: played.canvas.evaluate(browser.AXIS) > 0.6, "light axes on a dark page")
        assert played.complain(browser.PALE) == []
        page.emulate_media(color_scheme="light")
        browser.wait_for(lambda: played.canvas.evaluate(browser.AXIS) < 0.5, "dark axes on a light page")
        page.set_viewport_size({"width": 1366, "height": 768})
        bottom = played.root.locator(".labkit-verdict").evaluate("verdict => verdict.getBoundingClientRect().bottom")
        assert bottom <= 768, "controls, charts and verdict are not seen together"
    finally:
        page.set_viewport_size({"width": 1280, "height": 1400})


@needs_voila
def test_the_page_had_nothing_to_complain_of_and_asked_nobody_else(played):
    assert played.page.complaints.heard == []
    own = (played.server.url, played.server.url.replace("http", "ws"), "blob:", "data:")
    assert [url for url in played.page.complaints.asked if not url.startswith(own)] == []
