"""The loop: what it does to the net, what it leaves alone, how it ends, and that it always does the same."""

import itertools
import math
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import tiny, trained, watched
from torch import nn
from torch.nn.functional import cross_entropy

from labkit.diagnosis.diagnose import diagnose
from labkit.recording.recorder import FIRST_FULL, FULL_EVERY, PATIENCE
from labkit.recording.run import Run
from labkit.training import models, parts
from labkit.training.loop import Training, evaluation_steps, train, weights_checksum
from labkit.training.recipe import RecipeError
from labkit.training.state import pick_device, seeded

# --- instruments against snapshots of the weights -------------------------------------------------


def snapshot(training: Training) -> dict[str, torch.Tensor]:
    return {name: weight.detach().double().clone() for name, weight in training.model.named_parameters()}


def by_layer(tensors: dict[str, torch.Tensor], layers) -> list[float]:
    return [
        math.sqrt(
            sum(tensor.square().sum().item() for name, tensor in tensors.items() if name.rpartition(".")[0] == layer)
        )
        for layer in layers
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"momentum": 0.0},
        {"momentum": 0.9},
        {"optimizer": "adam", "lr": 0.01},
        {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1},
        {"precision": "half", "momentum": 0.9},
        {"precision": "fp16", "loss_scale": "dynamic"},
        {"model": "convnet", "width": 3, "normalisation": "batch"},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_weights_and_updates_are_those_of_snapshots_around_the_step(changes):
    recipe = tiny(depth=3, evaluate_every=0, **changes)
    states = [snapshot(Training(recipe))]
    run, _ = watched(recipe, lambda training: states.append(snapshot(training)))
    assert len(states) == len(run) + 1
    for step, (before, after) in enumerate(itertools.pairwise(states)):
        moved = by_layer({name: after[name] - before[name] for name in before}, run.layers)
        sizes = by_layer(before, run.layers)
        assert run["weight_norm"][step] == pytest.approx(sizes, rel=1e-5)
        assert run["update_norm"][step] == pytest.approx(moved, rel=1e-4)
        assert run["update_ratio"][step] == pytest.approx(np.array(moved) / sizes, rel=1e-4)
    assert (run["update_norm"] > 0).all()


def test_gradients_are_those_of_autograd_on_the_same_batch():
    recipe = tiny(depth=3, evaluate_every=0)
    run, training = trained(recipe), Training(recipe)
    x, y = next(parts.shuffled(training.data.train, recipe, torch.Generator().manual_seed(recipe.seed)))
    names, weights = zip(*training.model.named_parameters(), strict=True)
    loss = cross_entropy(training.model(x), y)
    gradients = dict(zip(names, torch.autograd.grad(loss, weights), strict=True))
    assert run["loss"][0] == pytest.approx(loss.item())
    assert run["grad_norm"][0] == pytest.approx(by_layer(gradients, run.layers), rel=1e-5)
    assert run["grad_max"][0] == pytest.approx([gradient.max().item() for gradient in gradients.values()], rel=1e-5)


@pytest.mark.parametrize("schedule", [schedule.__name__ for schedule in parts.SCHEDULES])
def test_the_learning_rate_noted_is_the_one_the_weights_felt(schedule):
    recipe = tiny(schedule=schedule, momentum=0.0, steps=12, samples=128, warmup=4, schedule_steps=9, evaluate_every=0)
    run = trained(recipe)
    assert run["lr"].tolist() == [recipe.schedule(step, recipe) for step in range(12)]
    assert run["update_norm"] == pytest.approx(run["lr"][:, None] * run["grad_norm"], rel=1e-3, abs=1e-6)


def total(norms: np.ndarray) -> np.ndarray:
    return np.sqrt((norms**2).sum(axis=1))


def test_clipping_by_norm_is_seen_before_and_felt_after():
    free = trained(tiny(momentum=0.0, evaluate_every=0))
    clip = float(np.median(free["grad_norm_total"]))
    run = trained(tiny(momentum=0.0, evaluate_every=0, clip=clip))
    assert run["grad_norm_total"][0] == free["grad_norm_total"][0]  # noted before clipping
    felt = np.minimum(run["grad_norm_total"], clip)
    assert total(run["update_norm"]) == pytest.approx(0.1 * felt, rel=1e-3)
    assert 0 < run.clipped.sum() < len(run)
    assert run.clipped.tolist() == (run["grad_norm_total"] > clip).tolist()


