"""A small GPT, written out: embeddings, blocks of attention and a perceptron, and logits for the next token.

What a language model most often gets wrong is a function of its own here, and a part of the recipe: which tokens a
token may see (`mask`), the softmax (`attend`), how heads are separated and joined (`split_heads`, `merge_heads`), and
which place a token has (`places`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from labkit.errors import RecipeError
from labkit.recording.meters import AttentionWeights
from labkit.training.models import ACTIVATIONS

if TYPE_CHECKING:
    from labkit.training.data import Data
    from labkit.training.language import LanguageRecipe

# --- the parts of attention -----------------------------------------------------------------------


def causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """(queries, keys), True where a query may attend: to itself and to what came before.

    The queries are the last tokens of the keys: all of them in training, one while a sample is written with a cache.
    """
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Attention weights: each query's add up to 1 over the keys that it may see."""
    return scores.masked_fill(~mask, -math.inf).softmax(dim=-1)


def heads_apart(x: Tensor, heads: int) -> Tensor:
    """(sample, token, width) -> (sample, head, token, width / heads)."""
    return x.unflatten(2, (heads, -1)).transpose(1, 2)


def heads_joined(x: Tensor) -> Tensor:
    """(sample, head, token, width / heads) -> (sample, token, width)."""
    return x.transpose(1, 2).flatten(2)


def counted_on(seen: int, tokens: int, device: torch.device) -> Tensor:
    """The places of the next tokens, when `seen` are in the cache: seen, seen + 1, ..."""
    return torch.arange(seen, seen + tokens, device=device)


# --- the net --------------------------------------------------------------------------------------


def gpt(recipe: Any, data: Data) -> nn.Module:
    """A GPT of `depth` blocks of `width` features and `heads` heads, for the tokens of the data."""
    if not hasattr(recipe, "split_heads"):
        raise RecipeError("gpt needs labkit.LanguageRecipe, which has its entries, got a Recipe")
    if data.train.x.is_floating_point():
        raise RecipeError(f"gpt reads tokens, and the data {data.name} are images; use data='mnist_tokens'")
    if recipe.width % recipe.heads:
        raise RecipeError(f"width {recipe.width} must be a multiple of heads {recipe.heads}; change one of the two")
    return GPT(recipe, words=data.classes, length=data.train.x.shape[1])


class Cache:
    """Keys and values of the tokens that were read, block by block, so that nothing is read twice."""

    def __init__(self) -> None:
        self.read: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    @property
    def length(self) -> int:
        """How many tokens were read."""
        return next((key.shape[2] for key, _ in self.read.values()), 0)

    def extended(self, block: nn.Module, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values of this block, these last ones included; they are kept for the next call."""
        if block in self.read:
            earlier = self.read[block]
            key, value = torch.cat([earlier[0], key], dim=2), torch.cat([earlier[1], value], dim=2)
        self.read[block] = key, value
        return key, value


class GPT(nn.Module):
    """Tokens (sample, token) to logits (sample, token, word)."""

    def __init__(self, recipe: LanguageRecipe, words: int, length: int):
        super().__init__()
        self.mask, self.places, self.length = recipe.mask, recipe.places, length
        self.embed = nn.Embedding(words, recipe.width)
        self.positions = nn.Embedding(length, recipe.width) if recipe.positions == "learned" else None
        self.dropout = nn.Dropout(recipe.dropout)
        self.blocks = nn.ModuleList(Block(recipe) for _ in range(recipe.depth))
        self.norm = nn.LayerNorm(recipe.width) if recipe.norm_order == "pre" else nn.Identity()
        self.head = nn.Linear(recipe.width, words, bias=False)
        self._initialise(recipe)
        if recipe.tied:
            self.head.weight = self.embed.weight

    def forward(
        self, tokens: Tensor, cache: Cache | None = None, places: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """With a cache, `tokens` are the new ones. `places` and `mask` are needed only where samples are padded."""
        seen = cache.length if cache else 0
        x = self.embed(tokens)
        if self.positions is not None:
            x = x + self.positions(self.places(seen, tokens.shape[1], tokens.device) if places is None else places)
        if mask is None:
            mask = self.mask(tokens.shape[1], seen + tokens.shape[1], tokens.device)
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x, mask, cache)
        return self.head(self.norm(x))

    def new_cache(self) -> Cache:
        """An empty cache, for `forward`."""
        return Cache()

    def _initialise(self, recipe: LanguageRecipe) -> None:
        """Matrices from N(0, init_scale), embeddings from N(0, embedding_scale), biases 0.

        The two layers of a block that add to the residual stream begin smaller, by sqrt(2 depth): its size then does
        not grow with the depth (Radford et al. 2019).
        """
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=recipe.init_scale)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=recipe.embedding_scale)
        with torch.no_grad():
            for name, weight in self.named_parameters():
                if name.endswith(("attention.out.weight", "layer2.weight")):
                    weight.div_(math.sqrt(2 * recipe.depth))


class Block(nn.Module):
    """Attention, then a perceptron for each token; a norm before each of them ("pre") or after it ("post")."""

    def __init__(self, recipe: LanguageRecipe):
        super().__init__()
        width = recipe.width
        self.pre, self.residual = recipe.norm_order == "pre", recipe.residual
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = CausalAttention(recipe)
        self.layer1, self.layer2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.act, self.dropout = ACTIVATIONS[recipe.activation](), nn.Dropout(recipe.dropout)

    def forward(self, x: Tensor, mask: Tensor, cache: Cache | None) -> Tensor:
        if self.pre:
            x = self._add(x, self.attention(self.norm1(x), mask, cache))
            return self._add(x, self._perceptron(self.norm2(x)))
        x = self.norm1(self._add(x, self.attention(x, mask, cache)))
        return self.norm2(self._add(x, self._perceptron(x)))

    def _perceptron(self, x: Tensor) -> Tensor:
        return self.layer2(self.act(self.layer1(x)))

    def _add(self, x: Tensor, change: Tensor) -> Tensor:
        return x + self.dropout(change) if self.residual else self.dropout(change)


class CausalAttention(nn.Module):
    """Each token asks the tokens that it may see: query times key says whom, and the values are what it gets."""

    def __init__(self, recipe: LanguageRecipe):
        super().__init__()
        width, self.heads = recipe.width, recipe.heads
        self.split_heads, self.merge_heads = recipe.split_heads, recipe.merge_heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        size = width // recipe.heads
        self.query_norm, self.key_norm = (nn.LayerNorm(size) if recipe.qk_norm else nn.Identity() for _ in range(2))
        self.weights = MaskedWeights(recipe)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor, cache: Cache | None) -> Tensor:
        query, key, value = (self.split_heads(each(x), self.heads) for each in (self.query, self.key, self.value))
        query, key = self.query_norm(query), self.key_norm(key)
        if cache is not None:
            key, value = cache.extended(self, key, value)
        return self.out(self.merge_heads(self.weights(query, key, mask) @ value))


class MaskedWeights(AttentionWeights):
    """The attention weights as a module of their own, so that the instruments can read them."""

    def __init__(self, recipe: LanguageRecipe):
        super().__init__()
        self.attend = recipe.attend

    def forward(self, query: Tensor, key: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        return self.attend(self.scores(query, key), mask)
