"""The loss is detached before backward: there is no way back to the weights, and PyTorch says so at once."""

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# PyTorch's own words for a loss that no weight has a part in; a graph that was freed or edited in place has others.
NO_WAY_BACK = "does not require grad and does not have a grad_fn"

healthy = Recipe(steps=200)


def step_with_detached_loss(training, x, y) -> None:
    """The plain step, but the loss is cut off from the net before it is sent back."""
    training.optimizer.zero_grad()
    loss = training.loss(x, y).detach()
    training.backward(loss)
    training.look(loss, x, y)
    training.update()


def step_with_gradient_asked_for(training, x, y) -> None:
    """What the error message seems to ask for: the detached loss is told that it requires a gradient."""
    training.optimizer.zero_grad()
    loss = training.loss(x, y).detach().requires_grad_()
    training.backward(loss)
    training.look(loss, x, y)
    training.update()


sick = healthy.but(step=step_with_detached_loss)


def signature(run: Run) -> Evidence | None:
    error = run.facts.get("error") or {}
    if error.get("kind") != "RuntimeError" or NO_WAY_BACK not in error.get("message", ""):
        return None
    return Evidence(
        seen=f"backward raised RuntimeError at step {error['step']}: the loss {NO_WAY_BACK}",
        usual="a loss with a grad_fn, and 0 errors",
        onset=error["step"],
        place="loss",
        confidence=0.98,
    )


failure = FailureMode(
    title="Detached loss",
    healthy=healthy,
    sick=sick,
    cures={"backward on the loss itself; detach only what is logged": sick.but(step="plain_step")},
    false_cures={
        "requires_grad_() on the detached loss: no error any more, and no learning": sick.but(
            step=step_with_gradient_asked_for
        )
    },
    signature=signature,
    harm=0.8,
    symptom="RuntimeError at the first backward: 'element 0 of tensors does not require grad and does not have a "
    "grad_fn'. Not one step is made.",
    mechanism="A tensor remembers the operations that made it, and backward walks along that memory. detach(), "
    "no_grad(), .item() or a trip through NumPy leave the number and lose the memory; with every weight frozen it "
    "was never written.",
    first_check="Print loss.grad_fn just before backward: None means the way back is cut. Then go up the code line by "
    "line until it is there.",
    remedy="Call backward on the loss as it was computed, and detach only the copy that you log. Do not silence the "
    "error with requires_grad_(): then nothing complains, and nothing is learned.",
    reference="Paszke et al., Automatic differentiation in PyTorch (2017)",
    looks="error",
    shows="origin",
    knobs=(Knob("lr", (1e-3, 1.0), log=True), Knob("optimizer", ("sgd", "adam"))),
    raises=True,
    cifar10={"momentum": 0.0},  # with momentum, LR 0.1 is itself too high for these larger inputs
)
