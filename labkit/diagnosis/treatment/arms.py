"""One arm of an experiment: a program run once with prescriptions, in a process of its own, and what came back."""

import ast
import contextlib
import dataclasses
import importlib
import inspect
import json
import math
import os
import random
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import torch

import labkit
import labkit.diagnosis.watch as watching
from labkit.diagnosis.treatment.intervention import Curve, Intervention, Limits, Stopped, set_seed
from labkit.diagnosis.treatment.patient import DoesNotApply
from labkit.diagnosis.treatment.prescriptions.catalogue import PLACEBO, named
from labkit.errors import RecipeError
from labkit.recording.files import written_whole
from labkit.recording.run import Run, RunError
from labkit.training.parallel import end_with

Program = Callable[..., object]
Report = Callable[[dict], object]
UNTREATED = "untreated"
LAB, SITE = Path(labkit.__file__).parent, "site-packages"  # lines of these are not the program's own
PATIENCE, LEAST = 6.0, 20.0  # an arm may take this many times as long as the untreated one, and at least these seconds
KILLED, CRASHED, LATE, REFUSED, ENDED, DONE = "killed", "crashed", "too slow", "does not apply", "stopped", "done"


@dataclass(frozen=True)
class Arm:
    """What is run: which prescriptions, with which seed."""

    names: tuple[str, ...] = ()
    seed: int = 0

    @property
    def words(self) -> str:
        return " and ".join(named(name).words for name in self.names) or UNTREATED

    @property
    def repeats(self) -> int:
        return math.prod(named(name).repeats for name in self.names)

    @property
    def is_placebo(self) -> bool:
        return self.names == (PLACEBO.name,)


@dataclass(frozen=True)
class Result:
    """What came of an arm."""

    arm: Arm
    status: str  # one of the six above
    why: str = ""  # an error, a signal, a reason
    run: Run | None = None
    measures: tuple[str, ...] = ()  # names of the program's own validation results
    seconds: float = 0.0
    samples: tuple[dict, ...] = ()

    @property
    def counts(self) -> bool:
        """Was it run to its end?"""
        return self.status == DONE and self.run is not None


@dataclass(frozen=True)
class Order:
    """An arm, and under which conditions it is run."""

    arm: Arm
    steps: int = 0
    limits: Limits = field(default_factory=Limits)
    seconds: float | None = None  # the time limit
    stirred: bool = False  # other random numbers from the call of `watch` on, for a program that seeds itself


PERFORMING: list[Arm] = []  # the arm that this process runs, if it runs one


def in_an_arm() -> bool:
    return bool(PERFORMING)


# --- inside the process --------------------------------------------------------------------------------


def perform(program: Program, order: Order, report: Report = lambda _: None) -> Result:
    """Run the program under the order's prescriptions, in this process."""
    began = time.monotonic()
    stirred_with = order.arm.seed if order.stirred else None
    watching = Intervention(order.arm.names, order.steps, order.limits, report, stirred_with)
    status, why = DONE, ""
    PERFORMING.append(order.arm)
    try:
        for turn in range(order.arm.repeats):
            if turn:
                watching.again()
            set_seed(order.arm.seed)
            call_program(program, watching, order.arm.seed)
    except Stopped as stop:
        status, why = ENDED, str(stop)
    except DoesNotApply as reason:
        status, why = REFUSED, str(reason)
    except SystemExit as ending:  # of a script that ends itself
        if ending.code:
            status, why = CRASHED, f"exit code {ending.code}"
    except Exception as error:
        status, why = CRASHED, "".join(traceback.format_exception_only(error)).strip() + line_of(error)
    finally:
        PERFORMING.pop()
    record = watching.record
    try:
        if record is None and status == DONE:
            status, why = CRASHED, "the program never called `watch`"
        run = None if record is None or status == REFUSED else record.run
        samples = record.shown_samples() if record and not order.arm.names else []
    finally:
        watching.close()
    names = tuple(record.results) if record else ()
    return Result(order.arm, status, why, run, names, time.monotonic() - began, tuple(samples))


def call_program(program: Program, watching: Intervention, seed: int) -> None:
    program(watching, seed) if takes_seed(program) else program(watching)


def takes_seed(program: Program) -> bool:
    """Does it have a second parameter without a default, or one that is called seed?"""
    try:
        parameters = list(inspect.signature(program).parameters.values())
    except (TypeError, ValueError):
        return False
    plain = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return len(plain) > 1 and (plain[1].default is inspect.Parameter.empty or plain[1].name == "seed")


def line_of(error: BaseException) -> str:
    """Where the program itself was when it raised: the innermost line that is not of an installed package."""
    lines = traceback.extract_tb(error.__traceback__)
    own = [each for each in lines if not each.filename.startswith((str(LAB), "<")) and SITE not in each.filename]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


@contextlib.contextmanager
def random_numbers_kept():
    """Afterwards the random numbers of Python, numpy and torch go on as if nothing had happened."""
    python, numpy = random.getstate(), np.random.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


# --- between the processes -------------------------------------------------------------------------------


