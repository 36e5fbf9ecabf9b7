"""Kept runs: found again by their recipe and the code of its parts, never by accident, and never trusted if damaged."""

import abc
import ast
import collections
import dataclasses
import enum
import functools
import importlib
import io
import logging
import os
import subprocess
import sys
import threading
import time
import types
import warnings
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import torch
from helpers import hand_made, tiny, trained, write_unchecked

from labkit.errors import RecipeError
from labkit.failures.catalogue import FAILURES
from labkit.recording.run import Run
from labkit.training import data, fingerprint, models, parts, run_store
from labkit.training.recipe import Recipe
from labkit.training.run_store import Memory, RunStore, as_record, emptied, key_of, on_disk, store_folder, store_limit

RECIPE = tiny()


def fresh(folder=None, **options) -> RunStore:
    """A store that remembers nothing but what is in its folder."""
    return RunStore(folder, memory=Memory(), **options)


@pytest.fixture
def kept(tmp_path) -> RunStore:
    """A store with one run in its folder, and no memory of it."""
    fresh(tmp_path).put(RECIPE, trained(RECIPE))
    return RunStore(tmp_path, memory=Memory(0))


@pytest.fixture
def trainings(monkeypatch) -> list[Recipe]:
    """The recipes that were really trained."""
    done, train = [], run_store.train
    monkeypatch.setattr(run_store, "train", lambda recipe, **options: done.append(recipe) or train(recipe, **options))
    return done


def test_a_run_is_found_again_by_an_equal_recipe_and_by_no_other(kept):
    found = kept.get(tiny())
    assert (found["loss"] == trained(RECIPE)["loss"]).all() and found.facts == trained(RECIPE).facts
    assert kept.get(tiny(lr=0.2)) is None
    assert fresh(kept.folder).get(RECIPE) is not None


def test_the_same_recipe_is_trained_once_in_memory_and_once_for_the_folder(tmp_path, trainings):
    store = fresh(tmp_path)
    first = store.run_of(RECIPE, progress=False)
    assert store.run_of(tiny(), progress=False) is first and trainings == [RECIPE]
    again = fresh(tmp_path).run_of(RECIPE, progress=False)
    assert again.facts == first.facts and trainings == [RECIPE]
    assert fresh().run_of(RECIPE, progress=False).facts["weights_sha256"] == first.facts["weights_sha256"]
    assert trainings == [RECIPE, RECIPE]


def test_all_stores_of_a_process_share_one_memory_and_a_folder_gets_what_it_lacks(tmp_path, trainings):
    run = run_store.in_memory.run_of(RECIPE, progress=False)
    assert RunStore().get(RECIPE) is RunStore(tmp_path).run_of(RECIPE) is run and trainings == [RECIPE]
    assert fresh(tmp_path).get(RECIPE) is not None


@pytest.mark.parametrize("ending", ["on request", "interrupted"])
def test_a_run_that_was_stopped_is_not_kept(tmp_path, monkeypatch, ending):
    monkeypatch.setattr(run_store, "train", lambda *_, **__: hand_made(facts={"stopped": ending}))
    store = fresh(tmp_path)
    assert store.run_of(RECIPE).facts["stopped"] == ending
    assert store.get(RECIPE) is None and store.files() == {}


def test_a_run_without_instruments_is_neither_kept_nor_taken_for_one_with(trainings):
    store = fresh()
    whole = store.run_of(RECIPE, progress=False)
    bare = store.run_of(RECIPE, progress=False, instruments=False)
    assert "grad_norm" in whole and "grad_norm" not in bare and store.get(RECIPE) is whole


def test_memory_keeps_the_runs_used_last_and_can_be_cleared():
    memory, runs = Memory(2), [hand_made() for _ in range(3)]
    memory.put("a", runs[0])
    memory.put("b", runs[1])
    assert memory.get("a") is runs[0]
    memory.put("c", runs[2])
    assert (memory.get("a"), memory.get("b"), memory.get("c")) == (runs[0], None, runs[2])
    memory.clear()
    assert memory.get("a") is None


