"""A thread that does only the newest job: dragging a slider through ten values leaves one run, not ten."""

import threading
from collections.abc import Callable


class Ticket:
    """What a job receives: it tells whether the job was cancelled."""

    def __init__(self):
        self._cancelled = threading.Event()

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def cancel(self) -> None:
        self._cancelled.set()


class Worker:
    """Does one job at a time, outside the notebook's own thread, so that the buttons keep working.

    A new job cancels the running one and replaces the waiting one. The thread ends when nothing is left to do: an idle
    panel has none.
    """

    def __init__(self, failed: Callable[[Exception], None]):
        self._failed = failed  # called with an error that a job raised, to show it
        self._change = threading.Condition()
        self._waiting: tuple[Callable[[Ticket], None], Ticket] | None = None
        self._current: Ticket | None = None
        self._thread: threading.Thread | None = None

    def start(self, job: Callable[[Ticket], None]) -> Ticket:
        """Do this job next; the running one is cancelled."""
        ticket = Ticket()
        with self._change:
            if self._current:
                self._current.cancel()
            self._waiting = job, ticket
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="labkit panel", daemon=True)
                self._thread.start()
        return ticket

    def stop(self) -> None:
        """Cancel the running job, and drop the waiting one."""
        with self._change:
            self._waiting = None
            if self._current:
                self._current.cancel()

    @property
    def busy(self) -> bool:
        with self._change:
            return self._thread is not None

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until nothing is left to do, at most this long; True if nothing is left."""
        with self._change:
            return self._change.wait_for(lambda: self._thread is None, seconds)

    def _work(self) -> None:
        while job := self._take():
            try:
                job(self._current)
            except Exception as error:
                self._failed(error)

    def _take(self) -> Callable[[Ticket], None] | None:
        with self._change:
            if self._waiting is None:
                self._thread = self._current = None
                self._change.notify_all()
                return None
            (job, self._current), self._waiting = self._waiting, None
            return job
