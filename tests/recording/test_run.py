"""What was recorded: kept whole, read back equal, and refused clearly when it is damaged."""

import dataclasses
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from helpers import ROOT, hand_made

from labkit.recording.files import written_whole
from labkit.recording.run import FORMAT, LARGEST_HEAD, Run, RunError


def assert_equal(one: Run, other: Run) -> None:
    assert one.traces.keys() == other.traces.keys()
    for name, values in one.traces.items():
        assert values.dtype == other[name].dtype and values.shape == other[name].shape, name
        np.testing.assert_array_equal(values, other[name], err_msg=name)  # NaN equals NaN here
    for name in ("layers", "parameters", "activations", "heads", "recipe", "events"):
        assert getattr(one, name) == getattr(other, name), name
    assert repr(one.facts) == repr(other.facts)  # NaN is not equal to itself, but looks so


@pytest.fixture
def eventful() -> Run:
    """A small run with everything that is hard to keep."""
    return Run(
        {
            "loss": np.array([2.5, np.inf, np.nan]),
            "grad_norm": np.array([[1e-300], [-np.inf], [0.0]]),
            "step": np.arange(3),
        },
        layers=("layer1",),
        parameters=("layer1.weight",),
        activations=("inputs", "outputs"),
        heads=("block.0",),
        recipe={"lr": 0.1, "clip": None, "model": "mlp"},
        facts={"first_nonfinite": {"step": 1, "stage": "loss", "float32": float("inf")}, "sharp": float("nan")},
        events=({"kind": "skipped", "step": 0},),
    )


# --- reading off ----------------------------------------------------------------------------------


def test_an_unknown_trace_is_told_which_there_are():
    run = Run({"loss": np.zeros(3), "lr": np.zeros(3)})
    assert "loss" in run and "los" not in run
    with pytest.raises(KeyError, match="this run has no trace 'los'; it has loss, lr"):
        run["los"]


def test_the_length_is_the_number_of_steps():
    assert len(Run({"loss": np.zeros(7), "val_loss": np.zeros(2)})) == 7
    assert len(Run({})) == 0


def test_accuracy_is_the_last_validation_or_none():
    assert Run({"val_accuracy": np.array([0.1, 0.7])}).accuracy == 0.7
    assert Run({}).accuracy is None and Run({"val_accuracy": np.zeros(0)}).accuracy is None


def test_the_gap_is_validation_minus_training_probe():
    run = Run({"val_loss": np.array([2.0, 1.5]), "probe_loss": np.array([2.0, 0.25])})
    assert run.gap.tolist() == [0, 1.25]


def test_it_shows_itself_in_a_line(eventful):
    assert repr(eventful) == "<Run of 3 steps, 1 layers, non-finite from step 1 (loss)>"
    assert repr(hand_made(steps=10)) == "<Run of 10 steps, 3 layers, validation accuracy 92.0%>"


def test_smoothing_is_the_bias_corrected_exponential_mean():
    run = Run({"loss": np.array([4.0, 2.0, 0.0])})
    by_hand = [4, (0.25 * 4 + 0.5 * 2) / 0.75, (0.125 * 4 + 0.25 * 2 + 0.5 * 0) / 0.875]
    assert run.smoothed(beta=0.5) == pytest.approx(by_hand)
    assert Run({"loss": np.full(30, 7.0)}).smoothed() == pytest.approx(7)


def test_smoothing_lags_and_hides_a_spike_and_the_raw_trace_does_not():
    losses = np.ones(100)
    losses[50] = 11
    run = Run({"loss": losses})
    assert run["loss"].max() == 11
    assert run.smoothed().max() == pytest.approx(1 + 10 * 0.1, rel=0.01) and run.smoothed().argmax() == 50
    assert run.smoothed()[55] > 1.5 and run["loss"][55] == 1


def test_every_trace_can_be_smoothed():
    run = Run({"grad_norm": np.array([[1.0, 10.0], [3.0, 10.0]])})
    assert run.smoothed("grad_norm", beta=0.5) == pytest.approx(np.array([[1, 10], [(0.25 + 1.5) / 0.75, 10]]))