class Hesitant(OrderedDict):
    """Says whether a key is there, and waits before anything is done about it: another thread may remove it."""

    def __contains__(self, key) -> bool:
        found = super().__contains__(key)
        time.sleep(1e-4)
        return found


def test_many_threads_may_use_one_memory():
    memory, run, problems = Memory(3), hand_made(), []
    memory.runs = Hesitant()

    def use(number: int) -> None:
        try:
            for turn in range(100):
                memory.put(str((number + turn) % 7), run)
                memory.get(str(turn % 7))
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == [] and len(memory.runs) == 3


# --- what a run is found by -----------------------------------------------------------------------

SOURCE = """
import functools
import torch
from labkit.training import parts

SCALE = 1.0
TABLE = {"scale": 1.0}
OF_ONE = 1.0
A = [1.0]
TENSOR = torch.tensor(A)

def in_a_table(loss):
    return 1.0 * loss

FUNCTIONS = {"a": in_a_table}

def made():
    return [float("1")]

MADE = made()

class Scaled:
    weights = torch.tensor([1.0])

    def __call__(self, loss):
        return self.cached * self.weights[0] * loss

    @functools.cached_property
    def cached(self):
        return 1.0

class Other:
    def __call__(self, loss):
        return OF_ONE * loss

INSTANCE = Other()

def helper(loss):
    return loss * SCALE * TABLE["scale"] * TENSOR[0] * MADE[0] * helper.factor

helper.factor = 1.0

def my_loss(outputs, targets):
    loss = helper(parts.cross_entropy(outputs, targets))
    return FUNCTIONS["a"](INSTANCE(Scaled()(loss)))

def unrelated():
    return 1
"""
EDITS = {
    "the part itself": ("loss = helper(parts", "loss = 0.5 * helper(parts"),
    "a helper": ("return loss * SCALE", "return 0.5 * loss * SCALE"),
    "a constant": ("SCALE = 1.0", "SCALE = 0.5"),
    "a table": ('"scale": 1.0', '"scale": 0.5'),
    "a function in a table": ("return 1.0 * loss", "return 0.5 * loss"),
    "the class of a global object": ("return OF_ONE * loss", "return OF_ONE * 0.5 * loss"),
    "what a global tensor is made of": ("A = [1.0]", "A = [0.5]"),
    "the function that makes a global": ('float("1")', 'float("0.5")'),
    "a tensor of a class": ("weights = torch.tensor([1.0])", "weights = torch.tensor([0.5])"),
    "a cached property": ("        return 1.0\n", "        return 0.5\n"),
    "an attribute of a function": ("helper.factor = 1.0", "helper.factor = 0.5"),
}


