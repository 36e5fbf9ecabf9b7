"""Pictures show what the run recorded: the right numbers, told apart, the healthy band, the first NaN."""

import inspect
import itertools
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from helpers import ROOT, hand_made, tiny, tiny_gpt, trained
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from played import attentive, made_of, played, with_traces

from labkit.drawing import plots
from labkit.errors import RecipeError
from labkit.failures.catalogue import FAILURES
from labkit.recording.summaries import gradient_ratio, running_median, typical
from labkit.recording.traces import TRACES

ROLES = ["healthy", "sick", "cured"]


def _takes_a_thing(function) -> bool:
    return inspect.isfunction(function) and next(iter(inspect.signature(function).parameters), "") == "thing"


# Every drawing of the module, found by its first argument: a new one is tested by being there.
DRAWINGS = {
    name: function
    for name, function in vars(plots).items()
    if not name.startswith("_") and _takes_a_thing(function) and function.__module__ == plots.__name__
    if name not in ("origin", "side_by_side", "written")  # words in boxes, a whole figure, samples: tested below
}
OF_TOKENS = {"position_loss", "word_loss", "shift_loss"}  # what only language models record
ONE_RUN = {"gradient_norms", "gradient_heat", "attention_entropy", "activation_histograms"}


def draw(name: str, thing, **options) -> Axes:
    if name == "compare":
        return plots.compare(thing, "loss", **options)
    return DRAWINGS[name](thing, **options)


def things(name: str) -> dict:
    """What this drawing must take: a run, a study, several runs."""
    special = {"attention_entropy": attentive, "lowest_entropy": attentive} | dict.fromkeys(
        OF_TOKENS, lambda: trained(tiny_gpt())
    )
    run = special[name]() if name in special else played("learning_rate_too_low").sick
    study = played("learning_rate_too_high")
    if name in special:
        study = made_of("learning_rate_too_high", healthy=run, sick=run, cured=run)
    return {"run": run, "study": study, "runs": {"first": run, "second": study.healthy}}


def blank() -> Axes:
    return Figure(figsize=(3, 2), dpi=40).add_subplot()


def marks(ax: Axes) -> int:
    return len(ax.lines) + len(ax.patches) + len(ax.images) + len(ax.collections)


def thick(ax: Axes) -> dict[str, np.ndarray]:
    """Label -> the line's values."""
    return {line.get_label(): line.get_ydata() for line in ax.lines if not line.get_label().startswith("_")}


def bars(ax: Axes) -> dict[str, list[float]]:
    return {each.get_label(): [bar.get_height() for bar in each] for each in ax.containers}


def crosses(ax: Axes) -> list[float]:
    return [line.get_xdata()[0] for line in ax.lines if line.get_marker() == "X"]


def shown(values) -> np.ndarray:
    """What a log axis can show of these."""
    values = np.asarray(values, dtype=float)
    return np.where(np.isfinite(values) & (values > 0), values, np.nan)


# --- every drawing --------------------------------------------------------------------------------


def test_the_drawings_are_found():
    assert {"loss", "losses", "gap", "gradient_bars", "gradient_heat", "compare", "update_ratio"} <= DRAWINGS.keys()
    assert len(DRAWINGS) >= 16


@pytest.mark.parametrize("kind", ["run", "study", "runs"])
@pytest.mark.parametrize("name", DRAWINGS)
def test_each_takes_a_run_a_study_or_runs(name, kind):
    ax = draw(name, things(name)[kind], ax=blank())
    assert ax.get_title(loc="left") and ax.get_xlabel()
    assert marks(ax) > 0


@pytest.mark.parametrize("name", DRAWINGS)
def test_each_makes_its_own_figure_when_it_is_given_none(name):
    run = things(name)["run"]
    one, other = draw(name, run), draw(name, run)
    assert isinstance(one, Axes) and isinstance(one.figure, Figure)
    assert one.figure is not other.figure
    assert marks(one) == marks(other) > 0


