"""The sample log: which samples the net was trained and validated on, with which labels and in which mode."""

import contextlib
import functools
import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from labkit.recording.facts import MOST_CLASSES
from labkit.recording.leak_tests import best_column
from labkit.recording.nested import Call, first_tensor, given, real

PIXELS = 128  # of each sample, at fixed random places: enough to distinguish any two of the first 10,000 digits
TOGETHER = 1024  # samples that are fingerprinted together: eight batches of 128, half a megabyte
KEPT = 2**20  # samples of a run that the facts are about: the first ones, 16 MB
PAIRED = 20_000  # samples that are compared with the others of their batch
# Columns of training and validation inputs are compared from this many samples on. Their means or deviations differ if
# they do so by this many standard errors, and by this share of the usual deviation.
COMPARABLE, ERRORS, MATTERS = 64, 6.0, 0.1
AT_ONCE = 128  # of these in float64 at once: 128 KB, which stays in the cache
OUTLIER = 10  # times the usual largest value of a sample; digits and photographs here stay below 2.2 times
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
CLASS_TYPES = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
SHARDED = ("FSDPModule", "FullyShardedDataParallel")  # by name: to import them takes a second
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


@dataclass
class Pass:
    """One forward pass of the net."""

    training: bool  # was every batch norm and dropout in train mode? Where there is none: was the net?
    with_gradients: bool
    sample: torch.Tensor | None  # (samples, PIXELS)