@pytest.fixture
def my_parts(tmp_path, monkeypatch):
    """A module of one's own; `my_parts(source)` writes and imports it, again if need be."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two edits in one second look alike to the .pyc

    def write(source: str):
        (folder / "my_parts.py").write_text(source)
        importlib.invalidate_caches()
        return importlib.reload(sys.modules["my_parts"]) if "my_parts" in sys.modules else load("my_parts")

    load = importlib.import_module
    yield write
    sys.modules.pop("my_parts", None)


@pytest.mark.parametrize("what", EDITS)
def test_an_edited_part_gives_a_fresh_run_in_memory_and_on_disk(my_parts, tmp_path, trainings, what):
    store, old = fresh(tmp_path), tiny(loss=my_parts(SOURCE).my_loss)
    before = store.run_of(old, progress=False)
    assert store.run_of(old, progress=False) is before and fresh(tmp_path).get(old) is not None
    new = tiny(loss=my_parts(SOURCE.replace(*EDITS[what])).my_loss)
    assert store.get(new) is None and fresh(tmp_path).get(new) is None
    after = store.run_of(new, progress=False)
    assert len(trainings) == 2 and after["loss"][0] == pytest.approx(before["loss"][0] / 2)
    same_as_before = tiny(loss=my_parts(SOURCE).my_loss)
    assert store.get(same_as_before) is before and len(store.files()) == 2


def test_an_edited_helper_in_another_file_gives_a_fresh_run(my_parts, tmp_path, trainings):
    helpers = tmp_path / "modules" / "my_helpers.py"
    source = "import my_helpers\nfrom labkit.training import parts\n\n\ndef my_loss(outputs, targets):\n"
    source += "    return my_helpers.scaled(parts.cross_entropy(outputs, targets))\n"
    losses = {}
    for factor in (1.0, 0.5):
        sys.modules.pop("my_helpers", None)
        helpers.write_text(f"def scaled(loss):\n    return {factor} * loss\n")
        losses[factor] = fresh(tmp_path).run_of(tiny(loss=my_parts(source).my_loss), progress=False)["loss"][0]
    sys.modules.pop("my_helpers")
    assert len(trainings) == 2 and losses[0.5] == pytest.approx(losses[1.0] / 2)


def test_a_partial_of_labkits_own_function_is_found_by_the_functions_it_is_given():
    def of(factor: float):
        return functools.partial(parts.mean_squared_error, lambda loss: factor * loss)

    assert key_of(tiny(loss=of(1.0))) == key_of(tiny(loss=of(1.0))) != key_of(tiny(loss=of(2.0)))
    codes = [functools.partial(parts.mean_squared_error, each) for each in (lambda x: x, lambda x: x + 1)]
    assert key_of(tiny(loss=codes[0])) != key_of(tiny(loss=codes[1]))


def test_a_table_of_a_class_counts():
    def loss_with(table: list):
        def call(self, outputs, targets):
            return self.table[0] * parts.cross_entropy(outputs, targets)

        return type("Scaled", (), {"table": table, "__call__": call})()

    assert key_of(tiny(loss=loss_with([1.0]))) == key_of(tiny(loss=loss_with([1.0])))
    assert key_of(tiny(loss=loss_with([1.0]))) != key_of(tiny(loss=loss_with([1000.0])))


def test_a_recorded_error_is_not_returned_to_somebody_who_wants_it_raised(tmp_path):
    def failing(outputs, targets):
        raise ValueError("bug in the loss")

    store, recipe = fresh(tmp_path), tiny(loss=failing)
    assert store.run_of(recipe, progress=False).facts["error"]["message"] == "bug in the loss"
    with pytest.raises(ValueError, match="bug in the loss"):
        store.run_of(recipe, errors="raise", progress=False)


def test_an_edit_elsewhere_in_the_file_keeps_the_run(my_parts):
    """A changed signature in a failure's file does not train its runs again."""
    before = key_of(tiny(loss=my_parts(SOURCE).my_loss))
    moved = "# a comment\n\n" + SOURCE.replace("return 1\n", "return 2\n")
    assert key_of(tiny(loss=my_parts(moved).my_loss)) == before


@pytest.mark.parametrize("what", EDITS)
def test_a_file_that_was_edited_and_not_imported_again_is_not_what_ran(my_parts, tmp_path, what):
    recipe = tiny(loss=my_parts(SOURCE).my_loss)
    before = key_of(recipe)
    edited = SOURCE.replace(*EDITS[what])
    (tmp_path / "modules" / "my_parts.py").write_text(edited)
    assert key_of(recipe) == before != key_of(tiny(loss=my_parts(edited).my_loss))


def test_an_edited_function_in_a_table_of_labkit_counts(monkeypatch):
    before = key_of(RECIPE)
    monkeypatch.setattr(data._read_mnist, "__code__", data._read_cifar10.__code__)
    assert key_of(RECIPE) != before


def test_what_labkit_loads_and_caches_does_not_count():
    code = """
from helpers import tiny
from labkit.training.run_store import key_of
from labkit.training.torchvision_shim import torchvision

before = key_of(tiny())
torchvision()
tiny().data(tiny())
assert key_of(tiny()) == before
"""
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )


