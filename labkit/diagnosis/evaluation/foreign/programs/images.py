"""Small synthetic images: classification, segmentation, fine-tuning of a half-frozen net."""

import functools
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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


def drawn(seed: int, count: int, size: int, noise: float = 0.3) -> tuple[Tensor, Tensor, Tensor]:
    """Images with one square, disc, cross or ring: (images, classes, masks)."""
    g = generator(seed)
    kinds = torch.randint(4, (count,), generator=g)
    middle = size * (0.3 + 0.4 * torch.rand(count, 2, 1, 1, generator=g))
    radius = size * (0.15 + 0.1 * torch.rand(count, 1, 1, generator=g))
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    down, right = (rows - middle[:, 0]).abs(), (columns - middle[:, 1]).abs()
    far = (down**2 + right**2).sqrt()
    shapes = torch.stack([
        (down < radius) & (right < radius),
        far < radius,
        ((down < 1) | (right < 1)) & (far < 1.5 * radius),
        (far - 1.2 * radius).abs() < 1,
    ])  # fmt: skip
    masks = shapes[kinds, torch.arange(count)]
    images = masks.float().unsqueeze(1) + noise * torch.randn(count, 1, size, size, generator=g)
    return (images - images.mean()) / images.std(), kinds, masks


@program("images", {"adam": (5e-3, 3e-3), "momentum": (0.05, 0.03)}, (8, 12), (32, 48), 10, 0.6)
def drawn_shapes(seed: int, chosen: Settings) -> Setup:
    """Which of four shapes? A convolutional net with batch norm."""
    images, kinds, _ = drawn(seed, 800, 16)
    train, val = split_off(200, images, kinds)
    w = chosen.width
    model = nn.Sequential(
        nn.Conv2d(1, w, 3, padding=1), nn.BatchNorm2d(w), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(w, 2 * w, 3, padding=1), nn.BatchNorm2d(2 * w), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.1), nn.Linear(32 * w, 4),
    )  # fmt: skip
    return Setup(
        "classes", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, F.cross_entropy,
        accuracy, floor=most_frequent(val[-1]),
    )  # fmt: skip


class Residual(nn.Module):
    """Two convolutions around a shortcut."""

    def __init__(self, channels: int):
        super().__init__()
        self.one, self.two = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x + self.two(self.act(self.one(x))))


class Fabrics(nn.Module):
    """A stem, two residual blocks, global pooling."""

    def __init__(self, channels: int):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1, stride=2)
        self.blocks = nn.Sequential(Residual(channels), Residual(channels))
        self.fc = nn.Linear(channels, 6)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.blocks(torch.relu(self.stem(images))).mean((2, 3)))


@program("images", {"adamw": (5e-3, 3e-3), "adam": (5e-3,)}, (12, 16), (32, 24), 12, 0.5)
def woven_fabrics(seed: int, chosen: Settings) -> Setup:
    """Six textures in colour, by a residual net without batch norm."""
    g = generator(seed)
    y = torch.randint(6, (600,), generator=g)
    angle = y * 0.5236 + 0.1 * torch.randn(600, generator=g)
    rows, columns = torch.meshgrid(torch.arange(14.0), torch.arange(14.0), indexing="ij")
    waves = angle.cos()[:, None, None] * rows + angle.sin()[:, None, None] * columns
    grey = torch.sin(1.3 * waves + 6.28 * torch.rand(600, 1, 1, generator=g)).unsqueeze(1)
    tint = 0.5 + torch.rand(600, 3, 1, 1, generator=g)
    train, val = split_off(150, grey * tint + 0.3 * torch.randn(600, 3, 14, 14, generator=g), y)
    model = Fabrics(chosen.width)
    return Setup(
        "classes", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val,
        nn.CrossEntropyLoss(label_smoothing=0.05), accuracy, floor=most_frequent(val[-1]),
    )  # fmt: skip


# --- segmentation -------------------------------------------------------------------------------------


def overlap(outputs: Tensor, targets: Tensor) -> float:
    """Intersection over union of the foreground, from one logit per pixel."""
    threshold = 0.5 if outputs.min() >= 0 and outputs.max() <= 1 else 0.0
    said, true = outputs.reshape(targets.shape) > threshold, targets > 0.5
    return ((said & true).sum() / (said | true).sum().clamp(min=1)).item()


