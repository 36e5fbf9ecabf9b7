"""Tables: regression, yes or no, several classes, several labels, categories with embeddings."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs.reshape(targets.shape), targets)


def yes_or_no(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs.reshape(targets.shape), targets)


@program("regression", {"adam": (5e-3, 4e-3, 1e-2), "momentum": (0.02, 0.05)}, (48, 32, 96), (32, 16, 64), 12, 0.6)
def concrete_strength(seed: int, chosen: Settings) -> Setup:
    """Eight ingredients, one strength."""
    g = generator(seed)
    x = torch.randn(1024, 8, generator=g)
    y = x[:, 0] * x[:, 1] + torch.sin(2 * x[:, 2]) + 0.5 * x[:, 3].abs() - 0.4 * x[:, 4]
    y = (y - y.mean()) / y.std() + 0.1 * torch.randn(1024, generator=g)
    train, val = split_off(256, x, y)
    model = nn.Sequential(
        nn.Linear(8, chosen.width),
        nn.ReLU(),
        nn.Linear(chosen.width, chosen.width),
        nn.ReLU(),
        nn.Linear(chosen.width, 1),
    )
    return Setup(
        "regression",
        chosen,
        seed,
        model,
        optimizer_for(model.parameters(), chosen),
        train,
        val,
        squared_error,
        r2,
        "r2",
    )


def accumulating(s: Setup, watch: Callable) -> None:
    """Two half batches per update: the gradients add up before each step."""
    with watch(s.model, s.optimizer, probe=s.probe, loss_fn=s.loss) as record:
        for _ in range(s.epochs):
            for angles, position in s.epoch():
                halves = list(zip(angles.chunk(2), position.chunk(2), strict=True))
                s.optimizer.zero_grad(set_to_none=False)
                total = 0.0
                for part, wanted in halves:
                    loss = s.loss(s.model(part), wanted) / len(halves)
                    loss.backward()
                    total += loss.item()
                s.optimizer.step()
                record.step(total, batch=(angles, position))
            s.validate(record)
            s.end_epoch()


@program("regression", {"momentum": (0.1, 0.05), "adam": (5e-3, 1e-2)}, (64, 40), (32, 64), 15, 0.6, loop=accumulating)
def robot_arm(seed: int, chosen: Settings) -> Setup:
    """Three joint angles, two coordinates of the hand."""
    g = generator(seed)
    angles = (torch.rand(1024, 3, generator=g) * 2 - 1) * 1.6
    bends = angles.cumsum(1)
    lengths = torch.tensor([1.0, 0.8, 0.5])
    hand = torch.stack([(lengths * bends.cos()).sum(1), (lengths * bends.sin()).sum(1)], 1)
    hand = (hand - hand.mean(0)) / hand.std(0) + 0.02 * torch.randn(1024, 2, generator=g)
    train, val = split_off(256, angles, hand)
    model = nn.Sequential(
        nn.Linear(3, chosen.width),
        nn.Tanh(),
        nn.Linear(chosen.width, chosen.width),
        nn.Tanh(),
        nn.Linear(chosen.width, 2),
    )
    return Setup(
        "regression",
        chosen,
        seed,
        model,
        optimizer_for(model.parameters(), chosen),
        train,
        val,
        squared_error,
        r2,
        "r2",
    )


@program(
    "binary", {"adam": (3e-3, 1e-3, 6e-3), "adamw": (3e-3,), "momentum": (0.05,)}, (64, 32, 96), (32, 64), 10, 0.45
)
def customer_churn(seed: int, chosen: Settings) -> Setup:
    """Batch norm and dropout, one logit."""
    g = generator(seed)
    x = torch.randn(1280, 12, generator=g)
    logit = 2.5 * x[:, 0] * x[:, 1] + 2 * x[:, 2] - 1.5 * x[:, 3].pow(2) + 1.5
    y = (torch.sigmoid(2 * logit) > torch.rand(1280, generator=g)).float()
    train, val = split_off(320, x, y)
    hidden = chosen.width
    model = nn.Sequential(
        nn.Linear(12, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(0.1),
        nn.Linear(hidden, hidden // 2), nn.BatchNorm1d(hidden // 2), nn.ReLU(), nn.Linear(hidden // 2, 1),
    )  # fmt: skip
    return Setup(
        "binary", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, yes_or_no,
        binary_accuracy, floor=most_frequent(val[-1]),
    )  # fmt: skip


def step_by_step(s: Setup, watch: Callable) -> None:
    """Counts steps, not epochs; clips gradients; closure-free but with the loss as a float."""
    with watch(s.model, s.optimizer, probe=s.probe, loss_fn=s.loss) as record:
        step = 0
        while step < s.epochs * s.per_epoch:
            for x, y in s.epoch():
                s.model.zero_grad()
                loss = s.loss(s.model(x), y)
                loss.backward()
                nn.utils.clip_grad_norm_(s.model.parameters(), 5.0)
                s.optimizer.step()
                record.step(loss.detach(), batch=(x, y))
                step += 1
                if step % 20 == 0:
                    s.validate(record)
            s.end_epoch()
        s.validate(record)


@program("binary", {"adam": (5e-3, 1e-2), "rmsprop": (3e-3,)}, (32, 48, 24), (50, 25, 100), 20, 0.6, loop=step_by_step)
def two_rings(seed: int, chosen: Settings) -> Setup:
    """Two noisy rings in the plane, embedded in ten dimensions; a narrow tanh net."""
    g = generator(seed)
    inside = (torch.rand(800, generator=g) < 0.5).float()
    angle = torch.rand(800, generator=g) * 6.2832
    radius = torch.where(inside > 0, 0.8, 1.7) + 0.15 * torch.randn(800, generator=g)
    plane = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)
    x = plane @ torch.randn(2, 10, generator=g) + 0.05 * torch.randn(800, 10, generator=g)
    x = (x - x.mean(0)) / x.std(0)
    train, val = split_off(200, x, inside)
    w = chosen.width
    model = nn.Sequential(
        nn.Linear(10, w), nn.Tanh(), nn.Linear(w, w), nn.Tanh(), nn.Linear(w, w), nn.Tanh(), nn.Linear(w, 1)
    )
    return Setup(
        "binary", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, yes_or_no,
        binary_accuracy, floor=most_frequent(val[-1]),
    )  # fmt: skip


class Cultivars(nn.Module):
    """Three layers, called one after the other."""

    def __init__(self, width: int):
        super().__init__()
        self.entry, self.middle, self.exit = nn.Linear(13, width), nn.Linear(width, width), nn.Linear(width, 4)
        self.act, self.drop = nn.LeakyReLU(), nn.Dropout(0.1)

    def forward(self, features: Tensor) -> Tensor:
        hidden = self.drop(self.act(self.entry(features)))
        return self.exit(self.act(self.middle(hidden)))


@program("classes", {"adamw": (5e-3, 2e-3), "momentum": (0.05, 0.02)}, (40, 64), (24, 48), 10, 0.6)
def wine_cultivars(seed: int, chosen: Settings) -> Setup:
    """Four overlapping classes that no plane separates."""
    g = generator(seed)
    x = torch.randn(960, 13, generator=g)
    y = (x[:, 0] * x[:, 1] > 0).long() * 2 + (x[:, 2] + x[:, 3] > 0).long()
    x[:, :4] *= 1.5
    train, val = split_off(240, x, y)
    model = Cultivars(chosen.width)
    return Setup(
        "classes", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val,
        nn.CrossEntropyLoss(), accuracy, floor=most_frequent(val[-1]),
    )  # fmt: skip


@program("classes", {"nesterov": (0.05, 0.02), "adam": (3e-3, 1e-2)}, (64, 96, 48), (64, 32), 20, 0.5)
def star_spectra(seed: int, chosen: Settings) -> Setup:
    """Twenty classes, each with lines at its own places of a spectrum that is shifted at random."""
    g = generator(seed)
    lines = torch.randn(20, 48, generator=g)
    y = torch.randint(20, (1600,), generator=g)
    shift = torch.randint(3, (1600,), generator=g)
    x = torch.stack([lines[one].roll(int(by)) for one, by in zip(y, shift, strict=True)])
    x = x + 0.8 * torch.randn(1600, 48, generator=g)
    train, val = split_off(320, x, y)
    w = chosen.width
    model = nn.Sequential(
        nn.Linear(48, w), nn.BatchNorm1d(w), nn.SiLU(), nn.Linear(w, w), nn.BatchNorm1d(w), nn.SiLU(), nn.Linear(w, 20)
    )
    return Setup(
        "classes", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, F.cross_entropy,
        accuracy, floor=most_frequent(val[-1]),
    )  # fmt: skip


def balanced_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Mean of the accuracies on zeros and on ones: 0.5 for any constant prediction."""
    threshold = 0.5 if outputs.min() >= 0 and outputs.max() <= 1 else 0.0
    said, true = outputs.reshape(targets.shape) > threshold, targets > 0.5
    return (said[true].float().mean() + (~said[~true]).float().mean()).item() / 2


