"""Retired programs, once held out, on small images: clocks, road masks, and a net for letters that is fine-tuned."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.diagnosis.evaluation.foreign.programs.images import overlap
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

# --- images -------------------------------------------------------------------------------------------


def line_distance(size: int, start: Tensor, end: Tensor) -> Tensor:
    """How far each pixel is from the line between two points: (count, size, size)."""
    grid = torch.stack(torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij"), -1).float()
    along = (end - start)[:, None, None]
    away = grid - start[:, None, None]
    share = ((away * along).sum(-1) / (along**2).sum(-1)).clamp(0, 1)
    return (away - share[..., None] * along).norm(dim=-1)


def clocks(seed: int, count: int, size: int) -> tuple[Tensor, Tensor]:
    """Dials with a short and a long hand, and the eighth of the dial in which the short one is."""
    g = generator(seed)
    hours = torch.randint(8, (count,), generator=g)
    short = (hours + 0.2 + 0.6 * torch.rand(count, generator=g)) * 6.2832 / 8
    long = 6.2832 * torch.rand(count, generator=g)
    middle = size / 2 - 0.5 + 0.5 * torch.randn(count, 2, generator=g)
    images = torch.zeros(count, size, size)
    for angle, length, thick in ((short, 0.26, 1.2), (long, 0.46, 0.7)):
        tip = middle + size * length * torch.stack([angle.sin(), angle.cos()], 1)
        images = torch.maximum(images, (thick + 0.5 - line_distance(size, middle, tip)).clamp(0, 1))
    contrast = 0.7 + 0.6 * torch.rand(count, 1, 1, generator=g)
    images = images * contrast + 0.15 * torch.randn(count, size, size, generator=g)
    return ((images - images.mean()) / images.std()).unsqueeze(1), hours


def with_augmentation(s: Setup, watch: Callable) -> None:
    """Each training image is made lighter or darker at random before it is shown."""
    with watch(s.model, s.optimizer, probe=s.probe, loss_fn=s.loss) as record:
        for _ in range(s.epochs):
            s.model.train()
            for images, hours in s.epoch():
                images = images * (0.8 + 0.4 * torch.rand(len(images), 1, 1, 1))
                loss = s.loss(s.model(images), hours)
                s.optimizer.zero_grad()
                loss.backward()
                s.optimizer.step()
                record.step(loss, batch=(images, hours))
            s.validate(record)
            s.end_epoch()


@program("images", {"adamw": (4e-3, 2e-3), "nesterov": (0.03,), "adam": (3e-3,)}, (12, 16), (32, 48), 10, 0.6,
         schedules=("restarts", "cosine", "constant"), loop=with_augmentation)  # fmt: skip
def clock_faces(seed: int, chosen: Settings) -> Setup:
    """Where is the short hand? Convolutions with group norm, label smoothing, warm restarts."""
    train, val = split_off(200, *clocks(seed, 1000, 18))
    w = chosen.width
    model = nn.Sequential(
        nn.Conv2d(1, w, 5, stride=2, padding=2), nn.GroupNorm(4, w), nn.SiLU(),
        nn.Conv2d(w, 2 * w, 3, stride=2, padding=1), nn.GroupNorm(4, 2 * w), nn.SiLU(),
        nn.Flatten(), nn.Linear(50 * w, 32), nn.SiLU(), nn.Linear(32, 8),
    )  # fmt: skip
    return Setup(
        "classes", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val,
        nn.CrossEntropyLoss(label_smoothing=0.1), accuracy, floor=most_frequent(val[-1]),
    )  # fmt: skip


# --- segmentation -------------------------------------------------------------------------------------


class Roads(nn.Module):
    """A small U-Net: strided convolutions down, transposed ones up, the finer features beside the coarser ones."""

    def __init__(self, width: int):
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(2, width, 3, padding=1), nn.GroupNorm(2, width), nn.LeakyReLU(0.1))
        self.down = nn.Sequential(
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.GroupNorm(2, 2 * width), nn.LeakyReLU(0.1)
        )
        self.up = nn.Sequential(nn.ConvTranspose2d(2 * width, width, 2, stride=2), nn.LeakyReLU(0.1))
        self.mask = nn.Conv2d(2 * width, 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        fine = self.enter(images)
        return self.mask(torch.cat([fine, self.up(self.down(fine))], 1)).squeeze(1)


def dice_and_entropy(outputs: Tensor, masks: Tensor) -> Tensor:
    """Binary cross-entropy, and one minus the overlap of the predicted probabilities with the mask."""
    said = outputs.sigmoid()
    dice = (2 * (said * masks).sum() + 1) / (said.sum() + masks.sum() + 1)
    return F.binary_cross_entropy_with_logits(outputs, masks) + 1 - dice


@program("segmentation", {"radam": (1e-2, 5e-3), "adamw": (8e-3,)}, (8, 12), (16, 24), 8, 0.5,
         schedules=("exponential", "constant", "cosine"))  # fmt: skip
def road_masks(seed: int, chosen: Settings) -> Setup:
    """Which pixels are road? Two crossing roads on a patchy background, in two channels."""
    g = generator(seed)
    roads = []
    for _ in range(2):
        ends = 19 * torch.rand(420, 4, generator=g)
        upright = torch.rand(420, 1, generator=g) < 0.5
        across = torch.tensor([0.0, 19.0]).expand(420, 2)
        start, end = torch.stack([across[:, 0], ends[:, 0]], 1), torch.stack([across[:, 1], ends[:, 1]], 1)
        start, end = (torch.where(upright, each, each.flip(1)) for each in (start, end))
        roads.append(line_distance(20, start, end) < 1.1)
    masks = (roads[0] | roads[1]).float()
    patches = F.interpolate(torch.randn(420, 2, 5, 5, generator=g), size=20, mode="bilinear")
    images = torch.stack([1.6 * masks, -0.8 * masks], 1) + patches + 0.4 * torch.randn(420, 2, 20, 20, generator=g)
    train, val = split_off(84, images, masks)
    model = Roads(chosen.width)
    return Setup(
        "binary", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, dice_and_entropy,
        overlap, "iou", floor=val[-1].mean().item(),
    )  # fmt: skip


# --- fine-tuning --------------------------------------------------------------------------------------


def letters(seed: int, alphabet: int, kinds: int, count: int) -> tuple[Tensor, Tensor]:
    """Letters of an invented alphabet, each of three strokes, written a little differently every time."""
    strokes = 2 + 10 * torch.rand(kinds, 3, 2, 2, generator=generator(alphabet))
    g = generator(seed)
    which = torch.randint(kinds, (count,), generator=g)
    images = torch.zeros(count, 14, 14)
    for stroke in range(3):
        points = strokes[which, stroke] + 0.7 * torch.randn(count, 2, 2, generator=g)
        images = torch.maximum(images, (1.4 - line_distance(14, points[:, 0], points[:, 1])).clamp(0, 1))
    images = images + 0.15 * torch.randn(count, 14, 14, generator=g)
    return ((images - images.mean()) / images.std()).unsqueeze(1), which


class Reader(nn.Module):
    """A stem and a block of convolutions with batch norm, and a head."""

    def __init__(self, width: int, kinds: int):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2))
        self.block = nn.Sequential(nn.Conv2d(12, 20, 3, padding=1), nn.BatchNorm2d(20), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(180, width), nn.ReLU(), nn.Linear(width, kinds))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.block(self.stem(images)))


@functools.cache
def trained_reader(seed: int) -> dict[str, Tensor]:
    """The weights of a net that reads another alphabet, of twelve letters."""
    images, which = letters(seed + 700, 1000 + seed, 12, 768)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Reader(32, 12)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(120):
        part = slice(step % 12 * 64, step % 12 * 64 + 64)
        optimizer.zero_grad()
        F.cross_entropy(model(images[part]), which[part]).backward()
        optimizer.step()
    return {name: each for name, each in model.state_dict().items() if not name.startswith("head")}


def with_a_still_stem(s: Setup, watch: Callable) -> None:
    """The stem stays as it is: frozen, and its batch norm in eval mode."""
    with watch(s.model, s.optimizer, probe=s.probe, loss_fn=s.loss) as record:
        for _ in range(s.epochs):
            s.model.train()
            s.model.get_submodule("stem").eval()
            for images, which in s.epoch():
                s.optimizer.zero_grad()
                loss = s.loss(s.model(images), which)
                loss.backward()
                s.optimizer.step()
                record.step(loss, batch=(images, which))
            s.validate(record)
            s.end_epoch()


@program("fine-tuning", {"adam": (2e-3, 3e-3), "adamw": (2e-3,), "momentum": (0.02,)}, (32, 48), (24, 32), 12, 0.6,
         schedules=("constant", "cosine", "halved"), loop=with_a_still_stem)  # fmt: skip
def new_alphabet(seed: int, chosen: Settings) -> Setup:
    """Seven new letters: a new head, the last block at a third of its learning rate, and a frozen stem."""
    train, val = split_off(210, *letters(seed, 2000 + seed, 7, 700))
    model = Reader(chosen.width, 7)
    model.load_state_dict(trained_reader(seed), strict=False)
    model.stem.requires_grad_(False)
    optimizer = optimizer_for(model.head.parameters(), chosen)
    optimizer.add_param_group({"params": list(model.block.parameters()), "lr": chosen.lr / 3})
    return Setup(
        "classes", chosen, seed, model, optimizer, train, val, F.cross_entropy, accuracy, floor=most_frequent(val[-1])
    )
