"""Validation without `torch.no_grad()`: activations are kept for a backward pass that never comes."""

import torch

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.training import parts
from labkit.training.recipe import Recipe

SOME = 0.0  # share of validation passes with gradients on; correct loops have none

healthy = Recipe(depth=4)


def evaluate_with_gradients(training, split) -> dict:
    """Like the plain evaluation, but autograd records every forward pass."""
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
        seen=f"{shares[first]:.0%} of the forward passes at validation recorded a graph for backward",
        usual="0 %",
        onset=int(run["val_step"][first]),
        confidence=0.95,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Validation with gradients",
    cures={"torch.no_grad around validation": sick.but(evaluate=parts.plain_evaluate)},
    harm=0.0,
    costs="Memory: 2,000 digits keep 13 MB for backward, compared with nothing under `no_grad` and 1 MB for a "
    "training step of 128; and up to a fifth more time per validation. No accuracy.",
    symptom="Every number is correct. Validation needs more memory than training, and on a GPU it is the first to run "
    "out.",
    mechanism="With gradients on, autograd keeps the input of every layer until backward, which never comes. `eval()` "
    "does not prevent it: it only changes dropout and batch norm.",
    formula=r"\text{memory} \propto \text{batch} \times \sum_l \text{width}_l \quad \text{instead of} \quad \max_l",
    first_check="`torch.is_grad_enabled()` during validation, or whether its loss has a `grad_fn`.",
    remedy="Decorate validation with `torch.no_grad()` or `torch.inference_mode()`, and log numbers, not tensors.",
    reference="PyTorch documentation, Autograd mechanics (2024), section on locally disabling gradient computation",
    looks="nothing",
    shows="val_with_gradients",
    knobs=(
        Knob("evaluate_every", (10, 200)),
        Knob("width", (64, 512), log=True),
        Knob("depth", (2, 8)),
    ),
)
