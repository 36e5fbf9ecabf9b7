"""The contract that every failure mode keeps: it fails, is called by its name, and its cure cures.

A new file under labkit/failures/ is tested here by being there. See CONTRIBUTING.md for what each demand means.
"""

import ast
import dataclasses
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import trained

from labkit.diagnosis.diagnose import PRECEDENCE, diagnose
from labkit.diagnosis.evaluation.blind import patient_of
from labkit.diagnosis.report import exam
from labkit.diagnosis.study import Study, play, why_not_cured
from labkit.drawing.plots import INSTRUMENTS
from labkit.failures.catalogue import FAILURES
from labkit.recording import logs
from labkit.training.recipe import Recipe
from labkit.training.run_store import Memory, RunStore

SEED = 0  # one here, quickly; `labkit clinic --contract` takes five
FACES = [(name, face) for name, mode in FAILURES.items() for face in (None, *mode.faces)]
modes = pytest.mark.parametrize("name", FAILURES)


def played(name: str, seed: int, dataset: str = "mnist", face: str | None = None) -> Study:
    """As `labkit.study` plays it, with every recipe trained once for all tests."""
    mode = FAILURES[name]
    recipes = mode.recipes(dataset=dataset, face=face, seed=seed)
    store = RunStore(memory=Memory())
    for recipe in recipes.values():
        store.put(recipe, trained(recipe))
    return play(mode, recipes, store)


def assert_contract(study: Study, dataset: str) -> None:
    assert study.named, f"expected {study.name} first, the diagnosis is {[str(each) for each in study.diagnoses]}"
    assert study.fails, f"harm {study.harm:.3f}, the mode says at least {study.mode.harm}"
    for role in ("healthy", "cured"):
        run = study.runs[role]
        assert [str(each) for each in diagnose(run)] == [], f"a false alarm on the {role} run"
        assert run.measure.reaches(run.score, study.mode.enough(dataset)), role
        assert run.facts["stopped"] is None, role
    assert study.mode.measure.reaches(study.cured.score, study.healthy.score, study.mode.close)
    assert study.is_cured


@pytest.mark.parametrize(("name", "face"), FACES)
def test_it_fails_is_named_and_is_cured(name, face):
    assert_contract(played(name, SEED, face=face), "mnist")


@pytest.mark.parametrize("name", [name for name, mode in FAILURES.items() if mode.where])
def test_its_place_is_where_the_recipe_puts_the_fault(name):
    study = played(name, SEED)
    assert patient_of(study, "own", "mnist", SEED).place_right, study.diagnoses[0].place


@modes
def test_it_says_why_where_it_stops_short(name):
    mode = FAILURES[name]
    assert mode.harm > 0.05 or len(mode.costs) > 20, "say what it costs, where the accuracy hardly shows it"
    assert mode.close == mode.measure.close or len(mode.limit) > 20, "say why the cure comes no nearer"
    assert mode.on("cifar10") or len(mode.not_on_cifar10) > 20, "say why not on CIFAR-10"
    assert not mode.not_in_ward or len(mode.not_in_ward) > 20, "say why not in the ward"


def others(attribute: str) -> list:
    pairs = [(name, words) for name, mode in FAILURES.items() for words in getattr(mode, attribute)]
    first = {(name, next(iter(mode.cures))) for name, mode in FAILURES.items()}  # proven above, with every seed
    return [pytest.param(*pair, id=f"{pair[0]}-{pair[1]}") for pair in pairs if pair not in first]


def still_wrong(name: str, recipe: Recipe) -> str:
    mode = FAILURES[name]
    setting = mode.setting() | {"seed": 0}
    recipe = recipe.but(**setting)
    return why_not_cured(mode, trained(recipe), trained(mode.healthy.but(**setting)), recipe)


@pytest.mark.parametrize(("name", "words"), others("cures"))
def test_every_other_cure_cures(name, words):
    assert still_wrong(name, FAILURES[name].cures[words]) == ""


@pytest.mark.parametrize(("name", "words"), others("false_cures"))
def test_no_false_cure_cures(name, words):
    assert still_wrong(name, FAILURES[name].false_cures[words]) != ""


# --- what can be checked without training ---------------------------------------------------------


def entries(name: str) -> dict:
    """What a mode's recipes are made of: a language model has more than an image net."""
    return {each.name: each.metadata for each in dataclasses.fields(FAILURES[name].sick)}


def module_of(name: str):
    return importlib.import_module(f"labkit.failures.{FAILURES[name].topic}.{name}")


