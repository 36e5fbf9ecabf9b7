"""The plain parts: losses, optimizers, schedules, batches, the step and the evaluation."""

import math
from types import SimpleNamespace

import pytest
import torch
from helpers import tiny, trained
from torch import nn

from labkit.training import parts
from labkit.training.data import Split
from labkit.training.loop import Training, train
from labkit.training.recipe import Recipe

# --- losses ---------------------------------------------------------------------------------------


def test_mean_squared_error_by_hand():
    outputs, targets = torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.5, 0.0]]), torch.tensor([0, 1])
    by_hand = (0 + 0 + 4 + 0 + 0.25 + 0) / 6
    assert parts.mean_squared_error(outputs, targets).item() == pytest.approx(by_hand)


def test_cross_entropy_by_hand():
    assert parts.cross_entropy(torch.zeros(3, 10), torch.tensor([1, 2, 3])).item() == pytest.approx(math.log(10))


# --- optimizers -----------------------------------------------------------------------------------


def one_weight(optimizer: str, gradients: list[float], **knobs) -> float:
    """Where a weight of 1 goes under these gradients."""
    weight = nn.Parameter(torch.ones(1))
    made = getattr(parts, optimizer)(nn.ParameterList([weight]), Recipe(**knobs))
    for gradient in gradients:
        weight.grad = torch.tensor([gradient])
        made.step()
    return weight.item()


def test_sgd_by_hand():
    assert one_weight("sgd", [2.0], lr=0.1, momentum=0.0) == pytest.approx(1 - 0.2)
    assert one_weight("sgd", [2.0, 2.0], lr=0.1, momentum=0.5) == pytest.approx(1 - 0.2 - 0.1 * (0.5 * 2 + 2))
    assert one_weight("sgd", [2.0], lr=0.1, momentum=0.0, weight_decay=0.5) == pytest.approx(1 - 0.1 * 2.5)


def test_adam_by_hand():
    assert one_weight("adam", [2.0], lr=0.1) == pytest.approx(1 - 0.1)  # the first step is the sign of the gradient
    assert one_weight("adam", [2.0], lr=0.1, adam_eps=2.0) == pytest.approx(1 - 0.1 * 2 / (2 + 2))


