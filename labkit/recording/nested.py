"""Tensors inside what training loops pass around: tuples, dictionaries, dataclasses, batches of any kind."""

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

# Names of the targets in batches that are dictionaries or objects, in this order.
TARGETS = ("labels", "label", "targets", "target", "y")


def split_batch(batch: Any) -> tuple[Any, Any]:
    """(inputs, targets) of a batch; None for what it does not have.

    Of a tuple or list the last entry is the target, of a dictionary or an object the entry with such a name.
    """
    if isinstance(batch, Mapping):
        name = next((name for name in TARGETS if name in batch), None)
        return {key: value for key, value in batch.items() if key != name}, batch.get(name)
    if isinstance(batch, tuple | list) and len(batch) > 1:
        *inputs, targets = batch
        return inputs[0] if len(inputs) == 1 else tuple(inputs), targets
    if isinstance(batch, tuple | list):
        return (batch[0] if batch else None), None
    if batch is None or torch.is_tensor(batch):
        return batch, None
    return batch, next((getattr(batch, name) for name in TARGETS if hasattr(batch, name)), None)


@dataclasses.dataclass(frozen=True)
class Call:
    """The arguments of one call of a module."""

    positional: tuple
    named: dict[str, Any]


def call(model: nn.Module, inputs: Any) -> Any:
    """The model on the inputs of a batch: as named or as several arguments where its `forward` takes them so."""
    if isinstance(inputs, Call):
        return model(*inputs.positional, **inputs.named)
    if isinstance(inputs, Mapping) and _takes(model, **inputs):
        return model(**inputs)
    if isinstance(inputs, tuple | list) and _takes(model, *inputs):
        return model(*inputs)
    return model(inputs)


def _takes(model: nn.Module, *positional: Any, **named: Any) -> bool:
    try:
        inspect.signature(model.forward).bind(*positional, **named)
    except TypeError:
        return False
    return True


def first_tensor(thing: Any) -> torch.Tensor | None:
    """The outputs or inputs of a module as one tensor: `logits`, else the first floating-point one, else the first."""
    if torch.is_tensor(thing):
        return thing
    named = _named_parts(thing)
    if torch.is_tensor(named.get("logits")):
        return named["logits"]  # the name of the outputs in many model libraries
    parts: Iterable[Any] = thing if isinstance(thing, tuple | list) else named.values()
    found = [tensor for part in parts if (tensor := first_tensor(part)) is not None]
    return next((tensor for tensor in found if tensor.is_floating_point()), found[0] if found else None)


def replaced(thing: Any, old: torch.Tensor, new: torch.Tensor) -> Any:
    """The same structure, with another tensor in the place of one."""
    return with_tensors(thing, lambda tensor: new if tensor is old else tensor)


def copied(thing: Any) -> Any:
    """The same structure with copies of its tensors, which belong to no graph."""
    return with_tensors(thing, lambda tensor: tensor.detach().clone())


def tensors(thing: Any) -> list[torch.Tensor]:
    """All that are in it."""
    found: list[torch.Tensor] = []
    with_tensors(thing, lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return found


def with_tensors(thing: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same structure of tuples, lists, dictionaries, dataclasses and objects with changed tensors; what has no
    tensors is the same."""
    if torch.is_tensor(thing):
        return change(thing)
    if isinstance(thing, Mapping):
        changed = copy.copy(thing)
        for name, value in thing.items():
            changed[name] = with_tensors(value, change)  # type: ignore[index]  # dictionaries are mutable
        return changed
    if isinstance(thing, tuple | list):
        parts = [with_tensors(part, change) for part in thing]
        return type(thing)(*parts) if hasattr(thing, "_fields") else type(thing)(parts)
    parts_of_it = {name: with_tensors(part, change) for name, part in _named_parts(thing).items()}
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return dataclasses.replace(thing, **parts_of_it)
    if not parts_of_it:
        return thing
    changed = copy.copy(thing)
    vars(changed).update(parts_of_it)
    return changed


def _named_parts(thing: Any) -> Mapping[str, Any]:
    """The entries of a dictionary, the fields of a dataclass, the tensors among the attributes of another object."""
    if isinstance(thing, Mapping):
        return thing
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing)}
    attributes = getattr(thing, "__dict__", {})
    return {name: value for name, value in attributes.items() if torch.is_tensor(value)}


def given(inputs: tuple, named: dict) -> torch.Tensor | None:
    """The input tensor of a module: nearly always the first argument, else the first tensor in the arguments."""
    if inputs and torch.is_tensor(inputs[0]):
        return inputs[0]
    return first_tensor((inputs, named))


USUAL = (torch.Tensor, nn.Parameter)


def real(tensor: torch.Tensor) -> torch.Tensor:
    """Dense and real: what the instruments can measure. Of complex numbers a view of both parts, of sharded ones (FSDP)
    this process's part."""
    if type(tensor) not in USUAL and hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    tensor = tensor.to_dense() if tensor.layout != torch.strided else tensor
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
