"""optimizer.step() is missing: gradients are computed, but never used."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.training.recipe import Recipe

# Learning rate times gradient over weight: the update that plain SGD would make. Healthy runs here: 1e-4 to 0.1;
# below 1e-7 float32 rounds an update away, and weights stay constant for another reason.
WORTHWHILE = 1e-6

healthy = Recipe(steps=200)


def step_without_update(training, x, y) -> None:
    """The plain step, but without optimizer.step()."""
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
        seen=f"no weight changed in {len(run)} steps, although gradients arrive (norm "
        f"{np.median(run['grad_norm_total']):.2g}) and the learning rate is {np.median(run['lr']):.2g}",
        usual=f"updates of about {wanted:.1g} of a layer",
        onset=0,
        place="optimizer",
        confidence=0.97,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Optimizer step missing",
    cures={"optimizer.step() after backward": sick.but(step="plain_step")},
    false_cures={
        "a hundred times the learning rate: still no change": sick.but(lr=10.0),
        "Adam: its step is missing too": sick.but(optimizer="adam", lr=0.003),
    },
    harm=0.8,
    symptom="The loss stays at chance level, and changing the learning rate has no effect at all. Gradients look "
    "healthy.",
    mechanism="backward() only stores gradients in .grad. Updating the weights is the job of optimizer.step(), which "
    "is never called.",
    formula=r"\theta_{t+1} = \theta_t",
    first_check="Compare one weight before and after a step, bit by bit: if it is equal, while gradient and learning "
    "rate are above 0, no step was made.",
    remedy="Call optimizer.step() once per batch, after backward. With GradScaler it is scaler.step(optimizer); with "
    "gradient accumulation check that the condition around it is ever true.",
    reference="PyTorch documentation, torch.optim: taking an optimization step (2.13)",
    looks="never moves",
    shows="update_ratio",
    knobs=(Knob("lr", (1e-3, 10.0), log=True), Knob("optimizer", ("sgd", "adam"))),
)
