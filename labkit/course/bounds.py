"""Bounds for code that a student wrote: time, output, memory, and settings that are put back afterwards.

They are for mistakes, not for attacks: an endless loop, a print in it, a list that never stops growing, a setting of
torch that is left changed. Code that means harm needs another process, or another machine.
"""

import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import torch

from labkit.errors import RecipeError

CALL_SECONDS = 60  # for one call of a student's function, which takes milliseconds; $LABKIT_CHECK_SECONDS changes it
CHECK_CALLS = 10  # a whole check may take as long as ten calls: it trains up to four short runs
SETTING = "LABKIT_CHECK_SECONDS"
AGAIN = 0.05  # seconds until the interruption comes once more, where a bare `except:` has swallowed it
MOST_OUTPUT = 20_000  # characters that one check may print: about 400 lines
MORE_MEMORY = 4 * 2**30  # bytes that one check may add: far more than an exercise needs, less than a laptop has


class TookTooLong(BaseException):
    """Raised inside code that runs out of time. Not an Exception, which a student's `except Exception` would catch."""

    def __init__(self, seconds: float):
        super().__init__()
        self.seconds = seconds

    def __str__(self) -> str:
        return (
            f"it did not end within {self.seconds:g} seconds, and was stopped. Look for a loop without an end. "
            f"If your machine is slow, allow more: set {SETTING}, for example to 300, and start the notebook again"
        )


def call_seconds() -> float:
    """How long one call may take: $LABKIT_CHECK_SECONDS, else CALL_SECONDS."""
    asked = os.environ.get(SETTING, str(CALL_SECONDS))
    try:
        seconds = float(asked)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < threading.TIMEOUT_MAX:
        raise RecipeError(f"{SETTING}: expected a number of seconds above 0, got {asked!r}; for example 300")
    return seconds


# --- time -----------------------------------------------------------------------------------------

# Coverage and the debuggers of notebooks and editors: an exception raised inside their own code leaves their locks
# locked, and the next line of any code hangs (seen with coverage 7.17).
TRACERS = {"coverage", "bdb", "pdb", "debugpy", "pydevd", "_pydevd_bundle", "_pydevd_frame_eval"}


class time_limit:
    """Raise TookTooLong in this thread if the code inside takes longer.

    It also ends a `sleep` or a wait; a single operation of numpy or torch is interrupted when it ends. Limits can be
    nested: the inner one is part of the outer one. Only the main thread on Linux and macOS can be interrupted, so that
    elsewhere there is no limit. (An exception raised from another thread was seen to stall all threads of Python 3.11.)
    """

    _innermost: "time_limit | None" = None  # of the main thread

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.active = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()

    def __enter__(self) -> None:
        if not self.active:
            return
        self.began = time.monotonic()
        self.outer = time_limit._innermost
        self.at = min(self.began + self.seconds, self.outer.at if self.outer else float("inf"))
        self.tracers = _frames_of(TRACERS, sys._getframe())
        time_limit._innermost = self
        self.handler = signal.signal(signal.SIGALRM, self._ring)
        left = max(1e-3, self.at - self.began)
        self.timer = signal.setitimer(signal.ITIMER_REAL, left, AGAIN)

    def __exit__(self, *_: object) -> None:
        if not self.active:
            return
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.handler if self.handler is not None else signal.SIG_DFL)
        time_limit._innermost = self.outer
        left, interval = self.timer
        if left:  # somebody else's timer, or that of the limit around this one
            signal.setitimer(signal.ITIMER_REAL, max(1e-3, left - (time.monotonic() - self.began)), interval)

    def _ring(self, _: int, frame: FrameType | None) -> None:
        """Interrupt the code, unless that would leave an alarm or a lock behind: then the next ring will."""
        in_context_manager = frame is not None and frame.f_code.co_filename == contextlib.__file__
        in_bounds = _frames_of({__name__}, frame) > 0  # a bound is just being entered or left
        in_tracer = _frames_of(TRACERS, frame) > self.tracers
        if not (in_context_manager or in_bounds or in_tracer):
            raise TookTooLong(self.seconds)


def _frames_of(packages: set[str], frame: FrameType | None) -> int:
    """How many calls in progress are of these modules or packages."""
    count = 0
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        count += name in packages or name.partition(".")[0] in packages
        frame = frame.f_back
    return count


# --- output ---------------------------------------------------------------------------------------


class CappedStream:
    """Passes text on to another stream until `left[0]`, which all streams of a check share, has gone down to 0."""

    def __init__(self, stream: Any, left: list[int]):
        self._stream, self._left = stream, left

    def write(self, text: str) -> int:
        if self._left[0] > 0:
            shown = text[: self._left[0]]
            self._left[0] -= len(shown)
            self._stream.write(shown)
            if self._left[0] <= 0:
                self._stream.write(f"\n[labkit: of a check's output the first {MOST_OUTPUT:,} characters are shown]\n")
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def close(self) -> None:
        """The stream belongs to the notebook: a student's code cannot close it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def capped_output(most: int | None = None) -> Iterator[None]:
    """What is printed inside appears as usual, up to `most` characters."""
    left = [MOST_OUTPUT if most is None else most]
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (CappedStream(stream, left) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


# --- memory ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def memory_limit() -> Iterator[None]:
    """Inside, what would need MORE_MEMORY beyond the present use raises MemoryError. On Linux without a GPU only.

    A GPU's driver reserves addresses far beyond the memory, and other systems have no such limit.
    """
    if sys.platform != "linux" or torch.cuda.is_available():
        yield
        return
    import resource  # not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(_first_word("/proc/self/statm"))
    wanted = pages * resource.getpagesize() + MORE_MEMORY
    bounds = [limit for limit in (soft, hard, wanted) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(bounds), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _first_word(path: str) -> str:
    with open(path, encoding="ascii") as stream:
        return stream.read().split()[0]


# --- settings -------------------------------------------------------------------------------------

# What a student's code may change for the whole process, with the effect that later runs train differently: how to
# read each setting, and how to put it back.
SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_rng_state, torch.set_rng_state),
    (np.random.get_state, np.random.set_state),
    (np.geterr, lambda errors: np.seterr(**errors)),
    (random.getstate, random.setstate),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (os.getcwd, os.chdir),
)


@contextlib.contextmanager
def settings_restored() -> Iterator[None]:
    """Put back what the code inside changed in torch, numpy and Python."""
    before = [read() for read, _ in SETTINGS]
    try:
        yield
    finally:
        for (_, restore), value in zip(SETTINGS, before, strict=True):
            restore(value)


CHECKING = threading.RLock()


@contextlib.contextmanager
def bounded_check() -> Iterator[None]:
    """All bounds around one check. They concern the whole process: of two checks in two threads, the second waits."""
    with CHECKING, settings_restored(), capped_output(), memory_limit(), time_limit(CHECK_CALLS * call_seconds()):
        yield
