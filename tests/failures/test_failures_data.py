"""Wrong images, labels and splits: a control on either side of each threshold, and the instruments they need."""

import dataclasses

import numpy as np
import pytest
import torch
from helpers import hand_made, tiny, trained, watched
from torch import nn

import labkit
from labkit.failures.catalogue import FAILURES
from labkit.failures.data.augmented_validation import rotated_and_shifted
from labkit.failures.data.class_imbalance import balanced_batches, imbalanced
from labkit.failures.data.columns_differ_at_validation import learned_soon_and_in_vain
from labkit.failures.data.target_in_inputs import marked
from labkit.failures.signs import outlier_batches
from labkit.recording.sample_log import fingerprints, outlying, pixels
from labkit.recording.summaries import chance_loss, input_deviation, label_shares, late_loss
from labkit.training.data import load
from labkit.training.loop import train
from labkit.training.parts import shuffled

TEN = [0.1] * 10


def seen(name: str, run) -> bool:
    return FAILURES[name].signature(run) is not None


def with_inputs(deviation: float, steps: int = 40) -> np.ndarray:
    """Activation deviations of a healthy net whose inputs have this one."""
    return np.column_stack([np.full(steps, deviation), np.ones((steps, 3))])


# --- inputs ---------------------------------------------------------------------------------------


def raw_run(deviation=78.0, update=5.0, at=0, rise=1000.0):
    ratio = np.full((40, 3), 0.01)
    ratio[at, 1] = update
    loss = np.full(40, 20.0)
    loss[at + 3] = 20 * rise
    return hand_made(activation_std=with_inputs(deviation), update_ratio=ratio, loss=loss)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"deviation": 11}, True),
        ({"deviation": 9}, False),
        ({"update": 0.6}, True),
        ({"update": 0.4}, False),
        ({"at": 9}, True),
        ({"at": 10}, False),
        ({"rise": 3.5}, True),
        ({"rise": 2.5}, False),
    ],
)
def test_raw_inputs_count_when_they_throw_the_first_steps_off(changes, expected):
    assert seen("inputs_not_normalised", raw_run(**changes)) is expected


def test_raw_inputs_are_not_to_blame_in_a_net_with_batch_norm():
    run = raw_run()
    assert not seen("inputs_not_normalised", dataclasses.replace(run, facts=run.facts | {"batch_norms": ["norm1"]}))


def test_raw_inputs_that_train_well_are_left_alone():
    assert not seen("inputs_not_normalised", hand_made(activation_std=with_inputs(78.0)))


@pytest.mark.parametrize(
    ("deviation", "loss", "expected"),
    [(0, 2.3, True), (5e-8, 2.3, True), (2e-7, 2.3, False), (0, 2.15, True), (0, 2.0, False), (np.nan, 2.3, False)],
)
def test_blank_inputs(deviation, loss, expected):
    assert seen("blank_inputs", hand_made(activation_std=with_inputs(deviation), loss=loss)) is expected


@pytest.mark.parametrize(("loss", "expected"), [(1.0, True), (0.92, True), (0.88, False)])
def test_blank_inputs_where_no_constant_prediction_is_known(loss, expected):
    """In a regression without a probe: the first loss stands for it."""
    losses = np.r_[1.0, np.full(39, loss)]
    run = hand_made(activation_std=with_inputs(0), loss=losses, facts={"classes": 0, "label_shares": []})
    assert seen("blank_inputs", run) is expected


def faint_run(deviation=0.001, largest=0.004, left=0.9, facts=None):
    traces = {"activation_std": with_inputs(deviation), "input_max": np.full(40, largest)}
    return hand_made(facts=facts, probe_loss=np.linspace(2.3, 2.3 * left, 5), **traces)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"deviation": 0.019}, True),  # NARROW
        ({"deviation": 0.021}, False),
        ({"deviation": 1.1e-7}, True),
        ({"deviation": 0.9e-7}, False),  # blank
        ({"deviation": np.nan}, False),
        ({"largest": 0.049}, True),  # SMALL
        ({"largest": 0.051}, False),
        ({"largest": 1.0}, False),  # rare ones
        ({"left": 0.51}, True),  # LEFT
        ({"left": 0.49}, False),
        ({"facts": {"batch_norms": ["norm1"]}}, True),  # its running variance is no help, next to its epsilon
        ({"facts": {"batch_norms": ["norm1"]}, "left": 0.49}, False),  # and here it is
    ],
)
def test_inputs_scaled_twice(changes, expected):
    assert seen("inputs_scaled_twice", faint_run(**changes)) is expected


