"""Samples that a language model writes, token by token, and a judge that reads them.

The judge is a small classifier of real images. It says which share of the samples is legible as the digit that they
were asked for: what no loss tells, because a loss is computed on sequences that the net did not write.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from labkit.recording.undisturbed import evaluating
from labkit.training.data import CLASSES, load
from labkit.training.gpt import Cache
from labkit.training.tokens import PATCHES, SIDE, label_tokens, patch_tokens, pictures

if TYPE_CHECKING:
    from labkit.training.protocols import WritePart

SAMPLES = 100  # that the judge reads: ten of each digit; at 0.7 legible the standard error is 0.05


def written_with_cache(
    model: nn.Module, prompts: Tensor, tokens: int, temperature: float, generator: torch.Generator
) -> Tensor:
    """The net reads each token once: the keys and values of the earlier ones are in a cache."""
    return torch.cat(list(one_by_one(model, prompts, tokens, temperature, generator)), dim=1)


def one_by_one(
    model: nn.Module, prompts: Tensor, tokens: int, temperature: float, generator: torch.Generator
) -> Iterator[Tensor]:
    """The same, as it is written: (samples, 1) for each token."""
    cache, new = Cache(), prompts
    for _ in range(tokens):
        with torch.no_grad():
            new = draw(model(new, cache=cache)[:, -1], temperature, generator)
        yield new


@torch.no_grad()
def written_without_cache(
    model: nn.Module, prompts: Tensor, tokens: int, temperature: float, generator: torch.Generator
) -> Tensor:
    """The net reads everything again for each token: slower, and nothing can be out of date."""
    sequence = prompts
    for _ in range(tokens):
        sequence = torch.cat([sequence, draw(model(sequence)[:, -1], temperature, generator)], dim=1)
    return sequence[:, prompts.shape[1] :]


WRITERS = (written_with_cache, written_without_cache)


def draw(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """(samples, 1): one token for each row of logits; the most likely one at temperature 0.

    The random numbers come from the CPU's generator, so that a seed gives the same draws on every device.
    """
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    below = (logits.float() / temperature).softmax(-1).cumsum(-1)
    height = torch.rand(len(logits), 1, generator=generator).to(below.device)
    return torch.searchsorted(below, height).clamp_max(logits.shape[-1] - 1)  # the sum may be 1 - 1e-7


def write_digits(
    model: nn.Module,
    write: WritePart = written_with_cache,
    *,
    samples: int = SAMPLES,
    tokens: int = PATCHES,
    temperature: float = 1.0,
    seed: int = 0,
) -> Tensor:
    """(samples, tokens): what the net writes when it is asked for 0, 1, ... 9, 0, 1, ...; in eval mode."""
    begun = prompts(samples, next(model.parameters()).device)
    with evaluating(model), torch.no_grad():
        return write(model, begun, tokens, temperature, torch.Generator().manual_seed(seed))


MANY = 50  # prompts that are written together, to compare the last ten of them


def agreements(model: nn.Module, write: WritePart) -> dict[str, float]:
    """Shares of tokens that are the same at temperature 0, when only the way of writing differs.

    `rereading_agrees`: one sample of each digit, by this writer and by one without a cache. `alone_agrees`: the same
    samples, after forty others. Both are 1, but for the rounding of a tie.
    """
    alone, after = (write_digits(model, write, samples=count, temperature=0)[-CLASSES:] for count in (CLASSES, MANY))
    reread = write_digits(model, written_without_cache, samples=CLASSES, temperature=0)
    return {
        "rereading_agrees": (alone == reread).float().mean().item(),
        "alone_agrees": (alone == after).float().mean().item(),
    }


def prompts(samples: int, device: torch.device) -> Tensor:
    """(samples, 1): the tokens that `write_digits` begins with."""
    return label_tokens(asked(samples))[:, None].to(device)


def asked(samples: int) -> Tensor:
    """The digits that `write_digits` asks for."""
    return torch.arange(samples) % CLASSES


# --- the judge ------------------------------------------------------------------------------------

# 95.3 % of the test images in one second; 60,000 images and 800 steps reach 95.7 %. Black and white costs 3 points.
TRAINED_ON, STEPS, BATCH, WIDTH, RATE = 30_000, 500, 256, 256, 8e-3


def legible(written: Tensor) -> float:
    """The share of samples that the judge reads as the digit that they were asked for; of real images, 0.95."""
    written = written.cpu()
    return (read(pictures(written[:, :PATCHES])) == asked(len(written))).float().mean().item()


@torch.no_grad()
def read(images: Tensor) -> Tensor:
    """The digit that the judge sees in each image of 14 x 14 black and white pixels."""
    return judge()(images.float()).argmax(1)


@functools.cache
def judge() -> nn.Module:
    """A perceptron, trained on real images: in a second, and once in a process.

    Its weights depend on nothing but this code, and it changes no random numbers of others.
    """
    split = load("mnist", "train", inputs="unit", samples=TRAINED_ON)
    images = pictures(patch_tokens(split.x[:TRAINED_ON])).float()
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))
        optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
        decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, STEPS)
        for _ in range(STEPS):
            batch = torch.randint(len(images), (BATCH,))
            optimizer.zero_grad()
            cross_entropy(net(images[batch]), split.y[batch]).backward()
            optimizer.step()
            decay.step()
    return net.eval().requires_grad_(False)
