"""Exercises of lesson 12, transformers and many GPUs; and its sealed patients."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from labkit.course.bounds import call_seconds, time_limit
from labkit.course.grading import NotYet, Student, build, error_in_words, expect, expect_close, explain, sealed_runs
from labkit.course.loops import Outcome, images, loop
from labkit.course.predictions import prediction
from labkit.failures.catalogue import FAILURES
from labkit.recording.run import Run
from labkit.training.loop import Training

# --- predictions ---

predictions = (
    prediction(
        "12.0",
        correct=3,
        why="Softmax of large scores is finite, and what attends to single patches is still a net: the skip "
        "connections and the other layers learn with whatever the heads happen to look at. So the loss falls, and "
        "nothing in it says what is missing.",
        wrong={
            1: "Softmax subtracts the largest score first, so it does not overflow.",
            2: "Everything but the attention weights still receives gradient.",
        },
    ),
    prediction(
        "12.0b",
        correct=3,
        why="The gradient of a mean is the mean of the gradients, so two halves of 64 give the step of 128. Only the "
        "order of the additions differs, and with it the last digits.",
        wrong={1: "It is not a matter of averages over runs: every single step is the same."},
    ),
)

# --- the sealed patients of 12.5 ---

SEALED = {
    "A": "warmup_missing",
    "B": "sampler_without_set_epoch",
    "C": "attention_entropy_collapse",
    "D": "sampler_missing",
}
SHORT = {
    "A": {"steps": 80, "evaluate_every": 20},
    "B": {"steps": 72},  # a little over two epochs of 32 steps: a repeated order shows in the second
    "C": {"steps": 80, "evaluate_every": 20},
    "D": {"steps": 72, "batch_size": 64, "evaluate_every": 32},
}


def patients() -> dict[str, Run]:
    """Four runs, named by letters. The student finds which failure each one shows."""
    return sealed_runs(SEALED, SHORT, seed=5)


# --- 12.1 ---


def judge_head_entropy(mine: Student) -> str:
    everywhere = torch.full((3, 2, 8, 8), 1 / 8)
    seen = torch.as_tensor(mine(everywhere)).double()
    expect(seen.shape == (2,), f"Two heads: expected two numbers, the shape (2,), got {tuple(seen.shape)}.")
    if torch.allclose(seen, torch.full((2,), 3.0, dtype=torch.float64), atol=1e-4):
        expect(False, "Uniform attention over 8 tokens gave 3: that is in bits. Nats use the natural logarithm.")
    expect(
        bool((seen > 0).all()),
        f"Uniform attention over 8 tokens: expected {math.log(8):.3f}, got {seen[0]:.3f}. Check the sign.",
    )
    expect_close(seen, [math.log(8)] * 2, "Uniform attention over 8 tokens, in both heads")
    single = torch.eye(6).expand(3, 2, 6, 6)
    answer = torch.as_tensor(mine(single))
    expect(not answer.isnan().any(), "A weight of exactly 0 gave NaN: 0 times log 0. What should such a term be?")
    expect_close(answer, [0.0, 0.0], "Each token attends to one token only", 1e-4)
    two = torch.stack([torch.full((4, 4), 1 / 4), torch.eye(4)])[None].repeat(5, 1, 1, 1)
    expect_close(mine(two), [math.log(4), 0.0], "One uniform head, one collapsed head: they must not be averaged", 1e-4)
    apart = torch.stack([torch.eye(4), torch.eye(4).roll(1, 0)])[:, None].repeat(1, 2, 1, 1)
    order = "Two images with attention at different positions: the entropy of each row first, then the mean"
    expect_close(mine(apart), [0.0, 0.0], order, 1e-4)
    return "Uniform heads, collapsed heads, exact zeros, and one number per head."


# --- 12.2 ---

PEAK = 0.03  # the learning rate that the optimizer comes with


def transformer() -> nn.Module:
    """The net of the catalogue's patient without a warm-up."""
    return Training(FAILURES["warmup_missing"].healthy).model