class SampleLog:
    """Records the net's forward passes; `step` and `evaluation` say what they were for."""

    def __init__(self, model: nn.Module, optimizers, called: nn.Module | None = None):
        self.model, self.optimizers, self.called = model, optimizers, called or model
        named = list(model.named_modules())
        self.batch_norms = [name for name, _ in batch_norms(model)]
        self.statistics = running_statistics(model)  # before the first step
        self.dropouts = [name for name, module in named if isinstance(module, DROPOUTS) and module.p > 0]
        sensitive = {*self.batch_norms, *self.dropouts}
        self.switches = [module for name, module in named if name in sensitive] or [model]
        self.foreign: list[list[int]] | None = None
        self.passes: list[Pass] = []
        self.train_modes: list[bool] = []
        self.labels: list[torch.Tensor] = []
        self.trained = Book(keeps_first=True)
        self.columns: Columns | None = None  # of the first training samples
        self.best_column = math.nan  # of the same samples
        self.early = Samples()  # of the chapters before
        self.validated: list[Book] = []  # of the first and of the last validation
        self.evaluations: list[dict] = []
        self.listening = True
        self.hooks: list[Any] = []
        self.latest: Call | None = None  # the last forward pass with gradients
        self.latest_answer: Any = None  # what the net returned in it; of the first step only

    def attach(self, protect=lambda hook: hook) -> None:
        """`protect` is put around the hook: what it raises must not reach the forward pass."""
        self.hooks = [
            self.called.register_forward_pre_hook(protect(self._note), with_kwargs=True),
            self.called.register_forward_hook(protect(self._note_outputs)),
        ]

    def detach(self) -> None:
        for hook in self.hooks:
            hook.remove()
        self.latest = self.latest_answer = None

    @contextlib.contextmanager
    def not_listening(self):
        """For the forward passes of the instruments themselves."""
        before, self.listening = self.listening, False
        try:
            yield
        finally:
            self.listening = before

    def _note(self, _, inputs, named) -> None:
        if self.listening:
            training = all(module.training for module in self.switches)
            if torch.is_grad_enabled():
                self.latest = Call(inputs, named)
            x = given(inputs, named)
            sample = pixels(real(x)) if x is not None and x.ndim > 1 and x.numel() else None
            self.passes.append(Pass(training, torch.is_grad_enabled(), sample))

    def _note_outputs(self, _, __, output) -> None:
        """What the outputs depend on. Not the loss, which may ask a second net: a critic, a teacher, a target."""
        if not (self.listening and torch.is_grad_enabled()):
            return
        self.latest_answer = output
        outputs = first_tensor(output) if self.foreign is None else None
        if outputs is not None and outputs.grad_fn is not None:
            self.foreign = foreign_weights(outputs, self.model)

    def step(self, loss: torch.Tensor, labels) -> None:
        """The forward passes since the last call belong to this training step."""
        passes = [each for each in self.passes if each.with_gradients] or self.passes[-1:]
        self.passes = []
        self.train_modes.append(all(each.training for each in passes))
        self.trained.write([each.sample for each in passes if each.sample is not None])
        if self.foreign is None:  # the loop calls parts of the net
            self.foreign = foreign_weights(loss, self.model)
        while len(self.hooks) > 1:  # what the outputs depend on is known
            self.hooks.pop().remove()
        if torch.is_tensor(labels) and labels.ndim and labels.numel() == len(labels):
            kind = torch.float32 if labels.is_floating_point() else labels.dtype
            if kind in (*CLASS_TYPES, torch.float32):  # a copy: a loop may use the same memory again
                self.labels.append(labels.detach().flatten().to(kind, copy=True))

    def evaluation(self) -> dict:
        """The forward passes since the last call belong to a validation: its mode and its inputs."""
        passes, self.passes = self.passes, []
        samples = [each.sample for each in passes if each.sample is not None]
        if not samples:
            return {}
        book = Book()
        book.write(samples)
        book.close()
        self.validated = [*self.validated[:1], book]
        values = torch.cat([sample.flatten() for sample in samples]).float()  # of batches of any width
        return {
            "val_train_mode": float(np.mean([each.training for each in passes])),
            "val_with_gradients": float(np.mean([each.with_gradients for each in passes])),
            "val_input_mean": values.mean(),
            "val_input_std": values.std(),
        }

    def traces(self) -> dict[str, np.ndarray]:
        """Per step: train mode or not, the largest input, the share of outliers, the entropy of the labels."""
        _, largest, lengths = self.trained.read()
        traces = {"train_mode": np.array(self.train_modes, dtype=np.float64)}
        if len(lengths) == len(self.train_modes) and len(lengths):
            some = lengths > 0  # an empty batch has no largest input
            starts = (np.cumsum(lengths) - lengths)[some]
            high, outliers = np.full((2, len(lengths)), np.nan)
            if len(starts):
                high[some] = np.maximum.reduceat(largest, starts)
                outliers[some] = np.add.reduceat(outlying(largest), starts) / lengths[some]
            traces |= {"input_max": high, "input_outliers": outliers}
        labels = self._labels()
        if labels and len(labels) == len(self.train_modes):
            traces["label_entropy"] = np.array([entropy(np.bincount(each)) for each in labels])
        return traces

    def facts(self) -> dict:
        """What is known about the data and the optimizer at the end."""
        so_far = self._so_far()
        facts = {
            "batch_norms": self.batch_norms,
            "batch_norms_unmoved": self._unmoved(),
            "dropouts": self.dropouts,
            "dropout_rates": [float(self.model.get_submodule(name).p) for name in self.dropouts],
            "not_in_optimizer": not_in_optimizer(self.model, self.optimizers),
            "unregistered": self.foreign or [],
            "batch_length": int(np.median(so_far.lengths)) if len(so_far.lengths) else 0,
            "different_samples": len(np.unique(so_far.prints)),
            "order_repeats": order_repeats(so_far.prints),
            "fresh_steps": fresh_steps(so_far),
        } | self._validation_facts(so_far)
        if len(so_far.labels) and so_far.aligned:
            facts["label_shares"] = (np.bincount(so_far.labels) / len(so_far.labels)).round(6).tolist()
            facts["relabelled"] = relabelled(so_far.prints, so_far.labels)
        self.trained.read()  # so that the first samples are known
        column = self._best_column()
        return facts if math.isnan(column) else facts | {"best_column": column}

    def _best_column(self) -> float:
        """How far the column that depends most on the target does so, in the first samples that were trained on."""
        first, aligned = self.trained.first, sum(self.trained.lengths) == sum(map(len, self.labels))
        if first is None or not aligned or not math.isnan(self.best_column):
            return self.best_column
        return best_column(first, torch.cat(self.labels)[: len(first)].to(first.device))

    def _unmoved(self) -> list[str]:
        """The batch norms whose running mean and variance are bit by bit what they were before the first step."""
        now = running_statistics(self.model)
        return [name for name, before in self.statistics.items() if name in now and torch.equal(before, now[name])]

    def classes(self) -> int:
        """How many classes there seem to be: the largest label and one more; 0 where labels are not classes."""
        return int(self._so_far().labels.max(initial=-1)) + 1

    def begin_chapter(self) -> None:
        """The traces have been read: only what the facts need is kept of the steps so far."""
        self.early = self._so_far()
        self.columns = self.columns or self.trained.columns
        self.best_column = self._best_column()
        self.trained, self.train_modes, self.labels = Book(), [], []

    def _so_far(self) -> "Samples":
        prints, _, lengths = self.trained.read()
        labels = self._labels()
        return self.early.then(prints, np.concatenate(labels) if labels else NO_LABELS, lengths)

    def _labels(self) -> list[np.ndarray]:
        """The classes of each step, also as floats of 0 and 1; none where labels are no classes: -1 and +1, or ids."""
        together = torch.cat(self.labels).cpu().numpy() if self.labels else np.zeros(0, dtype=int)
        if together.dtype.kind == "f" and np.array_equal(np.unique(together), (0.0, 1.0)):
            together = together.astype(int)
        if together.dtype.kind not in "iu" or not len(together) or together.min() < 0 or together.max() >= MOST_CLASSES:
            return []
        return np.split(together, np.cumsum([len(each) for each in self.labels])[:-1])

    def _validation_facts(self, trained: "Samples") -> dict:
        """The shares of the last validation's samples that were trained on (and how many would be by chance), and that
        were not in the first one."""
        if not self.validated:
            return {}
        first, last = self.validated[0].read()[0], self.validated[-1].read()[0]
        changed = float(1 - np.isin(last, first).mean())
        columns = self.columns or self.trained.columns
        distinct = (
            len(np.unique(trained.prints[: columns.count])) if columns else 0
        )  # samples that came again count once
        apart = columns_apart(columns and replace(columns, count=distinct), self.validated[0].columns)
        return ({} if apart is None else {"val_columns_apart": apart}) | {
            "val_trained_on": float(np.isin(last, trained.prints).mean()),
            "val_trained_on_by_chance": overlap_by_chance(trained),
            "val_changed": changed,
        }


