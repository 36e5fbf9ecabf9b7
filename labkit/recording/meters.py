"""The measuring devices: weights and gradients, activations, and the fixed probe batch.

They leave the patient alone (weights, buffers, modes and random numbers stay as they were, bit by bit)
and on a GPU read nothing back: results stay tensors on the device until the end.
"""

import contextlib
import functools
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from labkit.recording.guard import Guard
from labkit.recording.nested import call, first_tensor, given, real, replaced
from labkit.recording.packed_tensors import PackedTensors
from labkit.recording.probe_tests import probe_tests
from labkit.recording.token_tests import OF_THE_LOSS, token_tests
from labkit.recording.undisturbed import captured, evaluating, hooked, replaying

TOKENS = "the tests on tokens"  # an instrument's name, should it be switched off
NEAR_ZERO = 1e-8  # a gradient entry this small moves no float32 weight at any usual learning rate
COUNTED = 1024  # entries of each parameter that are checked for it: enough for a share that is accurate to 0.02
SAMPLES = 8  # images of each batch in the activation statistics; the whole batch would cost more and hardly change them
TOGETHER = 16_384  # entries; parameters of at most this size are measured together on a CPU
BLOCK = 16  # looks that are measured together: small parameters, and activations
LARGE = 65_536  # entries; of a larger activation a slice is copied at once: keeping it causes page faults later
SILENT = 1e-6  # a unit that stays below this on the whole probe is dead
TWIN = 1e-5  # two units whose activations differ by less, relative to their size, compute the same
BINS = 32
HISTOGRAM_SAMPLES = 64
NORMALISED = 1e-3  # how far the probabilities of a sample may be from a sum of 1, as a logarithm
ALIKE = 1e-5  # standard deviation over size, below which outputs differ by rounding alone
PAIRS = 16  # of probe samples, between which the net is compared with a straight line
COLUMNS = 64  # outputs of each sample that are summed over the batch
# Beyond 0.97 of its range a unit passes back at most an eighth of its gradient: centre and half width.
SATURATION = {nn.Sigmoid: (0.5, 0.47), nn.Tanh: (0.0, 0.97), nn.Hardtanh: (0.0, 0.97)}
ACTIVATIONS = (
    nn.ReLU, nn.LeakyReLU, nn.ReLU6, nn.PReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus,
    nn.Sigmoid, nn.Tanh, nn.Hardtanh, nn.Hardswish, nn.RNN,
)  # fmt: skip
# Norms in float32 can be trusted between these: smaller entries square to 0, larger ones to infinity.
SMALL, BIG = 1e-15, 1e18
HUGE = 1e38  # the largest norm that is recorded of finite entries: float32 holds it


class AttentionWeights(nn.Module):
    """Softmax attention as a module of its own, so that an instrument can read it like an activation."""

    def forward(self, query, key):
        return torch.softmax(self.scores(query, key), dim=-1)

    def scores(self, query, key):
        return query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])


