"""Trained runs, kept in memory and, where a folder is given, on disk: a recipe that comes back is not trained again.

A run is found by its recipe, by the code of every part of the recipe, and by the versions of labkit, torch and the file
format. Files are .npz without pickle: reading one cannot execute code.
"""

import contextlib
import hashlib
import json
import os
import re
import sys
import threading
import warnings
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import torch

from labkit import __version__
from labkit.errors import RecipeError
from labkit.recording.files import delete_abandoned
from labkit.recording.run import FORMAT, Run, RunError
from labkit.training.data import DataFile, download_folder
from labkit.training.fingerprint import fingerprint
from labkit.training.loop import UNFINISHED, train
from labkit.training.recipe import Recipe

MOST = 100  # runs in memory, the ones used last; one of 400 steps takes a megabyte or so
LIMIT = 500  # megabytes on disk in the user's cache folder: some thousand runs of 400 steps
OWN = re.compile(r"labkit-run-[0-9a-f]{32}\.npz")  # the files that a store writes, and the only ones it deletes
OWN_OR_OLD = re.compile(r"(labkit-run-)?[0-9a-f]{32}\.npz")  # in the user's cache folder: also those of older labkits
# What every trained run has, and whoever gets one from a store reads without asking.
TAKEN_FOR_GRANTED = (
    "classes", "samples", "batch_size", "planned_steps", "stopped", "error", "first_nonfinite", "seconds",
    "weights_sha256",
)  # fmt: skip


class Memory:
    """The runs used last, by their keys; for several threads."""

    def __init__(self, most: int = MOST):
        self.most = most
        self.runs: OrderedDict[str, Run] = OrderedDict()
        self.guard = threading.Lock()

    def get(self, key: str) -> Run | None:
        with self.guard:
            if key in self.runs:
                self.runs.move_to_end(key)
            return self.runs.get(key)

    def put(self, key: str, run: Run) -> None:
        with self.guard:
            self.runs[key] = run
            self.runs.move_to_end(key)
            while len(self.runs) > self.most:
                self.runs.popitem(last=False)

    def clear(self) -> None:
        with self.guard:
            self.runs.clear()


SHARED = Memory()  # of this process: panels, studies and exercises find one another's runs


class RunStore:
    """Runs by their recipes, in memory and in a folder, if there is one.

    All stores of a process share one memory, unless they are given their own. `limit` is in bytes; when the files of
    this store exceed it, those used longest ago are deleted. None: no limit. `own` matches the names of its files.
    """

    def __init__(
        self,
        folder: str | os.PathLike | None = None,
        *,
        limit: int | None = None,
        memory: Memory | None = None,
        own: re.Pattern = OWN,
    ):
        self.folder = Path(folder).expanduser() if folder is not None else None
        self.limit, self.memory, self.own = limit, SHARED if memory is None else memory, own
        self.writable = True

    def __repr__(self) -> str:
        where = f"in memory and in {self.folder}" if self.folder else "in memory"
        return f"<RunStore {where}>"

    def run_of(self, recipe: Recipe, *, errors: str = "record", **options) -> Run:
        """The run of this recipe: kept from before, or trained now with these options of `train`.

        A run that was stopped on request or interrupted is returned and not kept, nor is one that was measured
        otherwise than usual: without instruments, or with `full_every`.
        """
        usual = options.get("instruments", True) and "full_every" not in options
        key = key_of(recipe) if usual else None  # before training: parts can have a state
        run = self._get(key, recipe)
        if run is None or (errors == "raise" and run.facts.get("error")):
            run = train(recipe, errors=errors, **options)
            if run.facts["stopped"] not in UNFINISHED:
                self._put(key, run)
        return run

    def get(self, recipe: Recipe, fork: dict | None = None) -> Run | None:
        """The kept run of this recipe, or of this fork of it: the arguments of `labkit.fork`. None if there is none."""
        return self._get(key_of(recipe, fork), recipe)

    def put(self, recipe: Recipe, run: Run, fork: dict | None = None) -> None:
        """Keep a finished run. A folder that cannot be written to gives one warning; the run stays in memory."""
        self._put(key_of(recipe, fork), run)

    def forget(self) -> None:
        """Clear the memory; files stay."""
        self.memory.clear()

    def _get(self, key: "Key | None", recipe: Recipe) -> Run | None:
        if key is None:
            return None
        run = self.memory.get(key.digest)
        if run is None:
            run = self._read(key, recipe)
            if run is not None:
                self.memory.put(key.digest, run)
        elif (path := self._path(key)) and not path.exists():  # another store of this process has trained it
            self._write(key, run)
        return run

    def _put(self, key: "Key | None", run: Run) -> None:
        if key is not None:
            self.memory.put(key.digest, run)
            self._write(key, run)

    # --- on disk ---

    def path(self, recipe: Recipe) -> Path | None:
        """The file of this recipe's run, whether it exists or not; None where it is kept in memory at most."""
        return self._path(key_of(recipe))

    def files(self) -> dict[Path, os.stat_result]:
        """The files that this store wrote, the one used longest ago first."""
        found = {}
        with contextlib.suppress(OSError):  # no folder, or one that may not be read
            for path in self.folder.iterdir() if self.folder else ():
                if self.own.fullmatch(path.name):
                    with contextlib.suppress(OSError):  # another process has deleted it
                        found[path] = path.stat()
        return dict(sorted(found.items(), key=lambda item: item[1].st_mtime_ns))

    @property
    def bytes(self) -> int:
        return sum(status.st_size for status in self.files().values())

    def empty(self) -> tuple[int, int]:
        """Delete the files of this store and clear the memory; how many files there were, and their bytes."""
        self.forget()
        if self.folder:
            delete_abandoned(self.folder, self.own.pattern)
        return self._delete(self.files())

    def _path(self, key: "Key | None") -> Path | None:
        if key is None or not key.lasting or self.folder is None:
            return None
        return self.folder / f"labkit-run-{key.digest[:32]}.npz"

    def _read(self, key: "Key", recipe: Recipe) -> Run | None:
        """The run on disk. A file that is damaged, or holds another run, counts as none."""
        path = self._path(key)
        if path is None:
            return None
        try:
            run = Run.load(path)
        except (RunError, OSError):
            return None
        same = run.recipe == json.loads(json.dumps(recipe.summary())) and run.facts.get("torch") == torch.__version__
        if not same or not whole(run):
            return None
        with contextlib.suppress(OSError):  # a folder that may only be read
            os.utime(path)  # used now: it is deleted after the others
        return run

    def _write(self, key: "Key", run: Run) -> None:
        path = self._path(key)
        if path is None or not self.writable:
            return
        try:
            run.save(path)
            delete_abandoned(path.parent, self.own.pattern)  # of runs that are never asked for again
            self._shrink()
        except RunError as error:
            warnings.warn(f"this run is not kept for the next time: {error}", stacklevel=4)
        except OSError as error:
            self.writable = False
            words = f"runs are not kept for the next time: {error}. Set LABKIT_CACHE to another folder."
            warnings.warn(words, stacklevel=4)

    def _shrink(self) -> None:
        if self.limit is not None:
            files, chosen = self.files(), {}
            excess = sum(status.st_size for status in files.values()) - self.limit
            for path, status in files.items():
                if excess <= 0:
                    break
                chosen[path], excess = status, excess - status.st_size
            self._delete(chosen)

    def _delete(self, files: dict[Path, os.stat_result]) -> tuple[int, int]:
        gone = []
        for path, status in files.items():
            with contextlib.suppress(OSError):  # gone already, or not ours to delete
                path.unlink()
                gone.append(status.st_size)
        return len(gone), sum(gone)


