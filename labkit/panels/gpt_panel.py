"""The GPT panel: what a small language model reads, attends to, predicts and writes, broken beside healthy."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import ipywidgets
import torch
from torch import Tensor, nn

from labkit.diagnosis.diagnose import Diagnosis, diagnose
from labkit.drawing import plots
from labkit.failures.catalogue import FAILURES
from labkit.failures.mode import Knob
from labkit.panels import gpt_pictures
from labkit.panels.base_panel import RecipePanel
from labkit.panels.controls import LAYOUT, WIDE, button
from labkit.panels.gpt_pictures import Look, look
from labkit.panels.live_view import YOURS, Frames, LiveView, first_cause, in_short
from labkit.panels.worker import Ticket
from labkit.recording.run import Run
from labkit.recording.undisturbed import evaluating
from labkit.training import tokens, writing
from labkit.training.data import CLASSES, Data, Split
from labkit.training.language import LanguageRecipe
from labkit.training.recipe import Recipe
from labkit.training.run_store import Memory, RunStore

# What is read and written is chosen beside the pictures of it, on one line where there is room.
ROW = {"display": "flex", "flex_flow": "row wrap", "align_items": "center", "grid_gap": "2px 10px"}
NARROW = {"style": {"description_width": "3em"}, "layout": {"width": "8em"}}
FILLS = {"style": {"description_width": "5.5em"}, "layout": {"flex": "1 1 16em", "width": "auto", "max_width": "26em"}}
PAUSE = 0.04  # seconds between two patches of the samples, so that they are seen to be written


def second_next_tokens(recipe) -> Data:
    """The targets are shifted twice."""
    return tokens.token_data(recipe, name="second_next_tokens", pairs=_shifted_twice)


def _shifted_twice(ids: Tensor) -> Split:
    last = torch.full_like(ids[:, :1], tokens.IGNORED)
    return Split(ids[:, :-1].contiguous(), torch.cat([ids[:, 2:], last], dim=1))


HEALTHY = LanguageRecipe(steps=200)  # 8 s on one core
NO_SHIFT = FAILURES["targets_not_shifted"].sick.data
NO_MASK, ONE_AHEAD = (FAILURES[name].sick.mask for name in ("causal_mask_missing", "mask_one_ahead"))
PRESETS = {
    "healthy": HEALTHY,
    "no mask": HEALTHY.but(mask=NO_MASK),
    "no shift": HEALTHY.but(data=NO_SHIFT),
    "shifted twice": HEALTHY.but(data=second_next_tokens),
    "no positions": HEALTHY.but(positions="none"),
    "lr 0.1": HEALTHY.but(lr=0.1),
}
KNOBS = (Knob("lr", (1e-3, 0.3), log=True), Knob("positions", ()), Knob("qk_norm", (False, True)))
ABOUT = (
    "A GPT of two blocks reads a digit as its label and 49 patches of four pixels, and predicts each next patch. "
    "Change what it may see, what it is asked for, or how it is trained, and compare it with its healthy twin: where "
    "it looks, where it is surprised, and what it writes."
)


class PartMenu:
    """A menu for a part of the recipe; its value is a function, as `Control.value` is a number."""

    def __init__(self, name: str, about: str, choices: dict[str, Callable]):
        self.parts = {part.__name__: part for part in choices.values()}
        options = [(words, part.__name__) for words, part in choices.items()]
        self.widget = ipywidgets.Dropdown(options=options, description=about, style=WIDE, layout=LAYOUT)
        self.widget.add_class(f"labkit-knob-{name}")

    @property
    def value(self) -> Callable:
        return self.parts[self.widget.value]

    @value.setter
    def value(self, name: str) -> None:
        self.widget.value = name


@dataclass(frozen=True)
class Answer:
    """The runs of the healthy twin and of another setting, if it is one; how the nets read a digit, what they write."""

    runs: dict[str, Run]
    looks: dict[str, Look]
    diagnoses: list[Diagnosis]
    written: dict[str, Tensor] = field(default_factory=dict)  # (samples, tokens) of each net

    @property
    def run(self) -> Run:
        """The run of the setting."""
        return list(self.runs.values())[-1]

    @property
    def words(self) -> str:
        """What the panel shows, in a few short sentences: the status line."""
        losses = ", ".join(f"{label} {one.losses.mean():.2f}" for label, one in self.looks.items())
        legible = ", ".join(f"{label} {run['val_legible'][-1]:.0%}" for label, run in self.runs.items())
        return (
            f"Your run: {in_short(self.run)}. Nats per patch of this digit: {losses}. Legible samples: {legible}. "
            f"Diagnosis: {first_cause(self.diagnoses)}."
        )


def gpt_panel() -> "GPTPanel":
    """What a small GPT reads, attends to, predicts and writes, beside its healthy twin."""
    return GPTPanel()


class NetFrames(Frames):
    """Shows the net too while it trains, and keeps it."""

    view: "NetView"

    def __call__(self, recorder) -> bool:
        self.view.nets[self.recipe] = recorder.model
        return super().__call__(recorder)

    def draw(self, recorder) -> None:
        super().draw(recorder)
        with recorder.not_listening():
            self.view.glance(recorder.model)


class NetView(LiveView):
    """A LiveView that keeps the trained nets: its store is its own, so that each run in it has its net."""

    def __init__(self, glance: Callable[[nn.Module], None]):
        self.nets: dict[Recipe, nn.Module] = {}
        self.glance = glance
        super().__init__([plots.losses, plots.instrument("val_nats")], store=RunStore(memory=Memory()))

    def frames(self, recipe: Recipe, ticket: Ticket) -> Frames:
        return NetFrames(self, recipe, ticket)


class GPTPanel(RecipePanel):
    """Without a browser: `respond("no mask", patch=24)`."""

    def __init__(self, presets: dict[str, Recipe] | None = None):
        presets = presets or PRESETS
        self.base = next(iter(presets.values()))
        self.digits = one_of_each(self.base)
        self.looks: dict[str, Look] = {}
        self.training = "healthy"  # the label of the net that trains
        self.drafts = 0  # how often samples were written: each time others
        self.board, self.samples = ipywidgets.HTML(), ipywidgets.HTML()
        view = NetView(self.glance)
        super().__init__("A GPT that writes digits", ABOUT, presets, KNOBS, view)
        reading = ipywidgets.Box([self.digit, self.patch, self.write_button], layout=ROW)
        progress, charts, status, *rest = view.widget.children
        view.widget.children = (progress, status, reading, self.board, self.samples, charts, *rest)

    # --- the controls ---

    def make_controls(self) -> None:
        super().make_controls()
        masks = {"causal": type(self.base)().mask, "one token ahead": ONE_AHEAD, "none": NO_MASK}
        targets = {"next token": self.base.data, "same token": NO_SHIFT, "second next": second_next_tokens}
        menus = {"mask": PartMenu("mask", "mask", masks), "data": PartMenu("data", "target", targets)}
        for name, menu in menus.items():
            menu.widget.observe(lambda _, name=name: self.turned(name), "value")
        self.knobs = {**menus, **self.knobs}
        self.digit = ipywidgets.Dropdown(options=range(CLASSES), value=3, description="digit", **NARROW)
        self.patch = ipywidgets.IntSlider(value=24, min=1, max=tokens.PATCHES, description="next patch", **FILLS)
        self.digit.tooltip = "the validation image that both nets read"
        self.patch.tooltip = "the patch that is predicted: attention is that of the token before it"
        self.digit.add_class("labkit-digit")
        self.patch.add_class("labkit-patch")
        self.digit.observe(lambda _: self.look_again(), "value")
        self.patch.observe(lambda _: self.redraw(), "value")
        self.write_button = button("Write again", "pencil", "ten new samples of both nets", self.write_again)

    def respond(self, preset: str | None = None, *, digit: int | None = None, patch: int | None = None, **changes):
        """As `RecipePanel.respond`, with the digit that is read, and the patch that is predicted (from 1 to 49)."""
        with self.moves():
            self.digit.value = self.digit.value if digit is None else digit
            self.patch.value = self.patch.value if patch is None else patch
        return super().respond(preset, **changes)

    # --- training and looking ---

    @property
    def compared(self) -> dict[str, Recipe]:
        """The healthy twin, and the recipe that is set if it is another one."""
        twin = self.base.but(seed=self.recipe.seed)
        return {"healthy": twin} | ({} if self.recipe == twin else {YOURS: self.recipe})

    def answer(self, ticket: Ticket) -> Answer | None:
        """Train and show the healthy recipe and the one that is set, then let both write; None if it was cancelled."""
        recipes, runs = self.compared, dict[str, Run]()
        self.looks = {label: one for label, one in self.looks.items() if label == "healthy"}
        for label, recipe in recipes.items():
            self.training = label
            run = self.view.train(recipe, dict(runs), ticket)
            if run is None:
                return None
            runs[label], self.looks[label] = run, self.look_of(recipe)
        self.redraw()
        answer = Answer(runs, dict(self.looks), diagnose(run))
        self.view.show(runs, answer.words, answer.diagnoses)
        written = self.write(ticket)
        return None if written is None else replace(answer, written=written)

    def look_of(self, recipe: Recipe) -> Look:
        return look(self.view.nets[recipe], self.digits[self.digit.value])

    def glance(self, model: nn.Module) -> None:
        """Look at a net while it trains."""
        self.looks[self.training] = look(model, self.digits[self.digit.value])
        self.redraw()

    def look_again(self) -> None:
        """Both nets read another digit; one that trains does so at its next frame."""
        if not self.moving and not self.view.worker.busy:
            self.looks = {label: self.look_of(recipe) for label, recipe in self.compared.items()}
            self.redraw()

    def redraw(self) -> None:
        if self.looks:
            self.board.value = gpt_pictures.board(self.looks, self.patch.value - 1)

    # --- writing ---

    def write_again(self) -> None:
        """New samples of both nets, once they are trained."""
        if not self.view.worker.busy:
            self.view.perform(self.write)

    def write(self, ticket: Ticket) -> dict[str, Tensor] | None:
        """Both nets write a sample of each digit at the same pace; None if it was cancelled."""
        nets = {label: self.view.nets[recipe] for label, recipe in self.compared.items()}
        self.drafts += 1
        pens = {label: pen(net, self.drafts) for label, net in nets.items()}
        rows = {label: torch.zeros(CLASSES, 0, dtype=torch.long) for label in nets}
        for _ in range(tokens.PATCHES):
            if ticket.cancelled:
                return None
            for label, net in nets.items():
                with evaluating(net):
                    rows[label] = torch.cat([rows[label], next(pens[label]).cpu()], dim=1)
            self.samples.value = gpt_pictures.written(rows)
            time.sleep(PAUSE)
        return rows


def pen(net: nn.Module, seed: int) -> Iterator[Tensor]:
    """Writes one token of each sample at a time."""
    begun = writing.prompts(CLASSES, next(net.parameters()).device)
    return writing.one_by_one(net, begun, tokens.PATCHES, 1.0, torch.Generator().manual_seed(seed))


def one_of_each(recipe: Recipe) -> Tensor:
    """(10, 50): the tokens of a validation image of each digit, the one of which the judge is most sure."""
    split = tokens.mnist_tokens(recipe.but(device="cpu")).val
    both = torch.cat([split.x, split.y[:, -1:]], dim=1)
    sure = writing.judge()(tokens.pictures(both[:, 1:]).float()).softmax(1)
    known = torch.nn.functional.one_hot(both[:, 0] - tokens.KINDS, CLASSES)
    return both[(sure * known).argmax(0)]
