"""The page without code: one tab for each panel, made when the tab is first opened, so that the page loads fast."""

import html
from collections.abc import Callable
from dataclasses import dataclass

import ipywidgets

import labkit
from labkit.failures.catalogue import FAILURES
from labkit.panels.accessibility import accessible
from labkit.panels.controls import button
from labkit.panels.knob_panel import KnobPanel, knobs

FIRST = "learning_rate_too_high"  # the failure that everybody has met
TITLE = """
<h1>labkit</h1>
<p>Neural-network training, broken on purpose. Every curve is a real network, trained here on real images beside a
healthy twin.</p>
"""
STYLE = """<style>
.labkit-play {max-width: 1320px; margin: 0 auto; padding: 0 12px; box-sizing: border-box; width: 100%}
.labkit-play > .labkit-head {display: flex; flex-wrap: wrap; gap: 6px 28px; align-items: center; padding: 8px 0;
  overflow: visible}
.labkit-head h1 {margin: 0; font-size: 22px; line-height: 1.25; letter-spacing: -.01em}
.labkit-head p {margin: 0; max-width: 40em; line-height: 1.45}
.labkit-head .labkit-title {flex: 1 1 26em; min-width: 0}
.labkit-head .labkit-doors {display: flex; flex-wrap: wrap; gap: 8px; flex: 0 1 auto; overflow: visible}
.labkit-head .labkit-door {width: 172px; overflow: visible}
.labkit-head .labkit-door button {width: 100%; height: 30px; margin: 0; border-radius: 6px; font-weight: 600}
.labkit-head .labkit-door .widget-html, .labkit-head .labkit-door .widget-html-content {margin: 1px 0 0; height: auto;
  font-size: 12px; line-height: 1.35}
.labkit-play > .widget-tab > .lm-TabBar {overflow: visible}
.labkit-play > .widget-tab > .lm-TabBar .lm-TabBar-content {flex-wrap: wrap}
.labkit-play > .widget-tab > .lm-TabBar .lm-TabBar-tab {flex: 0 1 auto; min-width: 0; padding: 0 14px;
  border-radius: 6px 6px 0 0; line-height: 26px; color: var(--jp-ui-font-color1)}
.labkit-play > .widget-tab > .lm-TabBar .lm-TabBar-tab.lm-mod-current {font-weight: 600}
.labkit-play > .widget-tab > .widget-tab-contents {padding: 6px 12px 10px}
.labkit-play .labkit-menus {flex-flow: row wrap; margin: 0; overflow: visible}
@media (prefers-color-scheme: dark) {
  .labkit-play .labkit-gallery .labkit-card img {filter: invert(0.87) hue-rotate(180deg)}
}
@media (max-width: 600px) {
  .labkit-play {padding: 0 6px}
  .labkit-head .labkit-door {width: auto; flex: 1 1 100px}
  .labkit-head .labkit-door .widget-html {display: none}
  .labkit-play > .widget-tab > .widget-tab-contents {padding: 6px}
}
</style>"""


@dataclass(frozen=True)
class Section:
    """One tab: its title, and the function that makes its panel."""

    title: str
    make: Callable[[], ipywidgets.Widget]


SECTIONS = (
    Section("Knobs", lambda: Catalogue()),
    Section("Gallery", lambda: labkit.gallery()),
    Section("Gradients", lambda: labkit.gradient_panel()),
    Section("Overfitting", lambda: labkit.overfitting_panel()),
    Section("Learning rate", lambda: labkit.lr_panel()),
    Section("Fork", lambda: labkit.fork_panel()),
    Section("Phase diagram", lambda: labkit.phase_panel()),
    Section("Language model", lambda: labkit.gpt_panel()),
    Section("Ward", lambda: labkit.ward_panel()),
)


@dataclass(frozen=True)
class Door:
    """A way in for first-time visitors: a button that opens a tab and sets its panel."""

    title: str
    about: str
    section: str
    prepare: Callable[[ipywidgets.Widget], None]


