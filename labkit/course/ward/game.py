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
from labkit.course.ward import prescriptions as treatment
from labkit.drawing import plots
from labkit.diagnosis.diagnose import diagnose
from labkit.course.ward.instruments import INSTRUMENTS, Chart, Finding, only, rows_html
from labkit.failures import FAILURES
from labkit.training.rules import RecipeError, near
from labkit.failures.signs import LOOKS
from labkit.training.recipe import COUNT, Recipe
from labkit.recording.run import Run, written_whole
from labkit.diagnosis.study import Study, why_not_cured
from labkit.training.loop import train
from labkit.course.ward.cases import Case, draw

FORMAT = "labkit-ward-1"
RIGHT, CONSEQUENCE, TOPIC, LOOK_ALIKE = 10, 5, 3, 2  # points for a name
CURED, BETTER = 10, 4  # points for a prescription
HALF = 0.5  # of the accuracy that was lost: what a prescription must bring back to count as better
AGAIN = 2  # what each further try costs
TRIES = 3  # names, and as many prescriptions
MOST = RIGHT + CURED  # points for one patient


class Stopped(RecipeError):
    """Training was stopped on request, so there is nothing to show and nothing to pay."""


@dataclass(frozen=True)
class Answer:
    """What came of a name: the points it is worth and why."""

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
    """What came of a prescription: the patient trained again beside the healthy twin."""

    given: str
    points: int
    words: str
    accuracy: float | None
    runs: dict[str, Run] = field(repr=False, default_factory=dict)

    @property
    def cured(self) -> bool:
        return self.points == CURED

    def __str__(self) -> str:
        return self.words

    def figure(self) -> Figure | None:
        """Loss and validation of the healthy, the sick and the treated net; None where nothing could be trained."""
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
    """What the ward knows of a patient, and what was done so far. It shows nothing of itself."""

    def __init__(self, case: Case):
        self.case = case
        self.known: dict[Recipe, Run] = {}
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
        if recipe not in self.known:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a warning names the file it comes from, and the file the failure
                run = train(recipe, errors="record", progress=False, each_step=each_step)
            if run.facts["stopped"] == "interrupted":
                raise KeyboardInterrupt
            if run.facts["stopped"] == "on request":
                raise Stopped("stopped: nothing was counted")
            self.known[recipe] = run
        return self.known[recipe]

    def chart(self, each_step=None) -> Chart:
        recipes = self.case.recipes
        return Chart(self.run("sick", each_step), recipes["sick"], recipes["healthy"], self.case.mode)


