"""The signatures of the numerical failures: one run by hand just beyond each threshold, one just short of it."""

import importlib
import math

import numpy as np
import pytest
from helpers import hand_made, tiny, trained

from labkit.diagnosis.diagnose import diagnose, evidence_of
from labkit.failures.catalogue import FAILURES
from labkit.recording.run import Run


def constants(name: str):
    """The module of a mode, for its thresholds."""
    return importlib.import_module(f"labkit.failures.{FAILURES[name].topic}.{name}")


def found(name: str, run: Run):
    """The evidence that one mode sees, or None."""
    return evidence_of(FAILURES[name], run)


def spoiled(stage: str, formats: dict | None = None, traces: dict | None = None, **finding) -> Run:
    """A run whose first non-finite value was found at step 3, with what the hunt noted and the formats of the net."""
    origin = {"step": 3, "stage": stage, "place": "layer2.bias", "count": 10, "nan": 10, "dtype": "float32"} | finding
    formats = {"weights": ["float32"], "outputs": ["float32"], "state": ["float32"]} | (formats or {})
    return hand_made(facts={"first_nonfinite": origin, "dtypes": formats}, **(traces or {}))


def after(step: int, value: float, before: float = 1.0) -> np.ndarray:
    """A trace of 40 steps that has another value from this step on."""
    return np.where(np.arange(40) < step, before, value)


MODES = [name for name, mode in FAILURES.items() if mode.topic == "numerics"]


@pytest.mark.parametrize("name", MODES)
def test_nothing_is_seen_in_a_healthy_run_or_in_one_that_knows_little(name):
    assert found(name, hand_made()) is None
    for stage in ("weights", "inputs", "activations", "loss", "gradients"):
        bare = hand_made(facts={"first_nonfinite": {"step": 0, "stage": stage, "place": "loss"}})
        evidence = found(name, bare)
        assert evidence is None or (name, stage) == ("nan_in_data", "inputs")
    assert found(name, hand_made(facts={"first_nonfinite": {"step": 0, "stage": "unknown"}})) is None
    assert found(name, hand_made(steps=1, loss=math.nan)) is None


# --- formats --------------------------------------------------------------------------------------

OVERFLOW = constants("fp16_backward_overflow")
HALF = {"outputs": ["float16"]}


@pytest.mark.parametrize(
    ("run", "seen"),
    [
        (spoiled("gradients", HALF, {"loss_scale": 2.0**20}), True),
        (spoiled("gradients", HALF, {"loss_scale": OVERFLOW.SCALED * 1.01}), True),
        (spoiled("gradients", HALF, {"loss_scale": OVERFLOW.SCALED * 0.99}), False),
        (spoiled("gradients", {}, {"loss_scale": 2.0**20}), False),
        (spoiled("weights", HALF, {"loss_scale": 2.0**20}), False),
        (spoiled("gradients", HALF, {"loss_scale": 2.0**20, "loss": after(3, math.inf)}), False),
        (spoiled("gradients", HALF, {"loss_scale": 2.0**20}, place="outputs"), False),
    ],
)
def test_fp16_backward_overflow(run, seen):
    assert bool(found("fp16_backward_overflow", run)) is seen
    if seen:
        assert [each.name for each in diagnose(run)] == ["fp16_backward_overflow"]
        assert found("fp16_backward_overflow", run).onset == 3


UNDERFLOW = constants("fp16_underflow")


def no_gradient(share: float, loss: float = 2.3, formats: dict | None = None) -> Run:
    """Gradients of exactly 0 in this share of 100 steps, and a loss that stays where it is."""
    norms = np.where(np.arange(100)[:, None] < 100 * share, 0.0, 0.1) * np.ones((100, len(hand_made().layers)))
    facts = {"dtypes": {"weights": ["float32"], "outputs": ["float16"]} | (formats or {})}
    flat = {"loss": loss, "probe_loss": loss, "val_loss": 2.3}
    return hand_made(steps=100, facts=facts, grad_norm=norms, **flat)


@pytest.mark.parametrize(
    ("run", "seen"),
    [
        (no_gradient(1.0), True),
        (no_gradient(UNDERFLOW.NOTHING), True),
        (no_gradient(UNDERFLOW.NOTHING - 0.02), False),
        (no_gradient(1.0, loss=2e-6), True),  # whatever the weight of the loss
        (no_gradient(1.0, formats={"outputs": ["float32"]}), False),
        (no_gradient(1.0, formats={"outputs": ["bfloat16"]}), False),
    ],
)
def test_fp16_underflow(run, seen):
    assert bool(found("fp16_underflow", run)) is seen


def test_gradients_of_zero_where_the_loss_moved_are_no_underflow():
    run = no_gradient(1.0)
    run.traces["probe_loss"] = np.linspace(2.3, 0.2, 5)
    assert found("fp16_underflow", run) is None


KEPT = {"state": ["float16"]}


