"""Which units never speak? Every activation of a net over a whole set: silence on one batch is not death."""

from dataclasses import dataclass

import torch

from labkit.recording.meters import ACTIVATIONS, SILENT, by_unit, captured, evaluating
from labkit.tools.lr_finder import unchanged


@dataclass(frozen=True)
class DeadUnits:
    """How many units of each activation were silent on every sample, and which."""

    samples: int
    dead: dict[str, list[int]]  # activation -> numbers of its dead units
    units: dict[str, int]  # activation -> how many units it has

    @property
    def shares(self) -> dict[str, float]:
        return {name: len(numbers) / self.units[name] for name, numbers in self.dead.items()}

    def __str__(self) -> str:
        if not self.units:
            return "the net has no activation module to look at (functional ones are not seen)"
        width = max(map(len, self.units))
        lines = [f"over {self.samples} samples"]
        for name, share in self.shares.items():
            lines.append(f"{name:{width}}  {len(self.dead[name]):5} of {self.units[name]:5} dead  {share:6.1%}")
        return "\n".join(lines)

    def plot(self, ax=None):
        from labkit.drawing.plots import dead_unit_bars

        return dead_unit_bars(self, ax)


@torch.no_grad()
def dead_units(model, data, batch_size: int = 512) -> DeadUnits:
    """Pass all of a loader, or of one tensor of inputs, through the net in eval mode, and count; changes nothing."""
    modules = {name: module for name, module in model.named_modules() if isinstance(module, ACTIVATIONS)}
    device, count, loudest = next(model.parameters()).device, 0, {}
    batches = data.split(batch_size) if torch.is_tensor(data) else (batch[0] for batch in data)
    with unchanged(model), evaluating(model), captured(modules) as outputs:
        for x in batches:
            model(x.to(device))
            count += len(x)
            for name, output in outputs.items():
                loud = by_unit(output).abs().amax(0)
                loudest[name] = torch.maximum(loudest[name], loud) if name in loudest else loud
    dead = {name: (loud <= SILENT).nonzero().flatten().tolist() for name, loud in loudest.items()}
    return DeadUnits(count, dead, {name: len(loud) for name, loud in loudest.items()})
