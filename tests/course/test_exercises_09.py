"""Lesson 09: the usual mistakes are told what they are, and right answers are right."""

import pytest
import torch

import labkit
from labkit.course.checks import EXERCISES
from labkit.course.exercises import lesson_09
from labkit.failures.catalogue import FAILURES


def shared(train, val):
    known = {image.numpy().tobytes() for image in train}
    return sum(image.numpy().tobytes() in known for image in val)


def by_place(train, val):
    return sum(torch.equal(one, two) for one, two in zip(train, val, strict=False))


def by_sum(train, val):
    known = {round(image.sum().item(), 4) for image in train}
    return sum(round(image.sum().item(), 4) in known for image in val)


def pairs(train, val):
    return sum(torch.equal(one, two) for one in train for two in val)


def distinct(train, val):
    return len({image.numpy().tobytes() for image in train} & {image.numpy().tobytes() for image in val})


def nearly(train, val):
    return sum(bool((train - image).abs().amax((1, 2, 3)).min() < 0.1) for image in val)


def samples_mixed(net, x):
    was_training, altered = net.training, x.clone()
    altered[1:] += 1.0
    with torch.no_grad():
        net.eval()
        mixed = not torch.allclose(net(x)[0], net(altered)[0])
    net.train(was_training)
    return mixed


def by_gradient(net, x):
    was_training, x = net.training, x.clone().requires_grad_()
    gradient = torch.autograd.grad(net.eval()(x)[0].square().sum(), x)[0]
    net.train(was_training)
    return bool(gradient[1:].abs().sum() > 0)


def in_train_mode(net, x):
    altered = x.clone()
    altered[1:] += 1.0
    with torch.no_grad():
        return not torch.allclose(net(x)[0], net(altered)[0])


def neighbour_only(net, x):
    altered = x.clone()
    altered[1] += 1.0
    with torch.no_grad():
        return not torch.allclose(net.eval()(x)[0], net(altered)[0])


def stays_in_eval(net, x):
    found = samples_mixed(net, x)
    net.eval()
    return found


def always_trains_on(net, x):
    found = samples_mixed(net, x)
    net.train()
    return found


def tensors_in_a_set(train, val):
    return sum(image in set(train) for image in val)


def step(training, x, y, *, forget="before", look=True, clip=False):
    """A step of one's own, with one slip, or none."""
    if forget == "before":
        training.optimizer.zero_grad()
    loss = training.loss(x, y)
    training.backward(loss)
    if look:
        training.look(loss, x, y)
    if clip:
        torch.nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)
    training.update()
    if forget == "after":
        training.optimizer.zero_grad(set_to_none=False)


def stepping(**options):
    sick = FAILURES["zero_grad_missing"].sick
    return sick.but(step=lambda training, x, y: step(training, x, y, **options))


def leaves_gradients(net, x):
    was_training, x = net.training, x.clone().requires_grad_()
    net.eval()(x)[0].square().sum().backward()
    net.train(was_training)
    return bool(x.grad[1:].abs().sum() > 0)


def alters_the_batch(net, x):
    was_training = net.training
    with torch.no_grad():
        before = net.eval()(x)[0].clone()
        x[1:] += 1.0
        after = net(x)[0]
    net.train(was_training)
    return not torch.allclose(before, after)


SEEN_BY = {"A": "none", "B": "splits", "C": "one batch by heart", "D": "gradients"}
SEEN_BY |= {"E": "modes", "F": "none", "G": "none", "H": "inputs"}
RIGHT = [("09.1", shared), ("09.2", samples_mixed), ("09.2", by_gradient), ("09.4", SEEN_BY)]
WRONG = [
    ("09.1", by_place, "index by index"),
    ("09.1", by_sum, "must depend on the order"),
    ("09.1", pairs, "count pairs"),
    ("09.1", distinct, "three times in validation"),
    ("09.1", nearly, "near copies"),
    ("09.2", lambda net, x: False, "over axis 0"),
    ("09.2", lambda net, x: True, "each sample alone"),
    ("09.2", in_train_mode, "eval mode"),
    ("09.2", neighbour_only, "Alter all the others"),
    ("09.2", stays_in_eval, "is left in eval mode"),
    ("09.1", tensors_in_a_set, "Equal tensors have different hashes"),
    ("09.2", always_trains_on, "was in eval mode is left in train mode"),
    ("09.2", leaves_gradients, "gradients are left in the weights"),
    ("09.2", alters_the_batch, "caller's batch"),
    ("09.3", FAILURES["zero_grad_missing"].sick.but(clip=1.0), "You changed clip"),
    ("09.3", FAILURES["zero_grad_missing"].sick, "nothing in it was changed"),
    ("09.3", stepping(forget="never", clip=True), "batch still count"),
    ("09.3", stepping(look=False), "call training.look"),
    ("09.4", SEEN_BY | {"A": "one batch by heart"}, "you saw it pass"),
    ("09.4", SEEN_BY | {"C": "first loss"}, "ln 10 too"),
    ("09.4", SEEN_BY | {"H": "one step"}, "looks at the pixels"),
    ("09.4", SEEN_BY | {"E": "none"}, "would have caught it"),
]


@pytest.mark.parametrize(("id", "answer"), RIGHT)
def test_a_right_answer_is_right(id, answer):
    found = labkit.check(id, answer)
    assert found, found


@pytest.mark.parametrize(("id", "answer", "words"), WRONG)
def test_a_usual_mistake_is_told_what_it_is(id, answer, words):
    found = labkit.check(id, answer)
    assert found.state == "not yet" and words in str(found), found


@pytest.mark.slow
@pytest.mark.parametrize("forget", ["before", "after"])
def test_a_step_of_one_s_own_cures(forget):
    found = labkit.check("09.3", stepping(forget=forget))
    assert found, found


def test_the_key_of_the_ten_points_is_what_checkup_finds():
    loud = {
        letter: {each.name for each in found.findings if each.state in ("fault", "warning")}
        for letter, found in lesson_09.setups().items()
    }
    for letter, names in loud.items():
        assert SEEN_BY[letter] in names if SEEN_BY[letter] != "none" else not names, (letter, names)
    assert set(SEEN_BY) - set(loud) == {"F", "G"}


def test_each_choice_is_a_check_of_the_list():
    assert EXERCISES["09.4"].kind == "explain"
    found = labkit.checkup(lesson_09.digit_net(), torch.nn.functional.cross_entropy, two_batches())
    assert set(lesson_09.CHECKS) - {"none"} <= {each.name for each in found.findings}


def two_batches():
    generator = torch.Generator().manual_seed(0)
    return torch.rand(64, 1, 28, 28, generator=generator), torch.randint(10, (64,), generator=generator)
