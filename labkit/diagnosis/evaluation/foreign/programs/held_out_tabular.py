"""Held-out programs on tables: heavy tails, rare positives, small data, many classes, noisy answers, counts."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.diagnosis.evaluation.foreign.programs.retired_tabular import explained_deviance, mean_recall, standardised
from labkit.diagnosis.evaluation.foreign.programs.tabular import balanced_accuracy
from labkit.diagnosis.evaluation.foreign.setup import (
    Settings,
    Setup,
    accuracy,
    binary_accuracy,
    generator,
    most_frequent,
    optimizer_for,
    program,
    r2,
    split_off,
)


def student(count: int, g: torch.Generator) -> Tensor:
    """Noise with heavy tails: Student's t with three degrees of freedom."""
    return torch.randn(count, generator=g) / torch.randn(count, 3, generator=g).pow(2).mean(1).sqrt()


def explained_error(outputs: Tensor, targets: Tensor) -> float:
    """The share of the median's absolute error that is explained, at least -1."""
    missed = (outputs.reshape(targets.shape) - targets).abs().mean() / (targets - targets.median()).abs().mean()
    return max(-1.0, 1 - missed.item()) if missed.isfinite() else float("nan")


def area_under_curve(outputs: Tensor, targets: Tensor) -> float:
    """How often a positive scores higher than a negative; equal scores count half."""
    scores, true = outputs.reshape(targets.shape), targets > 0.5
    apart = scores[true][:, None] - scores[~true][None]
    return (0.5 + 0.5 * apart.sign().mean()).item()


# --- regression ---------------------------------------------------------------------------------------


def fit(s: Setup, watch: Callable) -> None:
    """A function for one epoch, called again and again; it clips gradients, and counts its loss in a float."""

    def one_epoch(record: Any) -> None:
        s.model.train()
        for features, amount in s.epoch():
            s.optimizer.zero_grad(set_to_none=True)
            loss = s.loss(s.model(features), amount)
            loss.backward()
            nn.utils.clip_grad_norm_(s.model.parameters(), max_norm=2.0)
            s.optimizer.step()
            record.step(loss.item(), batch=(features, amount))

    with watch(s.model, s.optimizer, probe=s.probe, loss_fn=s.loss) as record:
        for _ in range(s.epochs):
            one_epoch(record)
            s.validate(record)
            s.end_epoch()


@program("regression", {"rmsprop": (1e-3, 2e-3), "adam": (2e-3, 3e-3), "momentum": (0.02,)}, (32, 48), (30, 50), 12,
         0.16, schedules=("cosine", "constant", "exponential"), loop=fit)  # fmt: skip
def claim_amounts(seed: int, chosen: Settings) -> Setup:
    """The size of an insurance claim: most of it is chance, and a few claims are enormous; smooth L1."""
    g = generator(seed)
    x = torch.randn(2000, 14, generator=g)
    expected = 0.9 * x[:, 0] + 0.8 * x[:, 1].relu() * x[:, 2] + 0.7 * (x[:, 3] > 0.5) - 0.4 * x[:, 4]
    amount = standardised(expected) + 0.8 * student(2000, g)
    train, val = split_off(800, x, amount)
    w = chosen.width
    model = nn.Sequential(nn.Linear(14, w), nn.SiLU(), nn.Linear(w, w), nn.SiLU(), nn.Linear(w, 1), nn.Flatten(0))
    return Setup(
        "regression", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, nn.SmoothL1Loss(),
        explained_error, "explained_error",
    )  # fmt: skip


@dataclass
class Hours:
    """How many hours a delivery takes: the median, and the time that nine of ten do not need."""

    median: Tensor
    late: Tensor


class Courier(nn.Module):
    """A residual net with layer norm, and two heads."""

    def __init__(self, columns: int, width: int):
        super().__init__()
        self.lift = nn.Linear(columns, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.05)) for _ in range(2)
        )
        self.late, self.median = nn.Linear(width, 1), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Hours:
        hidden = self.lift(x)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return Hours(self.median(hidden).squeeze(-1), self.late(hidden).squeeze(-1))


