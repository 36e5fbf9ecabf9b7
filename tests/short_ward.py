"""Wards of short patients with failures that a test chooses, and whether a text gives one away."""

from helpers import tiny

from labkit.course.ward.cases import Case
from labkit.course.ward.game import _FILES, Ward, ward
from labkit.failures.catalogue import FAILURES
from labkit.training.recipe import Recipe

SMALL = ("samples", "batch_size", "steps", "evaluate_every", "device")


class Short(Case):
    """A case whose three recipes take six steps."""

    @property
    def recipes(self) -> dict[str, Recipe]:
        small = {name: value for name, value in tiny().summary().items() if name in SMALL}
        return {role: recipe.but(**small) for role, recipe in super().recipes.items()}


def ward_of(*names: str) -> Ward:
    """A ward of short patients with these failures."""
    made = ward(0, len(names))
    for patient, name in zip(made, names, strict=True):
        _FILES[patient].case = Short(name, "own", 0)
    return made


def tells(text: str, name: str) -> bool:
    """Does a text name a failure, or a part of its own that only this failure has?"""
    mode = FAILURES[name]
    own = {new for _, new in mode.sick.changes_from(mode.healthy).values() if isinstance(new, str) and "_" in new}
    return any(word in text.lower() for word in {name, mode.title.lower(), f"failures/{mode.topic}", *own})
