"""Training loops of every kind: watching them raises nothing, changes no bit, and the run can be diagnosed."""

import functools
import warnings
import zlib

import pytest
import torch
from hostility import hostile
from hypothesis import given
from loops import Program, programs, unwatched

from labkit.diagnosis.watch import watch
from labkit.recording.guard import Guard
from labkit.recording.run import Run


def state(net: torch.nn.Module) -> bytes:
    """Every parameter and buffer, bit by bit."""
    return b"".join(value.flatten().view(torch.uint8).numpy().tobytes() for value in net.state_dict().values())


@hostile
@given(program=programs)
def test_any_loop_is_watched_without_an_error_and_unchanged(program: Program):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, alone = program.run(unwatched)
        record, watched = program.run(functools.partial(watch, strict=True))
        assert state(alone) == state(watched)
        record.diagnose()
        assert record.report()
    run = record.run
    assert "switched_off" not in run.facts
    assert {"loss", "grad_norm", "activation_mean"} <= run.traces.keys()


@hostile
@given(program=programs)
def test_instruments_that_fail_are_switched_off_and_the_loop_goes_on(program: Program):
    """Every instrument is broken, one program after the other, from the first step or from a later one."""
    chosen = ALL[zlib.crc32(repr(program).encode()) % len(ALL)]
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, alone = program.run(unwatched)
        break_instrument(patch, *chosen)
        record, watched = program.run(watch)
        assert state(alone) == state(watched)
        record.report()
        assert len(record.run) == len(record.run["loss"]) > 0


def break_instrument(patch: pytest.MonkeyPatch, place: str, after: int) -> None:
    """From the call after `after` calls on, this method of an instrument raises."""
    module, kind, method = place.split(":")
    owner = getattr(__import__(module, fromlist=[kind]), kind)
    real, calls = getattr(owner, method), [0]

    def broken(*given, **named):
        calls[0] += 1
        if calls[0] > after:
            raise ZeroDivisionError("this instrument is broken")
        return real(*given, **named)

    patch.setattr(owner, method, broken)


METHODS = (
    "labkit.recording.meters:WeightMeter:__init__", "labkit.recording.meters:WeightMeter:hold",
    "labkit.recording.meters:WeightMeter:traces", "labkit.recording.meters:ActivationMeter:_note_inputs",
    "labkit.recording.meters:ActivationMeter:keep", "labkit.recording.meters:ActivationMeter:traces",
    "labkit.recording.meters:Probe:examine", "labkit.recording.meters:Probe:_losses",
    "labkit.recording.sample_log:SampleLog:_note", "labkit.recording.sample_log:SampleLog:step",
    "labkit.recording.sample_log:SampleLog:evaluation", "labkit.recording.sample_log:SampleLog:traces",
    "labkit.recording.sample_log:SampleLog:facts", "labkit.recording.sample_log:SampleLog:classes",
)  # fmt: skip
ALL = [(method, after) for method in METHODS for after in (0, 2)]

PLAIN = Program(
    body="linear", structure="tensor", target="classes", batch="pair", loss="tensor", loop="plain", probe="pair",
    optimizer="SGD", every=1, validation="both", empty_batch=False, wrapped="no", lr=0.1,
)  # fmt: skip
LOST = {  # what a run lacks without an instrument
    "labkit.recording.meters:WeightMeter:hold": "grad_norm",
    "labkit.recording.meters:ActivationMeter:keep": "activation_mean",
    "labkit.recording.meters:Probe:examine": "dead",
    "labkit.recording.meters:Probe:_losses": "probe_loss",
    "labkit.recording.sample_log:SampleLog:step": "train_mode",
}


@pytest.mark.parametrize("place", LOST)
def test_one_line_says_which_instrument_is_off_and_facts_keep_it(place, monkeypatch, capsys, tmp_path):
    break_instrument(monkeypatch, place, 0)
    record, _ = PLAIN.run(watch)
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and "ZeroDivisionError: this instrument is broken" in told[0] and "goes on" in told[0]
    run = record.run
    assert [each["error"] for each in run.facts["switched_off"]] == ["ZeroDivisionError: this instrument is broken"]
    assert LOST[place] not in run and {*LOST.values()} - {LOST[place], "probe_loss"} <= run.traces.keys()
    assert Run.load(run.save(tmp_path / "run.npz")).facts["switched_off"] == run.facts["switched_off"]
    assert "switched off" in record.report()


@pytest.mark.parametrize("place", LOST)
def test_a_strict_watch_raises(place, monkeypatch):
    break_instrument(monkeypatch, place, 0)
    with pytest.raises(ZeroDivisionError):
        PLAIN.run(functools.partial(watch, strict=True))


def test_interrupts_are_not_errors_of_an_instrument():
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Guard(strict=False)("activations", 0, interrupt)