def two_quantiles(outputs: Hours, hours: Tensor) -> Tensor:
    """The pinball loss of the median and of the 90 % quantile."""
    below, late = hours - outputs.median, hours - outputs.late
    return 0.5 * below.abs().mean() + torch.maximum(0.9 * late, -0.1 * late).mean()


@program("regression", {"adamw": (2e-3, 4e-3), "nadam": (2e-3,)}, (40, 24), (48, 32), 14, 0.27,
         schedules=("halved", "constant", "cosine"))  # fmt: skip
def delivery_hours(seed: int, chosen: Settings) -> Setup:
    """When will the parcel arrive? Two quantiles of hours whose spread depends on the day, in a dataclass."""
    g = generator(seed)
    x = torch.rand(2100, 9, generator=g)
    far, day, heavy = x[:, 0], (5 * x[:, 1]).floor(), x[:, 2]
    expected = 4 * far.sqrt() + 0.9 * (day == 4) + 1.5 * far * heavy + (x[:, 3] > 0.8) * (1 - x[:, 4])
    spread = 0.8 + 1.0 * (day >= 3).float()
    hours = expected + spread * -torch.rand(2100, generator=g).clamp(min=1e-6).log()
    train, val = split_off(700, standardised(x), standardised(hours))
    model = Courier(9, chosen.width)
    return Setup(
        "regression", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, two_quantiles,
        lambda outputs, targets: explained_error(outputs.median, targets), "explained_error",
    )  # fmt: skip


# --- yes or no ----------------------------------------------------------------------------------------


def every_second_step(s: Setup, watch: Callable) -> None:
    """Counts steps, records every second one, and validates rarely."""
    with watch(s.model, s.optimizer, probe=s.probe, loss_fn=s.loss, every=2) as record:
        batches = itertools.chain.from_iterable(s.epoch() for _ in itertools.count())
        for step in range(1, s.epochs * s.per_epoch + 1):
            x, y = next(batches)
            s.optimizer.zero_grad()
            loss = s.loss(s.model(x), y)
            loss.backward()
            s.optimizer.step()
            record.step(loss, batch=(x, y))
            if step % s.per_epoch == 0:
                s.end_epoch()
            if step % 100 == 0:
                s.validate(record)
        s.validate(record)


