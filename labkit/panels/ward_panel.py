"""The ward as a panel: choose a patient, order instruments, name the failure, prescribe, and see the grade."""

import base64
import html
import time

import ipywidgets

from labkit.course.ward import prescriptions
from labkit.course.ward.game import MOST, TRIES, Answer, Treated, Ward, ward
from labkit.course.ward.instruments import INSTRUMENTS, Finding, rows_html
from labkit.diagnosis.study import Study
from labkit.drawing import plots
from labkit.errors import RecipeError
from labkit.failures.catalogue import FAILURES
from labkit.panels.accessibility import accessible
from labkit.panels.base_panel import LONGEST, Stored
from labkit.panels.chart import plots_of
from labkit.panels.controls import button
from labkit.panels.live_plots import Plots
from labkit.panels.live_view import close
from labkit.panels.worker import Ticket, Worker
from labkit.training.recipe import Recipe, changes_in_words

BETWEEN = 0.2  # seconds between two moves of the progress bar
PANE = (4.3, 2.7)  # inches
FIELD = {"description_width": "4.2em"}
STYLE = """<style>
.labkit-ward {max-width: 80em}
.labkit-ward .widget-html-content, .labkit-ward .widget-html-content td {line-height: 1.4}
.labkit-ward .labkit-card {border: 1px solid var(--jp-border-color2, #d0d0d0); border-radius: 8px;
  padding: .5em .8em .7em; margin: 0 0 .7em 0; overflow: visible}
.labkit-ward h4 {margin: 0 0 .2em 0; font-size: 1em}
.labkit-ward h4 small {font-weight: normal; opacity: .75; float: right}
.labkit-ward .labkit-orders {display: grid; grid-template-columns: 1fr 1fr; gap: 3px}
.labkit-ward .labkit-orders button {text-align: left; padding: 0 .6em; margin: 0; width: auto;
  border-left: 4px solid transparent}
.labkit-ward .labkit-orders .labkit-ordered {border-left-color: #0072B2}
.labkit-ward .labkit-orders .labkit-shown {box-shadow: inset 0 0 0 2px #0072B2}
.labkit-ward .labkit-total {font-size: 1.3em; font-weight: 600}
.labkit-ward button:focus-visible {outline: 3px solid #E69F00; outline-offset: 1px}
.labkit-ward .labkit-status {border-left: 4px solid #E69F00; padding-left: .6em; margin-bottom: .4em}
.labkit-ward .labkit-visually-hidden {position: absolute;
  width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%)}
.labkit-ward .labkit-findings {margin-bottom: .6em}
.labkit-ward .labkit-ward-sheet a {text-decoration: underline; color: var(--jp-content-link-color, #0055aa)}
.labkit-ward .labkit-history ol {margin: .2em 0 0 0; padding-left: 1.3em}
</style>"""


def ward_panel(admitted: "Ward | None" = None, *, seed: int = 0, patients: int = 6, student: str = "") -> "WardPanel":
    """The panel of an existing ward, or of a new one with this seed."""
    return WardPanel(admitted or ward(seed, patients, student))


