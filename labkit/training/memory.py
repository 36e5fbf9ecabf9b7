"""A net that does not fit into the memory is refused in words, before the system ends the process.

torch is imported inside the functions: `labkit doctor` reads this file where torch is missing.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.errors import RecipeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from labkit.training.recipe import Recipe

CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")  # of a container, such as JupyterHub's
COPIES = 4  # of the weights, at least, while a net trains: weights, gradients, momentum, and those of the last step
# How torch's errors begin or what they contain where memory is short; on CUDA it has an exception of its own.
WORDS = ("DefaultCPUAllocator", "Storage size calculation overflowed", "MPS backend out of memory")


def machine_memory() -> int | None:
    """The bytes of this machine, or that its container may use; None where the system does not tell (Windows)."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    return min(memory, container_limit() or memory)


def container_limit() -> int | None:
    """The bytes that the container may use; None without a limit."""
    limit = CONTAINER_LIMIT.read_text().strip() if CONTAINER_LIMIT.is_file() else "max"
    return None if limit == "max" else int(limit)


@contextlib.contextmanager
def weights_within_memory(recipe: Recipe) -> Iterator[None]:
    """Refuse a net that is built inside as soon as its weights are too large to train on this machine.

    A parameter is counted before its values are drawn: until then the system has reserved its memory and not given it.
    """
    from torch.nn.modules.module import register_module_parameter_registration_hook

    memory, weights = machine_memory(), 0

    def count(_: nn.Module, name: str, parameter: nn.Parameter) -> None:
        nonlocal weights
        weights += parameter.nbytes
        if memory and COPIES * weights > memory:
            raise RecipeError(
                f"{size(recipe)}: to train this net takes more than {COPIES * weights / 1e9:.3g} GB of memory, and "
                f"this machine has {memory / 1e9:.3g} GB; choose a smaller width or depth"
            )

    counting = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        counting.remove()


@contextlib.contextmanager
def memory_errors_in_words(recipe: Recipe) -> Iterator[None]:
    """Where an allocation fails inside, say which entries of the recipe to change."""
    import torch

    try:
        yield
    except (MemoryError, RuntimeError) as error:
        ours = isinstance(error, MemoryError | torch.OutOfMemoryError) or any(word in str(error) for word in WORDS)
        if not ours:
            raise
        raise RecipeError(
            f"{size(recipe)}, batch_size {recipe.batch_size}: there is not enough memory to train this recipe; "
            "choose a smaller width, depth or batch_size"
        ) from error


def size(recipe: Recipe) -> str:
    return f"width {recipe.width}, depth {recipe.depth}"
