"""An instrument that fails is switched off, and the training that it watches goes on."""

import sys
from collections.abc import Callable
from typing import Any


class Guard:
    """Calls the parts of the instruments. One that raises is not called again; `off` keeps when and why."""

    def __init__(self, strict: bool = True):
        """`strict`: let errors through, as tests and labkit's own loop do."""
        self.strict = strict
        self.off: dict[str, dict[str, Any]] = {}

    def __call__(self, instrument: str, step: int, measure: Callable[[], Any]) -> Any:
        """The result of `measure`; None where the instrument is off or fails now."""
        if instrument in self.off:
            return None
        try:
            return measure()
        except Exception as error:
            self.failed(instrument, step, error)
            return None

    def failed(self, instrument: str, step: int, error: Exception) -> None:
        """Switch the instrument off, or raise."""
        if self.strict:
            raise error
        self.switch_off(instrument, step, error)

    def __contains__(self, instrument: str) -> bool:
        """Is this instrument still on?"""
        return instrument not in self.off

    def switch_off(self, instrument: str, step: int, error: Exception) -> None:
        """Remember it, and say so in one line."""
        lines = str(error).strip().splitlines()
        what = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        self.off[instrument] = {"instrument": instrument, "step": step, "error": what[:300]}
        words = f"labkit: {instrument} could not be measured at step {step} and will not be recorded ({what[:200]})"
        print(f"{words}. Your training goes on.", file=sys.stderr)

    def facts(self) -> dict[str, list[dict[str, Any]]]:
        return {"switched_off": list(self.off.values())} if self.off else {}


class ProtectedHook:
    """A hook of an instrument on a net. A net that is copied or saved while it is watched takes no hook along."""

    def __init__(self, guard: Guard, instrument: str, step: Callable[[], int], hook: Callable[..., None]):
        """`step()` says which one it is, for the line that is printed if the hook fails."""
        self.guard, self.instrument, self.step, self.hook = guard, instrument, step, hook

    def __call__(self, *inputs: Any) -> None:
        if self.instrument not in self.guard.off:
            try:
                self.hook(*inputs)
            except Exception as error:
                self.guard.failed(self.instrument, self.step(), error)

    def __reduce__(self) -> tuple[Callable, tuple]:
        return _hook_of_a_copy, ()


def _hook_of_a_copy() -> Callable[..., None]:
    return _do_nothing


def _do_nothing(*_: Any) -> None:
    pass
