"""Tests of a net that predicts the next token: does it look ahead, which token does it predict, where is its loss?

For any net that maps whole numbers (sample, token) to logits (sample, token, word): a GPT, an LSTM, torch's encoder
with a mask. Each needs a few forward passes of a few sequences. Whoever calls them keeps the net in eval mode and
restores its buffers and random numbers: `undisturbed.py`.
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from labkit.recording.nested import Call, call, first_tensor, given, replaced, with_tensors

SEQUENCES = 16  # that are tested: a net looks ahead in all of them or in none
SHIFTS = (0, 1, 2)  # the token that was read, the next one, the one after it
IGNORED = -100  # a target that cross-entropy leaves out
MOST_WORDS = 1000  # up to which the loss is recorded for each word
TOKENS = "input_ids"  # the name of the tokens in a dictionary of inputs
REPEATED, CACHED = 4, 16  # sequences, and tokens of each, that are read one by one to see which positions they have
AHEAD = (0, 1, -1, 2, -2)  # positions that a cached token may be ahead by
OF_THE_LOSS = ("padding", "padding_word")  # found by `what_counts`, and true of the loop's own loss alone
SURE = 10.0  # the logit of the one word that a perfect prediction names


def tokens_of(x: Any) -> torch.Tensor | None:
    """The tokens (sample, token) among the inputs of a net; None where there are none."""
    named = x.named if isinstance(x, Call) else x if isinstance(x, Mapping) else {}
    ids = named.get(TOKENS, given(x.positional, x.named) if isinstance(x, Call) else x)
    if not torch.is_tensor(ids) or ids.ndim != 2 or ids.is_floating_point() or ids.dtype == torch.bool:
        return None
    return ids if ids.shape[1] > max(SHIFTS) + 1 and len(ids) else None


def reads_and_predicts_tokens(x: Any, outputs: Any) -> bool:
    """Are there logits for each token, and are the tokens among the words that they are for?"""
    ids = tokens_of(x)
    if ids is None or not torch.is_tensor(outputs) or outputs.ndim != 3 or not outputs.is_floating_point():
        return False
    # One question, because a GPU has to wait for its answer.
    return outputs.shape[:2] == ids.shape and bool(((ids >= 0) & (ids.long() < outputs.shape[2])).all())


def replaced_tokens(x: Any, ids: torch.Tensor) -> Any:
    """The same inputs with other tokens, perhaps fewer: what has one entry per token is cut off with them."""
    old = tokens_of(x)
    assert old is not None
    samples, tokens = ids.shape

    def changed(tensor: torch.Tensor) -> torch.Tensor:
        if tensor is old:
            return ids
        return tensor[:samples, :tokens].contiguous() if tensor.shape[:2] == old.shape else tensor

    return with_tensors(x, changed)


def few(x: Any, count: int = SEQUENCES) -> Any:
    """The first sequences."""
    ids = tokens_of(x)
    assert ids is not None
    return replaced_tokens(x, ids[:count])


@torch.no_grad()
def looks_ahead(model: nn.Module, x: Any, outputs: torch.Tensor) -> dict[str, torch.Tensor]:
    """How much the first half of the outputs depends on the second half of the tokens: 0 in a causal net.

    `leak_changed`: later tokens are replaced by others; `leak_cut`: they are cut off. Both are the root mean square
    change of the logits, relative to their standard deviation, at the position where it is largest: a net that sees one
    token ahead changes at a few positions alone. Some faults show in one of the two only. `..._by_position` has all of
    these positions: their pattern tells one leak from another. `own_token` is the same at the first position whose own
    token was changed: a net with skip connections reads its own token clearly, before the first step too.
    """
    x, ids = few(x), tokens_of(few(x))
    assert ids is not None
    cut, before = ids.shape[1] // 2 + 1, outputs[: len(ids)].float()
    other = ids.clone()
    other[:, cut:] = (ids[:, cut:].long() + 1) % (ids.max().long() + 1)  # bytes end at 255
    found = {"leak_changed": replaced_tokens(x, other), "leak_cut": replaced_tokens(x, ids[:, :cut])}
    apart = {name: _apart(model, each, before) for name, each in found.items()}
    places = {f"{name}_by_position": each[:cut] for name, each in apart.items()}
    largest = {name: each[:cut].amax() for name, each in apart.items()}
    return largest | places | {"own_token": apart["leak_changed"][cut]}


def _apart(model: nn.Module, x: Any, before: torch.Tensor) -> torch.Tensor:
    try:
        outputs = first_tensor(call(model, x))
    except (RuntimeError, ValueError, IndexError, TypeError):  # a net for sequences of one length
        outputs = None
    if outputs is None or outputs.ndim != 3:
        return torch.full((before.shape[1],), math.nan, device=before.device)
    change = outputs.float() - before[:, : outputs.shape[1]]
    return change.square().mean((0, 2)).sqrt() / before.std().clamp_min(1e-12)


@torch.no_grad()
def repeated_token(model: nn.Module, x: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences of one token each, repeated, and their logits: what differs along them is due to positions."""
    ids = tokens_of(few(x))
    assert ids is not None
    ids = ids[:, -1:].expand_as(ids).contiguous()
    outputs = first_tensor(call(model, replaced_tokens(x, ids)))
    assert outputs is not None
    return ids, outputs.float()


