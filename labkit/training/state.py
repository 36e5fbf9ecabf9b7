"""What a `step` receives: the model, optimizer and data of a recipe, and a method for each move of a training step."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from labkit.errors import RecipeError

if TYPE_CHECKING:
    from labkit.recording.recorder import LossRecorder
    from labkit.training.data import Data
    from labkit.training.recipe import Recipe

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
PURE = {"half": torch.float16, "bf16_pure": torch.bfloat16}


class TrainingState:
    """The model, optimizer, data and precision of a recipe; a recipe's `step` calls the methods in order."""

    recorder: LossRecorder  # set when the run begins
    is_last_evaluation = False  # is the net evaluated after the last step?

    def __init__(self, recipe: Recipe):
        self.recipe = recipe
        self.noted: dict[str, Any] = {}  # facts that parts of the recipe add to those of the run
        self.device = pick_device(recipe.device)
        with seeded(recipe.seed):
            self.data = in_precision(recipe.data(recipe.but(device=self.device.type)), recipe.precision)
            self.model = recipe.model(recipe, self.data).to(self.device, PURE.get(recipe.precision))
            self.optimizer = recipe.optimizer(self.model, recipe)
        dynamic = recipe.loss_scale == "dynamic"
        if dynamic and recipe.precision == "half":
            advice = "use precision 'fp16', or a fixed factor"
            raise RecipeError(f"loss_scale: 'dynamic' needs float32 weights, precision 'half' has none; {advice}")
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=dynamic)
        self.fixed_scale = 1.0 if dynamic else float(recipe.loss_scale or 1.0)

    def forward(self, x: Tensor) -> Tensor:
        """The model's outputs, in the recipe's precision."""
        with self.autocast():
            return self.model(x)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss of a batch, in the recipe's precision."""
        outputs = self.forward(x)
        with self.autocast():
            return self.recipe.loss(outputs, y)

    def backward(self, loss: Tensor) -> None:
        """Backpropagate, with loss scaling if the recipe has it; afterwards the gradients are unscaled."""
        self.scaler.scale(loss * self.fixed_scale if self.fixed_scale != 1 else loss).backward()
        self.scaler.unscale_(self.optimizer)
        if self.fixed_scale != 1:
            gradients = [weight.grad for weight in self.weights() if weight.grad is not None]
            torch._foreach_div_(gradients, self.fixed_scale)

    def look(self, loss: Tensor, x: Tensor, y: Tensor) -> None:
        """Let the instruments measure this step. Call it once, after backward and before clip and update."""
        scale = current_scale(self.scaler) if self.scaler.is_enabled() else self.fixed_scale
        self.recorder.look(loss, x, y, scale)

    def unobserved(self) -> contextlib.AbstractContextManager:
        """For forward passes that are neither training nor validation: the instruments do not see them."""
        return self.recorder.not_listening()

    def clip(self) -> None:
        """Clip the gradients, if the recipe says so."""
        if self.recipe.clip is None:
            return
        if self.recipe.clip_by == "norm":
            torch.nn.utils.clip_grad_norm_(self.weights(), self.recipe.clip)
        else:
            torch.nn.utils.clip_grad_value_(self.weights(), self.recipe.clip)

    def update(self) -> None:
        """The optimizer's step; GradScaler skips it after an overflow."""
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def weights(self) -> list[torch.nn.Parameter]:
        """The parameters that have a gradient."""
        return [weight for weight in self.model.parameters() if weight.grad is not None]

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of all parameter groups."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def autocast(self) -> contextlib.AbstractContextManager:
        """The context of mixed precision; does nothing in float32 and in pure 16 bits."""
        dtype = AUTOCAST.get(self.recipe.precision)
        return torch.autocast(self.device.type, dtype) if dtype else contextlib.nullcontext()


def current_scale(scaler: torch.amp.GradScaler) -> float | Tensor:
    """The loss scale as a tensor: `get_scale()` would make a GPU wait. A number where there is no tensor yet."""
    held = scaler._get_scale_async()
    return scaler.get_scale() if held is None else held.clone()


def pick_device(name: str) -> torch.device:
    """The device by its name; 'auto' is a GPU if there is one."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(device for device, found in there.items() if found)
    if not there[name]:
        raise RecipeError(f"device: {name!r} is not on this machine; use 'auto' or 'cpu'")
    return torch.device(name)


# PyTorch's random generators belong to the whole process: of two runs in two threads, the second waits for the first.
_random_numbers = threading.RLock()


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed all random generators inside, and restore them afterwards."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with _random_numbers, torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield


def in_precision(data: Data, precision: str) -> Data:
    """The same data in 16 bits, if the precision is a pure 16-bit one; tokens stay whole numbers."""
    if precision not in PURE or not data.train.x.is_floating_point():
        return data
    cast = {
        name: getattr(data, name)._replace(x=getattr(data, name).x.to(PURE[precision])) for name in ("train", "val")
    }
    return dataclasses.replace(data, **cast)
