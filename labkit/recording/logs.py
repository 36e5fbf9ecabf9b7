"""Runs for other people's viewers, and other people's logs as runs: TensorBoard, Weights & Biases, JSON, CSV."""

import csv
import io
import json
import math
from pathlib import Path

import numpy as np

from labkit.recording.run import Run, RunError, written_whole

AXES = {  # which names the second axis of a trace has
    "layers": ("grad_norm", "weight_norm", "update_norm", "update_ratio"),
    "parameters": ("grad_mean", "grad_std", "grad_min", "grad_max", "grad_near_zero"),
    "activations": ("activation_mean", "activation_std", "activation_saturated", "dead", "twins"),
    "heads": ("attention_entropy",),
}
# What other loggers call our traces, in lower case; the part after the last "/" counts.
OTHER_NAMES = {
    "loss": ("loss", "train_loss", "training_loss", "loss_train", "batch_loss"),
    "lr": ("lr", "learning_rate", "lr-adam", "lr-sgd"),
    "grad_norm_total": ("grad_norm_total", "grad_norm", "gradient_norm", "grad_2.0_norm_total"),
    "val_loss": ("val_loss", "validation_loss", "eval_loss", "valid_loss", "test_loss"),
    "val_accuracy": ("val_accuracy", "val_acc", "eval_accuracy", "valid_acc", "accuracy", "test_accuracy"),
}


def scalars(run: Run):
    """(name, step, value) of every number of a run; of traces with several columns, one name per column."""
    for name, values in run.traces.items():
        if name in ("step", "val_step") or name.startswith("histogram"):
            continue
        steps = run["val_step"] if is_by_evaluation(run, name) else run["step"]
        columns = values.reshape(len(values), -1)
        for index, words in enumerate(column_names(run, name, columns.shape[1])):
            for step, value in zip(steps, columns[:, index], strict=True):
                yield words, int(step), float(value)


def is_by_evaluation(run: Run, name: str) -> bool:
    from labkit.drawing.plots import BY_EVALUATION

    return name.startswith(BY_EVALUATION)


def column_names(run: Run, name: str, columns: int) -> list[str]:
    axis = next((axis for axis, names in AXES.items() if name in names), None)
    labels = getattr(run, axis) if axis else ()
    if len(labels) == columns:
        return [f"{name}/{label}" for label in labels]
    return [name] if columns == 1 else [f"{name}/{index}" for index in range(columns)]