class WeightMeter:
    """Norms of gradients, weights and updates, and statistics of the gradients, parameter by parameter.

    Norms, means and standard deviations are those of all entries, at every look. The extremes and the near-zero share
    take longer than all the rest, and are measured at the looks `in_full` only; of a parameter with more than COUNTED
    entries the share is estimated from COUNTED of them, the same at every look and evenly distributed.
    """

    @torch.no_grad()
    def __init__(self, model: nn.Module):
        named = ((name, weight) for name, weight in model.named_parameters() if real(weight).numel())
        self.names, self.weights = zip(*named, strict=True)
        self.device = self.weights[0].device
        small = [self.device.type == "cpu" and weight.numel() <= TOGETHER for weight in self.weights]
        self.order = sorted(range(len(small)), key=small.__getitem__)  # large ones first, each kind in forward order
        self.ordered = [self.weights[index] for index in self.order]
        self.count_large = small.count(False)
        numbers = [real(weight) for weight in self.ordered]
        self.counts = [numbers[place].numel() for place in np.argsort(self.order)]
        parts = self._apart(numbers)
        self.groups = [kind(part) for kind, part in zip((LargeTensors, SmallTensors), parts, strict=True) if part]
        self.places = [sampled_places(weight.numel()).to(self.device) for weight in numbers]
        self.all_zero = torch.tensor([1.0, 0.0, 0.0]).to(self.device)  # `full_statistics` of a gradient of zeros
        self.looks = 0  # completed in every group
        self.in_full: dict[int, torch.Tensor] = {}  # look -> near-zero shares and extremes
        self.layers = tuple(dict.fromkeys(layer_of(name) for name in self.names))
        self.without_gradient: set[str] = set()

    @property
    def matrices(self) -> list[str]:
        """The layers that have a weight matrix; norms and embeddings have only vectors."""
        pairs = zip(self.names, self.weights, strict=True)
        return list(dict.fromkeys(layer_of(name) for name, weight in pairs if weight.ndim >= 2))

    def fresh(self) -> list[str]:
        """The weight matrices that never had a gradient and look as they do after an init: nobody has trained them."""
        pairs = zip(self.names, self.weights, strict=True)
        return [
            name for name, weight in pairs if name in self.without_gradient and weight.ndim >= 2 and looks_fresh(weight)
        ]

    def measure(self, loss: torch.Tensor, full: bool = True) -> tuple[float, float] | torch.Tensor:
        """Record this step; returns its loss and the norm of all gradients.

        A non-finite weight makes the loss or a gradient non-finite in the same look.
        """
        return self.row(loss, self.hold(full))

    def hold(self, full: bool = True) -> float | torch.Tensor:
        """Measure the gradients and weights of this step; returns the norm of all gradients."""
        parts = [part for part in self._apart(self._gradients()) if part]
        norms = [group.look(self.looks, part) for group, part in zip(self.groups, parts, strict=True)]
        self.looks += 1  # Ctrl-C before this line leaves the looks before this one, and the next look overwrites it
        for group in self.groups:
            group.keep_weights()
        if full:
            self.measure_in_full()
        return norms[0] if torch.is_tensor(norms[0]) else bounded(math.hypot(*norms))

    def measure_in_full(self) -> None:
        """Measure the extremes and the near-zero shares of the last look too, if that was not done."""
        if self.looks - 1 not in self.in_full:
            pairs = zip(self._gradients(), self.places, strict=True)
            found = [self.all_zero if each is None else full_statistics(each, places) for each, places in pairs]
            self.in_full[self.looks - 1] = torch.stack(found, 1)

    @staticmethod
    def row(loss: torch.Tensor, norm: float | torch.Tensor) -> tuple[float, float] | torch.Tensor:
        """The loss of a step beside what `hold` returned for it."""
        if torch.is_tensor(norm):  # not a CPU: plain numbers would make it wait
            return torch.stack([loss.detach().to(norm).reshape(()), norm])
        return loss.item(), norm

    def _apart(self, ordered: list) -> tuple[list, list]:
        """The large ones and the small ones."""
        return ordered[: self.count_large], ordered[self.count_large :]

    def _gradients(self) -> list[torch.Tensor | None]:
        """Of the large parameters first; None where there is none, as in a frozen layer."""
        gradients = [weight.grad for weight in self.ordered]
        if any(gradient is None for gradient in gradients):
            missing = [index for index, gradient in enumerate(gradients) if gradient is None]
            self.without_gradient.update(self.names[self.order[index]] for index in missing)
        return [None if gradient is None else real(gradient) for gradient in gradients]

    def traces(self, rows: list) -> dict[str, np.ndarray]:
        """The losses from the rows of `measure`, and what was measured: norms per layer, statistics per parameter."""
        forward = np.argsort(self.order)
        found = [group.table(self.looks) for group in self.groups]
        table = np.concatenate([each for each, _ in found], axis=2)[:, :, forward]
        gradient, weight, moved, total = table
        deviation = np.concatenate([each for _, each in found], axis=1)[:, forward]
        in_full = torch.stack(list(self.in_full.values()), 1).cpu().double().numpy() if self.in_full else table[1:, :0]
        in_full = [held_until_next(line, list(self.in_full), self.looks) for line in in_full]
        small, low, high = (line[:, forward] if self.in_full else line for line in in_full)
        last = np.concatenate([group.last_update(self.looks) for group in self.groups])[forward]
        update = np.concatenate([moved[1:], last[None]]) if len(moved) else moved
        with np.errstate(all="ignore"):  # a diverged run has inf and NaN in its traces
            norms = {"grad_norm": gradient, "weight_norm": weight, "update_norm": update}
            traces = {name: self._per_layer(values) for name, values in norms.items()}
            traces["update_ratio"] = traces["update_norm"] / np.maximum(traces["weight_norm"], 1e-30)
            traces["grad_norm_total"] = np.sqrt((gradient**2).sum(1))
        return traces | {
            "loss": first_column(rows),
            "grad_mean": total / np.array(self.counts),
            "grad_std": deviation,
            "grad_min": low,
            "grad_max": high,
            "grad_near_zero": small,
        }

    def _per_layer(self, norms: np.ndarray) -> np.ndarray:
        owner = np.array([self.layers.index(layer_of(name)) for name in self.names])
        squares = np.zeros((len(norms), len(self.layers)))
        np.add.at(squares.T, owner, (norms**2).T)
        return np.sqrt(squares)


