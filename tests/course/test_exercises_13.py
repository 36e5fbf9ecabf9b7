"""Lesson 13: the usual mistakes are named, right answers pass."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

import labkit
from labkit.course.exercises.lesson_13 import SEALED, patients, shifted_once
from labkit.course.loops import Batches


def refused(id, answer, words):
    found = labkit.check(id, answer)
    assert found.state == "not yet" and words in str(found), str(found)


# --- 13.1 ---


def shifted_loss(logits, ids, first=slice(None, -1), last=slice(1, None), **options):
    return cross_entropy(logits[:, first].flatten(0, 1), ids[:, last].flatten(), **options)


def by_transpose(logits, ids):
    return cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:])


def mixed(logits, ids):
    return cross_entropy(logits[:, :-1].transpose(1, 2).reshape(-1, logits.shape[-1]), ids[:, 1:].flatten())


@pytest.mark.parametrize("answer", [shifted_loss, by_transpose])
def test_a_shifted_loss_is_right(answer):
    assert labkit.check("13.1", answer), str(labkit.check("13.1", answer))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda *case: shifted_loss(*case, slice(None), slice(None)), "not shifted"),
        (lambda *case: shifted_loss(*case, slice(1, None), slice(None, -1)), "the wrong way"),
        (lambda *case: shifted_loss(*case, slice(None, -2), slice(2, None)), "Shifted by two"),
        (lambda *case: shifted_loss(*case, reduction="sum"), "That is the sum"),
        (lambda *case: shifted_loss(*case, reduction="none"), "Expected one number"),
        (lambda logits, ids: shifted_loss(logits.softmax(-1), ids), "applies the softmax itself"),
        (lambda logits, ids: shifted_loss(logits, ids.roll(-1, 1), slice(None), slice(None)), "has no next token"),
        (mixed, "no transpose"),
        (lambda *case: shifted_loss(*case).item(), ".backward()"),
        (lambda *case: 2 * shifted_loss(*case), "The mean cross-entropy"),
    ],
)
def test_a_shifted_loss_that_is_not_names_the_mistake(answer, words):
    refused("13.1", answer, words)


# --- 13.2 ---


def mask(queries, keys, diagonal=None, dtype=torch.bool):
    ones = torch.ones(queries, keys, dtype=dtype)
    return ones.tril(keys - queries if diagonal is None else diagonal)


def test_a_causal_mask_is_right():
    assert labkit.check("13.2", mask), str(labkit.check("13.2", mask))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda *case: mask(*case, dtype=torch.float32), "torch.bool"),
        (lambda *case: ~mask(*case), "exchanged"),
        (lambda queries, keys: mask(queries, keys).T, "Queries are the rows"),
        (lambda queries, keys: mask(queries, keys, keys - queries + 1), "One too far"),
        (lambda queries, keys: mask(queries, keys, keys - queries - 1), "has to see itself"),
        (lambda *case: mask(*case, 0), "1 query and 5 keys"),
        (lambda *case: torch.ones(*case, dtype=torch.bool), "expected a lower triangle"),
        (lambda *case: mask(2, 2), "shape (4, 4)"),
    ],
)
def test_a_causal_mask_that_is_not_names_the_mistake(answer, words):
    refused("13.2", answer, words)


# --- 13.3 ---


def leaks(net, ids, others, at, until=0, evaluate=True, restore=True, ways=2):
    training = net.training
    if evaluate:
        net.eval()
    with torch.no_grad():
        before = net(ids)[:, : at + until]
        replaced = net(torch.cat([ids[:, :at], others[:, at:]], dim=1))[:, : at + until]
        cut_off = net(ids[:, :at]) if ways == 2 else replaced
    if restore:
        net.train(training)
    size = min(before.shape[1], cut_off.shape[1])
    return (replaced - before).abs().max(), (cut_off[:, :size] - before[:, :size]).abs().max()


def test_a_probe_is_right():
    assert labkit.check("13.3", leaks), str(labkit.check("13.3", leaks))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda *case: leaks(*case, until=1), "before `at` alone"),
        (lambda *case: leaks(*case, until=-2), "one token too far"),
        (lambda *case: leaks(*case, evaluate=False), "Compare in eval mode"),
        (lambda *case: leaks(*case, restore=False), "Restore its mode"),
        (lambda *case: leaks(*case, ways=1), "cut off"),
        (lambda *case: (0.0, 0.0), "one token too far"),
        (lambda *case: leaks(*case)[0], "Expected two numbers"),
    ],
)
def test_a_probe_that_is_not_names_the_mistake(answer, words):
    refused("13.3", answer, words)


# --- 13.4 ---


def passing(asked, passes=1, every=1):
    """A loop with `asked(logits, x, y)` as its loss; with `every` 2 it learns from every second batch."""

    def train(model, optimizer, loader):
        for _ in range(passes):
            for number, (x, y) in enumerate(loader):
                if number % every:
                    continue
                optimizer.zero_grad()
                asked(model(x), x, y).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()

    return train


def test_the_repaired_loop_is_right():
    assert labkit.check("13.4", shifted_once), str(labkit.check("13.4", shifted_once))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (passing(lambda logits, x, y: shifted_loss(logits, y)), "the token after the next one"),
        (passing(lambda logits, x, y: cross_entropy(logits.flatten(0, 1), x.flatten())), "it has just read"),
        (passing(lambda logits, x, y: cross_entropy(logits.flatten(0, 1), y.flatten()), every=20), "expected below"),
    ],
)
def test_a_loop_that_predicts_something_else_is_told_what(answer, words):
    refused("13.4", answer, words)


def test_the_loader_has_shifted_the_targets_by_one():
    from labkit.course.exercises.lesson_13 import token_loop

    setting = token_loop(1)
    x, y = next(iter(setting.loader))
    assert isinstance(setting.loader, Batches) and torch.equal(x[:, 1:], y[:, :-1]) and not torch.equal(x, y)
    assert torch.equal(setting.held_out.x[:, 1:], setting.held_out.y[:, :-1])


# --- 13.5 ---


def test_the_evidence():
    assert labkit.check("13.5", SEALED)
    refused("13.5", SEALED | {"D": "causal_mask_missing"}, "compare its two curves")
    assert "Correct: A, B, C, E." in str(labkit.check("13.5", SEALED | {"D": "causal_mask_missing"}))
    assert labkit.check("13.5", dict.fromkeys(SEALED, ...)).state == "not attempted"


@pytest.mark.parametrize("seed", [1, 5])
def test_the_figures_of_the_sealed_patients_tell_them_apart(seed):
    ward = {SEALED[letter]: found for letter, found in patients(seed).items()}
    reached = {name: sum(change > 1e-5 for change in found.replaced) for name, found in ward.items()}
    positions = len(ward["mask_one_ahead"].replaced)
    assert 1 <= reached["mask_one_ahead"] <= 2
    assert reached["targets_not_shifted"] == reached["heads_split_by_view"] == 0
    assert min(reached[name] for name in ("causal_mask_missing", "mask_after_softmax")) == positions
    assert max(ward["heads_split_by_view"].cut_off) > 0.1 > max(ward["targets_not_shifted"].cut_off)
    ratio = {
        name: torch.tensor(each.cut_off).median() / torch.tensor(each.replaced).median() for name, each in ward.items()
    }
    assert ratio["mask_after_softmax"] > 2.5 > ratio["causal_mask_missing"]
    for name, found in ward.items():
        asked = min(found.loss_of, key=found.loss_of.get)
        assert asked == ("same" if name == "targets_not_shifted" else "next")


# --- 13.6 ---


def attend_next(query, key, value, cache, *, keep=True, masked=True, shift=True, scale=True):
    if cache is not None and keep:
        key, value = torch.cat([cache[0], key], dim=2), torch.cat([cache[1], value], dim=2)
    new, seen = query.shape[2], key.shape[2]
    scores = query @ key.transpose(-2, -1) / (math.sqrt(query.shape[-1]) if scale else 1.0)
    visible = torch.ones(new, seen, dtype=torch.bool).tril(seen - new if shift else 0)
    scores = scores.masked_fill(~visible, -math.inf) if masked else scores
    return scores.softmax(-1) @ value, (key, value)


def test_attention_with_a_cache_is_right():
    assert labkit.check("13.6", attend_next), str(labkit.check("13.6", attend_next))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda *case: attend_next(*case, keep=False), "behind the earlier ones"),
        (lambda *case: attend_next(*case, masked=False), "need a causal mask"),
        (lambda *case: attend_next(*case, scale=False), "root of the size of a head"),
        (lambda *case: attend_next(*case, shift=False), "Read one by one"),
        (lambda q, k, v, cache: attend_next(q, k, v, cache, shift=q.shape[2] == 1), "Read in pieces"),
        (lambda *case: attend_next(*case)[0], "Expected (outputs, cache)"),
    ],
)
def test_attention_with_a_cache_that_is_not_right_names_the_mistake(answer, words):
    refused("13.6", answer, words)
