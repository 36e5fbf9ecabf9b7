"""Retired programs, once held out, on tables: numbers, counts, yes or no, classes, several labels, categories."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.data import DataLoader, IterableDataset

from labkit.diagnosis.evaluation.foreign.programs.tabular import balanced_accuracy
from labkit.diagnosis.evaluation.foreign.setup import (
    Settings,
    Setup,
    generator,
    optimizer_for,
    program,
    r2,
    split_off,
)


def standardised(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / x.std(0)


def validate_in_batches(s: Setup, record: Any, size: int = 64) -> None:
    """Validation in mini-batches: the mean of their losses, and the measure of all outputs together."""
    s.model.eval()
    losses, outputs = [], []
    with torch.no_grad():
        for *x, y in zip(*(each.split(size) for each in s.val), strict=True):
            outputs.append(s.model(*x))
            losses.append(s.loss(outputs[-1], y) * len(y))
    s.model.train()
    s.reached = s.measure(torch.cat(outputs), s.val[-1])
    record.validation(loss=torch.stack(losses).sum() / len(s.val[-1]), **{s.metric: s.reached})


# --- regression ---------------------------------------------------------------------------------------


class ResidualTable(nn.Module):
    """Weight-normed layers with shortcuts, and one output."""

    def __init__(self, columns: int, width: int):
        super().__init__()
        self.lift = weight_norm(nn.Linear(columns, width))
        self.blocks = nn.ModuleList(weight_norm(nn.Linear(width, width)) for _ in range(3))
        self.act, self.out = nn.SiLU(), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.act(self.lift(x))
        for block in self.blocks:
            hidden = hidden + self.act(block(hidden))
        return self.out(hidden).squeeze(1)


def with_closures(s: Setup, watch: Callable) -> None:
    """The optimizer receives a closure that computes the loss and its gradients."""
    with watch(s.model, s.optimizer, probe=s.probe, loss_fn=s.loss) as record:
        for _ in range(s.epochs):
            for x, y in s.epoch():

                def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
                    s.optimizer.zero_grad()
                    loss = s.loss(s.model(x), y)
                    loss.backward()
                    return loss

                loss = s.optimizer.step(closure)
                record.step(loss, batch=(x, y))
            validate_in_batches(s, record)
            s.end_epoch()


@program("regression", {"radam": (4e-3, 2e-3), "adamw": (3e-3,), "momentum": (0.03,)}, (40, 64), (32, 48), 16, 0.7,
         schedules=("halved", "constant", "cosine"), loop=with_closures)  # fmt: skip
def heat_exchanger(seed: int, chosen: Settings) -> Setup:
    """The power of a heat exchanger from its sensors; some training rows are outliers, so the loss is Huber's."""
    g = generator(seed)
    u = torch.rand(1400, 8, generator=g)  # two flows, two temperatures, area, fouling, and two that do not matter
    flows = 0.5 + 1.5 * u[:, :2]
    smaller, ratio = flows.amin(1), (flows.amin(1) / flows.amax(1)).clamp(max=0.98)
    units = (0.5 + 2.5 * u[:, 4]) / (0.5 + 0.5 * u[:, 5]) / smaller
    decay = torch.exp(-units * (1 - ratio))
    power = (1 - decay) / (1 - ratio * decay) * smaller * (30 + 35 * u[:, 2] + 25 * (1 - u[:, 3]))
    y = standardised(power) + 0.05 * torch.randn(1400, generator=g)
    spikes = torch.rand(1400, generator=g) < 0.04
    spikes[-300:] = False
    y = torch.where(spikes, y + 5 * torch.randn(1400, generator=g), y)
    train, val = split_off(300, standardised(u), y)
    model = ResidualTable(8, chosen.width)
    return Setup(
        "regression", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val,
        nn.HuberLoss(delta=0.5), r2, "r2",
    )  # fmt: skip


def explained_deviance(outputs: Tensor, counts: Tensor) -> float:
    """The explained share of the Poisson deviance, at least -1, from the logarithm of the expected counts."""

    def deviance(expected: Tensor) -> Tensor:
        ratio = torch.where(counts > 0, counts * (counts / expected).log(), 0.0)
        return (ratio - counts + expected).mean()

    share = 1 - deviance(outputs.reshape(counts.shape).exp()) / deviance(counts.mean().expand(counts.shape))
    return max(-1.0, share.item())


