"""Exercises of lesson 03, learning rate too high and too low; its sealed run, and its stored runs by batch size."""

import copy
import functools
import json
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from labkit.course.grading import (
    HIDDEN_SEED,
    Student,
    build,
    changed_tensors,
    cure,
    diagnose,
    everything_but,
    expect,
    expect_close,
    explain,
    number,
    short,
)
from labkit.course.loops import Outcome, images, loop
from labkit.course.predictions import prediction
from labkit.failures.catalogue import FAILURES
from labkit.recording.files import written_whole
from labkit.recording.run import Run
from labkit.training.loop import train
from labkit.training.recipe import Recipe

# --- the sealed run of 03.7 ---


def patient() -> Run:
    """A run that ends at chance level with dead units. The student finds out what killed them."""
    return train(FAILURES["learning_rate_too_high"].sick.but(depth=2, steps=400), progress=False)


# --- accuracy by batch size, stored: 30 runs would take too long for a lesson ---

TABLE = Path(__file__).with_name("lesson_03.json")
COMMAND = "python -m labkit.course.exercises.lesson_03"  # trains these runs again
IMAGES = 51_200  # each run sees so many: 400 steps of 128
SIZES = (8, 32, 128, 512, 2048)
SEEDS = (0, 1, 2)
RULES = ("same learning rate", "scaled with the batch")


def accuracy_by_batch_size() -> dict[str, dict[int, list[float]]]:
    """Rule -> batch size -> validation accuracy of each seed, as measured."""
    table = json.loads(TABLE.read_text(encoding="utf-8"))["accuracy"]
    return {rule: {int(size): scores for size, scores in rows.items()} for rule, rows in table.items()}


def measure(sizes: tuple[int, ...] = SIZES, seen: int = IMAGES) -> dict[str, dict[int, list[float]]]:
    """The same table from runs that are trained now."""
    return {rule: {size: list(scores(rule, size, seen)) for size in sizes} for rule in RULES}


def scores(rule: str, size: int, seen: int) -> Iterator[float]:
    usual, steps = Recipe(), seen // size
    lr = usual.lr * (size / usual.batch_size if rule == RULES[1] else 1)
    for seed in SEEDS:
        run = train(Recipe(batch_size=size, lr=lr, steps=steps, seed=seed, evaluate_every=steps), progress=False)
        yield round(float(run["val_accuracy"][-1]), 4)


def renew(path: Path = TABLE) -> None:
    """Write the table again, with its conditions."""
    made_of = {"recipe": Recipe().summary(), "images": IMAGES, "seeds": SEEDS, "torch": torch.__version__}
    with written_whole(path) as stream:
        stream.write((json.dumps({"made of": made_of, "accuracy": measure()}, indent=1) + "\n").encode())


# --- 03.1 ---

RATES = (0.01, 0.03, 0.1, 0.3, 1.0)


