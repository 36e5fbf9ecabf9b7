"""Attention without a causal mask: each token sees the ones that it should predict."""

import torch
from torch import Tensor

from labkit.failures.language_signs import ON_TOKENS, WRITES, leak
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run

healthy = WRITES


def no_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """Every token sees every other."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device)


sick = healthy.but(mask=no_mask)


def signature(run: Run) -> Evidence | None:
    return leak(run, "causal_mask_missing", "every position sees them, as without a mask")


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Causal mask missing",
    cures={"a causal mask: each token sees itself and the ones before it": sick.but(mask="causal_mask")},
    false_cures={
        "dropout 0.3: the leak stays": sick.but(dropout=0.3),
    },
    harm=0.6,
    symptom="The loss falls to almost 0, in training and in validation, and what the net writes is useless.",
    mechanism="Attention may look at every token, so the net copies the next token instead of predicting it. "
    "Validation makes the same mistake. Only when it writes is there no next token to copy.",
    formula=r"\hat{y}_t = f(x_1, \ldots, x_T) \ni x_{t+1}",
    first_check="Replace the last tokens of a sequence: the logits before them must stay exactly the same. "
    "`labkit.tools.causality` does that, before the first step too.",
    remedy="Set the scores of later tokens to minus infinity before the softmax, or pass is_causal=True to "
    "scaled_dot_product_attention. Keep the test of causality in your test suite.",
    reference="Vaswani et al., Attention Is All You Need (2017), section 3.2.3; huggingface/transformers issue 48745",
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