@program("counts", {"rmsprop": (2e-3, 1e-3), "adam": (5e-3, 3e-3)}, (32, 48, 24), (40, 64), 14, 0.6,
         schedules=("exponential", "constant", "cosine"))  # fmt: skip
def bike_counts(seed: int, chosen: Settings) -> Setup:
    """Bicycles per hour: the net predicts the logarithm of the expected count, the loss is Poisson's."""
    g = generator(seed)
    hour, day = torch.randint(24, (1600,), generator=g), torch.randint(7, (1600,), generator=g)
    rain, warm = torch.rand(1600, generator=g).pow(3), torch.randn(1600, generator=g)
    weekend = (day >= 5).float()
    rush = torch.exp(-((hour - 8.0) ** 2) / 4) + torch.exp(-((hour - 17.0) ** 2) / 6)
    leisure = torch.exp(-((hour - 14.0) ** 2) / 18)
    rate = 0.4 + (1 - weekend) * 2.2 * rush + (0.7 + weekend) * 1.4 * leisure + 0.4 * warm - 2.5 * rain
    counts = torch.poisson(rate.clamp(-1.5, 3.2).exp(), generator=g)
    angle = 6.2832 / 24 * hour
    clock = [angle.sin(), angle.cos(), (2 * angle).sin(), (2 * angle).cos()]
    x = standardised(torch.stack([*clock, weekend, day.float(), rain, warm], 1))
    train, val = split_off(320, x, counts)
    w = chosen.width
    model = nn.Sequential(
        nn.Linear(8, w), nn.Hardswish(), nn.Linear(w, w), nn.Hardswish(), nn.Linear(w, 1), nn.Flatten(0)
    )
    return Setup(
        "counts", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val,
        nn.PoissonNLLLoss(log_input=True), explained_deviance, "explained_deviance",
    )  # fmt: skip


# --- yes or no ----------------------------------------------------------------------------------------


class Gated(nn.Module):
    """Two gated linear units, and one logit."""

    def __init__(self, columns: int, width: int):
        super().__init__()
        self.first, self.second = nn.Linear(columns, 2 * width), nn.Linear(width, 2 * width)
        self.gate, self.norm, self.score = nn.GLU(), nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.gate(self.first(x)))
        return self.score(hidden + self.gate(self.second(hidden)))


def with_averaged_weights(s: Setup, watch: Callable) -> None:
    """Validates an exponential moving average of the weights, and trains on with the weights themselves."""
    average = {name: each.clone() for name, each in s.model.state_dict().items()}
    with watch(s.model, s.optimizer, probe=s.probe, loss_fn=s.loss) as record:
        for _ in range(s.epochs):
            for x, y in s.epoch():
                loss = s.loss(s.model(x), y)
                s.optimizer.zero_grad()
                loss.backward()
                s.optimizer.step()
                for name, each in s.model.state_dict().items():
                    average[name].lerp_(each, 0.05)
                record.step(loss.item(), batch=(x, y))
            own = copy.deepcopy(s.model.state_dict())
            s.model.load_state_dict(average)
            s.validate(record)
            s.model.load_state_dict(own)
            s.end_epoch()


@program("binary", {"adamw": (2e-3, 4e-3), "adam": (3e-3,)}, (32, 48), (48, 32), 20, 0.45,
         schedules=("cosine", "constant"), loop=with_averaged_weights)  # fmt: skip
def loan_defaults(seed: int, chosen: Settings) -> Setup:
    """One of five customers does not pay back; the loss weighs those as much as the others."""
    g = generator(seed)
    income, debt = torch.randn(1800, generator=g).exp(), torch.rand(1800, generator=g) * 1.4
    late, months = torch.poisson(torch.full((1800,), 0.8), generator=g), torch.rand(1800, generator=g) * 240
    age, others = 20 + 45 * torch.rand(1800, generator=g), torch.randn(1800, 5, generator=g)
    burden = debt / income.sqrt()
    risk = 3.0 * (burden > 0.8) + 1.6 * late * (months < 100) - 0.04 * (age - 45).abs() + others[:, 0] * others[:, 1]
    default = (risk + 0.4 * torch.randn(1800, generator=g) > risk.quantile(0.8)).float()
    x = torch.cat([torch.stack([income.log(), debt, late, months, age], 1), others], 1)
    train, val = split_off(400, standardised(x), default)
    weight = (1 - train[-1]).sum() / train[-1].sum()
    model = Gated(10, chosen.width)

    def weighted(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs.squeeze(-1), targets, pos_weight=weight)

    return Setup(
        "binary", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, weighted,
        balanced_accuracy, "balanced_accuracy", floor=0.5,
    )  # fmt: skip


