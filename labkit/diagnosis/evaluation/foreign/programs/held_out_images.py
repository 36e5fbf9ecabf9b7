"""Held-out programs on small images: many signs with augmentation, weak findings, thin cracks, a few birds."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from labkit.diagnosis.evaluation.foreign.programs.images import overlap
from labkit.diagnosis.evaluation.foreign.programs.retired_images import line_distance
from labkit.diagnosis.evaluation.foreign.setup import (
    Settings,
    Setup,
    accuracy,
    generator,
    most_frequent,
    optimizer_for,
    program,
    split_off,
)


def from_the_middle(size: int) -> tuple[Tensor, Tensor]:
    """How far each pixel is to the right of the middle and below it, from -1 to 1."""
    line = torch.linspace(-1, 1, size)
    return line.expand(size, size), line[:, None].expand(size, size)


# --- images -------------------------------------------------------------------------------------------


def signs(seed: int, count: int, size: int) -> tuple[Tensor, Tensor]:
    """Traffic signs in three colours: four frames times six symbols, in bad light; some kinds are much rarer."""
    g = generator(seed)
    across, down = from_the_middle(size)
    frames = torch.stack([
        across**2 + down**2 < 0.8, across.abs().maximum(down.abs()) < 0.75,
        across.abs() + down.abs() < 0.95, (down > 1.7 * across.abs() - 0.8) & (down < 0.75),
    ]).float()  # fmt: skip
    symbols = torch.stack([
        across.abs() < 0.15, down.abs() < 0.15, (across - down).abs() < 0.2,
        (across + down).abs() < 0.2, across**2 + down**2 < 0.08, torch.ones(size, size) < 0,
    ]).float()  # fmt: skip
    chances = 1 / (3.0 + torch.arange(24))
    kinds = torch.multinomial(chances, count, replacement=True, generator=g)
    colours = torch.tensor([[1.0, 0.2, 0.2], [0.2, 0.4, 1.0], [1.0, 0.9, 0.1], [1.0, 0.3, 0.3]])
    frame, symbol = frames[kinds % 4, None], symbols[kinds // 4, None]
    light = 0.4 + 0.9 * torch.rand(count, 1, 1, 1, generator=g)
    images = light * (colours[kinds % 4][:, :, None, None] * frame * (1 - symbol) + frame * symbol * 0.1)
    images = images + 0.8 * torch.randn(images.shape, generator=g)
    return (images - images.mean((0, 2, 3), keepdim=True)) / images.std((0, 2, 3), keepdim=True), kinds


class Residual(nn.Module):
    """Two convolutions with batch norm around a shortcut, at half the resolution."""

    def __init__(self, enters: int, leaves: int):
        super().__init__()
        self.one, self.two = (
            nn.Conv2d(enters, leaves, 3, stride=2, padding=1, bias=False),
            nn.Conv2d(leaves, leaves, 3, padding=1, bias=False),
        )
        self.norm, self.norm2, self.act = nn.BatchNorm2d(leaves), nn.BatchNorm2d(leaves), nn.ReLU()
        self.shortcut = nn.Conv2d(enters, leaves, 1, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.two(self.act(self.norm(self.one(x)))))
        return self.act(inner + self.shortcut(x))


def shifted_by_a_pixel(s: Setup, watch: Callable) -> None:
    """Random shifts of the training images, as augmentation."""
    with watch(s.model, s.optimizer, probe=s.probe, loss_fn=s.loss) as record:
        for _ in range(s.epochs):
            s.model.train()
            for images, kinds in s.epoch():
                down, right = torch.randint(-1, 2, (2,)).tolist()
                shifted = images.roll((down, right), (2, 3))
                s.optimizer.zero_grad()
                loss = s.loss(s.model(shifted), kinds)
                loss.backward()
                s.optimizer.step()
                record.step(loss, batch=(shifted, kinds))
            s.end_epoch()
            s.validate(record)


@program("images", {"momentum": (0.05, 0.03), "adamw": (3e-3, 2e-3)}, (8, 12), (32, 48), 5, 0.35,
         schedules=("cosine", "constant", "halved"), loop=shifted_by_a_pixel)  # fmt: skip
def traffic_signs(seed: int, chosen: Settings) -> Setup:
    """Twenty-four kinds of signs, some nine times as frequent as others, in bad light; a small residual net."""
    train, val = split_off(400, *signs(seed, 1400, 12))
    w = chosen.width
    model = nn.Sequential(
        nn.Conv2d(3, w, 3, padding=1), nn.ReLU(), Residual(w, w), Residual(w, 2 * w),
        nn.Flatten(), nn.Linear(18 * w, 24),
    )  # fmt: skip
    optimizer = optimizer_for(model.parameters(), chosen)
    for group in optimizer.param_groups:
        group["weight_decay"] = 1e-3
    return Setup(
        "classes", chosen, seed, model, optimizer, train, val, F.cross_entropy, accuracy, floor=most_frequent(val[-1])
    )


def with_a_moving_average(s: Setup, watch: Callable) -> None:
    """An average of the weights is kept beside the net, by torch's own tool, and validated."""
    average = AveragedModel(s.model, multi_avg_fn=get_ema_multi_avg_fn(0.95), use_buffers=True)
    with watch(s.model, s.optimizer, probe=s.probe, loss_fn=s.loss) as record:
        for _ in range(s.epochs):
            s.model.train()
            for scans, found in s.epoch():
                s.optimizer.zero_grad()
                loss = s.loss(s.model(scans), found)
                loss.backward()
                s.optimizer.step()
                average.update_parameters(s.model)
                record.step(loss.item(), batch=(scans, found))
            average.module.eval()
            with torch.no_grad():
                outputs = average.module(s.val[0])
                s.reached = s.measure(outputs, s.val[-1])
                record.validation(loss=s.loss(outputs, s.val[-1]), accuracy=s.reached)
            s.end_epoch()


