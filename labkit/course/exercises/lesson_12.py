"""Exercises of lesson 12, transformers and many GPUs; and its sealed patients."""

import math

import torch

from labkit.course.grading import Student, build, cure, expect, expect_close, explain, sealed_runs
from labkit.recording.run import Run

# --- the sealed patients of 12.4 ---

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


# --- 12.3 ---


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


# --- 12.2 is a cure, 12.4 the evidence ---

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
    cure(
        "12.2",
        "Add a warmup",
        "warmup_missing",
        keep=("lr", "model"),
        seeds=(11,),
        points=3,
        hints=(
            "The first step changed a layer by more than its own norm. The learning rate must start lower.",
            "The entry is `schedule`, and one of its choices starts low. The cosine alone does not.",
            'schedule="warmup_cosine" rises over `warmup` steps, which is already 100 in the sick recipe.',
        ),
    ),
    build(
        "12.3",
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
        "12.4",
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
)