# --- several classes ----------------------------------------------------------------------------------


def mean_recall(outputs: Tensor, targets: Tensor) -> float:
    """Mean over the classes of the share of their samples that is recognised."""
    said = outputs.argmax(-1)
    return torch.stack([(said[targets == each] == each).float().mean() for each in targets.unique()]).mean().item()


def until_it_stops_improving(s: Setup, watch: Callable) -> None:
    """Early stopping by the validation loss; at the end the best weights are restored."""
    best, best_state, waited = float("inf"), copy.deepcopy(s.model.state_dict()), 0
    with watch(s.model, s.optimizer, probe=s.probe, loss_fn=s.loss) as record:
        for _ in range(s.epochs):
            s.model.train()
            for x, y in s.epoch():
                s.optimizer.zero_grad(set_to_none=True)
                loss = s.loss(s.model(x), y)
                loss.backward()
                s.optimizer.step()
                record.step(loss, batch=(x, y))
            loss = s.evaluate()
            record.validation(loss=loss, **{s.metric: s.reached})
            s.end_epoch()
            waited += 1
            if loss < best:
                best, best_state, waited = loss, copy.deepcopy(s.model.state_dict()), 0
            if waited == 6:
                break
    s.model.load_state_dict(best_state)
    s.evaluate()


@program("classes", {"adagrad": (0.03, 0.02), "adam": (4e-3, 2e-3)}, (48, 72), (50, 32), 24, 0.6,
         schedules=("constant", "halved"), loop=until_it_stops_improving)  # fmt: skip
def forest_cover(seed: int, chosen: Settings) -> Setup:
    """Five kinds of forest of unequal size, from the terrain and the soil; class weights and label smoothing."""
    g = generator(seed)
    terrain, soil = torch.randn(1800, 6, generator=g), torch.randint(8, (1800,), generator=g)
    taste, fertile = torch.randn(5, 6, generator=g), torch.randn(5, 8, generator=g)
    bends = terrain**2 - 1
    liking = 1.2 * terrain @ taste.T + 0.8 * bends @ taste.roll(1, 1).T + 1.5 * fertile[:, soil].T
    kinds = (liking + torch.tensor([2.5, 1.5, 0.5, 0.0, -0.5])).argmax(1)
    train, val = split_off(400, torch.cat([terrain, F.one_hot(soil, 8).float()], 1), kinds)
    weight = 1 / kinds[:-400].bincount(minlength=5).clamp(min=1).sqrt()
    w = chosen.width
    model = nn.Sequential(
        nn.Linear(14, w), nn.LayerNorm(w), nn.LeakyReLU(0.1), nn.Dropout(0.1),
        nn.Linear(w, w), nn.LayerNorm(w), nn.LeakyReLU(0.1), nn.Linear(w, 5),
    )  # fmt: skip
    return Setup(
        "classes", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val,
        nn.CrossEntropyLoss(weight=weight / weight.mean(), label_smoothing=0.05), mean_recall, "mean_recall", floor=0.2,
    )  # fmt: skip


# --- several labels -----------------------------------------------------------------------------------


class Stream(IterableDataset):
    """The batches of one epoch, for a DataLoader."""

    def __init__(self, s: Setup):
        self.s = s

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return iter(self.s.epoch())


def from_a_loader(s: Setup, watch: Callable) -> None:
    """A DataLoader with a collate function that names the parts of a batch."""
    loader = DataLoader(Stream(s), batch_size=None, collate_fn=lambda both: {"x": both[0], "y": both[1]})
    with watch(s.model, s.optimizer, probe=s.probe, loss_fn=s.loss) as record:
        for _ in range(s.epochs):
            s.model.train()
            for batch in loader:
                loss = s.loss(s.model(batch["x"]), batch["y"])
                loss.backward()
                s.optimizer.step()
                s.optimizer.zero_grad()
                record.step(loss, batch=batch)
            validate_in_batches(s, record, size=100)
            s.end_epoch()