def test_clipping_by_value_bounds_every_entry():
    states = []
    recipe = tiny(momentum=0.0, evaluate_every=0, clip=1e-3, clip_by="value")
    run, _ = watched(recipe, lambda training: states.append(snapshot(training)))
    moved = torch.cat([(states[1][name] - states[0][name]).flatten() for name in states[0]]).abs()
    assert moved.max().item() == pytest.approx(0.1 * 1e-3, rel=1e-2)
    assert run["grad_max"].max() > 1e-3 and run.clipped.all()


def test_every_step_that_is_clipped_by_value_is_known():
    """Extremes of every sixteenth step would not tell: neighbours of a step that is clipped may not be."""
    clipped = []

    def noting_step(training, x, y):
        parts.plain_step(training, x, y)
        clipped.append(any(bool((weight.grad.abs() == 0.02).any()) for weight in training.weights()))

    recipe = tiny(steps=150, samples=500, width=16, batch_size=32, evaluate_every=0, clip=0.02, clip_by="value")
    run = trained(recipe.but(step=noting_step, momentum=0.9))
    assert run.clipped.tolist() == clipped
    assert any(clipped[step] != clipped[step - step % FULL_EVERY] for step in range(FIRST_FULL + FULL_EVERY, len(run)))


def times_ten_thousand(outputs, targets):
    return cross_entropy(outputs, targets) * 1e4


def test_a_dynamic_loss_scale_halves_until_the_gradients_fit():
    recipe = tiny(precision="fp16", loss_scale="dynamic", loss=times_ten_thousand, lr=1e-6, steps=20, evaluate_every=0)
    run = trained(recipe)
    skipped, scale = ~np.isfinite(run["grad_norm_total"]), run["loss_scale"]
    assert skipped[:4].all() and not skipped[-4:].any()
    assert scale[0] == 65536
    assert scale[1:].tolist() == np.where(skipped[:-1], scale[:-1] / 2, scale[:-1]).tolist()
    assert (run["update_norm"][skipped] == 0).all() and (run["update_norm"][~skipped] > 0).all()
    assert run.facts["first_nonfinite"] is None
    begins = np.flatnonzero(skipped & ~np.roll(skipped, 1))
    assert [event["step"] for event in run.events] == begins.tolist()
    assert {(event["kind"], event["stage"]) for event in run.events} == {("skipped", "gradients")}


def test_a_fixed_loss_scale_leaves_everything_in_true_units():
    plain, scaled = trained(tiny()), trained(tiny(loss_scale=1024.0))
    assert set(scaled["loss_scale"]) == {1024} and set(plain["loss_scale"]) == {1}
    assert plain.facts["weights_sha256"] == scaled.facts["weights_sha256"]  # a power of two is exact
    np.testing.assert_array_equal(plain["grad_norm"], scaled["grad_norm"])
    np.testing.assert_array_equal(plain["loss"], scaled["loss"])


def test_a_dynamic_loss_scale_leaves_everything_in_true_units():
    plain, scaled = trained(tiny()), trained(tiny(loss_scale="dynamic"))
    assert set(scaled["loss_scale"]) == {65536}
    for name in ("loss", "grad_norm", "grad_norm_total", "grad_max", "update_norm"):
        assert scaled[name] == pytest.approx(plain[name], rel=1e-3), name


def a_millionth(outputs, targets):
    return cross_entropy(outputs, targets) * 1e-7


def test_a_fixed_loss_scale_keeps_small_gradients_alive_in_half_precision():
    recipe = tiny(precision="fp16", loss=a_millionth, evaluate_every=0, steps=2)
    lost, kept = trained(recipe), trained(recipe.but(loss_scale=2.0**20))
    assert lost["grad_norm_total"][0] < 0.5 * kept["grad_norm_total"][0]
    truth = trained(recipe.but(precision="fp32"))["grad_norm_total"][0]
    assert kept["grad_norm_total"][0] == pytest.approx(truth, rel=0.01)


