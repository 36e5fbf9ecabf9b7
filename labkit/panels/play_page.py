"""The page without code: every panel behind a tab, made when that is first opened, so that the page is there soon."""

import html
from collections.abc import Callable
from dataclasses import dataclass

import ipywidgets

import labkit
from labkit.failures import FAILURES
from labkit.panels.accessibility import accessible
from labkit.panels.knob_panel import KnobPanel, knobs

FIRST = "learning_rate_too_high"  # what the knobs show at first: the failure everybody has met
INTRODUCTION = """
<h1 style="margin:0 0 .1em">labkit</h1>
<p style="margin:0 0 .6em;max-width:52em;line-height:1.5">Neural-network training, broken on purpose. Every curve on
this page is a real network, trained on real images beside a healthy twin. Turn a knob and see the failure come and go;
read what the instruments saw, and what to do about it.</p>
"""


@dataclass(frozen=True)
class Section:
    """One tab: its title, a sentence about what there is to do, and how its panel is made."""

    title: str
    about: str
    make: Callable[[], ipywidgets.Widget]


SECTIONS = (
    Section("Knobs", "Choose a failure, turn its knobs, and see what they do to the run.", lambda: Catalogue()),
    Section("Gallery", "Real curves side by side. Open one for its diagnosis.", lambda: labkit.gallery()),
    Section("Gradients", "What one loss curve hides, layer by layer.", lambda: labkit.gradient_panel()),
    Section("Overfitting", "How much data is enough, and what helps.", lambda: labkit.overfitting_panel()),
    Section("Learning rate", "Read it off a range test, and try it.", lambda: labkit.lr_panel()),
    Section("Fork", "Go back to a step of a sick run, change one thing, and go on.", lambda: labkit.fork_panel()),
    Section("Phase diagram", "Where training works and where it breaks.", lambda: labkit.phase_panel()),
    Section("Ward", "Patients with sealed names: examine, diagnose, prescribe.", lambda: labkit.ward_panel()),
)


def page() -> "Page":
    """All panels on one page, for people who want to see no code: what `labkit play` serves."""
    return Page(SECTIONS)


class Page(ipywidgets.VBox):
    def __init__(self, sections: tuple[Section, ...]):
        self.sections, self.opened = sections, set()
        self.rooms = [ipywidgets.VBox([sentence(section.about)]) for section in sections]
        self.tabs = ipywidgets.Tab(self.rooms, titles=tuple(section.title for section in sections), selected_index=0)
        self.tabs.observe(lambda change: self.enter(change["new"]), "selected_index")
        parts = [ipywidgets.HTML(INTRODUCTION), self.tabs, accessible()]
        super().__init__(parts, layout={"max_width": "84em", "margin": "0 auto"})
        self.add_class("labkit-play")
        self.enter(0)

    def enter(self, number: int | None) -> None:
        """Make the panel behind a tab, unless it is there already."""
        if number is None or number in self.opened:
            return
        self.opened.add(number)
        room = self.rooms[number]
        room.children = (*room.children, self.sections[number].make())


class Catalogue(ipywidgets.VBox):
    """A knob panel for whichever failure is chosen."""

    def __init__(self, first: str = FIRST):
        topics = list(dict.fromkeys(mode.topic for mode in FAILURES.values()))
        wide = {"description_width": "5em"}
        self.topic = ipywidgets.Dropdown(
            options=[(topic.replace("_", " "), topic) for topic in topics], description="topic", style=wide
        )
        self.failure = ipywidgets.Dropdown(description="failure", style=wide, layout={"width": "32em"})
        self.topic.value = FAILURES[first].topic
        self.list_failures(first)
        self.panel: KnobPanel = knobs(first)
        self.topic.observe(lambda _: self.list_failures(), "value")
        self.failure.observe(lambda _: self.chosen(), "value")
        super().__init__([ipywidgets.HBox([self.topic, self.failure], layout={"flex_flow": "row wrap"}), self.panel])

    def list_failures(self, chosen: str | None = None) -> None:
        """Offer the failures of the topic; choose one of them, or the first."""
        there = [(mode.title, name) for name, mode in FAILURES.items() if mode.topic == self.topic.value]
        self.failure.options = there
        self.failure.value = chosen or there[0][1]

    def chosen(self) -> None:
        """Put the panel of the chosen failure in the place of the one that is there."""
        if self.failure.value is None or self.failure.value == self.panel.situation.mode.name:
            return
        before, self.panel = self.panel, knobs(self.failure.value)
        self.children = (*self.children[:-1], self.panel)
        before.close()


def sentence(words: str) -> ipywidgets.HTML:
    return ipywidgets.HTML(f"<p style='margin:.2em 0'>{html.escape(words)}</p>")
