"""Lesson 12: the usual mistakes are told what they are, and right answers are right."""

import pytest
import torch

import labkit
from labkit.course.exercises import lesson_12


def rows(attention, log=torch.log):
    return -(attention * log(attention.clamp_min(1e-30))).sum(-1)


def deal(count, rank, ranks, epoch, seed):
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
    return order[: count // ranks * ranks][rank::ranks]


def in_blocks(count, rank, ranks, epoch, seed):
    """Another right way to split the same order."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1000 * seed + epoch))
    return order[rank * (count // ranks) :][: count // ranks]


def moves_the_global_generator(count, rank, ranks, epoch, seed):
    torch.manual_seed(seed + epoch)
    return torch.randperm(count)[: count // ranks * ranks][rank::ranks]


def unseeded(count, rank, ranks, epoch, seed):
    return deal(count, rank, ranks, epoch, int(torch.randint(1000, ())))


def own_samples_for_ever(count, rank, ranks, epoch, seed):
    mine = torch.tensor(deal(count, rank, ranks, 0, seed))
    return mine[torch.randperm(len(mine), generator=torch.Generator().manual_seed(epoch))]


def with_the_rest(count, rank, ranks, epoch, seed):
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch))[rank::ranks]


RIGHT = [
    ("12.1", lambda attention: rows(attention).mean((0, 2))),
    ("12.3", deal),
    ("12.3", in_blocks),
    ("12.4", lesson_12.SEALED),
]
WRONG = [
    ("12.1", lambda attention: rows(attention, torch.log2).mean((0, 2)), "in bits"),
    ("12.1", lambda attention: -rows(attention).mean((0, 2)), "Check the sign"),
    ("12.1", lambda attention: -(attention * attention.log()).sum(-1).mean((0, 2)), "0 times log 0"),
    ("12.1", lambda attention: rows(attention).mean().repeat(attention.shape[1]), "must not be averaged"),
    ("12.1", lambda attention: rows(attention.mean(0)).mean(-1), "then the mean"),
    ("12.1", lambda attention: rows(attention).mean(), "Two heads: expected two numbers"),
    ("12.3", lambda count, rank, ranks, epoch, seed: deal(count, 0, ranks, epoch, seed + rank), "split the same order"),
    ("12.3", lambda count, rank, ranks, epoch, seed: deal(count, 0, 1, epoch, seed), "expected 4 each"),
    (
        "12.3",
        lambda count, rank, ranks, epoch, seed: range(count)[rank * (count // ranks) :][: count // ranks],
        "shuffled",
    ),
    ("12.3", lambda count, rank, ranks, epoch, seed: deal(count, rank, ranks, 0, seed), "in the same order"),
    ("12.3", lambda count, rank, ranks, epoch, seed: deal(count, rank, ranks, epoch, 0), "seed changes nothing"),
    ("12.3", moves_the_global_generator, "torch's own generator"),
    ("12.3", own_samples_for_ever, "the same samples as in epoch 0"),
    ("12.3", with_the_rest, "leave the rest out"),
    ("12.4", lesson_12.SEALED | {"A": "attention_entropy_collapse"}, "started near ln 16"),
    ("12.4", lesson_12.SEALED | {"D": "sampler_without_set_epoch"}, "what the processes share"),
]


@pytest.mark.parametrize(("id", "answer"), RIGHT)
def test_right_answers_are_right(id, answer):
    assert labkit.check(id, answer), str(labkit.check(id, answer))


@pytest.mark.parametrize(("id", "answer", "words"), WRONG)
def test_usual_mistakes_are_told_what_they_are(id, answer, words):
    found = labkit.check(id, answer)
    assert found.state == "not yet" and words in str(found), str(found)


def test_a_deal_that_differs_each_time_is_noticed():
    torch.manual_seed(0)
    assert labkit.check("12.3", unseeded).state == "not yet"


def test_the_rate_belongs_to_the_patient():
    sick = labkit.FAILURES["warmup_missing"].sick
    assert "lr" in str(labkit.check("12.2", sick.but(lr=0.003)))