@pytest.mark.parametrize(("name", "dtype"), [("half_precision_adam", "float16"), ("adam_state_in_fp16", "float32")])
def test_an_update_that_divides_by_zero_is_told_by_the_format_of_weights_and_memory(name, dtype):
    other = {"float16": "float32", "float32": "float16"}[dtype]
    assert found(name, spoiled("weights", KEPT, dtype=dtype)).onset == 3
    assert [each.name for each in diagnose(spoiled("weights", KEPT, dtype=dtype))] == [name]
    assert found(name, spoiled("weights", KEPT, dtype=other)) is None
    assert found(name, spoiled("weights", dtype=dtype)) is None  # memory in float32
    assert found(name, spoiled("gradients", KEPT, dtype=dtype)) is None
    for trace in ("grad_norm_total", "loss"):  # the update was given a NaN
        assert found(name, spoiled("weights", KEPT, {trace: after(3, math.nan)}, dtype=dtype)) is None
        assert found(name, spoiled("weights", KEPT, {trace: after(4, math.nan)}, dtype=dtype))  # it made one


LOST = constants("bf16_updates_lost")


def rounded(share: float, weights: str = "bfloat16", **facts) -> Run:
    """Updates that are this share of learning rate times gradient: three layers with gradients of length 1."""
    moved = {"update_norm": np.full((40, 3), 0.1 * share), "grad_norm_total": np.full(40, 3**0.5)}
    return hand_made(facts={"dtypes": {"weights": [weights]}} | facts, **moved)


@pytest.mark.parametrize(
    ("run", "seen"),
    [
        (rounded(LOST.APPLIED * 0.99), True),
        (rounded(LOST.APPLIED * 1.01), False),
        (rounded(0.5, "float16"), True),
        (rounded(0.5, "float32"), False),
        (rounded(0.5, clip=0.1, clip_by="norm"), False),  # clipped, not rounded
        (rounded(0.5, clip=10.0, clip_by="norm"), True),
        (rounded(5.0), False),  # momentum
        (rounded(0.0), False),  # no update at all: a step that is missing
    ],
)
def test_bf16_updates_lost(run, seen):
    assert bool(found("bf16_updates_lost", run)) is seen


# --- losses ---------------------------------------------------------------------------------------


def gives_out(largest: tuple, behind: tuple, nan_losses: int = 0, stage: str = "loss", place: str = "loss") -> Run:
    """A loss that is not finite; each of the two as the most that was fine, the least and the most that was not."""
    return spoiled(stage, place=place, largest=list(largest), behind=list(behind), nan_losses=nan_losses)


EXP, LOGS, SIGMOID = constants("naive_softmax"), constants("naive_log_softmax"), constants("log_of_zero")
FAR = (30.0, 0.0, 150.0)  # behind: also where the right class is the first


@pytest.mark.parametrize(
    ("run", "names"),
    [
        (gives_out((80, 95, 120), FAR, 1), ["naive_softmax"]),
        (gives_out((EXP.LIMIT * 0.99, 95, 120), FAR), ["naive_softmax"]),
        (gives_out((EXP.LIMIT * 1.01, 95, 120), FAR), []),
        (gives_out((80, 40, EXP.LIMIT * 1.01), FAR), ["naive_softmax"]),
        (gives_out((80, 40, EXP.LIMIT * 0.99), FAR), []),
        (gives_out((EXP.EARLIER * 1.01, 95, 120), FAR), ["naive_softmax"]),
        (gives_out((EXP.EARLIER * 0.99, 95, 120), FAR), []),
        (gives_out((80, 95, 120), (30, EXP.LIMIT * 0.99, 150)), ["naive_softmax"]),
        (gives_out((80, 95, 120), (30, EXP.LIMIT * 1.01, 150)), ["naive_log_softmax"]),
        (gives_out((200, 30, 90), (60, 95, 120)), ["naive_log_softmax"]),
        (gives_out((200, 30, 90), (60, 95, 120), stage="gradients", place="outputs"), ["naive_log_softmax"]),
        (gives_out((200, 30, 90), (60, 95, 120), stage="gradients", place="layer1.weight"), []),
        (gives_out((200, 30, 90), (60, 95, 120), nan_losses=1), []),
        (gives_out((200, 30, 90), (60, LOGS.LOST * 1.01, 120)), ["naive_log_softmax"]),
        (gives_out((200, 30, 90), (60, LOGS.LOST * 0.99, 120)), []),
        (gives_out((200, 30, 90), (LOGS.FINE * 0.99, 95, 120)), ["naive_log_softmax"]),
        (gives_out((200, 30, 90), (LOGS.FINE * 1.01, 95, 120)), []),
        (gives_out((15, 17, 18), (9, 0, 0), 2), ["log_of_zero"]),
        (gives_out((SIGMOID.FINE * 0.99, 18, 19), (9, 0, 0), 2), ["log_of_zero"]),
        (gives_out((SIGMOID.FINE * 1.01, 18, 19), (9, 0, 0), 2), []),
        (gives_out((15, SIGMOID.LOST * 1.01, 19), (9, 0, 0), 2), ["log_of_zero"]),
        (gives_out((15, SIGMOID.LOST * 0.99, 19), (9, 0, 0), 2), []),
        (gives_out((15, 17, 18), (9, SIGMOID.SAME * 0.99, 9), 2), ["log_of_zero"]),
        (gives_out((15, 17, 18), (9, SIGMOID.SAME * 1.01, 9), 2), []),
        (gives_out((15, 40, 120), (9, 0, 150), 9), ["log_of_zero"]),  # raw inputs: many are far beyond 16.6
        (gives_out((None, 95, 120), (None, 0, 150), 9), []),  # nothing is fine: nobody knows from where on
    ],
)
def test_a_loss_is_told_by_the_outputs_from_which_on_it_fails(run, names):
    assert [each.name for each in diagnose(run) if each.name != "unsure"] == names