def small_training() -> tuple:
    """A net with batch norm, an optimizer with momentum and two parameter groups, and five batches."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))
        batches = [(torch.randn(16, 4), torch.randint(0, 3, (16,))) for _ in RATES]
    groups = [{"params": net[:2].parameters()}, {"params": net[3].parameters(), "lr": 0.2}]
    optimizer = torch.optim.SGD(groups, lr=0.5, momentum=0.9)
    cross_entropy(net(batches[0][0]), batches[0][1]).backward()
    optimizer.step()  # so that there is a momentum buffer to lose
    optimizer.zero_grad()
    return net, optimizer, batches


def range_test_losses(*, empty: bool = True, groups: slice = slice(None), late: bool = False) -> list[float]:
    """The losses of a range test: correct, or with one of the usual mistakes."""
    net, optimizer, batches = small_training()
    losses = []
    for lr, (x, y) in zip(RATES, batches, strict=True):
        for group in optimizer.param_groups[groups]:
            group["lr"] = lr
        if empty:
            optimizer.zero_grad()
        loss = cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append((cross_entropy(net(x), y) if late else loss).item())
    return losses


def judge_range_test(mine: Student) -> str:
    net, optimizer, batches = small_training()
    weights, memory = copy.deepcopy(net.state_dict()), copy.deepcopy(optimizer.state_dict())
    seen = mine.in_place(net, optimizer, batches, list(RATES))
    expect(hasattr(seen, "__len__"), f"Expected a list of losses, one for each learning rate, got {short(seen)}.")
    expect(len(seen) == len(RATES), f"{len(RATES)} learning rates: expected as many losses, got {len(seen)}.")
    seen = [float(each) for each in seen]
    slips = {
        "These are the losses of a test that never clears the gradients. Call zero_grad before each backward.": {
            "empty": False
        },
        "The optimizer has two parameter groups, and only the first got your learning rates.": {"groups": slice(1)},
        "Each loss was measured after its step. Record the loss that was backpropagated.": {"late": True},
    }
    right = range_test_losses()
    for words, slip in slips.items():
        expect(all_close(seen, right) or not all_close(seen, range_test_losses(**slip)), words)
    expect_close(seen, right, "Five learning rates, five batches: the losses", tolerance=1e-3)
    moved = changed_tensors(net, weights)
    advice = "state_dict() returns the tensors themselves, not copies: copy.deepcopy it first."
    if moved and all(name not in dict(net.named_parameters()) for name in moved):
        advice = "Batch norm keeps running means beside its weights: state_dict() has them, parameters() does not."
    expect(not moved, f"Correct losses, but {', '.join(moved[:3])} were not restored. {advice}")
    rates = [group["lr"] for group in optimizer.param_groups]
    expect(
        rates == [0.5, 0.2],
        f"Correct losses, but the optimizer had the learning rates 0.5 and 0.2 and is left with {rates}.",
    )
    left = optimizer.state_dict()["state"]
    same = left.keys() == memory["state"].keys() and all(
        torch.equal(kept["momentum_buffer"], memory["state"][key]["momentum_buffer"]) for key, kept in left.items()
    )
    expect(same, "Correct losses, but the optimizer's momentum was not restored.")
    return "Correct losses, and net and optimizer are unchanged."


def all_close(seen: list[float], other: list[float]) -> bool:
    return all(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(seen, other, strict=True))


# --- 03.4 ---


def net_with_gradients(factor: float = 1.0) -> nn.Module:
    """Gradients of norm 3 and 4 in two layers, 5 together, times a factor; a frozen layer has none."""
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), nn.Linear(2, 2))
    net[0].weight.grad = factor * torch.tensor([[3.0, 0.0], [0.0, 0.0]])
    net[1].weight.grad = factor * torch.tensor([[0.0, -2.4], [3.2, 0.0]])
    return net


def clip_with(mine: Student, factor: float, limit: float) -> tuple:
    """What the student's function returned, and the norms of both layers afterwards."""
    net = net_with_gradients(factor)
    before = [net[index].weight.grad.clone() for index in (0, 1)]
    returned = mine.in_place(net, limit)
    after = [net[index].weight.grad for index in (0, 1)]
    expect(all(torch.is_tensor(each) for each in after), "A gradient is missing afterwards. Scale it in place.")
    return returned, before, after


def judge_clip(mine: Student) -> str:
    returned, before, after = clip_with(mine, 1.0, 1.0)
    norms = [round(each.norm().item(), 3) for each in after]
    case = "Two layers with gradients of norm 3 and 4 (5 together), limit 1"
    expect(norms != [3, 4], f"{case}: the gradients did not change. Scale weight.grad itself, in place.")
    expect(norms != [1, 1], f"{case}: you clipped each layer alone, to 1 and 1. Use one factor for all.")
    expect(norms != [1, 1.414], f"{case}: you clipped single entries. Use one factor for all.")
    expect(norms != [0.429, 0.571], f"{case}: your global norm is 7. Squares add up, norms do not.")
    expect_close(after[0], before[0] / 5, f"{case}, the first layer", tolerance=1e-4)
    expect_close(after[1], before[1] / 5, f"{case}, the second layer", tolerance=1e-4)
    expect(
        torch.as_tensor(returned).numel() == 1,
        f"Expected the norm before clipping as the return value, got {short(returned)}.",
    )
    expect(
        abs(float(returned) - 1) > 1e-3,
        "Clipped correctly, but you returned the norm after clipping. Return the one before.",
    )
    expect_close(float(returned), 5.0, "Clipped correctly, but the return value should be the norm before clipping")
    returned, before, after = clip_with(mine, 0.1, 1.0)
    case = "Gradients of norm 0.5 together, limit 1"
    expect(torch.equal(after[0], before[0]), f"{case}: they were changed. Clipping only ever scales down.")
    expect_close(float(returned), 0.5, case)
    _, before, after = clip_with(mine, 1000.0, 2.0)
    expect_close(after[1], before[1] / 2500, "Norm 5000, limit 2, the second layer", tolerance=1e-4)
    return "One factor for all gradients, never above 1, and it returns the norm before clipping."


