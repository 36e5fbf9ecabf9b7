"""The gallery of loss curves: cards with thumbnails of real runs; click one for a large view and its diagnosis."""

import dataclasses
import functools
import html
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ipywidgets
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imread

from labkit.diagnosis.diagnose import Diagnosis, diagnose
from labkit.drawing import plots
from labkit.errors import RecipeError, near
from labkit.failures.catalogue import FAILURES
from labkit.failures.mode import FailureMode
from labkit.panels.base_panel import LONGEST, Stored, heading
from labkit.panels.controls import LAYOUT, button, run_button, stop_button
from labkit.panels.live_plots import DOTS, DRAWING, Plots, framed, stacked, text_html
from labkit.panels.live_view import LiveView, close, first_cause, in_short, verdict_html
from labkit.panels.worker import Ticket
from labkit.recording.run import Run
from labkit.training import run_store
from labkit.training.recipe import Recipe, changes_in_words

HEALTHY = "healthy"
# One failure for each typical shape of a loss curve; each mode's own file names its shape.
CLASSIC = (
    HEALTHY,
    *(mode.name for mode in sorted((m for m in FAILURES.values() if m.classic), key=lambda mode: mode.classic.place)),
)
THUMBNAIL = (2.4, 1.35)  # inches
USUAL = (0.03, 4.0)  # range of losses that every thumbnail shows, so that a flat curve looks flat beside a falling one
FRAME, MARKED = "1px solid var(--jp-border-color1, #999999)", "3px solid #0072B2"
ABOUT = (
    "Every curve is a run trained on this machine: training loss as a line, validation loss as dots, on a log axis. "
    "Click a card to see the run beside its healthy twin, with diagnosis and prescription."
)


@dataclass(frozen=True)
class Exhibit:
    """What a card shows: the sick run of a failure mode, or a healthy run if `mode` is None."""

    name: str
    title: str
    recipe: Recipe
    twin: Recipe
    mode: FailureMode | None = None

    @classmethod
    def of(cls, name: str) -> "Exhibit":
        if name == HEALTHY:
            return cls(HEALTHY, "Healthy", Recipe(), Recipe())
        mode = FAILURES[name]
        return cls(name, mode.title, mode.sick, mode.healthy, mode)


def exhibits(names: str | Sequence[str] | None = None) -> list[Exhibit]:
    """The classic loss curves, or those of these modes, or of a topic."""
    if names is None:
        names = CLASSIC
    if isinstance(names, str):
        topic = [mode.name for mode in FAILURES.values() if mode.topic == names]
        names = topic or [names]
    names = list(dict.fromkeys(names))
    if not names:
        raise RecipeError("expected the names of failure modes or a topic, got an empty list")
    for name in names:
        if name not in FAILURES and name != HEALTHY:
            known = {*FAILURES, HEALTHY, *(mode.topic for mode in FAILURES.values())}
            raise RecipeError(f"there is no failure mode or topic {name!r}. {near(name, known)}")
    return [Exhibit.of(name) for name in names]


@dataclass(frozen=True)
class Answer:
    """The runs and the diagnosis of the chosen card."""

    exhibit: Exhibit
    run: Run
    healthy: Run | None  # None until it is trained
    diagnoses: list[Diagnosis]

    @property
    def runs(self) -> dict[str, Run]:
        if self.exhibit.mode is None:
            return {"healthy": self.run}
        return ({"healthy": self.healthy} if self.healthy else {}) | {"sick": self.run}

    @property
    def curves(self) -> str:
        """What the plots show, without the name of the failure."""
        gap = f", gap {self.run.gap[-1]:.2g}" if "probe_loss" in self.run and len(self.run["probe_loss"]) else ""
        twin = f"Healthy twin: {in_short(self.healthy)}" if self.healthy else "Its healthy twin is training"
        return f"This run: {in_short(self.run)}{gap}. {twin}."

    @property
    def words(self) -> str:
        return f"{self.exhibit.title}. {self.curves} Diagnosis: {first_cause(self.diagnoses)}."


