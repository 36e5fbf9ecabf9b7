"""The mask is applied to the attention weights after the softmax: later tokens still count in its sum."""

from torch import Tensor

from labkit.failures.language_signs import ON_TOKENS, WRITES, leak
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run

healthy = WRITES


def masked_too_late(scores: Tensor, mask: Tensor) -> Tensor:
    """Weights of later tokens are set to 0, but the sum that the others were divided by contains them."""
    return scores.softmax(dim=-1) * mask


sick = healthy.but(attend=masked_too_late)


def signature(run: Run) -> Evidence | None:
    return leak(run, "mask_after_softmax", "every position depends on them, and on how many there are, about evenly")


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Mask after the softmax",
    cures={"minus infinity in the scores, before the softmax": sick.but(attend="masked_softmax")},
    false_cures={
        "dropout 0.3: the leak stays": sick.but(dropout=0.3),
    },
    harm=0.6,
    symptom="The loss falls far below what is possible, though not as far as without a mask. What the net writes is "
    "useless. The mask looks correct when the weights are plotted.",
    mechanism="A softmax divides by a sum over all tokens. Weights that are set to 0 afterwards are gone, but the size "
    "of the others still tells what the later tokens are. The net learns to read that.",
    formula=r"p_{ij} = \frac{e^{s_{ij}} [j \leq i]}{\sum_{k=1}^{T} e^{s_{ik}}} \quad \text{instead of} \quad "
    r"\sum_{k \leq i}",
    first_check="Sum the attention weights of each query: it must be 1. Then replace the last tokens of a sequence: "
    "the logits before them must not change.",
    remedy="Fill the scores of hidden tokens with minus infinity, then apply the softmax. Dividing the masked weights "
    "by their sum is correct too, but less stable.",
    reference="Vaswani et al., Attention Is All You Need (2017), section 3.2.3: illegal connections are set to minus "
    "infinity in the input of the softmax",
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