# --- 03.3 ---

TOGETHER = 16  # batches of 4, so that an update sees 64 images


def small_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def gentle_sgd(weights: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=0.1)


four_images = images(small_net, gentle_sgd, TOGETHER, samples=6_400, batch_size=4)


def accumulating(model: nn.Module, optimizer: torch.optim.Optimizer, loader, together: int) -> None:
    """The mean gradient of some batches, then one update."""
    optimizer.zero_grad()
    for count, (x, y) in enumerate(loader, start=1):
        loss = cross_entropy(model(x), y) / together
        loss.backward()
        if count % together == 0:
            optimizer.step()
            optimizer.zero_grad()


def judge_accumulation(outcome: Outcome) -> str:
    """The number of updates, and the weights after them: those of the same batches averaged."""
    batches = len(outcome.setting.loader)
    updates = batches // TOGETHER
    expect(len(outcome.run) != batches, f"The optimizer stepped after every batch: {batches} updates of 4 images each.")
    expect(
        len(outcome.run) == updates,
        f"{batches} batches, {TOGETHER} together: expected {updates} updates, got {len(outcome.run)}.",
    )
    right = accumulated_weights()
    moved = [(mine - other).norm() for mine, other in zip(outcome.setting.model.parameters(), right, strict=True)]
    expect(
        max(distance / other.norm() for distance, other in zip(moved, right, strict=True)) < 0.01,
        f"{updates} updates, but not with the mean gradient of {TOGETHER} batches. Is each loss divided by `together`, "
        "and are the gradients cleared after each update and at no other time?",
    )
    return f"{updates} updates, each with the mean gradient of {TOGETHER} batches: {outcome.accuracy:.1%} correct."


@functools.cache
def accumulated_weights() -> list[torch.Tensor]:
    """The weights after a correct loop over the batches of the judge."""
    setting = four_images(HIDDEN_SEED)
    accumulating(*setting.arguments)
    return [weight.detach() for weight in setting.model.parameters()]


# --- 03.8 ---


def largest_rate(curvature: float, momentum: float, nesterov: bool) -> float:
    """Where the root at -1 is: 2 + 2 momentum over the curvature, with Nesterov's look ahead over 1 + 2 momentum."""
    return 2 * (1 + momentum) / curvature / (1 + 2 * momentum if nesterov else 1)


def judge_largest_rate(mine: Student) -> str:
    for curvature, momentum, nesterov in (
        (4.0, 0.0, False),
        (4.0, 0.5, False),
        (10.0, 0.9, False),
        (10.0, 0.9, True),
        (0.3, 0.5, True),
    ):
        rate = number(mine(curvature, momentum, nesterov), "the largest learning rate")
        case = f"Curvature {curvature}, momentum {momentum}{', Nesterov' if nesterov else ''}"
        expect(rate > 0 and math.isfinite(rate), f"{case}: expected a learning rate above 0, got {rate:.3g}.")
        low, high = (distance_after(200, share * rate, curvature, momentum, nesterov) for share in (0.99, 1.01))
        expect(low < 1, f"{case}: at 0.99 times your {rate:.3g} the distance still grows, to {low:.2g} in 200 steps.")
        expect(high > 1, f"{case}: at 1.01 times your {rate:.3g} the distance still shrinks, to {high:.2g}. Go higher.")
    return "Just below it torch's SGD converges on a parabola, and just above it diverges."


