"""Gradient clipping with a record: the norm before clipping, and how often it passed the threshold."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class ClipLog:
    """`log = ClipLog(1.0)`; in the loop, `log(model.parameters())` instead of `clip_grad_norm_`; then `print(log)`."""

    def __init__(self, threshold: float):
        if not threshold > 0:
            raise ValueError(f"threshold: expected a number above 0, got {threshold}")
        self.threshold = threshold
        self._norms: list[torch.Tensor] = []

    def __call__(self, parameters: torch.Tensor | Iterable[torch.Tensor]) -> torch.Tensor:
        """Clip the global norm; returns the norm before. A NaN or infinity raises: it would spread to every weight."""
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.threshold, error_if_nonfinite=True)
        self._norms.append(norm.detach())
        return norm

    @property
    def norms(self) -> np.ndarray:
        """Every norm, before clipping."""
        return torch.stack(self._norms).double().cpu().numpy() if self._norms else np.zeros(0)

    @property
    def clipped(self) -> float:
        """Share of the steps that were clipped."""
        return float((self.norms > self.threshold).mean()) if self._norms else 0.0

    def __str__(self) -> str:
        norms = self.norms
        if not len(norms):
            return "no step yet"
        words = f"clipped {self.clipped:.0%} of {len(norms)} steps at {self.threshold:g}; norm before: median "
        words += f"{np.median(norms):.3g}, 90th percentile {np.quantile(norms, 0.9):.3g}, largest {norms.max():.3g}"
        if self.clipped > 0.8:
            words += ". With SGD that is a lower learning rate in disguise; Adam does not mind"
        return words

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """The norms before clipping, with the threshold."""
        from labkit.drawing.plots import clip_log

        return clip_log(self, ax)
