"""The ward's panel: its buttons do what the ward does, say it in words, and leave no thread behind."""

import base64
import gc
import json
import threading

import ipywidgets
import pytest
from short_ward import tells, ward_of

import labkit
from labkit.course.ward.instruments import INSTRUMENTS
from labkit.failures.catalogue import FAILURES
from labkit.panels.ward_panel import WardPanel, ward_panel

NAMES = ("learning_rate_too_low", "dead_relu")


@pytest.fixture
def panel():
    made = WardPanel(ward_of(*NAMES))
    assert made.worker.wait(60)
    yield made
    made.close()


def every(widget) -> list[ipywidgets.Widget]:
    return [widget, *(one for child in getattr(widget, "children", ()) for one in every(child))]


def test_the_first_patient_shows_its_loss_for_nothing(panel):
    assert "Training loss" in panel.status.value and "role='status'" in panel.status.value
    assert panel.plots.png().startswith(b"\x89PNG") and "0 of 40 points" in panel.total.value
    assert panel.patient.spent == 0 and panel.stop_button.disabled


def test_an_order_shows_its_picture_and_its_price(panel):
    before = panel.plots.png()
    panel.orders["gradients"].click()
    assert panel.worker.wait(60)
    assert panel.plots.png() != before and "per layer, from the input" in panel.findings.value
    assert "2 spent on instruments" in panel.history.value and "Gradients of patient 1, 2 points" in panel.status.value
    assert "labkit-ordered" in panel.orders["gradients"]._dom_classes
    assert "labkit-shown" in panel.orders["gradients"]._dom_classes
    panel.order("modes")
    assert panel.picture.layout.display == "none"  # words alone
    assert "labkit-shown" not in panel.orders["gradients"]._dom_classes
    panel.order("gradients")
    assert panel.picture.layout.display is None and panel.patient.spent == 5


def test_a_name_and_a_prescription_by_the_buttons_and_then_the_file(panel):
    assert panel.reveal_button.disabled
    panel.failure.value = "learning_rate_too_low"
    panel.name_button.click()
    assert panel.worker.wait(60) and "Correct: Learning rate too low" in panel.status.value
    setting, value = panel.settings[0]
    setting.value, value.value = "lr", "0.1"
    assert value.placeholder == "a number above 0"
    panel.treat_button.click()
    assert panel.worker.wait(60) and "lr=0.1:" in panel.status.value
    assert panel.history.value.count("<li>") == 2 and not panel.reveal_button.disabled
    panel.reveal_button.click()
    assert panel.worker.wait(60) and "has: Learning rate too low" in panel.status.value
    assert panel.beds[0].icon == "folder-open" and "lr 0.1 -&gt; 1e-06" in panel.findings.value


def test_what_the_ward_refuses_is_said_in_the_panel(panel):
    for pressed, words in [
        (panel.treat_button, "An empty prescription"),
        (panel.name_button, "No failure was named"),
    ]:
        pressed.click()
        assert panel.worker.wait(60)
        assert words.lower() in panel.status.value.lower() and not pressed.disabled
    setting, value = panel.settings[0]
    setting.value, value.value = "lr", "fast"
    panel.treat_button.click()
    assert panel.worker.wait(60) and "lr: expected a number above 0" in panel.status.value.lower()
    assert panel.patient.record()["prescribed"] == []


def test_another_patient_starts_with_empty_fields(panel):
    panel.failure.value, panel.code.value = "dead_relu", "all ten classes"
    panel.settings[0][0].value = "lr"
    panel.order("gradients")
    panel.beds[1].click()
    assert panel.worker.wait(60) and panel.patient.number == 2 and "per layer" not in panel.findings.value
    assert (panel.failure.value, panel.code.value, panel.prescribed()) == ("", "", {})
    assert "Patient 2" in panel.about.value and panel.beds[1].button_style == "primary"


def test_stop_gives_up_what_trains_and_pays_nothing(panel):
    reached, go_on = threading.Event(), threading.Event()

    def waiting(ticket):
        reached.set()
        go_on.wait(60)
        panel.choose(2, ticket)

    panel.perform(waiting)
    assert reached.wait(60) and not panel.stop_button.disabled and panel.orders["data"].disabled
    panel.stop_button.click()
    go_on.set()
    assert panel.worker.wait(60)
    assert "Stopped: no points were charged" in panel.status.value and not panel.orders["data"].disabled
    assert panel.ward[2].record()["ordered"] == []


def test_nothing_in_the_widgets_tells_what_a_patient_has(panel):
    for name in ("gradients", "settings", "units"):
        panel.order(name)
    fixed = {panel.failure, panel.code}  # the lists to choose from hold every failure, and so say nothing
    for widget in every(panel):
        if widget not in fixed:
            state = {
                name: value for name, value in widget.get_state().items() if name != "value" or isinstance(value, str)
            }
            assert not tells(str(state), NAMES[0])


def test_every_control_has_a_label_and_a_place_for_the_keyboard(panel):
    controls = [
        each for each in every(panel) if isinstance(each, ipywidgets.Button | ipywidgets.Text | ipywidgets.Dropdown)
    ]
    assert len(controls) > len(INSTRUMENTS) + 8
    assert all(each.description and each.tabbable is not False for each in controls)
    assert all(each.tooltip for each in controls if isinstance(each, ipywidgets.Button))


def test_the_lists_to_choose_from_are_whole(panel):
    assert panel.failure.options == tuple(FAILURES) and panel.code.options == tuple(panel.ward.treatments)


def test_the_score_sheet_is_in_its_links_with_the_students_name(panel):
    panel.student.value = "Grace <b>"
    data = panel.sheets.value.split("application/json;base64,")[1].split("'")[0]
    sheet = json.loads(base64.b64decode(data))
    assert sheet["student"] == "Grace <b>" and len(sheet["patients"]) == 2 and "ward-0.csv" in panel.sheets.value


def test_the_panel_takes_a_ward_or_makes_one(monkeypatch):
    monkeypatch.setattr(WardPanel, "pressed_choose", lambda *_: None)
    made = ward_of("dead_relu")
    assert ward_panel(made).ward is made
    assert labkit.ward_panel(seed=5, patients=2).ward[2].complaint == labkit.ward(5, 2)[2].complaint


def test_ten_panels_leave_no_thread_and_no_widget():
    registry, admitted = ipywidgets.widgets.widget._instances, ward_of("learning_rate_too_low")
    WardPanel(admitted).close()
    threads, widgets = threading.active_count(), len(registry)
    for _ in range(10):
        made = WardPanel(admitted)
        assert made.worker.wait(60)
        made.close()
    del made
    gc.collect()
    assert threading.active_count() == threads and len(registry) <= widgets