@pytest.mark.parametrize(("scale", "expected"), [(1 / 255, True), (1.0, False)])
def test_faint_inputs_are_found_in_a_foreign_regression(scale, expected):
    torch.manual_seed(0)
    x = torch.rand(256, 8)
    y = x.sum(1, keepdim=True) - 4
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    with labkit.watch(net, optimizer, strict=True) as record:
        for step in range(200):
            batch = slice(step % 4 * 64, step % 4 * 64 + 64)
            loss = nn.functional.mse_loss(net(scale * x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            record.step(loss, (scale * x[batch], y[batch]))
    assert ("inputs_scaled_twice" in [each.name for each in record.diagnose()]) is expected


# --- labels ---------------------------------------------------------------------------------------


def shuffled_run(
    steps=200,
    loss=2.28,
    accuracy=0.1,
    gradient=0.8,
    update=0.01,
    weights=1.0,
    inputs=1.0,
    dead=0.05,
    relabelled=0.0,
    shares=TEN,
):
    return hand_made(
        steps=steps,
        loss=loss if np.ndim(loss) else np.full(steps, loss),
        val_accuracy=accuracy,
        grad_norm_total=np.full(steps, gradient),
        weight_norm=np.column_stack([np.linspace(5, 5 * weights, steps), np.full((steps, 2), 5.0)]),
        update_ratio=np.column_stack([np.full(steps, update), np.full((steps, 2), 0.01)]),
        activation_std=with_inputs(inputs, steps),
        dead=np.full((5, 4), dead),
        facts={"relabelled": relabelled, "label_shares": shares},
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"steps": 110}, True),
        ({"steps": 90}, False),
        ({"loss": 2.16}, True),
        ({"loss": 2.12}, False),
        ({"loss": np.r_[3.3, np.full(199, 2.3)]}, True),
        ({"loss": np.r_[3.6, np.full(199, 2.3)]}, False),
        ({"accuracy": 0.19}, True),
        ({"accuracy": 0.21}, False),
        ({"weights": 0.26}, True),
        ({"weights": 0.24}, False),
        ({"gradient": 0.25}, True),
        ({"gradient": 0.15}, False),
        ({"update": 1.5e-3}, True),
        ({"update": 4e-4}, False),
        ({"inputs": 2e-4}, True),
        ({"inputs": 5e-5}, False),
        ({"dead": 0.84}, True),
        ({"dead": 0.86}, False),
        ({"relabelled": 0.05}, True),
        ({"relabelled": 0.2}, False),
        ({"shares": [0.45, 0.55 - 0.08, *[0.01] * 8]}, True),
        ({"shares": [0.55, *[0.05] * 9]}, False),
        ({"shares": None}, False),
    ],
)
def test_shuffled_labels_are_what_is_left_when_all_else_works(changes, expected):
    assert seen("labels_shuffled", shuffled_run(**changes)) is expected


@pytest.mark.parametrize(
    ("relabelled", "loss", "inputs", "expected"),
    [
        (0.9, 2.3, 1, True),
        (0.4, 2.3, 1, True),
        (0.2, 2.3, 1, False),
        (0.9, 2.05, 1, True),
        (0.9, 1.85, 1, False),
        (0.9, 2.3, 2e-4, True),
        (0.9, 2.3, 5e-5, False),
    ],
)
def test_detached_labels(relabelled, loss, inputs, expected):
    run = hand_made(loss=loss, activation_std=with_inputs(inputs), facts={"relabelled": relabelled})
    assert seen("labels_detached", run) is expected


@pytest.mark.parametrize(
    ("share", "accuracy", "batch", "expected"),
    [
        (1.0, 0.12, 128, True),
        (0.9995, 0.12, 128, True),
        (0.99, 0.12, 128, False),
        (1.0, 0.45, 128, True),
        (1.0, 0.55, 128, False),
        (1.0, 0.12, 3, True),
        (1.0, 0.12, 2, False),
    ],
)
def test_a_single_class(share, accuracy, batch, expected):
    facts = {"label_shares": [1 - share, 0, 0, share], "batch_length": batch}
    assert seen("single_class", hand_made(val_accuracy=accuracy, facts=facts)) is expected