class TensorGroup:
    """Some parameters, measured at every look: three norms and the sum of the gradient of each.

    A subclass measures in `look` and appends to `blocks` what `table` joins: (four lines, looks, parameters).
    Which looks are complete is for the meter to say: one that Ctrl-C interrupted is overwritten by the next.
    """

    def __init__(self, weights: list[torch.Tensor]):
        self.weights = weights
        self.counts = [weight.numel() for weight in weights]
        self.blocks: list[torch.Tensor] = []
        self.deviations: dict[int, dict[int, float]] = {}  # look -> parameter -> standard deviation in two passes

    def look(self, look: int, gradients: list[torch.Tensor | None]) -> float | torch.Tensor:
        """Measure these gradients, the weights, and what the last update did; returns the norm of the gradients."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it measures")

    def keep_weights(self) -> None:
        """The look is complete: its weights are those before the next update."""

    def before(self, looks: int) -> list[torch.Tensor]:
        """The weights at the last of these looks."""
        raise NotImplementedError(f"{type(self).__name__} does not say where it keeps the weights")

    def measured(self, looks: int) -> list[torch.Tensor]:
        """The blocks of these looks."""
        return self.blocks

    def table(self, looks: int) -> tuple[np.ndarray, np.ndarray]:
        """(three norms and the sum, look, parameter), and the standard deviations of the gradients."""
        blocks = self.measured(looks)
        table = torch.cat(blocks, 1).cpu().double().numpy() if blocks else np.zeros((4, 0, len(self.counts)))
        gradient, _, _, total = table = table[:, :looks]
        with np.errstate(all="ignore"):  # a diverged run has inf and NaN
            deviation = np.sqrt(np.maximum(gradient**2 / self.counts - (total / self.counts) ** 2, 0))
        for look in self.deviations.keys() & range(looks):
            for index, exact in self.deviations[look].items():
                deviation[look, index] = exact
        return table, deviation

    def last_update(self, looks: int) -> np.ndarray:
        """Norms of the update since the last of these looks."""
        pairs = zip(self.weights, self.before(looks), strict=True)
        return torch.stack([(now.detach().double() - then).norm() for now, then in pairs]).cpu().numpy()

    def remeasure(self, row: torch.Tensor, look: int, entries) -> float:
        """In float64: norms that are too small or too large for float32 squares, and the standard deviations of
        gradients whose entries are so close to their mean that rounding would lose them.

        `entries(line, parameter)` is a gradient, a weight or an update; None where all of it is known to be 0.
        Returns the norm of all gradients.
        """
        *norms, sums = row.tolist()
        deviations, without = {}, set()  # `without`: parameters whose gradient is 0 everywhere
        for line, values in enumerate(norms):
            if not (min(values) > SMALL and sum(values) < BIG):  # NaN too
                for index, value in enumerate(values):
                    if not SMALL < value < BIG:
                        found = entries(line, index)
                        if found is not None and not (value == 0 and is_zero(found)):
                            row[line, index] = bounded(float(torch.linalg.vector_norm(found.double())))
                        elif line == 0:
                            without.add(index)
                values[:] = row[line].tolist()
        for index, (norm, total, count) in enumerate(zip(norms[0], sums, self.counts, strict=True)):
            if index not in without and not total**2 < 0.99 * count * norm**2:  # NaN too
                exact = entries(0, index).double()
                row[3, index] = exact.sum()
                deviations[index] = float(exact.std(correction=0))
        self.deviations[look] = deviations
        return math.hypot(*norms[0])


class LargeTensors(TensorGroup):
    """Measured at once and where they are: to copy their gradients would cost more than a call for each."""

    def __init__(self, weights: list[torch.Tensor]):
        super().__init__(weights)
        device = weights[0].device
        self.on_cpu = device.type == "cpu"
        double = any(weight.dtype == torch.float64 for weight in weights)
        kept_in = torch.float64 if double else torch.float32
        # On a GPU norms are taken in float64, which costs less than to synchronise and find out where it is needed.
        self.dtype = kept_in if self.on_cpu or device.type == "mps" else torch.float64
        self.kept = [torch.zeros_like(weight, dtype=kept_in).copy_(weight) for weight in weights]
        self.nothing = torch.zeros((), dtype=self.dtype, device=device)
        if self.on_cpu:  # room for one update at a time: the system is slow to hand out new memory
            room = torch.zeros(max(self.counts), dtype=kept_in)
            self.rooms = [room[: weight.numel()].view(weight.shape) for weight in weights]

    def before(self, looks: int) -> list[torch.Tensor]:
        return self.kept

    def keep_weights(self) -> None:
        torch._foreach_copy_(self.kept, self.weights)

    def look(self, look: int, gradients: list[torch.Tensor | None]) -> float | torch.Tensor:
        there = [gradient for gradient in gradients if gradient is not None]
        norms = iter(torch._foreach_norm(there, 2, self.dtype) if there else ())
        rows = [
            *(self.nothing if gradient is None else next(norms) for gradient in gradients),
            *torch._foreach_norm(self.weights, 2, self.dtype),
            *self._update_norms(),
            *(self.nothing if gradient is None else gradient.sum(dtype=self.dtype) for gradient in gradients),
        ]
        row = torch.stack(rows).view(4, -1)
        self.blocks[look:] = [row[:, None]]
        if self.on_cpu:
            lines = gradients.__getitem__, self.weights.__getitem__, self._update
            return self.remeasure(row, look, lambda line, index: lines[line](index))
        norm = torch.linalg.vector_norm(row[0])
        return torch.where(norm.isfinite(), norm.clamp_max(HUGE), norm).float()

    def _update_norms(self) -> list[torch.Tensor]:
        if self.on_cpu:
            return [torch.linalg.vector_norm(self._update(index)) for index in range(len(self.weights))]
        return torch._foreach_norm(torch._foreach_sub(self.kept, self.weights), 2, self.dtype)

    def _update(self, index: int) -> torch.Tensor:
        """What the last update did to a parameter, with the opposite sign; overwritten by the next call."""
        return torch.sub(self.kept[index], self.weights[index], out=self.rooms[index])


class SmallTensors(TensorGroup):
    """Copied into one buffer, and measured a block of looks together: a call costs more than the work on a bias."""

    def __init__(self, weights: list[torch.Tensor]):
        super().__init__(weights)
        shapes, device = [weight.shape for weight in weights], weights[0].device
        self.gradients = PackedTensors(shapes, device, copies=BLOCK)
        self.held = PackedTensors(shapes, device, copies=1 + BLOCK)  # before the block, and at each look
        self.held.fill(0, weights)
        self.updates = torch.zeros_like(self.gradients.buffer)  # room: the system is slow to hand out new memory
        self.nothing = [torch.zeros((), device=device).expand(shape) for shape in shapes]  # takes no memory

    def before(self, looks: int) -> list[torch.Tensor]:
        return self.held.views[(looks - 1) % BLOCK + 1 if looks else 0]

    def look(self, look: int, gradients: list[torch.Tensor | None]) -> float:
        place = look % BLOCK
        if look and place == 0:  # the block is full; each line can be repeated after Ctrl-C
            self.blocks = self.measured(look)
            self.held.buffer[0].copy_(self.held.buffer[BLOCK])
        pairs = zip(gradients, self.nothing, strict=True)
        self.gradients.fill(place, [zero if gradient is None else gradient for gradient, zero in pairs])
        self.held.fill(place + 1, self.weights)
        line = self.gradients.buffer[place]
        norm = float(torch.linalg.vector_norm(line))
        if not norm < BIG:  # float32 squares may have overflowed
            norm = float(torch.linalg.vector_norm(line.double()))
        return norm

    def measured(self, looks: int) -> list[torch.Tensor]:
        first = BLOCK * len(self.blocks)
        return [*self.blocks, self._statistics(first, looks - first)] if looks > first else self.blocks

    def _statistics(self, first: int, looks: int) -> torch.Tensor:
        """(three norms and the sum, look, parameter) of the looks that wait, from the first of their block on."""
        held = self.held
        gradient, weight = self.gradients.buffer[:looks], held.buffer[1 : looks + 1]
        lines = gradient, weight, torch.sub(weight, held.buffer[:looks], out=self.updates[:looks])
        rows = torch.stack([*(torch.linalg.vector_norm(line, dim=-1).square_() for line in lines), gradient.sum(-1)])
        totals = held.sums(rows)
        totals[:3].sqrt_()
        empty = (totals[:3] == 0).flatten(1).any(1).tolist()  # lines in which something may be 0 everywhere
        zeros = [
            (held.sums((~is_zero(line, -1)).float()) == 0).tolist() if empty[n] else () for n, line in enumerate(lines)
        ]

        def entries(line: int, index: int, look: int) -> torch.Tensor | None:
            return None if empty[line] and zeros[line][look][index] else held.part(lines[line][look], index)

        for look in range(looks):  # one by one: the numbers of a look must not depend on its neighbours
            self.remeasure(totals[:, look], first + look, functools.partial(entries, look=look))
        return totals


def is_zero(values: torch.Tensor, dim: int | tuple = ()) -> torch.Tensor:
    """Whether every entry is 0, of all or along an axis. A norm of 0 may also have squares that underflow."""
    return (values.amin(dim) == 0) & (values.amax(dim) == 0)


def bounded(norm: float) -> float:
    """A norm of finite entries may be beyond float32, which must not read as infinity."""
    return min(norm, HUGE) if math.isfinite(norm) else norm


def sampled_places(count: int) -> torch.Tensor:
    """The entries of a parameter that are sampled: all, or COUNTED of them.

    Multiples of the golden ratio are evenly distributed whatever the shape; equal steps would miss columns.
    """
    if count <= COUNTED:
        return torch.arange(count)
    golden = torch.arange(COUNTED, dtype=torch.float64).mul_((math.sqrt(5) - 1) / 2).frac_()
    return golden.mul_(count).long().sort().values


def full_statistics(gradient: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The share of near-zero entries among the sampled ones, the smallest and the largest entry."""
    flat = gradient.reshape(-1)
    small = flat.index_select(0, places).float().abs_().lt_(NEAR_ZERO).mean()
    return torch.stack([small, *(extreme.float() for extreme in flat.aminmax())])