@program("multi-label", {"adam": (5e-3, 3e-3), "adamw": (5e-3,)}, (64, 96, 48), (32, 16, 64), 10, 0.4)
def article_tags(seed: int, chosen: Settings) -> Setup:
    """Word counts of an article, six tags of which several may hold."""
    g = generator(seed)
    topics = torch.rand(6, 60, generator=g).pow(6) * 3
    tags = (torch.rand(1000, 6, generator=g) < 0.35).float()
    counts = torch.poisson(tags @ topics + 0.3, generator=g)
    train, val = split_off(250, counts.sqrt(), tags)
    model = nn.Sequential(nn.Linear(60, chosen.width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(chosen.width, 6))
    return Setup(
        "multilabel", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val,
        nn.BCEWithLogitsLoss(), balanced_accuracy, "balanced_accuracy", floor=0.5,
    )  # fmt: skip


@program("multi-label", {"rmsprop": (2e-3, 1e-3), "adam": (3e-3, 6e-3)}, (56, 80), (40, 20), 12, 0.4)
def sound_events(seed: int, chosen: Settings) -> Setup:
    """Rare events in a noisy recording, with weights for the positive class; a residual block."""
    g = generator(seed)
    patterns = torch.randn(10, 40, generator=g)
    events = (torch.rand(1200, 10, generator=g) < 0.15).float()
    x = events @ patterns + 0.7 * torch.randn(1200, 40, generator=g)
    train, val = split_off(300, x / x.std(), events)

    class Detector(nn.Module):
        def __init__(self, width: int):
            super().__init__()
            self.lift, self.norm = nn.Linear(40, width), nn.LayerNorm(width)
            self.block = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
            self.heads = nn.Linear(width, 10)

        def forward(self, frames: Tensor) -> Tensor:
            hidden = self.lift(frames)
            return self.heads(F.gelu(hidden + self.block(self.norm(hidden))))

    model = Detector(chosen.width)
    weight = torch.full((10,), 3.0)
    return Setup(
        "multilabel", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val,
        nn.BCEWithLogitsLoss(pos_weight=weight), balanced_accuracy, "balanced_accuracy", floor=0.5,
    )  # fmt: skip


class Clicks(nn.Module):
    """Three categories and four numbers, one logit."""

    def __init__(self, width: int):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, 8) for size in (30, 12, 7))
        self.net = nn.Sequential(nn.Linear(28, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 1))

    def forward(self, numbers: Tensor, codes: Tensor) -> Tensor:
        looked_up = [table(codes[:, column]) for column, table in enumerate(self.tables)]
        return self.net(torch.cat([numbers, *looked_up], 1)).squeeze(1)