@pytest.mark.parametrize("name", DRAWINGS)
def test_each_draws_on_the_axes_it_is_given(name):
    left, right = Figure().subplots(1, 2)
    assert draw(name, things(name)["study"], ax=right) is right
    assert marks(right) > 0
    assert marks(left) == 0


@pytest.mark.parametrize("name", sorted(DRAWINGS.keys() - ONE_RUN))
def test_a_study_is_three_labelled_runs_and_a_dictionary_keeps_its_labels(name):
    given = things(name)
    assert draw(name, given["study"]).get_legend_handles_labels()[1] == ROLES
    assert draw(name, given["runs"]).get_legend_handles_labels()[1] == ["first", "second"]


@pytest.mark.parametrize("values", [[0], [np.nan], [0, 1, np.nan, np.inf, 1e-30, 3e38, -np.inf, -1]], ids=str)
@pytest.mark.parametrize("name", DRAWINGS)
def test_whatever_was_recorded_is_drawn_without_a_warning(name, values):
    run = things(name)["run"]
    broken = {each: np.resize(values, run[each].shape) for each in run.traces.keys() - {"step", "val_step"}}
    shares = {each: np.resize(np.clip(values, 0, 1), run[each].shape) for each in ("dead", "val_accuracy", "histogram")}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw(name, with_traces(run, **broken | shares), ax=blank()).figure.canvas.draw()