def held_until_next(values: np.ndarray, measured: list[int], steps: int) -> np.ndarray:
    """One row per step from rows of the measured steps: each stands until the next one is measured."""
    if measured == list(range(steps)):
        return values
    latest = np.searchsorted(np.asarray(measured), np.arange(steps), side="right") - 1
    found = np.full((steps, *values.shape[1:]), np.nan)  # before the first: nothing
    found[latest >= 0] = values[latest[latest >= 0]]
    return found


def first_column(rows: list) -> np.ndarray:
    """The losses of the rows that a recorder has noted: of tensors where they stayed on a device."""
    if rows and torch.is_tensor(rows[0]):
        return torch.stack(rows)[:, 0].cpu().double().numpy()
    return np.array([row[0] for row in rows], dtype=np.float64)


def looks_fresh(weight: torch.Tensor) -> bool:
    """Are these entries distributed as after an init, uniformly or normally around 0? Trained weights have other tails.

    Trained for a few hundred steps from PyTorch's uniform init, the kurtosis of a small net's layers went from 1.8 to
    2.3, and their mean to 12 standard errors.
    """
    values = real(weight.detach()).flatten()
    values = values[:: max(1, len(values) // 100_000)].double()  # enough to tell
    count, spread = len(values), float(values.std()) if len(values) > 1 else 0.0
    if count < 512 or not spread > 0:  # too few to tell
        return False
    mean = float(values.mean()) / spread * math.sqrt(count)  # in standard errors
    kurtosis = float(((values - values.mean()) / spread).pow(4).mean())
    uniform, normal = abs(kurtosis - 1.8) < 4 / math.sqrt(count), abs(kurtosis - 3) < 5 * math.sqrt(24 / count)
    return abs(mean) < 5 and (uniform or normal)


def layer_of(parameter: str) -> str:
    """'block2.layer1.weight' belongs to 'block2.layer1'; a parameter of the net itself is its own layer."""
    return parameter.rpartition(".")[0] or parameter


EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)  # tables that are looked up: no sum over inputs


def is_added(weight: torch.Tensor) -> bool:
    """Has it the shape 1 x tokens x width of a position table or a class token, which multiply nothing?"""
    return weight.ndim >= 3 and len(weight) == 1


@torch.no_grad()
def first_weights(model: nn.Module) -> dict[str, dict[str, float | torch.Tensor]]:
    """Of every layer that multiplies by weight matrices: its units and inputs, its gain, and whether all are alike.

    The gain is the size of a weight times the square root of the number of inputs: how many times larger outputs are
    than inputs, both standard deviations. `alike` is 1 where all entries of each matrix are the same number, else 0.
    """
    found: dict[str, dict[str, float | torch.Tensor]] = {}
    for name, module in model.named_modules():
        weights = [real(each) for each in module.parameters(recurse=False) if each.ndim >= 2 and each.numel()]
        if next(module.children(), None) is not None:  # a net or a block, and no layer
            weights = [each for each in weights if not is_added(each)]
        if not weights or isinstance(module, EMBEDDINGS):
            continue
        gains = [each.double().square().mean().sqrt() * math.sqrt(each[0].numel()) for each in weights]
        alike = [(each == each.flatten()[0]).all() & (each.numel() > 1) for each in weights]
        units = getattr(module, "hidden_size", len(weights[0]))  # the matrices of recurrent layers hold gates too
        found[name or type(module).__name__] = {
            "units": float(units),
            "inputs": float(weights[0].shape[1]),
            "gain": torch.stack(gains).amax(),
            "alike": torch.stack(alike).all(),
        }
    return found


class ActivationMeter:
    """Mean, standard deviation and saturation of inputs, activations and outputs, on part of each batch."""

    def __init__(self, model: nn.Module, called: nn.Module | None = None):
        """`called` is the module that the loop calls, where that is a wrapper around the model."""
        self.called = called or model
        self.modules = activations_of(model)
        self.latest: dict[str, torch.Tensor] = {}
        self.formats: set[torch.dtype] = set()  # of the outputs
        self.input_formats: set[torch.dtype] = set()
        self.hooks = []
        self.protect = lambda hook: hook  # around every hook
        self.held: PackedTensors | None = None
        self.ranges: torch.Tensor | None = None
        self.waiting = 0  # steps copied and not yet measured
        self.measured: list[int] = []  # the steps that were kept
        self.blocks: list[torch.Tensor] = []

    @property
    def names(self) -> tuple[str, ...]:
        return ("inputs", *self.modules, "outputs")

    def attach(self, protect=lambda hook: hook) -> None:
        """`protect` is put around every hook: what they raise must not reach the forward pass."""
        self.protect = protect
        self.listen(True)

    def detach(self) -> None:
        self.listen(False)

    def listen(self, listening: bool) -> None:
        """Whether the next step will be kept: if not, there are no hooks, which cost time even when they do nothing."""
        if listening and not self.hooks:
            self.hooks = [self.called.register_forward_pre_hook(self.protect(self._note_inputs), with_kwargs=True)]
            for name, module in [*self.modules.items(), ("outputs", self.called)]:
                self.hooks.append(module.register_forward_hook(self.protect(self._noter(name))))
        elif not listening:
            for hook in self.hooks:
                hook.remove()
            self.hooks = []
            self.latest.clear()

    def _note_inputs(self, _, inputs, named) -> None:
        self.latest["inputs"] = given(inputs, named)

    def _noter(self, name: str):
        latest = self.latest

        def note(_, __, output):
            output = output if torch.is_tensor(output) else first_tensor(output)
            large = output is not None and output.numel() > LARGE
            latest[name] = output if output is None else output[:SAMPLES].detach().clone() if large else output.detach()

        return note

    @torch.no_grad()
    def keep(self, step: int) -> None:
        """Copy the activations of the last forward pass; measure when a block of steps is full."""
        found = [self.latest.get(name) for name in self.names]  # None: not used in the forward pass, or no tensor
        if any(each is not None and not each.numel() for each in found):
            return  # an empty batch has no statistics: those of the last step stand
        for formats, tensor in ((self.input_formats, found[0]), (self.formats, found[-1])):
            if tensor is not None:
                formats.add(tensor.dtype)
        nothing = torch.full((1,), float("nan"))
        tensors = [nothing if each is None else real(each[:SAMPLES] if each.ndim else each[None]) for each in found]
        if self.held is None or [tensor.shape for tensor in tensors] != self.held.shapes:
            self.settle()
            self.held = PackedTensors([tensor.shape for tensor in tensors], tensors[0].device, copies=BLOCK)
            self.ranges = self._saturation_ranges(tensors[0].device)
        self.held.fill(self.waiting, tensors)
        self.waiting += 1
        self.measured.append(step)
        if self.waiting == BLOCK:
            self.settle()

    def begin_chapter(self) -> None:
        """What was measured has been read: count from 0 again."""
        self.blocks, self.measured, self.waiting = [], [], 0

    def settle(self) -> None:
        """Measure the steps that wait."""
        if self.waiting:
            self.blocks.append(self._statistics(self.waiting))
            self.waiting = 0

    def _statistics(self, steps: int) -> torch.Tensor:
        """(statistic, step, activation): mean, standard deviation and saturated share."""
        held = self.held
        values = held.buffer[:steps]
        if held.buffer.device.type != "cpu":  # to ask whether it is needed would make a GPU wait
            mean, deviation = _exact_deviation(held, values)
            return torch.stack([mean, deviation, self._saturated(values)])
        mean = held.sums(values.sum(-1)) / held.counts
        deviation = _deviation(held, values, mean)
        far = ~((deviation > SMALL) & (deviation < BIG)).all(1)
        if bool(far.any()):  # those steps alone: a step's numbers must not depend on its neighbours
            mean[far], deviation[far] = _exact_deviation(held, values[far])
        return torch.stack([mean, deviation, self._saturated(values)])

    def _saturated(self, values: torch.Tensor) -> torch.Tensor:
        if self.ranges is None:  # nothing here can saturate
            return values.new_full((len(values), len(self.names)), float("nan"))
        centre, width = self.ranges[self.held.owner].T.unsqueeze(-1)
        outside = (values - centre).abs_().gt_(width).mul_(self.held.real)
        share = self.held.sums(outside.sum(-1)) / self.held.counts
        return torch.where(self.ranges[:, 1].isnan(), float("nan"), share)

    def _saturation_ranges(self, device: torch.device) -> torch.Tensor | None:
        """Centre and half width for each activation; NaN where it cannot saturate, None where nothing can."""
        ranges = [SATURATION.get(type(self.modules.get(name)), (0.0, float("nan"))) for name in self.names]
        return None if all(width != width for _, width in ranges) else torch.tensor(ranges).to(device)

    def traces(self, steps: int) -> dict[str, np.ndarray]:
        """One row for each of these steps; a step that was not kept has the values of the last one that was."""
        blocks = [*self.blocks, self._statistics(self.waiting)] if self.waiting else self.blocks
        if not blocks:
            return {}
        values = torch.cat(blocks, dim=1).cpu().numpy()
        mean, deviation, saturated = (held_until_next(line, self.measured, steps) for line in values)
        return {"activation_mean": mean, "activation_std": deviation, "activation_saturated": saturated}


def _deviation(held: PackedTensors, values: torch.Tensor, mean: torch.Tensor, apart: bool = False) -> torch.Tensor:
    """In two passes: the one-pass formula was wrong by 4500x on a collapsed sigmoid layer."""
    centred = (values - mean[:, held.owner, None]).mul_(held.real)
    drift = held.sums(centred.sum(-1), apart) / held.counts  # the part of the mean that rounding left in
    squares = held.sums(torch.linalg.vector_norm(centred, dim=-1).square(), apart) / held.counts
    return (squares - drift**2).clamp_min(0).sqrt()


def _exact_deviation(held: PackedTensors, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation in float64, for tiny and huge values; NaN stays in its own tensor."""
    values = held.wide(values)
    mean = held.sums(values.sum(-1), apart=True) / held.counts
    return mean.float(), _deviation(held, values, mean, apart=True).float()


class Probe:
    """A fixed batch, examined in eval mode: loss, accuracy, dead units, histograms, non-linearity, attention entropy.

    `x` is whatever the net takes: a tensor, several in a tuple, or a dictionary of named inputs. `y` may be None.
    """

    def __init__(self, model: nn.Module, loss, x, y=None, autocast=contextlib.nullcontext, guard: Guard | None = None):
        self.model, self.loss, self.x, self.y, self.autocast = model, loss, x, y, autocast
        self.loss_is_known = True  # else it is what most people would use for such targets
        self.guard = guard or Guard()
        self.activations = activations_of(model)
        self.attentions = {name: each for name, each in model.named_modules() if isinstance(each, AttentionWeights)}
        self.heads: tuple[str, ...] = ()
        self.constant_loss: float | None = None  # of the best constant prediction, once it is known

    @torch.no_grad()
    def examine(self, step: int = 0) -> dict[str, torch.Tensor]:
        device = next((weight.device for weight in self.model.parameters()), torch.device("cpu"))
        examining = replaying(self.model, device), evaluating(self.model)  # a net may draw random numbers in eval mode
        heads = HeadReader(self.attentions)
        with examining[0], examining[1], self.autocast():
            with captured(self.activations) as outputs, hooked(self.attentions, heads.note):
                answer = call(self.model, self.x)
            result = first_tensor(answer)
            found = self.guard("the loss of the probe", step, lambda: self._losses(answer)) or {}
            found |= self.guard(TOKENS, step, lambda: token_tests(self.model, self.x, self.y, result)) or {}
        if result is None:
            raise ValueError(f"the net returned no tensor for the probe, but {type(answer).__name__}")
        if (
            torch.is_tensor(self.y)
            and self.y.ndim == 1
            and not self.y.is_floating_point()
            and result.ndim == 2
            and result.shape[1] > 1
        ):
            found["probe_accuracy"] = (result.argmax(1) == self.y).float().mean()
        nothing = torch.full((), float("nan"), device=result.device)  # inputs and outputs have no units
        silence = torch.full((1, 1), float("nan"), device=result.device)  # nor has what the forward pass does not use
        hidden = [real(outputs[name]).float() if name in outputs else silence for name in self.activations]
        found["dead"] = torch.stack([nothing, *map(dead_share, hidden), nothing])
        found["twins"] = torch.stack([nothing, *map(twin_share, hidden), nothing])
        inputs = first_tensor(self.x)
        ends = [silence if each is None else real(each).float() for each in (inputs, result)]
        everything = (value[:HISTOGRAM_SAMPLES] for value in (ends[0], *hidden, ends[1]))
        counts, ranges = zip(*map(histogram, everything), strict=True)
        found |= {"histogram": torch.stack(counts), "histogram_range": torch.stack(ranges)}
        if result.ndim > 1 and len(result) > 1:
            found["batch_softmax_distance"] = batch_softmax_distance(ends[1])
        if self.attentions:
            self.heads = heads.names
            found |= heads.found()
        bent = self.guard("the non-linearity", step, lambda: nonlinearity(self.model, self.x))
        return found if bent is None else found | {"nonlinearity": bent}

    def test(self) -> tuple[str, dict[str, float]]:
        """The task, and the tests that tell causes apart."""
        task, found = probe_tests(self.model, self.loss, self.x, self.y, self.autocast)
        return task, found if self.loss_is_known else {name: found[name] for name in found if name not in OF_THE_LOSS}

    def _losses(self, answer) -> dict[str, torch.Tensor]:
        """The loss of the probe, and the mean and variance over some of its samples."""
        if self.loss is None or self.y is None:
            return {}
        found = {"probe_loss": self.loss(answer, self.y).float().mean()}
        if self.constant_loss is None:
            self.constant_loss = constant_loss(self.loss, answer, self.y)
        if torch.is_tensor(answer) and torch.is_tensor(self.y):
            each = sample_losses(self.loss, answer[:HISTOGRAM_SAMPLES], self.y[:HISTOGRAM_SAMPLES])
            if each is not None:
                found |= {"sample_loss_variance": each.float().var(), "sample_loss_mean": each.float().mean()}
        return found


class HeadReader:
    """The entropy and the largest logit of each attention head, in one forward pass."""

    def __init__(self, attentions: dict[str, AttentionWeights]):
        self.attentions = attentions
        self.entropies: dict[str, torch.Tensor] = {}
        self.logits: dict[str, torch.Tensor] = {}

    def note(self, name: str, inputs: tuple, weights: torch.Tensor) -> None:
        scores = self.attentions[name].scores(*inputs[:2]).float()
        seen = scores.masked_fill(weights == 0, -math.inf)  # not what a mask hides
        self.entropies[name], self.logits[name] = entropy(weights.float()), seen.amax((0, 2, 3))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{name}.{head}" for name, each in self.entropies.items() for head in range(len(each)))

    def found(self) -> dict[str, torch.Tensor]:
        entropies, logits = (torch.cat(list(each.values())) for each in (self.entropies, self.logits))
        return {"attention_entropy": entropies, "attention_logit": logits}


@torch.no_grad()
def nonlinearity(model: nn.Module, x) -> torch.Tensor | None:
    """How far the net is from an affine function: midway between two samples, from the mean of its outputs for both.

    The root mean square over pairs, relative to the standard deviation of the outputs: rounding alone gives about 1e-6.
    It is measured on the outputs of every layer with a weight matrix, and the largest counts, because an activation
    after the last of them does not make a net deeper; where some were not called, on the outputs of the net. In eval
    mode and without autocast. None where the inputs are not one floating-point tensor of 4 samples or more.
    """
    if not (torch.is_tensor(x) and x.is_floating_point() and x.layout == torch.strided and x.ndim > 1 and len(x) >= 4):
        return None
    pairs = min(len(x) // 2, PAIRS)
    first, second = x[:pairs], x[pairs : 2 * pairs]
    found: dict[str, list[torch.Tensor]] = {}

    def note(name: str, _, output) -> None:
        values = first_tensor(output)
        if values is not None and values.is_floating_point() and values.ndim and len(values) == 3 * pairs:
            found.setdefault(name, []).append(off_straight_line(values))

    layers = {
        name: layer
        for name, layer in model.named_modules()
        if any(weight.ndim >= 2 for weight in layer.parameters(recurse=False))
    }
    with evaluating(model), replaying(model, x.device), hooked(layers, note):
        note("outputs of the net", (), model(torch.cat([first, second, (first + second) / 2])))
    outputs = found.pop("outputs of the net", [])
    measured = (
        [each for calls in found.values() for each in calls] if found and found.keys() == layers.keys() else outputs
    )
    return torch.stack(measured).amax() if measured else None  # NaN where one of them is


def off_straight_line(values: torch.Tensor) -> torch.Tensor:
    """Of outputs for n samples, n others and the n points midway: the distance from the mean of both, in deviations.

    NaN where the outputs differ by no more than rounding.
    """
    first, second, between = values.reshape(len(values), -1).float().chunk(3)
    ends = torch.cat([first, second])
    deviation, size = ends.var(0, correction=0).mean().sqrt(), ends.square().mean().sqrt()
    distance = (between - (first + second) / 2).square().mean().sqrt() / deviation
    return torch.where(deviation > ALIKE * size, distance, float("nan"))


def activations_of(model: nn.Module) -> dict[str, nn.Module]:
    """The activations by name; a net that is one itself has no name of its own."""
    return {name or "net": each for name, each in model.named_modules() if isinstance(each, ACTIVATIONS)}


def constant_loss(loss, answer, targets) -> float:
    """The loss of the best prediction that is the same for every sample: what a net without any information reaches.

    The same at every position of a sequence or an image, too. Found by a few steps of LBFGS, whatever the loss is.
    """
    outputs = first_tensor(answer)
    if outputs is None or not outputs.is_floating_point():
        return math.nan
    axes = {3: (0, 1), 4: (0, 2, 3)}.get(outputs.ndim, (0,))  # (samples, tokens, words), (samples, classes, pixels)
    if outputs.ndim == 3 and getattr(targets, "shape", None) == outputs.shape[::2] != outputs.shape[:2]:
        axes = (0, 2)  # (samples, classes, positions), as torch's cross-entropy takes them
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        # From 0, which is a good start for every usual loss of logits; from the outputs of a large init it would be a
        # long way. For probabilities and numbers the mean of the targets is one.
        zeros, found = torch.zeros_like(outputs.detach().float().mean(axes, keepdim=True)), []
        ends = last_activation(outputs, axes)

        def constant_answer(constant: torch.Tensor):
            return replaced(answer, outputs, ends(constant).expand_as(outputs))

        for constant in (zeros, *mean_target(outputs, targets, axes)):
            found += _lowest_losses(lambda constant: loss(constant_answer(constant), targets), constant)
    return min((each for each in found if math.isfinite(each)), default=math.nan)


def mean_target(outputs: torch.Tensor, targets, axes: tuple[int, ...]) -> list[torch.Tensor]:
    """The mean over samples, and over positions, of targets that are as many as the outputs; else none."""
    if not torch.is_tensor(targets) or targets.is_complex() or targets.numel() != outputs.numel():
        return []
    return [targets.detach().reshape(outputs.shape).float().mean(axes, keepdim=True)]


def last_activation(outputs: torch.Tensor, averaged: tuple[int, ...]) -> Callable[[torch.Tensor], torch.Tensor]:
    """The log-softmax that these outputs come from, if they do: a loss that trusts in it has no lowest value."""
    for axis in {1, outputs.ndim - 1} - {0, *averaged}:
        if (
            outputs.ndim > 1
            and outputs.shape[axis] > 1
            and bool(outputs.float().logsumexp(axis).abs().amax() < NORMALISED)
        ):
            return lambda values: values.log_softmax(axis)
    return lambda values: values


def _lowest_losses(loss: Callable[[torch.Tensor], torch.Tensor], constant: torch.Tensor) -> list[float]:
    """The losses of constant predictions on the way from this one to the best."""
    constant = constant.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([constant], max_iter=20, line_search_fn="strong_wolfe")
    found = []

    def closure() -> torch.Tensor:
        value = loss(constant).float().mean()
        (slope,) = torch.autograd.grad(value, constant, allow_unused=True)  # not backward: a loss may have weights
        constant.grad = torch.zeros_like(constant) if slope is None else slope
        found.append(value.item())
        if not math.isfinite(found[-1]):
            raise ArithmeticError("no constant prediction has a finite loss")
        return value

    # Not every loss depends on the outputs alone, has a derivative or is finite everywhere.
    with contextlib.suppress(ArithmeticError, RuntimeError, IndexError):
        optimizer.step(closure)
    return found


def sample_losses(loss, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor | None:
    """The loss of each sample: one call with `reduction="none"` where that is possible, else one call per sample.

    None where single samples have no loss, as in a loss that compares the samples of a batch with each other.
    """
    if loss is nn.functional.cross_entropy and outputs.ndim == 2:
        return loss(outputs, targets, reduction="none")
    try:
        return torch.stack([loss(outputs[i : i + 1], targets[i : i + 1]).mean() for i in range(len(targets))])
    except (RuntimeError, ValueError, IndexError):
        return None


def dead_share(activation: torch.Tensor) -> torch.Tensor:
    """Share of units that are zero on every sample."""
    return (by_unit(activation).abs().amax(0) <= SILENT).float().mean()


def by_unit(activation: torch.Tensor) -> torch.Tensor:
    """One column per unit: the channels of an image, else the last axis."""
    if activation.ndim < 2:
        return activation.reshape(-1, 1)
    units = activation.transpose(1, -1) if activation.ndim == 4 else activation
    return units.flatten(0, -2)


def twin_share(activation: torch.Tensor) -> torch.Tensor:
    """Share of units that are not dead and compute the same as another unit."""
    units = by_unit(activation[:HISTOGRAM_SAMPLES])
    weights = torch.linspace(1, 2, len(units), device=units.device)  # permuted activations sum differently
    sums, size = weights @ units, (weights @ units.abs()).clamp_min(SILENT)
    order = sums.argsort()
    close = sums[order].diff().abs() <= TWIN * size[order][1:]
    loud = size[order] > SILENT
    false = torch.zeros(1, dtype=torch.bool, device=units.device)
    return ((torch.cat([false, close]) | torch.cat([close, false])) & loud).float().mean()


def histogram(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Counts in equal bins between the smallest and the largest value, without synchronising."""
    low, high = values.aminmax()
    place = ((values - low) / (high - low).clamp_min(1e-30) * BINS).nan_to_num_(0).clamp_(0, BINS - 1).long()
    counts = torch.zeros(BINS, device=values.device).scatter_add_(0, place.flatten(), torch.ones_like(values).flatten())
    return counts, torch.stack([low, high])


def batch_softmax_distance(outputs: torch.Tensor) -> torch.Tensor:
    """How far outputs are from a softmax over the batch, which sums to 1, or its logarithm: 0 for these two."""
    some = outputs.flatten(1)[:, :COLUMNS]
    return torch.minimum((some.sum(0) - 1).abs().amax(), some.logsumexp(0).abs().amax())


def entropy(attention: torch.Tensor) -> torch.Tensor:
    """Mean entropy of each head's attention in nats: ln(tokens) attends to all alike, 0 to one token."""
    return -(attention * attention.clamp_min(1e-30).log()).sum(-1).mean((0, 2))