def distance_after(steps: int, lr: float, curvature: float, momentum: float, nesterov: bool) -> float:
    """How far torch's own SGD is from the minimum of a parabola, having started at 1."""
    weight = torch.ones(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=lr, momentum=momentum, nesterov=nesterov)
    for _ in range(steps):
        optimizer.zero_grad()
        (curvature / 2 * weight.square()).sum().backward()
        optimizer.step()
    return abs(weight.item())


# --- predictions ---

predictions = (
    prediction(
        "03.0",
        correct=2,
        why="The photographs have four times as many pixels, and the loss of the same net is more than twice as "
        "curved. Learning rate times curvature is 1.6 on the digits and 3.7 on the photographs. The border is 2.",
        wrong={
            1: "Harder data would give a higher loss, not one that explodes.",
            3: "It does not get far enough to overfit.",
        },
    ),
    prediction(
        "03.0b",
        correct=3,
        why="In the steepest direction the gradient changes its sign at every step, so the velocity cancels most of "
        "it: the border moves up to 2(1 + m) = 3.8 over the curvature. The factor 1 / (1 - m) = 10 counts where the "
        "gradient keeps its sign, which is in the flat directions.",
        wrong={1: "That is the usual guess: ten times the step, a tenth of the border."},
    ),
)

# --- 03.3 is a loop, 03.5 a cure, 03.2, 03.6 and 03.7 are evidence ---

EXPERIMENTS = (
    "gradients per layer",
    "update over weight",
    "first ten steps",
    "larger batch",
    "a tenth of the learning rate",
    "twice as many steps",
)