# --- data and roots -------------------------------------------------------------------------------

HOLE, BLANK = constants("nan_in_data"), constants("zero_by_zero")
ONE = {"place": "batch", "samples": [7], "count": 1}


@pytest.mark.parametrize(
    ("run", "names"),
    [
        (spoiled("inputs", **ONE, share=1 / 784), ["nan_in_data"]),
        (spoiled("inputs", **ONE, share=HOLE.WHOLE * 0.99), ["nan_in_data"]),
        (spoiled("inputs", **ONE, share=HOLE.WHOLE * 1.005), ["zero_by_zero"]),
        (spoiled("activations", **ONE, share=1.0, spread=0.0), ["zero_by_zero"]),
        (spoiled("activations", **ONE, share=1.0, spread=BLANK.CONSTANT * 0.99), ["zero_by_zero"]),
        (spoiled("activations", **ONE, share=1.0, spread=BLANK.CONSTANT * 1.01), []),
        (spoiled("activations", **ONE, share=1.0), []),
        (spoiled("activations", **ONE, share=BLANK.WHOLE * 1.005, spread=0.0), ["zero_by_zero"]),
        (spoiled("activations", **ONE, share=BLANK.WHOLE * 0.99, spread=0.0), []),
        (spoiled("loss", **ONE, share=1.0, spread=0.0), []),
    ],
)
def test_one_missing_pixel_and_one_blank_image(run, names):
    assert [each.name for each in diagnose(run) if each.name != "unsure"] == names


ROOT = constants("sqrt_at_zero")
APART = {"grad_mean": np.where(np.arange(4) == 1, np.nan, 0.1) * np.ones((40, 4))}  # one of four parameters is NaN


@pytest.mark.parametrize(
    ("run", "seen"),
    [
        (spoiled("gradients", traces=APART, weight=0.0), True),
        (spoiled("gradients", traces=APART, weight=ROOT.ZERO * 0.99), True),
        (spoiled("gradients", traces=APART, weight=ROOT.ZERO * 1.01), False),
        (spoiled("gradients", traces=APART, weight=0.0, nan=9), False),  # one of them is infinite
        (
            spoiled("gradients", traces={"grad_mean": np.full((40, 4), np.nan)}, weight=1.0),
            True,
        ),  # of a term of the loss
        (spoiled("gradients", traces=APART | {"loss": after(3, math.nan)}, weight=0.0), False),
        (spoiled("loss", traces=APART, weight=0.0), False),
    ],
)
def test_sqrt_at_zero(run, seen):
    assert bool(found("sqrt_at_zero", run)) is seen


def test_in_place_edit_reads_the_error():
    words = (
        "one of the variables needed for gradient computation has been modified by an inplace operation: [784]; hint"
    )
    error = {"kind": "RuntimeError", "message": words, "step": 2}
    evidence = found("in_place_edit", hand_made(facts={"error": error}))
    assert evidence.onset == 2 and "hint" not in evidence.seen
    other = error | {"message": "mat1 and mat2 shapes cannot be multiplied (128x784 and 10x10)"}
    assert found("in_place_edit", hand_made(facts={"error": other})) is None


# --- what the signatures read beside the traces ---------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "weights", "outputs"),
    [("fp32", "float32", "float32"), ("fp16", "float32", "float16"), ("bf16_pure", "bfloat16", "bfloat16")],
)
def test_a_run_notes_its_formats(precision, weights, outputs):
    run = trained(tiny(precision=precision, optimizer="adam", steps=2))
    assert {name: run.facts["dtypes"][name] for name in ("weights", "outputs", "state")} == {
        "weights": [weights],
        "outputs": [outputs],
        "state": [weights],
    }


def test_plain_sgd_remembers_nothing():
    assert trained(tiny(momentum=0.0, steps=1)).facts["dtypes"]["state"] == []
