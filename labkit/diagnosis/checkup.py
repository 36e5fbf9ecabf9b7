"""Before training: the ten-point list and further active tests, on anybody's model, loss, data and optimizer."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from labkit.recording.sample_log import fingerprints, not_in_optimizer, strangers
from labkit.tools.gradient_flow import gradient_flow
from labkit.tools.lr_finder import unchanged

BATCH = 32  # learned by heart in 28 to 30 steps of Adam 1e-3 by a healthy perceptron
FIT_STEPS = 300
FIT = 0.1  # loss at which a batch counts as learned by heart, of its first loss; softmax twice stays above 0.6
CONTROL_STEPS = 60
NEAR = 0.15  # of ln(classes), either way: default inits give 2.30 to 2.36 for ten classes
FAR = 1.0  # He init starts at 2.75 to 3.6 and is healthy; twice ln(classes) is not
DIFFERENT = 0.5  # train mode beside eval mode, on the same batch
VIOLENT = 0.5  # one update as large as half of the weights that it changes; healthy first steps stay below 0.3
UNEVEN = 10.0  # largest class over smallest
SEEN = 10_000  # samples of each split that are looked at


@dataclass(frozen=True)
class Finding:
    """One test: what was expected, what was found, and what it cannot see."""

    name: str
    state: str  # "ok", "warning", "fault" or "skipped"
    found: str
    expected: str
    advice: str = ""
    blind_to: str = ""


@dataclass(frozen=True)
class Checkup:
    """All findings, in the order of the list above the desk."""

    findings: tuple[Finding, ...]

    def __bool__(self) -> bool:
        """True when nothing is at fault."""
        return not self.faults

    @property
    def faults(self) -> list[Finding]:
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
        return "\n".join([*lines, "", "what these tests cannot see:", *blind])

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(str(self))}</pre>"


MARKS = {"ok": "ok", "warning": "look", "fault": "FAULT", "skipped": "-"}


def checkup(
    model, loss_fn: Callable, train_data, val_data=None, optimizer=None, *, checkpoint: dict | None = None
) -> Checkup:
    """Test a training set-up before it is trained; everything is afterwards exactly as it was.

    `train_data` and `val_data` are loaders of (inputs, targets), or two tensors each. `checkpoint` is the dictionary
    that you save, to see whether it holds what a resumed run needs.
    """
    patient = Patient(model, loss_fn, train_data, val_data, optimizer, checkpoint)
    findings = []
    for test in TESTS:
        with unchanged(model, optimizer):
            findings.append(finding_of(test, patient))
    return Checkup(tuple(findings))


def finding_of(test: Callable, patient: "Patient") -> Finding:
    """What a test finds; an error of the model or of the loss is a finding too, and the other tests go on."""
    try:
        return test(patient)
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        found = f"{type(error).__name__}: {error}"
        name = test.__name__.replace("_", " ")
        return Finding(name, "fault", found, "to run at all", "Compare the shapes of outputs and targets.")


class Patient:
    """What the tests look at: the parts, one batch, and the samples of both splits."""

    def __init__(self, model, loss_fn, train_data, val_data, optimizer, checkpoint):
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
    def samples(data) -> tuple[torch.Tensor, torch.Tensor]:
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
            raise ValueError("the data hold no batch; expected a loader of (inputs, targets) or two tensors")
        return torch.cat(inputs), torch.cat(targets)

    def loss(self, x=None, y=None) -> torch.Tensor:
        x, y = self.batch if x is None else (x, y)
        return self.loss_fn(self.model(x), y)

    def new_optimizer(self, lr: float = 1e-3):
        return torch.optim.Adam([weight for weight in self.model.parameters() if weight.requires_grad], lr=lr)

    def fitted(self, x, y, steps: int) -> tuple[float, float]:
        """First and last loss when one batch is learned by heart, with Adam 1e-3 and dropout off."""
        self.model.train()
        for module in self.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.eval()
        optimizer, first = self.new_optimizer(), None
        for _ in range(steps):
            optimizer.zero_grad()
            loss = self.loss(x, y)
            loss.backward()
            optimizer.step()
            first = loss.item() if first is None else first
        return first, loss.item()


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


def one_batch_by_heart(patient: Patient) -> Finding:
    first, last = patient.fitted(*patient.batch, FIT_STEPS)
    state = "ok" if last <= FIT * first or last < 1e-3 else "fault"
    advice = "The net, the loss or the gradient is broken: look at the gradient flow and at the outputs."
    blind = "shuffled labels (they can be learned by heart too) and inputs that are not normalised"
    found = f"loss {first:.3g} -> {last:.3g} in {FIT_STEPS} steps of Adam 1e-3"
    return Finding("one batch by heart", state, found, f"below {FIT:g} of the first loss", advice, blind)


def inputs_matter(patient: Patient) -> Finding:
    x, y = patient.batch
    with unchanged(patient.model):
        _, without = patient.fitted(torch.zeros_like(x), y, CONTROL_STEPS)
    _, real = patient.fitted(x, y, CONTROL_STEPS)
    state = "fault" if without < 1.1 * real and real > 1e-3 else "ok"
    found = f"loss {real:.3g} with the inputs, {without:.3g} with zeros instead"
    return Finding("inputs matter", state, found, "much lower with the inputs", "The inputs do not reach the outputs.")


def inputs_in_order(patient: Patient) -> Finding:
    x = patient.x.float()
    expected, blind = "finite, mean near 0, spread near 1", "single samples that are corrupt but finite"
    if not torch.isfinite(x).all():
        bad = int((~torch.isfinite(x)).flatten(1).any(1).sum())
        advice = "Drop or mend them before training: one NaN spoils every weight."
        return Finding("inputs", "fault", f"{bad} of {len(x)} samples hold NaN or infinity", expected, advice, blind)
    mean, spread = x.mean().item(), x.std().item()
    state = "ok" if abs(mean) < 1 and 0.2 < spread < 5 else "warning" if spread > 1e-6 else "fault"
    advice = "Subtract the training set's mean and divide by its standard deviation, in both splits alike."
    return Finding("inputs", state, f"mean {mean:.3g}, spread {spread:.3g}", expected, advice, blind)


def outputs_in_shape(patient: Patient) -> Finding:
    patient.model.eval()
    with torch.no_grad():
        outputs = patient.model(patient.batch[0])
    expected = f"({len(patient.batch[1])}, at least {patient.classes})"
    if not patient.classifies:
        return Finding("output shape", "skipped", str(tuple(outputs.shape)), "not a classification")
    good = outputs.ndim == 2 and len(outputs) == len(patient.batch[1]) and outputs.shape[1] >= patient.classes
    advice = "Cross-entropy wants one row per sample and one column per class."
    return Finding("output shape", "ok" if good else "fault", str(tuple(outputs.shape)), expected, advice)


def gradients_everywhere(patient: Patient) -> Finding:
    patient.model.train()
    loss = patient.loss()
    unknown = strangers(loss, patient.model)
    loss.backward()
    flow = gradient_flow(patient.model)
    without = [row.name for row in flow.rows if row.status in ("no gradient", "zero", "not finite")]
    left_out = not_in_optimizer(patient.model, patient.optimizer) if patient.optimizer else []
    problems = [f"no gradient in {', '.join(without)}"] if without else []
    problems += [f"not in the optimizer: {', '.join(left_out)}"] if left_out else []
    problems += [f"{len(unknown)} tensors that the net does not own, of shapes {unknown}"] if unknown else []
    state = "fault" if problems else "warning" if flow.problems else "ok"
    found = "; ".join(problems) or ", ".join(f"{row.name} {row.status}" for row in flow.problems) or "in all parameters"
    advice = "Look for detach(), requires_grad, layers in a plain list, and an optimizer made before the net was final."
    return Finding("gradients", state, found, "one in every parameter, held by the optimizer", advice)


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
    state = "ok" if fell and ratio < VIOLENT else "fault"
    found = f"loss {first.item():.4g} -> {second:.4g}; the largest update is {ratio:.2g} of its weights"
    advice = "Updates of half the weights: lower the learning rate. A loss that rises: the same, or a wrong sign."
    return Finding(
        "one step", state, found, f"the loss falls, and updates stay below {VIOLENT:g} of the weights", advice
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
    found = "the same at every pass" if same else "other values at the second pass"
    advice = "Validation images must not be augmented: give that loader a transform of its own."
    scale = _scales_differ(patient.x.float(), one.float())
    if same and scale:
        found, same, advice = scale, False, "Prepare both splits in the same way, with the training set's numbers."
    return Finding("validation data", "ok" if same else "fault", found, "fixed, and scaled as in training", advice)


def _scales_differ(train: torch.Tensor, val: torch.Tensor) -> str:
    ratio = (val.std() / train.std().clamp_min(1e-12)).item()
    shift = ((val.mean() - train.mean()).abs() / train.std().clamp_min(1e-12)).item()
    return (
        f"spread {ratio:.2g} times that of training, mean {shift:.2g} spreads away"
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
    return Finding("modes", state, found, "in train mode now, and the two losses near each other", advice)


def samples_apart(patient: Patient) -> Finding:
    x = patient.batch[0].clone()
    if not x.is_floating_point():
        return Finding("samples apart", "skipped", "inputs are whole numbers", "each output depends on its own input")
    patient.model.eval()
    x.requires_grad_()
    outputs = patient.model(x)
    outputs[0].sum().backward()
    others = x.grad[1:].abs().sum().item()
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
    blind = "labels that belong to other inputs: the loss of a trained net shows those"
    if (patient.y < 0).any():
        advice = "Cross-entropy wants classes from 0."
        return Finding("labels", "fault", "negative labels", "0 to classes - 1", advice, blind)
    if (counts > 0).sum() < 2:
        return Finding("labels", "fault", "one class only", "all classes", "Look at how the data were chosen.", blind)
    smallest = counts[counts > 0].min().item()
    uneven, missing = counts.max().item() / smallest, int((counts == 0).sum())
    state = "warning" if uneven > UNEVEN or missing else "ok"
    found = f"{patient.classes} classes, the largest {uneven:.2g} times the smallest" + (
        f"; {missing} never occur" if missing else ""
    )
    advice = "Weigh the loss or draw rare classes more often, and judge by the accuracy per class."
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
        return Finding("checkpoint", "skipped", "none was given", expected)
    keys = " ".join(patient.checkpoint).lower()
    missing = [word for word, signs in CHECKPOINT.items() if not any(sign in keys for sign in signs)]
    found = f"no {' and no '.join(missing)} in it" if missing else "complete"
    advice = "Without them a resumed run starts its schedule and its momentum anew."
    return Finding("checkpoint", "fault" if missing else "ok", found, expected, advice)


CHECKPOINT = {"model": ("model", "net", "weights", "state_dict"), "optimizer": ("optim",), "scheduler": ("sched",)}
TESTS = (
    initial_loss, one_batch_by_heart, inputs_matter, inputs_in_order, outputs_in_shape, gradients_everywhere,
    one_step_down, splits_apart, validation_fixed, modes_in_order, samples_apart, loss_is_a_mean, labels_in_order,
    no_softmax_yet, checkpoint_complete,
)  # fmt: skip
