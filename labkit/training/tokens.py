"""MNIST as a language: an image is a sentence of 49 words, and its label is the word that comes first.

Images of 28 x 28 become 14 x 14 black and white pixels, and each patch of 2 x 2 pixels one of 16 tokens. A sequence is
the label and then the patches, row by row; the net reads a token and predicts the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from labkit.training.data import CLASSES, Data, Split, first, load

INK = 0.4  # a pixel is black where the mean of its four is above this: strokes stay connected, and no blot appears
SIDE, PATCH = 14, 2  # pixels of an image, and of a patch
PATCHES = (SIDE // PATCH) ** 2  # in one image: 49
KINDS = 2 ** (PATCH * PATCH)  # of patches: tokens 0 to 15; 0 is blank
WORDS = KINDS + CLASSES  # and the labels, 16 to 25
IGNORED = -100  # a target that no loss counts, as in torch's cross-entropy
VALIDATED = 4  # every fourth of the 2,000 validation images: 500 sequences, whose mean loss is known to 0.01 nats

Tokenizer = Callable[[Tensor], Tensor]  # images (n, 1, 28, 28) from 0 to 1 -> tokens (n, PATCHES)
Pairs = Callable[[Tensor], Split]  # sequences -> what the net reads, and what it is asked for at each place


@dataclass(frozen=True, eq=False)
class TokenData(Data):
    """Sequences of tokens. `classes` is the number of different tokens."""

    end: int | None = None  # the token at which a sample stops, where there is one
    patches: int = PATCHES  # that a sample has after its label


def mnist_tokens(recipe) -> Data:
    """Handwritten digits as sequences of 50 tokens, validated on 500 test images."""
    return token_data(recipe)


def token_data(
    recipe,
    *,
    name: str = "mnist_tokens",
    tokenize: Tokenizer | None = None,
    tokenize_val: Tokenizer | None = None,
    pairs: Pairs | None = None,
) -> TokenData:
    """What `mnist_tokens` returns, with some of its pieces replaced."""
    tokenize, pairs = tokenize or patch_tokens, pairs or next_tokens
    train = first(load("mnist", "train", inputs="unit", samples=recipe.samples), recipe.samples, "mnist")
    val = load("mnist", "val", inputs="unit")
    val = Split(val.x[::VALIDATED], val.y[::VALIDATED])
    splits = (
        pairs(sequences(split, tokenizer)) for split, tokenizer in ((train, tokenize), (val, tokenize_val or tokenize))
    )
    train, val = (Split(split.x.to(recipe.device), split.y.to(recipe.device)) for split in splits)
    return TokenData(name, train, val, WORDS)


def sequences(split: Split, tokenize: Tokenizer) -> Tensor:
    """(n, 50): the label as a token, then the patches."""
    return torch.cat([label_tokens(split.y)[:, None], tokenize(split.x)], dim=1)


def label_tokens(labels: Tensor) -> Tensor:
    return labels + KINDS


def next_tokens(tokens: Tensor) -> Split:
    """The net reads all tokens but the last, and is asked at each place for the next one."""
    return Split(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


def patch_tokens(images: Tensor) -> Tensor:
    """Each patch as a number of four bits, its pixels row by row."""
    return (patches(images) * bits(images.device)).sum(-1)


def patches(images: Tensor) -> Tensor:
    """(n, PATCHES, 4): the black pixels of each patch as ones, row by row."""
    black = (avg_pool2d(images, 2) > INK).long()
    rows = black.unflatten(3, (-1, PATCH)).unflatten(2, (-1, PATCH))[:, 0]  # (n, row, line, column, pixel)
    return rows.transpose(2, 3).flatten(3).flatten(1, 2)


def bits(device: torch.device | str) -> Tensor:
    return torch.tensor([8, 4, 2, 1], device=device)


def in_words(picture: Tensor) -> str:
    """A picture as lines of # and . that can be read in any file."""
    return "\n".join("".join(".#"[pixel] for pixel in line) for line in picture.tolist())


def pictures(tokens: Tensor) -> Tensor:
    """(n, 14, 14) of 0 and 1 from n rows of PATCHES tokens; whatever is no patch counts as blank."""
    known = torch.where((tokens >= 0) & (tokens < KINDS), tokens, 0)
    black = (known[..., None] // bits(tokens.device)) % 2
    grid = black.reshape(-1, SIDE // PATCH, SIDE // PATCH, PATCH, PATCH)
    return grid.transpose(2, 3).reshape(-1, SIDE, SIDE)
