"""Which units are dead? Every activation over a whole dataset: zero on one batch is not dead yet."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from labkit.recording.meters import ACTIVATIONS, SILENT, by_unit
from labkit.recording.undisturbed import captured, evaluating, unchanged

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class DeadUnits:
    """How many units of each activation were zero on every sample, and which."""

    samples: int
    dead: dict[str, list[int]]  # activation -> indices of its dead units
    units: dict[str, int]  # activation -> how many units it has

    @property
    def shares(self) -> dict[str, float]:
        return {name: len(numbers) / self.units[name] for name, numbers in self.dead.items()}

    def __str__(self) -> str:
        if not self.units:
            return "the net has no activation modules (functional ones such as F.relu cannot be hooked)"
        width = max(map(len, self.units))
        lines = [f"over {self.samples} samples"]
        for name, share in self.shares.items():
            lines.append(f"{name:{width}}  {len(self.dead[name]):5} of {self.units[name]:5} dead  {share:6.1%}")
        return "\n".join(lines)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Bars: the fraction of dead units of each layer."""
        from labkit.drawing.plots import dead_unit_bars

        return dead_unit_bars(self, ax)


@torch.no_grad()
def dead_units(model: nn.Module, data: Tensor | Iterable[Any], batch_size: int = 512) -> DeadUnits:
    """Pass all of a loader, or of one tensor of inputs, through the net in eval mode, and count; changes nothing."""
    modules: dict[str, nn.Module] = {
        name: module for name, module in model.named_modules() if isinstance(module, ACTIVATIONS)
    }
    device, count = next(model.parameters()).device, 0
    loudest: dict[str, Tensor] = {}
    batches = data.split(batch_size) if isinstance(data, Tensor) else (batch[0] for batch in data)
    with unchanged(model), evaluating(model), captured(modules) as outputs:
        for x in batches:
            model(x.to(device))
            count += len(x)
            for name, output in outputs.items():
                loud = by_unit(output).abs().amax(0)
                loudest[name] = torch.maximum(loudest[name], loud) if name in loudest else loud
    dead = {name: (loud <= SILENT).nonzero().flatten().tolist() for name, loud in loudest.items()}
    return DeadUnits(count, dead, {name: len(loud) for name, loud in loudest.items()})
