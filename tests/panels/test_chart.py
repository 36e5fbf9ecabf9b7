"""The charts without a browser: they send what the plots say, and only what is new; images replace them."""

import dataclasses
import gc
import importlib.util
import json
import re
import weakref

import numpy as np
import pytest
from helpers import hand_made

from labkit.drawing import plots
from labkit.errors import RecipeError
from labkit.failures.catalogue import FAILURES
from labkit.panels import chart
from labkit.panels.chart import Chart, plots_of
from labkit.panels.live_plots import Picture, panes_for

PANES = panes_for("update_ratio")


def arrays(shown: Chart) -> list[np.ndarray]:
    ends = np.cumsum(shown.widget.figure["lengths"])
    return np.split(np.frombuffer(shown.widget.points, "<f4"), ends)[:-1]


def line(shown: Chart, pane: int, label: str) -> tuple[np.ndarray, np.ndarray]:
    """The points of a line that was sent."""
    (found,) = [each for each in shown.widget.figure["panes"][pane]["lines"] if each["label"] == label]
    return arrays(shown)[found["x"]], arrays(shown)[found["y"]]


@pytest.fixture
def sent(monkeypatch):
    """A chart, and the messages that it sends beside its state."""
    shown = Chart(PANES)
    messages = []
    monkeypatch.setattr(shown.widget, "send", lambda content, buffers: messages.append((content, buffers[0])))
    return shown, messages


def until(run, steps: int):
    """The first steps of a run."""
    long = {name for name, trace in run.traces.items() if len(trace) == len(run)}
    cut = {name: trace[:steps] if name in long else trace for name, trace in run.traces.items()}
    return dataclasses.replace(run, traces=cut)


def test_every_line_of_the_plots_is_sent_with_its_numbers(short_run):
    shown = Chart(PANES)
    shown.whole({"healthy": short_run, "your run": short_run})
    steps, losses = line(shown, 0, "your run")
    assert np.array_equal(steps, short_run["step"])
    assert np.allclose(losses, short_run["loss"], rtol=1e-6)
    assert np.allclose(line(shown, 1, "healthy")[1], short_run["val_accuracy"])
    loss, validation, gradients, _ = shown.widget.figure["panes"]
    assert loss["y"]["log"] and not validation["y"]["log"] and validation["y"]["percent"]
    assert gradients["x"]["whole"] and {bar["label"] for bar in gradients["shapes"]} == {"healthy", "your run"}
    assert [entry["label"] for entry in shown.widget.figure["legend"]] == ["healthy", "your run"]


def test_what_a_log_axis_cannot_show_is_sent_to_be_read():
    losses = np.linspace(2.3, 0.2, 40)
    losses[10:14] = np.nan, np.inf, 0.0, 1e60
    shown = Chart(PANES)
    shown.whole({"your run": hand_made(loss=losses)})
    nan, infinite, zero, huge = line(shown, 0, "your run")[1][10:14]
    assert np.isnan(nan) and np.isinf(infinite) and zero == 0 and np.isfinite(huge) and huge > 1e38
    limits = [limit for pane in shown.widget.figure["panes"] for axis in "xy" for limit in pane[axis]["limits"]]
    assert np.isfinite(limits).all()


def test_a_constant_loss_is_not_magnified_until_its_rounding_errors_show():
    shown = Chart(PANES)
    rounding = 1e-9 * np.sin(np.arange(40))
    shown.whole({"your run": hand_made(loss=2.303 * (1 + rounding), val_loss=2.303)})
    low, high = shown.widget.figure["panes"][0]["y"]["limits"]
    assert 1.5 < low < 2.2 and 2.4 < high < 3


def test_arrays_that_lines_share_are_sent_once(short_run):
    shown = Chart([plots.losses])
    shown.whole({"healthy": short_run, "your run": short_run})
    assert len(arrays(shown)) == 4  # steps, losses, evaluations and their losses; four lines refer to them
    assert len(shown.widget.figure["panes"][0]["lines"]) == 4


