"""The head is replaced after the optimizer was built: the optimizer keeps updating the old head."""

import numpy as np
from torch import nn

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.training import parts
from labkit.training.recipe import Recipe

HEAD_STD = 0.01  # a common init for a new head on a pretrained body


def with_new_head(model, recipe) -> nn.Module:
    """The same net with a newly initialised last layer, as for a new task."""
    old = model.get_submodule(f"layer{recipe.depth}")
    head = nn.Linear(old.in_features, old.out_features, device=old.weight.device, dtype=old.weight.dtype)
    nn.init.normal_(head.weight, std=HEAD_STD)
    nn.init.zeros_(head.bias)
    model.set_submodule(f"layer{recipe.depth}", head)
    return model


def sgd_after_new_head(model, recipe):
    """The correct order: first the head, then the optimizer."""
    return parts.sgd(with_new_head(model, recipe), recipe)


def sgd_before_new_head(model, recipe):
    """The optimizer holds the original parameters; then the head is replaced."""
    optimizer = parts.sgd(model, recipe)
    with_new_head(model, recipe)
    return optimizer


healthy = Recipe(optimizer=sgd_after_new_head, steps=200)
sick = healthy.but(optimizer=sgd_before_new_head)


def signature(run: Run) -> Evidence | None:
    facts, frozen = run.facts, set(run.facts.get("without_gradient", ()))  # frozen on purpose: no harm
    forgotten = [name for name in facts.get("not_in_optimizer", ()) if name not in frozen]
    layers = [layer for layer in run.layers if any(name.rpartition(".")[0] == layer for name in forgotten)]
    if not layers:
        return None
    place = run.layers.index(layers[0])
    norms, moved = run["grad_norm"][:, place], run["update_norm"][:, place]
    # Exact, no threshold: a layer that the optimizer does not hold stays identical to the last bit.
    if moved.any() or not norms.any():
        return None
    largest = np.max(norms, initial=0, where=np.isfinite(norms))
    return Evidence(
        seen=f"{len(forgotten)} of {len(run.parameters)} parameters receive gradients but are not in the optimizer "
        f"({', '.join(forgotten[:4])}): {layers[0]} never changed, and its gradient accumulated to {largest:.3g}",
        usual="0 parameters with a gradient that the optimizer does not hold",
        onset=0,
        place=layers[0],
        confidence=0.97,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Stale optimizer",
    cures={"the optimizer built after the head was replaced": sick.but(optimizer=sgd_after_new_head)},
    false_cures={
        "three times the learning rate: 84 % instead of 90 %": sick.but(lr=0.3),
        "momentum 0.9: 87 %": sick.but(momentum=0.9),
    },
    harm=0.08,
    symptom="The net learns slowly and not very far, and the new head keeps its initial weights, to the last bit.",
    mechanism="An optimizer keeps the list of tensors it was given. A layer that replaces another later is not in it: "
    "the optimizer keeps updating the old head, and the body must adapt to a random one. optimizer.zero_grad() does "
    "not reach the new head either, so its gradient accumulates.",
    formula=r"\theta_{\text{new}} \notin \text{optimizer} \quad \Rightarrow \quad \theta_{\text{new}}(t) = "
    r"\theta_{\text{new}}(0)",
    first_check="Compare the ids of model.parameters() with those in optimizer.param_groups.",
    remedy="Change the net first and build the optimizer last, also after loading, tying or converting layers. For a "
    "layer added later, use optimizer.add_param_group().",
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
