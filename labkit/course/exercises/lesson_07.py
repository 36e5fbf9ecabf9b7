"""Exercises of lesson 07, numbers that break; and its sealed patients."""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from labkit.course.grading import (
    NotYet,
    Student,
    build,
    cure,
    expect,
    expect_close,
    explain,
    number,
    sealed_runs,
    short,
)
from labkit.course.loops import Outcome, images, loop
from labkit.course.predictions import prediction
from labkit.recording.run import Run

# --- the sealed patients of 07.5 ---

SEALED = {"A": "sqrt_at_zero", "B": "zero_by_zero", "C": "log_of_zero", "D": "nan_in_data"}


def patients() -> dict[str, Run]:
    """Four runs that ended in NaN, named by letters. The student finds which failure each one shows."""
    return sealed_runs(SEALED, evaluate_every=0)


# --- 07.1: unscale before clipping ---

SCALED = (
    100.0  # no true norm of this net comes near: 0.5 to 4 over seeds 0 to 2 and 11; scaled ones are 65,536 times that
)


def small_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))


def unscaled_first(model, optimizer, loader) -> list[float]:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    norms = []
    for _ in range(4):
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
            scaler.step(optimizer)
            scaler.update()
    return norms


def judge_true_norms(outcome: Outcome) -> str:
    mine = outcome.returned
    if not isinstance(mine, list | tuple) or not len(mine) >= len(outcome.run):
        raise NotYet(f"It learns. Now return the norm before clipping of every step; you returned {short(mine)}.")
    largest = max(number(each, "a norm") for each in mine)
    expect(largest < SCALED, f"It learns, but norms of {largest:,.0f} are those of scaled gradients.")
    expect(largest > 1.001, "It learns, but no norm is above 1, the threshold: these were taken after clipping.")
    return f"{outcome.accuracy:.1%} correct in fp16, and the norms in your log are true ones: at most {largest:.2g}."


# --- 07.2 ---

ROUNDED = 1e-3  # x - logsumexp(x) is correct too, and at 1,000 has four digits less than the explicit shift


def judge_log_softmax(mine: Student) -> str:
    plain = torch.tensor([[1.0, 2.0, 0.5], [0.0, -1.0, 3.0]])
    seen = mine(plain)
    expect(torch.is_tensor(seen) and seen.shape == plain.shape, "Expected a tensor of the same shape as the input.")
    if torch.allclose(seen, plain.log_softmax(0)):
        expect(False, "You summed over the first dimension. Each row is one sample: use the last dimension, -1.")
    if torch.allclose(seen, plain.softmax(-1)):
        expect(False, "This is the softmax itself. The exercise asks for its logarithm.")
    expect_close(seen, plain.log_softmax(-1), "Ordinary logits")
    large = torch.tensor([[1000.0, 998.0, 0.0]])
    seen = mine(large)
    expect(not seen.isnan().any(), "Logits of 1,000 gave NaN: exp(1000) is infinite. Subtract the largest first.")
    expect(
        not seen.isinf().any(),
        "Logits of 1,000 and 0 gave -inf where -1,000 is right: a probability was rounded to 0 before its "
        "logarithm was "
        "taken. Use log(a / b) = log a - log b, and log(exp(z)) = z.",
    )
    expect_close(seen, large.log_softmax(-1), "Logits of 1,000", ROUNDED)
    apart = torch.tensor([[1000.0, 999.0], [0.0, 1.0], [-1000.0, -1001.0]])
    seen = mine(apart)
    expect(
        seen.isfinite().all(),
        "Rows with very different logits gave infinities. Subtract the largest of each row, not of all.",
    )
    expect_close(seen, apart.log_softmax(-1), "Rows with very different logits", ROUNDED)
    deep = torch.arange(24.0).reshape(2, 3, 4)
    expect_close(mine(deep), deep.log_softmax(-1), "Three dimensions, classes last")
    logits = torch.tensor([[300.0, 0.0, -300.0]], requires_grad=True)
    value = mine.in_place(logits)
    expect(value.requires_grad, "Correct values, but no gradient flows back: is there a detach or no_grad?")
    value[0, 1].backward()
    expect_close(logits.grad, [[-1.0, 1.0, 0.0]], "The gradient where the correct class is 300 below the largest logit")
    return "Finite for any logits, and so is its gradient."


# --- 07.3 ---