@modes
def test_its_file_opens_with_one_sentence_and_closes_with_the_mode(name):
    module = module_of(name)
    assert module.__doc__ and "\n" not in module.__doc__.strip() and module.__doc__.endswith(".")
    with open(module.__file__, encoding="utf-8") as source:
        last = ast.parse(source.read()).body[-1]
    assert isinstance(last, ast.Assign) and last.targets[0].id == "failure", "close the file with `failure = ...`"


@modes
def test_nothing_is_left_of_what_labkit_new_wrote(name):
    files = [Path(module_of(name).__file__), Path(__file__).with_name(f"test_{name}.py")]
    left = [path.name for path in files if path.exists() and "# NEW:" in path.read_text(encoding="utf-8")]
    assert not left, "do what the comments that begin with NEW say, and delete them"


@modes
def test_its_words_are_there(name):
    mode = FAILURES[name]
    for field in ("title", "symptom", "mechanism", "first_check", "remedy"):
        words = getattr(mode, field)
        assert words == words.strip() and len(words) > 5, field
        if field != "title":
            assert words.endswith("."), f"{field} is a sentence"
    assert len(mode.reference) > 10 and any(character.isdigit() for character in mode.reference), "say where and when"


@modes
def test_its_title_is_for_people_and_its_name_is_the_fault(name):
    mode = FAILURES[name]
    assert mode.title != name and "_" not in mode.title
    assert name.isidentifier() and name == name.lower()
    fixes = {
        "use",
        "add",
        "fix",
        "cure",
        "avoid",
        "lower",
        "raise",
        "clip",
        "normalise",
        "reduce",
        "increase",
        "prevent",
    }
    assert not fixes & set(name.split("_")), "name the fault, never the fix"


@modes
def test_its_topic_has_a_place_in_the_order_of_causes(name):
    assert FAILURES[name].topic in PRECEDENCE, "give the new topic its place in labkit.diagnose.PRECEDENCE"


@modes
def test_its_sick_recipe_is_the_healthy_one_with_a_change_and_each_cure_changes_the_sick_one(name):
    mode = FAILURES[name]
    assert mode.sick.changes_from(mode.healthy)
    assert mode.cures, "a mode has at least one cure"
    for words, recipe in (mode.cures | mode.false_cures).items():
        assert recipe.changes_from(mode.sick), words
    assert not set(mode.cures) & set(mode.false_cures)
    assert 0 <= mode.harm <= 1
    assert {recipe.seed for recipe in (mode.healthy, mode.sick, *mode.cures.values())} == {0}


@modes
def test_its_settings_do_not_touch_what_the_sick_recipe_or_a_cure_changes(name):
    mode = FAILURES[name]
    changed = set(mode.sick.changes_from(mode.healthy))
    for recipe in (mode.cures | mode.false_cures).values():
        changed |= set(recipe.changes_from(mode.sick))
    for setting in (mode.cifar10, *mode.faces.values()):
        assert not set(setting) & (changed | {"data", "seed"})
    for face in mode.faces.values():
        assert mode.healthy.but(**face) != mode.healthy


@modes
def test_its_knobs_are_entries_of_the_recipe_with_values_it_accepts(name):
    mode = FAILURES[name]
    assert len({knob.name for knob in mode.knobs}) == len(mode.knobs) > 0
    for knob in mode.knobs:
        assert knob.name in entries(name), knob
        assert len(knob.values) >= 2 and len(set(knob.values)) == len(knob.values), knob
        for value in knob.values:
            mode.sick.but(**{knob.name: value})  # a bad value raises
        if knob.log:
            assert all(value > 0 for value in knob.values), f"{knob} cannot be drawn on a log axis"
    turned = {knob.name for knob in mode.knobs}
    assert turned & {entry for recipe in mode.cures.values() for entry in recipe.changes_from(mode.sick)} or any(
        "known" in entries(name)[entry] for entry in mode.sick.changes_from(mode.healthy)
    ), "at least one knob leads towards a cure"


@modes
def test_what_it_shows_can_be_drawn(name):
    mode = FAILURES[name]
    assert mode.shows in INSTRUMENTS or mode.shows in trained(mode.recipes()["sick"])


@modes
def test_it_looks_like_an_error_where_it_is_one_and_nowhere_else(name):
    assert (FAILURES[name].looks == "error") == FAILURES[name].raises