def test_batch_loss_variance_sees_the_noise_and_not_the_trend():
    noise = np.random.default_rng(0).normal(0, 0.5, 5000)
    run = Run({"loss": np.linspace(100, 0, 5000) + noise})
    found = run.batch_loss_variance(window=2000)
    assert found == pytest.approx(0.25, rel=0.1)
    assert len(found) == 4999 - 2000 + 1
    assert Run({"loss": np.array([1.0, 3.0, 3.0])}).batch_loss_variance(window=1).tolist() == [2, 0]


@pytest.mark.parametrize(("steps", "length"), [(0, 0), (1, 0), (2, 1), (30, 1), (60, 10)])
def test_batch_loss_variance_of_short_runs(steps, length):
    assert len(Run({"loss": np.ones(steps)}).batch_loss_variance(window=50)) == length


@pytest.mark.parametrize(("by", "clipped"), [("norm", [False, True, False]), ("value", [True, False, False])])
def test_clipped_steps_are_those_whose_gradient_passed_the_threshold(by, clipped):
    run = Run(
        {
            "loss": np.zeros(3),
            "grad_norm_total": np.array([0.9, 1.1, 1.0]),
            "grad_min": np.array([[-1.2, 0], [-0.1, 0], [-1.0, 0]]),
            "grad_max": np.array([[0.1, 0.2], [0.1, 0.9], [0.1, 1.0]]),
        },
        facts={"clip": 1.0, "clip_by": by},
    )
    assert run.clipped.tolist() == clipped


def test_without_clipping_no_step_is_clipped():
    traces = {"loss": np.zeros(2), "grad_norm_total": np.array([1e9, 1e9])}
    assert Run(traces, facts={"clip": None, "clip_by": "norm"}).clipped.tolist() == [False, False]
    assert Run(traces).clipped.tolist() == [False, False]


# --- keeping --------------------------------------------------------------------------------------


def test_a_saved_run_comes_back_equal(tmp_path, eventful, short_run):
    for run in (eventful, short_run, Run({})):
        path = run.save(tmp_path / "new folder" / "kept.npz")
        assert_equal(run, Run.load(path))
        assert_equal(run, Run.load(str(path)))


def test_a_saved_run_needs_no_pickle(tmp_path, eventful):
    with np.load(eventful.save(tmp_path / "kept.npz"), allow_pickle=False) as file:
        assert json.loads(bytes(file["head"]))["format"] == FORMAT
        assert {file[name].dtype.kind for name in file.files} <= set("uif")


def test_a_pickle_is_refused_without_being_opened(tmp_path):
    path = tmp_path / "evil.npz"
    np.savez(path, head=np.array([{"format": FORMAT}], dtype=object))
    with pytest.raises(
        RunError, match=r"not a readable labkit run .*Python objects in head\.npy, which would have to be unpickled"
    ):
        Run.load(path)


def assert_damaged(path: Path) -> None:
    with pytest.raises(RunError) as caught:
        Run.load(path)
    for words in (str(path), f"expected {FORMAT}, got:", "copy it again, or record the run again"):
        assert words in str(caught.value)


def test_a_run_that_was_cut_short_is_refused_at_every_length(tmp_path, eventful):
    content = eventful.save(tmp_path / "kept.npz").read_bytes()
    path = tmp_path / "cut.npz"
    for length in range(0, len(content), 11):
        path.write_bytes(content[:length])
        assert_damaged(path)


def test_a_flipped_byte_is_refused_or_harmless(tmp_path, eventful):
    content = eventful.save(tmp_path / "kept.npz").read_bytes()
    path, refused = tmp_path / "flipped.npz", 0
    for place in range(0, len(content), 3):
        flipped = bytearray(content)
        flipped[place] ^= 0xFF
        path.write_bytes(flipped)
        try:
            assert_equal(eventful, Run.load(path))  # a byte that says nothing, such as a date
        except RunError:
            refused += 1
    assert refused > len(content) / 3 / 2


def npz(**arrays):
    return lambda path: np.savez(path, **arrays)


def text(head: str) -> np.ndarray:
    return np.frombuffer(head.encode(), np.uint8)


