"""The charts alone in a real browser, without Jupyter: chart.js with a model that a test sets."""

import base64
import re

import browser
import numpy as np
import pytest
from helpers import hand_made

from labkit.drawing import plots
from labkit.panels.base_panel import NO_CHARTS, STYLE
from labkit.panels.chart import Chart, canvas_class

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(bool(browser.missing()), reason=browser.missing() or "-"),
]

# `show` sets the figure as Python does; `sent` has the messages to Python.
MODEL = """async ([source, css]) => {
  document.head.append(Object.assign(document.createElement('style'), {textContent: css}));
  const state = {figure: {panes: []}}, heard = {};
  window.sent = [];
  const model = {get: name => state[name], send: words => sent.push(words), off() {}};
  model.on = (name, call) => (heard[name] = call);
  const bytes = text => new DataView(Uint8Array.from(atob(text), letter => letter.charCodeAt(0)).buffer);
  window.show = (figure, points) => {
    Object.assign(state, {figure, points: bytes(points)});
    heard['change:figure']();
  };
  window.grow = (message, points) => heard['msg:custom'](message, [bytes(points)]);
  const module = await import('data:text/javascript;base64,' + source);
  window.open_view = () => module.default.render({model, el: document.body});
  open_view();
}"""
FRAME = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


class View:
    """A chart in a page, and what is to be seen of its first pane."""

    def __init__(self, page):
        self.page, self.canvas = page, page.locator("canvas").first
        self.tip = page.locator(".labkit-chart-tip").first
        self.reset = page.locator(".labkit-chart-reset").first
        kind = canvas_class()
        page.evaluate(MODEL, [base64.b64encode(kind._esm.encode()).decode(), kind._css])

    def show(self, panes, run) -> None:
        chart = Chart(panes, columns=1)
        chart.whole({"your run": run})
        self.set(chart.widget.figure, chart.widget.points)

    def set(self, figure: dict, points: bytes) -> None:
        self.page.evaluate("([figure, points]) => show(figure, points)", [figure, base64.b64encode(points).decode()])
        self.page.evaluate(FRAME)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.canvas.press(key)
        self.page.evaluate(FRAME)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """A box with the mouse, from one fraction of the canvas to another."""
        box = self.canvas.bounding_box()
        for (x, y), then in ((start, self.page.mouse.down), (end, self.page.mouse.up)):
            self.page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"], steps=3)
            then()
        self.page.evaluate(FRAME)

    @property
    def limits(self) -> list[float]:
        return [float(word) for word in self.canvas.get_attribute("data-limits").split()]


@pytest.fixture
def view(chromium):
    with browser.open_page(chromium, "about:blank", width=700, height=900, has_touch=True) as page:
        yield View(page)
        assert page.complaints.heard == []


def test_a_zoom_stays_with_its_plot_and_ends_with_another_one(view):
    run = hand_made(steps=400)
    view.show([plots.losses], run)
    home = view.limits
    view.press("End", "+")
    zoomed = view.limits
    assert zoomed[0] > home[0] + 100 and view.reset.is_visible() and view.tip.is_visible()
    view.show([plots.losses], run)
    assert view.limits == zoomed and view.reset.is_visible() and not view.tip.is_visible()
    view.show([plots.validation], run)
    assert view.limits[0] < 0 and view.limits[1] > 390 and not view.reset.is_visible()


def test_a_tap_leaves_the_values_to_read_until_the_browser_takes_the_finger(view):
    view.show([plots.losses], hand_made(steps=400))
    box = view.canvas.bounding_box()
    view.page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    view.page.evaluate(FRAME)
    assert "step" in view.tip.inner_text() and view.tip.is_visible()
    view.canvas.dispatch_event("pointercancel", {"pointerType": "touch"})  # the page scrolls
    assert not view.tip.is_visible()


def test_the_values_stay_within_the_chart_also_on_a_phone(view):
    chart = Chart([plots.losses], columns=1)
    chart.whole({"healthy": hand_made(steps=400), "your run": hand_made(steps=400)})
    view.page.set_viewport_size({"width": 340, "height": 800})
    view.set(chart.widget.figure, chart.widget.points)
    place = view.canvas.bounding_box()
    for across in (0.2, 0.45, 0.55, 0.95):
        view.page.mouse.move(place["x"] + across * place["width"], place["y"] + 60)
        view.page.evaluate(FRAME)
        tip = view.tip.bounding_box()
        assert place["x"] <= tip["x"] and tip["x"] + tip["width"] <= place["x"] + place["width"] + 1
        assert view.tip.evaluate("tip => tip.scrollWidth <= tip.clientWidth")


@pytest.mark.parametrize(
    ("inside", "seen"),
    [("", True), ('<div class="labkit-chart"></div>', False), ('<img class="labkit-picture">', False)],
)
def test_a_panel_without_charts_says_after_a_while_how_to_get_images(chromium, inside, seen):
    with browser.open_page(chromium, "about:blank") as page:
        page.set_content(f'<div class="labkit-panel"><div>{inside}</div><div>{STYLE}{NO_CHARTS}</div></div>')
        hint = page.locator(".labkit-no-charts")
        assert not (hint.bounding_box() or {}).get("height")  # the charts may still be loading
        page.evaluate("document.getAnimations().forEach(each => each.finish())")
        assert bool((hint.bounding_box() or {}).get("height")) == seen
        assert "LABKIT_CHARTS=picture" in hint.text_content()


