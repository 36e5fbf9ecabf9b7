"""Every token that is written gets the position after its own: the cache was extended before it was counted."""

import torch
from torch import Tensor

from labkit.failures.language_signs import ON_TOKENS, WRITES, cached_positions, differs_with_cache
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.training.tokens import PATCHES

healthy = WRITES


def one_too_far(seen: int, tokens: int, device: torch.device) -> Tensor:
    """The prompt is right, and each token after it is one position ahead; the last one would be beyond the table."""
    first = seen + 1 if seen else 0
    return torch.arange(first, first + tokens, device=device).clamp_max(PATCHES - 1)


sick = healthy.but(places=one_too_far)


def signature(run: Run) -> Evidence | None:
    if cached_positions(run) != "ahead":
        return None
    return differs_with_cache(
        run,
        "a repeated token has the logits of the position after its own",
        "those of its own position",
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Cached positions one ahead",
    cures={"positions counted on from the length of the cache": sick.but(places="counted_on")},
    harm=0.4,
    symptom="Loss and validation are those of a healthy net, to the last digit. What the net writes is distorted.",
    mechanism="In training and in validation the net reads whole sequences, and the positions are right. With a cache "
    "each new token is placed one position too far, so the net writes what comes after what is due.",
    first_check="Compare the logits of a sequence read at once with those read token by token through the cache: "
    "`labkit.tools.cache_difference`. Rounding is 1e-5.",
    remedy="Read the length of the cache before the new token is added to it. Test the cache against a full forward "
    "pass on the same tokens, longer than one token.",
    reference="huggingface/nanoVLM issue 204; Pope et al., Efficiently Scaling Transformer Inference (2022)",
    looks="nothing",
    shows="cache_difference",
    knobs=(
        Knob("write", ("written_with_cache", "written_without_cache")),
        Knob("steps", (100, 600)),
        Knob("temperature", (0.0, 1.5)),
    ),
    not_on_cifar10=ON_TOKENS,
    where=("cache",),
)
