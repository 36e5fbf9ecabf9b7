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


def unlearned(run: Run, share: float) -> bool:
    """Did the loss end above this share of chance level, which is ln(classes), or not finite at all?"""
    losses = run["probe_loss"] if "probe_loss" in run else run.smoothed()
    classes = run.facts.get("classes") or len(run.facts.get("label_shares", ()))
    return bool(classes > 1 and len(losses) and not losses[-1] <= share * np.log(classes))


def whole_norm(run: Run, name: str) -> np.ndarray:
    """The norm over all layers with a weight matrix together, at every step."""
    with np.errstate(all="ignore"):
        return np.sqrt((matrix_layers(run, name)[0] ** 2).sum(axis=1))


def hidden_sizes(run: Run) -> tuple[float, np.ndarray, float]:
    """Spread of the inputs, of each hidden activation and of the outputs in the first forward pass."""
    sizes = np.asarray(run["activation_std"][0], dtype=np.float64)
    return float(sizes[0]), sizes[1:-1], float(sizes[-1])
