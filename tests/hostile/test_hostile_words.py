"""Recipes, --set, command lines, states of panels and prescriptions of any value: accepted, or refused in words."""

import contextlib
import io
import json
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from hostility import CLEAR, NUMBERS, ODD, TEXTS, both_ways, chances, count, hostile, summary, tracebacks
from hypothesis import given
from hypothesis import strategies as some

from labkit.cli.main import main, parser
from labkit.course.ward import prescriptions
from labkit.course.ward.game import ward
from labkit.failures.catalogue import FAILURES
from labkit.panels.panel_state import PanelState
from labkit.recording.facts import is_text
from labkit.training import run_store
from labkit.training.recipe import Recipe
from labkit.training.rules import LARGEST, Flag, Number, OneOf

ENTRIES = tuple(Recipe.__dataclass_fields__)
KNOWN = sorted({name for each in Recipe.__dataclass_fields__.values() for name in each.metadata.get("known", ())})


def misspelt(name: str) -> some.SearchStrategy[str]:
    """Names that nearly exist."""
    return some.sampled_from((name.upper(), name[:-1], f"{name}s", f" {name}", name.replace("_", "-"), name[::-1]))


names = some.one_of(
    some.sampled_from(ENTRIES), some.sampled_from(ENTRIES), some.sampled_from(ENTRIES).flatmap(misspelt), some.text()
)
values = some.one_of(
    some.sampled_from(ODD), some.integers(), some.integers(-(10**500), 10**500), some.floats(), some.text(),
    some.sampled_from(KNOWN), some.booleans(), some.none(), some.lists(some.integers()), some.complex_numbers(),
    some.dictionaries(some.text(), some.integers()), some.binary(),
)  # fmt: skip
texts = some.one_of(some.text(), some.sampled_from(TEXTS), values.map(str), some.sampled_from(NUMBERS).map(str))


def fitting(name: str) -> some.SearchStrategy:
    """Values that this entry of a recipe may have."""
    about = Recipe.__dataclass_fields__[name].metadata
    rule = about.get("rule")
    if not isinstance(rule, Number):
        choices = rule.names if isinstance(rule, OneOf) else (True, False) if isinstance(rule, Flag) else about["known"]
        return some.sampled_from(sorted(choices))
    low, high = max(rule.low, -1e9), min(rule.high, 1e9)
    if rule.whole:
        numbers = some.integers(int(low) + rule.above, int(high)) | some.just(int(min(LARGEST, rule.high)))
    else:
        numbers = some.floats(low, high, exclude_min=rule.above)
    return numbers | some.sampled_from((*rule.words, *[None] * rule.optional)) if rule.optional else numbers


fitting_changes = some.lists(some.sampled_from(ENTRIES), max_size=4, unique=True).flatmap(
    lambda chosen: some.fixed_dictionaries({name: fitting(name) for name in chosen})
)
odd_changes = some.dictionaries(names, values, min_size=1, max_size=4)
mixed_changes = some.tuples(fitting_changes, some.dictionaries(names, values, min_size=1, max_size=1)).map(
    lambda both: both[0] | both[1]
)


def half(fits: some.SearchStrategy, odd: some.SearchStrategy) -> some.SearchStrategy:
    """Half of each, however many kinds of odd values there are."""
    return some.booleans().flatmap(lambda which: fits if which else odd)


def clear(error: BaseException) -> bool:
    """Does it say something, in a message of bounded length, that can be printed?"""
    count("clear errors")
    return 10 < len(str(error)) < 5000 and is_text(str(error))


# --- recipes --------------------------------------------------------------------------------------


@both_ways
@hostile
@given(half(fitting_changes, mixed_changes | odd_changes))
def test_a_recipe_is_made_or_refused(changes):
    try:
        made = Recipe().but(**changes)
    except CLEAR as error:
        assert clear(error)
        return
    count("accepted")
    assert made.changes_from(Recipe()).keys() <= changes.keys()
    json.dumps(made.summary())
    run_store.key_of(made)


fitting_entries = some.sampled_from(ENTRIES).flatmap(lambda name: some.tuples(some.just(name), fitting(name)))
fitting_assignments = fitting_entries.map(lambda entry: f"{entry[0]}={entry[1]}")


@hostile
@given(fitting_entries)
def test_an_entry_is_read_back_from_its_own_words(entry):
    name, value = entry
    assert Recipe.parse(f"{name}={value}") == {name: value}


