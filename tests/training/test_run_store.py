"""Runs on disk: found again by their recipe, never by accident, and never trusted when they are damaged."""

import functools
import io
import zipfile

import numpy as np
import pytest
from helpers import tiny, trained

from labkit.training import run_store as archive
from labkit.training import models
from labkit.training.run_store import Archive, archive_folder, lasting
from labkit.failures import FAILURES
from labkit.recording.run import Run

RECIPE = tiny()


@pytest.fixture
def kept(tmp_path) -> Archive:
    """An archive with one run in it."""
    made = Archive(tmp_path)
    made.put(RECIPE, trained(RECIPE))
    return made


def test_a_run_is_found_again_by_an_equal_recipe_and_by_no_other(kept):
    found = kept.get(tiny())
    assert (found["loss"] == trained(RECIPE)["loss"]).all() and found.facts == trained(RECIPE).facts
    assert kept.get(tiny(lr=0.2)) is None
    assert Archive(kept.folder).get(RECIPE) is not None


@pytest.mark.parametrize("version", ["labkit", "torch"])
def test_another_version_trains_again(kept, monkeypatch, version):
    if version == "labkit":
        monkeypatch.setattr(archive, "__version__", "999")
    else:
        monkeypatch.setattr(archive.torch, "__version__", "999")
    assert kept.get(RECIPE) is None


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
def test_a_damaged_file_is_as_good_as_none_and_is_written_anew(kept, how):
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
        Run(traces, recipe=run.recipe, facts=run.facts).save(kept.path(RECIPE))
        assert kept.get(RECIPE) is None


def test_files_hold_nothing_but_numbers(kept):
    with zipfile.ZipFile(kept.path(RECIPE)) as file:
        for name in file.namelist():
            np.lib.format.read_array(io.BytesIO(file.read(name)), allow_pickle=False)


def test_parts_without_a_lasting_name_are_not_kept(tmp_path):
    def local_model(recipe, data):
        return models.mlp(recipe, data)

    for part in (local_model, lambda recipe, data: None, functools.partial(models.mlp)):
        recipe = tiny(model=part)
        assert not lasting(recipe)
        made = Archive(tmp_path / "new")
        made.put(recipe, trained(RECIPE))
        assert made.get(recipe) is None and not (tmp_path / "new").exists()
    assert all(lasting(mode.sick) for mode in FAILURES.values() if mode.name == "dead_relu")


def test_parts_of_the_same_name_from_other_modules_are_other_runs(tmp_path, monkeypatch):
    made = Archive(tmp_path)
    before = made.path(RECIPE)
    monkeypatch.setattr(models.mlp, "__module__", "elsewhere")
    assert made.path(RECIPE) != before


def test_a_folder_that_cannot_be_written_to_is_said_once(tmp_path):
    (tmp_path / "file").write_text("in the way")
    made = Archive(tmp_path / "file" / "runs")
    with pytest.warns(UserWarning, match="LABKIT_CACHE") as told:
        made.put(RECIPE, trained(RECIPE))
        made.put(RECIPE, trained(RECIPE))
    assert len(told) == 1 and made.get(RECIPE) is None


def test_the_folder_is_named_in_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "mine"))
    assert archive_folder() == tmp_path / "mine"
    monkeypatch.delenv("LABKIT_CACHE")
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    assert archive_folder() == tmp_path / "runs"
