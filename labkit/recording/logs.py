"""Export runs to TensorBoard, Weights & Biases, JSON and CSV; read TensorBoard and CSV logs as runs."""

import codecs
import csv
import io
import json
import math
import reprlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from labkit.errors import optional
from labkit.recording.files import json_ready, written_whole
from labkit.recording.run import Run, RunError
from labkit.recording.traces import AXES, EVALUATION, STEP

NO_SCALARS = (STEP, EVALUATION, "histogram", "histogram_range")
# What other loggers call our traces, in lower case; the part after the last "/" counts.
OTHER_NAMES = {
    "loss": ("loss", "train_loss", "training_loss", "loss_train", "batch_loss", "epoch_loss"),
    "lr": ("lr", "learning_rate", "lr-adam", "lr-sgd"),
    "grad_norm_total": ("grad_norm_total", "grad_norm", "gradient_norm", "grad_2.0_norm_total"),
    "val_loss": ("val_loss", "validation_loss", "eval_loss", "valid_loss", "test_loss"),
    "val_accuracy": ("val_accuracy", "val_acc", "eval_accuracy", "valid_acc", "test_accuracy"),
}
VALIDATION = ("val", "valid", "validation", "eval", "test", "dev")  # before the last "/": "val/loss" is not "loss"
STEP_NAMES = ("step", "global_step", "iteration", "iter")
LATEST_STEP = 2**53  # from here on a float64 cannot tell two steps apart
QUOTE = "'"


def scalars(run: Run):
    """(name, step, value) of every number of a run; of traces with several columns, one name per column."""
    for name, values in run.traces.items():
        if name in NO_SCALARS:
            continue
        steps = run.steps_of(name)
        columns = values.reshape(len(values), math.prod(values.shape[1:]))
        for index, words in enumerate(column_names(run, name, columns.shape[1])):
            for step, value in zip(steps, columns[:, index], strict=True):
                yield words, int(step), float(value)


def column_names(run: Run, name: str, columns: int) -> list[str]:
    """One name per column of a trace: grad_norm/layer1, or the trace's own name where there is one column."""
    labels = run.labels_of(name)
    if len(labels) == columns:
        return [f"{name}/{label}" for label in labels]
    return [name] if columns == 1 else [f"{name}/{index}" for index in range(columns)]


def to_tensorboard(run: Run, folder) -> Path:
    """Scalars, histograms of activations and the recipe as hyperparameters, for `tensorboard --logdir`."""
    tensorboard = optional("torch.utils.tensorboard", extra="tracking", feature="to_tensorboard")
    with tensorboard.SummaryWriter(folder) as writer:
        for name, step, value in scalars(run):
            writer.add_scalar(name, value, step)
        for index, step in enumerate(run.traces.get("val_step", ())):
            for column, name in enumerate(run.activations if "histogram" in run else ()):
                _histogram(writer, f"activation/{name}", run, index, column, int(step))
        settings = {name: value for name, value in run.recipe.items() if isinstance(value, bool | int | float | str)}
        if settings and run.score is not None:
            writer.add_hparams(settings, {f"final/{run.measure.trace}": run.score}, run_name=".")
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
    wandb = optional("wandb", extra="tracking", feature="to_wandb")
    rows: dict[int, dict[str, float]] = {}
    for name, step, value in scalars(run):
        rows.setdefault(step, {})[name] = value
    with wandb.init(config=run.recipe, **{"mode": "offline", "project": "labkit"} | options) as other:
        for step in sorted(rows):
            other.log(rows[step], step=step)
        other.summary.update({name: value for name, value in run.facts.items() if isinstance(value, int | float | str)})
    return other


def to_json(run: Run, path) -> Path:
    """The whole run as JSON: traces as lists, NaN and infinity as null."""
    head = {name: list(getattr(run, name)) for name in AXES}
    content = head | {"recipe": run.recipe, "facts": run.facts, "events": list(run.events)}
    content["traces"] = {name: json_ready(values.tolist()) for name, values in run.traces.items()}
    with written_whole(path) as stream:
        stream.write(json.dumps(json_ready(content)).encode())
    return Path(path)