@both_ways
@hostile
@given(half(fitting_assignments, some.tuples(names, texts).map("=".join) | texts))
def test_an_assignment_is_read_or_refused(words):
    try:
        changes = Recipe.parse(words)
        made = Recipe().but(**changes)
    except CLEAR as error:
        assert clear(error)
        return
    count("accepted")
    assert changes.items() <= made.summary().items()


# --- command lines --------------------------------------------------------------------------------

WORDS = (
    *TEXTS, "--set", "lr=nan", "--seed", "--json", "--out", "--modes", "--jobs", "--patients", "--dataset", "--face",
    "--width", "--paper", "--split", "--seeds", "--healthy", "--runs", "--kept", "--contract", "--first", "--check",
    "--script", "--nbgrader", "--run", "-1", "0", "9" * 400, "1e5", "mnist", "cifar10", "dead_relu", "dead_rellu",
    "learning_rate/x", "../../x", "poster.png", "poster.exe", "held-out", "download", "a4", "--version", "--help", "-h",
    "--port", "--port=0", "--ip", "--ip=\ud800", "--no-browser", "--visitors", "--visitors=0", "--all", "--empty-runs",
    "--", "-", "=", "--set=lr=1e999", "--seed=1.5", "--seed=" + "9" * 30, "--patients=1000000000", "--jobs=-3",
)  # fmt: skip
COMMANDS = (
    "list", "explain", "run", "diagnose", "data", "poster", "clinic", "atlas", "landscape", "lessons", "ward", "new",
    "doctor", "bench", "lab", "play", "treat", "folklore", "site",
)  # fmt: skip


class Valid(Exception):
    """A command line that is valid, and would now train, download, measure or serve."""


@pytest.fixture
def nothing_is_done(monkeypatch, tmp_path):
    """Commands run in an empty folder, and stop where they would train, download, measure or serve."""
    from labkit.cli import bench, doctor, serve
    from labkit.diagnosis import landscape_examples
    from labkit.diagnosis.treatment import experiment
    from labkit.site import build
    from labkit.training import data, loop, parallel

    def stop(*_, **__):
        raise Valid

    class Server:
        launch_instance = stop

    real = serve.optional
    servers = {
        "jupyterlab.labapp": SimpleNamespace(LabApp=Server),
        "voila.app": SimpleNamespace(Voila=Server),
    }
    monkeypatch.setattr(serve, "optional", lambda module, **words: servers.get(module) or real(module, **words))
    monkeypatch.setattr(doctor, "main", stop)
    monkeypatch.setattr(bench, "measure", stop)
    monkeypatch.setattr(experiment.Experiment, "run", stop)
    monkeypatch.setattr(build, "all_pages", stop)
    for name in ("PYTHONPATH", "JUPYTER_PATH"):  # put back afterwards
        monkeypatch.setenv(name, "")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(run_store, "train", stop)
    monkeypatch.setattr(loop.Training, "run", stop)
    monkeypatch.setattr(parallel.joblib, "Parallel", stop)
    monkeypatch.setattr(landscape_examples, "landscape_picture", stop)
    monkeypatch.setattr(data, "download", stop)


def test_no_command_line_gives_a_traceback(nothing_is_done):
    def call(chance: random.Random) -> None:
        words = [chance.choice((*COMMANDS, *COMMANDS, "nonsense", *TEXTS))]
        words += [chance.choice(WORDS) for _ in range(chance.randrange(6))]
        with contextlib.redirect_stderr(io.StringIO()) as told, contextlib.redirect_stdout(io.StringIO()):
            try:
                code = main(words)
            except SystemExit as ended:  # argparse's own way out
                code = ended.code
        if code:
            count("clear errors")
        assert code in (0, 1, 2), (words, code)
        assert code != 2 or told.getvalue().strip(), words
        assert "Traceback" not in told.getvalue(), words

    found = tracebacks(chances("commands"), call, clear=(Valid,))
    found = [each for each in found if "too short" not in each]
    assert not found, summary(found)


def test_every_command_is_known_to_this_test():
    [commands] = [action.choices for action in parser()._actions if hasattr(action, "choices") and action.choices]
    assert set(commands) == set(COMMANDS)