class ReplaceLastSample(nn.Module):
    """Identity that can replace the last sample of the batch by a constant; counts its calls."""

    def __init__(self, value: float | None = None):
        super().__init__()
        self.value, self.calls = value, 0

    def forward(self, x):
        self.calls += 1
        if self.value is None:
            return x
        return torch.cat([x[:-1], torch.full_like(x[-1:], self.value)])


def net_that_breaks(value: float | None) -> nn.Sequential:
    """A net with a nested block; `inner.1` outputs the given value, and `last` counts whether it still runs."""
    inner = nn.Sequential(nn.Linear(4, 4), ReplaceLastSample(value), nn.Tanh())
    net = nn.Sequential()
    for name, part in (
        ("first", nn.Linear(4, 4)),
        ("inner", inner),
        ("after", nn.Linear(4, 2)),
        ("last", ReplaceLastSample()),
    ):
        net.add_module(name, part)
    return net


def guard_message(mine: Student, value: float) -> str | None:
    """The message with which a guarded net stopped; None if it ran to the end."""
    net = net_that_breaks(value)
    mine.in_place(net)
    try:
        net(torch.ones(5, 4))
    except FloatingPointError as stop:
        expect(net.last.calls == 0, "It stopped, but the modules after the bad one had already run.")
        return str(stop)
    return None


def judge_guard(mine: Student) -> str:
    net, x = net_that_breaks(None), torch.ones(5, 4)
    before = net(x)
    handles = mine.in_place(net)
    if not isinstance(handles, list | tuple) or not all(hasattr(each, "remove") for each in handles):
        raise NotYet("Expected the list of handles that register_forward_hook returned.")
    try:
        after = net(x)
    except FloatingPointError as stop:
        raise NotYet(f"All values are finite, but it stopped at {stop}.") from None
    expect(
        torch.equal(before, after),
        "The guarded net gives different outputs. A hook that returns something changes them.",
    )
    stop = guard_message(mine, float("nan"))
    expect(stop is not None, "The module inner.1 output NaN, and nothing stopped.")
    expect(
        "last" not in stop, "inner.1 output NaN and `last` was blamed: your hooks share one `name`. Bind it per hook."
    )
    expect("inner.1" in stop, f"inner.1 output NaN first; your message is {stop!r}. Use the name from named_modules.")
    stop = guard_message(mine, float("inf"))
    expect(stop is not None, "inner.1 output an infinity, and nothing stopped. isnan misses it; isfinite does not.")
    expect("inner.1" in stop, f"inner.1 output an infinity first; your message is {stop!r}.")
    return _judge_removal(mine)


def _judge_removal(mine: Student) -> str:
    net = net_that_breaks(float("nan"))
    for handle in mine.in_place(net):
        handle.remove()
    left = [name for name, module in net.named_modules() if module._forward_hooks]
    expect(not left, f"After remove() on all handles there is still a hook on {', '.join(left)}. Return every handle.")
    return "It stops at the first bad module, at infinities too, and its hooks can be removed."


# --- 07.6: binary cross-entropy from a logit ---


def judge_logit_loss(mine: Student) -> str:
    for y in (0.0, 1.0):
        for z in (0.0, -3.0, 3.0, 20.0, -20.0, 100.0, -1000.0, 1000.0):
            logit = torch.tensor([z], requires_grad=True)
            label = torch.tensor([y])
            seen = mine.in_place(logit, label)
            what = f"z = {z:g}, y = {y:g}"
            expect_close(seen, binary_cross_entropy_with_logits(logit, label, reduction="none"), what)
            (gradient,) = torch.autograd.grad(seen.sum(), logit)
            if z:  # at 0 a kink of max and |z| may share out the gradient in another way
                expect_close(gradient, (logit.sigmoid() - label).detach(), f"The gradient at {what}")
    tiny = mine(torch.tensor([-30.0]), torch.tensor([0.0]))
    expect(float(tiny) > 0, "At z = -30, y = 0 the loss is 9e-14, not 0: log(1 + e) rounds e away, log1p(e) does not.")
    return "Exact for any logit, and so is its gradient."


# --- 07.4 is a cure, 07.5 the evidence ---

predictions = (
    prediction(
        "07.0",
        correct=3,
        why="GradScaler multiplies the loss, and this NaN is made in the forward pass, before there is a loss. It "
        "skips every step, so the weights stay finite, and stay.",
        wrong={1: "The forward pass overflows all the same.", 2: "It skips a step whose gradients are not finite."},
    ),
)

NO_PIXEL = "the inputs of that step were finite. Where is the first value that was not?"
NO_LOSS = "then the loss would be the first non-finite value. Here it was an earlier or a later one."

