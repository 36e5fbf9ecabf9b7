"""Where did the first NaN or infinity come from: weights, inputs, an activation, the loss or the gradients?"""

import contextlib

import torch


def hunt(model, x=None, y=None, loss=None, autocast=contextlib.nullcontext) -> dict | None:
    """The first non-finite tensor on the way from weights and inputs to the loss and the gradients.

    Replays the forward pass of one batch with a hook on every leaf module and looks at the gradients
    that are there. Changes nothing: random state, buffers and gradients are as before.
    Returns {"stage", "place", "count", "dtype"} and, where known, "samples" (rows of the batch), "float32" (the
    largest magnitude of the same tensor when nothing is rounded to 16 bits) and "float32_sizes" (of all of them).
    """
    for name, weight in (*model.named_parameters(), *model.named_buffers()):
        if _bad(weight):
            return _finding("weights", name, weight)
    if x is not None:
        if _bad(x):
            return _finding("inputs", "batch", x, samples=True)
        outputs, found = _replay(model, x, autocast)
        if found:
            sizes = _sizes_in_float32(model, x)
            return found | {"float32": sizes.get(found["place"]), "float32_sizes": sizes}
        if torch.is_tensor(outputs) and _bad(outputs):  # between modules: a bare torch.log in a forward
            return _finding("activations", "outputs", outputs, samples=True)
        if loss is not None and y is not None:
            with autocast():
                value = loss(outputs, y)
            if _bad(value):
                return _finding("loss", getattr(loss, "__name__", type(loss).__name__), value)
    for name, weight in reversed(list(model.named_parameters())):  # backward order: nearest the loss first
        if weight.grad is not None and _bad(weight.grad):
            return _finding("gradients", name, weight.grad)
    return None


def _replay(model, x, autocast) -> tuple[torch.Tensor, dict | None]:
    found: list[dict] = []
    names = {module: name for name, module in model.named_modules()}

    def look(module, _, output):
        output = _first(output)
        if not found and torch.is_tensor(output) and _bad(output):
            found.append(_finding("activations", names[module], output, samples=True))

    with _undisturbed(model, x.device), autocast():
        hooks = [module.register_forward_hook(look) for module in names if not any(module.children())]
        try:
            outputs = model(x)
        finally:
            for hook in hooks:
                hook.remove()
    return outputs, found[0] if found else None


def _sizes_in_float32(model, x) -> dict[str, float]:
    """How large each activation is when it may be: the proof of an overflow, where there was one."""
    if next(model.parameters()).dtype != torch.float32:
        return {}
    sizes = {}
    with _undisturbed(model, x.device):
        leaves = [(name, module) for name, module in model.named_modules() if not any(module.children())]
        hooks = [
            module.register_forward_hook(lambda _, __, output, name=name: sizes.update(_largest(name, output)))
            for name, module in leaves
        ]
        try:
            model(x)
        finally:
            for hook in hooks:
                hook.remove()
    return sizes


def _largest(name: str, output) -> dict[str, float]:
    output = _first(output)
    countable = torch.is_tensor(output) and output.is_floating_point() and output.numel()
    return {name: output.abs().max().item()} if countable else {}


@contextlib.contextmanager
def _undisturbed(model, device):
    """A forward pass that leaves no trace: no graph, no random numbers used up, buffers put back."""
    buffers = [buffer.clone() for buffer in model.buffers()]
    devices = [device] if device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices):
        try:
            yield
        finally:
            for buffer, before in zip(model.buffers(), buffers, strict=True):
                buffer.copy_(before)


def _first(output):
    """A recurrent module returns (outputs, state)."""
    return output[0] if isinstance(output, tuple) else output


def _bad(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and not torch.isfinite(tensor).all().item()


def _finding(stage: str, place: str, tensor: torch.Tensor, samples: bool = False) -> dict:
    bad = ~torch.isfinite(tensor)
    finding = {"stage": stage, "place": place, "count": int(bad.sum()), "dtype": str(tensor.dtype)[6:]}
    if samples and bad.ndim:
        finding["samples"] = bad.reshape(len(bad), -1).any(1).nonzero().flatten().tolist()[:10]
    return finding
