"""The measuring devices: weights and gradients, activations, and the fixed probe batch.

They leave the patient alone (weights, buffers, modes and random numbers stay as they were, bit by bit)
and the device too: results stay tensors until the end, so that a GPU never waits for a step.
"""

import contextlib
import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from labkit.training.models import AttentionWeights
from labkit.recording.packed_tensors import Segments

NEAR_ZERO = 1e-8  # a gradient entry this small moves no float32 weight at any usual learning rate
COUNTED = 1024  # entries of each parameter looked through for those: a share is known to one or two hundredths
SAMPLES = 8  # images of each batch in the activation statistics; the whole batch would cost more than it tells
BLOCK = 16  # steps that are measured in one go
HELD = 2**20  # entries of gradients that may wait for it: 4 MB, and as much of weights
LARGE = 65_536  # entries; of a larger activation a slice is copied at once: holding it makes later steps fault pages
SILENT = 1e-6  # a unit that stays below this on the whole probe is dead
TWIN = 1e-5  # two units whose answers differ by less, as a share of their size, are one unit twice
BINS = 32
HISTOGRAM_SAMPLES = 64
# Beyond 0.97 of its range a unit passes back at most an eighth of its gradient: centre and half width.
SATURATION = {nn.Sigmoid: (0.5, 0.47), nn.Tanh: (0.0, 0.97), nn.Hardtanh: (0.0, 0.97)}
ACTIVATIONS = (
    nn.ReLU, nn.LeakyReLU, nn.ReLU6, nn.PReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus,
    nn.Sigmoid, nn.Tanh, nn.Hardtanh, nn.Hardswish, nn.RNN,
)  # fmt: skip
# Norms in float32 can be trusted between these: smaller entries square to 0, larger ones to infinity.
SMALL, BIG = 1e-15, 1e18


