"""The same function for many cases, in one process, in several, or on a Dask cluster."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import joblib
import torch
from tqdm.auto import tqdm

from labkit.errors import RecipeError, optional
from labkit.training.recipe import COUNT

LOOK_EVERY = 1.0  # seconds: soon enough for whoever starts again, and nothing to notice while it trains


def spread(
    function: Callable, cases: Iterable[tuple], jobs: int = 1, *, unit: str | None = None, in_order: bool = True
) -> Iterator:
    """`function(*case)` for each case, in `jobs` processes: the results one by one, in order or as they are ready.

    With a `unit` there is a progress bar. The cases begin when the first result is asked for; Ctrl-C ends the
    iteration, and results that were given out are kept.
    """
    check_jobs(jobs)
    return _results(function, list(cases), jobs, unit, in_order)


def check_jobs(jobs: int) -> None:
    if problem := COUNT.problem(jobs):
        raise RecipeError(f"jobs: {problem}")


def _results(function: Callable, cases: list[tuple], jobs: int, unit: str | None, in_order: bool) -> Iterator:
    call = joblib.delayed(_on_one_thread if jobs > 1 else _plainly)
    order = "generator" if in_order else "generator_unordered"
    done = joblib.Parallel(n_jobs=jobs, return_as=order, **_own_processes())(call(function, case) for case in cases)
    with contextlib.closing(done):
        yield from tqdm(done, total=len(cases), unit=unit or "it", leave=False, disable=None if unit else True)


def _own_processes() -> dict[str, Any]:
    """Options for the processes that joblib starts on this machine; a Dask cluster has its own."""
    backend, _ = joblib.parallel.get_active_backend()
    ours = isinstance(backend, joblib.parallel.LokyBackend)
    return {"initializer": end_with, "initargs": (os.getpid(),)} if ours else {}


def _plainly(function: Callable, case: tuple):
    return function(*case)


def _on_one_thread(function: Callable, case: tuple):
    torch.set_num_threads(1)  # processes that each use all cores wait for one another
    return function(*case)


def end_with(parent: int) -> None:
    """End this process when the one that started it is gone, perhaps already: after a kill -9 it would finish its case
    and wait five minutes for another. Not on Windows, where a process keeps the number of a parent that is gone.
    """
    threading.Thread(target=_wait_for_the_end_of, args=(parent,), daemon=True).start()


def _wait_for_the_end_of(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_EVERY)
    os._exit(1)  # files are written whole or not at all


@contextlib.contextmanager
def on_cluster(address: str | None) -> Iterator[None]:
    """Inside, `spread` uses this Dask cluster; without an address, processes of this machine."""
    if address is None:
        yield
        return
    dask = optional("dask.distributed", extra="cluster", feature="--dask")
    with dask.Client(address), joblib.parallel_config(backend="dask"):
        yield
