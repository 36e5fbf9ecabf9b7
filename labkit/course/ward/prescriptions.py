"""What can be prescribed: plain settings by their name, and changes of the code in words."""

import functools
from dataclasses import dataclass

from labkit.failures import FAILURES
from labkit.training.rules import RecipeError, near
from labkit.training.recipe import Recipe

FIELDS = Recipe.__dataclass_fields__
CHOICES = ("optimizer", "schedule", "loss")  # parts that one picks from a library, and so by name
FIXED = ("seed", "device", "processes", "evaluate_every")  # another draw or another look is no treatment
SETTINGS = tuple(
    name for name, about in FIELDS.items() if name in CHOICES or ("rule" in about.metadata and name not in FIXED)
)
MOST_CHANGES = 3  # who changes everything at once cures without knowing what was wrong; no proven cure takes more
LONGER = 2  # a treated run may take so many times the steps of the healthy twin: training for ever is no cure
# So that a wish cannot hold a class's machine for minutes: 512 units or 16 layers train in a few seconds.
LARGEST = {"width": 512, "depth": 16, "batch_size": 2048, "heads": 16}


@dataclass(frozen=True)
class Change:
    """What one mode's cure does to the code: it puts `new` where `old` stands, and nothing where it does not."""

    part: str
    old: object
    new: object


@functools.cache
def code_changes() -> dict[str, tuple[tuple[Change, ...], dict]]:
    """Every cure of the catalogue that changes the code, in its words: the changes, and the settings beside them."""
    found: dict[str, tuple[tuple[Change, ...], dict]] = {}
    for mode in (mode for mode in FAILURES.values() if mode.sick.processes == 1):
        for words, cure in mode.cures.items():
            names = list(cure.changes_from(mode.sick))
            own = [name for name in names if "known" in FIELDS[name].metadata and not _is_picked(name, mode.sick, cure)]
            if own:
                changes = tuple(Change(name, getattr(mode.sick, name), getattr(cure, name)) for name in own)
                settings = {name: getattr(cure, name) for name in names if name not in own}
                before = found.get(words, ((), {}))
                found[words] = (before[0] + changes, before[1] | settings)
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def _is_picked(name: str, sick: Recipe, cure: Recipe) -> bool:
    """Is one part of the library only exchanged for another one here, as a setting is?"""
    known = FIELDS[name].metadata["known"]
    return name in CHOICES and sick.summary()[name] in known and cure.summary()[name] in known


def check(code: str | None, settings: dict) -> None:
    """Say what is wrong with a prescription before anything is trained, and before it counts."""
    if code is None and not settings:
        raise RecipeError("an empty prescription: give settings such as lr=0.01, or one of ward.treatments in words")
    if code is not None and code not in code_changes():
        raise RecipeError(f"there is no treatment {code!r}. {near(code, code_changes())} ward.treatments lists them")
    for name in settings:
        if name in FIXED:
            raise RecipeError(f"{name!r} is as it is in the ward: another draw or another look is no treatment")
        if name in FIELDS and name not in SETTINGS:
            raise RecipeError(f"{name!r} is code, and changed by a treatment in words: ward.treatments lists them")
        if name not in FIELDS:
            raise RecipeError(f"a run has no setting {name!r}. {near(name, SETTINGS)}")
    count = len(settings) + (code is not None)
    if count > MOST_CHANGES:
        raise RecipeError(f"a prescription of {count} changes: at most {MOST_CHANGES}, or nobody knows what helped")
    Recipe(**settings)  # every single value, with the recipe's own words for what is wrong with it
    for name in LARGEST.keys() & settings.keys():
        if settings[name] > LARGEST[name]:
            raise RecipeError(f"{name}: at most {LARGEST[name]} in the ward, got {settings[name]}")


def treated(recipe: Recipe, code: str | None, settings: dict) -> Recipe:
    """The recipe with a prescription followed. A change of code does nothing where its fault is not."""
    changes = dict(settings)
    if code is not None:
        code_parts, beside = code_changes()[code]
        parts = {each.part: each.new for each in code_parts if getattr(recipe, each.part) is each.old}
        changes = parts | (beside if parts else {}) | changes
    return recipe.but(**changes)


def in_words(code: str | None, settings: dict) -> str:
    return ", ".join(([code] if code else []) + [f"{name}={value}" for name, value in settings.items()])


def expected(setting: str) -> str:
    """What a setting may be, in a few words."""
    if setting not in SETTINGS:
        return ""
    about = FIELDS[setting].metadata
    return ", ".join(about["known"]) if "known" in about else str(about["rule"]).removeprefix("one of ")
