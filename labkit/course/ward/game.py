"""The ward: sealed patients, instruments that cost points, a name for the failure, a prescription, and a grade."""

import csv
import html
import io
import json
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from labkit import __version__
from labkit.course.ward import prescriptions
from labkit.course.ward.cases import Case, draw
from labkit.course.ward.instruments import INSTRUMENTS, Chart, Finding, keep_traces, rows_html
from labkit.diagnosis.diagnose import diagnose
from labkit.diagnosis.study import Study, why_not_cured
from labkit.drawing import plots
from labkit.errors import RecipeError, near
from labkit.failures.catalogue import FAILURES
from labkit.failures.mode import FailureMode
from labkit.failures.signs import LOOKS
from labkit.recording.files import written_whole
from labkit.recording.run import Run
from labkit.training.recipe import COUNT, Recipe
from labkit.training.run_store import Memory, RunStore

FORMAT = "labkit-ward-1"
RIGHT, CONSEQUENCE, TOPIC, LOOK_ALIKE = 10, 5, 3, 2  # points for a diagnosis
CURED, BETTER = 10, 4  # points for a prescription
HALF = 0.5  # of the lost score: what a prescription must recover to count as better
AGAIN = 2  # price of each further try
TRIES = 3  # for the name, and for the prescription
MOST = RIGHT + CURED  # points for one patient


class Stopped(RecipeError):
    """Training was stopped on request: nothing to show, nothing to pay."""


@dataclass(frozen=True)
class Answer:
    """The grade of a name: its points and why."""

    given: str
    points: int
    words: str

    @property
    def right(self) -> bool:
        return self.points == RIGHT

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True)
class Treated:
    """The result of a prescription: the patient trained again, compared with the healthy twin."""

    given: str
    points: int
    words: str
    score: float | None
    runs: dict[str, Run] = field(repr=False, default_factory=dict)

    @property
    def cured(self) -> bool:
        return self.points == CURED

    def __str__(self) -> str:
        return self.words

    def figure(self) -> Figure | None:
        """Loss and validation of the healthy, the sick and the treated net; None if nothing was trained."""
        if not self.runs:
            return None
        figure = Figure(figsize=(8.4, 3.0), layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2)
        plots.losses(self.runs, left).legend(edgecolor="none", framealpha=0.8, fontsize=8)
        plots.validation(self.runs, right)
        return figure

    def _repr_html_(self) -> str:
        from labkit.drawing.html import picture_html

        figure = self.figure()
        return picture_html(figure, self.words) if figure else f"<p>{html.escape(self.words)}</p>"


class _File:
    """Everything about a patient: its case and what was done so far. Its repr reveals nothing."""

    def __init__(self, case: Case):
        self.case = case
        self.store = RunStore(memory=Memory())  # private and not on disk: a shared store would reveal the failure
        self.findings: dict[str, Finding] = {}
        self.answers: list[Answer] = []
        self.treated: list[Treated] = []
        self.closed = False
        self.lock = threading.RLock()

    def __repr__(self) -> str:
        return "<sealed file>"

    def run(self, role: str, each_step=None) -> Run:
        return self.trained(self.case.recipes[role], each_step)

    def trained(self, recipe: Recipe, each_step=None) -> Run:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a warning shows its file, whose name is the failure
            run = self.store.run_of(recipe, progress=False, each_step=each_step)
        if run.facts["stopped"] == "interrupted":
            raise KeyboardInterrupt
        if run.facts["stopped"] == "on request":
            raise Stopped("stopped: no points were charged")
        return run

    def chart(self, each_step=None) -> Chart:
        recipes = self.case.recipes
        return Chart(self.run("sick", each_step), recipes["sick"], recipes["healthy"], self.case.mode)


# Not an attribute of the patient, so that vars(), a variable inspector or a traceback cannot show it.
_FILES: "weakref.WeakKeyDictionary[Patient, _File]" = weakref.WeakKeyDictionary()


