"""Retired programs, once held out, on sequences: quantiles, tagged characters, tied weights, masked tokens."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.diagnosis.evaluation.foreign.programs.sequences import IGNORED, token_loss
from labkit.diagnosis.evaluation.foreign.setup import (
    Settings,
    Setup,
    accuracy,
    generator,
    most_frequent,
    optimizer_for,
    program,
    r2,
    split_off,
)

# --- forecasting --------------------------------------------------------------------------------------


@dataclass
class Forecast:
    """The median of the next level, and the range in which it will be four times out of five."""

    median: Tensor
    low: Tensor
    high: Tensor


class TideReader(nn.Module):
    """A GRU over the last hours; its last state asks all its states, and three quantiles are read off."""

    def __init__(self, width: int):
        super().__init__()
        self.gru = nn.GRU(2, width, batch_first=True)
        self.query, self.mix = nn.Linear(width, width), nn.Linear(2 * width, width)
        self.act, self.quantiles = nn.ELU(), nn.Linear(width, 3)

    def forward(self, hours: Tensor) -> Forecast:
        states, _ = self.gru(hours)
        weights = (states @ self.query(states[:, -1]).unsqueeze(2) / states.shape[2] ** 0.5).softmax(1)
        asked = (weights * states).sum(1)
        median, below, above = self.quantiles(self.act(self.mix(torch.cat([asked, states[:, -1]], 1)))).unbind(1)
        return Forecast(median, median - F.softplus(below), median + F.softplus(above))


def pinball(outputs: Forecast, targets: Tensor) -> Tensor:
    """Each quantile costs its share of what it is too low, and the rest of what it is too high."""
    losses = []
    for share, said in ((0.5, outputs.median), (0.1, outputs.low), (0.9, outputs.high)):
        missed = targets - said
        losses.append(torch.maximum(share * missed, (share - 1) * missed).mean())
    return torch.stack(losses).sum()


def clipped_at_one(s: Setup, watch: Callable) -> None:
    """Clips the norm of the gradients at 1, as most examples of recurrent nets do; a schedule per step or epoch."""
    with watch(s.model, s.optimizer, probe=s.probe, loss_fn=s.loss) as record:
        for _ in range(s.epochs):
            s.model.train()
            for x, y in s.epoch():
                s.optimizer.zero_grad()
                loss = s.loss(s.model(x), y)
                loss.backward()
                nn.utils.clip_grad_norm_(s.model.parameters(), 1.0)
                s.optimizer.step()
                s.end_step()
                record.step(loss, batch=(x, y))
            s.validate(record)
            s.end_epoch()


@program("forecasting", {"adam": (6e-3, 4e-3), "radam": (6e-3,)}, (24, 32), (32, 48), 8, 0.7,
         schedules=("restarts", "constant", "cosine"), loop=clipped_at_one)  # fmt: skip
def tide_gauge(seed: int, chosen: Settings) -> Setup:
    """The water level in six hours, with its uncertainty, from level and wind of the last day."""
    g = generator(seed)
    hour = torch.arange(1500.0)
    phases = 6.2832 * torch.rand(4, generator=g)
    periods, heights = (12.42, 12.0, 25.82, 23.93), (1.2, 0.5, 0.4, 0.3)
    tide = sum(height * torch.sin(6.2832 * hour / period + phase)
               for height, period, phase in zip(heights, periods, phases, strict=True))  # fmt: skip
    noise, wind, surge = torch.randn(1500, 2, generator=g).tolist(), [0.0], [0.0]
    for push, pull in noise[1:]:
        wind.append(0.97 * wind[-1] + 0.25 * push)
        surge.append(0.9 * surge[-1] + 0.05 * wind[-1] + 0.03 * pull)
    level = tide + torch.tensor(surge)
    seen = torch.stack([level / level.std(), torch.tensor(wind)], 1)
    starts = torch.arange(1500 - 30)
    windows = torch.stack([seen[start : start + 24] for start in starts])
    ahead = seen[starts + 29, 0]
    mixed = torch.cat([torch.randperm(1140, generator=g), torch.arange(1170, 1470)])  # the last days validate
    train, val = split_off(300, windows[mixed], ahead[mixed])
    model = TideReader(chosen.width)
    return Setup(
        "regression", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, pinball,
        lambda outputs, targets: r2(outputs.median, targets), "r2",
    )  # fmt: skip


# --- tagging ------------------------------------------------------------------------------------------

LETTERS = "abcdefghijklmnoprstuvwxz"
CHARACTERS = " " + "0123456789.:,%" + LETTERS  # a character's number is its place here, plus 1; 0 is padding


def receipt_line(chance: random.Random) -> tuple[str, list[int]]:
    """A line of a receipt, and the field of each of its characters: 0 space, then item, amount, price, date, time."""

    def digits(count: int) -> str:
        return "".join(chance.choice("0123456789") for _ in range(count))

    makers: list[Callable[[], str]] = [
        lambda: "".join(chance.choice(LETTERS) for _ in range(chance.randint(3, 6))),
        lambda: digits(chance.randint(1, 2)) + chance.choice(["x", "kg", "l"]),
        lambda: digits(chance.randint(1, 2)) + "," + digits(2),
        lambda: digits(2) + "." + digits(2) + ".",
        lambda: digits(2) + ":" + digits(2),
        lambda: digits(chance.randint(1, 2)) + "%",
        lambda: digits(chance.randint(4, 6)),
    ]
    text, fields = "", []
    while True:
        kind = chance.randrange(len(makers))
        piece = makers[kind]()
        if len(text) + len(piece) > 23:
            return text, fields
        text += piece + " "
        fields += [kind + 1] * len(piece) + [0]


class Receipts(nn.Module):
    """Convolutions over the characters, then attention that does not look at the padding; returns a dictionary."""

    def __init__(self, width: int):
        super().__init__()
        self.characters = nn.Embedding(len(CHARACTERS) + 1, width, padding_idx=0)
        self.near = nn.Conv1d(width, width, 5, padding=2)
        self.wide = nn.Conv1d(width, width, 3, padding=2, dilation=2)
        self.act, self.norm = nn.GELU(), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.fields = nn.Linear(width, 8)

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        x = self.characters(tokens).transpose(1, 2)
        x = self.act(self.near(x))
        x = self.norm((x + self.act(self.wide(x))).transpose(1, 2))
        x = x + self.attention(x, x, x, key_padding_mask=tokens == 0, need_weights=False)[0]
        return {"logits": self.fields(x), "features": x}


def with_named_batches(s: Setup, watch: Callable) -> None:
    """Batches are dictionaries of tokens and labels; the loss is recorded as a number."""

    def named(tokens: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"tokens": tokens, "labels": labels}

    with watch(s.model, s.optimizer, probe=named(*s.probe), loss_fn=s.loss) as record:
        for _ in range(s.epochs):
            s.model.train()
            for pair in s.epoch():
                batch = named(*pair)
                output = s.model(batch["tokens"])
                loss = s.loss(output, batch["labels"])
                s.optimizer.zero_grad()
                loss.backward()
                s.optimizer.step()
                record.step(loss.item(), batch=batch)
            s.end_epoch()
            s.validate(record)


@program("tagging", {"adamax": (8e-3, 4e-3), "adam": (4e-3,)}, (32, 40), (32, 24), 12, 0.6,
         schedules=("constant", "halved", "cosine"), loop=with_named_batches)  # fmt: skip
def receipt_fields(seed: int, chosen: Settings) -> Setup:
    """Which field does each character of a receipt belong to? Lines are padded to 24 characters."""
    chance = random.Random(f"receipts {seed}")
    tokens, labels = torch.zeros(800, 24, dtype=torch.long), torch.full((800, 24), IGNORED)
    for row in range(800):
        text, fields = receipt_line(chance)
        tokens[row, : len(text)] = torch.tensor([CHARACTERS.index(each) + 1 for each in text])
        labels[row, : len(text)] = torch.tensor(fields)
    train, val = split_off(160, tokens, labels)
    model = Receipts(chosen.width)
    return Setup(
        "tokens", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val,
        lambda outputs, targets: token_loss(outputs["logits"], targets),
        lambda outputs, targets: accuracy(outputs["logits"], targets), floor=most_frequent(val[-1]),
    )  # fmt: skip


# --- language model -----------------------------------------------------------------------------------


def songs(seed: int, count: int, length: int) -> Tensor:
    """Chords of songs in any of twelve keys: which chord follows depends on the degree of the scale."""
    chance = random.Random(f"songs {seed}")
    follows = {0: (3, 4), 1: (4, 3), 2: (5, 3), 3: (4, 0), 4: (0, 5), 5: (1, 3)}
    roots, minor = (0, 2, 4, 5, 7, 9), (0, 1, 1, 0, 0, 1)
    rows = []
    for _ in range(count):
        key, degree, row = chance.randrange(12), chance.randrange(6), []
        for _ in range(length):
            row.append((key + roots[degree]) % 12 + 12 * minor[degree])
            drawn = chance.random()
            degree = follows[degree][0] if drawn < 0.72 else follows[degree][1] if drawn < 0.92 else chance.randrange(6)
        rows.append(row)
    return torch.tensor(rows)


class Composer(nn.Module):
    """A GRU whose output layer has the weights of its embedding."""

    def __init__(self, width: int):
        super().__init__()
        self.chords = nn.Embedding(24, width)
        nn.init.normal_(self.chords.weight, std=0.1)
        self.gru, self.bridge = nn.GRU(width, width, batch_first=True), nn.Linear(width, width)
        self.drop, self.act = nn.Dropout(0.1), nn.Tanh()
        self.following = nn.Linear(width, 24)
        self.following.weight = self.chords.weight

    def forward(self, chords: Tensor) -> Tensor:
        states, _ = self.gru(self.drop(self.chords(chords)))
        return self.following(self.act(self.bridge(states)))


@program("language model", {"adamw": (1e-2, 6e-3), "adam": (8e-3,)}, (40, 56), (32, 24), 14, 0.4,
         schedules=("linear decay", "constant", "cosine"), loop=clipped_at_one)  # fmt: skip
def chord_songs(seed: int, chosen: Settings) -> Setup:
    """The next chord of a song; the key has to be heard from the chords before."""
    chords = songs(seed, 800, 17)
    train, val = split_off(160, chords[:, :-1], chords[:, 1:])
    model = Composer(chosen.width)
    return Setup(
        "tokens", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, token_loss, accuracy,
        floor=most_frequent(val[-1]),
    )  # fmt: skip


# --- classification of sequences ----------------------------------------------------------------------


def vibrations(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Three accelerometers on a rotating machine: sound, unbalanced, misaligned, a worn bearing, a loose foot."""
    g = generator(seed)
    kinds = torch.randint(5, (count,), generator=g)
    speed, phase = 0.25 + 0.15 * torch.rand(count, 1, 1, generator=g), 6.2832 * torch.rand(count, 3, 1, generator=g)
    time = torch.arange(72.0)
    once, twice = torch.sin(speed * time + phase), torch.sin(2 * speed * time + phase)
    bursts = torch.sin(2.4 * time + phase) * (torch.sin(0.7 * speed * time + phase) > 0.6)
    loose = once.clamp(-0.3, 0.9)
    shapes = torch.stack([0.4 * once, 1.1 * once, 0.4 * once + 0.9 * twice, 0.4 * once + 1.1 * bursts, 1.3 * loose], 1)
    x = shapes[torch.arange(count), kinds] * (0.8 + 0.4 * torch.rand(count, 1, 1, generator=g))
    return x + 0.25 * torch.randn(x.shape, generator=g), kinds