def train_warm(model: nn.Module, optimizer: torch.optim.Optimizer, loader) -> None:
    """The reference: two passes, the first 50 steps at a rising learning rate."""
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50))
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
            warm.step()


def judge_peak(outcome: Outcome) -> None:
    rates = outcome.run["lr"]
    expect(
        rates.max() > 0.99 * PEAK,
        f"It learns, but the highest learning rate was {rates.max():.2g}: this patient has to reach {PEAK}.",
    )


# --- 12.4 ---


def judge_deal(mine: Student) -> str:
    shares = [as_ints(mine(12, rank, 3, 0, 7)) for rank in range(3)]
    lengths = [len(share) for share in shares]
    expect(lengths == [4, 4, 4], f"12 samples for 3 processes: expected 4 each, got {lengths}.")
    both = sorted(set(shares[0]) & set(shares[1]))
    words = "Does each process shuffle for itself? They must split the same order."
    expect(not both, f"Processes 0 and 1 both got {both}. {words}")
    together = sorted(number for share in shares for number in share)
    expect(together == list(range(12)), f"Expected 0 to 11 once each over all processes, got {together}.")
    expect(
        shares[0] + shares[1] + shares[2] != together, "Nothing is shuffled: the samples are in their original order."
    )
    judge_epochs(mine)
    uneven = [as_ints(mine(11, rank, 3, 0, 7)) for rank in range(3)]
    lengths = [len(share) for share in uneven]
    advice = "A process with more steps than the others waits for them forever: leave the rest out."
    expect(lengths == [3, 3, 3], f"11 samples for 3 processes: expected 3 each, got {lengths}. {advice}")
    return "Disjoint, of equal length, reshuffled in every epoch, and reproducible."


def judge_epochs(mine: Student) -> None:
    def share_of(epoch: int, seed: int = 7) -> list[int]:
        return as_ints(mine(60, 1, 2, epoch, seed))

    first = share_of(0)
    torch.manual_seed(123)
    expect(share_of(0) == first, "Two calls for the same epoch gave different samples. Seed a separate generator.")
    expect(share_of(1) != first, "Epochs 0 and 1 are in the same order: that is the failure this lesson is about.")
    expect(
        set(share_of(1)) != set(first),
        "In epoch 1 process 1 has the same samples as in epoch 0. Shuffle before you split.",
    )
    expect(share_of(0, seed=8) != first, "The seed changes nothing.")
    before = torch.get_rng_state()
    share_of(3)
    kept = torch.equal(before, torch.get_rng_state())
    expect(
        kept,
        "Correct samples, but it used torch's own generator: dropout would now differ. Seed a separate one.",
    )


def as_ints(share) -> list[int]:
    return [int(number) for number in share]


# --- 12.3 and 12.6 ---

MOST_CALLS = 20  # of all_reduce in one call: the net below has four parameters


class OthersAreNeeded(BaseException):
    """Raised where a process would wait for the others; not an Exception, which a student might catch."""


def net_with(gradients: list[Tensor | None]) -> nn.Module:
    """A small net that has these gradients; no two of its parameters have the same shape."""
    net = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 4))
    for weight, gradient in zip(net.parameters(), gradients, strict=True):
        weight.grad = None if gradient is None else gradient.clone()
    return net


def made_up(seed: int, frozen: bool = False) -> list[Tensor | None]:
    numbers = torch.Generator().manual_seed(seed)
    shapes = [weight.shape for weight in net_with([None] * 4).parameters()]
    return [None if frozen and place < 2 else torch.randn(s, generator=numbers) for place, s in enumerate(shapes)]


