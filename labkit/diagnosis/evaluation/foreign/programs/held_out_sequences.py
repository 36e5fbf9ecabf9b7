"""Held-out programs on sequences: volatility in double precision, ambiguous slots, a language model, stars, menus."""

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.diagnosis.evaluation.foreign.programs.retired_tabular import standardised
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


class Volatility(nn.Module):
    """A GRU over the last days, and one linear layer."""

    def __init__(self, width: int):
        super().__init__()
        self.gru = nn.GRU(2, width, batch_first=True)
        self.next_days = nn.Linear(width, 1)

    def forward(self, days: Tensor) -> Tensor:
        return self.next_days(self.gru(days)[0][:, -1]).squeeze(-1)


@program("forecasting", {"adam": (5e-3, 3e-3), "adamw": (5e-3,)}, (16, 12), (32, 40), 6, 0.28,
         schedules=("cosine", "constant", "halved"))  # fmt: skip
def market_volatility(seed: int, chosen: Settings) -> Setup:
    """How restless will the next five days be? Daily returns tell little about it; in double precision."""
    g = generator(seed)
    shocks, noise = torch.randn(2, 1900, 40, generator=g, dtype=torch.float64)
    level = shocks.clone()
    for day in range(1, 40):
        level[:, day] = 0.95 * level[:, day - 1] + 0.45 * shocks[:, day]
    returns = (0.5 * level).exp() * noise
    size = (returns.abs() + 0.05).log()
    size = (size - size.mean()) / size.std()
    windows = torch.stack([size, returns.clamp(-5, 5) / returns.std()], 2)[:, 23:35]
    train, val = split_off(700, windows, standardised(size[:, 35:].mean(1)))
    model = Volatility(chosen.width).double()
    return Setup(
        "regression", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, F.mse_loss, r2, "r2"
    )


