"""Training loops of every kind that people write, small enough to be trained a thousand times."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from hypothesis import strategies as some
from torch import nn
from torch.nn import functional as F

ROWS, FEATURES, TOKENS, WORDS, CLASSES = 6, 5, 4, 11, 3
IGNORED = -100


@dataclasses.dataclass
class Output:
    hidden: torch.Tensor
    logits: torch.Tensor
    note: str = "words are outputs too"


class ModelOutput(dict):
    """As Hugging Face's: a dictionary whose entries are attributes too."""

    __getattr__ = dict.__getitem__


class Graph:
    """As the batches of graph libraries: an object with attributes."""

    def __init__(self, x, edges, y):
        self.x, self.edges, self.y = x, edges, y

    def __len__(self):
        return 3


class Net(nn.Module):
    """A body for floats or tokens, an activation, a head, and the outputs in some structure."""

    def __init__(self, body: nn.Module, width: int, outputs: int, structure: str):
        super().__init__()
        self.body, self.activation, self.head, self.structure = body, nn.ReLU(), nn.Linear(width, outputs), structure

    def forward(self, x, more=None, labels=None):
        hidden = self.body(x)
        hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        hidden = hidden.abs() if hidden.is_complex() else hidden
        if more is not None:
            hidden = hidden + more.float().mean()
        logits = self.head(self.activation(hidden))
        return STRUCTURES[self.structure](hidden, logits)


