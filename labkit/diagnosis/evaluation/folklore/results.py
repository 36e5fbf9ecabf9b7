"""Results as a file of plain numbers, from which the page can be made again without training."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from labkit.diagnosis.evaluation.folklore.audit import Result, Trial
from labkit.diagnosis.evaluation.folklore.claim import Claim, Setting
from labkit.diagnosis.evaluation.folklore.collection import CLAIMS
from labkit.errors import RecipeError
from labkit.recording.files import written_whole
from labkit.training.recipe import Recipe, changes_in_words

DIGITS = 6  # of a stored value; effects are told with three at most


def experiment(claim: Claim) -> list[list[str]]:
    """What is trained and measured, in words: a stored result belongs to a claim as long as this is the same."""
    sides = ("treated", "control") if any(setting.control for setting in claim.settings) else ("treated",)
    measured = [f"{side}: {measure.name}" for side, measure in zip(sides, claim.measures, strict=False)]
    return [measured, *([setting.words, compared(setting), conditions(setting)] for setting in claim.settings)]


def compared(setting: Setting) -> str:
    """What is different in the treated run."""
    if setting.control is None:
        return "one run alone"
    if not isinstance(setting.treated, Recipe):
        return setting.treated.__name__.replace("_", " ")
    return changes_in_words(setting.treated, setting.control)


def conditions(setting: Setting) -> str:
    """The control, or the run alone, as its differences from the lab's baseline."""
    recipe = setting.control or setting.treated
    return changes_in_words(recipe, Recipe()) if isinstance(recipe, Recipe) else compared(setting)


def as_plain(result: Result) -> dict:
    trials = [
        {
            "setting": trial.words,
            "treated": [round(value, DIGITS) for value in trial.treated],
            "control": trial.control and [round(value, DIGITS) for value in trial.control],
        }
        for trial in result.trials
    ]
    made = {"machine": result.machine, "torch": result.torch}
    return {"experiment": experiment(result.claim), **made, "trials": trials}


def save(results: Iterable[Result], path: Path) -> None:
    with written_whole(path) as stream:
        stream.write(json.dumps({each.claim.name: as_plain(each) for each in results}, indent=1).encode() + b"\n")


def load(path: Path, claims: Sequence[Claim]) -> list[Result]:
    """The stored results of these claims. One whose experiment has changed since counts as not stored."""
    if not path.exists():
        return []
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        found = [_result(claim, stored[claim.name]) for claim in claims if claim.name in stored]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecipeError(f"{path}: expected the results of `labkit folklore`, got {error!r}; delete it") from None
    return [each for each in found if each]


def _result(claim: Claim, stored: dict) -> Result | None:
    if stored["experiment"] != experiment(claim):
        return None
    trials = tuple(
        Trial(each["setting"], tuple(each["treated"]), each["control"] and tuple(each["control"]))
        for each in stored["trials"]
    )
    return Result(claim, trials, stored["machine"], stored["torch"])


def merged(known: Iterable[Result], new: Result) -> list[Result]:
    """The new result instead of the known one of the same claim, in the order of the claims.

    Its values have as many digits as in a file: a page from the runs then equals one from the file.
    """
    new = _result(new.claim, json.loads(json.dumps(as_plain(new))))
    found = {each.claim.name: each for each in (*known, new)}
    return [found[name] for name in CLAIMS if name in found]
