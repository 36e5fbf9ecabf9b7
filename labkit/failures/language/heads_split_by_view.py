"""Heads split and joined by view alone: a head gets a stretch of the sequence instead of a part of the features."""

from torch import Tensor

from labkit.failures.language_signs import ON_TOKENS, WRITES, leak
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run

healthy = WRITES


def apart_by_view(x: Tensor, heads: int) -> Tensor:
    """(sample, token, width) read as (sample, head, token, features), without a transpose."""
    return x.reshape(x.shape[0], heads, x.shape[1], -1)


def joined_by_view(x: Tensor) -> Tensor:
    """The exact reverse."""
    return x.reshape(x.shape[0], x.shape[2], -1)


sick = healthy.but(split_heads=apart_by_view, merge_heads=joined_by_view)


def signature(run: Run) -> Evidence | None:
    return leak(
        run, "heads_split_by_view", "nothing is seen of them, and yet the logits depend on the length of the sequence"
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Heads split by view",
    cures={
        "view to (token, head, features), then transpose": sick.but(
            split_heads="heads_apart", merge_heads="heads_joined"
        )
    },
    false_cures={
        "dropout 0.3: the sequence stays cut up": sick.but(dropout=0.3),
    },
    harm=0.6,
    symptom="The loss is somewhat too high, and the samples are useless. With a cache and without, the net gives "
    "different logits.",
    mechanism="A view to (sample, head, token, features) cuts the sequence into as many stretches as there are heads. "
    "A token attends only within its own stretch, and where a stretch begins depends on the length of the sequence. "
    "When the net writes, that length changes with each token.",
    formula=r"(n, t, h d) \to (n, h, t, d) \text{ cuts } t \text{ into } h \text{ stretches}",
    first_check="Cut the end off a sequence: the logits before it must not change. Replacing the end does not show "
    "this fault.",
    remedy="x.view(sample, token, heads, -1).transpose(1, 2), and the reverse on the way out.",
    reference="FuxiCTR issue 30; Vaswani et al., Attention Is All You Need (2017), section 3.2.2",
    looks="stops too high",
    shows="leak_cut",
    knobs=(Knob("heads", (1, 2, 4, 8)), Knob("steps", (100, 600)), Knob("depth", (1, 4)), Knob("dropout", (0.0, 0.5))),
    not_on_cifar10=ON_TOKENS,
    where=("attention",),
)