@pytest.mark.parametrize("batch_size", [8, 64])
def test_the_variance_of_the_batch_loss_is_that_of_the_samples_over_the_batch_size(batch_size):
    recipe = tiny(batch_size=batch_size, steps=300, samples=4000, lr=1e-12, momentum=0.0)  # the weights stay
    run = trained(recipe)
    law = run["sample_loss_variance"][-1] / batch_size
    assert run.batch_loss_variance(window=299)[-1] == pytest.approx(law, rel=0.5)  # 64 samples tell 0.3 of it


def test_a_transformer_shows_the_entropy_of_each_head():
    run = trained(tiny(model="vit", width=16, heads=2, depth=2, lr=0.01, steps=2, samples=64))
    assert run.heads == tuple(f"blocks.{block}.attention.weights.{head}" for block in (0, 1) for head in (0, 1))
    assert run["attention_entropy"].shape == (2, 4)
    assert ((run["attention_entropy"] > 0) & (run["attention_entropy"] <= math.log(16) + 1e-5)).all()


# --- the patient is left alone --------------------------------------------------------------------

NETS = {
    "mlp": {},
    "mlp with everything": {"depth": 4, "normalisation": "batch", "dropout": 0.3, "residual": True, "clip": 1.0},
    "convnet": {"model": "convnet", "depth": 3, "width": 3, "normalisation": "batch"},
    "rnn": {"model": "rnn", "activation": "tanh", "clip": 1.0},
    "vit": {"model": "vit", "depth": 1, "dropout": 0.1},
}


def ended(recipe, instruments: bool) -> tuple[Run, dict[str, torch.Tensor]]:
    training = Training(recipe)
    run = training.run(instruments=instruments, progress=False)
    assert all(module.training for module in training.model.modules())
    hooks = [module for module in training.model.modules() if module._forward_hooks or module._forward_pre_hooks]
    assert hooks == []
    return run, training.model.state_dict()


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("net", NETS)
def test_instruments_leave_the_weights_bit_identical(net, optimizer):
    recipe = tiny(optimizer=optimizer, lr=0.003, samples=128, evaluate_every=3, **NETS[net])
    (watched_run, seen), (bare_run, unseen) = ended(recipe, True), ended(recipe, False)
    assert watched_run.facts["weights_sha256"] == bare_run.facts["weights_sha256"]
    assert all(torch.equal(seen[name], unseen[name]) for name in seen)  # the buffers of batch norm too
    np.testing.assert_array_equal(watched_run["loss"], bare_run["loss"])
    np.testing.assert_array_equal(watched_run["val_loss"], bare_run["val_loss"])
    assert "grad_norm" in watched_run and "grad_norm" not in bare_run


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "fp16", "loss_scale": "dynamic"},
        {"precision": "bf16_pure"},
        {"augment": "affine"},
        {"lr": 1e6, "depth": 3, "dropout": 0.3, "normalisation": "batch"},  # the search for NaN must not disturb
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_instruments_leave_unusual_runs_bit_identical(changes):
    recipe = tiny(steps=12, **changes)
    (watched_run, seen), (bare_run, unseen) = ended(recipe, True), ended(recipe, False)
    assert len(watched_run) == len(bare_run)
    assert watched_run.facts["weights_sha256"] == bare_run.facts["weights_sha256"]
    assert all(torch.equal(seen[name], unseen[name]) or seen[name].isnan().any() for name in seen)


def test_the_loop_is_the_one_that_everybody_writes():
    """Without labkit's loop, the same seeds give the very same weights."""
    recipe = tiny(dropout=0.3, depth=3, momentum=0.9)
    with seeded(recipe.seed):
        data = recipe.data(recipe)
        model = models.mlp(recipe, data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    order = torch.randperm(256, generator=torch.Generator().manual_seed(recipe.seed))
    with seeded(recipe.seed):
        for batch in order.split(32)[: recipe.steps]:
            optimizer.zero_grad()
            cross_entropy(model(data.train.x[batch]), data.train.y[batch]).backward()
            optimizer.step()
    assert trained(recipe).facts["weights_sha256"] == weights_checksum(model)


def test_the_random_numbers_of_the_caller_are_left_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    train(tiny(dropout=0.5, augment="crop", label_noise=0.1), progress=False)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]