def together(mine: Student, gradients: list[list[Tensor | None]], numbers: list[int]) -> list[list[Tensor | None]]:
    """The gradients after `mine(model, all_reduce, number)` ran in one process for each list of gradients.

    Without processes: each is called again from the start until all have made the same calls of all_reduce, and of
    those that all have made the sums are known.
    """
    sums: list[Tensor] = []
    for _ in range(MOST_CALLS + 1):
        sent, nets = [], []
        for own, number in zip(gradients, numbers, strict=True):
            net = net_with(own)
            waiting = _until_it_waits(mine, net, sums, number)
            nets.append(net)
            sent.append(waiting)
        if all(each is None for each in sent):
            return [[weight.grad for weight in net.parameters()] for net in nets]
        arrived = [each for each in sent if each is not None]
        alike = len(arrived) == len(sent) and len({each.shape for each in arrived}) == 1
        expect(alike, "The processes did not call all_reduce alike: with real ones, one would wait for ever.")
        sums.append(torch.stack(arrived).sum(0))
    raise NotYet(f"It called all_reduce more than {MOST_CALLS} times for a net with four parameters.")


def _until_it_waits(mine: Student, net: nn.Module, sums: list[Tensor], number: int) -> Tensor | None:
    """What the function hands to its first call of all_reduce beyond those whose sums are known; None at its end."""
    made, waiting = 0, None

    def all_reduce(tensor: Tensor) -> None:
        nonlocal made, waiting
        expect(isinstance(tensor, Tensor), "all_reduce takes a tensor, and puts the sum into it.")
        made += 1
        if made > len(sums):
            waiting = tensor.detach().clone()
            raise OthersAreNeeded
        with torch.no_grad():
            tensor.copy_(sums[made - 1])

    try:
        with time_limit(call_seconds()):
            mine.function(net, all_reduce, number)
    except OthersAreNeeded:
        pass
    except NotYet:
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise NotYet(error_in_words(error)) from error
    return waiting


def judge_average(mine: Student) -> str:
    mine.call_or_none(net_with(made_up(0)), nothing_to_add, 1)  # a stub says so here
    for ranks in (2, 3):
        given = [made_up(seed) for seed in range(ranks)]
        expect_mean(together(mine, given, [ranks] * ranks), given, [1] * ranks)
    given = [made_up(seed, frozen=True) for seed in range(2)]
    expect_mean(together(mine, given, [2, 2]), given, [1, 1])
    return "The mean over all processes, in every one of them, and frozen layers are left alone."


def judge_weighted_average(mine: Student) -> str:
    mine.call_or_none(net_with(made_up(0)), nothing_to_add, 1)
    for samples in ([64, 64], [16, 112], [5, 0, 27]):
        given = [made_up(seed) for seed in range(len(samples))]
        expect_mean(together(mine, given, samples), given, samples)
    return "The gradient of the mean over all samples, however they were split."


def nothing_to_add(tensor: Tensor) -> None:
    """all_reduce where there is one process."""


def expect_mean(found: list[list[Tensor | None]], given: list[list[Tensor | None]], samples: list[int]) -> None:
    count = len(given)
    words = f"{count} processes" + (f" with {samples} samples" if len(set(samples)) > 1 else "")
    for place, parts in enumerate(zip(*given, strict=True)):
        if parts[0] is None:
            continue
        total = sum(n * part for n, part in zip(samples, parts, strict=True) if part is not None)
        mean, plain = total / sum(samples), sum(part for part in parts if part is not None)
        for rank, own in enumerate(found):
            seen = own[place]
            expect(seen is not None, f"{words}: in process {rank} a parameter has lost its gradient.")
            expect(not torch.allclose(seen, parts[rank]), f"{words}: process {rank} still has its own gradient.")
            expect(
                torch.allclose(mean, plain) or not torch.allclose(seen, plain, atol=1e-5),
                f"{words}: every gradient is the sum. That is a learning rate {count} times as high.",
            )
            expect_close(seen, mean, f"{words}, the gradient of parameter {place} in process {rank}", 1e-5)


# --- 12.5, the evidence ---

NO_HEADS = "it has no attention heads: it is not a transformer."
ALONE = "it trained in one process: no samples were split."