NO_LABELS = np.zeros(0, dtype=int)


@dataclass
class Samples:
    """The first KEPT samples of a run: fingerprints, classes (none where labels are not classes), batch sizes."""

    prints: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    labels: np.ndarray = field(default_factory=lambda: NO_LABELS)
    lengths: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=int))
    aligned: bool = True  # one label for each fingerprint

    def then(self, prints: np.ndarray, labels: np.ndarray, lengths: np.ndarray) -> "Samples":
        """These, and those of the steps after them."""
        later = {"prints": prints, "labels": labels, "lengths": lengths}
        kept = {name: np.concatenate([getattr(self, name), each])[:KEPT] for name, each in later.items()}
        return Samples(**kept, aligned=self.aligned and len(prints) == len(labels))


@dataclass
class Columns:
    """Mean and standard deviation of each recorded value over some samples."""

    mean: torch.Tensor
    deviation: torch.Tensor
    count: int

    @classmethod
    def of(cls, values: torch.Tensor) -> "Columns":
        deviation, mean = torch.std_mean(values, dim=0, correction=0)
        return cls(mean, deviation, len(values))


def columns_apart(trained: Columns | None, validated: Columns | None) -> float | None:
    """The share of columns whose mean or deviation differs by more than sampling explains; None if not comparable."""
    if trained is None or validated is None or trained.mean.shape != validated.mean.shape:
        return None
    if min(trained.count, validated.count) < COMPARABLE:
        return None
    one, other = trained.deviation, validated.deviation
    least = MATTERS * torch.stack([one, other]).square().mean().sqrt()
    means, deviations = (trained.mean - validated.mean).abs(), (one - other).abs()
    error = (one.square() / trained.count + other.square() / validated.count).sqrt()
    moved = means > torch.maximum(ERRORS * error, least)
    stretched = deviations > torch.maximum(ERRORS * error, least)
    return float((moved | stretched).float().mean())


