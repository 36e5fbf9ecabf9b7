"""The public names, for editors and type checkers. At run time `__init__.py` loads each on first use."""

from labkit.course.checks import check, hint, predict
from labkit.course.ward.game import ward
from labkit.diagnosis.checkup import checkup
from labkit.diagnosis.diagnose import Diagnosis, diagnose
from labkit.diagnosis.phase_diagram import Phase, phase
from labkit.diagnosis.study import Study, is_cured, study
from labkit.diagnosis.treatment.answer import Treatment
from labkit.diagnosis.treatment.treat import treat
from labkit.diagnosis.watch import Alarm, watch
from labkit.drawing import plots
from labkit.failures.catalogue import FAILURES
from labkit.failures.mode import FailureMode
from labkit.panels.fork_panel import fork_panel
from labkit.panels.gallery_panel import gallery
from labkit.panels.gpt_panel import gpt_panel
from labkit.panels.gradient_panel import gradient_panel
from labkit.panels.knob_panel import knobs
from labkit.panels.lr_panel import lr_panel
from labkit.panels.overfitting_panel import overfitting_panel
from labkit.panels.phase_panel import phase_panel
from labkit.panels.treat_panel import treat_panel
from labkit.panels.ward_panel import ward_panel
from labkit.recording import logs as export
from labkit.recording.nan_hunt import hunt, scan
from labkit.recording.run import Run
from labkit.tools.clipping import ClipLog
from labkit.tools.dead_units import dead_units
from labkit.tools.gradient_flow import gradient_flow
from labkit.tools.lr_finder import find_lr
from labkit.training import data
from labkit.training.fork import fork
from labkit.training.language import LanguageRecipe
from labkit.training.loop import train
from labkit.training.recipe import Recipe

__version__: str
__all__ = [
    "FAILURES",
    "Alarm",
    "ClipLog",
    "Diagnosis",
    "FailureMode",
    "LanguageRecipe",
    "Phase",
    "Recipe",
    "Run",
    "Study",
    "Treatment",
    "__version__",
    "check",
    "checkup",
    "data",
    "dead_units",
    "diagnose",
    "export",
    "find_lr",
    "fork",
    "fork_panel",
    "gallery",
    "gpt_panel",
    "gradient_flow",
    "gradient_panel",
    "hint",
    "hunt",
    "is_cured",
    "knobs",
    "lr_panel",
    "overfitting_panel",
    "phase",
    "phase_panel",
    "plots",
    "predict",
    "scan",
    "study",
    "train",
    "treat",
    "treat_panel",
    "ward",
    "ward_panel",
    "watch",
]
