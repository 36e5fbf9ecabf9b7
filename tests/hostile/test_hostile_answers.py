"""Answers that loop, print, eat memory, raise anything or change settings: "not yet" with a reason, in bounded time."""

import asyncio
import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from helpers import ROOT
from hostility import AMOUNT, ODD, QUICK, SEED

from labkit.course import bounds
from labkit.course.checks import EXERCISES
from labkit.course.grading import NOT_YET, Student, build, expect_close, number, short
from labkit.errors import RecipeError

QUICKLY = "0.2"  # seconds, instead of a minute: so that a test of an endless loop is short


def judge_total(mine: Student) -> str:
    expect_close(mine([1.0, 2.0, 4.0]), 7.0, "1, 2 and 4")
    return "It adds."


TOTAL = build("99.1", "Add", judge_total, example="total(numbers)", hints=("Loop.",))


@pytest.fixture(autouse=True)
def short_limit(monkeypatch):
    monkeypatch.setenv(bounds.SETTING, QUICKLY)


@pytest.fixture(autouse=True)
def watchdog():
    """Ends the whole test run where a bound does not hold: a hanging test would say nothing."""
    timer = threading.Timer(120, lambda: os._exit(99))  # seconds: six hundred times the limit above
    timer.daemon = True
    timer.start()
    yield
    timer.cancel()


# --- loops ----------------------------------------------------------------------------------------


def empty_loop(numbers):
    while True:
        pass


def loop_that_catches(numbers):
    while True:
        try:
            sum(numbers)
        except Exception:
            continue


def loop_that_catches_everything(numbers):
    while True:
        try:
            sum(numbers)
        except:  # noqa: E722
            continue


def long_sleep(numbers):
    time.sleep(10**6)


def loop_of_tensors(numbers):
    while True:
        torch.zeros(8).sum()


def loop_in_finally(numbers):
    try:
        return sum(numbers)
    finally:
        while True:
            pass


def endless_generator(numbers):
    return sum(1 for _ in iter(int, 1))


LOOPS = (
    empty_loop, loop_that_catches, loop_that_catches_everything, long_sleep, loop_of_tensors, loop_in_finally,
    endless_generator,
)  # fmt: skip


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_an_endless_loop_is_stopped_and_explained(loop):
    found = TOTAL.check(loop)
    assert found.state == NOT_YET
    assert "did not end within 0.2 seconds" in found.seen and "LABKIT_CHECK_SECONDS" in found.seen
    assert f"Called: {loop.__name__}([1.0, 2.0, 4.0])" in found.seen and "in your line" in found.seen


def test_another_thread_is_checked_without_a_limit():
    found = []
    thread = threading.Thread(target=lambda: found.append(TOTAL.check(sum)))
    thread.start()
    thread.join()
    assert found[0]


def test_a_loop_in_the_judge_is_stopped_at_ten_times_the_limit():
    class Endless:
        def __float__(self):
            while True:
                pass

    judged = build("99.2", "Add", lambda mine: number(mine(1), "it") and "", example="total(numbers)", hints=("Loop.",))
    found = judged.check(lambda _: Endless())
    assert found.state == NOT_YET and "did not end within 2 seconds" in found.seen