@pytest.mark.parametrize("name", sorted(DRAWINGS.keys() - {"attention_entropy"} - OF_TOKENS))
def test_a_run_that_ended_as_nan_is_drawn_without_a_warning(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw(name, played("learning_rate_too_high"), ax=blank()).figure.canvas.draw()


def test_no_pyplot_so_that_no_global_state_is_touched():
    code = "import sys; import labkit.drawing.plots, labkit.drawing.page; print('matplotlib.pyplot' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert answer.stdout.strip() == "False", answer.stderr


# --- over time ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["loss", "losses"])
def test_the_loss_of_every_step_is_the_main_line_and_the_median_a_thin_one_with_a_name(name):
    run = played("too_few_samples").sick
    ax = draw(name, run)
    raw, middle = ax.lines[:2]
    np.testing.assert_array_equal(raw.get_xdata(), run["step"])
    np.testing.assert_allclose(raw.get_ydata(), run["loss"])
    np.testing.assert_allclose(middle.get_ydata(), running_median(run["loss"], plots.MEDIAN))
    assert middle.get_linewidth() <= raw.get_linewidth() and middle.get_color() != raw.get_color()
    assert "thin: median" in ax.get_title(loc="left") and f"median of {plots.MEDIAN} steps" in middle.get_label()


def test_a_spike_is_drawn_at_its_step_and_the_median_does_not_move():
    calm = np.linspace(1, 0.5, 100)
    spiked = calm.copy()
    spiked[50] = 1000
    raw, middle = plots.loss(hand_made(steps=100, loss=spiked)).lines
    assert np.nanargmax(raw.get_ydata()) == 50 and np.nanmax(raw.get_ydata()) == 1000
    assert np.nanmax(middle.get_ydata()) <= 1


def test_of_three_runs_and_of_short_ones_no_median_is_drawn():
    study = played("vanishing_gradients")
    assert len(plots.loss(study).lines) == 3 and "median" not in plots.loss(study).get_title(loc="left")
    assert len(plots.loss(hand_made(steps=2 * plots.MEDIAN - 1)).lines) == 1


def test_each_run_of_a_study_has_its_own_curve():
    study = played("vanishing_gradients")
    lines = thick(plots.loss(study))
    for role, run in study.runs.items():
        np.testing.assert_allclose(lines[role], run["loss"], err_msg=role)
    assert not np.allclose(lines["healthy"], lines["sick"])


def test_what_is_not_finite_is_a_hole_in_the_curve():
    run = hand_made(loss=np.r_[np.linspace(2, 1, 38), np.inf, np.nan])
    raw = plots.loss(run).lines[0].get_ydata()
    np.testing.assert_array_equal(raw, np.r_[np.linspace(2, 1, 38), np.nan, np.nan])


def test_validation_losses_are_dots_at_their_steps():
    run = played("too_few_samples").sick
    [dots] = [line for line in plots.losses(run).lines if line.get_linestyle() == "None"]
    assert dots.get_marker() == "o"
    np.testing.assert_array_equal(dots.get_xdata(), run["val_step"])
    np.testing.assert_allclose(dots.get_ydata(), run["val_loss"])


def test_a_run_without_validation_has_no_dots():
    run = trained(tiny(evaluate_every=0))
    assert len(plots.losses(run).lines) == 1


def test_validation_accuracy_over_the_steps_of_the_evaluations():
    run = played("too_few_samples").sick
    [line] = plots.validation(run).lines
    np.testing.assert_array_equal(line.get_xdata(), run["val_step"])
    np.testing.assert_allclose(line.get_ydata(), run["val_accuracy"])


def test_the_gap_is_shaded_between_training_and_validation():
    run = played("too_few_samples").sick
    ax = plots.gap(run)
    unseen, seen = ax.lines
    np.testing.assert_allclose(unseen.get_ydata(), run["val_loss"])
    np.testing.assert_allclose(seen.get_ydata(), run["probe_loss"])
    [shade] = ax.collections
    corners = {(step, round(value, 9)) for step, value in shade.get_paths()[0].vertices}
    for name in ("val_loss", "probe_loss"):
        edge = {(step, round(float(value), 9)) for step, value in zip(run["val_step"], run[name], strict=True)}
        assert edge <= corners, name
    assert ax.get_yscale() == "linear" and ax.get_ylim()[0] == 0


def test_gradient_norms_are_one_line_per_layer_of_the_sick_run():
    study = played("vanishing_gradients")
    ax = plots.gradient_norms(study)
    assert len(ax.lines) == len(study.sick.layers) == 10
    for index, line in enumerate(ax.lines):
        np.testing.assert_allclose(line.get_ydata(), study.sick["grad_norm"][:, index])
    assert list(thick(ax)) == [study.sick.layers[0], study.sick.layers[-1]]
    assert len({tuple(line.get_color()) for line in ax.lines}) == 10


def test_the_heat_map_is_the_logarithm_with_the_input_side_on_top():
    study = played("vanishing_gradients")
    ax = plots.gradient_heat(study)
    [image] = ax.images
    np.testing.assert_allclose(image.get_array(), np.log10(study.sick["grad_norm"]).T)
    assert [label.get_text() for label in ax.get_yticklabels()] == list(study.sick.layers)
    assert image.get_extent()[2] > image.get_extent()[3]  # y grows downwards: the first row is at the top


def test_ratios_norms_and_rates_are_those_of_the_run():
    study = played("learning_rate_too_high")
    readings = {
        plots.gradient_ratio_line: gradient_ratio,
        plots.update_ratio: lambda run: run["update_ratio"].max(axis=1),
        plots.weight_norms: lambda run: np.sqrt((run["weight_norm"] ** 2).sum(axis=1)),
        plots.learning_rate: lambda run: run["lr"],
    }
    for function, read in readings.items():
        lines = thick(function(study))
        for role, run in study.runs.items():
            np.testing.assert_allclose(lines[role], shown(read(run)), err_msg=f"{function.__name__}, {role}")


def test_the_largest_layer_and_the_norm_of_all_weights_by_hand():
    run = hand_made(steps=2, update_ratio=[[0.1, 0.3, 0.2], [0.5, 0.1, 0.1]], weight_norm=[[3, 4, 0], [2, 3, 6]])
    assert thick(plots.update_ratio(run))["run"].tolist() == [0.3, 0.5]
    assert thick(plots.weight_norms(run))["run"].tolist() == [5, 7]


def test_attention_entropy_is_one_line_per_head():
    run = attentive()
    ax = plots.attention_entropy(run)
    lines = thick(ax)
    assert list(lines) == list(run.heads) and len(run.heads) == 4
    for index, head in enumerate(run.heads):
        np.testing.assert_allclose(lines[head], run["attention_entropy"][:, index])
    assert ax.get_ylim()[0] == 0


def test_compare_shows_the_largest_layer_and_ignores_what_is_not_finite():
    run = hand_made(steps=3, grad_norm=[[1, 5, 2], [np.nan, 3, 4], [np.nan, np.inf, np.nan]])
    ax = plots.compare({"mine": run}, "grad_norm")
    np.testing.assert_array_equal(thick(ax)["mine"], [5, 4, np.nan])
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), run["step"])