class Sites(nn.Module):
    """Two hidden layers with batch norm; the second sees the inputs again."""

    def __init__(self, width: int):
        super().__init__()
        self.one = nn.Sequential(nn.Linear(40, width), nn.BatchNorm1d(width), nn.Mish(), nn.Dropout(0.15))
        self.two = nn.Sequential(nn.Linear(40 + width, width), nn.BatchNorm1d(width), nn.Mish())
        self.labels = nn.Linear(width, 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.labels(self.two(torch.cat([x, self.one(x)], 1)))


@program("multi-label", {"nadam": (2e-3, 1e-3), "adamw": (3e-3,)}, (48, 64), (32, 64), 12, 0.5,
         schedules=("constant", "cosine", "exponential"), loop=from_a_loader)  # fmt: skip
def protein_sites(seed: int, chosen: Settings) -> Setup:
    """Where in the cell is a protein? Three regions with two parts each: a part is only there if its region is."""
    g = generator(seed)
    regions = torch.rand(1500, 3, generator=g) < 0.45
    parts = (torch.rand(1500, 6, generator=g) < 0.5) & regions.repeat_interleave(2, 1)
    labels = torch.cat([regions, parts], 1).float()
    signals = torch.rand(9, 40, generator=g).pow(4)
    counts = torch.poisson(6 * (labels @ signals + 0.2), generator=g)
    train, val = split_off(300, standardised((counts + 1).log()), labels)
    model = Sites(chosen.width)

    def softened(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, 0.94 * targets + 0.03)

    return Setup(
        "multilabel", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, softened,
        balanced_accuracy, "balanced_accuracy", floor=0.5,
    )  # fmt: skip


# --- categories ---------------------------------------------------------------------------------------


class Rents(nn.Module):
    """A factorisation machine: all fields become vectors, and their products are added up; a small net on top."""

    def __init__(self, width: int):
        super().__init__()
        self.district, self.kind, self.floor = (nn.Embedding(size, 10) for size in (40, 6, 9))
        self.numbers = nn.Linear(3, 10)
        self.norm, self.deep = nn.LayerNorm(50), nn.Sequential(nn.Linear(50, width), nn.ELU(), nn.Linear(width, 1))

    def forward(self, numbers: Tensor, codes: Tensor) -> Tensor:
        fields = [self.numbers(numbers), self.district(codes[:, 0]), self.kind(codes[:, 1]), self.floor(codes[:, 2])]
        together = torch.stack(fields, 1)
        crossed = (together.sum(1) ** 2 - (together**2).sum(1)) / 2
        return self.deep(self.norm(torch.cat([*fields, crossed], 1))).squeeze(1)


def decayed_at_each_step(s: Setup, watch: Callable) -> None:
    """The schedule is stepped after each update; the batch is a dictionary of keyword arguments."""
    with watch(s.model, s.optimizer, probe=s.probe, loss_fn=s.loss) as record:
        for _ in range(s.epochs):
            s.model.train()
            for numbers, codes, rent in s.epoch():
                batch = {"numbers": numbers, "codes": codes}
                s.optimizer.zero_grad()
                loss = s.loss(s.model(**batch), rent)
                loss.backward()
                nn.utils.clip_grad_norm_(s.model.parameters(), 10.0)
                s.optimizer.step()
                s.end_step()
                record.step(loss, batch=(numbers, codes, rent))
            s.validate(record)
            s.end_epoch()


@program("embeddings", {"adam": (8e-3, 4e-3), "adamw": (8e-3,)}, (48, 32), (64, 96), 12, 0.6,
         schedules=("linear decay", "constant"), loop=decayed_at_each_step)  # fmt: skip
def flat_rents(seed: int, chosen: Settings) -> Setup:
    """The rent of a flat from its district, kind and floor, its size, age and distance to the centre."""
    g = generator(seed)
    codes = torch.stack([torch.randint(size, (2400,), generator=g) for size in (40, 6, 9)], 1)
    numbers = torch.randn(2400, 3, generator=g)
    price, quality = 0.5 * torch.randn(40, generator=g), 0.3 * torch.randn(6, generator=g)
    rent = price[codes[:, 0]] + (0.5 + quality[codes[:, 1]]) * numbers[:, 0] + 0.04 * codes[:, 2]
    rent = rent - 0.2 * numbers[:, 1] * (1 + price[codes[:, 0]]) - 0.25 * numbers[:, 2].abs()
    rent = standardised(rent) + 0.15 * torch.randn(2400, generator=g)
    train, val = split_off(480, numbers, codes, rent)
    model = Rents(chosen.width)
    return Setup(
        "regression", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, nn.L1Loss(), r2, "r2"
    )