class Abstract(abc.ABC):
    @abc.abstractmethod
    def method(self): ...


@pytest.mark.parametrize(
    "value",
    [
        types.MappingProxyType({"scale": 1.0}),
        np.array(["2020-01-01"], dtype="datetime64[D]"),
        enum.Enum("Colour", "RED GREEN"),
        Abstract,
        collections.namedtuple("Point", "x y")(1, 2),
        logging.getLogger("mine"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_global_of_any_kind_has_a_key(my_parts, value):
    module = my_parts("from labkit.training import parts\n\n\ndef my_loss(*both):\n    return USED and 0\n")
    module.USED = value
    key = key_of(tiny(loss=module.my_loss))
    assert key is not None and key == key_of(tiny(loss=module.my_loss))


WITHOUT_CONTENT = {"lock": threading.Lock(), "meta": torch.empty(2, device="meta"), "sparse": torch.eye(2).to_sparse()}


@pytest.mark.parametrize("value", WITHOUT_CONTENT.values(), ids=WITHOUT_CONTENT)
def test_a_global_without_content_has_no_key(my_parts, value):
    module = my_parts("def my_loss(*both):\n    return USED\n")
    module.USED = value
    assert key_of(tiny(loss=module.my_loss)) is None


def halved(outputs, targets, factor=0.5):
    return factor * parts.cross_entropy(outputs, targets)


def test_a_partial_is_found_by_its_function_and_its_arguments(tmp_path, trainings):
    store = fresh(tmp_path)
    half = store.run_of(tiny(loss=functools.partial(halved, factor=0.5)), progress=False)
    assert store.run_of(tiny(loss=functools.partial(halved, factor=0.5)), progress=False) is half
    assert len(trainings) == 1
    third = store.run_of(tiny(loss=functools.partial(halved, factor=0.3)), progress=False)
    assert len(trainings) == 2 and third["loss"][0] == pytest.approx(half["loss"][0] * 0.6)
    assert store.files() == {}


def test_a_lambda_and_a_closure_are_found_by_their_code_and_what_they_hold():
    def scaled(factor):
        return lambda outputs, targets: factor * parts.cross_entropy(outputs, targets)

    keys = {factor: key_of(tiny(loss=scaled(factor))) for factor in (0.5, 2.0)}
    assert keys[0.5] == key_of(tiny(loss=scaled(0.5))) != keys[2.0]
    one = key_of(tiny(loss=lambda outputs, targets: parts.cross_entropy(outputs, targets)))
    other = key_of(tiny(loss=lambda outputs, targets: 2 * parts.cross_entropy(outputs, targets)))
    assert one != other and not one.lasting and not keys[0.5].lasting


def test_a_part_of_a_notebook_is_kept_in_memory_by_its_code_and_not_on_disk(tmp_path, monkeypatch, trainings):
    def cell(source: str) -> dict:
        notebook = types.ModuleType("__main__")
        monkeypatch.setitem(sys.modules, "__main__", notebook)
        exec(compile(source, "<cell>", "exec"), vars(notebook))
        return vars(notebook)

    store = fresh(tmp_path)
    before = store.run_of(tiny(loss=cell(SOURCE)["my_loss"]), progress=False)
    assert store.run_of(tiny(loss=cell(SOURCE)["my_loss"]), progress=False) is before and len(trainings) == 1
    for number, edit in enumerate(EDITS.values(), start=2):
        after = store.run_of(tiny(loss=cell(SOURCE.replace(*edit))["my_loss"]), progress=False)
        assert after["loss"][0] == pytest.approx(before["loss"][0] / 2) and len(trainings) == number
    assert store.files() == {}


class Counting:
    """A part with a state: its second run is another one."""

    def __init__(self):
        self.calls = 0

    def __call__(self, outputs, targets):
        self.calls += 1
        return parts.cross_entropy(outputs, targets)


def test_a_callable_object_is_found_by_its_class_and_its_state(trainings):
    store, loss = fresh(), Counting()
    assert key_of(tiny(loss=Counting())) == key_of(tiny(loss=loss))
    store.run_of(tiny(loss=loss), progress=False)
    store.run_of(tiny(loss=loss), progress=False)
    assert len(trainings) == 2
    store.run_of(tiny(loss=Counting()), progress=False)
    assert len(trainings) == 2


def test_what_cannot_be_compared_has_no_key_and_is_trained_each_time(trainings):
    lock, store = threading.Lock(), fresh()

    def guarded(outputs, targets):
        with lock:
            return parts.cross_entropy(outputs, targets)

    recipe = tiny(loss=guarded)
    assert key_of(recipe) is None
    store.put(recipe, trained(RECIPE))
    assert store.get(recipe) is None
    for _ in range(2):
        store.run_of(recipe, progress=False)
    assert len(trainings) == 2


def test_every_mode_can_be_kept_on_disk():
    recipes = [recipe for mode in FAILURES.values() for recipe in (mode.healthy, mode.sick, *mode.cures.values())]
    assert [recipe for recipe in recipes if not (key := key_of(recipe)) or not key.lasting] == []


def test_training_does_not_change_the_key(trainings):
    before = key_of(RECIPE)
    fresh().run_of(RECIPE, progress=False)
    assert key_of(RECIPE) == before and len(trainings) == 1


@pytest.mark.parametrize("version", ["labkit", "torch"])
def test_another_version_trains_again(kept, monkeypatch, version):
    if version == "labkit":
        monkeypatch.setattr(run_store, "__version__", "999")
    else:
        monkeypatch.setattr(run_store.torch, "__version__", "999")
    assert kept.get(RECIPE) is None


def test_parts_without_a_lasting_name_are_not_kept_on_disk(tmp_path):
    def local_model(recipe, data):
        return models.mlp(recipe, data)

    for part in (local_model, lambda recipe, data: None, functools.partial(models.mlp)):
        recipe = tiny(model=part)
        made = fresh(tmp_path / "new")
        made.put(recipe, trained(RECIPE))
        assert fresh(tmp_path / "new").get(recipe) is None and not (tmp_path / "new").exists()
        assert made.path(recipe) is None


def test_parts_of_the_same_name_from_other_modules_are_other_runs(monkeypatch):
    before = key_of(RECIPE)
    monkeypatch.setattr(models.mlp, "__module__", "elsewhere")
    assert key_of(RECIPE).digest != before.digest


def test_a_fork_is_another_run_and_stays_in_memory(tmp_path):
    store, forked = fresh(tmp_path), hand_made()
    store.put(RECIPE, forked, {"at": 3, "lr": 0.2})
    assert store.get(RECIPE, {"at": 3, "lr": 0.2}) is forked and store.files() == {}
    assert store.get(RECIPE) is None and store.get(RECIPE, {"at": 4, "lr": 0.2}) is None


# --- files ----------------------------------------------------------------------------------------


class Bomb:
    """What a pickle would execute."""

    def __reduce__(self):
        return exec, ("raise SystemExit('executed')",)


def damaged(whole: bytes, how: str) -> bytes:
    if how == "pickle":
        stream = io.BytesIO()
        np.savez(stream, head=np.array([Bomb()], dtype=object), **{"trace/loss": np.array([Bomb()], dtype=object)})
        return stream.getvalue()
    return {
        "empty": b"",
        "cut short": whole[: len(whole) // 2],
        "text": b"import os",
        "bits": whole[:200] + bytes(200) + whole[400:],
    }[how]


@pytest.mark.parametrize("how", ["empty", "cut short", "text", "bits", "pickle"])
def test_a_damaged_file_counts_as_none_and_is_written_again(kept, how):
    path = kept.path(RECIPE)
    path.write_bytes(damaged(path.read_bytes(), how))
    assert kept.get(RECIPE) is None
    kept.put(RECIPE, trained(RECIPE))
    assert kept.get(RECIPE) is not None


def test_a_run_of_another_recipe_under_this_name_is_not_taken(kept):
    trained(tiny(lr=0.5)).save(kept.path(RECIPE))
    assert kept.get(RECIPE) is None


def test_a_readable_run_with_traces_that_do_not_fit_is_not_taken(kept):
    run = trained(RECIPE)
    for traces in ({}, run.traces | {"loss": run["loss"][:-1]}, run.traces | {"loss": np.array(["a"] * len(run))}):
        write_unchecked(dataclasses.replace(run, traces=traces), kept.path(RECIPE))
        assert kept.get(RECIPE) is None


def test_a_stored_run_that_lacks_a_fact_is_not_taken(kept):
    run = trained(RECIPE)
    for name in ("stopped", "seconds", "classes"):
        facts = {fact: value for fact, value in run.facts.items() if fact != name}
        write_unchecked(dataclasses.replace(run, facts=facts), kept.path(RECIPE))
        assert kept.get(RECIPE) is None


def test_a_run_that_an_error_ended_before_its_first_step_is_a_run(tmp_path):
    recipe = FAILURES["detached_loss"].sick.but(samples=256, batch_size=32)
    run = trained(recipe)
    assert len(run) == 0 and run.facts["stopped"] == "error"
    fresh(tmp_path).put(recipe, run)
    assert fresh(tmp_path).get(recipe).facts == run.facts


def test_files_hold_nothing_but_numbers(kept):
    with zipfile.ZipFile(kept.path(RECIPE)) as file:
        for name in file.namelist():
            np.lib.format.read_array(io.BytesIO(file.read(name)), allow_pickle=False)


def test_a_folder_that_cannot_be_written_to_gives_one_warning_and_loses_nothing(tmp_path):
    (tmp_path / "file").write_text("in the way")
    made = fresh(tmp_path / "file" / "runs")
    with pytest.warns(UserWarning, match="LABKIT_CACHE") as told:
        made.put(RECIPE, trained(RECIPE))
        made.put(RECIPE, trained(RECIPE))
    assert len(told) == 1 and made.get(RECIPE) is trained(RECIPE)
    assert fresh(made.folder).get(RECIPE) is None and made.empty() == (0, 0)


def test_a_full_disk_gives_one_warning_and_loses_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Run, "save", full)
    made = fresh(tmp_path)
    with pytest.warns(UserWarning, match="No space left on device") as told:
        assert made.run_of(RECIPE, progress=False) is made.run_of(RECIPE, progress=False)
        made.run_of(tiny(lr=0.2), progress=False)
    assert len(told) == 1


def filled(folder, count: int, **options) -> tuple[RunStore, list[Recipe]]:
    """A store with so many runs, the first used longest ago."""
    store, recipes = fresh(folder, **options), [tiny(seed=seed) for seed in range(count)]
    for age, recipe in enumerate(recipes):
        store.put(recipe, dataclasses.replace(trained(RECIPE), recipe=recipe.summary()))
        if path := store.path(recipe):
            os.utime(path, (1000 + age, 1000 + age))
    return store, recipes


def there(store: RunStore, recipes: list[Recipe]) -> list[bool]:
    return [store.path(recipe).exists() for recipe in recipes]


def test_above_the_limit_the_files_used_longest_ago_go_and_others_never(tmp_path):
    store, recipes = filled(tmp_path, 3)
    foreign = [tmp_path / name for name in ("mine.npz", "notes.txt", f"{'0' * 32}.npz", "labkit-run-mine.npz")]
    for path in foreign:
        path.write_bytes(bytes(10**6))
        os.utime(path, (1, 1))
    assert fresh(tmp_path).get(recipes[0]) is not None  # used now
    store.limit = int(store.bytes * 1.1)
    store.put(RECIPE.but(lr=0.3), trained(RECIPE))
    assert there(store, recipes) == [True, False, True] and store.bytes <= store.limit
    assert all(path.exists() for path in foreign)


def test_in_the_users_cache_folder_the_files_of_older_labkits_are_counted_and_deleted(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))
    (tmp_path / f"{'0a' * 16}.npz").write_bytes(bytes(100))
    (tmp_path / "mine.npz").write_bytes(b"mine")
    assert on_disk().bytes == 100 and on_disk(tmp_path).files() == {}
    assert on_disk().empty() == (1, 100) and [path.name for path in tmp_path.iterdir()] == ["mine.npz"]


def test_without_a_limit_nothing_is_deleted(tmp_path):
    store, recipes = filled(tmp_path, 4)
    assert all(there(store, recipes)) and len(store.files()) == 4


def test_an_emptied_store_says_what_it_deleted_and_leaves_other_files(tmp_path):
    store, recipes = filled(tmp_path, 2)
    (tmp_path / "mine.npz").write_bytes(b"mine")
    size = store.bytes / 1e6
    assert emptied(store) == f"deleted 2 trained runs ({size:.1f} MB) from {tmp_path}"
    assert store.get(recipes[0]) is None and [path.name for path in tmp_path.iterdir()] == ["mine.npz"]
    assert emptied(store) == f"deleted 0 trained runs (0.0 MB) from {tmp_path}"


def test_the_folder_and_the_limit_come_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "mine"))
    assert store_folder() == tmp_path / "mine" == on_disk().folder
    monkeypatch.delenv("LABKIT_CACHE")
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    assert store_folder() == tmp_path / "runs"
    assert store_limit() == 500 * 10**6 == on_disk().limit and on_disk(tmp_path).limit is None
    monkeypatch.setenv("LABKIT_CACHE_MB", "20")
    assert on_disk().limit == 20 * 10**6
    monkeypatch.setenv("LABKIT_CACHE_MB", "lots")
    with pytest.raises(RecipeError, match="LABKIT_CACHE_MB: expected a whole number of megabytes, got 'lots'"):
        on_disk()