def test_compare_knows_which_traces_follow_the_evaluations():
    run = hand_made(steps=40)
    np.testing.assert_array_equal(plots.compare(run, "dead").lines[0].get_xdata(), run["val_step"])
    as_many = hand_made(steps=5)  # five steps and five evaluations
    assert len(as_many["val_step"]) == len(as_many["step"])
    for name in ("dead", "val_loss", "probe_loss"):
        np.testing.assert_array_equal(plots.compare(as_many, name).lines[0].get_xdata(), as_many["val_step"])
    np.testing.assert_array_equal(plots.compare(as_many, "loss").lines[0].get_xdata(), as_many["step"])


@pytest.mark.parametrize("model", ["mlp", "vit"])
def test_compare_takes_every_trace_of_a_run(model):
    run = trained(tiny(evaluate_every=2)) if model == "mlp" else attentive()
    assert len(run["val_step"]) != len(run)
    for name in run.traces:
        assert len(thick(plots.compare(run, name, ax=blank()))["run"]) == len(run[name])


def test_compare_says_which_traces_there_are():
    with pytest.raises(KeyError, match=r"no trace 'los'; it has .*loss"):
        plots.compare(hand_made(), "los")


# --- marks and bands ------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [plots.loss, plots.losses, plots.validation, plots.gradient_norms])
def test_the_first_nonfinite_step_is_marked_where_it_is(function):
    sick = played("learning_rate_too_high").sick
    step = sick.facts["first_nonfinite"]["step"]
    assert step > 0  # else any mark at the left edge would do
    ax = function(sick)
    assert crosses(ax) == [step]
    assert f"NaN at step {step}" in [text.get_text() for text in ax.texts]
    assert crosses(function(played("learning_rate_too_high").healthy)) == []


def test_the_mark_stays_in_sight_where_the_loss_has_gone():
    ax = plots.losses(played("fp16_overflow"))
    [cross] = [line for line in ax.lines if line.get_marker() == "X"]
    ax.figure.canvas.draw()
    x, y = ax.transAxes.inverted().transform(cross.get_transform().transform(cross.get_xydata()[0]))
    assert 0 <= x <= 1 and 0 <= y <= 1


@pytest.mark.parametrize(
    ("function", "trace"),
    [
        (plots.update_ratio, "update_ratio"),
        (plots.gradient_ratio_line, "grad_ratio"),
        (plots.dead_units, "dead"),
        (plots.gap_line, "gap"),
    ],
)
def test_the_healthy_band_spans_its_range(function, trace):
    ax = function(hand_made())
    low, high = TRACES[trace].low, TRACES[trace].high
    bands = [shape for shape in ax.patches if isinstance(shape, Rectangle) and shape.get_height() == high - low]
    assert len(bands) == 1
    [[left, bottom], [right, top]] = bands[0].get_extents().get_points()
    edges = ax.transData.transform([(0, low), (0, high)])[:, 1]
    assert (bottom, top) == pytest.approx(tuple(edges))
    assert (left, right) == pytest.approx((ax.bbox.x0, ax.bbox.x1))  # whatever the steps are
    drawn = ax.lines or list(ax.containers[0])
    assert bands[0].get_zorder() < min(mark.get_zorder() for mark in drawn)


def test_roles_differ_without_colour():
    strokes = {(str(style["linestyle"]), style["linewidth"]) for style in plots.ROLES.values()}
    assert len(strokes) == len(plots.ROLES) == 3
    assert len({style["marker"] for style in plots.ROLES.values()}) == 3


def test_ticks_are_short():
    write = plots.loss(hand_made()).yaxis.get_major_formatter()
    assert [write(value) for value in (0.01, 20, 1e-5, 2e-5, 1e30)] == [
        "0.01", "20", "$10^{-5}$", "$2\\!\\times\\!10^{-5}$", "$10^{30}$",
    ]  # fmt: skip