def to_csv(run: Run, path) -> Path:
    """One row per step with every number of it; validation results are in the row of their step."""
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
    """A saved run, a CSV log, a scalar that TensorBoard exported (.csv, .json) or a TensorBoard folder, as a run.

    Of other loggers' files, the series that are known.
    """
    path = Path(path)
    if path.is_dir() or ".tfevents." in path.name:
        return from_series(tensorboard_series(path), path)
    if path.suffix.lower() in (".csv", ".tsv"):
        return from_series(csv_series(path), path)
    if path.suffix.lower() == ".json":
        return from_series(exported_series(path), path)
    return Run.load(path)


def csv_series(path: Path) -> dict[str, tuple[list[int], list[float]]]:
    """Column -> (steps, values), without the empty cells; a column of text is left out."""
    rows = _csv_rows(path)
    header = [name.strip() for name in next(rows, (0, []))[1]]
    counts = Counter(filter(None, header))
    if twice := next((name for name in counts if counts[name] > 1), None):
        raise RunError(f"{path}: expected each column once, found {twice!r} {counts[twice]} times; rename one")
    stepped = next((place for place, name in enumerate(header) if name.lower() in STEP_NAMES), None)
    if stepped is None:
        found = reprlib.repr(", ".join(filter(None, header)) or "none")
        raise RunError(f"{path}: expected a column 'step', found {found.strip(QUOTE)}; is the first line a header?")
    names = ["", "step", series_name(path)] if is_export(header) else header  # the wall time is no series
    series: dict[str, tuple[list[int], list[float]]] = {}
    texts: dict[str, tuple[int, str]] = {}  # column -> the first cell that is not a number, and its line
    for line, cells in rows:
        if len(cells) > len(header):
            words = f"line {line} has {len(cells)} cells, the header {len(header)}; is a comma inside a number?"
            raise RunError(f"{path}: expected as many cells as columns: {words}")
        step = None
        for place, (name, text) in enumerate(zip(names, cells, strict=False)):
            if place == stepped or not name or not text.strip():
                continue
            try:
                value = float(text)
            except ValueError:
                texts.setdefault(name, (line, text))
                continue
            step = _step(path, line, cells[stepped] if stepped < len(cells) else "") if step is None else step
            steps, values = series.setdefault(name, ([], []))
            steps.append(step)
            values.append(value)
    if mixed := next((name for name in texts if name in series), None):
        line, text = texts[mixed]  # a cell that is left out would shift the curve, or hide its end
        raise RunError(f"{path}: line {line}, column {mixed!r}: expected a number, got {reprlib.repr(text)}")
    return series


# TensorBoard's page offers each scalar as a file of its own, with these columns; the series is in the file's name.
EXPORTED = ("Wall time", "Step", "Value")
TAG = "-tag-"


def is_export(header: list[str]) -> bool:
    """Are these the columns of a scalar that TensorBoard's page exported?"""
    return tuple(header) == EXPORTED


def series_name(path: Path) -> str:
    """The series of an exported scalar: run-train-tag-epoch_loss.csv has epoch_loss; a file of another name, loss."""
    return path.stem.partition(TAG)[2] or "loss"


def exported_series(path: Path) -> dict[str, tuple[list[int], list[float]]]:
    """The series of a scalar that TensorBoard's page has exported as JSON: [[wall time, step, value], ...]."""
    try:
        rows = json.loads(_decoded(path), parse_int=float)  # a number of any length
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is not JSON: {error}") from None
    if not isinstance(rows, list) or not all(_is_row(row) for row in rows):
        expected = "[[wall time, step, value], ...], as TensorBoard exports a scalar"
        raise RunError(f"{path}: expected {expected}; a run that labkit saved is an .npz file")
    steps = [_step(path, number, str(row[1])) for number, row in enumerate(rows, start=1)]
    return {series_name(path): (steps, [float(row[2]) for row in rows])}


