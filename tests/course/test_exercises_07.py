"""Lesson 07: the usual mistakes are named, right answers pass."""

import pytest
import torch

import labkit
from labkit.course.exercises.lesson_07 import SEALED


def stable(x):
    shifted = x - x.amax(-1, keepdim=True)
    return shifted - shifted.exp().sum(-1, keepdim=True).log()


def one_largest_for_all(x):
    shifted = x - x.max()
    return shifted - shifted.exp().sum(-1, keepdim=True).log()


def clamped(x):
    return x.softmax(-1).clamp(1e-8).log()


def from_the_formula(x):
    return (x.exp() / x.exp().sum(-1, keepdim=True)).log()


@pytest.mark.parametrize("answer", [stable, lambda x: x - torch.logsumexp(x, -1, keepdim=True)])
def test_a_stable_log_softmax_is_right(answer):
    assert labkit.check("07.1", answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (from_the_formula, "exp(1000) is infinite"),
        (lambda x: x.softmax(-1).log(), "rounded to 0 before its logarithm"),
        (clamped, "Logits of 1,000: expected"),
        (one_largest_for_all, "the largest of each row"),
        (lambda x: x.log_softmax(0), "first dimension"),
        (lambda x: x.softmax(-1), "asks for its logarithm"),
        (lambda x: stable(x.detach()), "no gradient flows back"),
        (lambda x: 3.0, "of the same shape as the input"),
    ],
)
def test_a_log_softmax_that_is_not_names_the_mistake(answer, words):
    found = labkit.check("07.1", answer)
    assert found.state == "not yet" and words in str(found)


def guard(net, bad=lambda output: not output.isfinite().all(), only_leaves=True):
    def watch(name):
        def look(module, inputs, output):
            if bad(output):
                raise FloatingPointError(name)

        return look

    chosen = [(name, each) for name, each in net.named_modules() if not (only_leaves and any(each.children()))]
    return [each.register_forward_hook(watch(name)) for name, each in chosen]


def with_one_name_for_all(net):
    handles = []
    for name, each in net.named_modules():

        def look(module, inputs, output):
            if not output.isfinite().all():
                raise FloatingPointError(name)  # noqa: B023 the mistake itself

        handles.append(each.register_forward_hook(look))
    return handles


def only_at_the_end(net):
    def look(module, inputs, output):
        if not output.isfinite().all():
            raise FloatingPointError("inner.1")

    return [net.register_forward_hook(look)]


def that_changes_outputs(net):
    return [each.register_forward_hook(lambda module, inputs, output: output + 1) for each in net.children()]


@pytest.mark.parametrize("only_leaves", [True, False])
def test_a_guard_is_right(only_leaves):
    assert labkit.check("07.2", lambda net: guard(net, only_leaves=only_leaves))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda net: guard(net, bad=lambda output: output.isnan().any()), "isfinite does"),
        (lambda net: guard(net, bad=lambda output: True), "All values are finite, but it stopped"),
        (lambda net: guard(net, bad=lambda output: False), "nothing stopped"),
        (with_one_name_for_all, "share one `name`"),
        (only_at_the_end, "had already run"),
        (that_changes_outputs, "gives different outputs"),
        (lambda net: guard(net)[:1], "Return every handle"),
        (lambda net: guard(net) and [], "there is still a hook"),
        (lambda net: net, "list of handles"),
    ],
)
def test_a_guard_that_is_not_names_the_mistake(answer, words):
    found = labkit.check("07.2", answer)
    assert found.state == "not yet" and words in str(found)


def test_what_the_patient_keeps_may_not_be_changed():
    sick = labkit.FAILURES["fp16_overflow"].sick
    assert "has to keep" in str(labkit.check("07.3", sick.but(precision="bf16")))


def test_the_evidence():
    assert labkit.check("07.4", SEALED)
    found = labkit.check("07.4", SEALED | {"C": "naive_softmax"})
    assert found.state == "not yet" and "Correct: A, B, D." in str(found) and "exp is finite up to" in str(found)