@program("images", {"adamw": (2e-3, 3e-3), "adam": (2e-3,)}, (8, 12), (32, 40), 6, 0.35,
         schedules=("constant", "cosine", "exponential"), loop=with_a_moving_average)  # fmt: skip
def lung_scans(seed: int, chosen: Settings) -> Setup:
    """Is there a shadow in the scan? It is faint, and one label of nine is wrong; group norm, averaged weights."""
    g = generator(seed)
    across, down = from_the_middle(12)
    place = 1.2 * torch.rand(1500, 2, 1, 1, generator=g) - 0.6
    shadow = torch.exp(-((across - place[:, 0]) ** 2 + (down - place[:, 1]) ** 2) / 0.1)
    there = torch.randint(2, (1500,), generator=g)
    faint = (2.0 + 0.9 * torch.rand(1500, 1, 1, generator=g)) * there[:, None, None]
    scans = torch.randn(1500, 12, 12, generator=g) + faint * shadow
    scans = scans + F.interpolate(torch.randn(1500, 1, 3, 3, generator=g), size=12, mode="bicubic").squeeze(1) * 0.4
    found = torch.where(torch.rand(1500, generator=g) < 0.11, 1 - there, there)
    train, val = split_off(500, scans.unsqueeze(1), found)
    w = chosen.width
    model = nn.Sequential(
        nn.Conv2d(1, w, 5, padding=2), nn.GroupNorm(2, w), nn.SiLU(), nn.MaxPool2d(2),
        nn.Conv2d(w, 2 * w, 3, padding=1), nn.GroupNorm(2, 2 * w), nn.SiLU(), nn.AdaptiveMaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(8 * w, 2),
    )  # fmt: skip
    return Setup(
        "classes", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, nn.CrossEntropyLoss(),
        accuracy, floor=most_frequent(val[-1]),
    )  # fmt: skip


# --- segmentation -------------------------------------------------------------------------------------


class Cracks(nn.Module):
    """A coarse and a fine path over the photo, joined into one logit per pixel."""

    def __init__(self, width: int):
        super().__init__()
        self.fine = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.coarse = nn.Sequential(
            nn.AvgPool2d(2), nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=2, dilation=2), nn.ReLU(), nn.Upsample(scale_factor=2),
        )  # fmt: skip
        self.join = nn.Sequential(
            nn.Conv2d(2 * width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 1, 1)
        )

    def forward(self, photos: Tensor) -> Tensor:
        return self.join(torch.cat([self.fine(photos), self.coarse(photos)], 1)).squeeze(1)