class Mixer(nn.Module):
    """Mixes over the days, then over the shops, each around a shortcut."""

    def __init__(self, days: int, series: int, width: int):
        super().__init__()
        self.over_days = nn.Sequential(nn.Linear(days, width), nn.GELU(), nn.Linear(width, days))
        self.over_series = nn.Sequential(nn.Linear(series, width), nn.GELU(), nn.Linear(width, series))
        self.norm, self.drop, self.head = nn.LayerNorm(series), nn.Dropout(0.1), nn.Linear(days, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.over_days(x.transpose(1, 2)).transpose(1, 2)
        x = x + self.drop(self.over_series(self.norm(x)))
        return self.head(x.transpose(1, 2)).squeeze(-1)


@program("forecasting", {"adamw": (2e-3, 4e-3), "radam": (3e-3,)}, (32, 48), (24, 32), 6, 0.25,
         schedules=("constant", "cosine", "exponential"))  # fmt: skip
def bakery_sales(seed: int, chosen: Settings) -> Setup:
    """What six shops sell tomorrow, from three weeks of sales with much chance in them."""
    g = generator(seed)
    day = torch.arange(1400)
    weekly = torch.randn(6, 7, generator=g)[:, day % 7]
    common = torch.zeros(1400)
    for turn, push in enumerate(torch.randn(1400, generator=g).tolist()):
        common[turn] = 0.85 * common[turn - 1] + 0.5 * push if turn else push
    sales = (weekly + common * (0.5 + torch.rand(6, 1, generator=g)) + 0.9 * torch.randn(6, 1400, generator=g)).T
    sales = standardised(sales)
    starts = torch.arange(1400 - 22)
    windows, tomorrow = torch.stack([sales[start : start + 21] for start in starts]), sales[starts + 21]
    mixed = torch.cat([torch.randperm(950, generator=g), torch.arange(978, 1378)])
    train, val = split_off(400, windows[mixed], tomorrow[mixed])
    model = Mixer(21, 6, chosen.width)
    return Setup(
        "regression", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, nn.HuberLoss(), r2,
        "r2",
    )  # fmt: skip


# --- tagging ------------------------------------------------------------------------------------------

PLACES = ("paris", "lisbon", "oslo", "verona", "florence", "sydney", "austin", "jordan")
PEOPLE = ("anna", "omar", "lena", "victor", "florence", "sydney", "austin", "jordan")  # some are places as well
SHAPES = (
    "call {person} from {place} at {time}",
    "book a flight to {place} for {person}",
    "remind {person} {time}",
    "is {place} sunny {time}",
    "write {person} that {person} is late",
    "drive me to {place} {time} please",
    "tell me about {place}",
    "tell me about {person}",
    "find {person}",
    "find {place}",
)
TIMES = ("now", "today", "tomorrow", "tonight", "later")
SLOTS = {"place": (1, PLACES), "person": (2, PEOPLE), "time": (3, TIMES)}


def commands(seed: int, count: int, length: int) -> tuple[Tensor, Tensor, int]:
    """(words, slots, number of words): padding is word 0 with label -100; one label of ten is another annotator's."""
    chance = random.Random(f"commands {seed}")
    words = sorted({*PLACES, *PEOPLE, *TIMES, *(word for shape in SHAPES for word in shape.split() if "{" not in word)})
    tokens, labels = torch.zeros(count, length, dtype=torch.long), torch.full((count, length), IGNORED)
    for row in range(count):
        for at, word in enumerate(chance.choice(SHAPES).split()):
            slot, choices = SLOTS.get(word.strip("{}"), (0, (word,)))
            tokens[row, at] = words.index(chance.choice(choices)) + 1
            labels[row, at] = slot if chance.random() < 0.9 else chance.choice((0, 0, 1, 2, 3))
    return tokens, labels, len(words) + 1


class Slots(nn.Module):
    """Embedding, an LSTM in both directions, and a head; also returns the states."""

    def __init__(self, words: int, width: int):
        super().__init__()
        self.words = nn.Embedding(words, 16, padding_idx=0)
        self.lstm, self.drop = nn.LSTM(16, width, batch_first=True, bidirectional=True), nn.Dropout(0.2)
        self.slots = nn.Linear(2 * width, 4)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        states, _ = self.lstm(self.drop(self.words(tokens)))
        return self.slots(self.drop(states)), states


def with_dictionaries(s: Setup, watch: Callable) -> None:
    """Batches are dictionaries; gradients are clipped before each step."""
    probe = dict(zip(("input_ids", "labels"), s.probe, strict=True))
    with watch(s.model, s.optimizer, probe=probe, loss_fn=s.loss) as record:
        for _ in range(s.epochs):
            s.model.train()
            for tokens, labels in s.epoch():
                batch = {"input_ids": tokens, "labels": labels}
                loss = s.loss(s.model(batch["input_ids"]), batch["labels"])
                loss.backward()
                torch.nn.utils.clip_grad_norm_(s.model.parameters(), 1.0)
                s.optimizer.step()
                s.optimizer.zero_grad()
                record.step(loss, batch=batch)
            s.end_epoch()
            s.validate(record)


@program("tagging", {"adam": (5e-3, 8e-3), "adamw": (5e-3,), "rmsprop": (3e-3,)}, (20, 28), (32, 24), 7, 0.5,
         schedules=("constant", "exponential", "cosine"), loop=with_dictionaries)  # fmt: skip
def spoken_commands(seed: int, chosen: Settings) -> Setup:
    """Which words of a command are a place, a person or a time? Some names are both, and annotators disagree."""
    tokens, labels, words = commands(seed, 1000, 8)
    train, val = split_off(250, tokens, labels)
    model = Slots(words, chosen.width)
    return Setup(
        "tokens", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val,
        lambda outputs, targets: token_loss(outputs[0], targets),
        lambda outputs, targets: accuracy(outputs[0], targets), floor=most_frequent(val[-1]),
    )  # fmt: skip


# --- language model -----------------------------------------------------------------------------------

SUBJECTS = ("my aunt", "the cook", "our neighbour", "a child", "the old captain", "nobody", "the teacher", "my cat")
VERBS = {"sees": "things", "paints": "things", "sells": "things", "walks to": "spots", "waits at": "spots", "rests": ""}
WHAT = {
    "things": ("a boat", "the red door", "two apples", "a letter", "the clock", "some bread"),
    "spots": ("the harbour", "the market", "a bridge", "the station", "the hill"),
    "": ("deeply", "badly", "again"),
}
ENDS = ("today", "every morning", "when it rains", "with a friend", "in winter", "without a word")


def small_stories(seed: int, count: int, length: int) -> tuple[Tensor, int]:
    """Windows of sentences from a small grammar, as numbers of words: (windows, number of words)."""
    chance = random.Random(f"stories {seed}")
    text: list[str] = []
    while len(text) < count * length:
        who, verb = chance.choice(SUBJECTS), chance.choice(list(VERBS))
        parts = [who, verb, chance.choice(WHAT[VERBS[verb]])]
        parts += [chance.choice(ENDS)] if chance.random() < 0.5 else []
        if chance.random() < 0.2:
            parts += ["and", chance.choice(("she", "he")), "rests"]
        text += [*" ".join(parts).split(), "."]
    words = {word: number for number, word in enumerate(sorted(set(text)))}
    return torch.tensor([words[word] for word in text[: count * length]]).view(count, length), len(words)


class Causal(nn.Module):
    """Attention to what came before, and a feed-forward part, with dropout."""

    def __init__(self, width: int):
        super().__init__()
        self.before, self.after, self.drop = nn.LayerNorm(width), nn.LayerNorm(width), nn.Dropout(0.1)
        self.qkv, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.drop(self.join(heads))
        return x + self.drop(self.mlp(self.after(x)))


class Storyteller(nn.Module):
    """Two causal blocks."""

    def __init__(self, words: int, length: int, width: int):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Causal(width) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def in_small_parts(s: Setup, watch: Callable) -> None:
    """Accumulates the gradients of the parts of each batch, then clips, steps, and steps the schedule."""
    with watch(s.model, s.optimizer, probe=s.probe, loss_fn=s.loss) as record:
        for _ in range(s.epochs):
            s.model.train()
            for tokens, following in s.epoch():
                parts = list(zip(tokens.chunk(2), following.chunk(2), strict=True))
                total = torch.zeros(())
                for part, wanted in parts:
                    loss = s.loss(s.model(part), wanted) / len(parts)
                    loss.backward()
                    total += loss.detach()
                nn.utils.clip_grad_norm_(s.model.parameters(), 1.0)
                s.optimizer.step()
                s.end_step()
                s.optimizer.zero_grad(set_to_none=True)
                record.step(total, batch=(tokens, following))
            s.validate(record)
            s.end_epoch()


@program("language model", {"adamw": (3e-3, 5e-3), "adam": (4e-3,)}, (32, 40), (32, 24), 8, 0.3,
         schedules=("warmup and cosine", "linear decay", "constant"), loop=in_small_parts)  # fmt: skip
def small_stories_gpt(seed: int, chosen: Settings) -> Setup:
    """The next word of stories from a small grammar, in which most words can be followed by many."""
    windows, words = small_stories(seed, 640, 13)
    train, val = split_off(180, windows[:, :-1], windows[:, 1:])
    model = Storyteller(words, 12, chosen.width)
    return Setup(
        "tokens", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, token_loss, accuracy,
        floor=most_frequent(val[-1]),
    )  # fmt: skip


# --- classification of sequences ----------------------------------------------------------------------


class Stars(nn.Module):
    """A GRU over word vectors, attention over its states, dropout, five classes; returns a dictionary."""

    def __init__(self, words: int, width: int):
        super().__init__()
        self.words, self.gru = nn.Embedding(words, 12), nn.GRU(12, width, batch_first=True)
        self.weigh, self.drop = nn.Linear(width, 1), nn.Dropout(0.2)
        self.hidden, self.act, self.stars = nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 5)

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        states, _ = self.gru(self.words(tokens))
        weights = self.weigh(states).softmax(1)
        pooled = self.drop((weights * states).sum(1))
        return {"logits": self.stars(self.act(self.hidden(pooled))), "attention": weights}