# --- per layer ------------------------------------------------------------------------------------


def test_bars_are_the_typical_gradient_of_each_layer():
    study = played("vanishing_gradients")
    drawn = bars(plots.gradient_bars(study))
    assert list(drawn) == ROLES
    for role, run in study.runs.items():
        np.testing.assert_allclose(drawn[role], typical(run["grad_norm"]), err_msg=role)


def test_bars_by_hand_stand_side_by_side():
    run = hand_made(steps=3, grad_norm=[[1, 0, np.nan], [3, 0, 8], [2, 0, 6]])
    ax = plots.gradient_bars({"one": run, "other": run})
    assert bars(ax)["one"] == pytest.approx([2, np.nan, 7], nan_ok=True)
    zeros = [text.xy[0] for text in ax.texts if text.get_text() == "0"]  # a bar of 0 cannot be drawn on a log axis
    assert zeros == pytest.approx([1.8, 2.2])
    edges = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for each in ax.containers for bar in each)
    assert len(edges) == 6
    assert all(before[1] <= after[0] + 1e-9 for before, after in itertools.pairwise(edges))
    for number, (one, other) in enumerate(zip(*ax.containers, strict=True), start=1):
        assert (one.get_x() + other.get_x() + other.get_width()) / 2 == pytest.approx(number)


def test_dead_units_are_those_of_the_hidden_layers_at_the_end():
    dead = np.zeros((5, 4))
    dead[-1] = [0.9, 0.25, 0.5, 0.8]  # inputs and outputs are no units
    assert bars(plots.dead_units(hand_made(dead=dead)))["run"] == [0.25, 0.5]


def test_activation_sizes_show_where_float16_ends():
    run = hand_made(histogram_range=[[[0, 1], [-5, 2], [0, 7], [-3, 4]], [[0, 1], [0, 90], [0, 90], [0, 90]]])
    ax = plots.activation_sizes(run)
    assert bars(ax)["run"] == [5, 7, 4]  # before training, whichever sign
    [limit] = ax.lines
    assert set(limit.get_ydata()) == {65_504}
    assert ax.get_ylim()[1] > 65_504 and "65,504" in ax.texts[0].get_text()


def test_activation_sizes_of_an_overflow_are_those_of_the_replay_in_float32():
    sick = played("fp16_overflow").sick
    sizes = sick.facts["first_nonfinite"]["float32_sizes"]
    heights = bars(plots.activation_sizes(sick))["run"]
    assert heights[:-1] == pytest.approx([sizes[name] for name in sick.activations[1:-1]])
    assert heights[-1] == pytest.approx(list(sizes.values())[-1])
    assert max(heights) > 65_504


def test_histograms_stand_one_above_the_other():
    run = played("learning_rate_too_low").sick
    ax = plots.activation_histograms(run)
    assert [label.get_text() for label in ax.get_yticklabels()] == list(run.activations)
    assert len(ax.patches) == len(run.activations)
    for index, shape in enumerate(ax.patches):
        counts, edges, base = shape.get_data()
        low, high = run["histogram_range"][-1, index]
        assert (edges[0], edges[-1], base) == (pytest.approx(low), pytest.approx(high), index)
        shares = run["histogram"][-1, index] / run["histogram"][-1, index].max()
        np.testing.assert_allclose(counts - index, 0.9 * shares, atol=1e-6)


def test_of_a_study_the_single_run_is_the_sick_one():
    study = played("learning_rate_too_low")
    for name in ("gradient_norms", "activation_histograms"):
        of_study, of_sick, of_healthy = (draw(name, each) for each in (study, study.sick, study.healthy))
        assert _coordinates(of_study) == _coordinates(of_sick) != _coordinates(of_healthy)


def _coordinates(ax: Axes) -> list:
    return [line.get_ydata().tolist() for line in ax.lines] + [shape.get_data().edges.tolist() for shape in ax.patches]


# --- whole pictures -------------------------------------------------------------------------------