@modes
def test_its_consequences_are_modes_and_never_itself(name):
    causes = FAILURES[name].also_causes
    assert set(causes) <= set(FAILURES) and name not in causes
    assert not any(name in FAILURES[effect].also_causes for effect in causes), "two modes cannot cause each other"


@modes
def test_its_evidence_leaves_room_for_doubt(name):
    mode = FAILURES[name]
    evidence = mode.signature(trained(mode.recipes()["sick"]))
    assert 0 < evidence.confidence < 1  # instruments see symptoms, never the code
    assert any(character.isdigit() for character in evidence.seen), "say the number that was seen"
    assert any(character.isdigit() for character in evidence.usual), "and the usual one"
    assert 0 <= evidence.onset <= len(trained(mode.recipes()["sick"]))


# --- a rule that no test can break is not a rule --------------------------------------------------


def has_controls(path: Path) -> bool:
    """The files of several modes, and those that `labkit new` writes for one."""
    return path.name.startswith("test_failures") or path.stem.removeprefix("test_") in FAILURES


FILES = [path for path in Path(__file__).parent.glob("test_*.py") if has_controls(path)]
CONTROLS = "".join(path.read_text(encoding="utf-8") for path in FILES)
FAR = (0, 1e-9, 1e-3, 1e3, 1e9, -1e9)


def names_in(function, module, seen: set) -> set[str]:
    """The module's own names that a function uses, through its other functions too."""
    found = set()
    for name in function.__code__.co_names:
        value = getattr(module, name, None)
        if name in vars(module) and name not in seen:
            seen.add(name)
            found.add(name)
            if callable(value) and getattr(value, "__module__", "") == module.__name__ and hasattr(value, "__code__"):
                found |= names_in(value, module, seen)
    return found


def thresholds(name: str) -> list[str]:
    """The constants of a mode's file that its signature reads."""
    module = module_of(name)
    used = names_in(FAILURES[name].signature, module, set())
    number = {
        each: vars(module)[each] for each in used if each.isupper() and isinstance(vars(module)[each], int | float)
    }
    return sorted(number)


PAIRS = [(name, constant) for name in FAILURES for constant in thresholds(name)]


# Constants that no verdict alone hangs on, and why.
EXCUSED = {
    # either suffices; tests/failures/test_failures_data.py has their controls
    ("sorted_data", "FORGOTTEN"),
    ("sorted_data", "NOTHING_LEARNED"),
    *(("labels_shuffled", each) for each in ("EVEN", "GUESSING", "NOTHING_LEARNED", "CALM")),
    ("weight_collapse", "FADED"),  # in tests/failures/test_failures_gradients.py
    # said in the evidence's words, no threshold
    ("fp16_backward_overflow", "FLOAT16_LARGEST"),
}


@pytest.mark.parametrize(("name", "constant"), [pair for pair in PAIRS if pair not in EXCUSED])
def test_moved_far_it_changes_a_verdict(name, constant, monkeypatch):
    mode, module = FAILURES[name], module_of(name)
    runs = {role: trained(recipe) for role, recipe in mode.recipes().items() if recipe.processes == 1}

    def verdicts() -> list:
        try:
            return [mode.signature(run) is not None for run in runs.values()]
        except (IndexError, ValueError):  # it cannot even be read any more
            return []

    own, before = vars(module)[constant], verdicts()
    changed = False
    for value in (*(own * factor for factor in FAR), 1e9, -1e9):
        monkeypatch.setattr(module, constant, type(own)(value))
        changed = changed or verdicts() != before
    assert changed or re.search(rf"\b{constant}\b", CONTROLS), "no verdict depends on it, and no control names it"


WITHOUT_TORCH = """
import json, sys
from pathlib import Path
from labkit.site.browser.torch_stub import install
install()
from labkit.site.browser.answer import answer
print(json.dumps({path.name: json.loads(answer(str(path)))["text"] for path in sorted(Path(sys.argv[1]).iterdir())}))
assert sys.modules["torch"].__version__ == "not here"
"""


def test_in_a_browser_without_torch_the_diagnosis_says_the_same(tmp_path):
    """Of every mode's sick run, with all instruments and as a CSV log."""
    for name, mode in FAILURES.items():
        run = trained(mode.recipes(seed=SEED)["sick"])
        run.save(tmp_path / f"{name}.npz")
        if len(run):
            logs.to_csv(run, tmp_path / f"{name}.csv")
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, tmp_path], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {path.name: exam(logs.read(path)) for path in sorted(tmp_path.iterdir())}
