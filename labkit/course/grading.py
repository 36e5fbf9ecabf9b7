"""What an exercise is: a title, hints, and a judge that looks at what the student's object does."""

import copy
import functools
import html
import inspect
import re
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from labkit.failures import FAILURES
from labkit.training.rules import RecipeError, near
from labkit.training.recipe import Recipe
from labkit.diagnosis.report import changes_in_words
from labkit.recording.run import Run
from labkit.diagnosis.study import is_cured
from labkit.training.loop import train

KINDS = ("build", "cure", "explain")
RIGHT, NOT_YET, NOT_ATTEMPTED = "right", "not yet", "not attempted"
MARKS = {RIGHT: ("✔", "#2a9d5c"), NOT_YET: ("…", "#c77700"), NOT_ATTEMPTED: ("○", "#808080")}  # shape and colour
HIDDEN_SEED = 11  # of no lesson: a cure that only works for the seed one has looked at is luck
SHORT = 70  # characters of a student's value that are worth showing


class NotYet(Exception):
    """Attempted and not right: what was seen, in words for the student."""


class NotAttempted(Exception):
    """The stub is still a stub."""


class Words(str):
    """Text that shows itself without quotes, in a notebook and at the prompt."""

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """One exercise. `judge(mine)` returns (perhaps with a word on what was seen) or raises `NotYet`."""

    id: str  # "06.2": lesson and number
    title: str
    kind: str  # one of KINDS
    judge: Callable
    hints: tuple[str, ...]  # from a nudge to nearly the answer
    points: int = 1
    modes: tuple[str, ...] = ()  # the failures it is about

    def __post_init__(self):
        if not re.fullmatch(r"\d\d\.\d+", self.id):
            raise RecipeError(f"exercise {self.id!r}: expected an id such as '06.2', the lesson and a number")
        if self.kind not in KINDS:
            raise RecipeError(f"exercise {self.id}: expected a kind among {', '.join(KINDS)}, got {self.kind!r}")
        if not self.hints or self.points < 1:
            raise RecipeError(f"exercise {self.id}: expected at least one hint and one point")
        for name in self.modes:
            FAILURES[name]  # an unknown one is an error here, and not when a student checks

    def check(self, answer) -> "Feedback":
        """Judge an answer. Whatever the student's code does, this returns."""
        try:
            if is_untouched(answer):
                raise NotAttempted
            return self._feedback(RIGHT, self.judge(answer) or "")
        except NotAttempted:
            return self._feedback(NOT_ATTEMPTED, "")
        except NotYet as found:
            return self._feedback(NOT_YET, str(found))
        except (Exception, SystemExit) as error:
            return self._feedback(NOT_YET, error_in_words(error))

    def hint(self, number: int = 1) -> Words:
        if not (isinstance(number, int) and 1 <= number <= len(self.hints)):
            return Words(f"{self.id} has hints 1 to {len(self.hints)}; you asked for {number!r}.")
        more = f"  (hint {number} of {len(self.hints)})"
        return Words(self.hints[number - 1] + more)

    def _feedback(self, state: str, seen: str) -> "Feedback":
        return Feedback(exercise=self, state=state, seen=seen)


@dataclass(frozen=True, kw_only=True)
class Feedback:
    """What came of a check: true in an `if` when the answer is right, and in words for people."""

    exercise: Exercise
    state: str
    seen: str

    def __bool__(self) -> bool:
        return self.state == RIGHT

    def hint(self, number: int = 1) -> Words:
        return self.exercise.hint(number)

    @property
    def _advice(self) -> str:
        if self.state == RIGHT:
            return self.seen
        start = "Fill in the cell above, run it, and check again." if self.state == NOT_ATTEMPTED else self.seen
        return f'{start}\nA nudge, if you want one: labkit.hint("{self.exercise.id}", 1)'

    def __str__(self) -> str:
        head = f"{MARKS[self.state][0]} {self.exercise.id} {self.exercise.title}: {self.state}"
        return "\n".join([head, *(f"  {line}" for line in self._advice.splitlines())])

    __repr__ = __str__

    def __rich__(self):
        from rich.text import Text

        return Text(str(self))

    def _repr_html_(self) -> str:
        mark, colour = MARKS[self.state]
        title = html.escape(f"{self.exercise.id} {self.exercise.title}")
        lines = "<br>".join(html.escape(line) for line in self._advice.splitlines())
        return (
            f'<div role="status" style="border-left: 4px solid {colour}; padding: 0.3em 0.8em; margin: 0.3em 0">'
            f'<b><span style="color: {colour}">{mark} {self.state}</span> · {title}</b><br>{lines}</div>'
        )