def test_of_a_run_that_trains_only_new_points_are_sent(sent, short_run):
    shown, messages = sent
    shown.begin({"healthy": short_run}, 40)
    assert not messages and shown.widget.figure["panes"] == []  # the last picture stays until there is something new
    for steps in (10, 25, 25, 40):
        shown.grow(until(short_run, steps))
    loss = [part for content, _ in messages for part in content["parts"] if part["pane"] == 0]
    assert [(part["start"], part["count"]) for part in loss] == [(0, 10), (10, 15), (25, 15)]
    content, points = messages[-1]
    assert content["figure"] == shown.widget.figure["number"]
    first = np.frombuffer(points, "<f4")[: 2 * 15].reshape(2, 15)
    assert np.array_equal(first[0], np.arange(25, 40)) and np.allclose(first[1], short_run["loss"][25:])


def test_points_that_changed_are_sent_again_from_there(sent, short_run):
    shown, messages = sent
    shown.begin({}, 40)
    shown.grow(until(short_run, 10))
    shown.grow(until(short_run, 20))  # the median gradient of every layer has moved
    bars = [part for content, _ in messages for part in content["parts"] if part["pane"] == 2]
    assert [(part["start"], part["count"]) for part in bars] == 2 * [(0, len(short_run.layers))]


def test_a_view_that_was_opened_later_gets_all_points(sent, short_run):
    shown, messages = sent
    shown.begin({}, 40)
    shown.grow(until(short_run, 10))
    shown.grow(until(short_run, 20))
    shown._asked(shown.widget, {"resend": shown.number}, [])
    content, points = messages[-1]
    assert content["parts"][0] == {"pane": 0, "start": 0, "count": 20}
    assert len(points) == 4 * 2 * sum(part["count"] for part in content["parts"])
    before = len(messages)
    shown._asked(shown.widget, {"resend": shown.number - 1}, [])  # of a picture that is no longer shown
    assert len(messages) == before


def test_points_that_arrive_while_a_view_asks_do_not_disturb_it(sent, short_run, monkeypatch):
    shown, messages = sent
    shown.begin({}, 40)
    shown.grow(until(short_run, 10))
    panes = len(shown.sent)

    def slowly(points, as_bytes=chart.as_bytes):
        shown.sent[len(shown.sent) + 10] = points  # what the other thread does meanwhile
        return as_bytes(points)

    monkeypatch.setattr(chart, "as_bytes", slowly)
    shown._asked(shown.widget, {"resend": shown.number}, [])
    assert len(messages[-1][0]["parts"]) == panes


def test_a_background_is_seen_only_when_it_is_complete(short_run, monkeypatch):
    shown = Chart(PANES)
    shown.begin({}, 20)
    before, seen = shown.background, []

    def watched(pane, live_points=chart.live_points):
        seen.append(chart.DRAWING.locked() and shown.background is before)
        return live_points(pane)

    monkeypatch.setattr(chart, "live_points", watched)
    shown.begin({"healthy": short_run}, 40)
    assert seen == [True] * len(PANES) and shown.background is not before


@pytest.mark.parametrize("kind", [Chart, Picture])
def test_the_runs_of_a_background_are_kept_so_that_no_other_one_gets_their_id(kind, short_run):
    shown, run = kind(PANES), until(short_run, 20)
    kept = weakref.ref(run)
    shown.begin({"healthy": run}, 40)
    del run
    gc.collect()
    assert kept() is not None


def test_a_heat_map_stays_a_picture_beside_the_charts(short_run):
    shown = Chart([plots.losses, plots.gradient_heat])
    shown.whole({"your run": short_run})
    loss, heat = shown.widget.figure["panes"]
    assert "lines" in loss and heat["picture"].startswith("data:image/png;base64,") and heat["alt"]


def test_panes_without_axes_are_words(short_run):
    bad = {"first_nonfinite": {"step": 3, "stage": "loss", "place": "loss"}}
    shown = Chart([plots.losses, plots.origin])
    shown.whole({"your run": dataclasses.replace(short_run, facts=short_run.facts | bad)})
    words = shown.widget.figure["panes"][1]
    assert "x" not in words and "loss: loss" in [note["text"] for note in words["notes"]]
    assert all(0 <= note["x"] <= 1 and 0 <= note["y"] <= 1 for note in words["notes"])