def gallery(names: str | Sequence[str] | None = None, blind: bool = False) -> "Gallery":
    """Cards of the classic loss curves, of these failure modes, or of a topic; `blind` hides their names."""
    return Gallery(exhibits(names), blind)


class Card(ipywidgets.VBox):
    """A thumbnail above a button with its title, which can be hidden."""

    def __init__(self, exhibit: Exhibit, number: int, pressed: Callable[[], None]):
        self.exhibit, self.number, self.revealed = exhibit, number, True
        self.image = framed(THUMBNAIL, waiting(), width="100%")
        self.image.add_class("labkit-thumbnail")
        self.button = button("", "", "show this run in full", pressed)
        self.button.layout.width = "100%"
        layout = {"border": FRAME, "padding": "4px", "overflow": "hidden"}
        super().__init__([self.image, self.button], layout=layout)
        self.add_class("labkit-card")
        self.name(True)

    def name(self, revealed: bool) -> None:
        self.revealed = revealed
        self.button.description = self.exhibit.title if revealed else f"Curve {self.number}: what is this?"

    def mark(self, chosen: bool) -> None:
        self.layout.border = MARKED if chosen else FRAME
        self.layout.padding = "2px" if chosen else "4px"  # the border is 2 pixels wider: nothing moves


class Gallery(Stored):
    """Cards above, the chosen one below. Without a browser: `respond`, and `train_thumbnails`."""

    def __init__(self, shown: Sequence[Exhibit], blind: bool = False):
        self.view = LiveView([plots.losses, plots.validation, plots.gap, self.telltale])
        self.chosen: Card | None = None
        self.answered: Answer | None = None
        self.cards = [Card(each, number, lambda n=number: self.choose(n)) for number, each in enumerate(shown, start=1)]
        self.make_controls(blind)
        grid = {
            "grid_template_columns": "repeat(auto-fill, minmax(min(13em, 45%), 1fr))",
            "grid_gap": "10px",
            "width": "100%",
        }
        cards = ipywidgets.GridBox(self.cards, layout=grid | {"max_width": "100em", "padding": "6px 0"})
        super().__init__([heading("Gallery of loss curves", ABOUT), self.controls, cards, self.view.widget])
        self.add_class("labkit-gallery")
        self.hide_names()
        self.view.picture.say(f"{len(self.cards)} cards. Click one to see it in full.")
        self.view.picture.hide()  # nothing is chosen yet
        self.view.widget.layout.flex = "0 0 auto"  # below the cards, at its own height
        self.start()

    @property
    def plots(self) -> Plots:
        return self.view.picture

    def settle(self) -> None:
        self.view.worker.wait(LONGEST)

    def stored(self) -> dict[str, str]:
        """All cards, and below them the chosen one."""
        chosen = [self.plots.png()] if self.plots.finished.thing is not None else []
        return {"text/plain": self.plots.words} | stacked([contact_sheet(self.cards), *chosen])

    def make_controls(self, blind: bool) -> None:
        self.blind = ipywidgets.Checkbox(value=blind, description="blind: hide the names", indent=False, layout=LAYOUT)
        self.blind.tooltip = "look at each curve, guess the failure, then reveal it"
        self.blind.add_class("labkit-blind")
        self.blind.observe(lambda _: self.hide_names(), "value")
        self.run_button = run_button(self.start, "train the curves that are still missing")
        self.stop_button = stop_button(self.stop)
        self.reveal_button = button("Reveal", "eye", "show which failure the chosen curve is", self.reveal, "info")
        self.reveal_button.add_class("labkit-reveal")
        self.count = ipywidgets.HTML()
        self.count.add_class("labkit-count")
        parts = [self.run_button, self.stop_button, self.blind, self.reveal_button, self.count]
        layout = {"flex_flow": "row wrap", "align_items": "center", "grid_gap": "0.6em"}
        self.controls = ipywidgets.HBox(parts, layout=layout)

    # --- what a click does ---

    def respond(self, name: str) -> Answer:
        """Choose this card, train what is missing, and return the result once it is shown."""
        numbers = {card.exhibit.name: card.number for card in self.cards}
        if name not in numbers:
            raise RecipeError(f"this gallery has no card {name!r}. {near(name, numbers)}")
        self.mark(numbers[name])
        self.view.worker.stop()
        return self.show_chosen(Ticket())

    def choose(self, number: int) -> None:
        """Show this card in full, then continue with the thumbnails."""
        self.mark(number)
        self.start()

    def start(self) -> None:
        self.view.perform(self.work)

    def stop(self) -> None:
        self.view.worker.stop()

    def work(self, ticket: Ticket) -> None:
        if self.chosen and self.show_chosen(ticket) is None:
            self.view.picture.say("Stopped.")
        self.train_thumbnails(ticket)

    def mark(self, number: int) -> None:
        self.chosen = self.cards[number - 1]
        for card in self.cards:
            card.mark(card is self.chosen)

    def show_chosen(self, ticket: Ticket) -> Answer | None:
        """The chosen card, at once if it is remembered, then its twin beside it; None if it was cancelled."""
        card, exhibit = self.chosen, self.chosen.exhibit
        self.view.verdict.value = ""
        run = self.view.train(exhibit.recipe, {}, ticket)
        if run is None:
            return None
        self.draw(card)
        self.answered = Answer(exhibit, run, run_store.in_memory.get(exhibit.twin), diagnose(run))
        self.tell(card)
        if self.answered.healthy is None:
            healthy = trained(exhibit.twin, ticket)
            if ticket.cancelled:
                return None
            self.answered = dataclasses.replace(self.answered, healthy=healthy)
            self.tell(card)
        return self.answered

    def tell(self, card: Card) -> None:
        """Show the chosen card; its name and diagnosis only if it is revealed."""
        answer = self.answered
        self.view.show(answer.runs, answer.words if card.revealed else answer.curves)
        self.view.verdict.value = card_html(answer) if card.revealed else QUESTION

    # --- names ---

    def ask(self) -> None:
        """Hide the names and show a sick curve, to be guessed."""
        self.blind.value = True
        self.choose(min(2, len(self.cards)))

    def hide_names(self) -> None:
        """Hide or show the names of all cards, as the checkbox says."""
        for card in self.cards:
            card.name(not self.blind.value)
        self.reveal_button.layout.display = None if self.blind.value else "none"
        self.tell_again()

    def reveal(self) -> None:
        """Show the name and the diagnosis of the chosen card."""
        if self.chosen is None:
            return self.view.picture.say("Choose a card first.")
        self.chosen.name(True)
        self.tell_again()

    def tell_again(self) -> None:
        """Update the chosen card; one that is still training is shown when it is finished."""
        if self.answered and self.answered.exhibit is self.chosen.exhibit:
            self.tell(self.chosen)

    def telltale(self, runs: dict[str, Run], ax):
        """The instrument that shows the failure best; a question mark while the name is hidden."""
        exhibit = self.chosen.exhibit
        if self.chosen.revealed:
            shows = exhibit.mode.shows if exhibit.mode else "update_ratio"
            return (plots.gradient_bars if shows == "gap" else plots.instrument(shows))(runs, ax=ax)
        ax.set_axis_off()
        ax.text(0.5, 0.5, "?", fontsize=48, ha="center", va="center", color="#888888", transform=ax.transAxes)
        return ax

    # --- thumbnails ---

    def train_thumbnails(self, ticket: Ticket) -> None:
        """Train every card that has no thumbnail yet, one by one, until the ticket is cancelled."""
        for card in self.cards:
            if card.image.value == waiting() and not ticket.cancelled:
                self.say_count(f"training {card.exhibit.title if card.revealed else f'curve {card.number}'}")
                trained(card.exhibit.recipe, ticket)
                self.draw(card)
        self.say_count("stopped" if ticket.cancelled else "all trained")

    def draw(self, card: Card) -> None:
        run = run_store.in_memory.get(card.exhibit.recipe)
        if run is not None:
            card.image.value = thumbnail(run)

    def say_count(self, words: str) -> None:
        done = sum(card.image.value != waiting() for card in self.cards)
        words = f"{done} of {len(self.cards)} curves ({html.escape(words)})"
        self.count.value = f"<span role='status' aria-live='polite'>{words}</span>"

    def close(self) -> None:
        """Stop, and remove the gallery from the notebook."""
        self.view.end()
        close(self)