DOORS = (
    Door("See a failure", "Turn a knob, and watch it come and go.", "Knobs", lambda shown: shown.show(FIRST)),
    Door("Guess it", "Loss curves with hidden names.", "Gallery", lambda shown: shown.ask()),
    Door("Examine a patient", "Order tests, diagnose, prescribe.", "Ward", lambda shown: shown.pressed_choose(1)),
)


def page() -> "Page":
    """All panels on one page without code: what `labkit play` serves."""
    return Page(SECTIONS, DOORS)


class Page(ipywidgets.VBox):
    """A head with three doors, and tabs; the first one is open."""

    def __init__(self, sections: tuple[Section, ...], doors: tuple[Door, ...] = ()):
        self.sections = sections
        self.made: dict[int, ipywidgets.Widget] = {}  # the panels of the tabs that were opened
        self.bodies = [ipywidgets.VBox() for _ in sections]
        self.tabs = ipywidgets.Tab(self.bodies, titles=tuple(section.title for section in sections), selected_index=0)
        self.tabs.observe(lambda change: self.enter(change["new"]), "selected_index")
        self.doors = {door.title: button(door.title, "", door.about, lambda d=door: self.go(d)) for door in doors}
        super().__init__([ipywidgets.HTML(STYLE), self.head(doors), self.tabs, accessible()])
        self.add_class("labkit-play")
        self.enter(0)

    def head(self, doors: tuple[Door, ...]) -> ipywidgets.Box:
        title = ipywidgets.HTML(TITLE)
        title.add_class("labkit-title")
        cards = [ipywidgets.VBox([self.doors[door.title], ipywidgets.HTML(html.escape(door.about))]) for door in doors]
        row = ipywidgets.Box(cards)
        row.add_class("labkit-doors")
        for number, card in enumerate(cards):
            card.add_class("labkit-door")
            self.doors[doors[number].title].button_style = "" if number else "primary"
        head = ipywidgets.Box([title, row])
        head.add_class("labkit-head")
        return head

    def enter(self, number: int | None) -> None:
        """Make the panel of a tab when it is opened for the first time."""
        if number is None or number in self.made:
            return
        self.made[number] = self.sections[number].make()
        self.bodies[number].children = (self.made[number],)

    def go(self, door: Door) -> None:
        """Open the tab of a door, and set its panel."""
        number = [section.title for section in self.sections].index(door.section)
        self.tabs.selected_index = number
        door.prepare(self.made[number])


class Catalogue(ipywidgets.VBox):
    """A knob panel for the failure chosen from two menus: topic and failure."""

    def __init__(self, first: str = FIRST):
        topics = list(dict.fromkeys(mode.topic for mode in FAILURES.values()))
        wide = {"description_width": "5em"}
        self.topic = ipywidgets.Dropdown(
            options=[(topic.replace("_", " "), topic) for topic in topics], description="topic", style=wide
        )
        self.failure = ipywidgets.Dropdown(
            description="failure", style=wide, layout={"width": "32em", "max_width": "100%"}
        )
        self.topic.value = FAILURES[first].topic
        self.list_failures(first)
        self.panel: KnobPanel = knobs(first)
        self.topic.observe(lambda _: self.list_failures(), "value")
        self.failure.observe(lambda _: self.chosen(), "value")
        menus = ipywidgets.Box([self.topic, self.failure])
        menus.add_class("labkit-menus")
        super().__init__([menus, self.panel])

    def show(self, name: str) -> None:
        """Choose this failure, and train its sick run."""
        self.topic.value, self.failure.value = FAILURES[name].topic, name
        self.panel.presets.value = "sick"

    def list_failures(self, chosen: str | None = None) -> None:
        """List the failures of the topic; select this one, or the first."""
        there = [(mode.title, name) for name, mode in FAILURES.items() if mode.topic == self.topic.value]
        self.failure.options = there
        self.failure.value = chosen or there[0][1]

    def chosen(self) -> None:
        """Replace the panel by that of the chosen failure."""
        if self.failure.value is None or self.failure.value == self.panel.setting.mode.name:
            return
        before, self.panel = self.panel, knobs(self.failure.value)
        self.children = (*self.children[:-1], self.panel)
        before.close()
