"""The page without code: tabs that make their panel when opened, and a catalogue of all failures."""

import ipywidgets
import pytest

from labkit.failures import FAILURES
from labkit.panels import knob_panel as knob_panel
from labkit.panels import play_page as pages


@pytest.fixture(autouse=True)
def untrained(monkeypatch):
    """Panels that are made and not run."""
    monkeypatch.setattr(knob_panel.KnobPanel, "start", lambda self: None)


def test_a_panel_is_made_when_its_tab_is_first_opened():
    made = []

    def section(name):
        return pages.Section(name, f"about {name}", lambda: made.append(name) or ipywidgets.Label(name))

    page = pages.Page((section("one"), section("two")))
    assert made == ["one"]
    assert page.tabs.titles == ("one", "two")
    page.tabs.selected_index = 1
    page.tabs.selected_index = 0
    page.tabs.selected_index = 1
    assert made == ["one", "two"]
    assert [child.value for child in page.rooms[1].children[1:]] == ["two"]


def test_the_catalogue_has_every_failure_and_one_panel_at_a_time():
    catalogue = pages.Catalogue()
    offered = []
    for _, topic in catalogue.topic.options:
        catalogue.topic.value = topic
        offered += [name for _, name in catalogue.failure.options]
        assert catalogue.panel.situation.mode.name == catalogue.failure.value
        assert catalogue.children[-1] is catalogue.panel and len(catalogue.children) == 2
    assert sorted(offered) == sorted(FAILURES)


def test_the_panel_that_was_there_is_closed():
    catalogue = pages.Catalogue("dead_relu")
    before = catalogue.panel
    assert before.situation.mode.name == "dead_relu" and catalogue.topic.value == "activations"
    catalogue.failure.value = "saturated_units"
    assert before.comm is None
    assert catalogue.panel.comm is not None


def test_every_section_says_what_there_is_to_do():
    titles = [section.title for section in pages.SECTIONS]
    assert len(set(titles)) == len(titles) == 8
    assert all(section.about.endswith(".") for section in pages.SECTIONS)