def sorted_run(within=0.0, batch=128, shares=TEN, loss=0.1, probe=2.0):
    facts = {"label_shares": shares, "batch_length": batch}
    return hand_made(label_entropy=np.full(40, within), loss=loss, probe_loss=probe, facts=facts)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"within": 0.6}, True),
        ({"within": 0.8}, False),
        ({"batch": 16}, True),
        ({"batch": 15}, False),
        ({"shares": [0.3, 0.3, 0.3, 0.1]}, True),
        ({"shares": [0.7, 0.3]}, False),
        ({"probe": 0.25}, True),
        ({"probe": 0.15}, False),
        ({"loss": 3.0, "probe": 2.0}, True),
        ({"loss": 3.0, "probe": 1.9}, False),
    ],
)
def test_sorted_data(changes, expected):
    assert seen("sorted_data", sorted_run(**changes)) is expected


def uneven_run(most=0.46, least=0.01, batch=128, samples=10_000, loss=0.1, validated=1.0):
    facts = {"label_shares": [most, *[0.1] * 8, least], "batch_length": batch, "samples": samples}
    return hand_made(loss=loss, val_loss=validated, facts=facts)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"least": 0.03, "most": 0.37}, True),
        ({"least": 0.03, "most": 0.35}, False),
        ({"samples": 510}, True),
        ({"samples": 490}, False),
        ({"most": 0.998}, True),
        ({"most": 0.9995}, False),
        ({"batch": 13}, True),
        ({"batch": 12}, False),
        ({"loss": 1.0, "validated": 2.05}, True),
        ({"loss": 1.0, "validated": 1.95}, False),
    ],
)
def test_class_imbalance(changes, expected):
    assert seen("class_imbalance", uneven_run(**changes)) is expected


# --- splits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "deviation", "expected"), [(0.02, 1, True), (0.005, 1, False), (1, 0, False)])
def test_leakage(share, deviation, expected):
    run = hand_made(val_input_std=np.full(5, deviation), facts={"val_trained_on": share})
    assert seen("leakage", run) is expected


@pytest.mark.parametrize(("by_chance", "expected"), [(0.4, True), (0.595, False), (1.0, False)])
def test_equal_samples_by_chance_are_no_leakage(by_chance, expected):
    facts = {"val_trained_on": 0.6, "val_trained_on_by_chance": by_chance}
    assert seen("leakage", hand_made(val_input_std=np.ones(5), facts=facts)) is expected


@pytest.mark.parametrize(
    ("changed", "accuracy", "expected"), [(0.6, 0.5, True), (0.4, 0.5, False), (1, 0.83, True), (1, 0.87, False)]
)
def test_augmented_validation(changed, accuracy, expected):
    run = hand_made(val_accuracy=accuracy, probe_accuracy=0.95, facts={"val_changed": changed})
    assert seen("augmented_validation", run) is expected


@pytest.mark.parametrize(
    ("trained", "validated", "loss", "expected"),
    [
        (1, 78, (4.5, 2), True),
        (1, 78, (3.5, 2), False),
        (1, 78, 9, True),
        (1, 1.6, 9, True),
        (1, 1.4, 9, False),
        (1.6, 1, 9, True),
        (1.4, 1, 9, False),
        (0, 1, 9, False),
        (1, 78, 0.9, True),
        (1, 78, 0.7, False),
        (1, np.nan, 9, False),
    ],
)
def test_validation_scaled_differently(trained, validated, loss, expected):
    traces = {"activation_std": with_inputs(trained), "val_input_std": np.full(5, validated)}
    loss, probe = loss if np.ndim(loss) else (loss, 0.2)
    run = hand_made(val_loss=loss, probe_loss=probe, **traces)
    assert seen("validation_scaled_differently", run) is expected


# --- corrupt inputs -------------------------------------------------------------------------------


