"""Sequences: forecasting, tagging with padding, language models, classification by LSTM, GRU and convolution."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.diagnosis.evaluation.foreign.programs.tabular import squared_error
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

IGNORED = -100  # the label of padding


def token_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy at every position; the label -100 does not count."""
    return F.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1))


# --- forecasting ------------------------------------------------------------------------------------


def waves(seed: int, count: int, length: int) -> Tensor:
    """Sums of two sine waves with noise: (count, length)."""
    g = generator(seed)
    time = torch.arange(length) / length
    phase, speed = torch.rand(count, 2, 1, generator=g) * 6.28, 1 + 3 * torch.rand(count, 2, 1, generator=g)
    return torch.sin(6.28 * speed * time + phase).sum(1) + 0.05 * torch.randn(count, length, generator=g)


class Forecaster(nn.Module):
    """Reads a series, predicts the next value."""

    def __init__(self, width: int):
        super().__init__()
        self.memory = nn.GRU(1, width, batch_first=True)
        self.readout = nn.Linear(width, 1)

    def forward(self, series: Tensor) -> Tensor:
        _, last = self.memory(series)
        return self.readout(last[0])


@program("forecasting", {"adam": (1e-2, 5e-3), "rmsprop": (3e-3,)}, (24, 32), (32, 64), 10, 0.6)
def power_demand(seed: int, chosen: Settings) -> Setup:
    """The next value of a series, by a GRU."""
    series = waves(seed, 720, 21)
    train, val = split_off(180, series[:, :-1].unsqueeze(2), series[:, -1])
    model = Forecaster(chosen.width)
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


@program("forecasting", {"adam": (5e-3, 2e-3), "adamw": (5e-3,)}, (16, 24), (32, 16), 10, 0.5)
def river_level(seed: int, chosen: Settings) -> Setup:
    """The next four values, by dilated convolutions; the loss is Huber's."""
    series = waves(seed, 800, 36)
    train, val = split_off(200, series[:, None, :32], series[:, 32:])
    w = chosen.width
    model = nn.Sequential(
        nn.Conv1d(1, w, 3, padding=1), nn.ReLU(), nn.Conv1d(w, w, 3, padding=2, dilation=2), nn.ReLU(),
        nn.Conv1d(w, 8, 3, padding=4, dilation=4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 4),
    )  # fmt: skip
    return Setup(
        "regression",
        chosen,
        seed,
        model,
        optimizer_for(model.parameters(), chosen),
        train,
        val,
        nn.SmoothL1Loss(),
        r2,
        "r2",
    )


# --- tagging ----------------------------------------------------------------------------------------


def tagged(seed: int, count: int, length: int, words: int, tags: int) -> tuple[Tensor, Tensor]:
    """Words with a tag each: it depends on the word and on the word before. Padding is word 0, label -100."""
    g = generator(seed)
    sentences = torch.randint(1, words, (count, length), generator=g)
    table = torch.randint(tags, (words, 2), generator=g)
    before = torch.cat([torch.ones(count, 1, dtype=torch.long), sentences[:, :-1]], 1)
    labels = torch.where(before % 2 == 0, table[sentences, 0], table[sentences, 1])
    lengths = torch.randint(length // 2, length + 1, (count, 1), generator=g)
    padding = torch.arange(length) >= lengths
    return sentences.masked_fill(padding, 0), labels.masked_fill(padding, IGNORED)


class Tagger(nn.Module):
    """Embedding, LSTM, one linear layer; returns a dictionary."""

    def __init__(self, words: int, tags: int, width: int):
        super().__init__()
        self.embed = nn.Embedding(words, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, width, batch_first=True)
        self.dropout = nn.Dropout(0.1)
        self.classifier = nn.Linear(width, tags)

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        hidden, _ = self.lstm(self.embed(tokens))
        return {"logits": self.classifier(self.dropout(hidden)), "hidden": hidden}


def with_clipping(s: Setup, watch: Callable) -> None:
    """Clips by norm, as recurrent nets need it."""
    with watch(s.model, s.optimizer, probe=s.probe, loss_fn=s.loss) as record:
        for _ in range(s.epochs):
            s.model.train()
            for tokens, tags in s.epoch():
                output = s.model(tokens)
                loss = s.loss(output, tags)
                s.optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(s.model.parameters(), max_norm=2.0)
                s.optimizer.step()
                record.step(loss, batch=(tokens, tags))
            s.validate(record)
            s.end_epoch()


@program("tagging", {"adam": (1e-2, 2e-2), "adamw": (1e-2,)}, (48, 64), (32, 16), 12, 0.5, loop=with_clipping)
def word_tags(seed: int, chosen: Settings) -> Setup:
    """A tag for each word; padding has the label -100, and the net returns a dictionary."""
    train, val = split_off(120, *tagged(seed, 600, 12, 24, 5))
    model = Tagger(24, 5, chosen.width)
    return Setup(
        "tokens", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val,
        lambda outputs, labels: token_loss(outputs["logits"], labels),
        lambda outputs, labels: accuracy(outputs["logits"], labels), floor=most_frequent(val[-1]),
    )  # fmt: skip


class Entities(nn.Module):
    """Embedding and a GRU that reads in both directions."""

    def __init__(self, width: int):
        super().__init__()
        self.vocabulary = nn.Embedding(40, 24, padding_idx=0)
        self.reader = nn.GRU(24, width, batch_first=True, bidirectional=True)
        self.hidden = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU())
        self.tags = nn.Linear(width, 7)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        states, last = self.reader(self.vocabulary(tokens))
        return self.tags(self.hidden(states)), last


