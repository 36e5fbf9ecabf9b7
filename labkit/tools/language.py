"""Does a language model look ahead, and which token does it predict? For any net of whole numbers to logits.

Each function takes a net that maps tokens (sample, token) to logits (sample, token, word), and leaves it as it was.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from labkit.recording import token_tests
from labkit.recording.nested import call, first_tensor
from labkit.recording.undisturbed import evaluating, replaying

# Change of the logits, relative to their deviation, from which a net looks ahead. In float32 rounding stays below 1e-5,
# and fresh nets with a leak are at 0.01 to 2. In 16 bits a shorter sequence alone is rounded by up to 0.02.
LEAK, LEAK_IN_16_BITS = 1e-3, 0.05


@dataclass(frozen=True)
class Causality:
    """How far the first half of the outputs depends on the second half of the tokens."""

    changed: float  # later tokens replaced by others
    cut: float  # later tokens cut off; NaN for a net that takes sequences of one length only
    leak: float = LEAK  # from which on either is more than rounding

    @property
    def is_causal(self) -> bool:
        return not (self.changed > self.leak or self.cut > self.leak)

    def __bool__(self) -> bool:
        return self.is_causal

    def __str__(self) -> str:
        found = f"later tokens change the logits by {self.changed:.2g} of their deviation, cut off by {self.cut:.2g}"
        return f"{'causal' if self.is_causal else 'looks ahead'}: {found}"


@dataclass(frozen=True)
class ShiftScan:
    """Cross-entropy of the outputs in nats against three tokens: what does the net predict?"""

    same: float  # the token that was just read
    next: float
    second_next: float

    @property
    def predicts(self) -> str:
        """'same', 'next' or 'second_next': the one with the smallest loss."""
        return min(("same", "next", "second_next"), key=lambda name: getattr(self, name))

    def __str__(self) -> str:
        return f"loss against the same token {self.same:.3g}, the next {self.next:.3g}, after it {self.second_next:.3g}"


@dataclass(frozen=True)
class Samples:
    """What was written: how often each token occurs, and how many samples stop."""

    shares: tuple[float, ...]
    stopped: float | None  # None where there is no token to stop at
    surprise: float | None  # nats per token, by the net that wrote them


def causality(model: nn.Module, tokens: Any) -> Causality:
    """Change the later tokens, and cut them off: do the logits before them change? In a causal net they do not.

    `tokens`: (sample, token) as whole numbers, or a dictionary of inputs with `input_ids`. Works before training.
    """
    with _examined(model, tokens) as outputs:
        found = token_tests.looks_ahead(model, tokens, outputs)
    leak = LEAK if outputs.dtype in (torch.float32, torch.float64) else LEAK_IN_16_BITS
    return Causality(float(found["leak_changed"]), float(found["leak_cut"]), leak)


def shift_scan(model: nn.Module, tokens: Any) -> ShiftScan:
    """The loss of a trained net against the token that it reads, the next one and the one after it."""
    with _examined(model, tokens) as outputs:
        return ShiftScan(*token_tests.shift_losses(_ids(tokens), outputs).tolist())


def loss_by_position(model: nn.Module, tokens: Any) -> Tensor:
    """(token - 1,): the mean loss in nats of predicting the next token, at each position."""
    with _examined(model, tokens) as outputs:
        return token_tests.losses_by_place(outputs[:, :-1], _ids(tokens)[:, 1:])["position_loss"]


def loss_by_token(model: nn.Module, tokens: Any) -> Tensor:
    """(word,): the mean loss in nats where this is the next token; NaN for words that do not occur."""
    with _examined(model, tokens) as outputs:
        found = token_tests.losses_by_place(outputs[:, :-1], _ids(tokens)[:, 1:])
    if "word_loss" not in found:
        raise ValueError(f"expected at most {token_tests.MOST_WORDS} words, got {outputs.shape[2]}")
    return found["word_loss"]


def cache_difference(
    model: nn.Module, tokens: Tensor, step: Callable[[Tensor, Any], tuple[Tensor, Any]] | None = None
) -> float:
    """The largest difference between logits with and without a cache; 1e-5 is rounding, 1e-2 in 16 bits.

    `step(new_tokens, state)` returns the logits of the new tokens (sample, 1, word) and the next state; the first state
    is None. Without it the net has `new_cache()`, and its `forward` takes `cache=`, as labkit's GPT.
    """
    if step is None and not hasattr(model, "new_cache"):
        raise ValueError("step: expected step(new_tokens, state) -> (logits, state), or a net with new_cache()")
    with _examined(model, tokens) as outputs:
        if step is None:
            return float(token_tests.cache_difference(model, tokens, outputs))
        found, state = [], None
        for one in tokens.split(1, dim=1):
            logits, state = step(one, state)
            found.append(logits)
        return float((torch.cat(found, dim=1).float() - outputs.float()).abs().max())


def samples(written: Tensor, words: int, *, end: int | None = None, model: nn.Module | None = None,
            prompts: Tensor | None = None) -> Samples:  # fmt: skip
    """What samples (sample, token) consist of. With the net and its prompts also how much they surprise it."""
    stopped = None if end is None else token_tests.stopped_share(written, end)
    surprise = None
    if model is not None and prompts is not None:
        with _undisturbed(model, prompts):
            surprise = token_tests.surprise(model, prompts, written)
    return Samples(tuple(token_tests.written_shares(written, words)), stopped, surprise)


def _ids(tokens: Any) -> Tensor:
    ids = token_tests.tokens_of(tokens)
    if ids is None:
        given = tuple(tokens.shape) if torch.is_tensor(tokens) else type(tokens).__name__
        kind = f" of {tokens.dtype}" if torch.is_tensor(tokens) else ""
        raise ValueError(f"tokens: expected whole numbers (sample, token), at least 4 in a row, got {given}{kind}")
    return ids


@contextlib.contextmanager
def _undisturbed(model: nn.Module, tokens: Tensor) -> Iterator[None]:
    with replaying(model, tokens.device), evaluating(model):
        yield


@contextlib.contextmanager
def _examined(model: nn.Module, tokens: Any) -> Iterator[Tensor]:
    """The logits for these tokens. Inside, the net is in eval mode; afterwards it is as it was."""
    ids = _ids(tokens)
    with _undisturbed(model, ids):
        outputs = first_tensor(call(model, tokens))
        if outputs is None or not token_tests.reads_and_predicts_tokens(tokens, outputs):
            found = None if outputs is None else tuple(outputs.shape)
            raise ValueError(
                f"the net: expected logits (sample, token, word) for tokens {tuple(ids.shape)} below the number of "
                f"words, got {found}; give a net that returns logits for every token"
            )
        yield outputs