def test_weight_decay_is_inside_the_gradient_of_adam_and_outside_that_of_adamw():
    assert one_weight("adam", [2.0], lr=0.1, weight_decay=0.5) == pytest.approx(1 - 0.1)
    assert one_weight("adamw", [2.0], lr=0.1, weight_decay=0.5) == pytest.approx(1 - 0.1 - 0.1 * 0.5)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_fused_is_used_for_float32_and_gives_the_same_weights(optimizer):
    recipe = tiny(optimizer=optimizer, lr=0.01, weight_decay=0.01, momentum=0.9)
    fused, plain = Training(recipe), Training(recipe)
    plain.optimizer = getattr(torch.optim, {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}[optimizer])(
        plain.model.parameters(),
        lr=0.01,
        weight_decay=0.01,
        fused=False,
        foreach=False,
        **({"momentum": 0.9} if optimizer == "sgd" else {}),
    )
    assert fused.optimizer.defaults["fused"]
    for training in (fused, plain):
        training.run(progress=False)
    for one, other in zip(fused.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_skipped_first_step_leaves_no_momentum(optimizer):
    """Fused SGD would go on with whatever was in memory: torch 2.13, on a CPU and on a GPU."""
    for garbage in (math.nan, 1e20):
        rubbish = torch.full((1000,), garbage)
        del rubbish  # its memory is the next to be used
        weight = nn.Parameter(torch.ones(1000))
        made = getattr(parts, optimizer)(nn.ParameterList([weight]), Recipe(loss_scale="dynamic", lr=0.1))
        scaler = torch.amp.GradScaler("cpu")
        for factor in (math.inf, 1.0):
            made.zero_grad()
            scaler.scale(weight.sum() * factor).backward()
            scaler.unscale_(made)
            scaler.step(made)
            scaler.update()
        torch.testing.assert_close(weight.detach(), torch.full((1000,), 0.9), rtol=1e-2, atol=0)


@pytest.mark.parametrize("precision", ["half", "bf16_pure"])
@pytest.mark.parametrize(("optimizer", "lr"), [("sgd", 0.1), ("adam", 1e-3)])
def test_sixteen_bit_weights_really_learn(precision, optimizer, lr):
    eps = 1e-4  # 1e-8 is 0 in float16, and 0 / 0 is NaN
    recipe = tiny(precision=precision, optimizer=optimizer, lr=lr, adam_eps=eps, samples=1000, steps=60, width=32)
    training = Training(recipe)
    assert not training.optimizer.defaults["fused"]
    assert training.run(progress=False).accuracy > 0.6  # 11 % with a fused optimizer, see parts._fusible


# --- schedules ------------------------------------------------------------------------------------


def rates(schedule: str, steps: int, **knobs) -> list[float]:
    recipe = Recipe(schedule=schedule, lr=2.0, steps=100, **knobs)
    return [recipe.schedule(step, recipe) for step in range(steps)]


def test_constant_stays():
    assert set(rates("constant", 200)) == {2.0}


def test_cosine_falls_to_zero_and_stays_there():
    found = rates("cosine", 151)
    assert found[0] == 2 and found[50] == pytest.approx(1)
    assert found[25] == pytest.approx(1 + math.cos(math.pi / 4))
    assert found[:101] == sorted(found[:101], reverse=True)
    assert found[100:] == pytest.approx([0] * 51, abs=1e-15)


def test_cosine_unclamped_climbs_again():
    found = rates("cosine_unclamped", 201)
    assert found[:101] == rates("cosine", 101)
    assert found[100] == pytest.approx(0) and found[150] == pytest.approx(1) and found[200] == pytest.approx(2)


def test_a_schedule_may_be_told_a_wrong_length():
    found = rates("cosine", 100, schedule_steps=50)
    assert found[25] == pytest.approx(1) and found[50:] == pytest.approx([0] * 50)
    assert rates("cosine", 100, schedule_steps=200)[99] > 1
    assert rates("one_cycle", 60, schedule_steps=51)[15] == pytest.approx(2)
    assert rates("warmup_cosine", 60, schedule_steps=50, warmup=10)[50] == pytest.approx(0)


def test_warmup_rises_from_more_than_nothing_to_the_peak_and_then_falls():
    found = rates("warmup_cosine", 150, warmup=20)
    assert found[:20] == pytest.approx([2 * (step + 1) / 20 for step in range(20)])
    assert found[20] == 2 and found[60] == pytest.approx(1)
    assert found[100:] == pytest.approx([0] * 50)
    assert rates("warmup_cosine", 100, warmup=0) == pytest.approx(rates("cosine", 100))
    assert all(rate > 0 for rate in rates("warmup_cosine", 100, warmup=100))  # a warmup as long as the run


def test_one_cycle_peaks_at_the_rate_asked_for():
    found = rates("one_cycle", 101, schedule_steps=101)
    assert max(found) == found[30] == pytest.approx(2)
    assert found[0] == pytest.approx(2 / 25) and found[100] == pytest.approx(2 / 25 / 1e4)
    assert found[:31] == sorted(found[:31]) and found[30:] == sorted(found[30:], reverse=True)
    assert rates("one_cycle", 300, schedule_steps=101)[200] == pytest.approx(2 / 25 / 1e4)  # not up again


def test_one_cycle_is_that_of_torch():
    steps = 400
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1)
    theirs = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2.0, total_steps=steps, cycle_momentum=False)
    recipe = Recipe(schedule="one_cycle", lr=2.0, steps=steps)
    for step in range(steps):
        assert recipe.schedule(step, recipe) == pytest.approx(
            theirs.get_last_lr()[0], abs=0.02
        )  # peaks 0.7 steps apart
        optimizer.step()
        theirs.step()


@pytest.mark.parametrize(("samples", "batch_size"), [(1000, 100), (1000, 128), (60, 128)])
def test_exponential_falls_once_per_epoch(samples, batch_size):
    recipe = Recipe(schedule="exponential", lr=2.0, decay=0.5, samples=samples, batch_size=batch_size)
    images = Split(torch.zeros(samples, 1), torch.arange(samples))
    seen, epoch = 0, 0
    for step, (_, y) in zip(range(40), parts.shuffled(images, recipe, torch.Generator()), strict=False):
        assert recipe.schedule(step, recipe) == 2.0 * 0.5**epoch
        seen += len(y)
        if seen + min(batch_size, samples) > samples:  # no whole batch left
            seen, epoch = 0, epoch + 1


# --- batches --------------------------------------------------------------------------------------


def numbered(count: int) -> Split:
    return Split(torch.arange(count).float().view(-1, 1, 1, 1).expand(-1, 1, 4, 4), torch.arange(count))