exercises = (
    build(
        "03.1",
        "A range test",
        judge_range_test,
        example="range_test(net, optimizer, batches, lrs)",
        points=3,
        hints=(
            "It is a training loop with a new learning rate at each step. Save copies before it and restore "
            "them after.",
            "Set group['lr'] in every group of optimizer.param_groups. Record loss.item() before optimizer.step().",
            "copy.deepcopy(net.state_dict()) and copy.deepcopy(optimizer.state_dict()) first; load_state_dict of both "
            "at the end. The second also holds the learning rates.",
        ),
    ),
    explain(
        "03.2",
        "Read the curve",
        right="0.2",
        because="There the loss falls steeply, and it is about a factor of ten below the point of divergence. At the "
        "lowest points the learning rate is already so high that the loss jumps.",
        wrong={
            "0.0001": "safe but slow: at that learning rate the curve is still flat, so nothing is learned.",
            "1": "the loss is still low there, but it has jumped before and is about to rise for good. A little later "
            "in this lesson you will see what 1 does.",
            "3": "there the loss has already left for good.",
        },
        hints=(
            "You do not want the lowest loss, but the learning rate at which the loss falls fastest.",
            "And keep a factor of ten below the learning rate at which the loss starts to rise.",
        ),
    ),
    loop(
        "03.3",
        "Batches of four",
        four_images,
        accumulating,
        example="train(model, optimizer, loader, together)",
        free_of=("batch_too_small", "learning_rate_too_high"),
        also=judge_accumulation,
        points=3,
        hints=(
            "`.backward()` adds to the gradients that are there already. How often must they be cleared, and when?",
            "The sum of 16 gradients is 16 times too long. What has to be divided, and before which call?",
            "for count, (x, y) in enumerate(loader, start=1): loss / together, backward; if count % together == 0: "
            "step, zero_grad.",
        ),
    ),
    build(
        "03.4",
        "Clip by the global norm",
        judge_clip,
        example="clip_gradients(net, limit)",
        points=2,
        hints=(
            "First the norm of all gradients as if they were one long vector: the root of all squares.",
            "The factor is limit / norm, the same for every tensor, and only if the norm is above the limit.",
            "weight.grad.mul_(factor) works in place. Skip weights whose grad is None. Return the norm.",
        ),
    ),
    cure(
        "03.5",
        "A learning rate for Adam",
        "dead_relu_by_learning_rate",
        keep=everything_but("lr"),
        seeds=(11,),
        points=2,
        hints=(
            "A learning rate for one optimizer says nothing about another. Which tool measures a good one?",
            "labkit.find_lr(patient.model, cross_entropy, tuple(patient.data.train), patient.optimizer)",
            "Take the learning rate that the range test suggests, or one near it.",
        ),
    ),
    explain(
        "03.6",
        "Design the experiment",
        modes=("learning_rate_left_low", "training_not_finished", "batch_too_small", "momentum_too_high"),
        points=2,
        right={
            "A": "gradients per layer",
            "B": "update over weight",
            "C": "larger batch",
            "D": "first ten steps",
        },
        because="A good experiment has two different results for the two suspects. A tenth of the learning rate and "
        "twice as many steps change something for nearly everybody, so they separate nobody.",
        wrong={
            "A": {
                "update over weight": "with dead units most updates are near 0 too, so this number is small for both.",
                "first ten steps": "both are flat from step 0 on.",
                "larger batch": "it calms noise, and neither curve has any.",
                "a tenth of the learning rate": "both stay flat.",
                "twice as many steps": "both stay flat.",
            },
            "B": {
                "gradients per layer": "both have healthy gradients in every layer.",
                "first ten steps": "both fall smoothly from the start.",
                "larger batch": "neither curve is noisy.",
                "a tenth of the learning rate": "both get slower.",
                "twice as many steps": "both end lower. What differs is how far one step goes.",
            },
            "C": {
                "gradients per layer": "both have gradients everywhere; their size differs with the batch anyway.",
                "update over weight": "about 0.02 to 0.05 for both: long steps, from noise or from the learning rate.",
                "first ten steps": "both start well. The trouble is late.",
                "a tenth of the learning rate": "it calms both: noise in the weights is proportional to it.",
                "twice as many steps": "both stay in their band.",
            },
            "D": {
                "gradients per layer": "they are large in both once the loss has risen.",
                "update over weight": "a good instrument, but over the whole run it is large in both. When is it not?",
                "larger batch": "neither is noise: with 512 images the one with momentum still swings.",
                "a tenth of the learning rate": "it helps both.",
                "twice as many steps": "both may come back, or not.",
            },
        },
        hints=(
            "For each suspect, write down what the experiment would show. The same for both? Then it is the wrong one.",
            "C: which of the two does not care how many images a batch has?",
            "D: momentum needs about 1 / (1 - m) steps to build up its velocity. How large is its very first update?",
        ),
    ),
    diagnose(
        "03.7",
        "Found dead",
        failure="learning_rate_too_high",
        place=("layer1", "layer2"),
        evidence={"update_ratio": (1.0, 8.0), "loss": (100.0, 1e6)},
        wrong={
            "dead_relu": "dead they are, but before the first step they were alive. What killed them?",
            "dead_relu_by_learning_rate": "close: that is an Adam run in which units die one after another. Here one "
            "step is enough, and the loss jumps with it.",
            "learning_rate_too_low": "the late updates are tiny because no gradient is left. Look at step 0.",
            "exploding_gradients": "the first gradient is of ordinary size. What did the step make of it?",
            "vanishing_gradients": "at step 0 every layer has a healthy gradient.",
            "symmetric_init": "its units are different before the first step.",
        },
        because="The gradient of step 0 was healthy, and the step was several times as long as the weights it "
        "changed. The loss jumped by a factor of thousands, the jump killed the units, and without gradients "
        "nothing can bring them back. The end of the log looks like a net that never started.",
        points=2,
        hints=(
            "Do not look at the end. What do the first ten steps show?",
            "run['update_ratio'][0] has one number per layer: how much the first step changed it, over its own size.",
            "Healthy first updates are below 0.2. The value is the largest of step 0.",
        ),
    ),
    build(
        "03.8",
        "Where Nesterov breaks",
        judge_largest_rate,
        example="largest_rate(curvature, momentum, nesterov)",
        points=0,
        hints=(
            "Write one step on the parabola as d[t+1] = a d[t] + b d[t-1]. For momentum a and b are in the text.",
            "PyTorch's Nesterov steps by lr * (g + m v). That gives d[t+1] = (1 + m)(1 - c) d[t] - m (1 - c) d[t-1] "
            "with c = lr * curvature.",
            "At the border a root is -1: put d[t] = (-1)^t into the recursion and solve for the learning rate.",
        ),
    ),
)


if __name__ == "__main__":
    renew()
