"""What all tests share: one thread per process, no progress bars, and one short run that many may look at."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: xdist runs two processes on two cores
os.environ["TQDM_DISABLE"] = "1"

import pytest
import torch

torch.set_num_threads(1)

from helpers import tiny, trained  # noqa: E402

from labkit.recording.run import Run  # noqa: E402
from labkit.training import run_store  # noqa: E402


@pytest.fixture(autouse=True)
def empty_memory():
    """No test finds the runs of another."""
    run_store.in_memory.forget()


@pytest.fixture(scope="session")
def short_run() -> Run:
    """Forty healthy steps on MNIST, trained once. Do not change it."""
    return trained(tiny(steps=40, samples=1000, width=32, batch_size=64))


@pytest.fixture(scope="module")
def chromium():
    """A browser for the tests of one file."""
    from browser import chromium_browser

    with chromium_browser() as made:
        yield made
