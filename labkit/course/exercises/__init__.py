"""The exercises of the course: every lesson_NN.py here closes with `exercises`, and is found by being there."""

import importlib
import pkgutil

from labkit.course.grading import Exercise, Feedback, Words
from labkit.training.rules import RecipeError, near


class Exercises(dict[str, Exercise]):
    """Id -> exercise; an unknown id suggests the nearest."""

    def __missing__(self, id: str):
        raise RecipeError(f"there is no exercise {id!r}. {near(id, self)}")

    def of(self, lesson: str) -> list[Exercise]:
        """Those of one lesson, such as "06"."""
        return [each for id, each in self.items() if id.startswith(f"{lesson}.")]


def _discover() -> Exercises:
    found = Exercises()
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda each: each.name):
        lesson = module.name.removeprefix("lesson_")
        for exercise in importlib.import_module(f"{__name__}.{module.name}").exercises:
            if exercise.id in found or not exercise.id.startswith(f"{lesson}."):
                raise RecipeError(f"{module.name}.py: expected ids {lesson}.1, {lesson}.2, ..., got {exercise.id!r}")
            found[exercise.id] = exercise
    return found


EXERCISES = _discover()


def check(id: str, answer) -> Feedback:
    """Is this answer right? Judged by what it does; never raises for what a student wrote."""
    return EXERCISES[id].check(answer)


def hint(id: str, number: int = 1) -> Words:
    """One hint of an exercise; later ones tell more."""
    return EXERCISES[id].hint(number)