class Separable(nn.Module):
    """A convolution per channel, then one across the channels, with group norm."""

    def __init__(self, enters: int, leaves: int):
        super().__init__()
        self.depth = nn.Conv1d(enters, enters, 7, padding=3, groups=enters)
        self.point, self.norm, self.act = nn.Conv1d(enters, leaves, 1), nn.GroupNorm(4, leaves), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.point(self.depth(x))))


class Vibrations(nn.Module):
    """Separable convolutions, and a pooling that learns where to look."""

    def __init__(self, width: int):
        super().__init__()
        self.stem = nn.Conv1d(3, width, 5, stride=2, padding=2)
        self.body = nn.Sequential(Separable(width, width), Separable(width, 2 * width))
        self.look, self.classes = nn.Conv1d(2 * width, 1, 1), nn.Linear(2 * width, 5)

    def forward(self, signals: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(self.stem(signals))
        weights = self.look(features).softmax(-1)
        return self.classes((features * weights).sum(-1)), weights


@program("sequence classes", {"nesterov": (0.03, 0.05), "adamw": (4e-3, 2e-3)}, (16, 20), (32, 48), 12, 0.6,
         schedules=("cosine", "constant", "halved"))  # fmt: skip
def machine_vibrations(seed: int, chosen: Settings) -> Setup:
    """What is wrong with the machine? Weight decay for the matrices only; the net also returns where it looks."""
    train, val = split_off(180, *vibrations(seed, 900))
    model = Vibrations(chosen.width)
    optimizer = optimizer_for([each for each in model.parameters() if each.ndim > 1], chosen)
    optimizer.param_groups[0]["weight_decay"] = 1e-3
    optimizer.add_param_group({"params": [each for each in model.parameters() if each.ndim == 1], "weight_decay": 0.0})
    return Setup(
        "classes", chosen, seed, model, optimizer, train, val,
        lambda outputs, targets: F.cross_entropy(outputs[0], targets, label_smoothing=0.1),
        lambda outputs, targets: accuracy(outputs[0], targets), floor=most_frequent(val[-1]),
    )  # fmt: skip


# --- masked tokens ------------------------------------------------------------------------------------

STOPS, MASKED = 30, 30


def routes(seed: int, count: int, length: int) -> tuple[Tensor, Tensor]:
    """Rides along five lines that share stops, in both directions, with a change now and then; a fifth is masked."""
    g, chance = generator(seed), random.Random(f"routes {seed}")
    lines = [torch.randperm(STOPS, generator=g)[:12].tolist() for _ in range(5)]
    rows = []
    for _ in range(count):
        line, way = chance.choice(lines), chance.choice((1, -1))
        at, row = chance.randrange(12), []
        while len(row) < length:
            row.append(line[at])
            way = way if 0 <= at + way < 12 else -way
            others = [each for each in lines if row[-1] in each and each is not line]
            if others and chance.random() < 0.15:
                line = chance.choice(others)
                at = line.index(row[-1])
                way = way if 0 <= at + way < 12 else -way
            at += way
        rows.append(row)
    stops = torch.tensor(rows)
    hidden = torch.rand(stops.shape, generator=g) < 0.2
    hidden[:, length // 2] |= ~hidden.any(1)
    return stops.masked_fill(hidden, MASKED), stops.masked_fill(~hidden, IGNORED)


class Block(nn.Module):
    """Attention in both directions and a feed-forward part, each behind a norm."""

    def __init__(self, width: int):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.asked, self.given = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.grow, self.act, self.shrink = nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.asked(self.first(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.given(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        return x + self.shrink(self.act(self.grow(self.second(x))))


class Encoder(nn.Module):
    """Two blocks over stops with learned positions."""

    def __init__(self, length: int, width: int):
        super().__init__()
        self.stops, self.positions = nn.Embedding(STOPS + 1, width), nn.Parameter(torch.zeros(length, width))
        for each in (self.stops.weight, self.positions):
            nn.init.normal_(each, std=0.1)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, STOPS)

    def forward(self, stops: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.stops(stops) + self.positions)))


@program("masked tokens", {"adamw": (6e-3, 4e-3), "adam": (4e-3,)}, (32, 48), (32, 48), 9, 0.4,
         schedules=("linear decay", "cosine"), loop=clipped_at_one)  # fmt: skip
def masked_routes(seed: int, chosen: Settings) -> Setup:
    """Which stops were left out? A small BERT; only masked places have a label."""
    train, val = split_off(200, *routes(seed, 1160, 12))
    model = Encoder(12, chosen.width)
    return Setup(
        "tokens", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, token_loss, accuracy,
        floor=most_frequent(val[-1]),
    )  # fmt: skip