def test_a_pointer_over_what_has_no_axes_or_is_not_drawn_yet(view):
    bad = {"first_nonfinite": {"step": 3, "stage": "loss", "place": "loss"}}
    chart = Chart([plots.origin], columns=1)
    chart.whole({"your run": hand_made(facts=bad)})
    move = "document.querySelector('canvas').dispatchEvent(new PointerEvent('pointermove', {clientX: 99, clientY: 99}))"
    points = base64.b64encode(chart.widget.points).decode()
    view.page.evaluate(f"([figure, points]) => {{ show(figure, points); {move}; }}", [chart.widget.figure, points])
    view.page.evaluate(FRAME)
    view.page.evaluate(move)
    assert not view.tip.is_visible()  # nor an error, which the fixture looks for


def test_a_view_that_is_opened_while_a_run_trains_asks_for_its_points_once(view):
    run, chart = hand_made(steps=400), Chart([plots.losses], columns=1)
    view.show([plots.losses], run)
    view.page.evaluate("open_view()")
    assert view.page.evaluate("sent") == []  # nothing trains
    chart.begin({"healthy": run}, 400)
    chart.grow(run)
    view.set(chart.widget.figure, chart.widget.points)
    view.page.evaluate("open_view()")
    assert view.page.evaluate("sent") == [{"resend": chart.number}]


# The first and the last row of a chart that has ink, as fractions of its height.
INK = """canvas => {
  const { data, width, height } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const rows = [];
  for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 200 && data[i] < 100) rows.push(Math.floor(i / 4 / width));
  return [Math.min(...rows) / height, Math.max(...rows) / height];
}"""


@pytest.mark.parametrize("base", ["top", "middle", "bottom"])
def test_several_lines_stand_at_below_or_above_their_place(view, base):
    place = {"x": 0.5, "y": 0.5, "xin": True, "yin": True, "dx": 0, "dy": 0, "align": "center", "base": base}
    note = place | {"text": "HHH\nHHH\nHHH", "size": 20, "bold": True, "color": "#000000"}
    view.set({"panes": [{"title": "", "notes": [note]}], "height": 200}, b"")
    first, last = view.canvas.evaluate(INK)
    expected = {"top": (0.5, 0.83), "middle": (0.34, 0.66), "bottom": (0.17, 0.5)}[base]
    assert (first, last) == pytest.approx(expected, abs=0.06)


# Keeps the words that are drawn on canvas, with their alignment: ticks of the y axis are to the right.
DRAWN = """() => {
  const draw = CanvasRenderingContext2D.prototype.fillText;
  window.drawn = [];
  CanvasRenderingContext2D.prototype.fillText = function (words, ...place) {
    drawn.push([this.textAlign === 'right' ? 'y' : 'x', words]);
    draw.call(this, words, ...place);
  };
}"""


def ticks_of(view, axis: str) -> list[str]:
    words = [each for kind, each in view.page.evaluate("drawn") if kind == axis]
    return [each for each in words if re.match(r"-?\d", each)]


@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_the_ticks_of_a_narrow_range_differ(view, scale):
    view.page.evaluate(DRAWN)
    view.show([plots.losses], hand_made(steps=400, loss=2.303 * scale, val_loss=2.303 * scale))
    for _ in range(12):  # until there are no more digits to tell values apart
        view.drag((0.3, 0.4), (0.7, 0.55))
    view.page.evaluate("drawn.length = 0")
    view.drag((0.3, 0.4), (0.7, 0.55))  # no narrower: it only draws the same again, some times
    words = ticks_of(view, "y")
    low, high = view.limits[2:]
    different = list(dict.fromkeys(words))
    assert high / low < 1.0001 and len(different) >= 2, words
    assert words == different * (len(words) // len(different)), words


def test_steps_from_a_hundred_thousand_are_exact(view):
    view.page.evaluate(DRAWN)
    view.show([plots.weight_norms], hand_made(steps=801, step=np.arange(100_000, 100_801)))
    assert "100400" in ticks_of(view, "x")
    view.press("End")
    assert view.page.locator(".labkit-chart-aloud").text_content().startswith("step 100800:")


def test_a_screen_reader_is_told_what_takes_keys_and_not_every_frame(view):
    run, chart = hand_made(steps=400), Chart([plots.losses], columns=1)
    chart.begin({"healthy": run}, 400)
    chart.grow(run)
    view.set(chart.widget.figure, chart.widget.points)
    role = "canvas => [canvas.getAttribute('role'), canvas.getAttribute('aria-roledescription'), canvas.tabIndex]"
    assert view.canvas.evaluate(role) == ["application", "chart", 0]
    name = view.canvas.get_attribute("aria-label")
    assert "healthy from" in name and "training now" in name
    points = base64.b64encode(np.array([[0, 1], [2.0, 1.5]], "<f4").tobytes()).decode()
    message = {"figure": chart.number, "parts": [{"pane": 0, "start": 0, "count": 2}]}
    view.page.evaluate("([message, points]) => grow(message, points)", [message, points])
    view.page.evaluate(FRAME)
    assert view.canvas.get_attribute("aria-label") == name
    view.set({"panes": [{"title": "Words", "notes": []}]}, b"")
    assert view.canvas.evaluate(role) == ["img", None, -1]