def write(folder: Path, result: Result) -> None:
    """The run as a file of its own, the rest as JSON."""
    status, why = result.status, result.why
    if result.run is not None:
        try:
            result.run.save(folder / "run.npz")
        except RunError as error:
            status, why = CRASHED, f"its record cannot be stored: {error}"
    plain = {"status": status, "why": why, "measures": result.measures, "seconds": result.seconds}
    with written_whole(folder / "result.json") as stream:
        stream.write(json.dumps(plain | {"samples": result.samples}).encode())


def read(folder: Path, arm: Arm) -> Result | None:
    """None where the process ended before it had written."""
    try:
        plain = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    stored = folder / "run.npz"
    run = Run.load(stored) if stored.exists() else None
    measures, samples = tuple(plain["measures"]), tuple(plain["samples"])
    return Result(arm, plain["status"], plain["why"], run, measures, plain["seconds"], samples)


def as_json(order: Order) -> str:
    return json.dumps(dataclasses.asdict(order))


def from_json(text: str) -> Order:
    plain = json.loads(text)
    arm = Arm(tuple(plain["arm"]["names"]), plain["arm"]["seed"])
    limits = plain["limits"]
    curves = {name: Curve(**limits[name]) if limits[name] else None for name in ("untreated", "best")}
    return Order(arm, plain["steps"], Limits(**(limits | curves)), plain["seconds"], plain["stirred"])


def followed(
    stream: Any,
    finish: Callable[[], int | None],
    kill: Callable[[], object],
    stop: threading.Event,
    order: Order,
    report: Report,
) -> str:
    """Read progress reports until the process ends; kill it when its time is over. Why it was killed, if it was."""
    began, late = time.monotonic(), ""

    def guard() -> None:
        nonlocal late
        while finish() is None:
            if order.seconds is not None and time.monotonic() - began > order.seconds:
                late = f"no end after {order.seconds:.0f} s"
                kill()
                return
            if stop.wait(0.05):
                late = "interrupted"
                kill()
                return

    watcher = threading.Thread(target=guard, daemon=True)
    watcher.start()
    try:
        for line in stream:
            with contextlib.suppress(ValueError):
                report(json.loads(line))
        watcher.join()
    except BaseException:  # Ctrl-C: nobody would end the process
        kill()
        raise
    return late


def outcome(folder: Path, order: Order, late: str, code: int | None, seconds: float) -> Result:
    found = read(folder, order.arm)
    if found is not None and not late:
        return found
    if late:
        return Result(order.arm, LATE, late, seconds=seconds)
    log = folder / "output.txt"
    words = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:] if log.exists() else []
    ending = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
    return Result(order.arm, KILLED, "; ".join([ending, *words]), seconds=seconds)


def end_group(leader: int) -> None:
    """End whatever a process of ours has started, as workers of a DataLoader; it leads a group of its own."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)


class Forked:
    """Runs a function in a forked copy of this process: nothing is pickled, and only the run comes back."""

    forking = threading.Lock()  # of several threads one at a time: a fork keeps the ends of all open pipes

    def __init__(self, program: Program):
        self.program = program
        self.stop = threading.Event()  # ends the arms that are under way
        importlib.import_module("torch._dynamo")  # by the first optimizer that is made; once here, not in each fork

    def __call__(self, order: Order, report: Report = lambda _: None) -> Result:
        with tempfile.TemporaryDirectory(prefix="labkit-") as place:
            folder, began = Path(place), time.monotonic()
            parent = os.getpid()
            sys.stdout.flush()
            sys.stderr.flush()
            with self.forking:
                inlet, outlet = os.pipe()
                child = os.fork()
                if child == 0:
                    self._in_child(order, folder, inlet, outlet, parent)
                os.close(outlet)
            codes: list[int] = []

            def finished() -> int | None:
                if not codes:
                    pid, status = os.waitpid(child, os.WNOHANG)
                    if pid:
                        codes.append(os.waitstatus_to_exitcode(status))
                        end_group(child)
                return codes[0] if codes else None

            def kill() -> None:
                if not codes:
                    end_group(child)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(child, signal.SIGKILL)
                    with contextlib.suppress(ChildProcessError):
                        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

            with os.fdopen(inlet) as stream:
                late = followed(stream, finished, kill, self.stop, order, report)
            return outcome(folder, order, late, finished(), time.monotonic() - began)

    def _in_child(self, order: Order, folder: Path, inlet: int, outlet: int, parent: int) -> None:
        code = 1
        try:
            os.setsid()  # a group of its own, to be ended as a whole
            Forked.forking = threading.Lock()  # the parent's is held by the thread that made this fork
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends this process
            os.close(inlet)
            end_with(parent)
            silence(folder)
            torch.set_num_threads(1)  # threads of the parent do not exist in a fork; torch's own loaders do the same
            stream = os.fdopen(outlet, "w", buffering=1)
            write(folder, perform(self.program, order, sender(stream)))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # no clean-up that belongs to the parent


def silence(folder: Path) -> None:
    """What the program prints goes into a file; there is nothing to read: nobody answers a question."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    log = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if sys.stdout is not sys.__stdout__:  # a notebook's or a test's own
        sys.stdout = sys.stderr = os.fdopen(1, "w", closefd=False)


