"""Where did the first NaN or infinity come from: weights, inputs, an activation, the loss or the gradients?"""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch

from labkit.recording.nested import call, first_tensor, real
from labkit.recording.undisturbed import hooked, replaying

Loss = Callable[[Any, Any], torch.Tensor]
Autocast = Callable[[], contextlib.AbstractContextManager]


def hunt(
    model: torch.nn.Module,
    x: Any = None,
    y: Any = None,
    loss: Loss | None = None,
    autocast: Autocast = contextlib.nullcontext,
) -> dict[str, Any] | None:
    """The first non-finite tensor, in the order weights, inputs, activations, loss, gradients.

    Replays the forward pass of one batch with a hook on every leaf module, and checks the gradients that are
    present. Changes nothing: random state, buffers and gradients are as before.
    Returns {"stage", "place", "count", "nan" (how many of them are NaN, the others infinite), "dtype"} and, where
    known: "samples" (rows of the batch) and "share" (of the entries of the worst of them); for an activation
    "float32" (the largest magnitude of the same tensor when nothing is rounded to 16 bits), "float32_sizes" (of all
    of them) and "spread" (largest minus smallest input of the module in those samples); for the loss what
    `_finite_up_to` says; for a gradient "weight", the largest magnitude of the parameter itself.
    """
    found, outputs = in_forward(model, x, autocast)
    return found or in_loss(outputs, y, loss, autocast) or in_gradients(model)


def in_forward(model: torch.nn.Module, x: Any, autocast: Autocast) -> tuple[dict[str, Any] | None, Any]:
    """The first non-finite tensor up to the outputs, and the outputs; None for what there is not."""
    inputs = first_tensor(x)
    found = _first_bad(model.named_parameters())
    if not found and inputs is not None and _bad(inputs):
        return _finding("inputs", "batch", inputs, samples=True), None
    found = found or _first_bad(model.named_buffers())  # batch norm has already taken a bad input into its statistics
    if found or x is None:
        return found, None
    outputs, found = _replay(model, x, autocast)
    if found:
        sizes = _sizes_in_float32(model, x)
        return found | {"float32": sizes.get(found["place"]), "float32_sizes": sizes}, outputs
    if torch.is_tensor(outputs) and _bad(outputs):  # between modules: a bare torch.log in a forward
        return _finding("activations", "outputs", outputs, samples=True), outputs
    return None, outputs


def _first_bad(named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, Any] | None:
    return next((_finding("weights", name, tensor) for name, tensor in named if _bad(tensor)), None)


def in_loss(outputs: Any, y: Any, loss: Loss | None, autocast: Autocast) -> dict[str, Any] | None:
    """The loss of finite outputs, or its gradient at the outputs, if that is not finite."""
    if outputs is None or loss is None or y is None:
        return None
    with torch.no_grad(), autocast():
        value = loss(outputs, y)
    if _bad(value):
        finding = _finding("loss", getattr(loss, "__name__", type(loss).__name__), value)
        return finding | _finite_up_to(loss, outputs, y, autocast)
    derivative = _derivative(loss, outputs, y, autocast)
    if derivative is not None and _bad(derivative):  # a finite loss with a non-finite gradient at the outputs
        finding = _finding("gradients", "outputs", derivative, samples=True)
        return finding | _finite_up_to(loss, outputs, y, autocast)
    return None


def in_gradients(model: torch.nn.Module) -> dict[str, Any] | None:
    """The first parameter whose gradient is not finite, in backward order."""
    for name, weight in reversed(list(model.named_parameters())):  # backward order: nearest the loss first
        if weight.grad is not None and _bad(weight.grad):
            return _finding("gradients", name, weight.grad) | {"weight": weight.detach().abs().max().item()}
    return None


def _replay(model: torch.nn.Module, x: Any, autocast: Autocast) -> tuple[Any, dict | None]:
    found: list[dict] = []

    def look(name: str, inputs: tuple, output: Any) -> None:
        if not found and torch.is_tensor(output) and _bad(output):
            found.append(_finding("activations", name, output, samples=True) | _spread(inputs, output))

    with replaying(model, _device(model)), autocast(), hooked(_leaves(model), look):
        outputs = call(model, x)
    return outputs, found[0] if found else None


