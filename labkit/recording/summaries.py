"""Numbers computed from the traces of a run; each works on any run that has the traces it needs."""

import numpy as np

from labkit.recording.run import NoTrace, Run


def fixed_loss(run: Run) -> np.ndarray:
    """The loss on always the same data: the probe's, or the smoothed training loss where there is no probe."""
    values = run["probe_loss"] if "probe_loss" in run else run.smoothed()
    return values[np.isfinite(values)]


def typical(trace: np.ndarray) -> np.ndarray:
    """The median over the steps that are finite, per layer; NaN where none is."""
    trace = np.where(np.isfinite(trace), trace, np.nan)
    return np.array([np.nanmedian(column) if np.isfinite(column).any() else np.nan for column in trace.T])


def matrix_layers(run: Run, name: str) -> tuple[np.ndarray, list[str]]:
    """A per-layer trace of only the layers with a weight matrix, in forward order, and their names."""
    matrices = matrix_names(run)
    chosen = [index for index, layer in enumerate(run.layers) if layer in matrices]
    if not chosen:
        raise NoTrace(
            f"this run has no layer with a weight matrix; its layers are {', '.join(run.layers) or 'unknown'}"
        )
    return run[name][:, chosen], [run.layers[index] for index in chosen]


def matrix_names(run: Run) -> set[str]:
    """The layers that have a weight matrix; where that was not recorded, all."""
    return set(run.layers) & set(run.facts.get("matrices", run.layers))


def gradient_ratio(run: Run) -> np.ndarray:
    """Gradient norm of the first layer over that of the last at every step, among layers with a weight matrix."""
    norms, _ = matrix_layers(run, "grad_norm")
    with np.errstate(all="ignore"):
        return norms[:, 0] / norms[:, -1]


def worst_dead(run: Run) -> tuple[np.ndarray, str]:
    """Share of dead units per evaluation in the layer where it is highest at the end, and that layer's name."""
    dead = run["dead"] if "dead" in run else np.full((1, 1), np.nan)
    if not np.isfinite(dead[-1]).any():
        return np.zeros(len(dead)), ""
    place = int(np.nanargmax(dead[-1]))
    return dead[:, place], run.activations[place]


def chance_loss(run: Run) -> float:
    """The loss of a prediction without any information: the best constant one, as measured on the probe.

    Without a probe ln(classes), which is the same where all classes are equally frequent; NaN where neither is known.
    """
    classes = run.facts.get("classes") or len(run.facts.get("label_shares", ()))
    return float(run.facts.get("constant_loss") or (np.log(classes) if classes > 1 else np.nan))


def unexplained(run: Run) -> np.ndarray:
    """The loss on the probe at every evaluation, as a share of that of the best constant prediction.

    1: the net has learned nothing that helps; 0: it fits perfectly. For any task and loss, where a run has a probe.
    """
    constant = run.facts.get("constant_loss")
    if not constant or constant <= 0:
        raise NoTrace("this run does not know the loss of a constant prediction: give `watch` a probe with targets")
    return run["probe_loss"] / constant


def late_loss(run: Run) -> float:
    """The median batch loss of the last quarter of the run; NaN where none is finite."""
    losses = run["loss"][-max(1, len(run) // 4) :]
    losses = losses[np.isfinite(losses)]
    return float(np.median(losses)) if len(losses) else float("nan")


def input_deviation(run: Run) -> float:
    """The median standard deviation of a training batch, over all pixels; NaN where it was not measured."""
    return float(typical(run["activation_std"][:, :1])[0]) if run.activations[:1] == ("inputs",) else float("nan")


def has_tokens(run: Run) -> bool:
    """Are inputs integers, such as tokens and ids? They have no scale, and may be equal by chance."""
    return any("int" in kind for kind in run.facts.get("dtypes", {}).get("inputs", ()))


def label_shares(run: Run) -> np.ndarray:
    """Share of each class in the training labels, 0 for classes that never came; empty if unknown."""
    seen = np.asarray(run.facts.get("label_shares") or (), dtype=float)
    missing = int(run.facts.get("classes") or 0) - len(seen)
    return np.concatenate([seen, np.zeros(max(0, missing))]) if len(seen) else seen


def quarters(trace: np.ndarray) -> np.ndarray:
    """The mean of a trace over each quarter of the run, where it is finite; NaN where it is not or has no steps."""
    trace = np.asarray(trace, dtype=np.float64)
    parts = np.array_split(trace, 4)
    return np.array([part.mean() if len(part) and np.isfinite(part).all() else np.nan for part in parts])


def total_norm(norms: np.ndarray) -> np.ndarray:
    """The norm of all layers together at every step, from the norm of each layer."""
    with np.errstate(all="ignore"):
        return np.sqrt((norms**2).sum(axis=1))


def whole_norm(run: Run, name: str) -> np.ndarray:
    """The norm of all layers with a weight matrix together, at every step."""
    return total_norm(matrix_layers(run, name)[0])


def hidden_sizes(run: Run) -> tuple[float, np.ndarray, float]:
    """Standard deviation of the inputs, of each hidden activation and of the outputs in the first forward pass."""
    deviations = np.asarray(run["activation_std"][0], dtype=np.float64)
    return float(deviations[0]), deviations[1:-1], float(deviations[-1])


def running_median(values: np.ndarray, window: int) -> np.ndarray:
    """The median of the finite values in a centred window: it does not lag, and a short spike does not move it.

    NaN at both ends, where the window is not complete, and where the value itself is not finite.
    """
    half = window // 2
    found = np.full(len(values), np.nan)
    if len(values) <= 2 * half:
        return found
    kept = np.where(np.isfinite(values), values, np.nan).astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(kept, 2 * half + 1)
    known = np.isfinite(kept[half : len(kept) - half])
    found[half : len(kept) - half][known] = np.nanmedian(windows[known], axis=1)
    return found