class Patient:
    """One sick net. Order instruments, name the failure, prescribe; then the file may be opened."""

    def __init__(self, number: int):
        self.number = number

    def __repr__(self) -> str:
        done = _FILES[self]
        state = "file opened" if done.closed else done.case.complaint
        return f"<Patient {self.number}: {state}; {self.points} of {MOST} points>"

    def __reduce__(self):
        raise RecipeError("a patient cannot be saved; labkit.ward(seed=...) admits the same ones again")

    def _repr_html_(self) -> str:
        ordered = ", ".join(_FILES[self].findings) or "nothing yet"
        rows = [("looks like", self.complaint), ("net", self.net), ("ordered", ordered), ("so far", self.grade)]
        return f"<p><b>Patient {self.number}</b></p>{rows_html(rows)}"

    # --- free information ---

    @property
    def complaint(self) -> str:
        """What the loss curves look like."""
        return _FILES[self].case.complaint

    @property
    def net(self) -> str:
        """Depth, data set and steps of the net."""
        recipe = _FILES[self].case.recipes["healthy"]
        layers = f"{recipe.depth} layer{'s' if recipe.depth > 1 else ''}"
        return f"{layers}, {recipe.data.__name__.upper()}, {self.steps} steps"

    @property
    def steps(self) -> int:
        """The planned number of training steps."""
        return _FILES[self].case.recipes["sick"].steps

    # --- actions ---

    def order(self, instrument: str = "loss", *, each_step: Callable | None = None) -> Finding:
        """Order one instrument. It is paid for once; ordering it again is free."""
        if not isinstance(instrument, str) or instrument not in INSTRUMENTS:
            raise RecipeError(f"there is no instrument {instrument!r}. {near(instrument, INSTRUMENTS)}")
        file = _FILES[self]
        with file.lock:
            if instrument not in file.findings:
                file.findings[instrument] = _without_traceback(lambda: _examine(file, instrument, each_step))
            return file.findings[instrument]

    def name(self, failure: str) -> Answer:
        """Name the failure, by its name in `labkit list`. The best try counts; each further one costs points."""
        FAILURES[failure]  # an unknown name raises with a suggestion, and does not count as a try
        file = _FILES[self]
        with file.lock:
            self._must_be_open("name", file.answers, any(answer.right for answer in file.answers))
            answer = _without_traceback(lambda: _grade_name(file, failure))
            file.answers.append(answer)
            return answer

    def prescribe(self, code: str | None = None, *, each_step: Callable | None = None, **settings) -> Treated:
        """Train again with other settings (lr=0.01) or with a code change, one of `ward.treatments`.

        Graded by the result, compared with the healthy twin. Each further try costs points.
        """
        prescriptions.check(code, settings)
        file = _FILES[self]
        with file.lock:
            self._must_be_open("prescription", file.treated, any(each.cured for each in file.treated))
            self._must_be_short(settings)
            treated = _without_traceback(lambda: _treat(file, code, settings, each_step))
            file.treated.append(treated)
            return treated

    def _must_be_open(self, what: str, tries: list, done: bool) -> None:
        if _FILES[self].closed:
            raise RecipeError(f"the file of patient {self.number} is open: a {what} no longer counts")
        if done:
            raise RecipeError(f"patient {self.number} already has the correct {what}")
        if len(tries) >= TRIES:
            raise RecipeError(f"patient {self.number} has used all {TRIES} tries; patient.reveal() opens the file")

    def _must_be_short(self, settings: dict) -> None:
        most = prescriptions.LONGER * _FILES[self].case.recipes["healthy"].steps
        if settings.get("steps", 0) > most:
            raise RecipeError(
                f"steps: at most {most} here, got {settings['steps']}; longer training does not count as a cure"
            )

    # --- score ---

    @property
    def spent(self) -> int:
        """Points spent on instruments."""
        return sum(INSTRUMENTS[name].price for name in _FILES[self].findings)

    @property
    def graded(self) -> bool:
        """Has a name and a prescription been given?"""
        return bool(_FILES[self].answers and _FILES[self].treated)

    @property
    def closed(self) -> bool:
        """Has the file been opened? Then nothing counts any more."""
        return _FILES[self].closed

    @property
    def answered(self) -> list[tuple[str, str]]:
        """The names given so far, and the feedback on each."""
        return [(each.given, each.words) for each in _FILES[self].answers]

    @property
    def followed(self) -> list[tuple[str, str]]:
        """The prescriptions given so far, and the result of each."""
        return [(each.given, each.words) for each in _FILES[self].treated]

    @property
    def points(self) -> int:
        """Points for name and prescription minus the price of instruments; never below 0."""
        file = _FILES[self]
        return max(0, best(file.answers) + best(file.treated) - self.spent)

    @property
    def grade(self) -> str:
        """The points as text."""
        file = _FILES[self]
        name = f"name {best(file.answers)}" if file.answers else "not named"
        cure = f"prescription {best(file.treated)}" if file.treated else "no prescription"
        return f"{self.points} of {MOST} points ({name}, {cure}, {self.spent} spent on instruments)"

    def reveal(self) -> Study:
        """Open the file: the failure, with all runs. Needs a name and a prescription; nothing counts afterwards."""
        if not self.graded:
            missing = "a name" if not _FILES[self].answers else "a prescription"
            raise RecipeError(f"the file of patient {self.number} stays sealed until you give {missing}")
        file = _FILES[self]
        with file.lock:
            runs = {role: _without_traceback(lambda role=role: file.run(role)) for role in ("healthy", "sick", "cured")}
            file.closed = True
            return Study(mode=file.case.mode, recipes=file.case.recipes, diagnoses=diagnose(runs["sick"]), **runs)

    def record(self) -> dict:
        """One row of the score sheet, as plain values; the failure only if the file is open."""
        file = _FILES[self]
        return {
            "patient": self.number,
            "ordered": list(file.findings),
            "spent": self.spent,
            "named": [answer.given for answer in file.answers],
            "name_points": best(file.answers),
            "prescribed": [treated.given for treated in file.treated],
            "prescription_points": best(file.treated),
            "cured": any(treated.cured for treated in file.treated),
            "points": self.points,
            "of": MOST,
            "truth": file.case.name if file.closed else None,
        }


