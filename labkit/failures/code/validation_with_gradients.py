"""Validation without `torch.no_grad()`: every answer is kept, layer by layer, for a backward pass that never comes."""

import torch

from labkit.training import parts
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

SOME = 0.0  # share of validation passes with gradients on; sound loops have none

healthy = Recipe(depth=4, momentum=0.0)


def evaluate_with_gradients(training, split) -> dict:
    """As the plain evaluation, but autograd records every forward pass."""
    training.model.eval()
    with torch.enable_grad():
        results = [parts.score(training, x, y) for x, y in zip(split.x.split(1000), split.y.split(1000), strict=True)]
    training.model.train()
    return {name: (sum(each[name] for each in results) / len(split.y)).detach() for name in results[0]}


sick = healthy.but(evaluate=evaluate_with_gradients)


def signature(run: Run) -> Evidence | None:
    shares = run["val_with_gradients"]
    if not shares.max(initial=0.0) > SOME:
        return None
    first = int((shares > SOME).argmax())
    return Evidence(
        seen=f"{shares[first]:.0%} of the forward passes of the validation recorded a graph for backward",
        usual="0 %",
        onset=int(run["val_step"][first]),
        confidence=0.95,
    )


failure = FailureMode(
    title="Validation with gradients",
    healthy=healthy,
    sick=sick,
    cures={"torch.no_grad around the validation": sick.but(evaluate=parts.plain_evaluate)},
    signature=signature,
    harm=0.0,
    costs="Memory: 2,000 digits keep 13 MB for backward where `no_grad` keeps nothing and a training step of 128 keeps "
    "1; and up to a fifth more time per validation. No accuracy.",
    symptom="Every number is right. Validation needs more memory than training did, and on a GPU it is the first to "
    "run out.",
    mechanism="With gradients on, autograd keeps the input of every layer until backward, and backward never comes. "
    "`eval()` does not prevent it: it changes dropout and batch norm and nothing else.",
    first_check="`torch.is_grad_enabled()` inside the validation, or whether its loss has a `grad_fn`.",
    remedy="Decorate the validation with `torch.no_grad()` or `torch.inference_mode()`, and log numbers, not tensors.",
    reference="PyTorch documentation, Autograd mechanics (2024), section on locally disabling gradient computation",
    looks="nothing",
    shows="val_with_gradients",
    knobs=(
        Knob("evaluate_every", (10, 200)),
        Knob("width", (64, 512), log=True),
        Knob("depth", (2, 8)),
    ),
)
