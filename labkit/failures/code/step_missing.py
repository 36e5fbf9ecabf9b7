"""optimizer.step() was forgotten: gradients are computed with care, and never used."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# Learning rate times gradient over weight: the update that plain SGD would make. Healthy runs here: 1e-4 to 0.1;
# below 1e-7 float32 rounds an update away, and weights stand still for another reason.
WORTHWHILE = 1e-6

healthy = Recipe(steps=200)


def step_without_update(training, x, y) -> None:
    """The plain step, but the optimizer is never told to make one."""
    training.optimizer.zero_grad()
    loss = training.loss(x, y)
    training.backward(loss)
    training.look(loss, x, y)
    training.clip()


sick = healthy.but(step=step_without_update)


def signature(run: Run) -> Evidence | None:
    if run["update_norm"].any() or not np.isfinite(run["grad_norm"]).all():  # GradScaler skips what is not finite
        return None
    with np.errstate(all="ignore"):
        wanted = run["lr"][:, None] * run["grad_norm"] / run["weight_norm"]
    wanted = np.median(wanted.max(axis=1))
    if not wanted > WORTHWHILE:
        return None
    return Evidence(
        seen=f"not one weight moved in {len(run)} steps, though the gradients are alive (norm "
        f"{np.median(run['grad_norm_total']):.2g}) and the learning rate is {np.median(run['lr']):.2g}",
        usual=f"updates of about {wanted:.1g} of a layer",
        onset=0,
        place="optimizer",
        confidence=0.97,
    )


failure = FailureMode(
    title="Optimizer step missing",
    healthy=healthy,
    sick=sick,
    cures={"optimizer.step() after backward": sick.but(step="plain_step")},
    false_cures={
        "a hundred times the learning rate: still nothing moves": sick.but(lr=10.0),
        "Adam: forgotten just the same": sick.but(optimizer="adam", lr=0.003),
    },
    signature=signature,
    harm=0.8,
    symptom="The loss stays at chance level, and turning the learning rate changes nothing at all. Gradients look "
    "perfectly healthy.",
    mechanism="backward() only writes gradients down beside the weights. Moving the weights is the optimizer's work, "
    "and nobody asked it to.",
    first_check="Compare one weight before and after a step, bit by bit: equal, with a gradient and a learning rate "
    "above 0, means that no step was made.",
    remedy="Call optimizer.step() once per batch, after backward. With GradScaler it is scaler.step(optimizer); with "
    "gradient accumulation check that the condition around it is ever true.",
    reference="PyTorch documentation, torch.optim: taking an optimization step (2.13)",
    looks="never moves",
    shows="update_ratio",
    knobs=(Knob("lr", (1e-3, 10.0), log=True), Knob("optimizer", ("sgd", "adam"))),
    cifar10={"momentum": 0.0},  # with momentum, LR 0.1 is itself too high for these larger inputs
)
