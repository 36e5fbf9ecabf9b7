"""Prompts are padded on the left, and the net sees the padding and counts it: samples begin in the wrong place."""

import torch
from torch import Tensor, nn

from labkit.failures.language_signs import AGREES, ON_TOKENS, WRITES
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.training import gpt
from labkit.training.writing import draw

PADS, PAD = 8, 0  # as many as a prompt that is 8 tokens shorter than the longest; 0 is the usual id of padding
ROOM = 64  # positions of the net: more than the 49 it is trained on, as in any GPT that is to write after padding


def gpt_with_room(recipe, data) -> nn.Module:
    """The usual GPT with a longer table of positions."""
    return gpt.GPT(recipe, words=data.classes, length=ROOM)


@torch.no_grad()
def written_behind(
    model: nn.Module, prompts: Tensor, tokens: int, temperature: float, generator: torch.Generator, *, masked: bool,
    counted: bool,
) -> Tensor:  # fmt: skip
    """Samples after `PADS` pads. `masked`: no token sees them; `counted`: they have positions of their own."""
    cache, written = gpt.Cache(), []
    new = torch.cat([prompts.new_full((len(prompts), PADS), PAD), prompts], dim=1)
    for _ in range(tokens):
        seen, count = cache.length, new.shape[1]
        mask = gpt.causal_mask(count, seen + count, new.device)
        if masked:  # a pad sees itself: a query that sees nothing has no softmax
            itself = torch.arange(seen, seen + count, device=new.device)[:, None]
            keys = torch.arange(seen + count, device=new.device)
            mask = mask & ((keys >= PADS) | (keys == itself))
        places = torch.arange(seen, seen + count, device=new.device)
        places = places if counted else (places - PADS).clamp_min(0)
        new = draw(model(new, cache=cache, places=places, mask=mask)[:, -1], temperature, generator)
        written.append(new)
    return torch.cat(written, dim=1)


def written_behind_padding(model, prompts, tokens, temperature, generator):
    """Nobody tells the net which tokens are padding."""
    return written_behind(model, prompts, tokens, temperature, generator, masked=False, counted=True)


def written_behind_masked_padding(model, prompts, tokens, temperature, generator):
    """A mask, but the positions count the padding."""
    return written_behind(model, prompts, tokens, temperature, generator, masked=True, counted=True)


def written_behind_uncounted_padding(model, prompts, tokens, temperature, generator):
    """The right positions, but the net sees the padding."""
    return written_behind(model, prompts, tokens, temperature, generator, masked=False, counted=False)


def written_behind_ignored_padding(model, prompts, tokens, temperature, generator):
    """A mask, and positions that begin after the padding: the samples are those without it."""
    return written_behind(model, prompts, tokens, temperature, generator, masked=True, counted=False)


healthy = WRITES.but(model=gpt_with_room)
sick = healthy.but(write=written_behind_padding)


def signature(run: Run) -> Evidence | None:
    read, asked = (run.facts.get(name, 0) for name in ("length_read_first", "prompt_length"))
    same = run.facts.get("rereading_agrees", 1.0)
    if not read > asked or not same < AGREES:
        return None
    return Evidence(
        seen=f"the net read {read} tokens where the prompt has {asked}, and at temperature 0 only {same:.0%} of the "
        "tokens are those that it writes after the prompt alone",
        usual="100 %: what stands before the prompt as padding changes nothing",
        onset=int(run["val_step"][-1]),
        place="samples",
        confidence=0.9,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Left padding seen and counted",
    cures={"a mask for the padding, and positions that begin after it": sick.but(write=written_behind_ignored_padding)},
    false_cures={
        "a mask alone: the positions still count the padding": sick.but(write=written_behind_masked_padding),
        "positions alone: the net still sees the padding": sick.but(write=written_behind_uncounted_padding),
    },
    harm=0.6,
    symptom="Loss and validation are those of a healthy net. Alone, a prompt gives a legible sample; in a batch with "
    "longer prompts it does not: here the digits are shifted, by more than a row.",
    mechanism="Shorter prompts are filled up on the left. Without a mask the net attends to the padding, and without "
    "positions of its own the sample begins where the padding ends, at a position that never began a sequence in "
    "training.",
    first_check="Write at temperature 0 from one prompt alone, and from the same prompt in a batch with a longer one: "
    "the samples must be the same.",
    remedy="Pass the attention mask, and compute the positions from it: mask.cumsum(-1) - 1. Both are needed.",
    reference="unslothai/unsloth issue 3699: garbage for padded prompts in batched generation",
    looks="nothing",
    shows="written",
    knobs=(
        Knob("steps", (100, 600)),
        Knob("temperature", (0.0, 1.5)),
        Knob("write", ("written_with_cache", "written_without_cache")),
    ),
    not_on_cifar10=ON_TOKENS,
    where=("samples",),
)