class WardPanel(Stored):
    """Patients above; actions on the left, findings on the right.

    Without a browser: `choose`, `order`, `name`, `prescribe` and `reveal` do what the buttons do, and return when done.
    """

    def __init__(self, admitted: Ward):
        self.ward, self.patient = admitted, admitted[1]
        self.worker = Worker(lambda error: self.say(f"{type(error).__name__}: {error}"))
        self.latest = 0  # counts the requests: only the newest one may write the status
        self.make_findings()
        self.make_actions()
        left = ipywidgets.VBox(self.left(), layout={"width": "25em", "flex": "0 0 auto"})
        said = ipywidgets.HBox([self.status, self.stop_button], layout={"align_items": "center"})
        seen = [said, self.progress, self.picture, self.findings, card(self.history)]
        right = ipywidgets.VBox(seen, layout={"flex": "1 1 30em", "min_width": "20em", "max_width": "52em"})
        row = {"display": "flex", "flex_flow": "row wrap", "grid_gap": "1.2em"}
        beds = ipywidgets.Box(self.beds, layout={"display": "flex", "flex_flow": "row wrap"})
        beds.add_class("labkit-ward-patients")
        super().__init__(
            [ipywidgets.HTML(STYLE), self.total, beds, ipywidgets.Box([left, right], layout=row), accessible()]
        )
        self.add_class("labkit-ward")
        self.show_all()
        self.pressed_choose(1)

    @property
    def plots(self) -> Plots:
        return self.shown

    def settle(self) -> None:
        self.worker.wait(LONGEST)

    # --- the actions; each returns when it is done ---

    def choose(self, number: int, ticket: Ticket | None = None) -> Finding:
        """Go to a patient. The loss curve is free."""
        self.patient = self.ward[number]
        self.failure.value = self.code.value = ""
        for setting, value in self.settings:
            setting.value, value.value = "", ""
        self.shown.hide()  # it belongs to another patient, as do the findings
        self.findings.value = ""
        self.mark_shown(None)
        self.show_all()
        return self.order("loss", ticket)

    def order(self, name: str, ticket: Ticket | None = None) -> Finding:
        finding = self.patient.order(name, each_step=Steps(self, ticket))
        self.show_finding(finding)
        return finding

    def name(self, failure: str) -> Answer:
        answer = self.patient.name(failure)
        self.say(f"{failure}: {answer.words} {self.patient.grade}.")
        self.show_all()
        return answer

    def prescribe(self, code: str | None = None, ticket: Ticket | None = None, **settings) -> Treated:
        treated = self.patient.prescribe(code, each_step=Steps(self, ticket), **settings)
        if treated.runs:
            self.shown.whole(treated.runs, [plots.losses, plots.validation])
        self.findings.value = ""
        self.mark_shown(None)
        self.say(f"{treated.given}: {treated.words} {self.patient.grade}.")
        self.show_all()
        return treated

    def reveal(self) -> Study:
        study = self.patient.reveal()
        self.shown.whole(study.runs, [plots.losses, plots.instrument(study.mode.shows)])
        self.findings.value = rows_html(truth_rows(study))
        self.mark_shown(None)
        self.say(f"Patient {self.patient.number} has: {study.mode.title}. {self.patient.grade}.")
        self.show_all()
        return study

    # --- the buttons: the same actions, in the thread ---

    def perform(self, job) -> None:
        """Do this in the thread. If the ward refuses it, say why in the panel."""
        self.latest += 1
        mine = self.latest

        def guarded(ticket: Ticket) -> None:
            try:
                job(ticket)
            except (RecipeError, KeyError) as error:
                if mine == self.latest:  # else a newer request writes the status
                    self.say(f"{str(error)[:1].upper()}{str(error)[1:].removesuffix('.')}.")
            finally:
                if mine == self.latest:
                    self.busy(False)

        self.busy(True)
        self.worker.start(guarded)

    def pressed_choose(self, number: int) -> None:
        self.perform(lambda ticket: self.choose(number, ticket))

    def pressed_order(self, name: str) -> None:
        self.perform(lambda ticket: self.order(name, ticket))

    def pressed_name(self) -> None:
        self.perform(lambda _: self.name(self.chosen()))

    def pressed_treat(self) -> None:
        self.perform(lambda ticket: self.prescribe(self.code.value.strip() or None, ticket, **self.prescribed()))

    def chosen(self) -> str:
        """The failure that was typed or chosen."""
        if not self.failure.value.strip():
            raise RecipeError("no failure was named: choose one from the list, or type a part of its name")
        return self.failure.value.strip()

    def prescribed(self) -> dict:
        """The settings that were filled in."""
        found = {}
        for setting, value in self.settings:
            if setting.value:
                found |= Recipe.parse(f"{setting.value}={value.value.strip()}")
        return found

    def stop(self) -> None:
        self.worker.stop()

    def close(self) -> None:
        """Stop, and remove the panel from the notebook."""
        self.worker.stop()
        self.worker.wait(5)
        close(self)

    # --- findings ---

    def make_findings(self) -> None:
        self.total, self.findings, self.history = (ipywidgets.HTML() for _ in range(3))
        self.shown = plots_of([plots.losses], 2, PANE)
        self.picture, self.status = self.shown.widget, self.shown.status
        self.progress = ipywidgets.IntProgress(layout={"width": "auto", "height": "0.7em"})
        self.stop_button = button("Stop", "stop", "stop training; a stopped instrument costs nothing", self.stop)
        self.status.layout.flex, self.stop_button.layout.flex = "1 1 auto", "0 0 auto"
        names = {"score": self.total, "findings": self.findings, "history": self.history, "progress": self.progress}
        for name, widget in names.items():
            widget.add_class(f"labkit-{name}")
        self.stop_button.add_class("labkit-ward-stop")

    def say(self, words: str, aloud: str = "") -> None:
        """Put this in the status line; `aloud` is for screen readers only, as the table below shows it."""
        self.shown.words = words
        hidden = f"<span class='labkit-visually-hidden'> {html.escape(aloud)}</span>" if aloud else ""
        self.status.value = f"<span role='status' aria-live='polite'>{html.escape(words)}{hidden}</span>"

    def show_finding(self, finding: Finding) -> None:
        if finding.panes:
            self.shown.whole({f"patient {self.patient.number}": finding.run}, finding.panes)
        else:
            self.shown.hide()
        self.findings.value = rows_html(finding.rows)
        self.mark_shown(finding.name)
        price = INSTRUMENTS[finding.name].price
        self.say(f"{finding.title} of patient {self.patient.number}, {in_points(price)}.", f"{finding.words}.")
        self.show_all()

    def mark_shown(self, shown: str | None) -> None:
        for name, order in self.orders.items():
            (order.add_class if name == shown else order.remove_class)("labkit-shown")

    def show_all(self) -> None:
        """Update points, marks on the buttons, history and score sheet."""
        patient, record = self.patient, self.patient.record()
        score = f"{self.ward.score} of {self.ward.best} points"
        self.total.value = f"<div class='labkit-total'>Ward {self.ward.seed}: {score}</div>"
        for one, bed in zip(self.ward, self.beds, strict=True):
            bed.description = f"Patient {one.number}" + (f" · {one.points} of {MOST}" if one.graded else "")
            bed.button_style = "primary" if one is patient else ""
            bed.icon = "folder-open" if one.closed else "check" if one.graded else ""
        for name, order in self.orders.items():
            (order.add_class if name in record["ordered"] else order.remove_class)("labkit-ordered")
        self.progress.max = patient.steps
        looks = f"{patient.complaint[:1].upper()}{patient.complaint[1:]}. {patient.net}."
        self.about.value = f"<h4>Patient {patient.number} <small>{patient.points} of {MOST} points</small></h4>{looks}"
        self.reveal_button.disabled = not patient.graded
        self.history.value = self.history_html()
        self.sheets.value = self.sheets_html()

    def history_html(self) -> str:
        lines = [("named", *each) for each in self.patient.answered] + [
            ("prescribed", *each) for each in self.patient.followed
        ]
        tries = "".join(
            f"<li>{done} <b>{html.escape(given)}</b>: {html.escape(words)}</li>" for done, given, words in lines
        )
        return f"<h4>So far: {html.escape(self.patient.grade)}</h4>" + (f"<ol>{tries}</ol>" if tries else "")

    def sheets_html(self) -> str:
        """Two links that contain the score sheet: they work even if the kernel is on another machine."""
        links = []
        for kind, form in {"json": "application/json", "csv": "text/csv"}.items():
            data = base64.b64encode(self.ward.sheet(kind).encode()).decode()
            name = f"ward-{self.ward.seed}.{kind}"
            links.append(f"<a download='{name}' href='data:{form};base64,{data}'>{name}</a>")
        return "Score sheet: " + " · ".join(links)

    # --- controls ---

    def make_actions(self) -> None:
        self.beds = [self.bed(patient.number) for patient in self.ward]
        self.orders = {name: self.order_button(name) for name in INSTRUMENTS}
        self.about = ipywidgets.HTML()
        self.failure = field("Combobox", "failure", "type to search", "labkit-ward-failure")
        self.failure.options = tuple(FAILURES)
        self.name_button = button("Name it", "tag", "name the failure of this patient", self.pressed_name, "primary")
        self.code = field("Combobox", "code", "type to search", "labkit-ward-code")
        self.code.options = tuple(self.ward.treatments)
        self.settings = [self.setting(number) for number in range(1, prescriptions.MOST_CHANGES + 1)]
        self.treat_button = button(
            "Treat", "medkit", "train again with this, beside the healthy twin", self.pressed_treat, "primary"
        )
        self.reveal_button = button(
            "Open the file", "folder-open", "show the failure; later actions do not count", self.pressed_reveal
        )
        self.student = field("Text", "student", "your name", "labkit-ward-student")
        self.student.value = self.ward.student
        self.student.observe(lambda _: self.signed(), "value")
        self.sheets = ipywidgets.HTML()
        self.sheets.add_class("labkit-ward-sheet")
        for name in ("name", "treat", "reveal"):
            pressed = getattr(self, f"{name}_button")
            pressed.add_class(f"labkit-ward-{name}")
            pressed.layout.align_self = "flex-end"

    def bed(self, number: int) -> ipywidgets.Button:
        made = button(f"Patient {number}", "", f"go to patient {number}", lambda: self.pressed_choose(number))
        made.add_class(f"labkit-patient-{number}")
        return made

    def order_button(self, name: str) -> ipywidgets.Button:
        instrument = INSTRUMENTS[name]
        words = f"{instrument.title} · {instrument.price or 'free'}"
        tooltip = f"{instrument.title}: {in_points(instrument.price)}, paid once"
        made = button(words, "", tooltip, lambda: self.pressed_order(name))
        made.add_class(f"labkit-order-{name}")
        return made

    def setting(self, number: int) -> tuple[ipywidgets.Dropdown, ipywidgets.Text]:
        """A menu of settings and a field for the value."""
        chosen = field("Dropdown", "set", "", f"labkit-ward-setting-{number}")
        chosen.options = [("nothing", ""), *((name.replace("_", " "), name) for name in sorted(prescriptions.SETTINGS))]
        value = field("Text", "to", "", f"labkit-ward-value-{number}")
        value.style.description_width = "1.6em"
        chosen.layout.flex, value.layout.flex = "5 1 0", "4 1 0"
        chosen.observe(lambda _: setattr(value, "placeholder", prescriptions.allowed_values(chosen.value)), "value")
        return chosen, value

    def pressed_reveal(self) -> None:
        self.perform(lambda _: self.reveal())

    def signed(self) -> None:
        self.ward.student = self.student.value
        self.sheets.value = self.sheets_html()

    def busy(self, busy: bool) -> None:
        """While something trains, only Stop and the patients can be clicked."""
        doing = [*self.orders.values(), self.name_button, self.treat_button]
        for widget in doing:
            widget.disabled = busy
        self.reveal_button.disabled = busy or not self.patient.graded
        self.stop_button.disabled = not busy
        self.progress.value = 0
        for widget in (self.progress, self.stop_button):
            widget.layout.visibility = "visible" if busy else "hidden"  # it keeps its place, so that nothing jumps

    def left(self) -> list:
        rows = [ipywidgets.HBox(pair) for pair in self.settings]
        orders = ipywidgets.Box(list(self.orders.values()))
        orders.add_class("labkit-orders")
        tries = f"<small>{TRIES} tries</small>"
        return [
            card(self.about),
            card(heading("1. Order instruments <small>price in points</small>"), orders),
            card(heading(f"2. Name the failure {tries}"), self.failure, self.name_button),
            card(heading(f"3. Prescribe {tries}"), self.code, *rows, self.treat_button),
            card(heading("4. Open the file, save your score"), self.reveal_button, self.student, self.sheets),
        ]


