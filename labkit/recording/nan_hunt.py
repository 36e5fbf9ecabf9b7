"""Where did the first NaN or infinity come from: weights, inputs, an activation, the loss or the gradients?"""

import contextlib

import torch


def hunt(model, x=None, y=None, loss=None, autocast=contextlib.nullcontext) -> dict | None:
    """The first non-finite tensor on the way from weights and inputs to the loss and the gradients.

    Replays the forward pass of one batch with a hook on every leaf module and looks at the gradients
    that are there. Changes nothing: random state, buffers and gradients are as before.
    Returns {"stage", "place", "count", "nan" (how many of them are NaN, the others infinite), "dtype"} and, where
    known: "samples" (rows of the batch) and "share" (of the entries of the worst of them); for an activation
    "float32" (the largest magnitude of the same tensor when nothing is rounded to 16 bits), "float32_sizes" (of all
    of them) and "spread" (how far apart the inputs of the module were in those samples); for the loss what
    `_where_it_gives_out` says; for a gradient "weight", the largest magnitude of the parameter itself.
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
                finding = _finding("loss", getattr(loss, "__name__", type(loss).__name__), value)
                return finding | _where_it_gives_out(loss, outputs, y, autocast)
            slope = _slope(loss, outputs, y, autocast)
            if slope is not None and _bad(slope):  # a finite loss, and its gradient is not, before it meets the net
                finding = _finding("gradients", "outputs", slope, samples=True)
                return finding | _where_it_gives_out(loss, outputs, y, autocast)
    for name, weight in reversed(list(model.named_parameters())):  # backward order: nearest the loss first
        if weight.grad is not None and _bad(weight.grad):
            return _finding("gradients", name, weight.grad) | {"weight": weight.detach().abs().max().item()}
    return None


def _replay(model, x, autocast) -> tuple[torch.Tensor, dict | None]:
    found: list[dict] = []
    names = {module: name for name, module in model.named_modules()}

    def look(module, inputs, output):
        output = _first(output)
        if not found and torch.is_tensor(output) and _bad(output):
            found.append(_finding("activations", names[module], output, samples=True) | _spread(inputs, output))

    with _undisturbed(model, x.device), autocast():
        hooks = [module.register_forward_hook(look) for module in names if not any(module.children())]
        try:
            outputs = model(x)
        finally:
            for hook in hooks:
                hook.remove()
    return outputs, found[0] if found else None


def _spread(inputs: tuple, output: torch.Tensor) -> dict[str, float]:
    """How far apart the values were that a module made non-finite ones of; 0: it was given a constant."""
    given = inputs[0] if inputs else None
    if not torch.is_tensor(given) or not given.is_floating_point() or not output.ndim or len(given) != len(output):
        return {}
    rows = given[~torch.isfinite(output).reshape(len(output), -1).all(1)].reshape(-1, given[0].numel())
    return {"spread": (rows.amax(1) - rows.amin(1)).max().item()} if rows.numel() else {}


def _slope(loss, outputs, y, autocast) -> torch.Tensor | None:
    """The gradient of the loss with respect to the outputs; None where it has none."""
    if not torch.is_tensor(outputs) or not outputs.is_floating_point():
        return None
    with torch.enable_grad(), autocast():
        outputs = outputs.detach().requires_grad_()
        value = loss(outputs, y)
    return torch.autograd.grad(value, outputs, allow_unused=True)[0] if value.requires_grad else None


def _where_it_gives_out(loss, outputs, y, autocast) -> dict:
    """Up to which outputs the loss of a single sample and its gradient are finite, and from where on they are not.

    "largest" is the largest output of a sample, "behind" how far the output of its own class is below that:
    each as [the most that was still fine, the least that was not, the most that was not]. "nan_losses": how many of
    the losses are NaN, not infinite.
    """
    if not torch.is_tensor(outputs) or outputs.ndim != 2 or y.ndim != 1 or y.is_floating_point():
        return {}
    if len(y) != len(outputs) or not 0 <= int(y.min()) <= int(y.max()) < outputs.shape[1]:
        return {}
    pairs = [(outputs[i : i + 1], y[i : i + 1]) for i in range(len(y))]
    with torch.no_grad(), autocast():
        each = torch.stack([loss(*pair).float().reshape(()) for pair in pairs])
    slopes = torch.cat([_slope(loss, *pair, autocast) for pair in pairs])
    largest = outputs.float().amax(1)
    behind = largest - outputs.float().gather(1, y[:, None]).squeeze(1)
    bad = ~(torch.isfinite(each) & torch.isfinite(slopes).all(1))
    brackets = {"largest": _bracket(largest, bad), "behind": _bracket(behind, bad)}
    return brackets | {"nan_losses": int(each.isnan().sum())}


def _bracket(sizes: torch.Tensor, bad: torch.Tensor) -> list[float | None]:
    fine, spoiled = sizes[~bad], sizes[bad]
    low, high = spoiled.aminmax() if len(spoiled) else (None, None)
    return [None if each is None else each.item() for each in (fine.max() if len(fine) else None, low, high)]


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
    counts = {"count": int(bad.sum()), "nan": int(tensor.isnan().sum())}
    finding = {"stage": stage, "place": place, **counts, "dtype": str(tensor.dtype)[6:]}
    if samples and bad.ndim:
        rows = bad.reshape(len(bad), -1)
        finding["samples"] = rows.any(1).nonzero().flatten().tolist()[:10]
        finding["share"] = rows.float().mean(1).max().item()
    return finding


def scan(loader) -> list[dict]:
    """Every batch of a loader that holds a NaN or an infinity: its number, and which of its samples have one."""
    found = []
    for number, batch in enumerate(loader):
        for place, part in enumerate(batch if isinstance(batch, tuple | list) else [batch]):
            if torch.is_tensor(part) and _bad(part):
                rows = (~torch.isfinite(part)).reshape(len(part), -1).any(1).nonzero().flatten().tolist()
                found.append({"batch": number, "part": place, "samples": rows})
    return found
