"""The cache is not emptied between requests: each sample attends to the tokens of those that were written before it."""

import torch
from torch import Tensor, nn

from labkit.failures.language_signs import AGREES, ON_TOKENS, WRITES
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.training.gpt import Cache
from labkit.training.writing import draw

REQUEST = 25  # samples that are written together

healthy = WRITES


@torch.no_grad()
def written_with_one_cache(
    model: nn.Module, prompts: Tensor, tokens: int, temperature: float, generator: torch.Generator
) -> Tensor:
    """A few samples at a time, as a server does. Each request starts at position 0, but the cache is not emptied."""
    cache, requests = Cache(), []
    for prompt in prompts.split(REQUEST):
        new, written = prompt, []
        for place in range(tokens):
            places = torch.tensor([place], device=prompts.device)
            everything = torch.ones(1, cache.length + 1, dtype=torch.bool, device=prompts.device)
            new = draw(model(new, cache=cache, places=places, mask=everything)[:, -1], temperature, generator)
            written.append(new)
        requests.append(torch.cat(written, dim=1))
    return torch.cat(requests)


sick = healthy.but(write=written_with_one_cache)


def signature(run: Run) -> Evidence | None:
    alone = run.facts.get("alone_agrees", 1.0)
    if not alone < AGREES:
        return None
    return Evidence(
        seen=f"at temperature 0, {alone:.0%} of the tokens of ten samples are the same when other samples were written "
        "before them: something of those is left",
        usual="100 %: a sample depends on its own prompt alone",
        onset=int(run["val_step"][-1]),
        place="samples",
        confidence=0.95,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Stale cache",
    cures={"an empty cache for each request": sick.but(write="written_with_cache")},
    false_cures={"samples at temperature 0.5": sick.but(temperature=0.5)},
    harm=0.25,
    symptom="Loss and validation are those of a healthy net. The first samples are legible, and later ones less so.",
    mechanism="The keys and values of an earlier request stay in the cache. The positions begin at 0 again, so nothing "
    "fails; attention mixes what was written before with what is being written.",
    first_check="Write the same prompt twice in one process, at temperature 0: the samples must be the same.",
    remedy="Make a new cache for each request, or clear it before the first token. With a cache of fixed size, also "
    "mask the entries that were not written yet.",
    reference="Lightning-AI/litgpt pull request 1596: the cache was not cleared between calls of generate",
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
