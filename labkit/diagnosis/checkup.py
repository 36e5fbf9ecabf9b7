"""Before training: the ten-point checklist and further active tests, on any model, loss, data and optimizer."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from labkit.recording.sample_log import fingerprints, foreign_weights, not_in_optimizer
from labkit.recording.token_tests import what_the_loss_asks
from labkit.recording.undisturbed import unchanged
from labkit.tools.gradient_flow import gradient_flow
from labkit.tools.language import causality

BATCH = 32  # memorised in 28 to 30 steps of Adam 1e-3 by a healthy perceptron
FIT_STEPS = 300
FIT = 0.1  # fraction of its first loss at which a batch counts as memorised; a double softmax stays above 0.6
CONTROL_STEPS = 60
NEAR = 0.15  # of ln(classes), either way: default inits give 2.30 to 2.36 for ten classes
FAR = 1.0  # He init starts at 2.75 to 3.6 and is healthy; twice ln(classes) is not
DIFFERENT = 0.5  # train mode against eval mode, on the same batch
LARGE_UPDATE = 0.5  # update norm / weight norm; healthy first steps stay below 0.3
UNEVEN = 10.0  # largest class over smallest
SEEN = 10_000  # samples of each split that are tested


@dataclass(frozen=True)
class Finding:
    """The result of one test: what was expected, what was found, and what it cannot detect."""

    name: str
    state: str  # "ok", "warning", "fault" or "skipped"
    found: str
    expected: str
    advice: str = ""
    blind_to: str = ""


@dataclass(frozen=True)
class Checkup:
    """All findings, in the order of the checklist."""

    findings: tuple[Finding, ...]

    def __bool__(self) -> bool:
        """True when there is no fault."""
        return not self.faults

    @property
    def faults(self) -> list[Finding]:
        """The findings that must be fixed before training."""
        return [each for each in self.findings if each.state == "fault"]

    def __getitem__(self, name: str) -> Finding:
        return {each.name: each for each in self.findings}[name]

    def __str__(self) -> str:
        lines = []
        for each in self.findings:
            lines.append(f"{MARKS[each.state]:8}{each.name}: {each.found}")
            if each.state in ("fault", "warning"):
                lines += [f"{'':8}  expected: {each.expected}", f"{'':8}  {each.advice}"]
        blind = [f"{'':8}  {each.name}: {each.blind_to}" for each in self.findings if each.blind_to]
        return "\n".join([*lines, "", "what these tests cannot detect:", *blind])

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(str(self))}</pre>"


MARKS = {"ok": "ok", "warning": "look", "fault": "FAULT", "skipped": "-"}


def checkup(
    model: nn.Module,
    loss_fn: Callable[[Any, Any], Tensor],
    train_data: Iterable[Any],
    val_data: Iterable[Any] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    checkpoint: dict[str, Any] | None = None,
) -> Checkup:
    """Test a training set-up before training; everything is restored afterwards.

    `train_data` and `val_data` are loaders of (inputs, targets), or two tensors each. `checkpoint` is the dictionary
    that you save, to check that it contains what a resumed run needs.
    """
    patient = Patient(model, loss_fn, train_data, val_data, optimizer, checkpoint)
    findings = []
    for test in TESTS:
        with unchanged(model, optimizer):
            findings.append(finding_of(test, patient))
    return Checkup(tuple(findings))


def finding_of(test: Callable, patient: "Patient") -> Finding:
    """Run a test; an error in the model or the loss becomes a finding, and the other tests still run."""
    try:
        return test(patient)
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        found = f"{type(error).__name__}: {error}"
        name = test.__name__.replace("_", " ")
        return Finding(name, "fault", found, "no error", "Compare the shapes of outputs and targets.")


class Patient:
    """What is tested: model, loss and optimizer, one batch, and the samples of both splits."""

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[[Any, Any], Tensor],
        train_data: Iterable[Any],
        val_data: Iterable[Any] | None,
        optimizer: torch.optim.Optimizer | None,
        checkpoint: dict[str, Any] | None,
    ):
        self.model, self.loss_fn, self.optimizer, self.checkpoint = model, loss_fn, optimizer, checkpoint
        self.device = next(model.parameters()).device
        self.train_data, self.val_data = train_data, val_data
        with unchanged(model, optimizer):
            x, y = self.samples(train_data)
        self.x, self.y = x, y
        self.batch = x[:BATCH].to(self.device), y[:BATCH].to(self.device)
        self.was_training = model.training
        self.classifies = y.ndim == 1 and not y.is_floating_point()
        self.classes = int(y.max()) + 1 if self.classifies and len(y) else 0

    @staticmethod
    def samples(data: Iterable[Any]) -> tuple[Tensor, Tensor]:
        """Up to SEEN samples of a loader or of two tensors."""
        if isinstance(data, tuple | list) and len(data) == 2 and all(map(torch.is_tensor, data)):
            return data[0][:SEEN], data[1][:SEEN]
        inputs, targets, count = [], [], 0
        for x, y in data:
            inputs.append(x)
            targets.append(y)
            count += len(y)
            if count >= SEEN:
                break
        if not inputs:
            raise ValueError("the data contain no batch; expected a loader of (inputs, targets) or two tensors")
        return torch.cat(inputs), torch.cat(targets)

    def loss(self, x: Tensor | None = None, y: Tensor | None = None) -> Tensor:
        """The loss of these samples, or of the batch."""
        if x is None:
            x, y = self.batch
        return self.loss_fn(self.model(x), y)

    def asked_tokens(self) -> list[float]:
        """The loss of outputs that name the token that was read, the next one, the one after it; else nothing."""
        x, y = self.batch
        self.model.eval()
        with torch.no_grad():
            return list(what_the_loss_asks(self.loss_fn, x, y, self.model(x)).values())

    def new_optimizer(self, lr: float = 1e-3) -> torch.optim.Optimizer:
        return torch.optim.Adam([weight for weight in self.model.parameters() if weight.requires_grad], lr=lr)

    def overfit(self, x: Tensor, y: Tensor, steps: int) -> tuple[float, float]:
        """First and last loss of overfitting one batch, with Adam 1e-3 and dropout off."""
        self.model.train()
        for module in self.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.eval()
        optimizer, losses = self.new_optimizer(), []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = self.loss(x, y)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses[0].item(), losses[-1].item()


# --- the tests ------------------------------------------------------------------------------------


def initial_loss(patient: Patient) -> Finding:
    name, expected = "first loss", f"ln({patient.classes}) = {math.log(max(2, patient.classes)):.2f}"
    if not patient.classifies:
        return Finding(name, "skipped", "not a classification with whole-number labels", expected)
    patient.model.eval()
    with torch.no_grad():
        loss = patient.loss().item()
    off = abs(loss / math.log(max(2, patient.classes)) - 1)
    state = "ok" if off <= NEAR else "warning" if off <= FAR else "fault"
    advice = "Check the init of the last layer, the scale of the inputs, and whether the loss is a mean."
    blind = "labels that do not belong to their inputs; a broken hidden layer"
    return Finding(name, state, f"{loss:.3g}", expected, advice, blind)


def one_batch_memorised(patient: Patient) -> Finding:
    x, y = patient.batch
    first, last = patient.overfit(x, y, FIT_STEPS)
    state = "ok" if last <= FIT * first or last < 1e-3 else "fault"
    advice = "The net, the loss or the gradient is broken: look at the gradient flow and at the outputs."
    blind = "shuffled labels (they can be memorised too) and inputs that are not normalised"
    found = f"loss {first:.3g} -> {last:.3g} in {FIT_STEPS} steps of Adam 1e-3"
    return Finding("one batch memorised", state, found, f"below {FIT:g} of the first loss", advice, blind)


def inputs_matter(patient: Patient) -> Finding:
    x, y = patient.batch
    with unchanged(patient.model):
        _, without = patient.overfit(torch.zeros_like(x), y, CONTROL_STEPS)
    _, real = patient.overfit(x, y, CONTROL_STEPS)
    state = "fault" if without < 1.1 * real and real > 1e-3 else "ok"
    found = f"loss {real:.3g} with the inputs, {without:.3g} with zeros instead"
    return Finding("inputs matter", state, found, "much lower with the inputs", "The inputs do not reach the outputs.")


def inputs_in_order(patient: Patient) -> Finding:
    x = patient.x.float()
    expected, blind = "finite, mean near 0, standard deviation near 1", "single samples that are corrupt but finite"
    if not torch.isfinite(x).all():
        bad = int((~torch.isfinite(x)).flatten(1).any(1).sum())
        advice = "Drop or fix them before training: one NaN spreads to every weight."
        return Finding("inputs", "fault", f"{bad} of {len(x)} samples contain NaN or infinity", expected, advice, blind)
    mean, std = x.mean().item(), x.std().item()
    state = "ok" if abs(mean) < 1 and 0.2 < std < 5 else "warning" if std > 1e-6 else "fault"
    advice = "Subtract the training set's mean and divide by its standard deviation, in both splits alike."
    return Finding("inputs", state, f"mean {mean:.3g}, standard deviation {std:.3g}", expected, advice, blind)


def outputs_in_shape(patient: Patient) -> Finding:
    patient.model.eval()
    with torch.no_grad():
        outputs = patient.model(patient.batch[0])
    expected = f"({len(patient.batch[1])}, at least {patient.classes})"
    if not patient.classifies:
        return Finding("output shape", "skipped", str(tuple(outputs.shape)), "not a classification")
    good = outputs.ndim == 2 and len(outputs) == len(patient.batch[1]) and outputs.shape[1] >= patient.classes
    advice = "Cross-entropy expects one row per sample and one column per class."
    return Finding("output shape", "ok" if good else "fault", str(tuple(outputs.shape)), expected, advice)


def gradients_everywhere(patient: Patient) -> Finding:
    patient.model.train()
    loss = patient.loss()
    unknown = foreign_weights(loss, patient.model)
    loss.backward()
    flow = gradient_flow(patient.model)
    without = [row.name for row in flow.rows if row.status in ("no gradient", "zero", "not finite")]
    left_out = not_in_optimizer(patient.model, [patient.optimizer]) if patient.optimizer else []
    problems = [f"no gradient in {', '.join(without)}"] if without else []
    problems += [f"not in the optimizer: {', '.join(left_out)}"] if left_out else []
    problems += [f"{len(unknown)} tensors outside the net, of shapes {unknown}"] if unknown else []
    state = "fault" if problems else "warning" if flow.problems else "ok"
    found = "; ".join(problems) or ", ".join(f"{row.name} {row.status}" for row in flow.problems) or "in all parameters"
    advice = "Look for detach(), requires_grad, layers in a plain list, and an optimizer created too early."
    return Finding("gradients", state, found, "one in every parameter, and all in the optimizer", advice)


def one_step_down(patient: Patient) -> Finding:
    if patient.optimizer is None:
        return Finding("one step", "skipped", "no optimizer was given", "the loss of its own batch falls")
    patient.model.train()
    before = [weight.detach().clone() for weight in patient.model.parameters()]
    patient.optimizer.zero_grad()
    patient.model.eval()  # so that dropout does not hide the change
    first = patient.loss()
    first.backward()
    patient.optimizer.step()
    with torch.no_grad():
        second = patient.loss().item()
    pairs = zip(patient.model.parameters(), before, strict=True)
    ratios = [(new.detach() - old).norm().item() / old.norm().item() for new, old in pairs if old.norm() > 0]
    ratio = max(ratios, default=0.0)
    fell = second < first.item()
    state = "ok" if fell and ratio < LARGE_UPDATE else "fault"
    found = f"loss {first.item():.4g} -> {second:.4g}; the largest update is {ratio:.2g} of its weights"
    advice = "Updates too large: lower the learning rate. Loss rises: lower the learning rate, or fix a wrong sign."
    return Finding(
        "one step", state, found, f"the loss falls, and updates stay below {LARGE_UPDATE:g} of the weights", advice
    )


def splits_apart(patient: Patient) -> Finding:
    if patient.val_data is None:
        return Finding("splits", "skipped", "no validation data were given", "no sample in both")
    x, _ = Patient.samples(patient.val_data)
    train, val = (fingerprints(each.flatten(1).float()) for each in (patient.x.cpu(), x.cpu()))
    shared = torch.isin(val, train).sum().item()
    state = "ok" if shared == 0 else "warning" if shared < 0.01 * len(val) else "fault"
    found = f"{shared} of {len(val)} validation samples are in training too"
    blind = "near copies: another crop of the same photograph"
    return Finding("splits", state, found, "none", "Split before you augment or copy anything.", blind)


def validation_fixed(patient: Patient) -> Finding:
    if patient.val_data is None:
        return Finding("validation data", "skipped", "no validation data were given", "the same at every pass")
    one, two = (Patient.samples(patient.val_data)[0] for _ in range(2))
    same = one.shape == two.shape and torch.isin(*(fingerprints(e.flatten(1).float()) for e in (one, two))).all().item()
    found = "the same at every pass" if same else "different values at the second pass"
    advice = "Validation images must not be augmented: give that loader its own transform."
    scale = _scales_differ(patient.x.float(), one.float())
    if same and scale:
        found, same, advice = scale, False, "Prepare both splits in the same way, with the training set's numbers."
    return Finding("validation data", "ok" if same else "fault", found, "fixed, and scaled as in training", advice)


def _scales_differ(train: torch.Tensor, val: torch.Tensor) -> str:
    ratio = (val.std() / train.std().clamp_min(1e-12)).item()
    shift = ((val.mean() - train.mean()).abs() / train.std().clamp_min(1e-12)).item()
    return (
        f"standard deviation {ratio:.2g} times that of training, mean {shift:.2g} standard deviations away"
        if not 0.5 < ratio < 2 or shift > 0.5
        else ""
    )


def modes_in_order(patient: Patient) -> Finding:
    losses = {}
    for mode in (True, False):
        patient.model.train(mode)
        with torch.no_grad():
            losses[mode] = patient.loss().item()
    off = abs(losses[True] - losses[False]) / max(abs(losses[False]), 1e-12)
    state = "warning" if off > DIFFERENT else "ok"
    if not patient.was_training:
        state = "fault"
    found = f"loss {losses[True]:.3g} in train mode, {losses[False]:.3g} in eval mode; the net was in " + (
        "train mode" if patient.was_training else "eval mode"
    )
    advice = "train() before training, eval() before validation; a large difference comes from batch norm or dropout."
    return Finding("modes", state, found, "in train mode now, and similar losses in both modes", advice)


def samples_apart(patient: Patient) -> Finding:
    x = patient.batch[0].clone()
    if not x.is_floating_point():
        return Finding("samples apart", "skipped", "inputs are whole numbers", "each output depends on its own input")
    patient.model.eval()
    x.requires_grad_()
    outputs = patient.model(x)
    (gradient,) = torch.autograd.grad(outputs[0].sum(), x)
    others = gradient[1:].abs().sum().item()
    state = "ok" if others == 0 else "fault"
    found = "each output depends on its own input" if state == "ok" else "the first output depends on other samples"
    advice = "A reshape, a softmax or a mean over the wrong axis mixes the samples of a batch."
    return Finding("samples apart", state, found, "each output depends on its own input alone", advice)


def loss_is_a_mean(patient: Patient) -> Finding:
    patient.model.eval()
    x, y = patient.batch
    with torch.no_grad():
        one, two = patient.loss(x, y).item(), patient.loss(torch.cat([x, x]), torch.cat([y, y])).item()
    ratio = two / one if one else 1.0
    state = "ok" if abs(ratio - 1) < 0.05 else "fault"
    advice = "Use reduction='mean': with a sum, the step grows with the batch."
    return Finding("loss is a mean", state, f"a doubled batch gives {ratio:.3g} times the loss", "the same", advice)


def labels_in_order(patient: Patient) -> Finding:
    if not patient.classifies:
        return Finding("labels", "skipped", "not whole numbers", "0 to classes - 1, evenly")
    counts = torch.bincount(patient.y.cpu().clamp_min(0), minlength=patient.classes)
    blind = "labels that belong to other inputs: only the loss after training shows those"
    if (patient.y < 0).any():
        advice = "Cross-entropy expects classes counted from 0."
        return Finding("labels", "fault", "negative labels", "0 to classes - 1", advice, blind)
    if (counts > 0).sum() < 2:
        return Finding(
            "labels", "fault", "one class only", "all classes", "Check how the samples were selected.", blind
        )
    smallest = counts[counts > 0].min().item()
    uneven, missing = counts.max().item() / smallest, int((counts == 0).sum())
    state = "warning" if uneven > UNEVEN or missing else "ok"
    found = f"{patient.classes} classes, the largest {uneven:.2g} times the smallest" + (
        f"; {missing} never occur" if missing else ""
    )
    advice = "Weight the loss or sample rare classes more often, and look at the accuracy per class."
    return Finding("labels", state, found, f"no class {UNEVEN:g} times another", advice, blind)


def no_softmax_yet(patient: Patient) -> Finding:
    if not patient.classifies:
        return Finding("outputs are logits", "skipped", "not a classification", "not yet a softmax")
    patient.model.eval()
    with torch.no_grad():
        outputs = patient.model(patient.batch[0]).float()
    sums = outputs.sum(1) if outputs.ndim == 2 else outputs
    softmax = outputs.min() >= 0 and outputs.max() <= 1 and torch.allclose(sums, torch.ones_like(sums), atol=1e-3)
    found = "rows of outputs add up to 1: a softmax was applied" if softmax else "not yet a softmax"
    advice = "Cross-entropy applies softmax itself: with two, the loss of ten classes cannot fall below 1.46."
    return Finding("outputs are logits", "fault" if softmax else "ok", found, "not yet a softmax", advice)


def checkpoint_complete(patient: Patient) -> Finding:
    expected = "the states of model, optimizer and scheduler"
    if patient.checkpoint is None:
        return Finding("checkpoint", "skipped", "no checkpoint was given", expected)
    keys = " ".join(patient.checkpoint).lower()
    missing = [word for word, signs in CHECKPOINT.items() if not any(sign in keys for sign in signs)]
    found = f"no {' and no '.join(missing)} in it" if missing else "complete"
    advice = "Without them a resumed run restarts its schedule and its momentum."
    return Finding("checkpoint", "fault" if missing else "ok", found, expected, advice)


def asks_for_the_next_token(patient: Patient) -> Finding:
    name, expected = "asks for the next token", "the loss is lowest for outputs that name the next token"
    asked = patient.asked_tokens()
    if not asked:
        return Finding(name, "skipped", "not a net of tokens to logits for each", expected)
    words = ("the same token", "the next token", "the one after the next")
    best = min(range(len(asked)), key=asked.__getitem__)
    found = f"outputs that name {words[best]} have the lowest loss: {asked[best]:.3g}"
    advice = "Shift the targets by exactly one token against the inputs, once: in the data, in the net or in the loss."
    if best != 1 and asked[best] > CLEARLY * asked[1]:  # the targets are other words: tags, masked words
        return Finding(name, "skipped", "the targets are not tokens of the inputs", expected)
    return Finding(name, "ok" if best == 1 else "fault", found, expected, advice)


def does_not_look_ahead(patient: Patient) -> Finding:
    name, expected = "does not look ahead", "the same logits, whatever the later tokens are"
    asked = patient.asked_tokens()
    if not asked or min(asked) != asked[1]:
        return Finding(name, "skipped", "the loss does not ask for the next token", expected)
    found = causality(patient.model, patient.batch[0])
    advice = "Mask the scores before the softmax, over the keys; look at how heads are split and joined."
    blind = "a target that is among the inputs in another form, such as its own label"
    return Finding(name, "ok" if found else "fault", str(found), expected, advice, blind)


CLEARLY = 0.5  # of the loss of naming the next token: what another shift must be below to be what is asked for
CHECKPOINT = {"model": ("model", "net", "weights", "state_dict"), "optimizer": ("optim",), "scheduler": ("sched",)}
TESTS = (
    initial_loss, one_batch_memorised, inputs_matter, inputs_in_order, outputs_in_shape, gradients_everywhere,
    one_step_down, splits_apart, validation_fixed, modes_in_order, samples_apart, loss_is_a_mean, labels_in_order,
    no_softmax_yet, asks_for_the_next_token, does_not_look_ahead, checkpoint_complete,
)  # fmt: skip