exercises = (
    build(
        "12.1",
        "The entropy of a head",
        judge_head_entropy,
        example="head_entropy(attention)",
        points=2,
        hints=(
            "One row of the matrix is one token's attention and sums to 1. The entropy of a row is -sum(p log p).",
            "Sum over the last axis, then take the mean over images (axis 0) and tokens (axis 2 of the four).",
            "0 * log(0) is NaN for torch. attention.clamp_min(1e-30).log() is finite, and 0 times it is 0.",
        ),
    ),
    loop(
        "12.2",
        "Add a warm-up to the loop",
        images(transformer, lambda weights: torch.optim.Adam(weights, lr=PEAK), samples=5_000),
        train_warm,
        example="train_warm(model, optimizer, loader)",
        also=judge_peak,
        margin=0.05,  # of one transformer after 158 steps; without a warm-up it loses a tenth
        modes=("warmup_missing",),
        points=3,
        hints=(
            "The first step changed a tensor by more than its own norm. The learning rate must start lower.",
            "A scheduler multiplies the learning rate that the optimizer came with: LambdaLR(optimizer, function).",
            "The function is min(1, (step + 1) / 50), and scheduler.step() comes after every optimizer.step().",
        ),
    ),
    build(
        "12.3",
        "Average the gradients",
        judge_average,
        example="average_gradients(model, all_reduce, ranks)",
        points=2,
        hints=(
            "After backward() every process has the gradient of its own part. Each parameter needs the mean.",
            "all_reduce(weight.grad) puts the sum over all processes into weight.grad, in every process.",
            "Divide by ranks afterwards, in place. A parameter whose grad is None takes no part.",
        ),
    ),
    build(
        "12.4",
        "Split the samples across processes",
        judge_deal,
        example="deal(count, rank, ranks, epoch, seed)",
        points=3,
        hints=(
            "All processes must shuffle the same way. So the shuffle must not depend on the rank.",
            "torch.Generator().manual_seed(seed + epoch), and torch.randperm(count, generator=...).",
            "Each process takes every ranks-th sample of the shuffled order, from its rank on; count // ranks of them.",
        ),
    ),
    explain(
        "12.5",
        "Which failure does each run show?",
        modes=tuple(SEALED.values()),
        points=4,
        right=SEALED,
        because="A started with high entropy and collapsed through updates that were far too large; C was collapsed at "
        "init. No curve shows B and D: B repeats its order, and in D both processes do the same work.",
        wrong={
            "A": {
                "attention_entropy_collapse": "its entropy started near ln 16, uniform. What made it collapse, "
                "and when?",
                "sampler_without_set_epoch": ALONE,
                "sampler_missing": ALONE,
            },
            "B": {
                "warmup_missing": NO_HEADS,
                "attention_entropy_collapse": NO_HEADS,
                "sampler_missing": "its processes share no samples. Look at the order.",
            },
            "C": {
                "warmup_missing": "its first updates are small, and its heads were collapsed before the first of them.",
                "sampler_without_set_epoch": ALONE,
                "sampler_missing": ALONE,
            },
            "D": {
                "warmup_missing": NO_HEADS,
                "attention_entropy_collapse": NO_HEADS,
                "sampler_without_set_epoch": "its order changes in each epoch. Look at what the processes share.",
            },
        },
        hints=(
            "Two are transformers and two trained in two processes. So there are two pairs to tell apart.",
            "Of the transformers: were the heads collapsed before the first step, or only later?",
            "Of the others: one repeats its order, the other shares its samples.",
        ),
    ),
    build(
        "12.6",
        "Optional: parts of different lengths",
        judge_weighted_average,
        example="average_by_samples(model, all_reduce, samples)",
        points=0,
        hints=(
            "The gradient of a mean over n samples, times n, is that of a sum. Sums can be added.",
            "How many samples are there in all processes together? all_reduce tells that too.",
            "total = torch.tensor(float(samples)); all_reduce(total); each gradient: times samples, all_reduce, over "
            "total.",
        ),
    ),
)
