"""labkit breaks neural-network training on purpose, names each failure blind, and proves the cure."""

import importlib
import importlib.util

from labkit.errors import optional

__version__ = "0.1.0"

# Public name -> the module that has it. Loaded on first use, so that `labkit --help` does not wait for torch.
# `__init__.pyi` says the same to editors and type checkers.
_HOME = {
    "Recipe": "training.recipe",
    "LanguageRecipe": "training.language",
    "Run": "recording.run",
    "train": "training.loop",
    "FAILURES": "failures.catalogue",
    "FailureMode": "failures.mode",
    "Diagnosis": "diagnosis.diagnose",
    "diagnose": "diagnosis.diagnose",
    "Study": "diagnosis.study",
    "study": "diagnosis.study",
    "is_cured": "diagnosis.study",
    "watch": "diagnosis.watch",
    "Alarm": "diagnosis.watch",
    "treat": "diagnosis.treatment.treat",
    "Treatment": "diagnosis.treatment.answer",
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
    "check": "course.checks",
    "hint": "course.checks",
    "predict": "course.checks",
    "knobs": "panels.knob_panel",
    "gallery": "panels.gallery_panel",
    "gpt_panel": "panels.gpt_panel",
    "gradient_panel": "panels.gradient_panel",
    "overfitting_panel": "panels.overfitting_panel",
    "ward": "course.ward.game",
    "ward_panel": "panels.ward_panel",
    "fork_panel": "panels.fork_panel",
    "phase_panel": "panels.phase_panel",
    "lr_panel": "panels.lr_panel",
    "treat_panel": "panels.treat_panel",
}
# Public name -> the module that it is.
_MODULES = {"data": "training.data", "plots": "drawing.plots", "export": "recording.logs"}
_PANELS = {name for name, home in _HOME.items() if home.startswith("panels.")}  # these need the extra `lab`
__all__ = ["__version__", *_HOME, *_MODULES]
if importlib.util.find_spec("ipywidgets") is None:
    __all__ = [name for name in __all__ if name not in _PANELS]  # so that `from labkit import *` works without it


def __getattr__(name: str):
    if name in _HOME:
        if name in _PANELS:
            optional("ipywidgets", extra="lab", feature=f"labkit.{name}")
        value = getattr(importlib.import_module(f"labkit.{_HOME[name]}"), name)
    elif name in _MODULES:
        value = importlib.import_module(f"labkit.{_MODULES[name]}")
    else:
        raise AttributeError(f"labkit has no {name!r}; it has {', '.join(sorted(__all__))}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
