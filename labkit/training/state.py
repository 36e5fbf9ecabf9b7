"""What one training step is made of: the workbench on which a recipe's parts are put together."""

import contextlib
import dataclasses
import threading

import torch

from labkit.training.rules import RecipeError

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
PURE = {"half": torch.float16, "bf16_pure": torch.bfloat16}


class Workbench:
    """Everything that a recipe asks for, made and ready; a recipe's `step` puts the pieces in order."""

    def __init__(self, recipe):
        self.recipe = recipe
        self.device = pick_device(recipe.device)
        with seeded(recipe.seed):
            self.data = in_precision(recipe.data(recipe.but(device=self.device.type)), recipe.precision)
            self.model = recipe.model(recipe, self.data).to(self.device, PURE.get(recipe.precision))
            self.optimizer = recipe.optimizer(self.model, recipe)
        dynamic = recipe.loss_scale == "dynamic"
        if dynamic and recipe.precision == "half":
            wanted = "use precision 'fp16', or a fixed factor"
            raise RecipeError(f"loss_scale: 'dynamic' needs float32 weights, precision 'half' has none; {wanted}")
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=dynamic)
        self.fixed_scale = 1.0 if dynamic else recipe.loss_scale or 1.0
        self.recorder = None

    def forward(self, x):
        """The model's outputs, in the recipe's precision."""
        with self.autocast():
            return self.model(x)

    def loss(self, x, y):
        outputs = self.forward(x)
        with self.autocast():
            return self.recipe.loss(outputs, y)

    def backward(self, loss) -> None:
        """Backpropagate, scaled where the recipe asks; afterwards the gradients are in true units again."""
        self.scaler.scale(loss * self.fixed_scale if self.fixed_scale != 1 else loss).backward()
        self.scaler.unscale_(self.optimizer)
        if self.fixed_scale != 1:
            torch._foreach_div_([weight.grad for weight in self.weights()], self.fixed_scale)

    def look(self, loss, x, y) -> None:
        """The one moment that the instruments see: gradients are ready, weights not yet changed."""
        scale = self.fixed_scale
        if self.scaler.is_enabled():
            scale = self.scaler._get_scale_async().clone()  # the tensor: get_scale() would make a GPU wait
        self.recorder.look(loss, x, y, scale)

    def clip(self) -> None:
        if self.recipe.clip is None:
            return
        by_norm = self.recipe.clip_by == "norm"
        clip = torch.nn.utils.clip_grad_norm_ if by_norm else torch.nn.utils.clip_grad_value_
        clip(self.weights(), self.recipe.clip)

    def update(self) -> None:
        """The optimizer's step, unless GradScaler found an overflow and skips it."""
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def weights(self) -> list[torch.nn.Parameter]:
        return [weight for weight in self.model.parameters() if weight.grad is not None]

    def set_lr(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def autocast(self):
        dtype = AUTOCAST.get(self.recipe.precision)
        return torch.autocast(self.device.type, dtype) if dtype else contextlib.nullcontext()


def pick_device(name: str) -> torch.device:
    """The device by its name; 'auto' is a GPU where there is one."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(device for device, found in there.items() if found)
    if not there[name]:
        raise RecipeError(f"device: {name!r} is not on this machine; use 'auto' or 'cpu'")
    return torch.device(name)


# PyTorch's random numbers belong to the whole process: of two runs in two threads, the second waits for the first.
_random_numbers = threading.RLock()


@contextlib.contextmanager
def seeded(seed: int):
    """All random numbers from one seed inside; afterwards the generators are as they were."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with _random_numbers, torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield


def in_precision(data, precision: str):
    """The same data in the pure 16-bit format, where the recipe asks for one."""
    if precision not in PURE:
        return data
    cast = {
        name: getattr(data, name)._replace(x=getattr(data, name).x.to(PURE[precision])) for name in ("train", "val")
    }
    return dataclasses.replace(data, **cast)