@pytest.mark.parametrize("shows", sorted({mode.shows for mode in FAILURES.values()}))
def test_the_instrument_of_every_mode_is_a_chart_and_not_a_picture(shows, short_run):
    shown = Chart(panes_for(shows))
    shown.whole({"healthy": short_run, "your run": short_run})
    assert not [pane for pane in shown.widget.figure["panes"] if "picture" in pane]


def test_dollar_signs_are_sent_as_they_are_read(short_run):
    def priced(runs, ax):
        ax.plot([0, 1], [1, 2], label=r"\$1")
        ax.bar([0], [1], label=r"\$2")
        ax.text(0, 0, r"\$3")
        ax.set(title=r"\$4", xlabel=r"\$5", ylabel=r"\$6")

    shown = Chart([priced])
    shown.whole({"your run": short_run})
    words = json.dumps(shown.widget.figure)
    assert "\\" not in words and all(words.count(f'"${number}"') for number in range(1, 7))


def test_a_pane_without_its_trace_says_so_in_short_lines(short_run):
    traces = {name: trace for name, trace in short_run.traces.items() if name != "update_ratio"}
    shown = Chart([plots.losses, plots.update_ratio])
    shown.whole({"your run": dataclasses.replace(short_run, traces=traces)})
    (note,) = shown.widget.figure["panes"][1]["notes"]
    lines = note["text"].split("\n")
    assert "update_ratio" in note["text"] and len(lines) > 1 and max(map(len, lines)) <= 46


def test_other_panes_can_be_shown_than_before(short_run):
    shown = Chart([plots.losses])
    shown.whole({"your run": short_run}, [plots.validation, plots.weight_norms])
    assert [pane["title"] for pane in shown.widget.figure["panes"]] == ["Validation", "Weight norm"]


def test_where_anywidget_is_missing_or_not_wanted_it_is_an_image(monkeypatch, short_run):
    assert isinstance(plots_of(PANES), Chart)
    monkeypatch.setenv("LABKIT_CHARTS", "picture")
    assert isinstance(plots_of(PANES), Picture)
    monkeypatch.delenv("LABKIT_CHARTS")
    find = importlib.util.find_spec
    monkeypatch.setattr(chart.importlib.util, "find_spec", lambda name: None if name == "anywidget" else find(name))
    shown = plots_of(PANES)
    shown.whole({"your run": short_run})
    assert isinstance(shown, Picture) and bytes(shown.widget.value).startswith(b"\x89PNG")


def test_an_unknown_kind_of_chart_is_refused(monkeypatch):
    monkeypatch.setenv("LABKIT_CHARTS", "3d")
    with pytest.raises(RecipeError, match="LABKIT_CHARTS: expected interactive or picture, got '3d'"):
        plots_of(PANES)


@pytest.mark.parametrize("kind", [Chart, Picture])
def test_a_notebook_stores_words_and_an_image(kind, short_run):
    shown = kind(PANES)
    shown.say("Nothing yet.")
    assert shown.stored() == {"text/plain": "Nothing yet."}
    shown.whole({"your run": short_run})
    assert shown.stored()["image/png"].startswith("iVBOR")


def test_the_image_of_a_chart_is_that_of_the_picture(short_run):
    drawn = []
    for kind in (Chart, Picture):
        shown = kind(PANES)
        shown.whole({"healthy": short_run})
        drawn.append(shown.png())
    assert drawn[0] == drawn[1]


def test_the_module_imports_and_evaluates_nothing():
    kind = chart.canvas_class()
    source = re.sub(r"//.*", "", kind._esm)
    assert not re.search(r"\bimport\b|\beval\b|\bFunction\s*\(|https?:", source) and "export default" in source
    assert not re.search(r"@import|url\(", kind._css)
