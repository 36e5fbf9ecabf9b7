"""Lesson 10: the usual mistakes are told what they are, and right answers are right."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import labkit
from labkit.course.checks import EXERCISES
from labkit.course.exercises import lesson_10


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


def untrained(
    model, optimizer, x, y, *, order=("frozen", "not in the optimizer", "no gradient"), restore=True, zero=True
):
    """Which weights a step leaves, with one slip, or none."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    held = {id(each) for group in optimizer.param_groups for each in group["params"]}
    model.zero_grad()
    cross_entropy(model(x), y).backward()
    tests = {
        "frozen": lambda weight: not weight.requires_grad,
        "not in the optimizer": lambda weight: id(weight) not in held,
        "no gradient": lambda weight: weight.grad is None or (zero and not weight.grad.any()),
    }
    reasons = {}
    for name, weight in model.named_parameters():
        found = [reason for reason in order if tests[reason](weight)]
        if found:
            reasons[name] = found[0]
    if restore:
        model.load_state_dict(before)
    return reasons


def finetune(model, loader, *, stale=False, twice=False, clear=True, replace=True):
    old = torch.optim.SGD(model.parameters(), lr=0.1) if stale else None
    if replace:
        model[-1] = nn.Linear(64, 10)
    optimizer = old or torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        if clear:
            optimizer.zero_grad()
        outputs = model(x).softmax(1) if twice else model(x)
        cross_entropy(outputs, y).backward()
        optimizer.step()


def train_and_validate(model, optimizer, loader, val_x, val_y, *, again=True, rest=True, guard=True, kept=list):
    """Three epochs with validation, with one slip in the modes, or none."""
    scores = []
    model.train()
    for _ in range(3):
        if again:
            model.train()
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
        if rest:
            model.eval()
        with torch.set_grad_enabled(not guard):
            right = torch.cat([model(part).argmax(1) for part in val_x.split(200)]) == val_y
        scores.append(right.float().mean().item())
    return kept(scores)


def accumulate(model, optimizer, loader, pieces, *, mean=False, rest=True, clear=True):
    batches = list(loader)
    for first in range(0, len(batches), pieces):
        group = batches[first : first + pieces]
        if len(group) < pieces and not rest:
            return
        if clear:
            optimizer.zero_grad()
        for x, y in group:
            total = pieces * len(y) if mean else sum(len(labels) for _, labels in group)
            (cross_entropy(model(x), y, reduction="sum") / total).backward()
        optimizer.step()


SEEN_BY = {"A": "none", "B": "splits", "C": "one batch memorised", "D": "gradients"}
SEEN_BY |= {"E": "modes", "F": "none", "G": "none", "H": "inputs"}
STALE = {"failure": "stale_optimizer", "place": "layer3", "evidence": "update_ratio", "value": 0.0}
RIGHT = [
    ("10.1", untrained),
    ("10.2", samples_mixed),
    ("10.2", by_gradient),
    ("10.3", finetune),
    ("10.4", train_and_validate),
    ("10.5", SEEN_BY),
    ("10.6", STALE),
    ("10.7", accumulate),
]


def slip(function, **options):
    return lambda *arguments: function(*arguments, **options)


OTHER_ORDER = ("no gradient", "frozen", "not in the optimizer")
WRONG = [
    ("10.1", slip(untrained, order=("frozen", "no gradient")), "you do not report it"),
    ("10.1", slip(untrained, order=OTHER_ORDER), 'is "frozen"'),
    ("10.1", slip(untrained, restore=False), "left"),
    ("10.1", slip(untrained, zero=False), "whose hidden units are dead"),
    ("10.1", lambda *_: [], "Expected a dict"),
    ("10.2", lambda net, x: False, "over axis 0"),
    ("10.2", lambda net, x: True, "each sample alone"),
    ("10.2", in_train_mode, "eval mode"),
    ("10.2", neighbour_only, "Alter all the others"),
    ("10.2", stays_in_eval, "is left in eval mode"),
    ("10.2", always_trains_on, "was in eval mode is left in train mode"),
    ("10.2", leaves_gradients, "gradients are left in the weights"),
    ("10.2", alters_the_batch, "caller's batch"),
    ("10.3", slip(finetune, stale=True), "to the last bit"),
    ("10.3", slip(finetune, replace=False), "should be a new one"),
    ("10.3", slip(finetune, twice=True), "a correct loop reaches"),
    ("10.3", slip(finetune, clear=False), "its own noise"),
    ("10.4", slip(train_and_validate, again=False), "trains in eval mode"),
    ("10.4", slip(train_and_validate, rest=False), "train mode"),
    ("10.4", slip(train_and_validate, guard=False), "no_grad"),
    ("10.4", slip(train_and_validate, kept=lambda scores: scores[-1]), "Expected 3 accuracies"),
    ("10.5", SEEN_BY | {"A": "one batch memorised"}, "any 32 labels can be memorised"),
    ("10.5", SEEN_BY | {"C": "first loss"}, "ln 10 too"),
    ("10.5", SEEN_BY | {"H": "one step"}, "looks at the pixels"),
    ("10.5", SEEN_BY | {"E": "none"}, "would have caught it"),
    ("10.6", STALE | {"failure": "frozen_layers"}, "has no gradient"),
    ("10.6", STALE | {"place": "layer1"}, "does not begin"),
    ("10.7", slip(accumulate, mean=True), "differ"),
    ("10.7", slip(accumulate, rest=False), "the last group"),
    ("10.7", slip(accumulate, clear=False), "differ"),
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
def test_the_sealed_run_shows_what_its_key_says():
    run = lesson_10.sealed()
    column = run.labels_of("update_ratio").index("layer3")
    assert labkit.check("10.6", STALE | {"value": run["update_ratio"][-1, column]})
    assert labkit.diagnose(run)[0].name == "stale_optimizer"


def test_the_key_of_the_ten_points_is_what_checkup_finds():
    loud = {
        letter: {each.name for each in found.findings if each.state in ("fault", "warning")}
        for letter, found in lesson_10.setups().items()
    }
    for letter, names in loud.items():
        assert SEEN_BY[letter] in names if SEEN_BY[letter] != "none" else not names, (letter, names)
    assert set(SEEN_BY) - set(loud) == {"F", "G"}


def test_each_choice_is_a_check_of_the_list():
    assert EXERCISES["10.5"].kind == "explain"
    found = labkit.checkup(lesson_10.digit_net(), cross_entropy, two_batches())
    assert set(lesson_10.CHECKS) - {"none"} <= {each.name for each in found.findings}


def two_batches():
    generator = torch.Generator().manual_seed(0)
    return torch.rand(64, 1, 28, 28, generator=generator), torch.randint(10, (64,), generator=generator)
