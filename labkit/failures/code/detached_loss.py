"""The loss is detached before backward: it has no graph that leads to the weights, and PyTorch raises an error."""

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.training.recipe import Recipe

# PyTorch's message for a loss without a graph; a graph that was freed or edited in place gives other messages.
NO_GRAPH = "does not require grad and does not have a grad_fn"

healthy = Recipe(steps=200)


def step_with_detached_loss(training, x, y) -> None:
    """The plain step, but the loss is detached from the graph before backward."""
    training.optimizer.zero_grad()
    loss = training.loss(x, y).detach()
    training.backward(loss)
    training.look(loss, x, y)
    training.update()


def step_with_requires_grad_on_detached_loss(training, x, y) -> None:
    """What the error message seems to ask for: requires_grad_() on the detached loss."""
    training.optimizer.zero_grad()
    loss = training.loss(x, y).detach().requires_grad_()
    training.backward(loss)
    training.look(loss, x, y)
    training.update()


sick = healthy.but(step=step_with_detached_loss)


def signature(run: Run) -> Evidence | None:
    error = run.facts.get("error") or {}
    if error.get("kind") != "RuntimeError" or NO_GRAPH not in error.get("message", ""):
        return None
    return Evidence(
        seen=f"backward raised RuntimeError at step {error['step']}: the loss {NO_GRAPH}",
        usual="a loss with a grad_fn, and 0 errors",
        onset=error["step"],
        place="loss",
        confidence=0.98,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Detached loss",
    cures={"backward on the loss itself; detach only what you log": sick.but(step="plain_step")},
    false_cures={
        "requires_grad_() on the detached loss: no error, but no learning either": sick.but(
            step=step_with_requires_grad_on_detached_loss
        )
    },
    harm=0.8,
    symptom="RuntimeError at the first backward: 'element 0 of tensors does not require grad and does not have a "
    "grad_fn'. Not a single step is made.",
    mechanism="A tensor records the operations that produced it, and backward follows this graph. detach(), "
    "no_grad(), .item() or a conversion to NumPy keep the value and drop the graph. If every weight is frozen, there "
    "is no graph at all.",
    formula=r"\frac{\partial L}{\partial \theta} \text{ has no path: } L \not\leftarrow \theta",
    first_check="Print loss.grad_fn just before backward: None means the graph is cut. Then go back line by line "
    "until it is there.",
    remedy="Call backward on the loss as it was computed, and detach only the copy that you log. Do not silence the "
    "error with requires_grad_(): the error disappears, but nothing is learned.",
    reference="Paszke et al., Automatic differentiation in PyTorch (2017)",
    looks="error",
    shows="origin",
    knobs=(Knob("lr", (1e-3, 1.0), log=True), Knob("optimizer", ("sgd", "adam"))),
    raises=True,
)