@pytest.mark.parametrize(
    "write",
    [
        lambda path: path.write_bytes(b"this is not a run"),
        lambda path: path.write_bytes(b""),
        lambda path: np.save(path.open("wb"), np.arange(3)),
        lambda path: path.mkdir(),
        npz(a=np.arange(3)),
        npz(head=text("not json")),
        npz(head=text("[]")),
        npz(head=text(json.dumps({"format": FORMAT}))),
    ],
    ids=["text", "empty", "npy", "folder", "no head", "no json", "no dictionary", "no layers"],
)
def test_what_is_no_run_is_refused(tmp_path, write):
    path = tmp_path / "other.npz"
    write(path)
    assert_damaged(path)


def test_a_head_that_would_fill_the_memory_is_refused_before_it_is_parsed(tmp_path, monkeypatch):
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, head=text("[" + "[]," * (LARGEST_HEAD // 3) + "[]]"))
    assert path.stat().st_size < 30_000
    monkeypatch.setattr(json, "loads", lambda _: pytest.fail("it was parsed"))
    with pytest.raises(RunError, match=r"head: expected at most 16,777,216 bytes of recipe, facts and events, got 16,"):
        Run.load(path)


def test_a_run_with_a_head_that_load_would_refuse_is_not_saved(tmp_path, eventful):
    large = dataclasses.replace(eventful, facts={"own": "x" * LARGEST_HEAD})
    with pytest.raises(RunError, match=r"cannot be saved \(head: expected at most 16,777,216 bytes.*Remove facts"):
        large.save(tmp_path / "large.npz")
    assert not any(tmp_path.iterdir())
    dataclasses.replace(eventful, facts={"own": "x" * (LARGEST_HEAD - 20_000)}).save(tmp_path / "fits.npz")
    assert len(Run.load(tmp_path / "fits.npz")) == len(eventful)


def test_another_format_is_named(tmp_path):
    path = tmp_path / "future.npz"
    np.savez(path, head=text(json.dumps({"format": "labkit-run-9"})))
    with pytest.raises(RunError, match=f"has format 'labkit-run-9'; this labkit reads '{FORMAT}'"):
        Run.load(path)


def test_a_missing_file_says_how_to_make_one(tmp_path):
    with pytest.raises(RunError, match=r"there is no run at .*nowhere\.npz; save one with run\.save\(\.\.\.\) first"):
        Run.load(tmp_path / "nowhere.npz")


# --- whole or not at all --------------------------------------------------------------------------


@pytest.mark.parametrize("blow", [RuntimeError, KeyboardInterrupt])
def test_an_interrupted_save_leaves_the_old_file_and_nothing_else(tmp_path, eventful, monkeypatch, blow):
    path = eventful.save(tmp_path / "kept.npz")
    before = path.read_bytes()

    def half(stream, **_):
        stream.write(b"half of it")
        raise blow

    monkeypatch.setattr(np, "savez_compressed", half)
    with pytest.raises(blow):
        hand_made().save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["kept.npz"]


def test_the_file_appears_only_when_it_is_complete(tmp_path):
    path = tmp_path / "file"
    with written_whole(path) as stream:
        stream.write(b"all of it")
        assert not path.exists()
    assert path.read_bytes() == b"all of it"
    assert path.stat().st_mode & 0o777 == 0o644  # for others to read, unlike a temporary file
    assert os.listdir(tmp_path) == ["file"]


def test_a_saved_run_is_compressed(tmp_path, short_run):
    path = short_run.save(tmp_path / "kept.npz")
    with zipfile.ZipFile(path) as archive:
        assert all(each.compress_type == zipfile.ZIP_DEFLATED for each in archive.infolist())


# --- light ----------------------------------------------------------------------------------------


def test_a_run_is_read_and_kept_without_torch(tmp_path, eventful):
    path = eventful.save(tmp_path / "kept.npz")
    code = (
        "import sys; from labkit.recording.run import Run; import labkit; assert labkit.Run is Run; "
        f"run = Run.load({str(path)!r}); run.smoothed(); run.save({str(path)!r}); print('torch' in sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (done.stdout.strip(), done.stderr) == ("False", "")