in_memory = RunStore()  # for whoever keeps runs in memory alone


# --- the key --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Key:
    """What a run is found by. One that is not lasting is found in this process alone."""

    digest: str
    lasting: bool


def key_of(recipe: Recipe, fork: dict | None = None) -> Key | None:
    """The key of a recipe's run, or of a fork; None where a part's behaviour cannot be compared with another's."""
    parts = {name: value for name in recipe.summary() if callable(value := getattr(recipe, name))}
    try:
        code = {name: fingerprint(part) for name, part in parts.items()}
        done = fingerprint(fork) if fork else None
        made_of = json.dumps([recipe.summary(), code, done, __version__, torch.__version__, FORMAT], sort_keys=True)
    # NoFingerprint is a TypeError, as is a knob that JSON does not have; RecursionError is a RuntimeError, as is what
    # torch raises for a tensor without content (on "meta").
    except (TypeError, RuntimeError):
        return None
    digest = hashlib.sha256(made_of.encode()).hexdigest()
    return Key(digest, lasting=not fork and all(importable(part) for part in parts.values()))


def importable(part) -> bool:
    """Can another process find this part by its name? Not a function of a notebook, a local one or a lambda."""
    module, name = getattr(part, "__module__", None), getattr(part, "__qualname__", None)
    if not module or not name or module == "__main__":
        return False
    return getattr(sys.modules.get(module), name, None) is part


def whole(run: Run) -> bool:
    """Has it steps and all facts? `Run.load` has checked the rest. Only an error ends a run before its first step."""
    begun = len(run) > 0 or ("loss" in run and run.facts.get("stopped") == "error")
    return begun and all(name in run.facts for name in TAKEN_FOR_GRANTED)


# --- the store in the user's cache folder ---------------------------------------------------------


def store_folder() -> Path:
    """Where runs are kept from one process to the next: $LABKIT_CACHE, else beside the downloaded data."""
    named = os.environ.get("LABKIT_CACHE")
    return Path(named).expanduser() if named else download_folder() / "runs"


def store_limit() -> int:
    """How many bytes it may take: $LABKIT_CACHE_MB megabytes, else LIMIT."""
    asked = os.environ.get("LABKIT_CACHE_MB", str(LIMIT))
    if not asked.isdecimal():
        raise RecipeError(f"LABKIT_CACHE_MB: expected a whole number of megabytes, got {asked!r}; for example 500")
    return int(asked) * 10**6


def on_disk(folder: str | os.PathLike | None = None) -> RunStore:
    """The store in this folder, without a limit; or the one in the user's cache folder, with `store_limit()`."""
    if folder is not None:
        return RunStore(folder)
    return RunStore(store_folder(), limit=store_limit(), own=OWN_OR_OLD)


def as_record(store: RunStore) -> DataFile:
    """A store on disk as a line of `labkit data`."""
    count, limit = len(store.files()), "" if store.limit is None else f", at most {store.limit / 1e6:g} MB"
    what = f"{count} trained run{'' if count == 1 else 's'}{limit}"
    advice = "Delete them with `labkit data --empty-runs`." if count else ""
    return DataFile("runs", what, store.folder or Path(), store.bytes, "ok" if count else "empty", advice)


def emptied(store: RunStore) -> str:
    """Delete the runs of a store on disk; what was deleted, in words."""
    count, size = store.empty()
    return f"deleted {count} trained run{'' if count == 1 else 's'} ({size / 1e6:.1f} MB) from {store.folder}"