@program("segmentation", {"adam": (4e-3, 6e-3), "adamw": (5e-3,), "momentum": (0.05, 0.03)}, (6, 8), (16, 20), 7, 0.2,
         schedules=("constant", "cosine", "exponential"))  # fmt: skip
def wall_cracks(seed: int, chosen: Settings) -> Setup:
    """One pixel of twenty belongs to a crack; the marks were drawn by hand and are often a pixel off."""
    g = generator(seed)
    ends = 15 * torch.rand(460, 2, 2, generator=g)
    cracks = line_distance(16, ends[:, 0], ends[:, 1]) < 0.8
    steps = torch.randint(-1, 2, (460,), generator=g).tolist()
    moved = torch.stack([each.roll(step, 0) for each, step in zip(cracks, steps, strict=True)])
    rough = F.interpolate(torch.randn(460, 1, 6, 6, generator=g), size=16, mode="bilinear")
    photos = 0.7 * rough - 1.5 * cracks.unsqueeze(1) + 0.5 * torch.randn(460, 1, 16, 16, generator=g)
    train, val = split_off(120, photos, moved.float())
    model = Cracks(chosen.width)
    return Setup(
        "binary", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val,
        nn.BCEWithLogitsLoss(pos_weight=torch.tensor(8.0)), overlap, "iou", floor=val[-1].mean().item(),
    )  # fmt: skip


# --- fine-tuning --------------------------------------------------------------------------------------


def birds(seed: int, plumage: int, kinds: int, count: int, grain: float) -> tuple[Tensor, Tensor]:
    """Photos of birds: each kind has a pattern of three waves in two channels; light, place and grain differ."""
    h = generator(plumage)
    waves, turns = 6 * torch.rand(kinds, 2, 3, 1, 1, generator=h), 3.1416 * torch.rand(kinds, 2, 3, 1, 1, generator=h)
    g = generator(seed)
    which = torch.randint(kinds, (count,), generator=g)
    across, down = from_the_middle(12)
    shift = 2 * torch.rand(count, 1, 1, 1, 1, generator=g)
    angle = turns[which]
    images = torch.sin(waves[which] * (angle.cos() * across + angle.sin() * down) + shift).sum(2)
    images = images * (0.6 + 0.8 * torch.rand(count, 1, 1, 1, generator=g))
    images = images + grain * torch.randn(images.shape, generator=g)
    return images / images.std(), which


class Birds(nn.Module):
    """Convolutions, and a head with dropout behind them."""

    def __init__(self, width: int, kinds: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(2, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 24, 3, padding=1), nn.GroupNorm(4, 24), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(216, width), nn.ReLU(), nn.Dropout(0.3), nn.Linear(width, kinds))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images))


@functools.cache
def trained_body(seed: int) -> dict[str, Tensor]:
    """The convolutions of a net that tells sixteen other birds apart."""
    images, which = birds(seed + 300, 5000 + seed, 16, 1280, 1.5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Birds(32, 16)
        optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
        for step in range(100):
            part = slice(step % 20 * 64, step % 20 * 64 + 64)
            optimizer.zero_grad()
            F.cross_entropy(model(images[part]), which[part]).backward()
            optimizer.step()
    return {name: each for name, each in model.state_dict().items() if name.startswith("body")}


@program("fine-tuning", {"adamw": (2e-3, 3e-3), "adam": (2e-3,), "momentum": (0.02,)}, (32, 48), (20, 24), 18, 0.5,
         schedules=("constant", "cosine", "halved"))  # fmt: skip
def rare_birds(seed: int, chosen: Settings) -> Setup:
    """Six rare birds and 180 photos: the convolutions are frozen, and the head still fits the photos too well."""
    train, val = split_off(480, *birds(seed, 6000 + seed, 6, 660, 4.0))
    model = Birds(chosen.width, 6)
    model.load_state_dict(trained_body(seed), strict=False)
    model.body.requires_grad_(False)
    return Setup(
        "classes", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val,
        nn.CrossEntropyLoss(label_smoothing=0.05), accuracy, floor=most_frequent(val[-1]),
    )  # fmt: skip
