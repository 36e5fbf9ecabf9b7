"""Find an exercise or a prediction by its id: every exercises/lesson_NN.py defines `exercises`, many `predictions`."""

import functools
import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping

from labkit.course import exercises
from labkit.course.grading import Exercise, Feedback, Words
from labkit.course.predictions import Prediction, Reply
from labkit.errors import RecipeError, near


class Exercises(Mapping[str, Exercise]):
    """Id -> exercise; an unknown id suggests the nearest one. A lesson is imported on first use."""

    def __getitem__(self, id: str) -> Exercise:
        lesson = str(id).partition(".")[0]
        found = lesson_exercises(lesson) if lesson in lessons() else {}
        if id not in found:
            raise RecipeError(f"there is no exercise {id!r}. {near(id, self)}")
        return found[id]

    def __contains__(self, id) -> bool:
        lesson = str(id).partition(".")[0]
        return lesson in lessons() and id in lesson_exercises(lesson)

    def __iter__(self) -> Iterator[str]:
        return (id for lesson in lessons() for id in lesson_exercises(lesson))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def of(self, lesson: str) -> list[Exercise]:
        """The exercises of one lesson, such as "06"."""
        return list(lesson_exercises(lesson).values()) if lesson in lessons() else []


def lessons() -> list[str]:
    """The numbers of all lessons, such as "06", without importing them."""
    found = (re.fullmatch(r"lesson_(\d\d)", module.name) for module in pkgutil.iter_modules(exercises.__path__))
    return sorted(match[1] for match in found if match)


@functools.cache
def lesson_exercises(lesson: str) -> dict[str, Exercise]:
    found: dict[str, Exercise] = {}
    for exercise in importlib.import_module(f"{exercises.__name__}.lesson_{lesson}").exercises:
        if exercise.id in found or not exercise.id.startswith(f"{lesson}."):
            raise RecipeError(f"lesson_{lesson}.py: expected ids {lesson}.1, {lesson}.2, ..., got {exercise.id!r}")
        found[exercise.id] = exercise
    return found


EXERCISES = Exercises()


def check(id: str, answer: object) -> Feedback:
    """Is this answer correct? Graded by what it does; never raises for what a student wrote."""
    return EXERCISES[id].check(answer)


def hint(id: str, number: int = 1) -> Words:
    """One hint of an exercise; later hints give away more."""
    return EXERCISES[id].hint(number)


# --- predictions ---


@functools.cache
def lesson_predictions(lesson: str) -> dict[str, Prediction]:
    """The predictions of one lesson, such as "06"; a lesson may have none."""
    module = importlib.import_module(f"{exercises.__name__}.lesson_{lesson}")
    found: dict[str, Prediction] = {}
    for each in getattr(module, "predictions", ()):
        if each.id in found or not each.id.startswith(f"{lesson}."):
            raise RecipeError(f"lesson_{lesson}.py: expected ids {lesson}.0, {lesson}.0b, ..., got {each.id!r}")
        found[each.id] = each
    return found


def prediction_of(id: str) -> Prediction:
    lesson = str(id).partition(".")[0]
    found = lesson_predictions(lesson) if lesson in lessons() else {}
    if id not in found:
        known = [id for each in lessons() for id in lesson_predictions(each)]
        raise RecipeError(f"there is no prediction {id!r}. {near(id, known)}")
    return found[id]


ASK = object()  # in place of a choice: the prediction is answered instead of recorded


def predict(id: str, choice: object = ASK) -> Reply:
    """Record a choice before the run: predict("05.0", 3). After the run, predict("05.0") says whether it was right."""
    asked = prediction_of(id)
    return asked.answer() if choice is ASK else asked.record(choice)