# Not an attribute of the patient: what is not there is not shown by vars(), a variable inspector or a traceback.
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

    # --- what is seen for nothing ---

    @property
    def complaint(self) -> str:
        """What anybody sees in the curves."""
        return _FILES[self].case.complaint

    @property
    def net(self) -> str:
        """What its owner says of the net."""
        recipe = _FILES[self].case.recipes["healthy"]
        layers = f"{recipe.depth} layer{'s' if recipe.depth > 1 else ''}"
        return f"{layers}, {recipe.data.__name__.upper()}, {self.steps} steps"

    @property
    def steps(self) -> int:
        """How many steps its training was meant to take."""
        return _FILES[self].case.recipes["sick"].steps

    # --- what is done ---

    def order(self, instrument: str = "loss", *, each_step: Callable | None = None) -> Finding:
        """Look at one instrument. Its price is paid once; looking again is free."""
        if instrument not in INSTRUMENTS:
            raise RecipeError(f"there is no instrument {instrument!r}. {near(instrument, INSTRUMENTS)}")
        file = _FILES[self]
        with file.lock:
            if instrument not in file.findings:
                file.findings[instrument] = _quietly(lambda: _examined(file, instrument, each_step))
            return file.findings[instrument]

    def name(self, failure: str) -> Answer:
        """Name the failure, as `labkit list` does. The best try counts; each further one costs points."""
        FAILURES[failure]  # an unknown name is an error with a suggestion, and no try
        file = _FILES[self]
        with file.lock:
            self._must_be_open("name", file.answers, any(answer.right for answer in file.answers))
            answer = _quietly(lambda: _judged(file, failure))
            file.answers.append(answer)
            return answer

    def prescribe(self, code: str | None = None, *, each_step: Callable | None = None, **settings) -> Treated:
        """Train again with other settings (lr=0.01) or with a change of the code, one of `ward.treatments`.

        Graded by what comes of it, beside the healthy twin. Each further try costs points.
        """
        treatment.check(code, settings)
        file = _FILES[self]
        with file.lock:
            self._must_be_open("prescription", file.treated, any(each.cured for each in file.treated))
            self._must_be_short(settings)
            treated = _quietly(lambda: _followed(file, code, settings, each_step))
            file.treated.append(treated)
            return treated

    def _must_be_open(self, what: str, tries: list, done: bool) -> None:
        if _FILES[self].closed:
            raise RecipeError(f"the file of patient {self.number} is open: no {what} counts any more")
        if done:
            raise RecipeError(f"patient {self.number} has the right {what} already")
        if len(tries) >= TRIES:
            raise RecipeError(f"patient {self.number} has had {TRIES} tries; patient.reveal() opens the file")

    def _must_be_short(self, settings: dict) -> None:
        most = treatment.LONGER * _FILES[self].case.recipes["healthy"].steps
        if settings.get("steps", 0) > most:
            raise RecipeError(f"steps: at most {most} here, got {settings['steps']}; training for ever is no cure")

    # --- what it is worth ---

    @property
    def spent(self) -> int:
        """Points paid for instruments."""
        return sum(INSTRUMENTS[name].price for name in _FILES[self].findings)

    @property
    def graded(self) -> bool:
        """Was a name given, and a prescription?"""
        return bool(_FILES[self].answers and _FILES[self].treated)

    @property
    def closed(self) -> bool:
        """Was the file opened? Then nothing counts any more."""
        return _FILES[self].closed

    @property
    def answered(self) -> list[tuple[str, str]]:
        """The names given so far, and what was said of each."""
        return [(each.given, each.words) for each in _FILES[self].answers]

    @property
    def followed(self) -> list[tuple[str, str]]:
        """The prescriptions given so far, and what came of each."""
        return [(each.given, each.words) for each in _FILES[self].treated]

    @property
    def points(self) -> int:
        """Name and prescription, less the instruments; never below 0."""
        file = _FILES[self]
        return max(0, best(file.answers) + best(file.treated) - self.spent)

    @property
    def grade(self) -> str:
        """The points in words."""
        file = _FILES[self]
        name = f"name {best(file.answers)}" if file.answers else "not named"
        cure = f"prescription {best(file.treated)}" if file.treated else "no prescription"
        return f"{self.points} of {MOST} points ({name}, {cure}, {self.spent} spent on instruments)"

    def reveal(self) -> Study:
        """Open the file: the truth, with all runs. Only after a name and a prescription; nothing counts afterwards."""
        if not self.graded:
            missing = "a name" if not _FILES[self].answers else "a prescription"
            raise RecipeError(f"the file of patient {self.number} stays shut until {missing} was given")
        file = _FILES[self]
        with file.lock:
            runs = {role: _quietly(lambda role=role: file.run(role)) for role in ("healthy", "sick", "cured")}
            file.closed = True
            return Study(mode=file.case.mode, recipes=file.case.recipes, diagnoses=diagnose(runs["sick"]), **runs)

    def record(self) -> dict:
        """One row of the score sheet: plain values; the truth only where the file is open."""
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
    """The most that any try is worth, each after the first less the price of a further one."""
    return max((max(0, each.points - AGAIN * before) for before, each in enumerate(tries)), default=0)


# --- behind the curtain ---------------------------------------------------------------------------


def _quietly(work: Callable):
    """Do it; where it fails, say so from here: the lines of a traceback would name the failure's own file."""
    try:
        return work()
    except (KeyboardInterrupt, Stopped) as error:
        problem = type(error)(*error.args)
    except Exception as error:
        problem = RecipeError(f"it cannot be trained so: {first_line(error)}")
    raise problem  # out here, so that it carries no trace of the one above


def first_line(error) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _examined(file: _File, instrument: str, each_step) -> Finding:
    return INSTRUMENTS[instrument].examine(instrument, file.chart(each_step))