class Book:
    """Fingerprints of samples and their largest values: written on the device, and read at the end.

    Samples wait until there are TOGETHER of them: a small operation costs more to call than to carry out, and one
    batch takes as many calls as eight.
    """

    def __init__(self, keeps_first: bool = False):
        self.keeps_first = keeps_first
        self.waiting: list[torch.Tensor] = []
        self.room: torch.Tensor | None = None
        self.prints: list[torch.Tensor] = []
        self.largest: list[torch.Tensor] = []
        self.lengths: list[int] = []
        self.columns: Columns | None = None  # of the samples that were settled first
        self.first: torch.Tensor | None = None  # these samples, if they are to be kept

    def write(self, samples: list[torch.Tensor]) -> None:
        """The samples of one step or of one validation."""
        for sample in samples:
            if self.waiting and sample.shape[1] != self.waiting[0].shape[1]:
                self._settle()
            self.waiting.append(sample)
        self.lengths.append(sum(map(len, samples)))
        if sum(map(len, self.waiting)) >= TOGETHER:
            self._settle()

    def close(self) -> None:
        """Nothing more will be written: give the memory for samples back."""
        self._settle()
        self.room = None

    def _settle(self) -> None:
        if self.waiting:
            values = torch.cat(self.waiting, out=self._room(self.waiting))
            if self.columns is None:
                self.columns, self.first = Columns.of(values), values.clone() if self.keeps_first else None
            self.prints.append(fingerprints(values))
            self.largest.append(values.abs_().amax(1))
            self.waiting = []

    def _room(self, samples: list[torch.Tensor]) -> torch.Tensor:
        """Memory for these samples: the same each time, because the system is slow to hand out half a megabyte."""
        shape = sum(map(len, samples)), samples[0].shape[1]
        if self.room is None or self.room.device != samples[0].device or self.room.numel() < shape[0] * shape[1]:
            self.room = samples[0].new_empty(shape[0] * shape[1])
        return self.room[: shape[0] * shape[1]].view(shape)

    def read(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(fingerprint of every sample, largest value of every sample, samples per entry)."""
        self._settle()
        lengths = np.array(self.lengths, dtype=int)
        if not self.prints:
            return np.zeros(0, dtype=np.int64), np.zeros(0), lengths
        return torch.cat(self.prints).cpu().numpy(), torch.cat(self.largest).cpu().numpy(), lengths


_places: dict[tuple[int, torch.device], torch.Tensor] = {}


def pixels(x: torch.Tensor) -> torch.Tensor:
    """Some values of each sample, always at the same positions: (samples, at most PIXELS)."""
    flat = x.detach().reshape(len(x), -1)
    key = (flat.shape[1], flat.device)
    if key not in _places:
        order = torch.randperm(flat.shape[1], generator=torch.Generator().manual_seed(0))
        _places[key] = order[:PIXELS].sort().values.to(flat.device)
    return flat.index_select(1, _places[key]).float()


def fingerprints(values: torch.Tensor) -> torch.Tensor:
    """An integer per row that does not depend on the other rows: a weighted sum, rounded to 30 binary places.

    In float64 the order of the additions does not change them. (Exact sums of the bits take ten times as long.)
    """
    dtype = torch.float32 if values.device.type == "mps" else torch.float64  # Apple GPUs have no float64
    keys = _keys(values.shape[1], dtype, values.device)
    sums = [part.to(dtype) @ keys for part in values.split(AT_ONCE)]
    return torch.cat(sums).mul_(2.0**30).nan_to_num_().long()


@functools.cache
def _keys(count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Weights that all differ."""
    return torch.linspace(1, 100, count, dtype=torch.float64).sin_().add_(2).to(device, dtype)


def overlap_by_chance(trained: Samples) -> float:
    """The share of new samples that equal one of the training samples where inputs have few values: tokens, ids, grids.

    Two samples of one batch are drawn independently, and one epoch does not repeat a sample: how often they are equal
    tells how often any two are. Rounded up, by the three cases that a small number of pairs may have missed.
    """
    ends = np.cumsum(trained.lengths)
    batches = np.split(trained.prints[:PAIRED], ends[ends < min(PAIRED, len(trained.prints))])
    pairs = sum(len(each) * (len(each) - 1) / 2 for each in batches)
    if not pairs:
        return 0.0
    counts = np.concatenate([np.unique(each, return_counts=True)[1] for each in batches])
    equal = ((counts * (counts - 1) / 2).sum() + 3) / pairs
    return float(min(1.0, equal * len(np.unique(trained.prints))))


def running_statistics(model: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of running mean and variance of each batch norm that keeps them."""
    kept = {name: (module.running_mean, module.running_var) for name, module in batch_norms(model)}
    return {
        name: torch.stack([mean, variance]).detach()
        for name, (mean, variance) in kept.items()
        if mean is not None and variance is not None and not is_lazy(mean)
    }


def batch_norms(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(name, module) for name, module in model.named_modules() if isinstance(module, BATCH_NORMS)]


def foreign_weights(result: torch.Tensor, model: nn.Module) -> list[list[int]]:
    """Shapes of trainable tensors that the outputs or the loss depend on and that are not parameters of the net.

    None of a net that FSDP shards: it computes with gathered copies of its parameters.
    """
    if any(each.__name__ in SHARDED for module in model.modules() for each in type(module).__mro__):
        return []
    known = {id(weight) for weight in model.parameters()}
    found, seen, todo = [], set(), [result.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) not in known:
            found.append(list(leaf.shape))
        todo += [following for following, _ in node.next_functions]
    return sorted(found)


def not_in_optimizer(model: nn.Module, optimizers) -> list[str]:
    """Names of the parameters that none of the optimizers updates."""
    held = {id(weight) for each in optimizers for group in each.param_groups for weight in group["params"]}
    return [name for name, weight in model.named_parameters() if id(weight) not in held]


def fresh_steps(samples: Samples) -> int:
    """How many steps there were before most samples of a batch had been in an earlier one: the first pass."""
    ends = np.cumsum(samples.lengths)
    whole = int(np.searchsorted(ends, len(samples.prints), side="right"))  # steps of which every sample was kept
    _, first, again = np.unique(samples.prints, return_index=True, return_inverse=True)
    for step, (begin, end) in enumerate(zip(ends[:whole] - samples.lengths[:whole], ends[:whole], strict=True)):
        if end > begin and (first[again[begin:end]] < begin).mean() > 0.5:
            return step
    return whole


def order_repeats(prints: np.ndarray) -> float:
    """Share of samples in the same order as before, from where the first one comes again; 0 if it never does."""
    again = np.flatnonzero(prints[1:] == prints[0]) + 1 if len(prints) else ()
    if not len(again):
        return 0.0
    return float(np.mean(prints[again[0] :] == prints[: -again[0]]))


def relabelled(prints: np.ndarray, labels: np.ndarray) -> float:
    """Share of the repeated samples whose label is not the one they had before."""
    order = np.argsort(prints, kind="stable")
    same = prints[order][1:] == prints[order][:-1]
    other = labels[order][1:] != labels[order][:-1]
    return float((same & other).sum() / max(1, same.sum()))


def outlying(largest: np.ndarray) -> np.ndarray:
    """1 for each sample whose largest value is an outlier among the samples of this run, else 0."""
    finite = largest[np.isfinite(largest)]
    usual = np.median(finite) if len(finite) else np.inf
    return (largest > OUTLIER * usual).astype(np.float64)  # NaN is not an outlier: it is a failure of its own


def entropy(counts: np.ndarray) -> float:
    """In nats: 0 when there is one label only, ln(classes) when all are equally frequent."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