def _is_row(row) -> bool:
    numbers = isinstance(row, list) and len(row) == len(EXPORTED)
    return numbers and all(isinstance(one, float) for one in row)


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of each row that is not empty."""
    text = _decoded(path)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield reader.line_num, cells
    except csv.Error as error:
        raise RunError(f"{path}: line {reader.line_num} is not one of a CSV file: {error}") from None


def _decoded(path: Path) -> str:
    """The text of a file: UTF-8, UTF-16 with its mark, or else Latin-1, in which numbers look the same."""
    if path.exists() and not path.is_file():
        raise RunError(f"{path} is not a file: expected a CSV log")
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise RunError(f"there is no file {path}") from None
    utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = content.decode("utf-16" if utf16 else "utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    if "\0" in text:
        raise RunError(f"{path}: expected text, found NUL bytes; if it is text, save it as UTF-8")
    return text


def _step(path: Path, line: int, text: str) -> int:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (0 <= value <= LATEST_STEP and value.is_integer()):
        raise RunError(f"{path}: line {line}: expected a step, a whole number at least 0, got {reprlib.repr(text)}")
    return int(value)


def tensorboard_series(path: Path) -> dict[str, tuple[list[int], list[float]]]:
    """Series -> (steps, values). Of a file that is damaged or still being written, what comes before that place."""
    name = "tensorboard.backend.event_processing.event_accumulator"
    reader = optional(name, extra="tracking", feature=f"reading the TensorBoard log {path}")
    if not path.exists():
        raise RunError(f"there is no file or folder {path}")
    events = reader.EventAccumulator(str(path), size_guidance={"scalars": 0})
    try:
        events.Reload()
    except Exception as error:  # its parts each raise their own: protobuf, struct, its record reader
        raise RunError(f"{path} is not a readable TensorBoard log ({type(error).__name__}: {error})") from error
    found = {name: events.Scalars(name) for name in events.Tags()["scalars"]}
    for name, each in found.items():
        if odd := next((one.step for one in each if not 0 <= one.step <= LATEST_STEP), None):
            raise RunError(f"{path}, series {name!r}: expected steps from 0 on, got {odd}")
    return {name: ([one.step for one in each], [one.value for one in each]) for name, each in found.items()}


def from_series(series: dict[str, tuple[list[int], list[float]]], path) -> Run:
    """A run from named series of numbers, with the names of other loggers replaced by ours."""
    known = {ours: match for ours in OTHER_NAMES if (match := _match(ours, series)) is not None}
    if "loss" not in known:
        found = reprlib.repr(", ".join(series) or "none").strip(QUOTE)
        raise RunError(f"{path}: expected a series 'loss', found {found}; name the column of the training loss 'loss'")
    steps, losses, left_out = _in_order(known["loss"])
    traces = {"step": steps, "loss": losses}
    for name in ("lr", "grad_norm_total"):
        if name in known and (values := _at(steps, known[name])) is not None:
            traces[name] = values
    if "val_loss" in known:
        at, values, _ = _in_order(known["val_loss"])
        traces |= {"val_step": at, "val_loss": values}
        if "val_accuracy" in known and (values := _at(at, known["val_accuracy"])) is not None:
            traces["val_accuracy"] = values
    bad = np.flatnonzero(~np.isfinite(losses))
    origin = {"step": int(steps[bad[0]]), "stage": "loss", "place": "loss"} if len(bad) else None
    facts = {"first_nonfinite": origin, "source": _printable(Path(path).name), "stopped": None}
    if left_out:
        facts["note"] = f"{left_out} rows were left out: their step came again, and the row logged last counts"
    return Run(traces, facts=facts)


def _match(ours: str, series: dict) -> tuple[list[int], list[float]] | None:
    """The series that one of our traces is called by; a name such as "val/loss" is one of the validation."""
    for other in OTHER_NAMES[ours]:
        for name, values in series.items():
            if values[0] and name.lower() == other:
                return values
        for name, values in series.items():
            group, _, last = name.lower().rpartition("/")
            validation = any(part in VALIDATION for part in group.split("/"))
            if values[0] and group and (f"val_{last}" if validation else last) == other:
                return values
    return None


def _in_order(given: tuple[list[int], list[float]]) -> tuple[np.ndarray, np.ndarray, int]:
    """Steps that rise, their values, and how many rows were left out. Of a step that comes again, the last counts:

    a run that was resumed from a checkpoint logs the steps after it once more.
    """
    last = dict(zip(*given, strict=True))
    steps = np.array(sorted(last), dtype=np.int64)
    return steps, np.array([last[step] for step in steps.tolist()], dtype=np.float64), len(given[0]) - len(steps)


def _at(steps: np.ndarray, given: tuple[list[int], list[float]]) -> np.ndarray | None:
    """The values of a series at these steps; None if one of them is missing."""
    there = dict(zip(*given, strict=True))
    if not there.keys() >= set(steps.tolist()):
        return None
    return np.array([there[step] for step in steps.tolist()], dtype=np.float64)


def _printable(name: str) -> str:
    return name.encode("utf-8", "replace").decode()
