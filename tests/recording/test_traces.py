"""The healthy ranges are true: healthy runs keep them, and sick runs leave them."""

import re

import numpy as np
import pytest
from helpers import hand_made, tiny, tiny_gpt, trained
from played import MODES, played

from labkit.diagnosis import look_alikes
from labkit.drawing import plots
from labkit.recording import logs
from labkit.recording.run import Run, RunError
from labkit.recording.traces import AXES, EVALUATION, RANGES, STEP, TRACES

NETS = {
    "mlp": {"depth": 3},
    "convnet": {"model": "convnet", "width": 4, "depth": 3},
    "rnn": {"model": "rnn", "width": 8},
    "vit": {"model": "vit", "width": 8},
}
COMPUTED = {"grad_ratio", "gap", "loss_variance", "clipped"}  # from recorded traces
OF_HEADS = {"attention_entropy", "attention_logit"}
OF_TOKENS = {
    "leak_changed", "leak_cut", "leak_changed_by_position", "leak_cut_by_position", "position_signal", "own_token",
    "shift_loss", "position_loss", "word_loss", "log_z", "cache_difference",
    "cached_position_signal", "cached_ahead",
    "val_nats", "val_legible", "val_surprise", "val_stopped",
}  # fmt: skip
OF_IMAGES = {"probe_accuracy", "nonlinearity", "label_entropy"}  # one label for each sample, inputs that can be mixed
MISSING = {"vit": OF_TOKENS, "gpt": OF_IMAGES}


def of_net(kind: str) -> Run:
    """Six steps with three evaluations: no number of rows can be taken for the other."""
    return trained(tiny_gpt(evaluate_every=3) if kind == "gpt" else tiny(evaluate_every=3, **NETS[kind]))


@pytest.mark.parametrize("kind", [*NETS, "gpt"])
def test_the_table_has_every_recorded_trace_with_its_rows_and_columns(kind):
    run = of_net(kind)
    assert len({len(run), len(run["val_step"])}) == 2
    assert set(run.traces) == set(TRACES) - COMPUTED - MISSING.get(kind, OF_HEADS | OF_TOKENS)
    for name, values in run.traces.items():
        known = TRACES[name]
        assert len(values) == len(run[known.rows]), name
        columns = (len(getattr(run, known.axis)),) if known.axis else ()
        assert values.shape[1 : None if known.inner is None else 1 + len(columns)] == columns, name
        assert values.ndim == 1 + len(columns) + (known.inner is not None), name
        assert len(run.labels_of(name)) == (columns or (0,))[0], name


def test_computed_traces_have_the_rows_that_the_table_says():
    run = of_net("mlp")
    assert TRACES["gap"].rows == EVALUATION and len(run.gap) == len(run.steps_of("gap"))
    assert TRACES["clipped"].rows == STEP and len(run.clipped) == len(run.steps_of("clipped"))
    assert TRACES["grad_ratio"].rows == STEP == TRACES["loss_variance"].rows


@pytest.mark.parametrize("name", TRACES)
def test_an_entry_of_the_table_is_labelled_and_refers_to_what_a_run_has(name):
    each = TRACES[name]
    assert each.name == name and each.words and not each.words.endswith(".")
    assert each.axis in (None, *AXES) and each.rows in (STEP, EVALUATION) and each.unit in ("", "share", "nats")
    assert not re.search(r"\b(spread|answers?|rate of)\b", each.words)


def test_labels_are_told_apart():
    assert len({each.words for each in TRACES.values()}) == len(TRACES)


@pytest.mark.parametrize(("name", "steps", "rows", "expected"), [
    ("noise_scale", 40, 40, "step"),
    ("noise_scale", 40, 5, "val_step"),
    ("noise_scale", 5, 5, "step"),  # as many steps as evaluations: nobody can tell
    ("val_auc", 5, 5, "val_step"),  # but what was given to `validate` is known by its name
    ("probe_auc", 5, 5, "val_step"),
])  # fmt: skip
def test_a_trace_that_somebody_else_added_is_placed_by_its_rows_or_its_name(name, steps, rows, expected):
    run = hand_made(steps=steps, **{name: np.linspace(1, 2, rows)})
    np.testing.assert_array_equal(run.steps_of(name), run[expected])
    exported = [(step, value) for label, step, value in logs.scalars(run) if label == name]
    assert exported == list(zip(run[expected].tolist(), np.linspace(1, 2, rows).tolist(), strict=True))
    ax = plots.compare(run, name)
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), run[expected])
    assert ax.get_ylabel() == name.replace("_", " ")


def test_columns_of_an_unknown_trace_are_numbered_and_those_of_a_known_one_named():
    run = hand_made(noise=np.ones((40, 2)))
    names = {name for name, _, _ in logs.scalars(run)}
    assert {"noise/0", "noise/1", *(f"grad_norm/{layer}" for layer in run.layers)} <= names
    assert run.labels_of("noise") == ()


def test_a_trace_with_rows_for_neither_says_how_many_were_expected():
    run = hand_made(noise=np.ones(7))
    with pytest.raises(RunError, match=r"'noise': expected 40 rows, one per step, or 5, one per evaluation, got 7"):
        run.steps_of("noise")


@pytest.mark.parametrize(("trace", "words"), [
    ("grad_norm_total", "0.05 to 30"), ("update_ratio", "0.001 to 0.2"), ("dead", "up to 40 %"), ("gap", "-0.1 to 0.5"),
])  # fmt: skip
def test_a_range_in_words_is_that_of_the_table(trace, words):
    assert TRACES[trace].usual == words


@pytest.mark.parametrize("each", RANGES, ids=lambda each: each.name)
def test_a_range_has_two_ends_and_words(each):
    assert each.low < each.high
    assert each.healthy and each.warning


def test_ranges_are_told_apart_by_words_and_name():
    assert len({each.words for each in RANGES}) == len({each.name for each in RANGES}) == len(RANGES) == 9


@pytest.mark.parametrize(
    "each", [each for each in RANGES if each.name in look_alikes.SERIES], ids=lambda each: each.name
)
@pytest.mark.parametrize("name", MODES)
def test_healthy_runs_keep_their_ranges(name, each):
    assert look_alikes.first_outside(played(name).healthy, each) is None


def test_some_sick_run_leaves_each_range():
    left = {each for row in look_alikes.lead_times([played(name) for name in MODES]) for each in row.instruments}
    assert left == {each.words for each in RANGES if each.name in look_alikes.SERIES}