class Steps:
    """Called after every step: stop if it was cancelled, and move the progress bar from time to time."""

    def __init__(self, panel: WardPanel, ticket: Ticket | None):
        self.panel, self.ticket, self.next = panel, ticket, 0.0

    def __call__(self, recorder) -> bool:
        if time.perf_counter() >= self.next:
            self.next = time.perf_counter() + BETWEEN
            self.panel.progress.value = recorder.steps
            self.panel.say(f"Patient {self.panel.patient.number} is training: step {recorder.steps}.")
        return bool(self.ticket and self.ticket.cancelled)


def truth_rows(study: Study) -> list[tuple[str, str]]:
    """What the open file says, from the change that made the net sick to the proven cure."""
    mode, recipes = study.mode, study.recipes
    rows = [
        ("failure", f"{mode.title} ({mode.name})"),
        ("changed", changes_in_words(recipes["sick"], recipes["healthy"])),
    ]
    rows += [("seen", f"{found.title}: {found.because}") for found in study.diagnoses]
    rows += [("because", mode.mechanism), ("check first", mode.first_check), ("remedy", mode.remedy)]
    cured, healthy = (run.measure.text(run.score) for run in (study.cured, study.healthy))
    proven = f"{next(iter(mode.cures))}: {cured}, the healthy twin has {healthy}"
    return [*rows, ("proven cure", proven)]


def field(kind: str, words: str, placeholder: str, name: str) -> ipywidgets.Widget:
    """A labelled control as wide as its card."""
    options = {"placeholder": placeholder} if placeholder else {}
    made = getattr(ipywidgets, kind)(
        description=words, layout={"width": "auto", "min_width": "0"}, style=dict(FIELD), **options
    )
    made.add_class(name)
    return made


def in_points(price: int) -> str:
    return f"{price} point{'s' if price > 1 else ''}" if price else "free"


def heading(words: str) -> ipywidgets.HTML:
    return ipywidgets.HTML(f"<h4>{words}</h4>")


def card(*widgets: ipywidgets.Widget) -> ipywidgets.VBox:
    made = ipywidgets.VBox(widgets)
    made.add_class("labkit-card")
    return made