@program("tagging", {"adam": (8e-3, 4e-3), "nadam": (5e-3,)}, (32, 40), (32, 24), 12, 0.5)
def named_entities(seed: int, chosen: Settings) -> Setup:
    """Tags by a bidirectional GRU; the net returns a tuple, padding has the label -100."""
    train, val = split_off(150, *tagged(seed, 750, 10, 40, 7))
    model = Entities(chosen.width)
    return Setup(
        "tokens", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val,
        lambda outputs, labels: token_loss(outputs[0], labels),
        lambda outputs, labels: accuracy(outputs[0], labels), floor=most_frequent(val[-1]),
    )  # fmt: skip


# --- language models ----------------------------------------------------------------------------------

SENTENCE = "the cat sat on a mat and the dog ran to its house when rain fell over old town"


def characters(seed: int, count: int, length: int) -> tuple[Tensor, Tensor, int]:
    """Windows of a generated text, the same windows one character later, and the size of the alphabet.

    The last fifth of the windows comes from the last fifth of the text, so that validation text is not trained on.
    """
    g = generator(seed)
    words = SENTENCE.split()
    order = torch.randint(len(words), (count * length // 4,), generator=g)
    text = " ".join(words[index] for index in order)
    alphabet = sorted(set(text))
    codes = torch.tensor([alphabet.index(letter) for letter in text])
    places = torch.rand(count, generator=g)
    validating = torch.arange(count) >= 0.8 * count
    places = torch.where(validating, 0.8 + 0.2 * places, 0.79 * places)
    starts = (places * (len(codes) - length - 1)).long()
    windows = torch.stack([codes[start : start + length + 1] for start in starts])
    return windows[:, :-1], windows[:, 1:], len(alphabet)


class CharacterLSTM(nn.Module):
    """The classic: embedding, LSTM, decoder."""

    def __init__(self, letters: int, width: int):
        super().__init__()
        self.encoder, self.rnn = nn.Embedding(letters, 16), nn.LSTM(16, width, batch_first=True)
        self.decoder = nn.Linear(width, letters)

    def forward(self, letters: Tensor) -> Tensor:
        return self.decoder(self.rnn(self.encoder(letters))[0])


@program("language model", {"adam": (1e-2, 2e-2), "adamw": (1e-2,)}, (64, 48), (24, 32), 8, 0.4, loop=with_clipping)
def nursery_rhymes(seed: int, chosen: Settings) -> Setup:
    """The next character of a generated text, by an LSTM."""
    inputs, following, letters = characters(seed, 600, 16)
    train, val = split_off(120, inputs, following)
    model = CharacterLSTM(letters, chosen.width)
    return Setup(
        "tokens", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, token_loss, accuracy,
        floor=most_frequent(val[-1]),
    )  # fmt: skip


class SmallGPT(nn.Module):
    """One causal block with learned positions."""

    def __init__(self, letters: int, width: int, length: int):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(letters, width), nn.Embedding(length, width)
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.head = nn.Linear(width, letters)
        self.register_buffer("mask", torch.triu(torch.ones(length, length, dtype=torch.bool), 1))

    def forward(self, letters: Tensor) -> Tensor:
        x = self.tokens(letters) + self.positions.weight
        calm = self.before(x)
        x = x + self.attention(calm, calm, calm, attn_mask=self.mask, need_weights=False)[0]
        return self.head(x + self.feed(self.after(x)))


@program("language model", {"adamw": (1e-2, 5e-3), "adam": (5e-3,)}, (32, 48), (32, 24), 10, 0.4,
         schedules=("warmup", "cosine", "constant"))  # fmt: skip
def tiny_gpt(seed: int, chosen: Settings) -> Setup:
    """The next character, by a causal transformer block."""
    inputs, following, letters = characters(seed, 640, 12)
    train, val = split_off(128, inputs, following)
    model = SmallGPT(letters, chosen.width, 12)
    return Setup(
        "tokens", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, token_loss, accuracy,
        floor=most_frequent(val[-1]),
    )  # fmt: skip


# --- classification of sequences ------------------------------------------------------------------------


@program("sequence classes", {"adam": (4e-3, 2e-3), "momentum": (0.03,)}, (12, 16), (32, 48), 10, 0.6)
def heart_beats(seed: int, chosen: Settings) -> Setup:
    """Five shapes of a pulse somewhere in a signal, by a 1-D convolutional net with batch norm."""
    g = generator(seed)
    shapes = torch.randn(5, 9, generator=g)
    y = torch.randint(5, (800,), generator=g)
    x = 0.4 * torch.randn(800, 1, 48, generator=g)
    for row, start in enumerate(torch.randint(39, (800,), generator=g).tolist()):
        x[row, 0, start : start + 9] += shapes[y[row]]
    train, val = split_off(200, x, y)
    w = chosen.width
    model = nn.Sequential(
        nn.Conv1d(1, w, 9, padding=4), nn.BatchNorm1d(w), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(w, 2 * w, 5, padding=2), nn.BatchNorm1d(2 * w), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(),
        nn.Linear(2 * w, 5),
    )  # fmt: skip
    return Setup(
        "classes", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, F.cross_entropy,
        accuracy, floor=most_frequent(val[-1]),
    )  # fmt: skip


class Gestures(nn.Module):
    """An LSTM over the movement, the mean of its states, one hidden layer."""

    def __init__(self, width: int):
        super().__init__()
        self.lstm = nn.LSTM(3, width, batch_first=True)
        self.top = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 6))

    def forward(self, movement: Tensor) -> Tensor:
        return self.top(self.lstm(movement)[0].mean(1))


@program("sequence classes", {"adam": (8e-3, 5e-3), "rmsprop": (3e-3,)}, (32, 24), (32, 48), 12, 0.6)
def hand_gestures(seed: int, chosen: Settings) -> Setup:
    """Six movements in space, by an LSTM."""
    g = generator(seed)
    y = torch.randint(6, (720,), generator=g)
    time = torch.linspace(0, 1, 16)
    frequency = torch.tensor([1.0, 2.0, 3.0])[y % 3]
    phase = torch.rand(720, 3, 1, generator=g) * 0.8 + torch.tensor([0.0, 0.7, 1.4])[None, :, None]
    phase = torch.where((y >= 3)[:, None, None], -phase, phase)
    x = torch.sin(6.28 * frequency[:, None, None] * time + phase).transpose(1, 2)
    x = x + 0.25 * torch.randn(x.shape, generator=g)
    train, val = split_off(180, x, y)
    model = Gestures(chosen.width)
    return Setup(
        "classes", chosen, seed, model, optimizer_for(model.parameters(), chosen), train, val, F.cross_entropy,
        accuracy, floor=most_frequent(val[-1]),
    )  # fmt: skip