def words_of(ax: Axes) -> str:
    return " ".join([ax.get_title(loc="left"), *(text.get_text() for text in ax.texts)])


def test_samples_are_drawn_as_one_picture_with_a_row_for_each_run():
    run = trained(tiny_gpt())
    alone, together = plots.written(run), plots.written({"first": run, "second": run})
    assert len(alone.images) == 1 and [each.get_text() for each in together.get_yticklabels()] == ["first", "second"]
    assert not plots.written(played("learning_rate_too_low").sick).images


def test_the_origin_of_a_nan_is_marked_on_the_way_from_inputs_to_gradients():
    bad = hand_made(facts={"first_nonfinite": {"step": 7, "stage": "loss", "place": "softmax"}})
    words = words_of(plots.origin(bad))
    assert "step 7" in words and "loss: softmax" in words and "gradients" in words
    assert "All values are finite" in words_of(plots.origin(hand_made()))
    assert "loss: softmax" in words_of(plots.origin({"healthy": hand_made(), "your run": bad}))


def test_an_error_is_shown_in_its_own_words():
    bad = hand_made(facts={"error": {"kind": "RuntimeError", "message": "no grad_fn. Hint: detach", "step": 3}})
    assert words_of(plots.origin(bad)) == "RuntimeError at step 3 no grad_fn"
    assert "RuntimeError at step 3" in words_of(plots.losses(bad))


def test_a_line_that_is_zero_throughout_is_said_in_words():
    assert "run: 0 at every step" in words_of(plots.update_ratio(hand_made(update_ratio=0)))
    assert "0 at every step" not in words_of(plots.update_ratio(hand_made()))


def test_any_trace_can_be_what_gives_a_failure_away():
    assert plots.instrument("dead") is plots.dead_units
    ax = plots.instrument("grad_norm_total")({"one": hand_made()})
    assert ax.get_ylabel() == "gradient norm"


@pytest.mark.parametrize("name", ["learning_rate_too_high", "vanishing_gradients"])
def test_the_picture_of_a_study_has_four_panels(name):
    study = played(name)
    figure = plots.study_picture(study, "A heading")
    assert figure.get_suptitle() == "A heading"
    assert plots.study_picture(study).get_suptitle() == study.mode.title
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    third = "Gradient ratio" if study.mode.shows == "grad_norm" else "Gradient per layer"  # never the same twice
    assert titles[1:3] == ["Validation", third]
    assert len(set(titles)) == 4
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ROLES


def test_the_given_figure_is_not_shared():
    study = played("learning_rate_too_low")
    assert plots.study_picture(study) is not plots.study_picture(study)


# --- saving ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_the_same_figure_gives_the_same_bytes(suffix, tmp_path):
    study = played("learning_rate_too_high")
    one, two = (plots.save(plots.losses(study).figure, tmp_path / f"{number}.{suffix}") for number in (1, 2))
    assert one.read_bytes() == two.read_bytes()
    assert one.stat().st_size > 5000
    other = plots.save(plots.losses(study.runs | {"sick": study.healthy}).figure, tmp_path / f"3.{suffix}")
    assert other.read_bytes() != one.read_bytes()
    assert b"CreationDate" not in one.read_bytes() and b"<dc:date>" not in one.read_bytes()


def test_the_suffix_may_be_in_capitals(tmp_path):
    assert plots.save(plots.loss(hand_made()).figure, tmp_path / "A.PNG").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["picture.txt", "picture", "picture.jpeg"])
