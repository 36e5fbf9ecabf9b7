"""Validation switches to eval mode and nothing switches back: batch norm no longer normalises training batches."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.training.parts import plain_evaluate
from labkit.training.recipe import Recipe

RISE = 3.0  # the loss over its first value; healthy: below 1.5, these: 1e13 and more. Harmless on normalised inputs.

# Raw pixels: a net that depends on its batch norms.
healthy = Recipe(depth=3, normalisation="batch", inputs="raw", steps=200)


def evaluate_and_stay_in_eval_mode(training, split) -> dict:
    """The plain evaluation, but without model.train() after it."""
    results = plain_evaluate(training, split)
    training.model.eval()
    return results


sick = healthy.but(evaluate=evaluate_and_stay_in_eval_mode)


def signature(run: Run) -> Evidence | None:
    losses, off = run["loss"], run["train_mode"] == 0
    if not run.facts.get("batch_norms") or not off.any() or not np.isfinite(losses[0]):
        return None
    start = int(np.argmax(off))
    bad = ~(losses[start:] < RISE * losses[0])  # written so that NaN counts as bad
    if not bad.any():
        return None
    peak = np.max(losses, initial=losses[0], where=np.isfinite(losses))
    return Evidence(
        seen=f"{off.mean():.0%} of the training steps ran in eval mode, with {len(run.facts['batch_norms'])} "
        f"batch norms in the net; the loss went from {losses[0]:.3g} to {peak:.3g}",
        usual="0 % of the steps",
        onset=start,
        place=run.facts["batch_norms"][0],
        confidence=0.93,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Eval mode in training",
    cures={
        "model.train() after each validation": sick.but(evaluate="plain_evaluate"),
    },
    false_cures={
        "clipping the gradient norm to 1: no NaN, but 91 % instead of 93 %": sick.but(clip=1.0),
        "a tenth of the learning rate: NaN again": sick.but(lr=0.01),
    },
    harm=0.8,
    symptom="The loss explodes within a few steps and ends as NaN, in a net whose batch norms should handle any input "
    "scale.",
    mechanism="In eval mode batch norm uses the running statistics, which are only updated in train mode. They keep "
    "their last values, here mean 0 and variance 1, so raw pixels pass through the net unnormalised.",
    formula=r"\hat{x} = \frac{x - 0}{\sqrt{1 + \epsilon}} \approx x \quad \text{whatever the batch}",
    first_check="assert model.training at the top of every training step.",
    remedy="Call model.train() at the start of each epoch, not once before the loop. On normalised inputs the bug is "
    "almost invisible (91 % instead of 94), so check the mode and not only the loss.",
    reference="Ioffe and Szegedy, Batch Normalization: Accelerating Deep Network Training by Reducing Internal "
    "Covariate Shift (2015)",
    looks="not finite",
    shows="train_mode",
    knobs=(Knob("inputs", ("normalised", "unit", "raw")), Knob("lr", (1e-3, 0.3), log=True)),
    also_causes=(
        "dead_relu",
        "learning_rate_too_high",
        "vanishing_gradients",
        "inputs_not_normalised",
        "exploding_gradients",
        "runaway_weights",
    ),
    # On photographs, at a constant LR, the running statistics lag behind the net: the loss in eval mode bounces by 8 %.
    cifar10={"schedule": "cosine"},
)