QUESTION = text_html(
    "<b>What is this?</b> Look at training loss, validation loss and gap. Is the run stuck, still improving, noisy, or "
    "ended early? Which of the two losses is wrong? Then press Reveal."
)


def trained(recipe: Recipe, ticket: Ticket) -> Run:
    """The run of a recipe, remembered or trained now, until the ticket is cancelled."""
    return run_store.in_memory.run_of(recipe, each_step=lambda _: ticket.cancelled, progress=False)


def card_html(answer: Answer) -> str:
    """Diagnosis from the instruments, then from the catalogue: symptom, mechanism, first check, change and cure."""
    found, mode = verdict_html(answer.diagnoses), answer.exhibit.mode
    title = f"<h4 style='margin:0.4em 0 0'>{html.escape(answer.exhibit.title)}</h4>"
    if mode is None:
        return text_html(title + found)
    lines = {
        "Looks like": mode.symptom,
        "Because": mode.mechanism,
        "Check first": mode.first_check,
        "Changed from the healthy twin": changes_in_words(mode.sick, mode.healthy).replace("->", "→"),
        "Proven cure": next(iter(mode.cures)),
    }
    rest = "<br>".join(f"<b>{name}:</b> {html.escape(text)}" for name, text in lines.items())
    return text_html(f"{title}{found}<p>{rest}</p>")