# --- what the judges of the lessons use ---


class Student:
    """A student's function, called on copies: it cannot alter the cases it is judged on."""

    def __init__(self, function, example: str):
        if not callable(function):
            raise NotYet(f"Expected a function such as {example}, got {short(function)}.")
        self.function = function

    def __call__(self, *arguments, **options):
        arguments, options = copy.deepcopy((arguments, options))  # together, so that what is shared stays shared
        return self.on(*arguments, **options)

    def on(self, *arguments, **options):
        """The same on the things themselves, for a function that is meant to change them: make them anew each time."""
        call = self.in_words(arguments, options)
        answer = self.says(*arguments, **options)
        if is_untouched(answer):
            raise NotYet(f"Called: {call}\nIt returned {answer!r}: is a `return` missing on that way?")
        return answer

    def says(self, *arguments, **options):
        """The same for a function whose answer may be None, once it is no stub."""
        call = self.in_words(arguments, options)
        try:
            answer = self.function(*arguments, **options)
        except NotImplementedError:
            raise NotAttempted from None
        except (Exception, SystemExit) as error:
            raise NotYet(f"Called: {call}\n{error_in_words(error)}") from error
        if is_untouched(answer) and is_stub(self.function):
            raise NotAttempted
        return answer

    def in_words(self, arguments: tuple, options: dict | None = None) -> str:
        words = [short(each) for each in arguments] + [
            f"{key}={short(value)}" for key, value in (options or {}).items()
        ]
        return f"{getattr(self.function, '__name__', 'your function')}({', '.join(words)})"


def expect(condition, otherwise: str) -> None:
    if not condition:
        raise NotYet(otherwise)


def expect_close(seen, expected, what: str, tolerance: float = 1e-5) -> None:
    """Numbers, lists, arrays, tensors, or dicts of them: the same within a relative and absolute tolerance."""
    if isinstance(expected, Mapping):
        expect(isinstance(seen, Mapping), f"{what}: expected a dict, got {short(seen)}.")
        expect(set(seen) == set(expected), f"{what}: expected the keys {list(expected)}, got {list(seen)}.")
        for key, value in expected.items():
            expect_close(seen[key], value, f"{what}, at {key!r}", tolerance)
        return
    try:
        mine, theirs = (np.asarray(torch.as_tensor(each).detach().double()) for each in (seen, expected))
    except (TypeError, ValueError, RuntimeError):
        raise NotYet(f"{what}: expected {short(expected)}, got {short(seen)}.") from None
    expect(mine.shape == theirs.shape, f"{what}: expected the shape {theirs.shape}, got {mine.shape}.")
    close = np.allclose(mine, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)
    expect(close, f"{what}: expected {short(expected)}, got {short(seen)}.")


def build(id: str, title: str, judge: Callable[[Student], str | None], *, example: str, **fields) -> Exercise:
    """`judge` calls the student's function, which should look like `example`: "dead_share(outputs)"."""
    return Exercise(id=id, title=title, kind="build", judge=lambda mine: judge(Student(mine, example)), **fields)


def cure(
    id: str, title: str, mode: str, *, keep: tuple[str, ...] = (), also=None, seeds=(0, HIDDEN_SEED), **fields
) -> Exercise:
    """Judged by training the student's recipe beside the healthy twin. What is in `keep` belongs to the patient.

    `also(recipe)` looks at what a part of the student's own does, before that.
    """

    def judge(recipe) -> str:
        sick = FAILURES[mode].sick
        if not isinstance(recipe, Recipe):
            raise NotYet(f"Expected a recipe, such as sick.but(width=64), got {short(recipe)}.")
        touched = [name for name in recipe.changes_from(sick) if name in keep]
        expect(not touched, f"You changed {' and '.join(touched)}, which this patient has to keep.")
        expect(recipe.but(seed=sick.seed) != sick, "This is the sick recipe itself: nothing in it was changed.")
        if also:
            also(recipe)
        for seed in seeds:
            verdict = retrained(mode, recipe.but(seed=seed))
            expect(verdict, f"Trained again with {changes_in_words(recipe, sick)} and seed {seed}. {verdict.why}.")
        return f"Trained again with {changes_in_words(recipe, sick)}: clean, and as good as the healthy twin."

    return Exercise(id=id, title=title, kind="cure", judge=judge, modes=(mode,), **fields)