def best(tries: list) -> int:
    """The points of the best try; each try after the first costs points."""
    return max((max(0, each.points - AGAIN * before) for before, each in enumerate(tries)), default=0)


# --- grading --------------------------------------------------------------------------------------


def _without_traceback(work: Callable):
    """Call `work`; re-raise an error without its traceback, which would show the file of the failure."""
    try:
        return work()
    except (KeyboardInterrupt, Stopped) as error:
        problem = type(error)(*error.args)
    except Exception as error:
        problem = RecipeError(f"training failed: {first_line(error)}")
    raise problem  # outside the except block, so that it has no __context__


def first_line(error) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _examine(file: _File, instrument: str, each_step) -> Finding:
    return INSTRUMENTS[instrument].examine(instrument, file.chart(each_step))


def _grade_name(file: _File, failure: str) -> Answer:
    return grade(file.case.mode, failure, lambda: {found.name for found in diagnose(file.run("sick"))})


def grade(truth: FailureMode, failure: str, shown: Callable[[], set[str]]) -> Answer:
    """The answer to a name, where `shown` gives the failures that the patient shows."""
    named = FAILURES[failure]
    if named is truth:
        return Answer(failure, RIGHT, f"Correct: {truth.title}.")
    if failure in truth.also_causes or failure in shown():
        return Answer(failure, CONSEQUENCE, "Partly correct: this patient has that too, but something else causes it.")
    if truth.name in named.also_causes:
        words = "Partly correct: that can cause what this patient has. Here the cause is a different one."
        return Answer(failure, CONSEQUENCE, words)
    if named.topic == truth.topic:
        words = f"Close: it is another failure of the same kind ({truth.topic.replace('_', ' ')})."
        return Answer(failure, TOPIC, words)
    if named.looks == truth.looks:
        return Answer(
            failure, LOOK_ALIKE, "No, but the loss would look the same. Order an instrument that tells the two apart."
        )
    return Answer(failure, 0, f"No: there {LOOKS[named.looks]}. Here {LOOKS[truth.looks]}.")


def _treat(file: _File, code: str | None, settings: dict, each_step) -> Treated:
    """Train the patient again. The feedback names no failure: a wrong prescription must not reveal the diagnosis."""
    recipe, given = (
        prescriptions.apply(file.case.recipes["sick"], code, settings),
        prescriptions.prescription_as_text(code, settings),
    )
    healthy, sick = file.run("healthy", each_step), file.run("sick", each_step)
    if recipe == file.case.recipes["sick"]:
        words = "Nothing changed: the patient already has these settings."
        return Treated(given, 0, words, sick.score)
    run = file.trained(recipe, each_step)
    runs = {"healthy": healthy, "sick": sick, "treated": run}
    runs = {role: keep_traces(one, ("loss", "val_loss", one.measure.trace)) for role, one in runs.items()}
    if error := run.facts.get("error"):
        words = f"Not cured: it now stops with {error['kind']}: {first_line(error['message'])}"
        return Treated(given, 0, words, run.score, runs)
    measure = healthy.measure
    beside = f"{measure.text(run.score)} on validation images; the healthy twin has {measure.text(healthy.score)}"
    if not why_not_cured(file.case.mode, run, healthy, recipe):
        return Treated(given, CURED, f"Cured: {beside}, and no failure is diagnosed.", run.score, runs)
    lost = measure.gain(healthy.score, sick.score)
    if lost > 0 and measure.gain(run.score, sick.score) >= HALF * lost:
        near = measure.reaches(run.score, healthy.score, file.case.mode.close)
        words = f"Better, not cured: {beside}" + (", but a failure is still diagnosed." if near else ".")
        return Treated(given, BETTER, words, run.score, runs)
    return Treated(given, 0, f"Not cured: {beside}, the patient had {measure.text(sick.score)}.", run.score, runs)


# --- the ward -------------------------------------------------------------------------------------


