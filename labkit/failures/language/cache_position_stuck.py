"""Every token that is written gets position 0: with a cache, the net reads one token, and counts from its start."""

import torch
from torch import Tensor

from labkit.failures.language_signs import ON_TOKENS, WRITES, cached_positions, differs_with_cache
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run

healthy = WRITES


def counted_from_zero(seen: int, tokens: int, device: torch.device) -> Tensor:
    """The positions of the tokens in this call, whatever is in the cache."""
    return torch.arange(tokens, device=device)


sick = healthy.but(places=counted_from_zero)


def signature(run: Run) -> Evidence | None:
    if cached_positions(run) != "stuck":
        return None
    return differs_with_cache(
        run,
        "a repeated token has the same logits each time: its position does not advance",
        "logits that differ from position to position by 0.2 to 0.7 of their deviation",
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Cached positions stuck at 0",
    cures={"positions counted on from the length of the cache": sick.but(places="counted_on")},
    false_cures={"samples at temperature 0.5": sick.but(temperature=0.5)},
    harm=0.6,
    symptom="Loss and validation are those of a healthy net, to the last digit. What the net writes is useless.",
    mechanism="In training and in validation the net reads whole sequences, and the positions 0, 1, 2, ... are right. "
    "With a cache it reads one token per call, and arange(1) is 0 every time.",
    first_check="Compare the logits of a sequence read at once with those read token by token through the cache: "
    "`labkit.tools.cache_difference`. Rounding is 1e-5.",
    remedy="Add the number of tokens in the cache: arange(seen, seen + tokens). Test the cache against a full forward "
    "pass on the same tokens.",
    reference="lucidrains/x-transformers issue 219; Pope et al., Efficiently Scaling Transformer Inference (2022)",
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