def without_a_probe(s: Setup, watch: Callable) -> None:
    """Gives the watch neither a probe nor a loss function."""
    with watch(s.model, s.optimizer) as record:
        for _ in range(s.epochs):
            s.model.train()
            for *x, y in s.epoch():
                s.optimizer.zero_grad()
                loss = s.loss(s.model(*x), y)
                loss.backward()
                s.optimizer.step()
                record.step(loss, batch=(*x, y))
            s.validate(record)
            s.end_epoch()


@program("sequence classes", {"adam": (4e-3, 3e-3), "adamw": (4e-3,), "nadam": (3e-3,)}, (24, 32), (40, 56), 5, 0.15,
         schedules=("constant", "cosine", "halved"), loop=without_a_probe)  # fmt: skip
def review_stars(seed: int, chosen: Settings) -> Setup:
    """One to five stars for a review: neighbours are easily confused, and a 'not' turns the next word round."""
    g = generator(seed)
    tone = torch.randn(60, generator=g) * (torch.rand(60, generator=g) < 0.4)
    tokens = torch.randint(60, (2200, 8), generator=g)
    turned = F.pad((tokens[:, :-1] < 6).float(), (1, 0))
    mood = standardised((tone[tokens] * (1 - 2 * turned)).sum(1)) + 0.4 * torch.randn(2200, generator=g)
    stars = torch.bucketize(mood, mood.quantile(torch.tensor([0.15, 0.3, 0.5, 0.75])))
    train, val = split_off(600, tokens, stars)
    model = Stars(60, chosen.width)
    return Setup(
        "classes", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val,
        lambda outputs, targets: F.cross_entropy(outputs["logits"], targets),
        lambda outputs, targets: accuracy(outputs["logits"], targets), floor=most_frequent(val[-1]),
    )  # fmt: skip


