"""Lesson 12: the usual mistakes are told what they are, and right answers are right."""

import pytest
import torch
from torch.nn.functional import cross_entropy

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


def averaged(model, all_reduce, ranks):
    for weight in model.parameters():
        if weight.grad is not None:
            all_reduce(weight.grad)
            weight.grad /= ranks


def averaged_at_once(model, all_reduce, ranks):
    """Another right way, as DistributedDataParallel does it: one long vector, divided before it is sent."""
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients]) / ranks
    all_reduce(flat)
    for gradient, part in zip(gradients, flat.split([each.numel() for each in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def summed(model, all_reduce, ranks):
    for weight in model.parameters():
        if weight.grad is not None:
            all_reduce(weight.grad)


def divided_only(model, all_reduce, ranks):
    for weight in model.parameters():
        if weight.grad is not None:
            weight.grad /= ranks


def of_a_copy(model, all_reduce, ranks):
    for weight in model.parameters():
        if weight.grad is not None:
            mean = weight.grad.clone()
            all_reduce(mean)
            mean /= ranks


def weighted(model, all_reduce, samples):
    total = torch.tensor(float(samples))
    all_reduce(total)
    for weight in model.parameters():
        weight.grad *= samples
        all_reduce(weight.grad)
        weight.grad /= total


def weights_and_not_samples(model, all_reduce, samples):
    for weight in model.parameters():
        weight.grad *= samples
        all_reduce(weight.grad)
        weight.grad /= 2 * samples or 1


def only_where_there_are_samples(model, all_reduce, samples):
    if samples:
        weighted(model, all_reduce, samples)


RIGHT = [
    ("12.3", averaged),
    ("12.3", averaged_at_once),
    ("12.6", weighted),
    ("12.1", lambda attention: rows(attention).mean((0, 2))),
    ("12.4", deal),
    ("12.4", in_blocks),
    ("12.5", lesson_12.SEALED),
]
WRONG = [
    ("12.1", lambda attention: rows(attention, torch.log2).mean((0, 2)), "in bits"),
    ("12.1", lambda attention: -rows(attention).mean((0, 2)), "Check the sign"),
    ("12.1", lambda attention: -(attention * attention.log()).sum(-1).mean((0, 2)), "0 times log 0"),
    ("12.1", lambda attention: rows(attention).mean().repeat(attention.shape[1]), "must not be averaged"),
    ("12.1", lambda attention: rows(attention.mean(0)).mean(-1), "then the mean"),
    ("12.1", lambda attention: rows(attention).mean(), "Two heads: expected two numbers"),
    ("12.4", lambda count, rank, ranks, epoch, seed: deal(count, 0, ranks, epoch, seed + rank), "split the same order"),
    ("12.4", lambda count, rank, ranks, epoch, seed: deal(count, 0, 1, epoch, seed), "expected 4 each"),
    (
        "12.4",
        lambda count, rank, ranks, epoch, seed: range(count)[rank * (count // ranks) :][: count // ranks],
        "shuffled",
    ),
    ("12.4", lambda count, rank, ranks, epoch, seed: deal(count, rank, ranks, 0, seed), "in the same order"),
    ("12.4", lambda count, rank, ranks, epoch, seed: deal(count, rank, ranks, epoch, 0), "seed changes nothing"),
    ("12.4", moves_the_global_generator, "torch's own generator"),
    ("12.4", own_samples_for_ever, "the same samples as in epoch 0"),
    ("12.4", with_the_rest, "leave the rest out"),
    ("12.3", summed, "the sum"),
    ("12.3", divided_only, "expected"),
    ("12.3", of_a_copy, "still has its own gradient"),
    ("12.3", lambda model, all_reduce, ranks: all_reduce([each.grad for each in model.parameters()]), "a tensor"),
    ("12.3", lambda model, all_reduce, ranks: [all_reduce(torch.ones(1)) for _ in range(99)], "more than 20 times"),
    ("12.6", lambda model, all_reduce, samples: averaged(model, all_reduce, 2), "16, 112"),
    ("12.6", weights_and_not_samples, "expected"),
    ("12.6", only_where_there_are_samples, "wait for ever"),
    ("12.5", lesson_12.SEALED | {"A": "attention_entropy_collapse"}, "started near ln 16"),
    ("12.5", lesson_12.SEALED | {"D": "sampler_without_set_epoch"}, "what the processes share"),
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
    assert labkit.check("12.4", unseeded).state == "not yet"


def trained(rate, passes=2):
    """A loop whose learning rate is that of the optimizer times rate(step)."""

    def train(model, optimizer, loader):
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
        for _ in range(passes):
            for x, y in loader:
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()
                scheduler.step()

    return train


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "words"),
    [
        (lambda step: min(1, (step + 1) / 30), ""),
        (lambda step: min((step + 1) / 60, (158 - step) / 98), ""),
        (lambda step: 1.0, "a correct loop reaches"),
        (lambda step: 0.1, "has to reach 0.03"),
    ],
)
def test_a_loop_needs_a_warm_up_to_the_learning_rate_of_the_patient(rate, words):
    found = labkit.check("12.2", trained(rate))
    assert bool(found) == (not words) and words in str(found), str(found)
