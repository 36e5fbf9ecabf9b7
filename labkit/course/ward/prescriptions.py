"""Prescriptions: settings by name, and code changes as text."""

import functools
from dataclasses import dataclass

from labkit.errors import RecipeError, near
from labkit.failures.catalogue import FAILURES
from labkit.training.recipe import Recipe

FIELDS = Recipe.__dataclass_fields__
CHOICES = ("optimizer", "schedule", "loss")  # parts chosen from a library by name
FIXED = ("seed", "device", "processes", "evaluate_every")  # not a treatment
SETTINGS = tuple(
    name for name, about in FIELDS.items() if name in CHOICES or ("rule" in about.metadata and name not in FIXED)
)
MOST_CHANGES = 3  # changing everything at once cures without a diagnosis; no verified cure needs more
LONGER = 2  # most steps of a treated run, relative to the healthy twin: longer training is not a cure
# So that one prescription cannot block a shared machine: 512 units or 16 layers train in a few seconds.
LARGEST = {"width": 512, "depth": 16, "batch_size": 2048, "heads": 16}


@dataclass(frozen=True)
class Change:
    """One code change of a cure: replaces `old` by `new`, where the recipe has `old`."""

    part: str
    old: object
    new: object


@functools.cache
def code_changes() -> dict[str, tuple[tuple[Change, ...], dict]]:
    """Every cure of the catalogue that changes code: its text -> the changes and the settings that go with them."""
    found: dict[str, tuple[tuple[Change, ...], dict]] = {}
    for mode in (mode for mode in FAILURES.values() if mode.sick.processes == 1):
        for words, cure in mode.cures.items():
            names = list(cure.changes_from(mode.sick))
            own = [
                name
                for name in names
                if "known" in cure.__dataclass_fields__[name].metadata and not _is_library_choice(name, mode.sick, cure)
            ]
            if own:
                changes = tuple(Change(name, getattr(mode.sick, name), getattr(cure, name)) for name in own)
                settings = {name: getattr(cure, name) for name in names if name not in own}
                before = found.get(words, ((), {}))
                found[words] = (before[0] + changes, before[1] | settings)
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def _is_library_choice(name: str, sick: Recipe, cure: Recipe) -> bool:
    """Does the cure only swap one library part for another, like a setting?"""
    known = cure.__dataclass_fields__[name].metadata["known"]
    return name in CHOICES and sick.summary()[name] in known and cure.summary()[name] in known


def check(code: str | None, settings: dict) -> None:
    """Raise for an invalid prescription before anything is trained or counted."""
    if code is None and not settings:
        raise RecipeError("an empty prescription: give settings such as lr=0.01, or one of ward.treatments")
    if code is not None and not (isinstance(code, str) and code in code_changes()):
        raise RecipeError(f"there is no treatment {code!r}. {near(code, code_changes())} ward.treatments lists them")
    for name in settings:
        if name in FIXED:
            raise RecipeError(f"{name!r} cannot be prescribed: it is fixed in the ward; prescribe another setting")
        if name in FIELDS and name not in SETTINGS:
            raise RecipeError(f"{name!r} is code, changed by one of ward.treatments, not by a setting")
        if name not in FIELDS:
            raise RecipeError(f"there is no setting {name!r}. {near(name, SETTINGS)}")
    count = len(settings) + (code is not None)
    if count > MOST_CHANGES:
        raise RecipeError(f"a prescription of {count} changes: at most {MOST_CHANGES}, to know which one helped")
    Recipe(**settings)  # validates every value, with the recipe's own messages
    for name in LARGEST.keys() & settings.keys():
        if settings[name] > LARGEST[name]:
            raise RecipeError(f"{name}: at most {LARGEST[name]} in the ward, got {settings[name]}")


def apply(recipe: Recipe, code: str | None, settings: dict) -> Recipe:
    """The recipe with a prescription applied. A code change has no effect where its bug is absent."""
    changes = dict(settings)
    if code is not None:
        code_parts, beside = code_changes()[code]
        parts = {each.part: each.new for each in code_parts if getattr(recipe, each.part, None) is each.old}
        changes = parts | (beside if parts else {}) | changes
    return recipe.but(**changes)


def prescription_as_text(code: str | None, settings: dict) -> str:
    return ", ".join(([code] if code else []) + [f"{name}={value}" for name, value in settings.items()])


def allowed_values(setting: str) -> str:
    """The allowed values of a setting, as short text."""
    if setting not in SETTINGS:
        return ""
    about = FIELDS[setting].metadata
    return ", ".join(about["known"]) if "known" in about else str(about["rule"]).removeprefix("one of ")