def blown_run(share=0.01, gradient=100.0, aftermath=50.0, at=25, steps=40):
    outliers, norms, losses = np.zeros(steps), np.ones(steps), np.full(steps, 0.2)
    outliers[at], norms[at], losses[at + 1 : at + 2] = share, gradient, 0.2 * aftermath
    return hand_made(steps=steps, input_outliers=outliers, grad_norm_total=norms, loss=losses)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"corrupt_sample"}),
        ({"share": 0.45}, {"corrupt_sample"}),
        ({"share": 0.55}, {"corrupt_batch"}),
        ({"gradient": 11}, {"corrupt_sample"}),
        ({"gradient": 9}, set()),
        ({"share": 1, "gradient": 11}, {"corrupt_batch"}),
        ({"share": 1, "gradient": 9}, set()),
        ({"aftermath": 5.5}, {"corrupt_sample"}),
        ({"aftermath": 4.5}, set()),
        ({"share": 1, "aftermath": 5.5}, {"corrupt_batch"}),
        ({"share": 1, "aftermath": 4.5}, set()),
        ({"aftermath": np.nan}, {"corrupt_sample"}),
        ({"at": 10}, {"corrupt_sample"}),
        ({"at": 9}, set()),
        ({"at": 39}, set()),
    ],
)
def test_corrupt_inputs_are_told_apart_by_how_many_they_are(changes, expected):
    run = blown_run(**changes)
    assert {name for name in ("corrupt_sample", "corrupt_batch") if seen(name, run)} == expected


def test_a_corrupt_batch_is_named_by_its_number():
    evidence = FAILURES["corrupt_batch"].signature(blown_run(share=1.0, at=30))
    assert evidence.onset == 30 and evidence.place == "batch 30"


# --- any run --------------------------------------------------------------------------------------

MINE = [name for name, mode in FAILURES.items() if mode.topic == "data"]


@pytest.mark.parametrize("name", MINE)
@pytest.mark.filterwarnings("error")
def test_any_run_may_be_asked(name):
    short = trained(tiny(steps=1))
    nothing = {trace: np.full_like(values, np.nan, dtype=float) for trace, values in short.traces.items()}
    for values in (short.traces, nothing | {"val_step": short["val_step"]}):
        run = type(short)(values, short.layers, short.parameters, short.activations, facts=short.facts)
        assert FAILURES[name].signature(run) is None


# --- readings -------------------------------------------------------------------------------------


def test_readings_of_data():
    run = hand_made(steps=8, loss=[9, 9, 9, 9, 9, 9, np.nan, 2.0], facts={"label_shares": [0.5, 0.5], "classes": 3})
    assert late_loss(run) == 2 and chance_loss(run) == pytest.approx(np.log(3)) and input_deviation(run) == 1
    assert label_shares(run).tolist() == [0.5, 0.5, 0.0]
    unknown = hand_made(facts={"classes": None}, loss=np.nan)
    assert np.isnan(chance_loss(unknown)) and np.isnan(late_loss(unknown)) and not len(label_shares(unknown))


def test_a_blow_is_measured_against_the_steps_before():
    (blow,) = outlier_batches(blown_run(share=0.25, gradient=7, aftermath=3))
    assert (blow.step, blow.outliers) == (25, 0.25)
    assert (blow.gradient, blow.aftermath) == (pytest.approx(7), pytest.approx(3))


# --- instruments and parts ------------------------------------------------------------------------


def test_outliers_are_far_beyond_the_usual_sample():
    assert outlying(np.array([1, 1, 1, 9.9, 10.1, np.inf, np.nan])).tolist() == [0, 0, 0, 0, 1, 1, 0]
    assert outlying(np.array([np.nan])).tolist() == [0]