def test_another_suffix_is_refused_and_named(name, tmp_path):
    with pytest.raises(RecipeError, match=rf"ends in \.png, \.pdf or \.svg, got '.*{name}'"):
        plots.save(plots.loss(hand_made()).figure, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_file_is_whole_or_not_there(error, tmp_path, monkeypatch):
    figure = plots.loss(hand_made()).figure
    before = plots.save(figure, tmp_path / "old.png").read_bytes()

    def broken(stream, **_):
        stream.write(b"half")
        raise error("in the middle")

    monkeypatch.setattr(figure, "savefig", broken)
    for name in ("old.png", "new.png"):
        with pytest.raises(error):
            plots.save(figure, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["old.png"]
    assert (tmp_path / "old.png").read_bytes() == before


def test_words_go_into_the_file(tmp_path):
    path = plots.save(
        plots.loss(hand_made()).figure, tmp_path / "a.svg", Title="A <title>", Description="What it shows"
    )
    assert "A &lt;title&gt;" in path.read_text() and "What it shows" in path.read_text()


def test_drawing_does_not_change_the_run():
    run = played("learning_rate_too_high").sick
    before = {name: values.copy() for name, values in run.traces.items()}
    for name in DRAWINGS.keys() - {"attention_entropy"} - OF_TOKENS:
        draw(name, run)
    for name, values in before.items():
        np.testing.assert_array_equal(values, run[name], err_msg=name)


@pytest.mark.parametrize("shows", sorted({mode.shows for mode in FAILURES.values()}))
def test_without_any_run_an_instrument_is_a_titled_axis_without_data(shows):
    ax = plots.new_axes()
    assert plots.instrument(shows)({}, ax=ax) is ax
    assert ax.get_title(loc="left") or not ax.axison
    assert not ax.containers and not ax.get_legend_handles_labels()[0]


def test_side_by_side_draws_each_instrument_once_with_one_legend():
    study = played("learning_rate_too_high")
    figure = plots.side_by_side(study, "loss", "update_ratio", "lr")
    assert [ax.get_title(loc="left").split(" (")[0] for ax in figure.axes] == [
        "Loss",
        "Update / weight",
        "Learning rate, as used",
    ]
    assert [bool(ax.get_legend()) for ax in figure.axes] == [True, False, False]
    assert not plots.side_by_side(study.sick, "loss").axes[0].get_legend()


# --- any numbers ----------------------------------------------------------------------------------


def test_subplots_have_the_look_of_what_is_drawn_here():
    figure, (left, right) = plots.subplots(1, 2, figsize=(9, 3), sharey=True)
    left.set(title="one")
    right.set_title("two", fontsize="large", loc="center")
    assert left.plot([1])[0].get_color() == plots.OTHERS[0] and right.bar([0], [1])[0].get_width()
    assert left.get_title(loc="left") == "one" and right.get_title() == "two"
    assert not any(ax.spines[side].get_visible() for ax in (left, right) for side in ("top", "right"))
    assert tuple(figure.get_size_inches()) == (9, 3) and left.get_ylim() == right.get_ylim()


def test_lines_of_any_numbers_have_a_style_by_name_and_holes_where_a_value_cannot_be_drawn():
    losses = [torch.tensor(2.0), 1.0, float("nan"), 0.0]
    ax = plots.lines({"healthy": losses, "mine": ([0, 10], [3.0, 1.0])}, label="loss", log=True)
    one, other = ax.lines
    np.testing.assert_array_equal(one.get_ydata(), [2, 1, np.nan, np.nan])
    assert list(other.get_xdata()) == [0, 10] and one.get_color() == plots.ROLES["healthy"]["color"]
    assert ax.get_yscale() == "log" and ax.get_ylabel() == "loss" and ax.get_xlabel() == "step"
    assert ax.get_legend_handles_labels()[1] == ["healthy", "mine"]


def test_lines_that_cannot_be_drawn_are_refused():
    with pytest.raises(RecipeError, match="nothing to draw"):
        plots.lines({})
    with pytest.raises(RecipeError, match="'a' has 1 places and 2 values"):
        plots.lines({"a": ([1], [1, 2])})


def test_bars_over_seeds_show_mean_deviation_and_every_value():
    ax = plots.bars({"none": [0.6, 0.8], "more data": 0.9}, label="accuracy", share=True, reference=("healthy", 0.95))
    assert [bar.get_width() for bar in ax.patches] == pytest.approx([0.7, 0.9])
    assert [text.get_text() for text in ax.get_yticklabels()] == ["none", "more data"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # the first on top
    dots = [list(line.get_xdata()) for line in ax.lines if line.get_marker() == "o"]
    assert dots == [[0.6, 0.8]]
    low, high = ax.collections[0].get_segments()[0][:, 0]
    assert (high - low) / 2 == pytest.approx(np.std([0.6, 0.8], ddof=1))
    assert "healthy" in [text.get_text() for text in ax.texts] and ax.get_xlim()[0] == 0


def test_given_errors_replace_the_deviation_and_an_axis_that_does_not_begin_at_0_has_points():
    ax = plots.bars({"a": 0.91, "b": 0.92}, errors={"b": 0.01}, zero=False)
    assert not ax.patches and ax.get_xlim()[0] > 0.8
    spans = [np.ptp(segment[:, 0]) for segment in ax.collections[0].get_segments()]
    assert spans == pytest.approx([0, 0.02])


@pytest.mark.parametrize("given", [{}, {"a": []}, {"a": [[1, 2]]}])
def test_bars_of_nothing_are_refused(given):
    with pytest.raises(RecipeError, match="a number, or a list of numbers"):
        plots.bars(given)
    with pytest.raises(RecipeError, match="errors are given for"):
        plots.bars({"a": 1}, errors={"b": 1})


def test_histograms_put_layers_below_each_other_and_write_the_share_of_zeros():
    values = np.random.default_rng(0).normal(size=1000)
    half = np.where(np.arange(1000) < 500, 0, values * 1e-4)
    groups = {"healthy": {"first": values, "last": values}, "sick": {"first": torch.tensor(half), "last": values}}
    ax = plots.histograms(groups, log=True, label="size")
    assert [text.get_text() for text in ax.get_yticklabels()] == ["last", "first"]  # from below
    assert [text.get_text() for text in ax.texts] == ["50% are 0"]
    assert ax.get_xscale() == "log" and ax.get_legend_handles_labels()[1] == ["healthy", "sick"]
    first = next(each for each in ax.patches if each.get_label() == "sick").get_data()
    assert first.edges[np.argmax(first.values)] < 1e-3  # the sick first layer's gradients are far smaller


def test_histograms_of_what_cannot_be_drawn_are_refused_and_of_one_value_are_not():
    for nothing in ({}, {"healthy": {}}, {"healthy": {"first": [np.nan]}}):
        with pytest.raises(RecipeError, match="nothing to draw"):
            plots.histograms(nothing)
    plots.histograms({"run": {"first": [0.0, 0.0]}}).figure.canvas.draw()
    with pytest.raises(RecipeError, match="nothing to draw"):
        plots.histograms({"run": {"first": [0.0]}}, log=True)


def test_images_are_a_grid_with_titles_each_in_its_own_range():
    pictures = torch.rand(5, 1, 4, 4) * 100
    figure = plots.images(pictures, ["a", "b", "c", "d", "$e"], columns=3)
    shown = [ax for ax in figure.axes if ax.images]
    assert [ax.get_title() for ax in shown] == ["a", "b", "c", "d", r"\$e"] and len(figure.axes) == 6
    assert all(ax.images[0].get_array().max() == pytest.approx(1) for ax in shown)
    assert plots.images(torch.zeros(2, 3, 4, 4)).axes[0].images[0].get_array().shape == (4, 4, 3)
    figure.canvas.draw()


def test_images_of_another_shape_or_with_too_few_titles_are_refused():
    with pytest.raises(RecipeError, match=r"shape \(n, 1 or 3, height, width\), got \(4, 4\)"):
        plots.images(np.zeros((4, 4)))
    with pytest.raises(RecipeError, match="one title for each of 2 images, got 1"):
        plots.images(np.zeros((2, 1, 4, 4)), ["a"])


def test_a_described_figure_has_its_words_as_alt_text():
    shown = plots.described(plots.bars({"a": 1}), 'The "a" bar is < 2.')
    assert repr(shown) == 'The "a" bar is < 2.'
    page = shown._repr_html_()
    assert 'alt="The &quot;a&quot; bar is &lt; 2."' in page and "data:image/png;base64," in page
    assert plots.described(shown.figure, "The same.").figure is shown.figure
    with pytest.raises(RecipeError, match="a sentence that says what is to be seen"):
        plots.described(shown.figure, " ")
