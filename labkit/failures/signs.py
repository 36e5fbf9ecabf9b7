"""Numbers read off a run, for the signatures: each works on any run that has the traces it needs."""

from dataclasses import dataclass

import numpy as np

from labkit.recording.run import Run


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


def chance_loss(run: Run) -> float:
    """The loss of a net that knows nothing but how many classes there are; NaN where that is not known."""
    return float(np.log(run.facts.get("classes") or np.nan))


def late_loss(run: Run) -> float:
    """The median batch loss of the last quarter of the run; NaN where none is finite."""
    losses = run["loss"][-max(1, len(run) // 4) :]
    losses = losses[np.isfinite(losses)]
    return float(np.median(losses)) if len(losses) else float("nan")


def input_deviation(run: Run) -> float:
    """The standard deviation of a usual training batch, all pixels together; NaN where it was not measured."""
    return float(typical(run["activation_std"][:, :1])[0]) if run.activations[:1] == ("inputs",) else float("nan")


def label_shares(run: Run) -> np.ndarray:
    """How the labels that were trained on divide among all classes, those never seen included; empty if unknown."""
    seen = np.asarray(run.facts.get("label_shares") or (), dtype=float)
    missing = int(run.facts.get("classes") or 0) - len(seen)
    return np.concatenate([seen, np.zeros(max(0, missing))]) if len(seen) else seen


@dataclass(frozen=True)
class Blow:
    """A step whose batch had inputs far beyond the usual, and what it did."""

    step: int
    outliers: float  # share of the batch's samples
    gradient: float  # its gradient norm over the median of the steps before
    aftermath: float  # the highest loss of the steps after it over the median of the steps before

    @property
    def is_hard(self) -> bool:
        return self.gradient > JUMP and self.aftermath > AFTERMATH

    def __str__(self) -> str:
        return (
            f"at step {self.step} {self.outliers:.1%} of the batch has values far beyond the usual; the gradient is "
            f"{self.gradient:.0f} times the usual one, and the loss rises to {self.aftermath:.0f} times what it was"
        )


# Healthy: at most 2.2; one corrupt image of 128: 49 to 140, a corrupt batch: 250 to 750.
JUMP = 10.0
AFTERMATH = 5.0  # clipped to 1: 1.1 to 1.8; unclipped: 95 to 440 after one image, 110 to 3,300 after a batch


def blows(run: Run, window: int = 50) -> list[Blow]:
    """Every step with outlying inputs that has a past of at least ten steps to compare with, and a future."""
    found, loss, norm = [], run["loss"], run["grad_norm_total"]
    for step in np.flatnonzero(run["input_outliers"] > 0):
        before, after = slice(max(0, step - window), step), loss[step + 1 : step + 1 + window]
        usual = np.median(loss[before]), np.median(norm[before])
        if step >= 10 and len(after) and np.isfinite(usual).all() and min(usual) > 0:
            worst = np.nan_to_num(after, nan=np.inf).max()
            found.append(Blow(int(step), float(run["input_outliers"][step]), norm[step] / usual[1], worst / usual[0]))
    return found


def quarters(trace: np.ndarray) -> np.ndarray:
    """The mean of a trace over each quarter of the run, where it is finite; NaN where it is not or has no steps."""
    trace = np.asarray(trace, dtype=np.float64)
    parts = np.array_split(trace, 4)
    return np.array([part.mean() if len(part) and np.isfinite(part).all() else np.nan for part in parts])


def asleep_from(run: Run, share: float = 1e-3) -> int:
    """The step from which the learning rate stays below this share of its peak; the run's length if it never does."""
    lr = run["lr"]
    awake = np.flatnonzero(~(lr < share * np.max(lr, initial=0.0)))
    return int(awake[-1]) + 1 if len(awake) else len(lr)


def bounce(run: Run) -> tuple[float, float]:
    """The loss on the same images after the first quarter, and how far it climbs from one validation to the next.

    Both are means, the climb a share of the level. No luck of the batch is in it: the probe is always the same.
    """
    losses = run["probe_loss"][run["val_step"] >= len(run) / 4]
    if len(losses) < 4 or not np.isfinite(losses).all() or losses.mean() <= 0:
        return 0.0, 0.0
    return float(losses.mean()), float(np.maximum(np.diff(losses), 0).mean() / losses.mean())


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


def flat_start(run: Run, share: float = 0.02) -> int:
    """How many steps the smoothed training loss stays within this share of its first value, from the start on."""
    losses = run.smoothed()
    with np.errstate(all="ignore"):
        left = np.flatnonzero(~(np.abs(losses / losses[0] - 1) < share)) if len(losses) else ()
    return int(left[0]) if len(left) else len(losses)


# What anybody sees in the loss alone, before any instrument is asked.
LOOKS = {
    "error": "training stops with an error",
    "not finite": "the loss is NaN or infinite",
    "jumps": "the loss jumps up and does not come back",
    "never moves": "the loss stays where it began",
    "stops too high": "the loss falls, slowly or not far enough",
    "validation worse": "training looks well, validation does not",
    "nothing": "nothing in the curves looks wrong",
}
LONG_ENOUGH = 50  # steps before a loss that has not moved means anything
UNMOVED = 0.05  # share of its first value within which it has not
JUMPED = 1.5  # times its first value, at the end
CHANCE = 0.8  # or, after a jump to five times that, this share of it: back to where it began, and no further
HIGH = 0.25  # share of its first value that is still left at the end; healthy short runs keep 0.02 to 0.2
WORSE = 0.08  # accuracy on training images minus that on validation images


def looks(run: Run) -> str:
    """Which of LOOKS a run has."""
    if run.facts.get("error"):
        return "error"
    losses = run["loss"]
    if not len(losses):
        return "nothing"
    if not np.isfinite(losses[-1]) or run.facts.get("first_nonfinite"):
        return "not finite"
    first, late = float(losses[0]), late_loss(run)
    if late > JUMPED * first or (np.nanmax(losses) > 5 * first and late > CHANCE * first):
        return "jumps"
    if len(losses) >= LONG_ENOUGH and abs(late / first - 1) < UNMOVED:
        return "never moves"
    if late > HIGH * first:
        return "stops too high"
    if "probe_accuracy" in run and run.accuracy is not None and run["probe_accuracy"][-1] - run.accuracy > WORSE:
        return "validation worse"
    return "nothing"


def broken_loss(run: Run) -> dict | None:
    """The first non-finite value, where finite outputs gave a loss, or a gradient of it, that is not finite."""
    origin = run.facts.get("first_nonfinite") or {}
    at_the_loss = origin.get("stage") == "loss" or origin.get("place") == "outputs"
    known = all(origin.get(name) and None not in origin[name] for name in ("largest", "behind"))
    return origin if at_the_loss and known else None


def broken_update(run: Run, dtype: str) -> dict | None:
    """The first non-finite value, where an optimizer that remembers in float16 made it in weights of this format.

    None where loss or gradient were not finite: the update then only passed on what it was given.
    """
    origin = run.facts.get("first_nonfinite") or {}
    state = (run.facts.get("dtypes") or {}).get("state", ())
    if origin.get("stage") != "weights" or origin.get("dtype") != dtype or "float16" not in state:
        return None
    given = run["grad_norm_total"][origin["step"]], run["loss"][origin["step"]]
    return origin if np.isfinite(given).all() else None
