"""The part of a panel where runs are seen: progress, picture, status and verdict, and the thread they train in."""

import html
import threading
import time
from collections.abc import Callable, Sequence

import ipywidgets

from labkit.diagnosis.diagnose import Diagnosis, diagnose
from labkit.training.rules import RecipeError
from labkit.training.recipe import Recipe
from labkit.recording.run import Run
from labkit.panels import run_memory as memory
from labkit.panels.accessibility import accessible
from labkit.panels.live_plots import SIZE, Pane, Picture, text_html
from labkit.panels.worker import Ticket, Worker

FIRST_FRAME, NEXT_FRAME = 0.1, 0.3  # seconds of training before the first live picture, and between the next ones
FIRST_WORD = 32  # steps before which the live verdict says nothing: every run looks stuck at first


class Stage:
    """`perform` does a job in the thread; in it, `train` shows a run while it trains, and `show` what came of it."""

    def __init__(self, panes: Sequence[Pane], columns: int = 2, size: tuple[float, float] = SIZE):
        self.worker = Worker(self.refuse)
        # The thread and the buttons write to the same status: a frame that is being drawn when Stop is pressed must not
        # have the last word.
        self.speaking = threading.Lock()
        self.picture = Picture(panes, columns, size)
        self.progress = ipywidgets.IntProgress(max=1, layout={"width": "100%", "height": "1.3em"})
        self.progress.add_class("labkit-progress")
        self.verdict = ipywidgets.HTML()
        self.verdict.add_class("labkit-verdict")
        shown = [self.progress, self.picture.image, self.picture.status, self.verdict, accessible()]
        self.widget = ipywidgets.VBox(shown, layout={"flex": "1 1 30em", "min_width": "20em", "max_width": "58em"})

    def perform(self, job: Callable[[Ticket], None]) -> Ticket:
        """Do this in the thread. What is being done there is given up; an error is shown with its reason."""
        return self.worker.start(job)

    def stop(self) -> None:
        """Give up what is going on, within a step."""
        with self.speaking:
            if self.worker.busy:
                self.worker.stop()
                self.progress.bar_style = "warning"
                self.picture.say(f"Stopped after {self.progress.value} of {self.progress.max} steps.")

    def train(self, recipe: Recipe, known: dict[str, Run], ticket: Ticket) -> Run | None:
        """The run of this recipe, shown beside the known ones while it trains; None if it was given up."""
        run = memory.remembered(recipe)
        if run is None:
            with self.speaking:
                if ticket.cancelled:
                    return None
                self.progress.bar_style, self.progress.value, self.progress.max = "", 0, recipe.steps
                self.picture.say(f"Training, {recipe.steps} steps.")
            self.picture.begin(known, recipe.steps)
            run = memory.trained(recipe, Frames(self, recipe, ticket))
        return None if ticket.cancelled else run

    def show(self, thing: dict[str, Run], words: str, found: list[Diagnosis] | None = None) -> None:
        """The finished picture, what it shows, and the verdict."""
        self.picture.whole(thing)
        self.progress.value, self.progress.bar_style = self.progress.max, "success"
        self.picture.say(words)
        if found is not None:
            self.verdict.value = verdict_html(found)

    def refuse(self, error: Exception) -> None:
        """Say what is wrong in the panel: a traceback in a thread would be seen by nobody."""
        kind = "" if isinstance(error, RecipeError) else f"{type(error).__name__}: "
        with self.speaking:
            self.progress.bar_style = "danger"
            self.picture.say(f"This cannot be trained. {kind}{error}")
            self.verdict.value = ""

    def end(self) -> None:
        """Give up what is going on, and wait until it has ended."""
        self.worker.stop()
        self.worker.wait()


class Frames:
    """What happens after every step of a run that is shown: stop if nobody wants it any more, draw if it is time."""

    def __init__(self, stage: Stage, recipe: Recipe, ticket: Ticket):
        self.stage, self.recipe, self.ticket = stage, recipe, ticket
        self.next = time.perf_counter() + FIRST_FRAME

    def __call__(self, recorder) -> bool:
        if self.ticket.cancelled:
            return True
        if time.perf_counter() >= self.next:
            self.draw(recorder)
            self.next = time.perf_counter() + NEXT_FRAME
        return False

    def draw(self, recorder) -> None:
        facts = {"planned_steps": self.recipe.steps, "stopped": None, "error": None}
        facts |= {name: getattr(self.recipe, name) for name in ("samples", "batch_size", "clip", "clip_by")}
        run = recorder.run(self.recipe.summary(), **facts)
        self.stage.picture.grow(run)
        verdict = verdict_html(diagnose(run), so_far=True) if len(run) >= FIRST_WORD else None
        with self.stage.speaking:
            if self.ticket.cancelled:
                return
            self.stage.progress.value = len(run)
            self.stage.picture.say(f"Training: step {len(run)} of {self.recipe.steps}, loss {run['loss'][-1]:.3g}.")
            if verdict:
                self.stage.verdict.value = verdict


def verdict_html(found: list[Diagnosis], so_far: bool = False) -> str:
    """The first cause with its evidence and what to do; the others by name."""
    when = "So far: " if so_far else ""
    if not found:
        return text_html(f"<b>{when}no failure shows.</b>")
    first, *others = found
    place = f", in {first.place}" if first.place else ""
    lines = [f"<b>{when}{html.escape(first.title)}</b> (from step {first.onset}{html.escape(place)})"]
    lines += [f"Seen: {html.escape(first.seen)}. Usual: {html.escape(first.usual)}."]
    lines += [f"What to do: {html.escape(first.prescription)}"]
    lines += [f"Also: {html.escape(', '.join(each.title for each in others))}."] if others else []
    return text_html("<br>".join(lines))


def close(widget: ipywidgets.Widget) -> None:
    """Take a widget and all that belongs to it out of the notebook."""
    parts = [getattr(widget, name, None) for name in ("layout", "style")]
    for part in (*getattr(widget, "children", ()), *parts):
        if isinstance(part, ipywidgets.Widget):
            close(part)
    ipywidgets.Widget.close(widget)
