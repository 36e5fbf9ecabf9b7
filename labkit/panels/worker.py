"""A thread that does the newest job only: turning a knob through ten values leaves one run, not ten."""

import threading
from collections.abc import Callable


class Ticket:
    """What a job is given: whether somebody still wants it."""

    def __init__(self):
        self._cancelled = threading.Event()

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def cancel(self) -> None:
        self._cancelled.set()


class Worker:
    """Does one job at a time, apart from the notebook's own thread, so that its buttons stay alive.

    A new job cancels the one that is being done and takes the place of the one that waits. The thread ends when
    there is nothing left to do: an idle panel has none.
    """

    def __init__(self, failed: Callable[[Exception], None]):
        self._failed = failed  # told of an error that a job did not expect, so that it is seen
        self._change = threading.Condition()
        self._waiting: tuple[Callable[[Ticket], None], Ticket] | None = None
        self._current: Ticket | None = None
        self._thread: threading.Thread | None = None

    def start(self, job: Callable[[Ticket], None]) -> Ticket:
        """Do this next; what is being done now is cancelled."""
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
        """Cancel what is being done, and forget what waits."""
        with self._change:
            self._waiting = None
            if self._current:
                self._current.cancel()

    @property
    def busy(self) -> bool:
        with self._change:
            return self._thread is not None

    def wait(self, seconds: float | None = None) -> bool:
        """Until nothing is left to do, or so long; True when nothing is."""
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
