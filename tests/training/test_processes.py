"""Runs of several processes: what they share, and that they leave nobody behind, whatever ends them."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import ROOT, hear_ctrl_c, tiny

from labkit.recording.run import Run
from labkit.training import processes
from labkit.training.loop import train
from labkit.training.parts import shuffled
from labkit.training.processes import first_repeat, joined

DEADLINE = 120  # seconds, for processes to come or to go on a busy machine
TOGETHER = tiny(processes=2, batches=processes.dealt, step=processes.averaging_step, steps=12)

linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


def failing_step(training, x, y) -> None:
    """A step with a bug in it."""
    raise ValueError("bug in the step")


def workers(parent: int) -> set[int]:
    """The processes below this one, at any depth, that are still running."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, above = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(folder.name)] = int(above)
    found = {parent}
    while more := {child for child, above in parents.items() if above in found} - found:
        found |= more
    return found - {parent}


def alive(processes: set[int]) -> set[int]:
    """Those of them that are still running; the dead that nobody has asked for do not count."""
    running = set()
    for process in processes:
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
            running |= {process} if state != "Z" else set()
    return running


def wait_for(condition):
    """Ask until it is so; the answer."""
    until = time.monotonic() + DEADLINE
    while not (answer := condition()) and time.monotonic() < until:
        time.sleep(0.05)
    return answer


def test_the_processes_share_the_samples_and_end_with_one_run():
    run = train(TOGETHER, progress=False)
    assert len(run) == 12
    assert (run.facts["processes"], run.facts["rank_overlap"]) == (2, 0.0)
    assert run.facts["order_repeats"] < 0.5  # three epochs of 128 samples each, each in a new order


def test_without_a_sampler_they_see_the_same():
    run = train(TOGETHER.but(batches=shuffled), progress=False)
    assert run.facts["rank_overlap"] == 1.0


def test_an_error_in_a_worker_travels():
    with pytest.raises(ValueError, match="bug in the step"):
        train(TOGETHER.but(step=failing_step), progress=False)


def test_an_error_in_a_worker_can_be_recorded():
    run = train(TOGETHER.but(step=failing_step), progress=False, errors="record")
    assert run.facts["error"]["message"] == "bug in the step" and run.facts["stopped"] == "error"


SCRIPT = """
import sys
sys.path[:0] = ["tests", "tests/training"]
from test_processes import TOGETHER
from labkit.training.loop import train

if __name__ == "__main__":
    print("started", flush=True)
    try:
        train(TOGETHER.but(steps=1_000_000, evaluate_every=0), progress=False)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@linux
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_ended_leaves_no_process_behind(sent, tmp_path):
    script = tmp_path / "endless.py"
    script.write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    command = [sys.executable, str(script)]
    options = {"stdout": subprocess.PIPE, "text": True, "preexec_fn": hear_ctrl_c}
    with subprocess.Popen(command, cwd=ROOT, env=environment, **options) as run:
        try:
            assert run.stdout.readline() == "started\n"
            assert wait_for(lambda: len(training_below(run.pid)) == 2), "the processes did not come"
            started = workers(run.pid)
            run.send_signal(sent)
            assert run.wait(DEADLINE) == (0 if sent == signal.SIGINT else -sent)
            assert wait_for(lambda: not alive(started)), f"left behind: {alive(started)}"
            assert (run.stdout.read() == "interrupted\n") == (sent == signal.SIGINT)
        finally:
            run.kill()


def training_below(parent: int) -> set[int]:
    """The workers that have joined the group: gloo's threads are running in them."""
    return {process for process in workers(parent) if threads(process) >= 4}


def threads(process: int) -> int:
    with contextlib.suppress(OSError):
        return len(list(Path(f"/proc/{process}/task").iterdir()))
    return 0


# --- what is worked out from the processes' samples -----------------------------------------------


@pytest.mark.parametrize(("prints", "expected"), [([], 0), ([1, 2, 3], 3), ([1, 2, 1, 3, 2], 2), ([1, 1], 1)])
def test_an_epoch_ends_where_a_sample_comes_again(prints, expected):
    assert first_repeat(np.array(prints, dtype=int)) == expected


def test_overlap_counts_the_first_epoch_alone():
    run = Run({"loss": np.zeros(2)})
    own, other = np.array([1, 2, 3, 4, 1, 2, 3, 4]), np.array([4, 5, 6, 7, 1, 2, 3, 4])
    assert joined([(run, own), (run, other)]).facts == {"rank_overlap": 0.25, "processes": 2}
