"""Tools for any PyTorch model: LR finder, gradient flow, dead units, clipping, sharpness, language models."""

import importlib

_LANGUAGE = ("cache_difference", "causality", "loss_by_position", "loss_by_token", "samples", "shift_scan")
__all__ = list(_LANGUAGE)


def __getattr__(name: str):
    """`labkit.tools.causality` and the like, loaded on first use."""
    if name in _LANGUAGE:
        return getattr(importlib.import_module("labkit.tools.language"), name)
    raise AttributeError(f"labkit.tools has no {name!r}")