def test_a_seed_holds_inside_and_is_forgotten_outside():
    torch.manual_seed(5)
    outside = torch.rand(3)
    torch.manual_seed(5)
    with seeded(1):
        first = torch.rand(3)
    assert torch.equal(torch.rand(3), outside)
    with seeded(1):
        assert torch.equal(torch.rand(3), first)


# --- always the same ------------------------------------------------------------------------------


def test_the_same_recipe_gives_the_same_run_whatever_happened_before():
    recipe = tiny(dropout=0.3, augment="crop", label_noise=0.2)
    torch.manual_seed(1)
    one = train(recipe, progress=False)
    torch.manual_seed(2)
    other = train(recipe, progress=False)
    assert one.traces.keys() == other.traces.keys()
    for name in one.traces:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)
    assert one.facts["weights_sha256"] == other.facts["weights_sha256"]
    assert one.facts["top_eigenvalue"] == other.facts["top_eigenvalue"]


def test_another_seed_gives_another_run():
    one, other = trained(tiny()), trained(tiny(seed=1))
    assert one["weight_norm"][0].tolist() != other["weight_norm"][0].tolist()  # other weights
    assert one["activation_mean"][0, 0] != other["activation_mean"][0, 0]  # other batches
    assert one.facts["weights_sha256"] != other.facts["weights_sha256"]


# --- how it ends ----------------------------------------------------------------------------------


def test_ctrl_c_keeps_what_was_recorded():
    def interrupt(recorder):
        if recorder.steps == 4:
            raise KeyboardInterrupt

    run = train(tiny(), each_step=interrupt, progress=False)
    full = trained(tiny())
    assert len(run) == 4 and run.facts["stopped"] == "interrupted" and run.facts["planned_steps"] == 6
    for name in ("loss", "grad_norm", "update_norm", "activation_std"):
        np.testing.assert_allclose(run[name], full[name][:4], rtol=1e-6, err_msg=name)
    assert run["val_step"].tolist() == [0, 4]


def test_ctrl_c_before_the_first_step_leaves_an_empty_run():
    calls = []

    def evaluate(training, split):
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return parts.plain_evaluate(training, split)

    run = train(tiny(evaluate=evaluate), progress=False)
    assert len(run) == 0 and run.facts["stopped"] == "interrupted" and run["grad_norm"].shape == (0, 2)
    assert diagnose(run) == []


def test_other_errors_pass_through_and_leave_no_hook():
    def stumble(_):
        raise ZeroDivisionError

    training = Training(tiny())
    with pytest.raises(ZeroDivisionError):
        training.run(each_step=stumble, progress=False)
    assert not any(module._forward_hooks for module in training.model.modules())


def failing_evaluate(good: int):
    """An evaluation that fails after so many good ones."""
    calls = []

    def evaluate(training, split):
        calls.append(1)
        if len(calls) > good:
            raise ZeroDivisionError("no samples")
        return parts.plain_evaluate(training, split)

    return evaluate


@pytest.mark.parametrize(("good", "step"), [(0, 0), (1, 6)], ids=["first", "last"])
def test_an_error_in_a_validation_is_recorded_like_one_in_a_step(good, step):
    run = train(tiny(evaluate=failing_evaluate(good)), progress=False, errors="record")
    assert run.facts["error"] == {"kind": "ZeroDivisionError", "message": "no samples", "step": step}
    assert run.facts["stopped"] == "error" and len(run) == step
    assert "top_eigenvalue" not in run.facts
    with pytest.raises(ZeroDivisionError, match="no samples"):
        train(tiny(evaluate=failing_evaluate(good)), progress=False)


def test_of_an_error_in_a_step_and_one_in_the_validation_after_it_the_first_is_kept():
    def step(training, x, y):
        raise IndexError("in the step")

    run = train(tiny(step=step, evaluate=failing_evaluate(1)), progress=False, errors="record")
    assert run.facts["error"] == {"kind": "IndexError", "message": "in the step", "step": 0}


def test_ctrl_c_in_the_last_validation_keeps_the_run():
    calls = []

    def evaluate(training, split):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return parts.plain_evaluate(training, split)

    run = train(tiny(evaluate=evaluate), progress=False)
    assert len(run) == 6 and run.facts["stopped"] == "interrupted" and run["val_step"].tolist() == [0]


