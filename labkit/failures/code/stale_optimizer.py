"""The head is replaced after the optimizer was built: the optimizer goes on moving the old one, which is gone."""

import numpy as np
from torch import nn

from labkit.training import parts
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

HEAD_STD = 0.01  # a common draw for a new head on a trained body


def with_new_head(model, recipe) -> nn.Module:
    """The same net with a fresh last layer, as one does for a new task."""
    old = model.get_submodule(f"layer{recipe.depth}")
    head = nn.Linear(old.in_features, old.out_features, device=old.weight.device, dtype=old.weight.dtype)
    nn.init.normal_(head.weight, std=HEAD_STD)
    nn.init.zeros_(head.bias)
    model.set_submodule(f"layer{recipe.depth}", head)
    return model


def sgd_after_new_head(model, recipe):
    """As it should be: first the head, then the optimizer."""
    return parts.sgd(with_new_head(model, recipe), recipe)


def sgd_before_new_head(model, recipe):
    """The optimizer holds the net as it was; then the head is replaced."""
    optimizer = parts.sgd(model, recipe)
    with_new_head(model, recipe)
    return optimizer


healthy = Recipe(optimizer=sgd_after_new_head, momentum=0.0, steps=200)
sick = healthy.but(optimizer=sgd_before_new_head)


def signature(run: Run) -> Evidence | None:
    facts, held = run.facts, set(run.facts.get("without_gradient", ()))  # frozen on purpose: nobody's loss
    forgotten = [name for name in facts.get("not_in_optimizer", ()) if name not in held]
    layers = [layer for layer in run.layers if any(name.rpartition(".")[0] == layer for name in forgotten)]
    if not layers:
        return None
    place = run.layers.index(layers[0])
    norms, moved = run["grad_norm"][:, place], run["update_norm"][:, place]
    # Exact, without a threshold: a layer that the optimizer does not hold stays as it is to the last bit.
    if moved.any() or not norms.any():
        return None
    largest = np.max(norms, initial=0, where=np.isfinite(norms))
    return Evidence(
        seen=f"{len(forgotten)} of {len(run.parameters)} parameters get gradients and are not in the optimizer "
        f"({', '.join(forgotten[:4])}): {layers[0]} never moved, and its gradient piled up to {largest:.3g}",
        usual="0 parameters with a gradient that the optimizer does not hold",
        onset=0,
        place=layers[0],
        confidence=0.97,
    )


failure = FailureMode(
    title="Stale optimizer",
    healthy=healthy,
    sick=sick,
    cures={"the optimizer built after the head was replaced": sick.but(optimizer=sgd_after_new_head)},
    false_cures={
        "three times the learning rate: 84 % instead of 90": sick.but(lr=0.3),
        "momentum 0.9: 87 %": sick.but(momentum=0.9),
    },
    signature=signature,
    harm=0.08,
    symptom="The net learns, but slowly and not far, and the new head stays as it was drawn, to the last bit.",
    mechanism="An optimizer keeps the list of tensors it was given. A layer that is replaced later is not on it: the "
    "optimizer goes on polishing the old head, which nobody uses, and the body has to learn around the new one. "
    "Nor does optimizer.zero_grad() reach the new head, so its gradient piles up.",
    first_check="Compare the ids of model.parameters() with those in optimizer.param_groups.",
    remedy="Change the net first and build the optimizer last; the same after loading, tying or converting layers. "
    "For a layer that comes later there is optimizer.add_param_group().",
    reference="PyTorch documentation, torch.optim: constructing it (2.13)",
    looks="stops too high",
    shows="update_ratio",
    where=("layer{depth}",),
    knobs=(Knob("lr", (0.01, 1.0), log=True), Knob("momentum", (0.0, 0.9)), Knob("depth", (2, 4))),
    also_causes=(
        "zero_grad_missing",
        "underfit",
    ),
)
