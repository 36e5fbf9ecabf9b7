"""The page without code: tabs that make their panel when opened, and a catalogue of all failures."""

import ipywidgets
import pytest

from labkit.failures.catalogue import FAILURES
from labkit.panels import gallery_panel, knob_panel, play_page, ward_panel


@pytest.fixture(autouse=True)
def untrained(monkeypatch):
    """Panels that are made and not run."""
    monkeypatch.setattr(knob_panel.KnobPanel, "start", lambda self: None)


def test_a_panel_is_made_when_its_tab_is_first_opened():
    made = []

    def section(name):
        return play_page.Section(name, lambda: made.append(name) or ipywidgets.Label(name))

    page = play_page.Page((section("one"), section("two")))
    assert made == ["one"]
    assert page.tabs.titles == ("one", "two")
    page.tabs.selected_index = 1
    page.tabs.selected_index = 0
    page.tabs.selected_index = 1
    assert made == ["one", "two"]
    assert [child.value for child in page.bodies[1].children] == ["two"]


def test_the_catalogue_has_every_failure_and_one_panel_at_a_time():
    catalogue = play_page.Catalogue()
    offered = []
    for _, topic in catalogue.topic.options:
        catalogue.topic.value = topic
        offered += [name for _, name in catalogue.failure.options]
        assert catalogue.panel.setting.mode.name == catalogue.failure.value
        assert catalogue.children[-1] is catalogue.panel and len(catalogue.children) == 2
    assert sorted(offered) == sorted(FAILURES)


def test_the_panel_that_was_there_is_closed():
    catalogue = play_page.Catalogue("dead_relu")
    before = catalogue.panel
    assert before.setting.mode.name == "dead_relu" and catalogue.topic.value == "activations"
    catalogue.failure.value = "saturated_units"
    assert before.comm is None
    assert catalogue.panel.comm is not None


def test_every_section_has_a_title_of_its_own():
    titles = [section.title for section in play_page.SECTIONS]
    assert len(set(titles)) == len(titles) == 9


def test_a_door_opens_its_tab_and_sets_the_panel(monkeypatch):
    begun = []
    monkeypatch.setattr(gallery_panel.Gallery, "start", lambda self: begun.append("gallery"))
    monkeypatch.setattr(ward_panel.WardPanel, "pressed_choose", lambda self, number: begun.append(f"patient {number}"))
    page = play_page.page()
    catalogue = page.made[0]
    catalogue.failure.value = "learning_rate_too_low"
    page.doors["Guess it"].click()
    gallery = page.made[page.tabs.selected_index]
    assert gallery.blind.value and gallery.chosen.exhibit.mode and not gallery.chosen.revealed
    page.doors["Examine a patient"].click()
    assert page.sections[page.tabs.selected_index].title == "Ward" and begun[-1] == "patient 1"
    page.doors["See a failure"].click()
    assert page.tabs.selected_index == 0 and catalogue.panel.setting.mode.name == play_page.FIRST
    assert catalogue.panel.setting.preset == "sick"