class GraphNet(nn.Module):
    """Takes one object, and returns a list of tensors of different lengths."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, 7), nn.Linear(7, CLASSES)

    def forward(self, graph):
        return self.last(torch.tanh(self.first(graph.x)[graph.edges].mean(0)))


class ComplexLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(FEATURES, 7, dtype=torch.complex64) * 0.3)

    def forward(self, x):
        return x.to(torch.complex64) @ self.weight


STRUCTURES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "tensor": lambda hidden, logits: logits,
    "tuple": lambda hidden, logits: (logits, hidden),
    "nested": lambda hidden, logits: (None, [{"a": logits}, (hidden,)]),
    "dict": lambda hidden, logits: {"hidden": hidden, "logits": logits},
    "dataclass": lambda hidden, logits: Output(hidden, logits),
    "model_output": lambda hidden, logits: ModelOutput(logits=logits, hidden=hidden),
}


def logits_of(output: Any) -> torch.Tensor:
    """What the loop itself takes from the outputs."""
    if isinstance(output, Mapping):
        return output["logits"]
    if isinstance(output, Output):
        return output.logits
    if isinstance(output, tuple) and output[0] is None:
        return output[1][0]["a"]
    return output[0] if isinstance(output, tuple) else output


BODIES: dict[str, Callable[[], tuple[nn.Module, int, bool]]] = {  # module, width, whether it takes tokens
    "linear": lambda: (nn.Linear(FEATURES, 7), 7, False),
    "batch_norm": lambda: (nn.Sequential(nn.Linear(FEATURES, 7), nn.BatchNorm1d(7)), 7, False),
    "dropout": lambda: (nn.Sequential(nn.Linear(FEATURES, 7), nn.Dropout(0.3)), 7, False),
    "double": lambda: (nn.Sequential(nn.Linear(FEATURES, 7)), 7, False),
    "bfloat16": lambda: (nn.Sequential(nn.Linear(FEATURES, 7), nn.ReLU()), 7, False),
    "lazy": lambda: (nn.Sequential(nn.LazyLinear(7), nn.LazyBatchNorm1d(), nn.ReLU()), 7, False),
    "no_entries": lambda: (NoEntries(), 7, False),
    "complex": lambda: (ComplexLayer(), 7, False),
    "shared": lambda: (shared(), 7, False),
    "frozen": lambda: (frozen(), 7, False),
    "embedding": lambda: (nn.Embedding(WORDS, 7), 7, True),
    "sparse_embedding": lambda: (nn.Embedding(WORDS, 7, sparse=True), 7, True),
    "lstm": lambda: (nn.Sequential(nn.Embedding(WORDS, 6), nn.LSTM(6, 7, batch_first=True)), 7, True),
    "unused": lambda: (Unused(), 7, False),
}


FORMATS = {"double": torch.float64, "bfloat16": torch.bfloat16}  # of the nets whose weights are not float32


def shared() -> nn.Module:
    layer = nn.Linear(7, 7)
    return nn.Sequential(nn.Linear(FEATURES, 7), layer, nn.Sigmoid(), layer)


def frozen() -> nn.Module:
    body = nn.Sequential(nn.Linear(FEATURES, 7), nn.Tanh(), nn.Linear(7, 7))
    body[0].requires_grad_(False)
    return body


class NoEntries(nn.Module):
    """A parameter without entries, as the part of a small layer that one of several processes holds."""

    def __init__(self):
        super().__init__()
        self.layer, self.none = nn.Linear(FEATURES, 7), nn.Parameter(torch.zeros(0, 7))

    def forward(self, x):
        return self.layer(x) + self.none.sum()


class Unused(nn.Module):
    """A layer and an activation that the forward pass does not call."""

    def __init__(self):
        super().__init__()
        self.used, self.unused, self.activation = nn.Linear(FEATURES, 7), nn.Linear(3, 2), nn.GELU()

    def forward(self, x):
        return self.used(x)


TARGETS = ("classes", "ignored", "one_hot", "soft", "multi_label", "regression", "none")
BATCHES = ("pair", "list", "dict", "three_parts", "no_targets", "not_given")
LOSSES = ("tensor", "float", "one_entry", "per_sample")
LOOPS = ("plain", "zero_after", "accumulate", "closure", "lbfgs", "skip_step", "set_to_none_false", "retain")
PROBES = ("none", "pair", "dict", "inputs_only")


@dataclasses.dataclass
class Program:
    """One loop, as chosen; `run` trains it, with or without a watch."""

    body: str
    structure: str
    target: str
    batch: str
    loss: str
    loop: str
    probe: str
    optimizer: str
    every: int
    validation: str
    empty_batch: bool
    wrapped: str
    lr: float

    @property
    def takes_tokens(self) -> bool:
        return BODIES[self.body]()[2]

    def build(self) -> tuple[nn.Module, nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        body, width, _ = BODIES[self.body]()
        net = Net(body, width, CLASSES, self.structure)
        net = net.to(FORMATS.get(self.body))
        trained = [weight for weight in net.parameters() if weight.requires_grad]
        optimizer: torch.optim.Optimizer
        if self.loop == "lbfgs":
            optimizer = torch.optim.LBFGS(trained, lr=self.lr, max_iter=3)
        elif self.body == "sparse_embedding":
            optimizer = torch.optim.SGD(trained, lr=self.lr)
        else:
            optimizer = getattr(torch.optim, self.optimizer)(trained, lr=self.lr)
        called: nn.Module = nn.DataParallel(net) if self.wrapped == "data_parallel" else net
        return net, called, optimizer

    def data(self, step: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        random = torch.Generator().manual_seed(step)
        rows = 0 if self.empty_batch and step == 5 and self.body not in ("batch_norm", "lazy") else ROWS - (step == 4)
        if self.takes_tokens:
            x = torch.randint(WORDS, (rows, TOKENS), generator=random)
            shape = (rows, TOKENS)
        else:
            x = torch.randn(rows, FEATURES, generator=random).to(FORMATS.get(self.body))
            shape = (rows,)
        classes = torch.randint(CLASSES, shape, generator=random)
        if self.target == "ignored":
            classes[..., :1] = IGNORED
        if self.target in ("classes", "ignored"):
            return x, classes
        if self.target == "none":
            return x, None
        if self.target == "one_hot":
            return x, F.one_hot(classes, CLASSES)
        if self.target == "multi_label":
            return x, torch.randint(2, (*shape, CLASSES), generator=random).to(
                x.dtype if x.is_floating_point() else None
            )
        values = torch.rand(*shape, CLASSES, generator=random)
        values = values.to(x.dtype) if x.is_floating_point() else values
        return x, values.softmax(-1) if self.target == "soft" else 3 * values

    def loss_of(self, output: Any, y: torch.Tensor | None, reduction: str = "mean") -> torch.Tensor:
        logits = logits_of(output)
        flat = logits.reshape(-1, CLASSES)
        if y is None:
            return flat.square().mean() if reduction == "mean" else flat.square().mean(1)
        if self.target in ("classes", "ignored"):
            return F.cross_entropy(flat, y.reshape(-1), ignore_index=IGNORED, reduction=reduction)
        y = y.reshape(-1, CLASSES).to(flat.dtype)
        if self.target in ("one_hot", "soft"):
            return F.cross_entropy(flat, y, reduction=reduction)
        each = F.binary_cross_entropy_with_logits if self.target == "multi_label" else F.mse_loss
        found = each(flat, y, reduction="none").mean(1)
        return found.mean() if reduction == "mean" else found

    def batch_of(self, x: torch.Tensor, y: torch.Tensor | None) -> Any:
        mask = torch.ones(len(x))
        return {
            "pair": (x, y), "list": [x, y], "dict": {"x": x, "more": mask, "labels": y}, "three_parts": (x, mask, y),
            "no_targets": x, "not_given": None,
        }[self.batch]  # fmt: skip

    def told(self, loss: torch.Tensor, each: torch.Tensor) -> Any:
        return {
            "tensor": loss, "float": float(loss), "one_entry": loss.reshape(1), "per_sample": each.detach(),
        }[self.loss]  # fmt: skip

    def probe_of(self) -> Any:
        x, y = self.data(1000)
        return {"none": None, "pair": (x, y), "dict": {"x": x, "labels": y}, "inputs_only": (x, None)}[self.probe]

    def run(self, watch: Callable[..., Any], steps: int = 12) -> tuple[Any, nn.Module]:
        """Train. `watch` is labkit's, or `unwatched`."""
        net, called, optimizer = self.build()
        with watch(called, optimizer, probe=self.probe_of(), every=self.every) as record:
            for step in range(steps):
                x, y = self.data(step)
                self.step(called, optimizer, record, step, x, y)
                if step % 5 == 4:
                    self.validate(called, record, step)
        return record, net

    def step(self, net, optimizer, record, step, x, y) -> None:
        def closure() -> torch.Tensor:
            optimizer.zero_grad(set_to_none=self.loop != "set_to_none_false")
            loss = self.forward(net, x, y)
            loss.backward()
            return loss

        if self.loop in ("closure", "lbfgs"):
            loss = optimizer.step(closure)
        else:
            if self.loop not in ("zero_after", "accumulate"):
                optimizer.zero_grad(set_to_none=self.loop != "set_to_none_false")
            loss = self.forward(net, x, y)
            loss.backward(retain_graph=self.loop == "retain")
            if not (self.loop == "skip_step" and step == 3) and not (self.loop == "accumulate" and step % 2):
                optimizer.step()
            if self.loop in ("zero_after", "accumulate") and not step % 2:
                optimizer.zero_grad()
        each = self.loss_of(net(x), y, "none")
        record.step(self.told(loss, each), batch=self.batch_of(x, y))

    def forward(self, net, x, y) -> torch.Tensor:
        return self.loss_of(net(x, more=torch.ones(2)) if self.batch == "three_parts" else net(x), y)

    def validate(self, net, record, step) -> None:
        net.eval()
        with torch.no_grad():
            loss = self.loss_of(net(self.data(2000)[0]), self.data(2000)[1])
        net.train()
        results = {
            "both": {"loss": loss, "accuracy": 0.5},
            "changing": {"loss": loss.item()} if step < 6 else {"accuracy": torch.tensor(0.25)},
            "other": {"f1": 0.5, "loss": loss},
            "none": {},
        }[self.validation]
        if results:
            record.validation(**results)


programs = some.builds(
    Program,
    body=some.sampled_from(sorted(BODIES)),
    structure=some.sampled_from(sorted(STRUCTURES)),
    target=some.sampled_from(TARGETS),
    batch=some.sampled_from(BATCHES),
    loss=some.sampled_from(LOSSES),
    loop=some.sampled_from(LOOPS),
    probe=some.sampled_from(PROBES),
    optimizer=some.sampled_from(("SGD", "Adam", "AdamW", "RMSprop")),
    every=some.sampled_from((1, 1, 3)),
    validation=some.sampled_from(("both", "changing", "other", "none")),
    empty_batch=some.booleans(),
    wrapped=some.sampled_from(("no", "no", "data_parallel")),
    lr=some.sampled_from((1e-3, 0.1, 1e3)),  # the last one diverges
)


class Unwatched(contextlib.AbstractContextManager):
    """Stands where a watch would, and does nothing."""

    def __exit__(self, *_: object) -> None:
        pass

    def step(self, *_: object, **__: object) -> None:
        pass

    def validation(self, **_: object) -> None:
        pass


def unwatched(*_: object, **__: object) -> Unwatched:
    return Unwatched()