exercises = (
    loop(
        "07.1",
        "Clip true gradients, not scaled ones",
        images(small_net, lambda weights: torch.optim.SGD(weights, lr=0.1)),
        unscaled_first,
        example="train_half(model, optimizer, loader)",
        also=judge_true_norms,
        modes=("clipped_before_unscaling",),
        points=3,
        hints=(
            "How large are the gradients between scaler.scale(loss).backward() and scaler.step(optimizer)?",
            "Something has to divide them by the scale before clip_grad_norm_ compares them with 1.",
            "One line, scaler.unscale_(optimizer), between backward() and clip_grad_norm_.",
        ),
    ),
    build(
        "07.2",
        "A numerically stable log-softmax",
        judge_log_softmax,
        example="log_softmax(x)",
        points=2,
        hints=(
            "Subtract from each row its own largest entry. Why does the result not change?",
            "log(exp(a) / sum) is a - log(sum). So you never need the softmax itself.",
            "shifted = x - x.amax(-1, keepdim=True); then shifted minus the log of the sum of exp(shifted).",
        ),
    ),
    build(
        "07.3",
        "Stop at the first non-finite output",
        judge_guard,
        example="guard(net)",
        points=3,
        hints=(
            "A forward hook gets (module, inputs, output), after its module and before the next one runs.",
            "A closure in a loop sees the loop's last name. Create the hook in a function that takes the name.",
            "torch.isfinite(output).all() is False for NaN and for infinity. Collect the handles.",
        ),
    ),
    cure(
        "07.4",
        "An fp16 net that must stay in fp16",
        "fp16_overflow",
        keep=("precision",),
        seeds=(11,),
        points=3,
        hints=(
            "The forward pass overflows. Which two things decide how large the values of the third layer are?",
            "The scale of the inputs, and the factor of about four at each layer (init).",
            "Compare it with its twin: sick.changes_from(labkit.FAILURES['fp16_overflow'].healthy).",
        ),
    ),
    explain(
        "07.5",
        "Where did the first NaN come from?",
        modes=tuple(SEALED.values()),
        points=4,
        right=SEALED,
        because="A has a finite loss and NaN gradients: the derivative is infinite. B had a clean batch, and its first "
        "module turned one whole sample into NaN. C broke in the loss, from outputs of 16.6 on, where a sigmoid is "
        "exactly 1. D had one bad pixel.",
        wrong={
            "A": {
                "nan_in_data": NO_PIXEL,
                "zero_by_zero": "all activations of that step were finite, and even the loss.",
                "naive_softmax": "the loss of that step is finite. Only its gradients are not.",
                "log_of_zero": "the loss of that step is finite. Only its gradients are not.",
            },
            "B": {
                "nan_in_data": NO_PIXEL,
                "naive_softmax": NO_LOSS,
                "log_of_zero": NO_LOSS,
                "sqrt_at_zero": "a square root at 0 breaks in the backward pass. Here the forward pass is "
                "already broken.",
            },
            "C": {
                "nan_in_data": NO_PIXEL,
                "zero_by_zero": "all activations were finite. It happened after the last layer.",
                "naive_softmax": "close. But exp is finite up to an output of 88; this loss broke long before.",
                "sqrt_at_zero": "a square root at 0 has a finite value and no finite derivative. Here the loss "
                "itself is NaN.",
            },
            "D": {
                "zero_by_zero": "then the inputs would be finite. How many values are bad, and where?",
                "naive_softmax": NO_LOSS,
                "log_of_zero": NO_LOSS,
                "sqrt_at_zero": "a square root at 0 breaks in the backward pass. Here the NaN is in the batch.",
            },
        },
        hints=(
            "inputs, activations, loss, gradients: the first bad one is the origin, the later ones only follow.",
            "Two of the five break in the loss. At which outputs does exp overflow, and where is a sigmoid exactly 1?",
            "A finite loss with a NaN gradient: which function has a value but no finite derivative?",
        ),
    ),
    build(
        "07.6",
        "Hard: binary cross-entropy from a logit",
        judge_logit_loss,
        example="logit_loss(z, y)",
        points=0,
        hints=(
            "1 - s(z) = s(-z), and -ln s(z) = ln(1 + exp(-z)). So the loss is ln(1 + exp(z)) - z y.",
            "ln(1 + exp(z)) overflows for large z. Take max(z, 0) out of it, as log-sum-exp does.",
            "max(z, 0) - z y + log1p(exp(-|z|)).",
        ),
    ),
)
