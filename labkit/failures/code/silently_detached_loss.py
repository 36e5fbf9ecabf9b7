"""The loss is wrapped in a new tensor that asks for gradients: backward runs, and reaches no weight."""

import torch

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

healthy = Recipe(steps=200)


def step_with_a_new_loss_tensor(training, x, y) -> None:
    """The plain step, but backward gets a fresh tensor that holds the loss as a number only."""
    training.optimizer.zero_grad()
    loss = torch.tensor(training.loss(x, y).item(), requires_grad=True, device=x.device)
    training.backward(loss)
    training.look(loss, x, y)
    training.clip()
    training.update()


sick = healthy.but(step=step_with_a_new_loss_tensor)


def signature(run: Run) -> Evidence | None:
    silent = set(run.facts.get("without_gradient", ()))
    # Exact, without a threshold: a weight in the graph has a gradient tensor, even where all of it is 0.
    if not run.parameters or not silent >= set(run.parameters) or run["grad_norm_total"].any():
        return None
    if run["update_norm"].any():
        return None
    return Evidence(
        seen=f"none of the {len(run.parameters)} parameter tensors got a gradient in {len(run)} steps, and no weight "
        "moved",
        usual=f"all {len(run.parameters)} have one after the first backward",
        onset=0,
        place="loss",
        confidence=0.97,
    )


failure = FailureMode(
    title="Silently detached loss",
    healthy=healthy,
    sick=sick,
    cures={"backward on the loss as it was computed": sick.but(step="plain_step")},
    false_cures={
        "ten times the learning rate: ten times nothing": sick.but(lr=1.0),
        "Adam: it passes over weights without a gradient": sick.but(optimizer="adam", lr=0.003),
    },
    signature=signature,
    harm=0.8,
    symptom="The training loss wobbles about chance level from batch to batch, and no error is raised. On a fixed "
    "batch the loss is the same to the last bit, from the first step to the last.",
    mechanism="torch.tensor(loss.item(), requires_grad=True) is a new leaf with no history. backward() fills the "
    "gradient of that leaf, finds nothing behind it and is content; the optimizer passes over weights whose gradient "
    "is None.",
    first_check="Look for parameters whose .grad is None after the first backward, and at the loss on one fixed batch.",
    remedy="Take the re-wrapping out and call backward on the tensor that the loss function returned. An error about "
    "grad_fn is a friend: find where the graph was cut, rather than asking for requires_grad.",
    reference="Paszke et al., Automatic differentiation in PyTorch (2017)",
    looks="never moves",
    shows="probe_loss",
    knobs=(Knob("lr", (1e-3, 10.0), log=True), Knob("optimizer", ("sgd", "adam"))),
    cifar10={"momentum": 0.0},  # with momentum, LR 0.1 is itself too high for these larger inputs
)
