"""The right side of a panel: progress bar, plots, status line and verdict, and the thread in which runs train."""

import html
import threading
import time
from collections.abc import Callable, Sequence

import ipywidgets

from labkit.diagnosis.diagnose import Diagnosis, diagnose
from labkit.errors import RecipeError
from labkit.panels.accessibility import accessible
from labkit.panels.chart import plots_of
from labkit.panels.live_plots import SIZE, Pane, text_html
from labkit.panels.worker import Ticket, Worker
from labkit.recording.run import Run
from labkit.training import run_store
from labkit.training.recipe import Recipe
from labkit.training.run_store import RunStore

FIRST_FRAME, NEXT_FRAME = 0.05, 0.15  # seconds of training before the first frame, and at least between the next ones
SHARE = 0.1  # of the time that frames may take from training: one costs 5 ms at step 100, and more in a long run
FIRST_VERDICT = 32  # steps before the first live verdict: every run looks stuck at first


class LiveView:
    """`perform` does a job in the thread; the job calls `train`, which shows a run while it trains, and then `show`."""

    def __init__(
        self,
        panes: Sequence[Pane],
        columns: int = 2,
        size: tuple[float, float] = SIZE,
        store: RunStore = run_store.in_memory,
    ):
        self.store = store
        self.worker = Worker(self.refuse)
        # The thread and the buttons write to the same status: a frame that is being drawn when Stop is pressed must not
        # overwrite "Stopped".
        self.speaking = threading.Lock()
        self.picture = plots_of(panes, columns, size)
        self.progress = ipywidgets.IntProgress(max=1, layout={"width": "100%"})
        self.progress.add_class("labkit-progress")
        self.verdict = ipywidgets.HTML()
        self.verdict.add_class("labkit-verdict")
        shown = [self.progress, self.picture.widget, self.picture.status, self.verdict, accessible()]
        self.widget = ipywidgets.VBox(shown, layout={"flex": "1 1 30em", "min_width": "0", "max_width": "76em"})

    def perform(self, job: Callable[[Ticket], None]) -> Ticket:
        """Do this job in the thread, and cancel the one before it; an error is shown in the panel."""
        return self.worker.start(job)

    def stop(self) -> None:
        """Cancel what is training, within a step."""
        with self.speaking:
            if self.worker.busy:
                self.worker.stop()
                self.progress.bar_style = "warning"
                self.picture.say(f"Stopped after {self.progress.value} of {self.progress.max} steps.")
                if self.progress.value < FIRST_VERDICT:
                    self.verdict.value = ""  # it was that of the run before

    def train(self, recipe: Recipe, known: dict[str, Run], ticket: Ticket) -> Run | None:
        """The run of this recipe, shown beside the known ones while it trains; None if it was cancelled."""
        if self.store.get(recipe) is None:
            with self.speaking:
                if ticket.cancelled:
                    return None
                self.progress.bar_style, self.progress.value, self.progress.max = "", 0, recipe.steps
                self.picture.say(f"Training, {recipe.steps} steps.")
            self.picture.begin(known, recipe.steps)
        run = self.store.run_of(recipe, each_step=self.frames(recipe, ticket), progress=False)
        return None if ticket.cancelled else run

    def frames(self, recipe: Recipe, ticket: Ticket) -> "Frames":
        """What shows this recipe while it trains."""
        return Frames(self, recipe, ticket)

    def show(self, thing: dict[str, Run], words: str, found: list[Diagnosis] | None = None) -> None:
        """The finished plots, what they show in words, and the verdict."""
        self.picture.whole(thing)
        self.progress.value, self.progress.bar_style = self.progress.max, "success"
        self.picture.say(words)
        if found is not None:
            self.verdict.value = verdict_html(found)

    def refuse(self, error: Exception) -> None:
        """Show an error in the panel: nobody would see the traceback of a thread."""
        kind = "" if isinstance(error, RecipeError) else f"{type(error).__name__}: "
        with self.speaking:
            self.progress.bar_style = "danger"
            self.picture.say(f"This cannot be trained. {kind}{error}")
            self.verdict.value = ""

    def end(self) -> None:
        """Cancel what is training, and wait until the thread has ended."""
        self.worker.stop()
        self.worker.wait()


class Frames:
    """Called after every step of a run that is shown: stop if it was cancelled, draw a frame if it is time."""

    def __init__(self, view: LiveView, recipe: Recipe, ticket: Ticket):
        self.view, self.recipe, self.ticket = view, recipe, ticket
        self.next = time.perf_counter() + FIRST_FRAME

    def __call__(self, recorder) -> bool:
        if self.ticket.cancelled:
            return True
        began = time.perf_counter()
        if began >= self.next:
            self.draw(recorder)
            ended = time.perf_counter()
            self.next = ended + max(NEXT_FRAME, (ended - began) / SHARE)
        return False

    def draw(self, recorder) -> None:
        facts = {"planned_steps": self.recipe.steps, "stopped": None, "error": None}
        facts |= {name: getattr(self.recipe, name) for name in ("samples", "batch_size", "clip", "clip_by", "measure")}
        run = recorder.as_run(self.recipe.summary(), **facts)
        self.view.picture.grow(run)
        verdict = verdict_html(diagnose(run), so_far=True) if len(run) >= FIRST_VERDICT else None
        with self.view.speaking:
            if self.ticket.cancelled:
                return
            self.view.progress.value = len(run)
            self.view.picture.say(f"Training: step {len(run)} of {self.recipe.steps}, loss {run['loss'][-1]:.3g}.")
            if verdict:
                self.view.verdict.value = verdict


YOURS = "your run"  # its label in plots and status lines


def in_short(run: Run) -> str:
    """'400 steps, loss 0.12, validation 94.5 %'."""
    loss = [f"loss {run['loss'][-1]:.3g}".replace("nan", "NaN")] if len(run) else []
    ending = [run.facts["stopped"]] if run.facts["stopped"] else []
    score = [f"validation {run.measure.text(run.score)}"] if run.score is not None else []
    return ", ".join([f"{len(run)} steps", *loss, *score, *ending])


def first_cause(found: list[Diagnosis]) -> str:
    """The verdict in a status line: the title of the first diagnosis."""
    return found[0].title if found else "no failure shows"


def verdict_html(found: list[Diagnosis], so_far: bool = False) -> str:
    """The first cause with its evidence and what to do; the others by title."""
    when = "So far: " if so_far else ""
    if not found:
        return text_html(f"<b>{when + 'no' if when else 'No'} failure shows.</b>")
    first, *others = found
    place = f", in {first.place}" if first.place else ""
    lines = [f"<b>{when}{html.escape(first.title)}</b> (from step {first.onset}{html.escape(place)})"]
    lines += [f"Seen: {html.escape(first.seen)}. Usual: {html.escape(first.usual)}."]
    lines += [f"What to do: {html.escape(first.prescription)}"]
    lines += [f"Also: {html.escape(', '.join(each.title for each in others))}."] if others else []
    return text_html("<br>".join(lines))


def close(widget: ipywidgets.Widget) -> None:
    """Remove a widget from the notebook, with its children, layout and style."""
    parts = [getattr(widget, name, None) for name in ("layout", "style")]
    for part in (*getattr(widget, "children", ()), *parts):
        if isinstance(part, ipywidgets.Widget):
            close(part)
    ipywidgets.Widget.close(widget)