def thumbnail(run: Run) -> bytes:
    """Training and validation loss without labels; all thumbnails have the same scale as far as they fit."""
    with DRAWING:
        ax = _small_axes()
        plots.losses({"sick": run}, ax)
        ax.set_title("")
        for text in list(ax.texts):  # the cross at the first NaN stays; its label has no room
            text.remove()
        low, high = ax.get_ylim()
        ax.set_ylim(min(low, USUAL[0]), max(high, USUAL[1]))
        ax.set(xlabel="", ylabel="", xlim=(-0.03 * run.facts["planned_steps"], 1.03 * run.facts["planned_steps"]))
        ax.tick_params(labelbottom=False, labelsize=7, length=2)
        return _png(ax.figure)


def contact_sheet(cards: Sequence[Card], across: int = 4) -> bytes:
    """The thumbnails of all cards with what is written on them, as one picture."""
    rows = -(-len(cards) // across)
    with DRAWING:
        figure = Figure(figsize=(THUMBNAIL[0] * across, (THUMBNAIL[1] + 0.25) * rows), dpi=DOTS, layout="constrained")
        FigureCanvasAgg(figure)
        for index, ax in enumerate(figure.subplots(rows, across, squeeze=False).ravel()):
            ax.set_axis_off()
            if index < len(cards):
                ax.imshow(imread(io.BytesIO(cards[index].image.value)))
                ax.set_title(cards[index].button.description, fontsize=8)
        return _png(figure)


@functools.cache
def waiting() -> bytes:
    """The thumbnail of a run that is not trained yet."""
    with DRAWING:
        ax = _small_axes()
        ax.set_axis_off()
        ax.text(0.5, 0.5, "not trained yet", ha="center", va="center", color="#777777", fontsize=8)
        return _png(ax.figure)


def _small_axes():
    figure = Figure(figsize=THUMBNAIL, dpi=1.5 * DOTS)  # sharp on a card that is wider than the figure
    FigureCanvasAgg(figure)
    return figure.add_axes((0.16, 0.06, 0.82, 0.9))


def _png(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return stream.getvalue()