def everything_but(*names: str) -> tuple[str, ...]:
    """For `keep`: all of a recipe but these, and the seed, which belongs to the judge."""
    return tuple(name for name in Recipe.__dataclass_fields__ if name not in (*names, "seed"))


@functools.lru_cache(maxsize=64)
def retrained(mode: str, recipe: Recipe):
    """`is_cured`, once for each recipe: the same answer checked twice is not trained twice."""
    return is_cured(mode, recipe, progress=False)


def explain(id: str, title: str, *, right: dict | str, wrong: dict, because: str = "", **fields) -> Exercise:
    """Questions with a choice of answers: right={"A": "this"}, wrong={"A": {"that": "why not", ...}}.

    Of a single question: right="this", wrong={"that": "why not"}, and the student's answer is a string.
    `because` is shown when all is right: why it is.
    """
    single = isinstance(right, str)
    if single:
        right, wrong = {"your answer": right}, {"your answer": wrong}
    choices = {question: (right[question], *others) for question, others in wrong.items()}

    def judge(answers) -> str:
        answers = {"your answer": answers} if single and not isinstance(answers, Mapping) else answers
        if not isinstance(answers, Mapping):
            raise NotYet(f"Expected a dict with the keys {', '.join(right)}, got {short(answers)}.")
        if all(is_untouched(answers.get(question)) for question in right):
            raise NotAttempted
        remarks = {question: remark(question, answers.get(question)) for question in right}
        good = [question for question, words in remarks.items() if not words]
        bad = [f"{question}: {words}" for question, words in remarks.items() if words]
        expect(not bad, "\n".join([f"Right: {', '.join(good)}."] * bool(good) + bad))
        return because

    def remark(question: str, answer) -> str:
        if is_untouched(answer):
            return "still open."
        answer = str(answer).strip()
        if answer == right[question]:
            return ""
        return wrong[question].get(answer) or f"{short(answer)} is not a choice. {near(answer, choices[question])}"

    return Exercise(id=id, title=title, kind="explain", judge=judge, **fields)


def recorded(sealed: dict[str, str], own: dict[str, dict] | None = None, **changes) -> dict[str, Run]:
    """Patients for an `explain`: sick runs of these modes, under letters, with these changes and some of their own."""
    own = own or {}
    recipes = {letter: FAILURES[name].sick.but(**changes | own.get(letter, {})) for letter, name in sealed.items()}
    return {letter: train(recipe, progress=False) for letter, recipe in recipes.items()}


# --- words ---


def is_untouched(answer) -> bool:
    return answer is None or answer is Ellipsis or (isinstance(answer, str) and not answer.strip())


def is_stub(function) -> bool:
    """Whether nothing was written between `def` and the end: no name is used, and none is given to anything."""
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    given = code.co_argcount + code.co_kwonlyargcount
    given += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return not code.co_names and len(code.co_varnames) == given


def short(value) -> str:
    """A value in a few words: a student wants to see the case, not ten thousand numbers."""
    if isinstance(value, torch.nn.Module):
        return f"a net ({type(value).__name__})"
    if torch.is_tensor(value) and value.numel() > 6:
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, np.ndarray) and value.size > 6:
        return f"an array of shape {value.shape}"
    words = " ".join(repr(value).split())
    return words if len(words) <= SHORT else f"{words[: SHORT - 1]}…"


def error_in_words(error: BaseException) -> str:
    """What was raised, and the last line of the student's own code on the way there."""
    words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame.filename)]
    if not own:  # the judge could do nothing with what the student's code gave it
        return f"Your answer is of a kind that could not be read ({words}). What should it be, and what is it?"
    return f"It raised {words}\nin your line {own[-1].lineno}: {own[-1].line}"


LIBRARIES = tuple(
    {str(Path(__file__).parents[1]), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))}
)


def _is_own(filename: str) -> bool:
    """Neither labkit's, nor Python's, nor an installed package's."""
    return not filename.startswith((*LIBRARIES, "<frozen", "<__array_function__"))