def test_training_stops_on_request():
    run = train(tiny(), each_step=lambda recorder: recorder.steps == 2, progress=False)
    assert len(run) == 2 and run.facts["stopped"] == "on request"
    assert run["val_step"].tolist() == [0, 2]


def test_a_run_to_the_end_was_not_stopped():
    assert trained(tiny()).facts["stopped"] is None and len(trained(tiny())) == 6


@pytest.mark.parametrize("instruments", [True, False])
def test_a_run_that_goes_non_finite_stops_after_a_few_steps(instruments):
    run = train(tiny(lr=1e12, depth=3, steps=60), instruments=instruments, progress=False)
    first = int(np.flatnonzero(~np.isfinite(run["loss"]))[0])
    assert 0 < first < 40
    assert len(run) == first + PATIENCE <= first + 10
    assert run.facts["stopped"] == "non-finite" and "top_eigenvalue" not in run.facts
    assert run.facts["first_nonfinite"]["step"] <= first
    assert "non-finite from step" in repr(run)


def test_an_overflow_in_a_recurrent_net_is_found_in_it():
    recipe = tiny(model="rnn", activation="relu", precision="fp16", inputs="raw", init="normal", init_scale=50.0)
    found = trained(recipe).facts["first_nonfinite"]
    assert (found["step"], found["stage"], found["place"]) == (0, "activations", "rnn")


# --- when it validates ----------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 5, 16, 60, 400, 5000])
def test_validations_are_dense_early_and_never_far_apart(steps):
    chosen = sorted(evaluation_steps(steps, None))
    assert chosen[: min(steps, 8)] == list(range(min(steps, 8)))[: len(chosen)] or steps < 32
    gaps = np.diff([*chosen, steps])
    assert chosen[0] == 0 and max(chosen) < steps
    assert gaps.max() <= max(1, steps // 16) and (np.diff(gaps[:-1]) >= 0).all()
    assert len(chosen) <= 60


def test_validations_come_as_often_as_asked():
    assert evaluation_steps(10, 4) == {0, 4, 8}
    assert evaluation_steps(10, 0) == frozenset()
    run = trained(tiny(evaluate_every=4))
    assert run["val_step"].tolist() == [0, 4, 6]  # and once at the end
    assert trained(tiny(evaluate_every=0)).accuracy is None


def test_the_overfitting_turn_falls_between_validations_early_on():
    assert set(range(9)) <= evaluation_steps(400, None)
    assert len(evaluation_steps(400, None) & set(range(20))) >= 12


# --- precisions, devices, parts -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "weights", "outputs"),
    [
        ("fp32", torch.float32, torch.float32),
        ("bf16", torch.float32, torch.bfloat16),
        ("fp16", torch.float32, torch.float16),
        ("half", torch.float16, torch.float16),
        ("bf16_pure", torch.bfloat16, torch.bfloat16),
    ],
)
def test_precisions_are_what_they_say(precision, weights, outputs):
    training = Training(tiny(precision=precision))
    run = training.run(progress=False)
    assert {weight.dtype for weight in training.model.parameters()} == {weights}
    assert training.forward(training.data.train.x[:2]).dtype == outputs
    assert np.isfinite(run["loss"]).all() and run["loss"][-1] < run["loss"][0]
    assert run["loss"] == pytest.approx(trained(tiny())["loss"], rel=0.02)


def test_a_device_that_is_not_there_is_said_to_be_missing():
    missing = "mps" if not torch.backends.mps.is_available() else "cuda"
    if missing == "cuda" and torch.cuda.is_available():
        pytest.skip("every device is on this machine")
    with pytest.raises(RecipeError, match=f"device: '{missing}' is not on this machine; use 'auto' or 'cpu'"):
        pick_device(missing)
    assert pick_device("cpu").type == "cpu"
    assert pick_device("auto").type in ("cpu", "cuda", "mps")


def forgetful_step(training, x, y):
    """Forgets zero_grad, as a code-bug failure mode would."""
    loss = training.loss(x, y)
    training.backward(loss)
    training.look(loss, x, y)
    training.update()