def test_a_quick_answer_is_not_disturbed_and_no_alarm_stays_behind():
    assert TOTAL.check(sum)
    time.sleep(2 * float(QUICKLY))  # an alarm that stayed behind would ring now


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers")
def test_an_alarm_that_rings_while_the_limit_is_left_leaves_nothing_behind(monkeypatch):
    monkeypatch.setattr(bounds, "AGAIN", 0.0002)  # rings many times while the limit is left
    handler = signal.getsignal(signal.SIGALRM)
    for longer in range(200):
        with contextlib.suppress(bounds.TookTooLong), bounds.time_limit(0.001 + 0.000005 * longer):
            sum(range(40_000))
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0) and signal.getsignal(signal.SIGALRM) is handler
    assert bounds.time_limit._innermost is None


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers")
@pytest.mark.parametrize("module, stays_locked", [("coverage.collector", False), ("students_module", True)])
def test_a_tracer_is_not_interrupted_while_it_holds_its_lock(module, stays_locked):
    """Coverage and debuggers run inside the student's code: a lock that they never release would stop everything."""
    names = {"__name__": module, "monotonic": time.monotonic}
    exec(
        "def trace(lock):\n"
        "    lock.acquire()\n"
        "    until = monotonic() + 0.3\n"
        "    while monotonic() < until:\n"
        "        pass\n"
        "    lock.release()\n",
        names,
    )
    lock = threading.Lock()
    with pytest.raises(bounds.TookTooLong), bounds.time_limit(0.02):
        names["trace"](lock)
        empty_loop([])
    assert lock.locked() is stays_locked


def test_the_inner_limit_is_part_of_the_outer_one():
    began = time.monotonic()
    with pytest.raises(bounds.TookTooLong), bounds.time_limit(0.2), bounds.time_limit(100):
        empty_loop([])
    assert time.monotonic() - began < 60  # not the hundred seconds of the inner one


@pytest.mark.parametrize("asked", ["", "soon", "0", "-1", "nan", "inf", "1e30"])
def test_a_limit_that_is_no_number_of_seconds_is_refused(asked, monkeypatch):
    monkeypatch.setenv(bounds.SETTING, asked)
    with pytest.raises(RecipeError, match="LABKIT_CHECK_SECONDS: expected a number of seconds above 0, got"):
        bounds.call_seconds()


# --- output ---------------------------------------------------------------------------------------


def test_gigabytes_of_prints_are_cut_and_the_check_goes_on(capsys):
    def talkative(numbers):
        for _ in range(3000):
            print("x" * 10_000)
        return sum(numbers)

    assert TOTAL.check(talkative)
    printed = capsys.readouterr().out
    assert len(printed) < bounds.MOST_OUTPUT + 200 and "characters are shown]" in printed.splitlines()[-1]


def test_writelines_is_cut_as_print_is(capsys):
    def talkative(numbers):
        sys.stdout.writelines("x" * 10_000 + "\n" for _ in range(30))
        return sum(numbers)

    assert TOTAL.check(talkative)
    printed = capsys.readouterr().out
    assert len(printed) < bounds.MOST_OUTPUT + 200 and "characters are shown]" in printed.splitlines()[-1]


def test_endless_prints_are_cut_and_stopped(capsys):
    def endless(numbers):
        while True:
            print("again", file=sys.stderr)

    assert TOTAL.check(endless).state == NOT_YET
    assert len(capsys.readouterr().err) < bounds.MOST_OUTPUT + 200


def test_a_few_prints_are_shown_as_they_are(capsys):
    def careful(numbers):
        print("numbers:", numbers)
        return sum(numbers)

    assert TOTAL.check(careful)
    assert capsys.readouterr().out == "numbers: [1.0, 2.0, 4.0]\n"


