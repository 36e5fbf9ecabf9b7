"""Exercises of lesson 11, transformers and many GPUs; and its sealed patients."""

import math

import torch

from labkit.course.grading import Student, build, cure, expect, expect_close, explain, recorded
from labkit.recording.run import Run

# --- the sealed patients of 11.4 ---

SEALED = {
    "A": "warmup_missing",
    "B": "sampler_without_set_epoch",
    "C": "attention_entropy_collapse",
    "D": "sampler_missing",
}
SHORT = {
    "A": {"steps": 80, "evaluate_every": 20},
    "B": {"steps": 72},  # two epochs of 32 steps, and a little: an order must come again to be seen
    "C": {"steps": 80, "evaluate_every": 20},
    "D": {"steps": 72, "batch_size": 64, "evaluate_every": 32},
}


def patients() -> dict[str, Run]:
    """Four recorded runs, with letters for names. What was done to them is for the reader to find out."""
    return recorded(SEALED, SHORT, seed=5)


# --- 11.1 ---


def judge_head_entropy(mine: Student) -> str:
    everywhere = torch.full((3, 2, 8, 8), 1 / 8)
    seen = torch.as_tensor(mine(everywhere)).double()
    expect(seen.shape == (2,), f"Two heads want two numbers: expected the shape (2,), got {tuple(seen.shape)}.")
    if torch.allclose(seen, torch.full((2,), 3.0, dtype=torch.float64), atol=1e-4):
        expect(False, "8 tokens looked at alike gave 3: that is in bits. Nats use the natural logarithm.")
    expect(
        bool((seen > 0).all()), f"8 tokens looked at alike: expected {math.log(8):.3f}, got {seen[0]:.3f}. The sign?"
    )
    expect_close(seen, [math.log(8)] * 2, "8 tokens looked at alike, by both heads")
    single = torch.eye(6).expand(3, 2, 6, 6)
    answer = torch.as_tensor(mine(single))
    expect(not answer.isnan().any(), "A weight of exactly 0 gave NaN: 0 times log 0. What should such a term be?")
    expect_close(answer, [0.0, 0.0], "Each token looks at one alone", 1e-4)
    two = torch.stack([torch.full((4, 4), 1 / 4), torch.eye(4)])[None].repeat(5, 1, 1, 1)
    expect_close(mine(two), [math.log(4), 0.0], "One head open, the other shut: they must not be mixed", 1e-4)
    apart = torch.stack([torch.eye(4), torch.eye(4).roll(1, 0)])[:, None].repeat(1, 2, 1, 1)
    order = "Two images that look at different places: the entropy of each row first, then the mean"
    expect_close(mine(apart), [0.0, 0.0], order, 1e-4)
    return "Open heads, shut heads, exact zeros, and one number for each head."


# --- 11.3 ---


def judge_deal(mine: Student) -> str:
    hands = [whole_numbers(mine(12, rank, 3, 0, 7)) for rank in range(3)]
    lengths = [len(hand) for hand in hands]
    expect(lengths == [4, 4, 4], f"12 samples for 3 processes: expected 4 each, got {lengths}.")
    both = sorted(set(hands[0]) & set(hands[1]))
    words = "Does each process shuffle for itself? They must cut the same order."
    expect(not both, f"Processes 0 and 1 both got {both}. {words}")
    together = sorted(number for hand in hands for number in hand)
    expect(together == list(range(12)), f"Together they should have 0 to 11 once each, and have {together}.")
    expect(hands[0] + hands[1] + hands[2] != together, "Nothing is shuffled: the samples come in their own order.")
    judge_epochs(mine)
    uneven = [whole_numbers(mine(11, rank, 3, 0, 7)) for rank in range(3)]
    lengths = [len(hand) for hand in uneven]
    advice = "With more steps than the others a process waits for them for ever: leave the rest out."
    expect(lengths == [3, 3, 3], f"11 samples for 3 processes: expected 3 each, got {lengths}. {advice}")
    return "Disjoint, equally long, new in every epoch, and the same for everybody who asks."


def judge_epochs(mine: Student) -> None:
    def dealt(epoch: int, seed: int = 7) -> list[int]:
        return whole_numbers(mine(60, 1, 2, epoch, seed))

    first = dealt(0)
    torch.manual_seed(123)
    expect(dealt(0) == first, "Asked twice for the same epoch it dealt differently. Seed a generator of its own.")
    expect(dealt(1) != first, "Epochs 0 and 1 come in the same order: that is the failure this lesson is about.")
    expect(
        set(dealt(1)) != set(first), "In epoch 1 process 1 has the same samples as in epoch 0. Shuffle before dealing."
    )
    expect(dealt(0, seed=8) != first, "The seed changes nothing.")
    before = torch.get_rng_state()
    dealt(3)
    kept = torch.equal(before, torch.get_rng_state())
    expect(kept, "Right hands, but it moved torch's own generator: dropout would now differ. Seed one of its own.")


def whole_numbers(hand) -> list[int]:
    return [int(number) for number in hand]


# --- 11.2 is a cure, 11.4 the evidence ---

NO_HEADS = "it has no attention heads: it is no transformer."
ALONE = "it trained in one process: nothing was dealt out."

exercises = (
    build(
        "11.1",
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
        "11.2",
        "Warm it up",
        "warmup_missing",
        keep=("lr", "model"),
        seeds=(11,),
        points=3,
        hints=(
            "The first step changed a layer by more than its own size. The rate must not begin where it is now.",
            "The knob is `schedule`, and one of its choices begins gently. The cosine alone does not.",
            'schedule="warmup_cosine" rises over `warmup` steps, which the sick recipe has at 100 already.',
        ),
    ),
    build(
        "11.3",
        "Deal the samples",
        judge_deal,
        example="deal(count, rank, ranks, epoch, seed)",
        points=3,
        hints=(
            "All processes must draw the same order. So nothing that differs between them may go into the shuffle.",
            "torch.Generator().manual_seed(seed + epoch), and torch.randperm(count, generator=...).",
            "Of the shuffled order each takes every ranks-th sample from its rank on; count // ranks of them.",
        ),
    ),
    explain(
        "11.4",
        "Which patient has what?",
        modes=tuple(SEALED.values()),
        points=4,
        right=SEALED,
        because="A began open and was shut by steps that were far too long; C was born shut. B and D have no curve "
        "that tells: B repeats its order, and in D both processes do the same work.",
        wrong={
            "A": {
                "attention_entropy_collapse": "its entropy began near ln 16: open. What shut it, and when?",
                "sampler_without_set_epoch": ALONE,
                "sampler_missing": ALONE,
            },
            "B": {
                "warmup_missing": NO_HEADS,
                "attention_entropy_collapse": NO_HEADS,
                "sampler_missing": "its processes have nothing in common. Look at the order.",
            },
            "C": {
                "warmup_missing": "its first updates are small, and its heads were shut before the first of them.",
                "sampler_without_set_epoch": ALONE,
                "sampler_missing": ALONE,
            },
            "D": {
                "warmup_missing": NO_HEADS,
                "attention_entropy_collapse": NO_HEADS,
                "sampler_without_set_epoch": "its order is new in each epoch. Look at what the processes share.",
            },
        },
        hints=(
            "Two are transformers and two trained in two processes. That leaves two questions of two answers.",
            "Of the transformers: were the heads shut before the first step, or after some?",
            "Of the others: one repeats its order, the other shares its samples.",
        ),
    ),
)