def position_signal(repeated: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """How much the logits differ from position to position where every token is the same, relative to their deviation.

    0 in a net that has no positions: it cannot tell the tenth token from the first. Attention with relative positions
    alone, such as rotary ones, gives 0 too.
    """
    return repeated.std(1).square().mean().sqrt() / outputs.float().std().clamp_min(1e-12)


@torch.no_grad()
def shift_losses(ids: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """(3,): the cross-entropy of the outputs against the token that was read, the next one, and the one after it.

    In nats, whatever the loss and the targets of the loop are. The smallest says what the net has learned to predict.
    """
    length = ids.shape[1] - max(SHIFTS)  # the same places for all three
    logits = outputs[:, :length].flatten(0, 1).float()
    return torch.stack([cross_entropy(logits, ids[:, shift : shift + length].flatten().long()) for shift in SHIFTS])


@torch.no_grad()
def losses_by_place(outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
    """The mean loss at each position and, of a small vocabulary, of each word; NaN where there is none. And log Z."""
    counted = (targets != IGNORED) & (targets >= 0) & (targets < outputs.shape[2])
    known = targets.clamp(0, outputs.shape[2] - 1).long()
    each = cross_entropy(outputs.float().transpose(1, 2), known, reduction="none")
    each = torch.where(counted, each, 0.0)
    found = {
        "position_loss": each.sum(0) / counted.sum(0),
        "log_z": outputs.float().logsumexp(-1).mean(),
    }
    if outputs.shape[2] <= MOST_WORDS:
        sums, counts = torch.zeros((2, outputs.shape[2]), device=outputs.device)
        sums.index_add_(0, known.flatten(), each.flatten())
        counts.index_add_(0, known.flatten(), counted.flatten().float())
        found["word_loss"] = sums / counts
    return found


@torch.no_grad()
def cache_difference(model: Any, x: Any, outputs: torch.Tensor) -> torch.Tensor:
    """The largest difference of logits when the net reads the tokens one by one with its cache.

    For nets with `new_cache()` and a `forward` that takes `cache=`; 1e-5 is rounding.
    """
    ids = tokens_of(few(x))
    assert ids is not None
    return (_read_one_by_one(model, ids) - outputs[: len(ids)].float()).abs().max()


def _read_one_by_one(model: Any, ids: torch.Tensor) -> torch.Tensor:
    cache = model.new_cache()
    return torch.cat([model(one, cache=cache) for one in ids.split(1, dim=1)], dim=1).float()


@torch.no_grad()
def cached_positions(
    model: Any, ids: torch.Tensor, repeated: torch.Tensor, outputs: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Which position a token has when it is read with the cache: one token, repeated, read one by one.

    `cached_position_signal`: as `position_signal`; 0 where all tokens have the same position. `cached_ahead`: by how
    many positions the reading without a cache must be shifted to be closest to it: 0 in a net that counts on.
    """
    ids, repeated = ids[:REPEATED, :CACHED], repeated[:REPEATED, :CACHED]
    cached = _read_one_by_one(model, ids)
    inside = slice(max(AHEAD), ids.shape[1] - max(AHEAD))
    distances = [
        (cached[:, inside] - repeated[:, inside.start + ahead : inside.stop + ahead]).square().mean() for ahead in AHEAD
    ]
    closest = torch.stack(distances).argmin()
    return {
        "cached_position_signal": position_signal(cached, outputs),
        "cached_ahead": torch.tensor(AHEAD, device=closest.device).take(closest).float(),
    }


def token_tests(model: nn.Module, x: Any, y: Any, outputs: Any) -> dict[str, torch.Tensor]:
    """All of them, as rows of an evaluation; empty for a net that does not predict tokens."""
    if not reads_and_predicts_tokens(x, outputs):
        return {}
    ids = tokens_of(x)
    assert ids is not None
    found = looks_ahead(model, x, outputs) | {"shift_loss": shift_losses(ids, outputs)}
    repeats, repeated = repeated_token(model, x)
    found["position_signal"] = position_signal(repeated, outputs)
    if torch.is_tensor(y) and y.shape == ids.shape and not y.is_floating_point():
        found |= losses_by_place(outputs, y)
    if hasattr(model, "new_cache"):
        found["cache_difference"] = cache_difference(model, x, outputs)
        if ids.shape[1] > 2 * max(AHEAD):
            found |= cached_positions(model, repeats, repeated, outputs)
    return found


@torch.no_grad()
def what_the_loss_asks(loss: Callable[[Any, Any], torch.Tensor], x: Any, y: Any, answer: Any) -> dict[str, float]:
    """The loss of outputs that name the token that was read, the next one or the one after it, and are sure of it.

    The smallest is what the net is asked for, wherever the shift is made: in the data, in the net or in the loss.
    `answer` is all that the net returns, with the outputs in it.
    """
    ids, outputs = tokens_of(x), first_tensor(answer)
    if ids is None or outputs is None or not reads_and_predicts_tokens(x, outputs):
        return {}
    ids, y = ids[:SEQUENCES], y[:SEQUENCES]
    found = {}
    for shift in SHIFTS:
        named = torch.cat([ids[:, shift:], ids[:, :shift]], dim=1).long()
        try:
            perfect = SURE * one_hot(named, outputs.shape[2]).to(outputs.dtype)
            value = loss(replaced(answer, outputs, perfect), y).float().mean()
        except (RuntimeError, ValueError, IndexError, ArithmeticError, AttributeError, TypeError):
            return {}  # a loss that wants more than logits
        found[f"asks_{shift}"] = float(value)
    return found


def what_counts(loss: Callable[[Any, Any], torch.Tensor], x: Any, y: Any, outputs: torch.Tensor) -> dict[str, float]:
    """Which targets the loss counts: a word that it leaves out, and padding that it does not leave out.

    Read from the gradient with respect to the outputs: at a place that does not count it is 0.
    """
    ids = tokens_of(x)
    if not torch.is_tensor(y) or ids is None or y.shape != ids.shape or y.is_floating_point():
        return {}
    few_y, flat = y[:SEQUENCES].long(), torch.zeros_like(outputs[:SEQUENCES]).requires_grad_()
    try:
        with torch.enable_grad():
            (slopes,) = torch.autograd.grad(loss(flat, few_y).float().mean(), flat)
    except (RuntimeError, ValueError, IndexError, ArithmeticError, AttributeError, TypeError):
        return {}  # a loss that wants more than logits, or does not depend on them
    heard = slopes.abs().sum(-1) > 0
    return uncounted_word(few_y, heard, outputs.shape[2]) | counted_padding(ids, y.long(), heard, outputs)


def uncounted_word(y: torch.Tensor, heard: torch.Tensor, words: int) -> dict[str, float]:
    """The word that the loss never counts although it stands between words that it counts, and its share of all.

    Padding stands at an end of a sequence, and targets of -100 are no words: neither is such a word.
    """
    known = (y >= 0) & (y < words)
    between = (heard.cumsum(1) > 0) & (heard.flip(1).cumsum(1).flip(1) > 0)
    left_out = y[known & between & ~heard]
    if not len(left_out):
        return {"uncounted": 0.0}
    word = left_out.mode().values
    if bool((heard & (y == word)).any()):  # a place that is left out, not a word
        return {"uncounted": 0.0}
    return {"uncounted": float((left_out == word).sum() / known.sum()), "uncounted_word": float(word)}


def counted_padding(ids: torch.Tensor, y: torch.Tensor, heard: torch.Tensor, outputs: torch.Tensor) -> dict[str, float]:
    """The padding that the loss counts, as a share of all targets, and the net's loss with it and without it.

    Padding is a word that fills sequences of different lengths up to one end, in the inputs as in the targets, and
    stands nowhere else. `heard`: of the first sequences, where the loss counts.
    """
    fills = padding(ids, y) | padding(ids.flip(1), y.flip(1)).flip(1)
    if not bool((heard & fills[: len(heard)]).any()):
        return {"padding": 0.0}
    known = (y >= 0) & (y < outputs.shape[2])
    each = cross_entropy(outputs[known].float(), y[known], reduction="none")
    return {
        "padding": float(fills.sum() / known.sum()),
        "padding_word": float(y[fills][0]),
        "loss_with_padding": float(each.mean()),
        "loss_without_padding": float(each[~fills[known]].mean()),
    }


def padding(ids: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """(sample, token): where the targets are padding at the end of their sequence."""
    word = y[:, -1].mode().values
    fills = (y != word).flip(1).cumsum(1).flip(1) == 0
    inside = fills[:, :-1] & fills[:, 1:]  # from the second on: at the first the net may still read a word
    if not bool(inside.any()) or len(fills.sum(1).unique()) == 1:
        return torch.zeros_like(fills)
    read = ids[:, 1:][inside].mode().values
    beside = fills | torch.cat([fills[:, 1:], torch.ones_like(fills[:, :1])], dim=1)
    elsewhere = ((y == word) & ~fills).any() | ((ids == read) & ~beside).any() | (ids[:, 1:] != read)[inside].any()
    return fills & ~elsewhere


def written_shares(written: torch.Tensor, words: int) -> list[float]:
    """How often each word occurs in samples, as shares."""
    counts = torch.bincount(written.flatten().clamp(0, words - 1).cpu(), minlength=words)
    return (counts / counts.sum()).tolist()


@contextlib.contextmanager
def lengths_read(model: nn.Module) -> Iterator[list[int]]:
    """How many tokens of each sample the net reads in each call: the first is the prompt, with all that was added."""
    lengths: list[int] = []
    handle = model.register_forward_pre_hook(lambda _, inputs: lengths.append(inputs[0].shape[1]))
    try:
        yield lengths
    finally:
        handle.remove()


def stopped_share(written: torch.Tensor, end: int) -> float:
    """The share of samples that contain the token at which they stop."""
    return (written == end).any(1).float().mean().item()


def until(written: torch.Tensor, end: int | None) -> torch.Tensor:
    """Samples in which every token after the first `end` is `end` too."""
    if end is None:
        return written
    ended = (written == end).cumsum(1) > 0
    return torch.where(ended, end, written)


@torch.no_grad()
def surprise(model: nn.Module, prompts: torch.Tensor, written: torch.Tensor, end: int | None = None) -> float:
    """Nats per token of samples, by the net that wrote them, read at once and without a cache.

    At temperature 1 as much as the loss on data, because the net draws from its own predictions. Far more where it is
    not the same net when it writes: a stale cache, other positions, padding that it sees. What follows the first `end`
    does not count.
    """
    outputs = first_tensor(model(torch.cat([prompts, written[:, :-1]], dim=1)))
    assert outputs is not None
    each = cross_entropy(outputs[:, prompts.shape[1] - 1 :].transpose(1, 2).float(), written, reduction="none")
    over = torch.zeros_like(written) if end is None else (written == end).cumsum(1) - (written == end).long()
    return each[over == 0].mean().item()


# --- do two sets of sequences use the same words for the same things? ------------------------------------

MOST_RELABELLED = 64  # words up to which swaps of all pairs are tried
SWAPS, GAIN = 16, 1e-3  # at most, and nats per token that a swap must gain: rare tokens fit by chance


def relabelled(trained: torch.Tensor, validated: torch.Tensor, words: int) -> dict[str, Any]:
    """Would the validation tokens follow one another as in training, if some of them changed their names?

    `as_is`: nats per token of the validation sequences by the frequencies with which a token followed another in
    training. `swapped`: the same after the swaps of two tokens that lower it most. `trained`: of the training
    sequences. Empty for large vocabularies.
    """
    if words > MOST_RELABELLED:
        return {}
    counts = (pair_counts(trained, words) + 1 / words).numpy()
    cost, seen = -np.log(counts / counts.sum(1, keepdims=True)), pair_counts(validated, words).numpy()
    names, total = np.arange(words), seen.sum()
    there = np.flatnonzero(seen.sum(0) + seen.sum(1)).tolist()

    def loss(names: np.ndarray) -> float:
        return float((seen * cost[np.ix_(names, names)]).sum() / total)

    own = float((pair_counts(trained, words).numpy() * cost).sum() / (trained.numel() - len(trained)))
    as_is = best = loss(names)
    swaps: list[list[int]] = []
    while len(swaps) < SWAPS:
        tried = []
        for one, other in itertools.combinations(there, 2):
            swapped = names.copy()
            swapped[[one, other]] = names[[other, one]]
            tried.append((loss(swapped), one, other))
        lowest, one, other = min(tried, default=(best, 0, 0))
        if not lowest < best - GAIN:
            break
        best, swaps = lowest, [*swaps, [one, other]]
        names[[one, other]] = names[[other, one]]
    return {"trained": own, "as_is": as_is, "swapped": best, "swaps": swaps}


def pair_counts(ids: torch.Tensor, words: int) -> torch.Tensor:
    """(words, words): how often the second follows the first."""
    pairs = ids[:, :-1] * words + ids[:, 1:]
    return torch.bincount(pairs.flatten().cpu(), minlength=words * words).reshape(words, words).double()
