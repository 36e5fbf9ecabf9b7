"""The heads are joined with a reshape but without the transpose: the outputs of different tokens are mixed."""

from torch import Tensor

from labkit.failures.language_signs import ON_TOKENS, WRITES, leak
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run

healthy = WRITES


def joined_without_transpose(x: Tensor) -> Tensor:
    """(sample, head, token, features) read as (sample, token, width): the shape is right, the order is not."""
    return x.reshape(x.shape[0], x.shape[2], -1)


sick = healthy.but(merge_heads=joined_without_transpose)


def signature(run: Run) -> Evidence | None:
    return leak(
        run, "heads_not_transposed_back", "the first position does not see them and most others do, in any order"
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Heads not transposed back",
    cures={"transpose(1, 2) before the reshape": sick.but(merge_heads="heads_joined")},
    false_cures={
        "dropout 0.3: the leak stays": sick.but(dropout=0.3),
    },
    harm=0.6,
    symptom="The loss falls below what is possible, less far than without a mask. What the net writes is useless. No "
    "error: the shapes fit.",
    mechanism="After attention the axes are (sample, head, token, features). A reshape to (sample, token, width) puts "
    "neighbouring tokens of one head into one position, so each position receives outputs of other tokens, later "
    "ones among them.",
    formula=r"(n, h, t, d) \to (n, t, h d) \text{ without } (n, t, h, d) \text{ between}",
    first_check="Replace one token and see which logits change: only those at its own position and after it may. With "
    "one head the fault disappears.",
    remedy="x.transpose(1, 2).reshape(sample, token, width), the exact reverse of the split. Or name the axes with "
    "einops.",
    reference="transformer-from-scratch issue 6; Vaswani et al., Attention Is All You Need (2017), section 3.2.2",
    looks="nothing",
    shows="leak_cut",
    knobs=(Knob("heads", (1, 2, 4, 8)), Knob("steps", (100, 600)), Knob("depth", (1, 4)), Knob("dropout", (0.0, 0.5))),
    not_on_cifar10=ON_TOKENS,
    where=("attention",),
)