class CrossNet(nn.Module):
    """Products of the inputs with themselves beside a deep part, as systems for adverts have it."""

    def __init__(self, columns: int, width: int):
        super().__init__()
        self.cross = nn.ModuleList(nn.Linear(columns, columns) for _ in range(2))
        self.deep = nn.Sequential(
            nn.Linear(columns, width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.logit = nn.Linear(columns + width, 1)

    def forward(self, x: Tensor) -> Tensor:
        crossed = x
        for layer in self.cross:
            crossed = x * layer(crossed) + crossed
        return self.logit(torch.cat([crossed, self.deep(x)], 1)).squeeze(1)


@program("binary", {"adam": (1e-3, 2e-3), "adamw": (2e-3,)}, (32, 24), (64, 96), 9, 0.42,
         schedules=("constant", "cosine", "exponential"), loop=every_second_step)  # fmt: skip
def shop_purchases(seed: int, chosen: Settings) -> Setup:
    """One of sixteen visits ends in a purchase; neither sampled nor weighted; measured by the area under the curve."""
    g = generator(seed)
    x = torch.randn(4800, 12, generator=g)
    x[:, 6:] = (x[:, 6:] > 0.4).float()
    logit = -4.2 + 1.1 * x[:, 0] + 0.9 * x[:, 1] * x[:, 6] + 0.8 * x[:, 2].abs() + 0.9 * x[:, 7] - 0.7 * x[:, 8]
    bought = (torch.sigmoid(logit) > torch.rand(4800, generator=g)).float()
    train, val = split_off(1800, standardised(x), bought)
    model = CrossNet(12, chosen.width)
    return Setup(
        "binary", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val,
        F.binary_cross_entropy_with_logits, area_under_curve, "auc", floor=0.5,
    )  # fmt: skip


@program("binary", {"adamw": (1e-3, 2e-3), "adam": (1e-3,), "momentum": (0.01,)}, (32, 24), (20, 30), 20, 0.45,
         schedules=("constant", "halved"))  # fmt: skip
def hospital_readmissions(seed: int, chosen: Settings) -> Setup:
    """Two hundred and sixty patients and thirty measurements: the net does better on them than on other patients."""
    g = generator(seed)
    x = torch.randn(1460, 30, generator=g)
    logit = 1.2 * x[:, 0] + x[:, 1] - 0.9 * x[:, 2] + 0.7 * x[:, 3] + 0.5 * x[:, 4] * x[:, 0]
    back = (torch.sigmoid(logit) > torch.rand(1460, generator=g)).float()
    train, val = split_off(1200, x, back)
    w = chosen.width
    model = nn.Sequential(
        nn.Linear(30, w), nn.ReLU(), nn.Dropout(0.3), nn.Linear(w, w // 2), nn.ReLU(), nn.Linear(w // 2, 1)
    )
    optimizer = optimizer_for(model.parameters(), chosen)
    for group in optimizer.param_groups:
        group["weight_decay"] = 1e-2
    return Setup(
        "binary", chosen, seed, model, optimizer, train, val,
        lambda outputs, targets: F.binary_cross_entropy_with_logits(outputs.reshape(targets.shape), targets),
        area_under_curve, "auc", floor=0.5,
    )  # fmt: skip


def hinge(outputs: Tensor, targets: Tensor) -> Tensor:
    """The output should be beyond 1 for yes and beyond -1 for no."""
    return (1 - (2 * targets - 1) * outputs.reshape(targets.shape)).relu().mean()


@program("binary", {"momentum": (0.03, 0.02), "adam": (2e-3,)}, (40, 64), (32, 50), 10, 0.28,
         schedules=("restarts", "cosine", "constant"))  # fmt: skip
def invented_reviews(seed: int, chosen: Settings) -> Setup:
    """Was this review bought? A fifth of the labels is wrong, also in the validation data; a hinge loss."""
    g = generator(seed)
    x = torch.poisson(torch.rand(25, generator=g) * 3 + 0.3 + torch.zeros(2300, 25), generator=g).add(1).log()
    x = standardised(x)
    odd = x[:, 0] * x[:, 1] + x[:, 2] - x[:, 3] + 0.7 * x[:, 4]
    flipped = torch.rand(2300, generator=g) < 0.2
    bought = ((odd > odd.median()) ^ flipped).float()
    train, val = split_off(900, x, bought)
    w = chosen.width
    model = nn.Sequential(nn.Linear(25, w), nn.LeakyReLU(0.1), nn.Linear(w, w), nn.LeakyReLU(0.1), nn.Linear(w, 1))
    return Setup(
        "binary", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, hinge, binary_accuracy,
        floor=most_frequent(val[-1]),
    )  # fmt: skip


# --- several classes ----------------------------------------------------------------------------------


def stepped_schedule(s: Setup, watch: Callable) -> None:
    """The schedule is stepped with each batch, and the accuracy of training is watched beside the loss."""
    with watch(s.model, s.optimizer, probe=s.probe, loss_fn=s.loss) as record:
        for _ in range(s.epochs):
            s.model.train()
            correct = seen = 0
            for x, y in s.epoch():
                outputs = s.model(x)
                loss = s.loss(outputs, y)
                s.optimizer.zero_grad()
                loss.backward()
                s.optimizer.step()
                s.end_step()
                correct, seen = correct + int((outputs.argmax(-1) == y).sum()), seen + len(y)
                record.step(loss, batch=(x, y))
            s.validate(record)
            s.end_epoch()


@program("classes", {"nesterov": (0.05, 0.03), "adam": (3e-3, 5e-3)}, (96, 72), (64, 80), 8, 0.45,
         schedules=("one cycle", "constant", "warmup and cosine"), loop=stepped_schedule)  # fmt: skip
def product_catalogue(seed: int, chosen: Settings) -> Setup:
    """A hundred and twenty products, thirty offers of each to learn from; batch norm, label smoothing, one cycle."""
    g = generator(seed)
    products = torch.randn(120, 20, generator=g)
    kinds = torch.randint(120, (4600,), generator=g)
    x = products[kinds] + 1.3 * torch.randn(4600, 20, generator=g)
    train, val = split_off(1000, x, kinds)
    w = chosen.width
    model = nn.Sequential(
        nn.Linear(20, w), nn.BatchNorm1d(w), nn.ReLU(), nn.Linear(w, w), nn.BatchNorm1d(w), nn.ReLU(), nn.Linear(w, 120)
    )
    return Setup(
        "classes", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val,
        nn.CrossEntropyLoss(label_smoothing=0.1), accuracy, floor=most_frequent(val[-1]),
    )  # fmt: skip


def without_batches(s: Setup, watch: Callable) -> None:
    """Records losses only, neither batches nor their targets."""
    with watch(s.model, s.optimizer, probe=s.probe, loss_fn=s.loss) as record:
        for _ in range(s.epochs):
            s.model.train()
            for x, y in s.epoch():
                s.optimizer.zero_grad()
                loss = s.loss(s.model(x), y)
                loss.backward()
                s.optimizer.step()
                record.step(loss)
            s.validate(record)
            s.end_epoch()


@program("classes", {"nadam": (2e-3, 1e-3), "adamw": (3e-3,), "momentum": (0.03,)}, (40, 56), (48, 32), 12, 0.2,
         schedules=("constant", "cosine", "exponential"), loop=without_batches)  # fmt: skip
def survey_answers(seed: int, chosen: Settings) -> Setup:
    """From 'not at all' to 'very': five answers of unequal number that run into each other; class weights."""
    g = generator(seed)
    x = torch.randn(2400, 16, generator=g)
    mood = x[:, 0] + 0.8 * x[:, 1] * x[:, 2] - 0.6 * x[:, 3].abs() + 0.5 * x[:, 4]
    mood = standardised(mood) + 0.8 * torch.randn(2400, generator=g)
    answers = torch.bucketize(mood, mood.quantile(torch.tensor([0.08, 0.24, 0.5, 0.82])))
    train, val = split_off(900, x, answers)
    weight = train[-1].bincount(minlength=5).float().rsqrt()
    w = chosen.width
    model = nn.Sequential(
        nn.Linear(16, w), nn.LayerNorm(w), nn.GELU(), nn.Dropout(0.1), nn.Linear(w, w), nn.GELU(), nn.Linear(w, 5)
    )
    return Setup(
        "classes", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val,
        nn.CrossEntropyLoss(weight=weight / weight.mean()), mean_recall, "mean_recall", floor=0.2,
    )  # fmt: skip


# --- several labels -----------------------------------------------------------------------------------


@program("multi-label", {"adam": (3e-3, 2e-3), "adamw": (3e-3,), "rmsprop": (1e-3,)}, (64, 80), (40, 60), 12, 0.52,
         schedules=("exponential", "constant", "cosine"))  # fmt: skip
def crop_diseases(seed: int, chosen: Settings) -> Setup:
    """Fourteen diseases of a plant, each on one plant of ten, seen through noisy signs; rare labels weigh more."""
    g = generator(seed)
    ill = (torch.rand(2000, 14, generator=g) < 0.1).float()
    signs = torch.randn(14, 36, generator=g) * (torch.rand(14, 36, generator=g) < 0.3)
    x = torch.tanh(1.1 * ill @ signs + 1.2 * torch.randn(2000, 36, generator=g))
    train, val = split_off(600, standardised(x), ill)
    w = chosen.width
    model = nn.Sequential(nn.Linear(36, w), nn.ELU(), nn.Dropout(0.1), nn.Linear(w, w), nn.ELU(), nn.Linear(w, 14))
    return Setup(
        "multilabel", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val,
        nn.BCEWithLogitsLoss(pos_weight=torch.full((14,), 5.0)), balanced_accuracy, "balanced_accuracy", floor=0.5,
    )  # fmt: skip


# --- categories ---------------------------------------------------------------------------------------


class Taste(nn.Module):
    """A vector and a bias for each reader and each book; their product, and what a small net makes of both."""

    def __init__(self, readers: int, books: int, width: int):
        super().__init__()
        self.reader, self.book = nn.Embedding(readers, width), nn.Embedding(books, width)
        self.strict, self.liked = nn.Embedding(readers, 1), nn.Embedding(books, 1)
        for each in (self.reader, self.book, self.strict, self.liked):
            nn.init.normal_(each.weight, std=0.1)
        self.net = nn.Sequential(nn.Linear(2 * width, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, reader: Tensor, book: Tensor) -> Tensor:
        one, two = self.reader(reader), self.book(book)
        biases = self.strict(reader) + self.liked(book) + (one * two).sum(-1, keepdim=True)
        return (self.net(torch.cat([one, two], -1)) + biases).squeeze(-1)


@program("embeddings", {"adagrad": (0.05, 0.03), "adam": (5e-3, 3e-3)}, (8, 12), (100, 80), 10, 0.27,
         schedules=("constant", "cosine"))  # fmt: skip
def book_stars(seed: int, chosen: Settings) -> Setup:
    """How many stars will a reader give a book? Half of it is mood."""
    g = generator(seed)
    reader, book = torch.randint(100, (5200,), generator=g), torch.randint(70, (5200,), generator=g)
    strict, liked = torch.randn(100, generator=g), torch.randn(70, generator=g)
    likes, has = torch.randn(100, 2, generator=g), torch.randn(70, 2, generator=g)
    stars = 0.6 * strict[reader] + 0.7 * liked[book] + 0.4 * (likes[reader] * has[book]).sum(1)
    stars = standardised(stars + 1.0 * torch.randn(5200, generator=g))
    train, val = split_off(1000, reader, book, stars)
    model = Taste(100, 70, chosen.width)
    return Setup(
        "regression", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, F.mse_loss, r2, "r2"
    )


# --- counts -------------------------------------------------------------------------------------------


@program("counts", {"adam": (3e-3, 2e-3), "adamw": (3e-3,), "rmsprop": (1e-3,)}, (32, 48), (32, 48), 10, 0.15,
         schedules=("warmup", "constant", "cosine"))  # fmt: skip
def repair_calls(seed: int, chosen: Settings) -> Setup:
    """Calls for repair per machine and month: Poisson's loss, although the counts spread more than Poisson's."""
    g = generator(seed)
    x = torch.randn(2000, 9, generator=g)
    rate = 0.3 + 0.5 * x[:, 0] + 0.4 * x[:, 1] * (x[:, 2] > 0) - 0.3 * x[:, 3] + 0.3 * (x[:, 4] > 1)
    luck = -torch.rand(2000, 2, generator=g).clamp(min=1e-6).log().mean(1)  # a gamma variable with mean 1
    calls = torch.poisson(rate.clamp(max=2.5).exp() * luck, generator=g)
    train, val = split_off(800, x, calls)
    w = chosen.width
    model = nn.Sequential(nn.Linear(9, w), nn.Softplus(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, 1), nn.Flatten(0))
    return Setup(
        "counts", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, nn.PoissonNLLLoss(),
        explained_deviance, "explained_deviance",
    )  # fmt: skip