class Ward:
    """Patients drawn by a seed: the same seed gives the same patients."""

    def __init__(self, seed: int, patients: int, student: str = ""):
        self.seed, self.student = seed, student
        cases = draw(seed, patients)  # refuses too many, before there are any
        self.patients = tuple(Patient(number) for number in range(1, patients + 1))
        for patient, case in zip(self.patients, cases, strict=True):
            _FILES[patient] = _File(case)

    def __len__(self) -> int:
        return len(self.patients)

    def __iter__(self) -> Iterator[Patient]:
        return iter(self.patients)

    def __getitem__(self, number: int) -> Patient:
        """A patient by its number, counted from 1."""
        if not (isinstance(number, int) and 1 <= number <= len(self)):
            raise RecipeError(f"the ward has the patients 1 to {len(self)}, got {number!r}")
        return self.patients[number - 1]

    def __reduce__(self):
        raise RecipeError("a ward cannot be saved; labkit.ward(seed=...) admits the same patients again")

    def __repr__(self) -> str:
        return f"<Ward {self.seed}: {len(self)} patients, {self.score} of {self.best} points>"

    def __str__(self) -> str:
        rows = [f"  {patient.number:>2}  {patient.complaint:48}{patient.net}" for patient in self]
        return "\n".join([f"Ward {self.seed}: {self.score} of {self.best} points", "", *rows])

    def _repr_html_(self) -> str:
        rows = [(f"{one.number}. {one.complaint}", f"{one.net}; {one.grade}") for one in self]
        return f"<p><b>{str(self).splitlines()[0]}</b></p>{rows_html(rows)}"

    @property
    def treatments(self) -> list[str]:
        """Code changes that can be prescribed, as text; settings are prescribed by name."""
        return list(prescriptions.code_changes())

    @property
    def prices(self) -> dict[str, int]:
        """The price of each instrument, in points."""
        return {name: instrument.price for name, instrument in INSTRUMENTS.items()}

    @property
    def score(self) -> int:
        return sum(patient.points for patient in self)

    @property
    def best(self) -> int:
        """The maximum score: every failure named and cured at the first try, with free instruments only."""
        return MOST * len(self)

    def records(self) -> list[dict]:
        """The score sheet's rows."""
        return [patient.record() for patient in self]

    def score_sheet(self, path: str | Path) -> Path:
        """Write the score sheet, as .json or .csv, whole or not at all."""
        path = Path(path)
        text = self.sheet(path.suffix.lower().removeprefix("."))
        with written_whole(path) as stream:
            stream.write(text.encode())
        return path

    def sheet(self, kind: str) -> str:
        """The score sheet as text, "json" or "csv"."""
        if kind not in ("json", "csv"):
            raise RecipeError(f"a score sheet is a .json or a .csv file, got {kind!r}")
        return self._as_json() if kind == "json" else self._as_csv()

    def _as_json(self) -> str:
        head = {"format": FORMAT, "labkit": __version__, "seed": self.seed, "student": self.student}
        return json.dumps(head | {"score": self.score, "of": self.best, "patients": self.records()}, indent=2) + "\n"

    def _as_csv(self) -> str:
        stream = io.StringIO()
        rows = [{"student": self.student, "seed": self.seed} | record for record in self.records()]
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({name: "; ".join(cell) if isinstance(cell, list) else cell for name, cell in row.items()})
        return stream.getvalue()


def ward(seed: int = 0, patients: int = 6, student: str = "") -> Ward:
    """Admit `patients` patients. The same seed admits the same ones, so a whole class can share a ward."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise RecipeError(f"seed: expected a whole number, got {seed!r}")
    if problem := COUNT.problem(patients):
        raise RecipeError(f"patients: {problem}")
    return Ward(seed, patients, str(student).encode("utf-8", "replace").decode())  # a name that can be written


def truth(seed: int, patients: int) -> list[dict]:
    """For instructors: the failure of each patient of a ward, and its cure."""
    rows = []
    for number, case in enumerate(draw(seed, patients), start=1):
        recipes, words = case.recipes, next(iter(case.mode.cures))
        changed = {name: new for name, (_, new) in recipes["cured"].changes_from(recipes["sick"]).items()}
        rows.append(
            {
                "patient": number,
                "failure": case.name,
                "title": case.mode.title,
                "net": f"{case.net}, {recipes['healthy'].width} wide",
                "seed": case.seed,
                "cure": words,
                "prescribe": _prescription(words, changed),
            }
        )
    return rows


def _prescription(words: str, changed: dict) -> str:
    """The call that cures the patient."""
    if words in prescriptions.code_changes():
        return f"patient.prescribe({words!r})"
    return f"patient.prescribe({', '.join(f'{name}={value!r}' for name, value in changed.items())})"
