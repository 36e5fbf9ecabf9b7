"""Run files that are damaged, edited or made to do harm: refused with words, or read and diagnosed."""

import contextlib
import dataclasses
import io
import json
import os
import random
import re
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from helpers import hand_made, tiny, trained, write_unchecked
from hostility import AMOUNT, ODD, chances, damaged, summary, tracebacks

from labkit.cli.main import main
from labkit.diagnosis.diagnose import diagnose
from labkit.diagnosis.report import exam
from labkit.drawing import html, plots
from labkit.failures.catalogue import FAILURES
from labkit.recording import archive, logs
from labkit.recording.facts import FACTS
from labkit.recording.run import FORMAT, NoTrace, Run, RunError
from labkit.recording.soundness import problem
from labkit.recording.traces import AXES, EVALUATION, STEP, TRACES

DRAWINGS = (
    plots.loss, plots.losses, plots.validation, plots.gap, plots.gap_line, plots.gradient_norms, plots.gradient_heat,
    plots.gradient_ratio_line, plots.update_ratio, plots.weight_norms, plots.learning_rate, plots.attention_entropy,
    plots.lowest_entropy, plots.validation_loss, plots.origin, plots.gradient_bars, plots.dead_units,
    plots.activation_sizes, plots.activation_histograms,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def originals() -> list[Run]:
    """Runs of each kind: healthy, not finite, with attention heads, ended by an error, and with few instruments."""
    broken = trained(tiny(lr=1e30, steps=12))
    few = {name: hand_made()[name] for name in ("step", "loss", "val_step", "val_loss")}
    failed = {"kind": "RuntimeError", "message": "a leaf variable was changed in place", "step": 3}
    return [
        trained(tiny(steps=20)),
        broken,
        trained(tiny(model="vit", depth=1, steps=4, clip=0.1)),
        hand_made(facts={"error": failed, "stopped": "error", "clip": 1.0, "clip_by": "value"}),
        Run(few, facts={"first_nonfinite": {"step": 2, "stage": "weights", "dtype": "float16"}}),
    ]


def use(run: Run, folder: Path) -> None:
    """Everything that is done with a run that somebody brings."""
    diagnose(run)
    exam(run)
    repr(run)
    html.run_html(run)
    logs.to_csv(run, folder / "out.csv")
    logs.to_json(run, folder / "out.json")
    with contextlib.suppress(NoTrace):  # clipping by value is read from traces that may be missing
        run.clipped  # noqa: B018
    for name in run.traces:
        run.steps_of(name)
        run.labels_of(name)
    Run.load(run.save(folder / "again.npz"))


def draw(run: Run, chance: random.Random) -> None:
    """One plot; a plot of a trace that is not there says so."""
    ax = plots.new_axes()
    with contextlib.suppress(NoTrace):
        chance.choice(DRAWINGS)(run, ax)
    ax.figure.canvas.draw()


# --- bytes ----------------------------------------------------------------------------------------


def test_damaged_bytes_are_refused_or_read_as_a_sound_run(folder, originals):
    contents = [run.save(folder / "whole.npz").read_bytes() for run in originals]
    accepted = []

    def read(chance: random.Random) -> None:
        path = folder / "damaged.npz"
        path.write_bytes(damaged(chance.choice(contents), chance))
        accepted.append(Run.load(path))
        use(accepted[-1], folder)

    found = tracebacks(chances("bytes"), read)
    assert not found, summary(found)
    assert len(accepted) < AMOUNT / 4  # checksums notice nearly all damage


# --- content --------------------------------------------------------------------------------------


def packed(head: dict, arrays: dict[str, np.ndarray]) -> bytes:
    """A file as `Run.save` writes it, of any content."""
    stream = io.BytesIO()
    text = np.frombuffer(json.dumps(head).encode(), np.uint8)
    np.savez_compressed(stream, head=text, **{f"trace/{name}": values for name, values in arrays.items()})
    return stream.getvalue()


def head_of(run: Run) -> dict:
    axes = {name: list(getattr(run, name)) for name in ("layers", "parameters", "activations", "heads")}
    return {"format": FORMAT, "recipe": run.recipe, "facts": run.facts, "events": list(run.events)} | axes


def edited_value(value, chance: random.Random):
    """Another value in place of this one, or somewhere inside it."""
    if isinstance(value, dict) and value and chance.random() < 0.7:
        name = chance.choice(list(value))
        return {**value, name: edited_value(value[name], chance)}
    if isinstance(value, list) and value and chance.random() < 0.7:
        place = chance.randrange(len(value))
        return [*value[:place], edited_value(value[place], chance), *value[place + 1 :]]
    return chance.choice([odd for odd in ODD if not isinstance(odd, bytes | tuple) and type(odd) is not object])


def edited_trace(values: np.ndarray, chance: random.Random) -> np.ndarray:
    """The same trace with another shape, another type, or odd numbers in it."""
    flat = values.reshape(-1)
    return chance.choice(
        (
            lambda: values[: len(values) // 2],
            lambda: np.concatenate([values, values]),
            lambda: flat,
            lambda: values[..., None],
            lambda: np.zeros(()),
            lambda: np.zeros((len(values), 0)),
            lambda: values.T,
            lambda: values.astype(str),
            lambda: values.astype(complex),
            lambda: values.astype("datetime64[s]") if np.isfinite(flat.astype(float)).all() else flat.astype("S"),
            lambda: np.nan_to_num(values).astype(np.uint8),
            lambda: values != 0,
            lambda: values.astype(">f8"),
            lambda: values.astype(np.float16),
            lambda: np.full(values.shape, chance.choice((np.nan, np.inf, -np.inf, 1e308, -1e308, 1e-320, 0.0, -3.0))),
            lambda: np.where(np.arange(values.size).reshape(values.shape) % 3 == 0, np.nan, values),
            lambda: -values.astype(float),
            lambda: np.zeros(len(values), dtype=[("a", "f8"), ("b", "i4")]),
        )
    )()


def edited(run: Run, chance: random.Random) -> tuple[dict, dict[str, np.ndarray]]:
    """A run's head and traces with one to three edits."""
    head, traces = json.loads(json.dumps(head_of(run))), dict(run.traces)
    for _ in range(chance.choice((1, 1, 2, 3))):
        how = chance.choice(("trace", "trace", "drop", "foreign", "head", "facts", "facts", "facts", "forget"))
        if how == "trace" and traces:
            name = chance.choice(list(traces))
            traces[name] = edited_trace(traces[name], chance)
        elif how == "drop" and traces:
            del traces[chance.choice(list(traces))]
        elif how == "foreign":
            name = chance.choice((*TRACES, "val_top5", "", "..", "a/b", "x" * 300, "naïve"))
            traces[name] = np.zeros((chance.choice((0, 1, len(run), 7)), *chance.choice(((), (1,), (3,), (2, 2)))))
        elif how == "head":
            head = edited_value(head, chance)
        elif how == "facts" and isinstance(head, dict) and isinstance(head.get("facts"), dict) and head["facts"]:
            head["facts"] = edited_value(head["facts"], chance)
        elif isinstance(head, dict) and head:
            part = head.get("facts") if isinstance(head.get("facts"), dict) and head["facts"] else head
            part.pop(chance.choice(list(part)))
    return head, traces


def test_edited_content_is_refused_or_diagnosed(folder, originals):
    accepted = []

    def read(chance: random.Random) -> None:
        path = folder / "edited.npz"
        path.write_bytes(packed(*edited(chance.choice(originals), chance)))
        run = Run.load(path)
        accepted.append(run)
        use(run, folder)
        draw(run, chance)

    found = tracebacks(chances("content"), read)
    assert not found, summary(found)
    assert AMOUNT / 10 <= len(accepted) < AMOUNT * 9 / 10  # both ways out were taken, not one alone


def reduced(run: Run, chance: random.Random) -> Run:
    """A sound run with fewer layers, parameters, activations or heads, fewer steps, fewer evaluations, odd names."""
    axes = {axis: list(getattr(run, axis)) for axis in AXES}
    kept = {
        axis: sorted(chance.sample(range(len(names)), chance.randint(0, len(names)))) for axis, names in axes.items()
    }
    rows = {STEP: chance.choice((0, 1, 2, 3, len(run))), EVALUATION: chance.choice((0, 1, 2, 100))}
    traces = {}
    for name, values in run.traces.items():
        about = run.about(name)
        if (about.rows == EVALUATION and not rows[EVALUATION]) or (about.axis and not kept[about.axis]):
            continue  # as the recorder does: without evaluations or layers there is no trace of them
        values = values[: rows[about.rows]]
        traces[name] = values[:, kept[about.axis]] if about.axis else values
    odd = ("$\\frac$", "a$b", "é", "<b>&", "🧪", "inputs", "x" * 300)
    names = {
        axis: tuple(chance.choice((axes[axis][place], chance.choice(odd))) for place in kept[axis]) for axis in AXES
    }
    return Run(traces, **names, recipe=run.recipe, facts=run.facts, events=run.events)


def test_sound_runs_of_any_size_can_be_used(folder, originals):
    sizes = []

    def read(chance: random.Random) -> None:
        run = reduced(chance.choice(originals), chance)
        sizes.append((len(run), *(len(getattr(run, axis)) for axis in AXES)))
        use(Run.load(run.save(folder / "reduced.npz")), folder)
        draw(run, chance)

    found = tracebacks(chances("reduced"), read, clear=())  # none is refused: a clear error counts as a failure too
    assert not found, summary(found)
    assert len(set(sizes)) > AMOUNT / 4 and {0, 1} <= {steps for steps, *_ in sizes}


# --- files that are made to do harm ---------------------------------------------------------------


class Executed:
    """What a pickle would execute."""

    def __reduce__(self):
        return exec, ("raise SystemExit('executed')",)


def npy(values: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, values, allow_pickle=True)
    return stream.getvalue()


def zipped(path: Path, *members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    """A sound head, and these members."""
    head = np.frombuffer(json.dumps(head_of(hand_made())).encode(), np.uint8)
    with zipfile.ZipFile(path, "w", method) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile warns of a name that comes twice
        for name, content in (("head.npy", npy(head)), *members):
            archive.writestr(name, content)
    return path


def huge_shape(count: int) -> bytes:
    """An array whose header promises more numbers than there are."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": (count,)})
    return stream.getvalue() + bytes(16)


LOSS = npy(np.ones(3))
HARMFUL = {
    "a pickle": ([("trace/loss.npy", npy(np.array([Executed()], dtype=object)))], "Python objects in trace/loss.npy"),
    "a structured pickle": (
        [("trace/loss.npy", npy(np.array([(1, Executed())], dtype=[("a", "i4"), ("b", "O")])))],
        "Python objects in trace/loss.npy",
    ),
    "a terabyte promised": ([("trace/loss.npy", huge_shape(10**12))], "16 bytes in trace/loss.npy, whose shape"),
    "less than nothing": ([("trace/loss.npy", huge_shape(-2))], "16 bytes in trace/loss.npy, whose shape"),
    "a name twice": ([("trace/loss.npy", LOSS), ("trace/loss.npy", npy(np.zeros(3)))], "'trace/loss.npy' twice"),
    "a path upwards": ([("../../evil.npy", LOSS)], "expected traces, got '../../evil'"),
    "an absolute path": ([("/tmp/evil.npy", LOSS)], "expected traces, got '/tmp/evil'"),
    "a program": ([("evil.py", b"raise SystemExit")], "a member 'evil.py' that numpy did not write"),
    "another version": ([("trace/loss.npy", b"\x93NUMPY\x07\x00" + LOSS[8:])], "trace/loss.npy in version (7, 0)"),
}


@pytest.mark.parametrize("what", HARMFUL)
def test_a_harmful_file_is_refused_by_name(what, tmp_path):
    members, words = HARMFUL[what]
    path = zipped(tmp_path / "harm.npz", *members)
    with pytest.raises(RunError) as caught:
        Run.load(path)
    assert words in str(caught.value) and "record the run again" in str(caught.value)
    assert os.listdir(tmp_path) == ["harm.npz"]  # nothing was extracted


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "ALWAYS_FINE", 2**20)  # instead of 256 MB, so that the test is quick
    path = zipped(tmp_path / "bomb.npz", ("trace/loss.npy", npy(np.zeros(2**22))))  # 32 MB in 33 kB
    tracemalloc.start()
    try:
        with pytest.raises(RunError, match=r"33,\d{3},\d{3} bytes packed into .* at most .* are unpacked"):
            Run.load(path)
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**20  # an eighth of what it would unpack to
    finally:
        tracemalloc.stop()


def test_no_more_is_unpacked_than_a_file_declares(tmp_path):
    path = zipped(tmp_path / "liar.npz", ("trace/loss.npy", npy(np.zeros(2**22))))
    content, true = path.read_bytes(), len(npy(np.zeros(2**22)))
    path.write_bytes(content.replace(true.to_bytes(4, "little"), (100).to_bytes(4, "little")))
    tracemalloc.start()
    try:
        with pytest.raises(RunError):
            Run.load(path)
        assert tracemalloc.get_traced_memory()[1] < 2**22  # of 32 MB
    finally:
        tracemalloc.stop()


def test_a_large_run_that_hardly_shrinks_is_no_bomb(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "ALWAYS_FINE", 0)
    run = trained(tiny(steps=20))
    assert Run.load(run.save(tmp_path / "run.npz"))["loss"].tolist() == run["loss"].tolist()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(RunError, match="not a file"):
        Run.load(tmp_path / "pipe.npz")


# --- as a command, and what is not a fault --------------------------------------------------------


def test_the_command_refuses_with_one_line(folder, originals, capsys):
    refused = 0
    for chance in list(chances("command"))[:100]:  # the reading itself was tested above, more often
        path = folder / "command.npz"
        path.write_bytes(packed(*edited(chance.choice(originals), chance)))
        code = main(["diagnose", str(path), *chance.choice(([], ["--json"]))])
        printed = capsys.readouterr()
        assert code in (0, 2) and (code == 0) == (printed.err == ""), printed.err
        if code == 2:
            refused += 1
            assert printed.err.startswith(f"labkit: {path}") and "Traceback" not in printed.err
            assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert refused


def test_whole_numbers_become_floats_whose_differences_do_not_wrap(tmp_path):
    traces = hand_made().traces | {"val_accuracy": np.array([3, 2, 1, 0, 0], dtype=np.uint8)}
    run = Run.load(write_unchecked(dataclasses.replace(hand_made(), traces=traces), tmp_path / "run.npz"))
    assert np.diff(run["val_accuracy"]).tolist() == [-1, -1, -1, 0]
    assert run["step"].dtype.kind == "i"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"loss": np.ones(80)}, "trace 'loss': expected the shape (40), one row per step, got (80,)"),
        ({"dead": np.ones((5, 3))}, "one column for each of its activations, got (5, 3)"),
        ({"step": np.arange(40)[::-1]}, "trace 'step': expected rising steps, got 38 after 39"),
        ({"step": np.arange(40) - 1}, "trace 'step': expected steps from 0 on, got -1"),
        ({"step": np.arange(40) + 0.5}, "trace 'step': expected whole numbers, got float64"),
        ({"val_note": np.array(["a"] * 5)}, "trace 'val_note': expected numbers"),
        ({"a\nb": np.ones(40)}, "the name of a trace: expected printable text"),
    ],
)
def test_a_contradiction_is_named_when_a_run_is_saved_and_when_it_is_loaded(change, words, tmp_path):
    run = dataclasses.replace(hand_made(), traces=hand_made().traces | change)
    with pytest.raises(RunError, match=re.escape(words)):
        run.save(tmp_path / "run.npz")
    with pytest.raises(RunError, match=re.escape(words)):
        Run.load(write_unchecked(run, tmp_path / "run.npz"))


@pytest.mark.parametrize("fact", FACTS)
def test_every_fact_of_the_wrong_kind_is_named(fact, tmp_path):
    for wrong in ({"a": ["b"]}, 1.5j, [object], b"x"):
        if isinstance(wrong, dict) and FACTS[fact].fits(wrong):
            continue
        with pytest.raises(RunError, match=f"fact '{fact}': expected .*, got "):
            hand_made(facts={fact: wrong}).save(tmp_path / "run.npz")


def test_every_trained_run_of_the_catalogue_agrees_with_the_tables():
    """Few steps of each sick recipe are enough to have every trace and fact."""
    small = {"steps": 3, "samples": 256, "batch_size": 32, "evaluate_every": 2, "processes": 1, "device": "cpu"}
    alone = [mode for mode in FAILURES.values() if mode.sick.processes == 1]
    found = {mode.name: problem(trained(mode.sick.but(**small))) for mode in alone}
    assert {name: words for name, words in found.items() if words} == {}
