"""Numbers read off a run, for the signatures: each works on any run that has the traces it needs."""

import numpy as np

from labkit.run import Run


def fixed_loss(run: Run) -> np.ndarray:
    """The loss on the same data again and again: the probe's, or the smoothed training loss where there is no probe."""
    values = run["probe_loss"] if "probe_loss" in run else run.smoothed()
    return values[np.isfinite(values)]


def stuck(run: Run, share: float = 0.05) -> bool:
    """Has the loss stayed within this share of where it began?"""
    losses = fixed_loss(run)
    return len(losses) > 1 and bool(abs(losses[-1] / losses[0] - 1) < share)


def typical(trace: np.ndarray) -> np.ndarray:
    """The median over the steps that are finite, per layer; NaN where none is."""
    trace = np.where(np.isfinite(trace), trace, np.nan)
    return np.array([np.nanmedian(column) if np.isfinite(column).any() else np.nan for column in trace.T])


def matrix_layers(run: Run, name: str) -> tuple[np.ndarray, list[str]]:
    """A per-layer trace of the layers with a weight matrix alone, in forward order, and their names."""
    chosen = [index for index, layer in enumerate(run.layers) if layer in run.facts.get("matrices", run.layers)]
    return run[name][:, chosen], [run.layers[index] for index in chosen]


def gradient_ratio(run: Run) -> np.ndarray:
    """First layer's gradient norm over the last one's at every step, of the layers with a weight matrix."""
    norms, _ = matrix_layers(run, "grad_norm")
    with np.errstate(all="ignore"):
        return norms[:, 0] / norms[:, -1]


def worst_dead(run: Run) -> tuple[np.ndarray, str]:
    """Dead share per evaluation in the layer where it is highest at the end, and that layer's name."""
    dead = run["dead"] if "dead" in run else np.full((1, 1), np.nan)
    if not np.isfinite(dead[-1]).any():
        return np.zeros(len(dead)), ""
    place = int(np.nanargmax(dead[-1]))
    return dead[:, place], run.activations[place]


def flat_start(run: Run, share: float = 0.02) -> int:
    """How many steps the smoothed training loss stays within this share of its first value, from the start on."""
    losses = run.smoothed()
    with np.errstate(all="ignore"):
        left = np.flatnonzero(~(np.abs(losses / losses[0] - 1) < share)) if len(losses) else ()
    return int(left[0]) if len(left) else len(losses)
