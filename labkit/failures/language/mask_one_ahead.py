"""A causal mask that is off by one: each token sees the next one, which it should predict."""

import torch
from torch import Tensor

from labkit.failures.language_signs import ON_TOKENS, WRITES, leak
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run

healthy = WRITES


def one_ahead(queries: int, keys: int, device: torch.device) -> Tensor:
    """tril(1) instead of tril(0): a token sees itself, what came before, and one more."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries + 1)


sick = healthy.but(mask=one_ahead)


def signature(run: Run) -> Evidence | None:
    return leak(run, "mask_one_ahead", "only the last positions before them see them")


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Mask one token too far",
    cures={"the diagonal of tril at 0: each token sees itself and the ones before it": sick.but(mask="causal_mask")},
    false_cures={
        "dropout 0.3: the leak stays": sick.but(dropout=0.3),
    },
    harm=0.6,
    symptom="The loss falls to almost 0, in training and in validation. What the net writes is useless.",
    mechanism="The one later token that is visible is the target itself, and the net learns to copy it. When it "
    "writes, that token does not exist yet.",
    formula=r"s_{ij} \text{ is kept for } j \leq i + 1",
    first_check="Replace one token and see which logits change: only those at its own position and after it may. Or "
    "print the mask of four tokens.",
    remedy="Use tril() with the diagonal at 0, or triu(1) for what is hidden. Check whether True means visible or "
    "hidden: torch has both, in different functions.",
    reference="DEFault++, a taxonomy of faults in transformers, arXiv 2604.28118 (2026): masking",
    looks="nothing",
    shows="leak_changed",
    knobs=(
        Knob("steps", (100, 600)),
        Knob("depth", (1, 4)),
        Knob("dropout", (0.0, 0.5)),
        Knob("lr", (1e-3, 2e-2), log=True),
    ),
    not_on_cifar10=ON_TOKENS,
    where=("attention",),
)