class WeightMeter:
    """Norms of gradients, weights and updates, and the spread of the gradients, of all parameters at once.

    A look copies gradients and weights; a block of looks is measured in one go, because after a training step
    every operation costs more to call than to carry out. Norms, means, spreads and extremes are those of all
    entries. The near-zero share of a parameter with more than COUNTED entries is that among COUNTED of them,
    the same at every look and spread evenly over it.
    """

    @torch.no_grad()
    def __init__(self, model: nn.Module):
        self.names, self.weights = zip(*model.named_parameters(), strict=True)
        self.device = self.weights[0].device
        shapes = [weight.shape for weight in self.weights]
        self.block = max(1, min(BLOCK, HELD // sum(shape.numel() for shape in shapes)))
        self.gradients = Segments(shapes, self.device, copies=self.block)
        self.held = Segments(shapes, self.device, copies=1 + self.block)  # weights: before the block, then of each look
        self.held.fill(0, self.weights)
        self.scratch = torch.empty_like(self.gradients.buffer)
        self.counts = self.held.counts.tolist()
        self.sample = Segments([torch.Size([min(COUNTED, shape.numel())]) for shape in shapes], self.device)
        self.places = self._spread_places()
        self.limits = torch.where(self.sample.real == 1, NEAR_ZERO, -1.0)  # nothing is smaller than that: padding
        self.waiting = 0  # looks held and not yet measured
        self.blocks: list[torch.Tensor] = []
        self.spreads: dict[int, torch.Tensor] = {}  # look -> spreads that had to be measured in two passes
        self.layers = tuple(dict.fromkeys(layer_of(name) for name in self.names))
        self.without_gradient: set[str] = set()

    @property
    def matrices(self) -> list[str]:
        """The layers that have a weight matrix; norms and embeddings have only vectors."""
        pairs = zip(self.names, self.weights, strict=True)
        return list(dict.fromkeys(layer_of(name) for name, weight in pairs if weight.ndim >= 2))

    def measure(self, loss: torch.Tensor) -> torch.Tensor:
        """Take in this step; returns its loss, and a 0 that is NaN where a gradient is not finite.

        A weight that is not finite makes the loss or a gradient so, in this very look.
        """
        self.gradients.fill(self.waiting, self._gradients())
        self.held.fill(self.waiting + 1, self.weights)
        line = self.gradients.buffer[self.waiting]
        self.waiting += 1
        total = line.sum()
        on_cpu = self.device.type == "cpu"
        if not on_cpu or not math.isfinite(total):  # float32 sums of finite numbers may overflow
            total = self.held.wide(line).sum()
        if self.waiting == self.block:
            self._measure_block()
        if on_cpu:  # plain numbers cost one call; on a GPU they would cost a wait
            return torch.tensor([loss.item(), 0 * total.item()])
        return torch.stack([loss.detach().float().reshape(()), total.mul(0).float()])

    def _measure_block(self) -> None:
        found, last = self._statistics(), self.held.buffer[self.waiting]
        self.held.buffer[0].copy_(last)
        self.blocks.append(found)
        self.waiting = 0

    def _statistics(self) -> torch.Tensor:
        """(statistic, look, parameter) of the looks that wait: three norms, sum, near-zero share, both extremes."""
        held, looks = self.held, self.waiting
        gradient, before, weight = self.gradients.buffer[:looks], held.buffer[:looks], held.buffer[1 : looks + 1]
        lines = gradient, weight, torch.sub(weight, before, out=self.scratch[:looks])
        rows = torch.stack([*(torch.linalg.vector_norm(line, dim=-1).square_() for line in lines), gradient.sum(-1)])
        totals = held.sums(rows)
        totals[:3].sqrt_()
        on_cpu = self.device.type == "cpu"  # float64 costs a GPU less than to wait for an answer
        values = totals.tolist() if on_cpu else None
        # Look by look: what one look shows must not hang on those that happen to be measured with it.
        far = [look for look in range(looks) if not on_cpu or not all_finite(line[look] for line in values)]
        if far:
            totals[:, far] = held.sums(rows[:, far], apart=True)
            totals[:3, far] = torch.stack([held.norms(safe=True, values=line[far]) for line in lines])
        if on_cpu:
            for line, look, index in out_of_range(values[:3]):
                if look not in far:
                    totals[line, look, index] = held.part(lines[line][look], index).double().norm()
        close = range(looks)
        if on_cpu:
            close = [look for look in close if nearly_equal(values[0][look], values[3][look], self.counts)]
        if len(close):
            looked = sum(block.shape[1] for block in self.blocks)
            exact = _exact_deviation(held, torch.stack([gradient[look] for look in close]))[1]
            self.spreads |= {looked + look: spread for look, spread in zip(close, exact, strict=True)}
        return torch.cat([totals, self._near_zero(gradient)[None], held.extremes(gradient)])

    def _spread_places(self) -> torch.Tensor:
        """Where in the line of gradients the sampled entries lie.

        Multiples of the golden ratio fall evenly whatever the shape; equal steps would hit some columns alone.
        """
        golden = torch.arange(COUNTED, dtype=torch.float64).mul_((math.sqrt(5) - 1) / 2).frac_()
        chosen = []
        for start, count in zip(self.held.starts, (weight.numel() for weight in self.weights), strict=True):
            spread = golden.mul(count).long().sort().values if count > COUNTED else torch.arange(count)
            chosen.append(start + spread)
        places = torch.zeros(self.sample.real.shape, dtype=torch.long, device=self.device)
        places[self.sample.real == 1] = torch.cat(chosen).to(self.device)
        return places.view(-1)

    def _near_zero(self, gradient: torch.Tensor) -> torch.Tensor:
        """Share of near-zero entries in the sample of each gradient: (look, parameter)."""
        chosen = gradient.flatten(1).index_select(1, self.places).view(-1, *self.limits.shape)
        return self.sample.sums(chosen.abs_().lt_(self.limits).sum(-1)).div_(self.sample.counts)

    def _gradients(self) -> list[torch.Tensor]:
        gradients = [weight.grad for weight in self.weights]
        for index, gradient in enumerate(gradients):
            if gradient is None:
                self.without_gradient.add(self.names[index])
                gradients[index] = torch.zeros_like(self.weights[index])
        return gradients

    def traces(self, rows: list[torch.Tensor]) -> dict[str, np.ndarray]:
        """The losses of the rows of `measure`, and what was measured: norms per layer, statistics per parameter."""
        count = self.held.counts.cpu().numpy()
        blocks = [*self.blocks, self._statistics()] if self.waiting else self.blocks
        table = torch.cat(blocks, 1).cpu().double().numpy() if blocks else np.zeros((7, 0, len(self.names)))
        gradient, weight, moved, total, small, low, high = table
        update = np.concatenate([moved[1:], self._last_update()[None]]) if len(moved) else moved
        mean = total / count
        with np.errstate(all="ignore"):  # a diverged run holds inf and NaN, and shows them
            spread = np.sqrt(np.maximum(gradient**2 / count - mean**2, 0))
            for look, exact in self.spreads.items():
                spread[look] = exact.cpu().numpy()
            norms = {"grad_norm": gradient, "weight_norm": weight, "update_norm": update}
            traces = {name: self._per_layer(values) for name, values in norms.items()}
            traces["update_ratio"] = traces["update_norm"] / np.maximum(traces["weight_norm"], 1e-30)
            traces["grad_norm_total"] = np.sqrt((gradient**2).sum(1))
        return traces | {
            "loss": torch.stack(rows)[:, 0].cpu().double().numpy() if rows else np.zeros(0),
            "grad_mean": mean,
            "grad_std": spread,
            "grad_min": low,
            "grad_max": high,
            "grad_near_zero": small,
        }

    def _last_update(self) -> np.ndarray:
        """Norms of the update since the last look."""
        before = self.held.views[self.waiting]
        pairs = zip(self.weights, before, strict=True)
        return torch.stack([(now.detach().double() - then).norm() for now, then in pairs]).cpu().numpy()

    def _per_layer(self, norms: np.ndarray) -> np.ndarray:
        owner = np.array([self.layers.index(layer_of(name)) for name in self.names])
        squares = np.zeros((len(norms), len(self.layers)))
        np.add.at(squares.T, owner, (norms**2).T)
        return np.sqrt(squares)


def all_finite(lists) -> bool:
    return math.isfinite(sum(sum(values) for values in lists))  # float32 numbers cannot add up to infinity in float64


def out_of_range(norms: list[list[list[float]]]) -> list[tuple[int, int, int]]:
    """Which norms (line, look, parameter) are so small or so large that float32 squares cannot be trusted?"""
    return [
        (line, look, index)
        for line, looks in enumerate(norms)
        for look, values in enumerate(looks)
        if not (min(values) > SMALL and max(values) < BIG)
        for index, value in enumerate(values)
        if not SMALL < value < BIG
    ]


def nearly_equal(norms: list[float], sums: list[float], counts: list[float]) -> bool:
    """Are the entries of any tensor so close to their mean that its spread would be lost in rounding?"""
    return any(total**2 > 0.99 * count * norm**2 for norm, total, count in zip(norms, sums, counts, strict=True))


def layer_of(parameter: str) -> str:
    """'block2.layer1.weight' belongs to 'block2.layer1'; a parameter of the net itself is its own layer."""
    return parameter.rpartition(".")[0] or parameter


class ActivationMeter:
    """Mean, spread and saturation of the inputs, of every activation and of the outputs, on part of each batch."""

    def __init__(self, model: nn.Module, called: nn.Module | None = None):
        """`called` is the module that the loop calls, where that is a wrapper around the model."""
        self.called = called or model
        self.modules = {name: module for name, module in model.named_modules() if isinstance(module, ACTIVATIONS)}
        self.latest: dict[str, torch.Tensor] = {}
        self.formats: set[torch.dtype] = set()  # in which the net answered
        self.hooks = []
        self.held: Segments | None = None
        self.waiting = 0  # steps held and not yet measured
        self.blocks: list[torch.Tensor] = []

    @property
    def names(self) -> tuple[str, ...]:
        return ("inputs", *self.modules, "outputs")

    def attach(self) -> None:
        self.hooks = [self.called.register_forward_pre_hook(self._note_inputs, with_kwargs=True)]
        for name, module in [*self.modules.items(), ("outputs", self.called)]:
            self.hooks.append(module.register_forward_hook(self._noter(name)))

    def detach(self) -> None:
        for hook in self.hooks:
            hook.remove()
        self.latest.clear()

    def _note_inputs(self, _, inputs, named) -> None:
        self.latest["inputs"] = given(inputs, named)

    def _noter(self, name: str):
        latest = self.latest

        def note(_, __, output):
            output = output if torch.is_tensor(output) else first_tensor(output)
            latest[name] = output[:SAMPLES].detach().clone() if output.numel() > LARGE else output

        return note

    @torch.no_grad()
    def keep(self) -> None:
        """Copy what the last forward pass showed; measure when a block of steps is full."""
        latest, names = self.latest, self.names
        if len(latest) < len(names):  # modules that the net has and does not use, or a net not called
            nothing = torch.full((1,), float("nan"))
            latest |= {name: nothing for name in names if latest.get(name) is None}
        tensors = [latest[name][:SAMPLES] for name in names]
        self.formats.add(tensors[-1].dtype)
        if self.held is None or [tensor.shape for tensor in tensors] != self.held.shapes:
            self.settle()
            self.held = Segments([tensor.shape for tensor in tensors], tensors[0].device, copies=BLOCK)
        self.held.fill(self.waiting, tensors)
        self.waiting += 1
        if self.waiting == BLOCK:
            self.settle()

    def settle(self) -> None:
        """Measure what waits."""
        if self.waiting:
            self.blocks.append(self._statistics(self.waiting))
            self.waiting = 0

    def _statistics(self, steps: int) -> torch.Tensor:
        """(statistic, step, activation): mean, standard deviation and saturated share."""
        held = self.held
        values = held.buffer[:steps]
        mean = held.sums(values.sum(-1)) / held.counts
        deviation = _deviation(held, values, mean)
        far = ~((deviation > SMALL) & (deviation < BIG)).all(1)
        if bool(far.any()):  # those steps alone: a step's numbers must not hang on its neighbours
            mean[far], deviation[far] = _exact_deviation(held, values[far])
        return torch.stack([mean, deviation, self._saturated(values)])

    def _saturated(self, values: torch.Tensor) -> torch.Tensor:
        ranges = [SATURATION.get(type(self.modules.get(name)), (0.0, float("nan"))) for name in self.names]
        if all(width != width for _, width in ranges):  # nothing here can saturate
            return values.new_full((len(values), len(ranges)), float("nan"))
        centre, width = values.new_tensor(ranges)[self.held.owner].T.unsqueeze(-1)
        outside = (values - centre).abs_().gt_(width).mul_(self.held.real)
        share = self.held.sums(outside.sum(-1)) / self.held.counts
        return torch.where(values.new_tensor(ranges)[:, 1].isnan(), float("nan"), share)

    def traces(self) -> dict[str, np.ndarray]:
        blocks = [*self.blocks, self._statistics(self.waiting)] if self.waiting else self.blocks
        if not blocks:
            return {}
        mean, deviation, saturated = torch.cat(blocks, dim=1).cpu().numpy()
        return {"activation_mean": mean, "activation_std": deviation, "activation_saturated": saturated}


def _deviation(held: Segments, values: torch.Tensor, mean: torch.Tensor, apart: bool = False) -> torch.Tensor:
    """In two passes: the one-pass formula was wrong by 4500x on a collapsed sigmoid layer."""
    centred = (values - mean[:, held.owner, None]).mul_(held.real)
    drift = held.sums(centred.sum(-1), apart) / held.counts  # what rounding left in of the mean
    squares = held.sums(torch.linalg.vector_norm(centred, dim=-1).square(), apart) / held.counts
    return (squares - drift**2).clamp_min(0).sqrt()


def _exact_deviation(held: Segments, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and deviation in float64, for tiny and huge values; what is not finite stays in its own tensor."""
    values = held.wide(values)
    mean = held.sums(values.sum(-1), apart=True) / held.counts
    return mean.float(), _deviation(held, values, mean, apart=True).float()


class Probe:
    """A fixed batch, examined in eval mode: loss, accuracy, dead units, histograms, attention entropy."""

    def __init__(self, model: nn.Module, loss, x: torch.Tensor, y: torch.Tensor, autocast=contextlib.nullcontext):
        self.model, self.loss, self.x, self.y, self.autocast = model, loss, x, y, autocast
        named = list(model.named_modules())
        self.activations = {name: module for name, module in named if isinstance(module, ACTIVATIONS)}
        self.attentions = {name: module for name, module in named if isinstance(module, AttentionWeights)}
        self.heads: tuple[str, ...] = ()

    @torch.no_grad()
    def examine(self) -> dict[str, torch.Tensor]:
        with evaluating(self.model), captured(self.activations | self.attentions) as outputs, self.autocast():
            result = self.model(self.x)
            found = {"probe_loss": self.loss(result, self.y).float()}
            each = sample_losses(self.loss, result[:HISTOGRAM_SAMPLES], self.y[:HISTOGRAM_SAMPLES]).float()
        found |= {"sample_loss_variance": each.var(), "sample_loss_mean": each.mean()}
        if not self.y.is_floating_point() and result.ndim == 2:
            found["probe_accuracy"] = (result.argmax(1) == self.y).float().mean()
        hidden = [outputs[name].float() for name in self.activations]
        nothing = torch.full((), float("nan"), device=self.x.device)  # inputs and outputs are not units
        found["dead"] = torch.stack([nothing, *map(dead_share, hidden), nothing])
        found["twins"] = torch.stack([nothing, *map(twin_share, hidden), nothing])
        everything = (value[:HISTOGRAM_SAMPLES] for value in (self.x.float(), *hidden, result.float()))
        counts, ranges = zip(*map(histogram, everything), strict=True)
        found |= {"histogram": torch.stack(counts), "histogram_range": torch.stack(ranges)}
        if self.attentions:
            entropies = {name: entropy(outputs[name].float()) for name in self.attentions}
            self.heads = tuple(f"{name}.{head}" for name, each in entropies.items() for head in range(len(each)))
            found["attention_entropy"] = torch.cat(list(entropies.values()))
        return found


def sample_losses(loss, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss of each sample alone: one call where torch can keep them apart, else one call per sample."""
    if loss is nn.functional.cross_entropy and outputs.ndim == 2:
        return loss(outputs, targets, reduction="none")
    return torch.stack([loss(outputs[i : i + 1], targets[i : i + 1]) for i in range(len(targets))])


def given(inputs: tuple, named: dict) -> torch.Tensor | None:
    """What a module was called with: nearly always one tensor, and then there is nothing to search."""
    if inputs and torch.is_tensor(inputs[0]) and inputs[0].is_floating_point():
        return inputs[0]
    return first_tensor((inputs, named))


def first_tensor(thing) -> torch.Tensor | None:
    """The first tensor of floating-point numbers, or else of any, in what a module was given or gave."""
    if torch.is_tensor(thing):
        return thing
    parts = thing.values() if isinstance(thing, Mapping) else thing if isinstance(thing, tuple | list) else ()
    found = [tensor for part in parts if (tensor := first_tensor(part)) is not None]
    if isinstance(thing, Mapping) and torch.is_tensor(thing.get("logits")):
        return thing["logits"]  # what many model libraries call their outputs
    return next((tensor for tensor in found if tensor.is_floating_point()), found[0] if found else None)


def dead_share(activation: torch.Tensor) -> torch.Tensor:
    """Share of units that are silent on every sample."""
    return (by_unit(activation).abs().amax(0) <= SILENT).float().mean()


def by_unit(activation: torch.Tensor) -> torch.Tensor:
    """One column per unit: channels of a picture, else the last axis."""
    units = activation.transpose(1, -1) if activation.ndim == 4 else activation
    return units.flatten(0, -2)


def twin_share(activation: torch.Tensor) -> torch.Tensor:
    """Share of units that are not silent and always do what another unit does."""
    units = by_unit(activation[:HISTOGRAM_SAMPLES])
    weights = torch.linspace(1, 2, len(units), device=units.device)  # so that a shuffled answer is another answer
    answers, size = weights @ units, (weights @ units.abs()).clamp_min(SILENT)
    order = answers.argsort()
    close = answers[order].diff().abs() <= TWIN * size[order][1:]
    loud = size[order] > SILENT
    false = torch.zeros(1, dtype=torch.bool, device=units.device)
    return ((torch.cat([false, close]) | torch.cat([close, false])) & loud).float().mean()


def histogram(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Counts in equal bins between the smallest and the largest value, without waiting for the device."""
    low, high = values.aminmax()
    place = ((values - low) / (high - low).clamp_min(1e-30) * BINS).nan_to_num_(0).clamp_(0, BINS - 1).long()
    counts = torch.zeros(BINS, device=values.device).scatter_add_(0, place.flatten(), torch.ones_like(values).flatten())
    return counts, torch.stack([low, high])


def entropy(attention: torch.Tensor) -> torch.Tensor:
    """Mean entropy of each head's attention in nats: ln(tokens) looks everywhere, 0 at one token."""
    return -(attention * attention.clamp_min(1e-30).log()).sum(-1).mean((0, 2))


@contextlib.contextmanager
def evaluating(model: nn.Module):
    """Eval mode inside; afterwards every module is in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextlib.contextmanager
def captured(modules: dict[str, nn.Module]):
    """The outputs of some modules during the next forward pass."""
    outputs: dict[str, torch.Tensor] = {}

    def keeper(name):
        return lambda _, __, output: outputs.__setitem__(name, output[0] if type(output) is tuple else output)

    hooks = [module.register_forward_hook(keeper(name)) for name, module in modules.items()]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()