def dealt(count: int, size: int, batches: int, seed: int = 0, **knobs) -> list[torch.Tensor]:
    stream = parts.shuffled(numbered(count), Recipe(batch_size=size, **knobs), torch.Generator().manual_seed(seed))
    return [y for (x, y), _ in zip(stream, range(batches), strict=False) if torch.equal(x[:, 0, 0, 0], y.float())]


def test_an_epoch_shows_every_image_once_in_whole_batches():
    batches = dealt(100, 30, 6)
    assert [len(batch) for batch in batches] == [30] * 6
    first, second = torch.cat(batches[:3]), torch.cat(batches[3:])
    assert len(first.unique()) == len(second.unique()) == 90
    assert not torch.equal(first, second)


def test_batches_larger_than_the_set_are_the_set():
    assert [len(batch.unique()) for batch in dealt(20, 128, 3)] == [20, 20, 20]


def test_the_order_depends_on_the_generator_alone():
    state = torch.get_rng_state()
    assert torch.equal(torch.cat(dealt(100, 10, 5)), torch.cat(dealt(100, 10, 5)))
    assert not torch.equal(torch.cat(dealt(100, 10, 5)), torch.cat(dealt(100, 10, 5, seed=1)))
    assert torch.equal(torch.get_rng_state(), state)


def test_batches_are_augmented_where_the_recipe_asks():
    images = Split(torch.rand(8, 1, 28, 28), torch.arange(8))
    plain, changed = (
        next(parts.shuffled(images, Recipe(augment=name), torch.Generator().manual_seed(0)))
        for name in ("none", "affine")
    )
    assert torch.equal(plain[1], changed[1])
    assert plain[0].shape == changed[0].shape and not torch.equal(plain[0], changed[0])
    assert torch.equal(images.x.index_select(0, plain[1]), plain[0])


# --- the step and the evaluation ------------------------------------------------------------------


class Calls(list):
    """Stands in for a training, and notes in which order it is used."""

    def __getattr__(self, name):
        if name == "optimizer":
            return self
        return lambda *arguments: self.append(name) or f"result of {name}"


def test_a_plain_step_is_in_the_order_of_every_healthy_loop():
    calls = Calls()
    parts.plain_step(calls, None, None)
    assert calls == ["zero_grad", "loss", "backward", "look", "clip", "update"]


def test_evaluation_is_the_mean_over_all_images_in_eval_mode():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.9), nn.Linear(4, 3))
    split = Split(torch.randn(2300, 4), torch.randint(3, (2300,)))  # the last batch of 1000 is not whole
    training = SimpleNamespace(model=model.train(), forward=model, recipe=Recipe())
    found = parts.plain_evaluate(training, split)
    outputs = model[1](split.x)
    assert found["loss"].item() == pytest.approx(nn.functional.cross_entropy(outputs, split.y).item(), rel=1e-5)
    assert found["accuracy"].item() == pytest.approx((outputs.argmax(1) == split.y).double().mean().item())
    assert all(module.training for module in model.modules())
    assert not found["loss"].requires_grad


# --- every plain part trains ----------------------------------------------------------------------

BASE = tiny(lr=0.01, warmup=2, decay=0.5, samples=64, evaluate_every=0)


@pytest.mark.parametrize(
    "changes",
    [
        *({"optimizer": each.__name__} for each in parts.OPTIMIZERS if each is not BASE.optimizer),
        *({"schedule": each.__name__} for each in parts.SCHEDULES if each is not BASE.schedule),
        *({"loss": each.__name__} for each in parts.LOSSES if each is not BASE.loss),
        *({"augment": name} for name in ("crop", "flip_crop", "affine")),
        *({"inputs": name} for name in ("unit", "raw")),
        {"data": "cifar10"},
        {"clip": 0.1},
        {"clip": 0.001, "clip_by": "value"},
        {"label_noise": 0.5},
        {"dropout": 0.5},
        {"momentum": 0.8},
        {"weight_decay": 0.01},
        {"seed": 1},
    ],
    ids=lambda changes: "-".join(str(value) for pair in changes.items() for value in pair),
)
def test_every_plain_part_and_knob_trains_and_changes_the_net(changes):
    run = train(BASE.but(**changes), progress=False)
    assert len(run) == BASE.steps and run.facts["stopped"] is None
    assert (run["loss"] > 0).all()
    assert run.facts["weights_sha256"] != trained(BASE).facts["weights_sha256"]


def test_label_noise_is_in_the_training_labels_alone():
    clean, noisy = (Training(tiny(label_noise=noise)).data for noise in (0.0, 0.25))
    assert (clean.train.y != noisy.train.y).sum() == 64  # a quarter of 256
    assert torch.equal(clean.val.y, noisy.val.y)