def _judged(file: _File, failure: str) -> Answer:
    truth, named = file.case.mode, FAILURES[failure]
    if named is truth:
        return Answer(failure, RIGHT, f"Right: {truth.title}.")
    if failure in truth.also_causes or failure in {found.name for found in diagnose(file.run("sick"))}:
        return Answer(failure, CONSEQUENCE, "Half right: that is there, but something else has brought it on.")
    if truth.name in named.also_causes:
        words = "Half right: that can bring on what this patient has. Here something else is at fault."
        return Answer(failure, CONSEQUENCE, words)
    if named.topic == truth.topic:
        words = f"Near: it is another failure of the same kind ({truth.topic.replace('_', ' ')})."
        return Answer(failure, TOPIC, words)
    if named.looks == truth.looks:
        return Answer(failure, LOOK_ALIKE, "No, though the loss would look the same. Order what tells the two apart.")
    return Answer(failure, 0, f"No: there {LOOKS[named.looks]}. Here {LOOKS[truth.looks]}.")


def _followed(file: _File, code: str | None, settings: dict, each_step) -> Treated:
    """The patient trained again. What is still seen is not told by its name, or a wrong drug would be a test."""
    recipe, given = treatment.treated(file.case.recipes["sick"], code, settings), treatment.in_words(code, settings)
    healthy, sick = file.run("healthy", each_step), file.run("sick", each_step)
    if recipe == file.case.recipes["sick"]:
        words = "Nothing has changed: what you prescribe was so already."
        return Treated(given, 0, words, sick.accuracy)
    run = file.trained(recipe, each_step)
    runs = {"healthy": healthy, "sick": sick, "treated": run}
    runs = {role: only(one, ("loss", "val_loss", "val_accuracy")) for role, one in runs.items()}
    if error := run.facts.get("error"):
        words = f"Not cured: it now stops with {error['kind']}: {first_line(error['message'])}"
        return Treated(given, 0, words, run.accuracy, runs)
    beside = f"{run.accuracy:.1%} on validation images; the healthy twin has {healthy.accuracy:.1%}"
    if not why_not_cured(file.case.mode, run, healthy, recipe):
        return Treated(given, CURED, f"Cured: {beside}, and no instrument complains.", run.accuracy, runs)
    lost = healthy.accuracy - sick.accuracy
    if lost > 0 and run.accuracy - sick.accuracy >= HALF * lost:
        near = run.accuracy >= healthy.accuracy - file.case.mode.close
        words = f"Better, not cured: {beside}" + (", but an instrument still complains." if near else ".")
        return Treated(given, BETTER, words, run.accuracy, runs)
    return Treated(given, 0, f"Not cured: {beside}, the patient had {sick.accuracy:.1%}.", run.accuracy, runs)


# --- all of them ----------------------------------------------------------------------------------


class Ward:
    """Some patients, drawn by a seed: the same for everybody who has the seed."""

    def __init__(self, seed: int, patients: int, student: str = ""):
        self.seed, self.student = seed, student
        self.patients = tuple(Patient(number) for number in range(1, patients + 1))
        for patient, case in zip(self.patients, draw(seed, patients), strict=True):
            _FILES[patient] = _File(case)

    def __len__(self) -> int:
        return len(self.patients)

    def __iter__(self) -> Iterator[Patient]:
        return iter(self.patients)

    def __getitem__(self, number: int) -> Patient:
        """A patient by its number, from 1 on."""
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
        """Changes of the code that can be prescribed, in words; settings are prescribed by their names."""
        return list(treatment.code_changes())

    @property
    def prices(self) -> dict[str, int]:
        """What each instrument costs."""
        return {name: instrument.price for name, instrument in INSTRUMENTS.items()}

    @property
    def score(self) -> int:
        return sum(patient.points for patient in self)

    @property
    def best(self) -> int:
        """The most points that can be had: every failure named and cured at first sight."""
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
        """The score sheet as a text, "json" or "csv"."""
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
    """Admit so many patients. The same seed admits the same ones, so that a whole class has the same ward."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise RecipeError(f"seed: expected a whole number, got {seed!r}")
    if problem := COUNT.problem(patients):
        raise RecipeError(f"patients: {problem}")
    return Ward(seed, patients, str(student))


def truth(seed: int, patients: int) -> list[dict]:
    """For instructors: what each patient of a ward has, and what cures it."""
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
    """The call that cures."""
    if words in treatment.code_changes():
        return f"patient.prescribe({words!r})"
    return f"patient.prescribe({', '.join(f'{name}={value!r}' for name, value in changed.items())})"