def _leaves(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The modules that have no modules inside, by name."""
    return {name: module for name, module in model.named_modules() if not any(module.children())}


def _spread(inputs: tuple, output: torch.Tensor) -> dict[str, float]:
    """Largest minus smallest input of the samples that a module made non-finite; 0: its input was constant."""
    given = inputs[0] if inputs else None
    if not torch.is_tensor(given) or not given.is_floating_point() or not output.ndim or len(given) != len(output):
        return {}
    rows = given[~torch.isfinite(output).reshape(len(output), -1).all(1)].reshape(-1, given[0].numel())
    return {"spread": (rows.amax(1) - rows.amin(1)).max().item()} if rows.numel() else {}


def _derivative(loss: Loss, outputs: Any, y: Any, autocast: Autocast) -> torch.Tensor | None:
    """The gradient of the loss with respect to the outputs; None where it has none."""
    if not torch.is_tensor(outputs) or not outputs.is_floating_point():
        return None
    with torch.enable_grad(), autocast():
        outputs = outputs.detach().requires_grad_()
        value = loss(outputs, y)
    return torch.autograd.grad(value, outputs, allow_unused=True)[0] if value.requires_grad else None


def _finite_up_to(loss: Loss, outputs: Any, y: Any, autocast: Autocast) -> dict:
    """Up to which outputs the loss of a single sample and its gradient are finite, and from which on they are not.

    "largest" is the largest output of a sample, "behind" how far the output of its own class is below that:
    each as [largest with a finite result, smallest without, largest without]. "nan_losses": how many of
    the losses are NaN, not infinite.
    """
    if not (torch.is_tensor(outputs) and torch.is_tensor(y)) or outputs.ndim != 2 or y.ndim != 1:
        return {}
    if y.is_floating_point() or not len(y):
        return {}
    if len(y) != len(outputs) or not 0 <= int(y.min()) <= int(y.max()) < outputs.shape[1]:
        return {}
    pairs = [(outputs[i : i + 1], y[i : i + 1]) for i in range(len(y))]
    with torch.no_grad(), autocast():
        each = torch.stack([loss(*pair).float().reshape(()) for pair in pairs])
    found = [_derivative(loss, *pair, autocast) for pair in pairs]
    derivatives = torch.cat([each for each in found if each is not None])
    largest = outputs.float().amax(1)
    behind = largest - outputs.float().gather(1, y[:, None]).squeeze(1)
    bad = ~(torch.isfinite(each) & torch.isfinite(derivatives).all(1))
    brackets = {"largest": _bracket(largest, bad), "behind": _bracket(behind, bad)}
    return brackets | {"nan_losses": int(each.isnan().sum())}


def _bracket(sizes: torch.Tensor, bad: torch.Tensor) -> list[float | None]:
    fine, spoiled = sizes[~bad], sizes[bad]
    low, high = spoiled.aminmax() if len(spoiled) else (None, None)
    return [None if each is None else each.item() for each in (fine.max() if len(fine) else None, low, high)]


def _sizes_in_float32(model: torch.nn.Module, x: Any) -> dict[str, float]:
    """The largest magnitude of each activation in float32: the proof of an overflow in 16 bits."""
    if any(weight.dtype != torch.float32 for weight in model.parameters()):
        return {}
    sizes: dict[str, float] = {}

    def look(name: str, _: tuple, output: Any) -> None:
        if torch.is_tensor(output) and output.is_floating_point() and output.numel():
            sizes[name] = output.abs().max().item()

    with replaying(model, _device(model)), hooked(_leaves(model), look):
        call(model, x)
    return sizes


def _device(model: torch.nn.Module) -> torch.device:
    return next((weight.device for weight in model.parameters()), torch.device("cpu"))


def _bad(tensor: torch.Tensor) -> bool:
    tensor = real(tensor)
    return tensor.is_floating_point() and not torch.isfinite(tensor).all().item()


def _finding(stage: str, place: str, tensor: torch.Tensor, samples: bool = False) -> dict:
    tensor = real(tensor)
    bad = ~torch.isfinite(tensor)
    counts = {"count": int(bad.sum()), "nan": int(tensor.isnan().sum())}
    finding = {"stage": stage, "place": place, **counts, "dtype": str(tensor.dtype)[6:]}
    if samples and bad.ndim:
        rows = bad.reshape(len(bad), -1)
        finding["samples"] = rows.any(1).nonzero().flatten().tolist()[:10]
        finding["share"] = rows.float().mean(1).max().item()
    return finding


def scan(loader: Iterable[Any]) -> list[dict[str, Any]]:
    """Every batch of a loader that holds a NaN or an infinity: its number, and which of its samples have one."""
    found = []
    for number, batch in enumerate(loader):
        for place, part in enumerate(batch if isinstance(batch, tuple | list) else [batch]):
            if torch.is_tensor(part) and _bad(part):
                rows = (~torch.isfinite(part)).reshape(len(part), -1).any(1).nonzero().flatten().tolist()
                found.append({"batch": number, "part": place, "samples": rows})
    return found