def one_of_four_at_step_2(split, recipe, generator):
    for step, (x, y) in enumerate(shuffled(split, recipe, generator)):
        factors = torch.ones(len(x), 1, 1, 1)
        factors[: len(x) // 4] = 50.0 if step == 2 else 1.0
        yield x * factors, y


def test_the_share_of_outliers_is_recorded_at_every_step():
    run = train(tiny(batches=one_of_four_at_step_2), progress=False)
    assert run["input_outliers"].tolist() == [0, 0, 0.25, 0, 0, 0]


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_fingerprints_tell_raw_images_apart_too(name):
    """Whole numbers have zeros in the lower half of their bits: of 2,000 validation images 58 looked trained on."""
    images = (load(name, part, inputs="raw").x[:10_000] for part in ("train", "val"))
    known, others = (fingerprints(pixels(x)).numpy() for x in images)
    assert len(np.unique(known)) > 9990 and not np.isin(others, known).any()


def big_at_step_20(split, recipe, generator):
    for step, (x, y) in enumerate(shuffled(split, recipe, generator)):
        yield (x * 1000 if step == 20 else x), y


def test_the_skipping_step_leaves_out_a_batch_with_an_extreme_gradient_and_no_other():
    weights = []
    recipe = tiny(steps=24, batches=big_at_step_20, step="skipping_step", lr=0.01)
    run, _ = watched(recipe, lambda training: weights.append(training.model[1].weight.detach().clone()))
    still = [step for step in range(1, 24) if torch.equal(weights[step], weights[step - 1])]
    assert still == [20] and run["grad_norm_total"][20] > 10 * np.median(run["grad_norm_total"])


def test_the_skipping_step_is_the_plain_one_where_nothing_is_extreme():
    runs = [train(tiny(step=step), progress=False) for step in ("plain_step", "skipping_step")]
    assert runs[0].facts["weights_sha256"] == runs[1].facts["weights_sha256"]


def test_the_imbalanced_data_set_and_its_balanced_batches():
    train_set = load("mnist", "train")
    split = train_set._replace(x=train_set.x[:10_000], y=train_set.y[:10_000])
    assert imbalanced(split).y.bincount().tolist() == [1000, 1000, *[20] * 8]
    drawn = balanced_batches(split, tiny(batch_size=2000), torch.Generator().manual_seed(0))
    assert next(drawn)[1].bincount(minlength=10).min() > 140


def test_rotated_images_differ_from_call_to_call_and_keep_their_scale():
    x = load("cifar10", "val").x[:64]
    first, second = rotated_and_shifted(x), rotated_and_shifted(x)
    assert not torch.equal(first, second) and first.shape == x.shape
    assert (first.amin((1, 2, 3)) >= x.amin((1, 2, 3)) - 1e-5).all()


# --- labels of the validation set -------------------------------------------------------------------


def judged(left=0.1, validated=4.0, accuracy=0.01, classes: int | None = 10, **facts):
    """Losses as shares of ln 10, the loss of a constant prediction."""
    losses = {"probe_loss": np.log(10) * np.linspace(1, left, 5), "val_loss": np.log(10) * np.linspace(1, validated, 5)}
    run = hand_made(val_accuracy=np.linspace(0.1, accuracy, 5), facts={"constant_loss": np.log(10), **facts}, **losses)
    kept = {name: value for name, value in run.facts.items() if name != "classes"}
    return dataclasses.replace(run, facts=kept | ({"classes": classes} if classes else {}))


@pytest.mark.parametrize(
    ("run", "named"),
    [
        (judged(), True),
        (judged(left=0.69), True),  # LEARNED
        (judged(left=0.71), False),
        (judged(validated=1.41), True),  # WRONG
        (judged(validated=1.39), False),
        (judged(accuracy=0.071), True),  # BELOW
        (judged(accuracy=0.073), False),
        (judged(accuracy=0.071, classes=None), True),  # tokens: by the entropy of their labels
        (judged(accuracy=0.073, classes=None), False),
        (judged(accuracy=0.35, classes=None, task="yes or no"), True),
        (judged(accuracy=0.37, classes=None, task="yes or no"), False),
    ],
)
def test_a_validation_accuracy_below_that_of_guessing(run, named):
    assert seen("labels_differ_at_validation", run) is named


def behind(gap=0.5, apart=0.0, left=0.2, lost=1.0, fall=0.0, deviation=1.0, first=40, **more):
    """A net that validates badly; losses as shares of that of a constant prediction, which is 1. 40 steps, all new."""
    validated = left + lost
    facts = {"constant_loss": 1.0, "fresh_steps": first}
    facts |= {"val_columns_apart": apart, "val_changed": 0.0, **more.pop("facts", {})}
    steps = np.array([0, 10, 40, 60, 80])
    return hand_made(
        80, facts=facts, val_step=steps, loss=np.full(80, 0.6), activation_std=with_inputs(1.0, 80),
        probe_loss=[1.0, 0.8, 0.6, 0.5, left], val_input_std=np.full(5, deviation), val_train_mode=np.zeros(5),
        val_loss=[validated * left ** -fall, 1.0, 0.6 + gap, 1.0, validated], **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("run", "named"),
    [
        (behind(), True),
        (behind(gap=0.21), True),  # FIRST
        (behind(gap=0.19), False),
        (behind(first=9), False),  # the gap at step 40 is not in the first pass
        (behind(gap=0.0, apart=0.21), True),  # APART
        (behind(gap=0.0, apart=0.19), False),
        (behind(left=0.69), True),  # LEARNED
        (behind(left=0.71), False),
        (behind(lost=0.51), True),  # LOST
        (behind(lost=0.49), False),
        (behind(fall=0.19), True),  # ALIKE
        (behind(fall=0.21), False),
        (behind(deviation=1.4), True),  # STRETCHED
        (behind(deviation=1.6), False),
        (behind(deviation=0.6), False),
        (behind(facts={"val_changed": 0.4}), True),  # CHANGED
        (behind(facts={"val_changed": 0.6}), False),
    ],
)
def test_validation_that_is_behind_before_anything_can_be_memorised(run, named):
    assert seen("columns_differ_at_validation", run) is named


def learned_in_vain(passes=5.9, left=0.5, validated=1.1):
    """A net that starts slowly, has learned much after some passes through 640 samples, and validates no better."""
    last = int(passes * 10)  # ten batches of 64 are a pass
    return hand_made(
        last, facts={"constant_loss": 1.0, "fresh_steps": 10, "batch_length": 64, "different_samples": 640},
        val_step=np.array([0, last]), probe_loss=[1.0, left], val_loss=[validated, validated],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("run", "named"),
    [
        (learned_in_vain(), True),
        (learned_in_vain(passes=6.1), False),  # PASSES: by then it may have memorised
        (learned_in_vain(left=0.59), True),  # SOON
        (learned_in_vain(left=0.61), False),
        (learned_in_vain(validated=0.99), False),
    ],
)
def test_what_is_learned_too_soon_to_be_memorised_should_help_in_validation(run, named):
    assert (learned_soon_and_in_vain(run) is not None) is named


@pytest.mark.parametrize(("kind", "share", "named"), [
    ("float32", 0.02, True), ("int64", 0.06, True), ("int64", 0.04, False),  # SHARED_TOKENS
])  # fmt: skip
def test_more_equal_sequences_of_tokens_than_images_are_no_leak(kind, share, named):
    facts = {"val_trained_on": share, "batch_length": 32, "dtypes": {"inputs": [kind]}}
    assert seen("leakage", hand_made(val_input_std=np.ones(5), facts=facts)) is named


def test_validation_in_train_mode_is_another_failure():
    run = behind()
    assert not seen(
        "columns_differ_at_validation", dataclasses.replace(run, traces=run.traces | {"val_train_mode": np.ones(5)})
    )


@pytest.mark.parametrize(("last", "named"), [(4, True), (3, False)])
def test_the_first_pass_has_some_steps(last, named):
    """SOME: the gap at the only evaluation in the first pass."""
    run = behind(first=last)
    steps = np.array([0, last, 41, 60, 80])
    validated = np.array([1.2, 1.4, 1.1, 1.0, 1.2])
    run = dataclasses.replace(run, traces=run.traces | {"val_step": steps, "val_loss": validated})
    assert seen("columns_differ_at_validation", run) is named


def test_only_recent_batches_are_compared_with_validation():
    """RECENT: the loss was high 10 steps before the evaluation, and is not any more."""
    run = behind()
    losses = np.where(np.arange(80) < 30, 5.0, 0.6)
    assert seen("columns_differ_at_validation", dataclasses.replace(run, traces=run.traces | {"loss": losses}))
    late = np.where(np.arange(80) < 36, 5.0, 0.6)
    assert not seen("columns_differ_at_validation", dataclasses.replace(run, traces=run.traces | {"loss": late}))


# --- targets among the inputs -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, False),
        ({"best_column": 0.99995}, True),
        ({"best_column": 0.9998}, False),
        ({"probe_tests": {"copied": 0.995}}, True),
        ({"probe_tests": {"copied": 0.985}}, False),
        ({"probe_tests": {"copied": 1.0, "asks_0": 0.1, "asks_1": 4.0}}, True),
        ({"probe_tests": {"copied": 1.0, "asks_0": 4.0, "asks_1": 0.1}}, False),  # the loss shifts them
        ({"probe_tests": {"copied": 0.1, "future": 0.011}}, True),
        ({"probe_tests": {"copied": 0.1, "future": 0.009}}, False),
    ],
)
def test_a_target_in_the_inputs_is_named_from_the_share_it_explains_or_the_tokens(facts, expected):
    assert seen("target_in_inputs", hand_made(facts=facts)) is expected


def test_a_mark_gives_away_the_class_and_only_where_it_is():
    x, y = torch.zeros(20, 1, 28, 28), torch.arange(20) % 10
    x[:, :, 14] = 3.0
    images = marked(x, y)
    assert torch.equal(images[:, :, 2:], x[:, :, 2:])
    assert images[:, 0, 0, :20].argmax(1).tolist() == [2 * kind for kind in y.tolist()]