def to_tensorboard(run: Run, folder) -> Path:
    """Scalars, histograms of activations and the recipe as hyperparameters, for `tensorboard --logdir`."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(folder) as writer:
        for name, step, value in scalars(run):
            writer.add_scalar(name, value, step)
        for index, step in enumerate(run.traces.get("val_step", ())):
            for column, name in enumerate(run.activations if "histogram" in run else ()):
                _histogram(writer, f"activation/{name}", run, index, column, int(step))
        settings = {name: value for name, value in run.recipe.items() if isinstance(value, bool | int | float | str)}
        if settings and run.accuracy is not None:
            writer.add_hparams(settings, {"final/val_accuracy": run.accuracy}, run_name=".")
    return Path(folder)


def _histogram(writer, name: str, run: Run, index: int, column: int, step: int) -> None:
    counts, (low, high) = run["histogram"][index, column], run["histogram_range"][index, column]
    if not (np.isfinite([low, high]).all() and counts.sum() > 0 and high > low):
        return
    limits = np.linspace(low, high, len(counts) + 1)
    centres = (limits[1:] + limits[:-1]) / 2
    sums = {"sum": float((counts * centres).sum()), "sum_squares": float((counts * centres**2).sum())}
    ends = {"min": float(low), "max": float(high), "num": float(counts.sum())}
    writer.add_histogram_raw(
        name, **ends, **sums, bucket_limits=limits[1:].tolist(), bucket_counts=counts.tolist(), global_step=step
    )


def to_wandb(run: Run, **options):
    """Every number of a run as a Weights & Biases run; `mode="offline"` writes files and needs no account."""
    import wandb

    rows: dict[int, dict[str, float]] = {}
    for name, step, value in scalars(run):
        rows.setdefault(step, {})[name] = value
    with wandb.init(config=run.recipe, **{"mode": "offline", "project": "labkit"} | options) as other:
        for step in sorted(rows):
            other.log(rows[step], step=step)
        other.summary.update({name: value for name, value in run.facts.items() if isinstance(value, int | float | str)})
    return other


def to_json(run: Run, path) -> Path:
    """Everything but pickle would understand: traces as lists, NaN and infinity as null."""
    head = {name: list(getattr(run, name)) for name in ("layers", "parameters", "activations", "heads")}
    content = head | {"recipe": run.recipe, "facts": run.facts, "events": list(run.events)}
    content["traces"] = {name: _plain(values.tolist()) for name, values in run.traces.items()}
    with written_whole(path) as stream:
        stream.write(json.dumps(_plain(content)).encode())
    return Path(path)


def _plain(value):
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_csv(run: Run, path) -> Path:
    """One row per step with every number of it; validations stand in the row of their step."""
    rows: dict[int, dict[str, float]] = {}
    for name, step, value in scalars(run):
        rows.setdefault(step, {"step": step})[name] = value
    names = ["step", *sorted({name for row in rows.values() for name in row} - {"step"})]
    text = io.StringIO()
    writer = csv.DictWriter(text, names)
    writer.writeheader()
    writer.writerows(rows[step] for step in sorted(rows))
    with written_whole(path) as stream:
        stream.write(text.getvalue().encode())
    return Path(path)


# --- reading --------------------------------------------------------------------------------------


def read(path) -> Run:
    """A saved run, a CSV log or a TensorBoard folder, as a run; of foreign logs what can be understood."""
    path = Path(path)
    if path.is_dir() or ".tfevents." in path.name:
        return from_series(tensorboard_series(path), path)
    if path.suffix.lower() in (".csv", ".tsv"):
        return from_series(csv_series(path), path)
    return Run.load(path)


def csv_series(path: Path) -> dict[str, tuple[list[float], list[float]]]:
    """Column -> (steps, values), without the empty cells."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as stream:
            rows = list(csv.DictReader(stream, delimiter="\t" if path.suffix.lower() == ".tsv" else ","))
    except FileNotFoundError:
        raise RunError(f"there is no file {path}") from None
    names = {name: name for row in rows[:1] for name in row if name}
    stepped = next((name for name in names if name.lower() in ("step", "global_step", "iteration", "iter")), None)
    if stepped is None:
        raise RunError(f"{path}: expected a column 'step', found {', '.join(names) or 'none'}")
    series: dict[str, tuple[list[float], list[float]]] = {}
    for row in rows:
        for name, text in row.items():
            if name and name != stepped and text not in (None, ""):
                try:
                    value = float(text)
                except ValueError:
                    continue  # a column of words
                steps, values = series.setdefault(name, ([], []))
                steps.append(float(row[stepped]))
                values.append(value)
    return series


def tensorboard_series(path: Path) -> dict[str, tuple[list[float], list[float]]]:
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ModuleNotFoundError:
        raise RunError(
            f"{path}: reading TensorBoard logs needs the extra 'tracking' (pip install tensorboard)"
        ) from None
    events = EventAccumulator(str(path), size_guidance={"scalars": 0})
    events.Reload()
    found = {name: events.Scalars(name) for name in events.Tags()["scalars"]}
    return {name: ([one.step for one in each], [one.value for one in each]) for name, each in found.items()}


def from_series(series: dict[str, tuple[list[float], list[float]]], path) -> Run:
    """A run from named series of numbers, with our names for what other loggers call otherwise."""
    known = {}
    for ours, others in OTHER_NAMES.items():
        for other in others:
            match = [name for name in series if name.lower() == other or name.lower().rpartition("/")[2] == other]
            if match and ours not in known:
                known[ours] = series[match[0]]
    if "loss" not in known:
        raise RunError(f"{path}: expected a series 'loss', found {', '.join(series) or 'none'}")
    steps, losses = (np.array(each) for each in known["loss"])
    traces = {"step": steps.astype(int), "loss": losses}
    for name in ("lr", "grad_norm_total"):
        if name in known and len(known[name][0]) == len(steps):
            traces[name] = np.array(known[name][1])
    if "val_loss" in known:
        at, values = (np.array(each) for each in known["val_loss"])
        traces |= {"val_step": at.astype(int), "val_loss": values}
        if "val_accuracy" in known and len(known["val_accuracy"][0]) == len(at):
            traces["val_accuracy"] = np.array(known["val_accuracy"][1])
    bad = np.flatnonzero(~np.isfinite(losses))
    origin = {"step": int(steps[bad[0]]), "stage": "loss", "place": "loss"} if len(bad) else None
    return Run(traces, facts={"first_nonfinite": origin, "source": str(Path(path).name), "stopped": None})