class Segmenter(nn.Module):
    """Down, up, and a shortcut between them."""

    def __init__(self, channels: int):
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(1, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU())
        self.below = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU())
        self.out = nn.Conv2d(2 * channels, 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        fine = self.enter(images)
        coarse = F.interpolate(self.below(F.max_pool2d(fine, 2)), scale_factor=2)
        return self.out(torch.cat([fine, coarse], 1)).squeeze(1)


@program("segmentation", {"adam": (1e-2, 5e-3), "adamw": (1e-2,)}, (8, 12), (24, 16), 10, 0.4)
def cell_masks(seed: int, chosen: Settings) -> Setup:
    """Foreground or background for each pixel, one logit each."""
    images, _, masks = drawn(seed, 480, 16, noise=0.5)
    train, val = split_off(96, images, masks.float())
    model = Segmenter(chosen.width)
    return Setup(
        "binary", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val,
        nn.BCEWithLogitsLoss(), overlap, "iou", floor=val[-1].mean().item(),
    )  # fmt: skip


def pixel_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Mean over the classes of the share of their pixels that is correct."""
    said = outputs.argmax(1)
    shares = [(said == each)[targets == each].float().mean() for each in range(3) if (targets == each).any()]
    return torch.stack(shares).mean().item()


class Land(nn.Module):
    """Three plain convolutions; returns a dictionary, as torchvision's segmentation nets do."""

    def __init__(self, channels: int):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(2, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()
        )
        self.classifier = nn.Conv2d(channels, 3, 1)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        return {"logits": self.classifier(self.backbone(image))}


def with_dictionary_outputs(s: Setup, watch: Callable) -> None:
    """The net returns a dictionary; the loss reads its entry `logits`."""
    with watch(s.model, s.optimizer, probe=s.probe, loss_fn=s.loss) as record:
        for _ in range(s.epochs):
            s.model.train()
            for image, mask in s.epoch():
                out = s.model(image)
                loss = s.loss(out, mask)
                loss.backward()
                s.optimizer.step()
                s.optimizer.zero_grad()
                record.step(loss, batch=(image, mask))
            s.end_epoch()
            s.validate(record)


@program("segmentation", {"adam": (1e-2, 5e-3), "momentum": (0.1,)}, (10, 14), (24, 16), 10, 0.5,
         loop=with_dictionary_outputs)  # fmt: skip
def land_cover(seed: int, chosen: Settings) -> Setup:
    """Three kinds of land for each pixel, from two channels."""
    g = generator(seed)
    smooth = F.avg_pool2d(torch.randn(400, 2, 20, 20, generator=g), 5, 1)
    kinds = torch.where(smooth[:, 0] > 0.08, 0, torch.where(smooth[:, 1] > 0.0, 1, 2))
    images = smooth / smooth.std() + 0.5 * torch.randn(smooth.shape, generator=g)
    train, val = split_off(80, images, kinds)
    model = Land(chosen.width)
    return Setup(
        "pixels", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val,
        lambda outputs, targets: F.cross_entropy(outputs["logits"], targets),
        lambda outputs, targets: pixel_accuracy(outputs["logits"], targets), floor=1 / 3, class_axis=1,
    )  # fmt: skip


# --- fine-tuning ----------------------------------------------------------------------------------------


class Backbone(nn.Module):
    """Convolutions that were trained before, and a new head."""

    def __init__(self, width: int, classes: int):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(12, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(256, width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))


@functools.cache
def pretrained(seed: int) -> dict[str, Tensor]:
    """Features that were trained on another task: how large a shape is, and where."""
    images, _, masks = drawn(seed + 300, 512, 16, noise=0.1)
    sizes = torch.stack([masks.sum((1, 2)) / 40, *(masks.float().mean(axis).argmax(1) / 8 for axis in (1, 2))], 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        features, head = Backbone(8, 4).features, nn.Linear(256, 3)
    optimizer = torch.optim.Adam([*features.parameters(), *head.parameters()], lr=5e-3)
    for step in range(150):
        part = slice(step % 8 * 64, step % 8 * 64 + 64)
        optimizer.zero_grad()
        F.mse_loss(head(features(images[part]).flatten(1)), sizes[part]).backward()
        optimizer.step()
    return features.state_dict()


@program("fine-tuning", {"adam": (3e-3, 5e-3), "adamw": (3e-3,)}, (48, 64), (32, 16), 16, 0.5)
def frozen_features(seed: int, chosen: Settings) -> Setup:
    """The features come from another task and are frozen; only the head trains."""
    images, kinds, _ = drawn(seed, 900, 16, noise=0.1)
    model = Backbone(chosen.width, 4)
    model.features.load_state_dict(pretrained(seed))
    model.features.requires_grad_(False)
    train, val = split_off(160, images, kinds)
    return Setup(
        "classes", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, F.cross_entropy,
        accuracy, floor=most_frequent(val[-1]),
    )  # fmt: skip


class Adapted(nn.Module):
    """A frozen random projection, a trained adapter beside it, and a head."""

    def __init__(self, width: int):
        super().__init__()
        self.base = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()).requires_grad_(False)
        self.down, self.up = nn.Linear(20, width), nn.Linear(width, 64)
        nn.init.zeros_(self.up.weight)  # so that training starts from the base, as adapters do
        self.act, self.head = nn.ReLU(), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.base(x) + self.up(self.act(self.down(x))))


def with_two_groups(s: Setup, watch: Callable) -> None:
    """Two parameter groups: the head learns faster than the adapter."""
    with watch(s.model, s.optimizer, probe=s.probe, loss_fn=s.loss) as record:
        for _ in range(s.epochs):
            s.model.train()
            for x, y in s.epoch():
                s.optimizer.zero_grad()
                loss = s.loss(s.model(x), y)
                loss.backward()
                s.optimizer.step()
                record.step(loss.item(), batch=(x, y))
            s.validate(record)
            s.end_epoch()


@program("fine-tuning", {"adam": (5e-3, 3e-3), "adamw": (5e-3,)}, (24, 32), (32, 48), 10, 0.5, loop=with_two_groups)
def adapter_tuning(seed: int, chosen: Settings) -> Setup:
    """A frozen base with an adapter, and two parameter groups."""
    g = generator(seed)
    centres = 1.1 * torch.randn(5, 3, 20, generator=g)
    y, part = torch.randint(5, (900,), generator=g), torch.randint(3, (900,), generator=g)
    train, val = split_off(180, centres[y, part] + torch.randn(900, 20, generator=g), y)
    model = Adapted(chosen.width)
    optimizer = optimizer_for([*model.down.parameters(), *model.up.parameters()], chosen)
    slower = optimizer_for(model.head.parameters(), replace(chosen, lr=2 * chosen.lr)).param_groups[0]
    optimizer.add_param_group({"params": slower["params"], "lr": slower["lr"]})
    return Setup(
        "classes", chosen, seed, model, optimizer, train, val, F.cross_entropy, accuracy, floor=most_frequent(val[-1])
    )
