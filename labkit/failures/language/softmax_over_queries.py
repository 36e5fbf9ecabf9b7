"""The softmax of attention runs over the queries instead of the keys."""

import math

from torch import Tensor

from labkit.failures.language_signs import ON_TOKENS, WRITES, leak
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run

healthy = WRITES


def over_queries(scores: Tensor, mask: Tensor) -> Tensor:
    """dim=-2: the weights of each key add up to 1, over all tokens that may see it."""
    return scores.masked_fill(~mask, -math.inf).softmax(dim=-2)


sick = healthy.but(attend=over_queries)


def signature(run: Run) -> Evidence | None:
    return leak(
        run, "softmax_over_queries", "every position depends on them, and on how many there are, the last ones most"
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Softmax over the queries",
    cures={"softmax over the keys, dim=-1": sick.but(attend="masked_softmax")},
    false_cures={
        "dropout 0.3: the leak stays": sick.but(dropout=0.3),
    },
    harm=0.6,
    symptom="The loss falls far below what is possible, and what the net writes is useless. The shapes are right, "
    "because scores are square.",
    mechanism="Each key divides its weight among the queries that see it, and most of these come later in the "
    "sequence. So a weight depends on later tokens and on the length of the sequence. When the net writes with a "
    "cache, there is a single query, and every weight is 1.",
    formula=r"p_{ij} = \frac{e^{s_{ij}}}{\sum_{k \geq j} e^{s_{kj}}} \quad \text{instead of} \quad "
    r"\frac{e^{s_{ij}}}{\sum_{k \leq i} e^{s_{ik}}}",
    first_check="Sum the attention weights over the last axis: every query must have 1.",
    remedy="Write softmax(dim=-1) on scores of shape (..., query, key). Test with a different number of queries and "
    "keys, where a wrong axis shows.",
    reference="Vaswani et al., Attention Is All You Need (2017), equation 1",
    looks="nothing",
    shows="leak_cut",
    knobs=(
        Knob("steps", (100, 600)),
        Knob("depth", (1, 4)),
        Knob("dropout", (0.0, 0.5)),
        Knob("lr", (1e-3, 2e-2), log=True),
    ),
    not_on_cifar10=ON_TOKENS,
    where=("attention",),
)