def test_the_record_has_folder_count_size_and_limit(tmp_path):
    store, _ = filled(tmp_path, 2, limit=20 * 10**6)
    record = as_record(store)
    assert (record.where, record.what, record.bytes) == (tmp_path, "2 trained runs, at most 20 MB", store.bytes)
    assert "labkit data --empty-runs" in record.advice
    nothing = as_record(fresh(tmp_path / "nowhere"))
    assert (nothing.what, nothing.state, nothing.bytes, nothing.advice) == ("0 trained runs", "empty", 0, "")


def test_reading_from_a_folder_that_may_only_be_read_is_silent(kept, monkeypatch):
    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "utime", refused)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kept.get(RECIPE) is not None


def test_statements_are_found_without_building_a_tree():
    """`ast` raises SystemError on Python 3.11 where another thread compiles, as a notebook does beside a panel."""
    source = """
import a, b  # a comment
TABLE = {
    "x": helper,
}
@decorated
def function():
    TABLE
if TABLE:
    OTHER = 1
else:
    OTHER = 2
class Kind:
    TABLE = 3
"""
    found = fingerprint._statements(source)
    assert ["".join(each.words) for each in found["TABLE"]] == ['TABLE={"x":helper,}', "ifTABLE:OTHER=1"]
    assert len(found["OTHER"]) == 2 and found["helper"] == found["TABLE"][:1] and "function" not in found
    assert "Kind" not in found and found["b"][0].words[:2] == ("import", "a")


def test_keys_are_made_in_many_threads_at_once_while_code_is_compiled():
    fingerprint._statements.cache_clear()
    made: list[str] = []
    threads = [threading.Thread(target=lambda: made.append(str(run_store.key_of(tiny())))) for _ in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        compile(ast.parse("x = [1, (2, {3: 4})]\n" * 200), "cell", "exec")
    assert len(made) == 8 and len(set(made)) == 1