# --- masked tokens ------------------------------------------------------------------------------------

DISHES, HIDDEN = 40, 40


def menus(seed: int, count: int, length: int) -> tuple[Tensor, Tensor]:
    """Menus of one of six kitchens, each with its favourites; a quarter of the dishes is masked."""
    g = generator(seed)
    places = torch.rand(6, DISHES, generator=g).argsort(1)
    favourites = (1.0 + places).pow(-1.6)
    kitchens = torch.randint(6, (count,), generator=g)
    dishes = torch.multinomial(favourites[kitchens], length, replacement=True, generator=g)
    hidden = torch.rand(dishes.shape, generator=g) < 0.25
    hidden[:, 0] |= ~hidden.any(1)
    return dishes.masked_fill(hidden, HIDDEN), dishes.masked_fill(~hidden, IGNORED)


class Menus(nn.Module):
    """A transformer encoder of torch over the dishes of a menu."""

    def __init__(self, width: int):
        super().__init__()
        self.dishes = nn.Embedding(DISHES + 1, width)
        nn.init.normal_(self.dishes.weight, std=0.3)
        self.layer = nn.TransformerEncoderLayer(
            width, 2, 2 * width, dropout=0.1, activation=nn.SiLU(), batch_first=True, norm_first=True
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, DISHES)

    def forward(self, dishes: Tensor) -> Tensor:
        return self.head(self.norm(self.layer(self.dishes(dishes))))


@program("masked tokens", {"adamw": (5e-3, 3e-3), "adam": (4e-3,)}, (32, 40), (48, 32), 6, 0.25,
         schedules=("warmup", "constant", "cosine"))  # fmt: skip
def masked_menus(seed: int, chosen: Settings) -> Setup:
    """Which dishes were left out? The others tell the kitchen, and no more."""
    train, val = split_off(400, *menus(seed, 1600, 8))
    model = Menus(chosen.width)
    return Setup(
        "tokens", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, token_loss, accuracy,
        floor=most_frequent(val[-1]),
    )  # fmt: skip
