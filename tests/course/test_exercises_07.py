"""Lesson 07: the usual mistakes are named, right answers pass."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

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
    assert labkit.check("07.2", answer)


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
    found = labkit.check("07.2", answer)
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
    assert labkit.check("07.3", lambda net: guard(net, only_leaves=only_leaves))


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
    found = labkit.check("07.3", answer)
    assert found.state == "not yet" and words in str(found)


def test_what_the_patient_keeps_may_not_be_changed():
    sick = labkit.FAILURES["fp16_overflow"].sick
    assert "has to keep" in str(labkit.check("07.4", sick.but(precision="bf16")))


def test_the_evidence():
    assert labkit.check("07.5", SEALED)
    found = labkit.check("07.5", SEALED | {"C": "naive_softmax"})
    assert found.state == "not yet" and "Correct: A, B, D." in str(found) and "exp is finite up to" in str(found)


# --- the loop in fp16 ---


def train_with(unscale=True, clip=1.0, returned="norms"):
    def train(model, optimizer, loader):
        scaler, norms = torch.amp.GradScaler("cpu", init_scale=2.0**16), []
        for _ in range(4):
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.float16):
                    loss = cross_entropy(model(x), y)
                scaler.scale(loss).backward()
                scaled = torch.cat([weight.grad.flatten() for weight in model.parameters()]).norm()
                if unscale:
                    scaler.unscale_(optimizer)
                norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
                norms.append(scaled if returned == "scaled" else norm)
                scaler.step(optimizer)
                scaler.update()
        return None if returned == "nothing" else norms

    return train


def test_a_loop_that_unscales_first_is_right():
    found = labkit.check("07.1", train_with())
    assert found and "true ones" in str(found)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (train_with(unscale=False), "The run shows"),
        (train_with(returned="scaled"), "those of scaled gradients"),
        (train_with(returned="nothing"), "you returned None"),
    ],
)
def test_each_mistake_of_a_loop_in_fp16_has_its_words(mistake, words):
    found = labkit.check("07.1", mistake)
    assert found.state == "not yet" and words in str(found)


# --- the hard one ---


def logit_loss(z, y):
    return z.clamp(min=0) - z * y + torch.log1p((-z.abs()).exp())


def test_a_loss_from_logits_is_right():
    assert labkit.check("07.6", logit_loss)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda z, y: -(y * z.sigmoid().log() + (1 - y) * (1 - z.sigmoid()).log()), "z = 20"),
        (lambda z, y: (1 + z.exp()).log() - z * y, "z = 100"),
        (lambda z, y: z.clamp(min=0) - z * y + (1 + (-z.abs()).exp()).log(), "log1p(e) does not"),
        (lambda z, y: logit_loss(z, 1 - y), "z = -3"),
    ],
)
def test_each_mistake_of_a_loss_from_logits_has_its_words(mistake, words):
    found = labkit.check("07.6", mistake)
    assert found.state == "not yet" and words in str(found)