def with_dictionaries(s: Setup, watch: Callable) -> None:
    """Batches are dictionaries, as a collate function would return them."""
    numbers, codes, labels = s.probe
    probe = {"numbers": numbers, "codes": codes, "labels": labels}
    with watch(s.model, s.optimizer, probe=probe, loss_fn=s.loss) as record:
        for _ in range(s.epochs):
            s.model.train()
            for numbers, codes, labels in s.epoch():
                batch = {"numbers": numbers, "codes": codes, "labels": labels}
                logits = s.model(numbers=batch["numbers"], codes=batch["codes"])
                loss = s.loss(logits, batch["labels"])
                s.optimizer.zero_grad()
                loss.backward()
                s.optimizer.step()
                record.step(loss, batch=batch)
            s.end_epoch()
            s.validate(record)


@program("embeddings", {"adam": (1e-2, 5e-3), "adamw": (1e-2,)}, (32, 64), (64, 32), 10, 0.4, loop=with_dictionaries)
def advert_clicks(seed: int, chosen: Settings) -> Setup:
    """Will this visitor click? Categories with embeddings, and numbers."""
    g = generator(seed)
    sizes = (30, 12, 7)
    codes = torch.stack([torch.randint(size, (1600,), generator=g) for size in sizes], 1)
    numbers = torch.randn(1600, 4, generator=g)
    effects = [torch.randn(size, generator=g) * 1.6 for size in sizes]
    logit = effects[0][codes[:, 0]] + effects[1][codes[:, 1]] * numbers[:, 0] + effects[2][codes[:, 2]]
    y = (torch.sigmoid(2 * logit) > torch.rand(1600, generator=g)).float()
    train, val = split_off(320, numbers, codes, y)
    model = Clicks(chosen.width)
    return Setup(
        "binary", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, yes_or_no,
        binary_accuracy, floor=most_frequent(val[-1]),
    )  # fmt: skip


class Ratings(nn.Module):
    """Users and films as vectors: their product, and a small net on top."""

    def __init__(self, width: int):
        super().__init__()
        self.users, self.films = nn.Embedding(60, 8), nn.Embedding(40, 8)
        self.net = nn.Sequential(nn.Linear(24, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, pair: Tensor) -> Tensor:
        user, film = self.users(pair[:, 0]), self.films(pair[:, 1])
        return self.net(torch.cat([user, film, user * film], 1))


@program("embeddings", {"adam": (1e-2, 2e-2), "adamw": (1e-2,)}, (32, 48), (64, 96), 20, 0.4)
def film_ratings(seed: int, chosen: Settings) -> Setup:
    """The rating that a user gives to a film, as a number."""
    g = generator(seed)
    pairs = torch.stack([torch.randint(60, (3000,), generator=g), torch.randint(40, (3000,), generator=g)], 1)
    taste, style = torch.randn(60, 2, generator=g), torch.randn(40, 2, generator=g)
    bias = torch.randn(40, generator=g)
    rating = (taste[pairs[:, 0]] * style[pairs[:, 1]]).sum(1) + bias[pairs[:, 1]]
    rating = (rating - rating.mean()) / rating.std() + 0.2 * torch.randn(3000, generator=g)
    train, val = split_off(400, pairs, rating)
    model = Ratings(chosen.width)
    return Setup(
        "regression",
        chosen,
        seed,
        model,
        optimizer_for(model.parameters(), chosen),
        train,
        val,
        squared_error,
        r2,
        "r2",
    )