@pytest.mark.parametrize("command", ["lab", "play"])
@pytest.mark.parametrize("option", ["--ip", "--port", "--visitors", "folder"])
def test_where_a_server_listens_is_valid_or_refused(command, option, nothing_is_done):
    """Random command lines rarely get as far as this: every odd value, alone."""
    codes = []
    for value in TEXTS:
        words = [command, value] if option == "folder" else [command, "--port=8765", f"{option}={value}"]
        with contextlib.redirect_stderr(io.StringIO()) as told, contextlib.redirect_stdout(io.StringIO()):
            try:
                code = main(words)
            except (Valid, SystemExit) as ended:
                code = getattr(ended, "code", 0)
        assert code == 0 or (code == 2 and told.getvalue().strip()), (words, code)
        codes.append(code)
    assert 2 in codes  # an empty string may be valid, and not all of these can be


@pytest.mark.parametrize("command", [["doctor"], ["bench"], ["bench", "--out", "page.md"], ["lab", "."], ["play"]])
def test_a_valid_command_line_gets_to_what_it_would_do(command, nothing_is_done):
    with pytest.raises(Valid):
        main(command)


# --- states of panels -----------------------------------------------------------------------------

heads = some.one_of(
    some.sampled_from((*FAILURES, "recipe")), some.sampled_from(list(FAILURES)).flatmap(misspelt), some.text()
)
presets = some.one_of(some.sampled_from(("", "/sick", "/healthy", "/cure", "/cure2", "/aid9", "/")), some.text())
places = some.one_of(some.sampled_from(("", "@mnist", "@cifar10", "@", "@nowhere")), some.text())
assignments = some.lists(some.tuples(names, texts).map("=".join), max_size=4).map(",".join)
odd_states = some.tuples(heads, presets, places, some.just(":"), assignments).map("".join)
copied_states = some.tuples(
    some.sampled_from(list(FAILURES)), some.sampled_from(("", "/sick", "/healthy", "/cure")), some.just(":"),
    some.lists(fitting_assignments, max_size=4).map(",".join),
).map("".join)  # fmt: skip


@both_ways
@hostile
@given(half(copied_states, some.one_of(some.text(), values, odd_states)))
def test_a_pasted_state_is_read_or_refused(state):
    try:
        made = PanelState.read(state)
    except CLEAR as error:
        assert clear(error)
        return
    count("accepted")
    again = PanelState.read(str(made))
    assert again.recipe == made.recipe and again.preset == made.preset  # what was copied can be pasted
    compile(made.code(), "code", "exec")


# --- the ward -------------------------------------------------------------------------------------

known_treatments = some.none() | some.sampled_from(list(prescriptions.code_changes()))


@both_ways
@hostile
@given(half(known_treatments, texts | values), half(fitting_changes, odd_changes))
def test_a_prescription_is_checked_before_anything_is_trained(code, settings):
    try:
        prescriptions.check(code, settings)
    except CLEAR as error:
        assert clear(error)
        return
    count("accepted")
    for name, most in prescriptions.LARGEST.items():
        assert settings.get(name, 0) <= most
    prescriptions.apply(Recipe(), code, settings)


@both_ways
@hostile
@given(half(some.integers(0, 2**40), values), half(some.integers(1, 12), values), half(some.text(), values))
def test_a_ward_is_admitted_or_refused(seed, patients, student):
    try:
        admitted = ward(seed, patients, student)
    except CLEAR as error:
        assert clear(error)
        return
    count("accepted")
    assert len(admitted) == patients


@both_ways
@hostile
@given(half(some.integers(1, 3), values), values)
def test_patients_and_their_instruments_are_found_or_refused(number, name):
    admitted = ward(0, 3)
    for ask in (
        lambda: admitted[number].number == number,
        lambda: admitted[1].order(name),
        lambda: admitted[1].name(name),
    ):
        try:
            assert ask()
        except CLEAR as error:
            assert clear(error)
        else:
            count("accepted")


@hostile
@given(texts, some.sampled_from(("json", "csv", "xls", "")))
def test_a_score_sheet_holds_any_name_of_a_student(student, kind):
    admitted = ward(0, 2, student)
    try:
        text = admitted.sheet(kind)
    except CLEAR as error:
        assert kind not in ("json", "csv") and clear(error)
        return
    text.encode()
    if kind == "json":
        assert json.loads(text)["seed"] == 0


def test_a_score_sheet_of_any_name_can_be_written(tmp_path: Path):
    for number, text in enumerate(TEXTS):
        for kind in ("json", "csv"):
            assert ward(0, 2, text).score_sheet(tmp_path / f"{number}.{kind}").stat().st_size > 0