def sender(stream: Any) -> Report:
    def send(event: dict) -> None:
        with contextlib.suppress(OSError, ValueError):
            stream.write(json.dumps(event) + "\n")
            stream.flush()

    return send


class Script:
    """Runs a script in a fresh interpreter: one of its functions, or all of it with `labkit.watch` replaced."""

    def __init__(self, path: Path, function: str | None):
        self.path, self.function = path, function

    def __call__(self, order: Order, report: Report = lambda _: None) -> Result:
        with tempfile.TemporaryDirectory(prefix="labkit-") as place:
            folder, began = Path(place), time.monotonic()
            (folder / "order.json").write_text(as_json(order), encoding="utf-8")
            command = [sys.executable, "-m", "labkit.diagnosis.treatment.in_script", str(folder), str(self.path)]
            options: dict[str, Any] = (
                {"start_new_session": True} if os.name == "posix" else {}
            )  # Ctrl-C comes to us alone
            child = subprocess.Popen(
                [*command, self.function or "", str(os.getpid())], stdout=subprocess.PIPE, text=True, **options
            )

            def finished() -> int | None:
                if (code := child.poll()) is not None:
                    end_group(child.pid)
                return code

            try:
                assert child.stdout
                late = followed(child.stdout, finished, child.kill, threading.Event(), order, report)
            finally:
                child.kill()
                end_group(child.pid)
                child.wait()
                child.stdout.close()  # type: ignore[union-attr]
            return outcome(folder, order, late, child.returncode, time.monotonic() - began)


class Here:
    """Runs a function in this process, where no copy of it can be made: on Windows, or once a GPU is in use."""

    def __init__(self, program: Program):
        self.program = program

    def __call__(self, order: Order, report: Report = lambda _: None) -> Result:
        limits = dataclasses.replace(order.limits, seconds=order.seconds)
        with random_numbers_kept(), contextlib.redirect_stdout(Forgetful()):
            result = perform(self.program, dataclasses.replace(order, limits=limits), report)
        return dataclasses.replace(result, status=LATE) if result.why == "time limit" else result


class Forgetful:
    """A stream that forgets what is written."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass


Runner = Forked | Script | Here


def runner_for(program: Any) -> Runner:
    """A fresh process for each arm where that is possible."""
    forks = hasattr(os, "fork") and not (torch.cuda.is_available() and torch.cuda.is_initialized())
    if isinstance(program, str | os.PathLike):
        path, function = script(str(program))
        # This process has not run any of the script, so that a fork of it is as fresh as a new interpreter, and sooner.
        return Forked(program_of(path, function)) if forks and not on_cluster() else Script(path, function)
    if not callable(program):
        raise RecipeError(
            f"treat: expected a function of `watch` or the path of a script, got {type(program).__name__}; "
            "write your training as `def program(watch): ...` and call watch(model, optimizer) in it"
        )
    return Forked(program) if forks else Here(program)


def on_cluster() -> bool:
    """Is joblib told to use something else than this machine?"""
    backend, _ = joblib.parallel.get_active_backend()
    return "dask" in type(backend).__name__.lower()


def program_of(path: Path, function: str | None) -> Program:
    """A function of a script; or all of it, with another `labkit.watch`."""

    def run_script(watch: Any, seed: int) -> None:
        sys.path.insert(0, str(path.parent))
        sys.argv = [str(path)]
        if function:
            call_program(runpy.run_path(str(path), run_name="labkit_treated_script")[function], watch, seed)
        else:
            labkit.watch = watching.watch = watch  # type: ignore[assignment]
            runpy.run_path(str(path), run_name="__main__")

    return run_script


def script(text: str) -> tuple[Path, str | None]:
    """The path and the function of `script.py:function`; without a function the one that takes `watch`, if there is."""
    path, _, function = text.rpartition(":") if ".py:" in text else (text, "", "")
    try:
        source = Path(path).read_text(encoding="utf-8")
        tree = ast.parse(source)
    except SyntaxError as error:
        raise RecipeError(f"{path} is not a Python script: {error}") from None
    functions = {each.name: each for each in tree.body if isinstance(each, ast.FunctionDef)}
    if function and function not in functions:
        raise RecipeError(f"{path} has no function {function!r}; it has {', '.join(functions) or 'none'}")
    taking = [name for name, each in functions.items() if each.args.args and each.args.args[0].arg == "watch"]
    if not function and len(taking) > 1:
        raise RecipeError(
            f"{path} has several functions of `watch`: {', '.join(taking)}; name one as {path}:{taking[0]}"
        )
    chosen = function or (taking[0] if taking else "")
    if not chosen and "watch" not in source:
        raise RecipeError(
            f"{path}: expected a function of `watch`, or a call of labkit.watch(model, optimizer) around the loop; "
            "it has neither"
        )
    return Path(path).resolve(), chosen or None
