"""The worker does the newest job alone, and leaves no thread behind."""

import threading

import pytest

from labkit.panels.worker import Ticket, Worker


@pytest.fixture
def worker():
    errors = []
    made = Worker(errors.append)
    made.errors = errors
    yield made
    made.stop()
    assert made.wait(10)


def until_cancelled(started: threading.Event):
    def job(ticket: Ticket) -> None:
        started.set()
        ticket._cancelled.wait(10)

    return job


def test_of_ten_jobs_the_one_that_runs_is_cancelled_and_only_the_last_follows(worker):
    started, done = threading.Event(), []
    first = worker.start(until_cancelled(started))
    assert started.wait(10)
    for number in range(10):
        worker.start(lambda ticket, number=number: done.append((number, ticket.cancelled)))
    assert worker.wait(10)
    assert first.cancelled
    assert done == [(9, False)]


def test_an_idle_worker_has_no_thread(worker):
    worker.start(lambda ticket: None)
    assert worker.wait(10)
    assert not worker.busy
    assert not [thread for thread in threading.enumerate() if thread.name == "labkit panel"]


def test_stop_cancels_what_runs_and_forgets_what_waits(worker):
    started, done = threading.Event(), []
    running = worker.start(until_cancelled(started))
    assert started.wait(10)
    worker.stop()
    assert worker.wait(10)
    assert running.cancelled
    worker.start(lambda ticket: done.append(ticket.cancelled))
    assert worker.wait(10)
    assert done == [False]


def test_an_unexpected_error_is_told_and_the_next_job_is_done(worker):
    worker.start(lambda ticket: 1 / 0)
    assert worker.wait(10)
    done = []
    worker.start(lambda ticket: done.append(True))
    assert worker.wait(10)
    assert isinstance(worker.errors[0], ZeroDivisionError)
    assert done == [True]


def test_wait_says_when_it_gave_up(worker):
    started = threading.Event()
    worker.start(until_cancelled(started))
    assert started.wait(10)
    assert not worker.wait(0.01)