def test_a_step_of_ones_own_replaces_the_plain_one():
    plain = trained(tiny(momentum=0.0, lr=1e-12, evaluate_every=0))
    bug = trained(tiny(momentum=0.0, lr=1e-12, evaluate_every=0, step=forgetful_step))
    assert bug["grad_norm_total"][0] == plain["grad_norm_total"][0]
    assert bug["grad_norm_total"][5] > 3 * plain["grad_norm_total"][5]  # six batches pile up


class Odd(nn.Module):
    """A scalar parameter, a frozen one, and a layer that nobody calls."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(784, 10)
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.frozen = nn.Parameter(torch.ones(10), requires_grad=False)
        self.unused = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x.flatten(1)) * self.scale * self.frozen


def test_a_net_with_odd_parameters_trains():
    run = train(tiny(model=lambda recipe, data: Odd()), progress=False)
    assert run.facts["without_gradient"] == ["frozen", "unused.bias", "unused.weight"]
    assert math.isfinite(run.facts["top_eigenvalue"])
    assert run["update_norm"][:, run.layers.index("scale")].min() > 0
    assert run["update_norm"][:, run.layers.index("unused")].max() == 0


def test_half_precision_and_a_grad_scaler_do_not_go_together():
    with pytest.raises(RecipeError, match=r"loss_scale: 'dynamic' .*precision 'half'.*use precision 'fp16'"):
        Training(tiny(precision="half", loss_scale="dynamic"))


def test_facts_say_what_a_reader_needs():
    facts = trained(tiny(samples=20, clip=2.0)).facts
    expected = {"classes": 10, "samples": 20, "batch_size": 20, "clip": 2.0, "clip_by": "norm", "planned_steps": 6}
    assert expected.items() <= facts.items()
    assert (
        facts["torch"] == torch.__version__ and facts["device"] == "cpu" and facts["matrices"] == ["layer1", "layer2"]
    )
    assert len(facts["weights_sha256"]) == 64


def test_the_run_knows_its_recipe():
    assert trained(tiny()).recipe == tiny().summary()


def test_sharpness_is_measured_on_a_copy():
    training = Training(tiny(dropout=0.5))
    before = weights_checksum(training.model)
    found = training.sharpness()
    assert weights_checksum(training.model) == before and training.model.training
    assert found == training.sharpness()  # eval mode: dropout does not make it random
    assert found["top_eigenvalue"] > 0


def test_a_fingerprint_tells_one_bit():
    model = models.mlp(tiny(), SimpleNamespace(train=SimpleNamespace(x=torch.zeros(1, 1, 2, 2)), classes=3))
    before = weights_checksum(model)
    assert weights_checksum(model) == before
    with torch.no_grad():
        model.layer1.bias.view(torch.int32)[0] ^= 1
    assert weights_checksum(model) != before


def test_a_run_trains_with_one_thread_and_puts_the_number_back(monkeypatch):
    seen = []
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for asked in ("", "2"):
            monkeypatch.setenv("LABKIT_THREADS", asked) if asked else monkeypatch.delenv(
                "LABKIT_THREADS", raising=False
            )
            train(tiny(steps=1), each_step=lambda _: seen.append(torch.get_num_threads()), progress=False)
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 2]


@pytest.mark.parametrize("asked", ["0", "-1", "many"])
def test_a_number_of_threads_that_is_none_is_refused(monkeypatch, asked):
    monkeypatch.setenv("LABKIT_THREADS", asked)
    with pytest.raises(RecipeError, match=f"LABKIT_THREADS: expected a whole number at least 1, got {asked!r}"):
        train(tiny(steps=1), progress=False)


@pytest.mark.parametrize(("ending", "stopped"), [(KeyboardInterrupt, "interrupted"), (None, "on request")])
def test_an_error_of_the_last_validation_does_not_undo_how_a_run_was_stopped(ending, stopped):
    def evaluate(training, split):
        if training.recorder.steps:
            raise ValueError("bug in the validation")
        return {"loss": 1.0, "accuracy": 0.1}

    def each_step(recorder):
        if recorder.steps == 4 and ending:
            raise ending
        return recorder.steps == 4

    run = train(tiny(evaluate=evaluate), each_step=each_step, errors="record", progress=False)
    assert (run.facts["stopped"], len(run)) == (stopped, 4)
    assert run.facts["error"]["message"] == "bug in the validation"