def test_a_closed_output_is_open_afterwards(capsys):
    def closing(numbers):
        sys.stdout.close()
        sys.stdout = None
        return sum(numbers)

    assert TOTAL.check(closing)
    print("still here")
    assert capsys.readouterr().out == "still here\n"


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux" or torch.cuda.is_available(), reason="memory is bounded on Linux only")
def test_memory_is_bounded_and_the_notebook_lives():
    """In a process of its own: a bound that does not hold would take the memory of the tests."""
    code = """
from labkit.course import bounds
from labkit.course.checks import EXERCISES
bounds.MORE_MEMORY = 2**28
from test_hostile_answers import TOTAL
def growing(numbers):
    kept = []
    while True:
        kept.append(bytearray(2**24))
found = TOTAL.check(growing)
print(found.seen)
assert TOTAL.check(sum)
assert len(bytearray(2**29))  # the limit is gone
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), bounds.SETTING: "60"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "MemoryError: it needs more than 0.25 GB" in done.stdout and "in your line" in done.stdout


# --- errors ---------------------------------------------------------------------------------------


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


class Quitting(BaseException):
    pass


def endless_recursion(numbers):
    return endless_recursion(numbers)


RAISED = (
    SystemExit, SystemExit(3), GeneratorExit, Quitting("bye"), Unspeakable(), StopIteration, MemoryError,
    ValueError("x" * 10**6), RecursionError, AssertionError, UnicodeDecodeError("utf-8", b"x", 0, 1, "odd"),
    asyncio.CancelledError(),
)  # fmt: skip


@pytest.mark.parametrize("error", RAISED, ids=lambda error: getattr(error, "__name__", type(error).__name__))
def test_whatever_is_raised_is_reported_with_its_line(error):
    def raising(numbers):
        raise error

    found = TOTAL.check(raising)
    kind = error if isinstance(error, type) else type(error)
    assert found.state == NOT_YET and kind.__name__ in found.seen and "in your line" in found.seen
    assert len(str(found)) < 2000 and found._repr_html_()


def test_endless_recursion_is_reported():
    found = TOTAL.check(endless_recursion)
    assert found.state == NOT_YET and "RecursionError" in found.seen and "return endless_recursion" in found.seen


def test_leaving_the_interpreter_does_not_leave_it():
    found = TOTAL.check(lambda numbers: sys.exit("good bye"))
    assert found.state == NOT_YET and "SystemExit: good bye" in found.seen


def test_ctrl_c_is_passed_on():
    def interrupted(numbers):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TOTAL.check(interrupted)


# --- results --------------------------------------------------------------------------------------


class Nameless:
    def __repr__(self):
        raise RuntimeError("no repr")


class Slippery:
    """Equal to everything, of any length, true and false."""

    def __eq__(self, other):
        return True

    __hash__ = None

    def __len__(self):
        return -1

    def __bool__(self):
        raise ValueError("neither")

    def __array__(self, *_, **__):
        raise MemoryError

    def __getattr__(self, name):
        raise RuntimeError(name)


RESULTS = (*ODD, Nameless(), Slippery(), np.array(["a"]), torch.zeros(0), [7.0] * 10**6, "7.0", [[[[7.0]]]], float)


@pytest.mark.parametrize("id", EXERCISES)
def test_no_exercise_lets_an_odd_answer_through(id, monkeypatch):
    monkeypatch.setenv(bounds.SETTING, str(bounds.CALL_SECONDS))  # the judge refuses the answer, and not the limit
    cases = list(itertools.product(RESULTS, (False, True)))
    if AMOUNT <= QUICK:
        cases = random.Random(f"answers {id} {SEED}").sample(cases, 12)  # for each of some fifty exercises
    for answer, wrapped in cases:
        found = EXERCISES[id].check((lambda *_, answer=answer, **__: answer) if wrapped else answer)
        assert not found, (answer, found)
        assert "did not end within" not in str(found), (answer, found)
        assert str(found) and found._repr_html_()


def test_a_value_is_shown_shortly_whatever_it_is():
    for value in RESULTS:
        assert 0 < len(short(value)) <= 80
    assert short([1] * 10**7) == "a list of length 10000000"
    assert short(Nameless()) == "a Nameless whose repr raises RuntimeError"


# --- settings -------------------------------------------------------------------------------------


def test_settings_are_put_back(tmp_path):
    def changing(numbers):
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.set_anomaly_enabled(True)
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(1)
        np.random.seed(1)
        np.seterr(all="raise")
        random.seed(1)
        sys.setrecursionlimit(500)
        os.chdir(tmp_path)
        return sum(numbers)

    before = [repr(read()) for read, _ in bounds.SETTINGS]
    assert TOTAL.check(changing)
    assert [repr(read()) for read, _ in bounds.SETTINGS] == before
