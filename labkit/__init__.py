"""labkit breaks neural-network training on purpose, names each failure blind, and proves the cure."""

import importlib
import sys
import types

__version__ = "0.1.0"

# Name -> the module that has it. Loaded on first use, so that `labkit --help` does not wait for torch.
_HOME = {
    "Recipe": "training.recipe",
    "Run": "recording.run",
    "train": "training.loop",
    "FAILURES": "failures",
    "FailureMode": "failures.mode",
    "Diagnosis": "diagnosis.diagnose",
    "diagnose": "diagnosis.diagnose",
    "Study": "diagnosis.study",
    "study": "diagnosis.study",
    "is_cured": "diagnosis.study",
    "watch": "diagnosis.watch",
    "Alarm": "diagnosis.watch",
    "checkup": "diagnosis.checkup",
    "fork": "training.fork",
    "phase": "diagnosis.phase_diagram",
    "Phase": "diagnosis.phase_diagram",
    "find_lr": "tools.lr_finder",
    "gradient_flow": "tools.gradient_flow",
    "hunt": "recording.nan_hunt",
    "scan": "recording.nan_hunt",
    "dead_units": "tools.dead_units",
    "ClipLog": "tools.clipping",
    "check": "course.exercises",
    "hint": "course.exercises",
    "knobs": "panels.knob_panel",
    "gallery": "panels.gallery_panel",
    "gradient_panel": "panels.gradient_panel",
    "overfitting_panel": "panels.overfitting_panel",
    "ward": "course.ward.game",
    "ward_panel": "panels.ward_panel",
    "fork_panel": "panels.fork_panel",
    "phase_panel": "panels.phase_panel",
    "lr_panel": "panels.lr_panel",
}
__all__ = ["__version__", *_HOME]


class _Package(types.ModuleType):
    """`labkit.train` is the function, though `labkit/train.py` is a module: importing it must not hide it."""

    def __getattr__(self, name: str):
        if name not in _HOME:
            raise AttributeError(f"labkit has no {name!r}; it has {', '.join(sorted(_HOME))}")
        value = getattr(importlib.import_module(f"labkit.{_HOME[name]}"), name)
        setattr(self, name, value)
        return value

    def __setattr__(self, name: str, value) -> None:
        if not (name in _HOME and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted(__all__)


sys.modules[__name__].__class__ = _Package
