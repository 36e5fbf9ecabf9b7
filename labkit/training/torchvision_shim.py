"""torchvision, even if its compiled operators do not load.

torchvision and torch come from two wheels. If torchvision was built for another torch (usually: a CPU
torch beside the default torchvision), `import torchvision` fails with "operator
torchvision::nms does not exist". Nothing labkit uses needs that operator: declaring it, without code
behind it, is enough for datasets, transforms and models. `ops.nms`, detection models and
`io.decode_image` do not work; to get them, install both wheels from the same index.
"""

import functools
import importlib
import sys
import threading
from types import ModuleType

import torch

# What torchvision registers at import, as its own C++ declares it.
_MISSING = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

_lock = threading.Lock()  # notebooks train in threads; two imports at the same time would break each other
_declared: list[torch.library.Library] = []  # kept alive: torch forgets the operators with the object


@functools.cache
def torchvision() -> ModuleType:
    """The torchvision module, imported on the first call: it takes 2 seconds that few runs need."""
    with _lock:
        return _import()


def uses_shim() -> bool:
    """Whether torchvision only imports with its missing operators declared by labkit."""
    torchvision()
    return bool(_declared)


def _import() -> ModuleType:
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    _forget_half_import()
    _declared.append(torch.library.Library("torchvision", "FRAGMENT"))
    for schema in _MISSING:
        _declared[-1].define(schema)
    return importlib.import_module("torchvision")


def _forget_half_import() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
