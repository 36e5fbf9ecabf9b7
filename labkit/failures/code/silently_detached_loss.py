"""The loss is wrapped in a new tensor with requires_grad=True: backward runs, but reaches no weight."""

import torch

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.training.recipe import Recipe

healthy = Recipe(steps=200)


def step_with_a_new_loss_tensor(training, x, y) -> None:
    """The plain step, but backward gets a new tensor that only holds the value of the loss."""
    training.optimizer.zero_grad()
    loss = torch.tensor(training.loss(x, y).item(), requires_grad=True, device=x.device)
    training.backward(loss)
    training.look(loss, x, y)
    training.clip()
    training.update()


sick = healthy.but(step=step_with_a_new_loss_tensor)


def signature(run: Run) -> Evidence | None:
    without = set(run.facts.get("without_gradient", ()))
    # Exact, no threshold: a weight in the graph has a gradient tensor, even if it is all zeros.
    if not run.parameters or not without >= set(run.parameters) or run["grad_norm_total"].any():
        return None
    if run["update_norm"].any():
        return None
    return Evidence(
        seen=f"none of the {len(run.parameters)} parameter tensors got a gradient in {len(run)} steps, and no weight "
        "changed",
        usual=f"all {len(run.parameters)} have one after the first backward",
        onset=0,
        place="loss",
        confidence=0.97,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Silently detached loss",
    cures={"backward on the loss as it was computed": sick.but(step="plain_step")},
    false_cures={
        "ten times the learning rate: ten times nothing": sick.but(lr=1.0),
        "Adam: it skips weights without a gradient": sick.but(optimizer="adam", lr=0.003),
    },
    harm=0.8,
    symptom="The training loss only varies around chance level from batch to batch, and no error is raised. On a "
    "fixed batch the loss stays identical to the last bit, from the first step to the last.",
    mechanism="torch.tensor(loss.item(), requires_grad=True) is a new leaf without history. backward() fills the "
    "gradient of that leaf and stops there without an error. The optimizer skips weights whose gradient is None.",
    formula=r"\frac{\partial L'}{\partial L'} = 1, \qquad \frac{\partial L'}{\partial \theta} = 0",
    first_check="Look for parameters whose .grad is None after the first backward, and check the loss on a fixed "
    "batch.",
    remedy="Remove the wrapping and call backward on the tensor that the loss function returned. An error about "
    "grad_fn is helpful: find where the graph was cut instead of setting requires_grad.",
    reference="Paszke et al., Automatic differentiation in PyTorch (2017)",
    looks="never moves",
    shows="probe_loss",
    knobs=(Knob("lr", (1e-3, 10.0), log=True), Knob("optimizer", ("sgd", "adam"))),
)
