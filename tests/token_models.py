"""Small language models that are not labkit's, healthy and with known leaks."""

import torch
from torch import Tensor, nn

WORDS, LENGTH = 11, 20


class Recurrent(nn.Module):
    """An LSTM; where it reads in both directions, it looks ahead."""

    def __init__(self, both: bool = False):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 16)
        self.lstm = nn.LSTM(16, 16, batch_first=True, bidirectional=both)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(32 if both else 16, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.dropout(self.lstm(self.embed(tokens))[0]))

    def step(self, tokens: Tensor, state: object) -> tuple[Tensor, object]:
        outputs, state = self.lstm(self.embed(tokens), state)
        return self.head(outputs), state


class Encoder(nn.Module):
    """torch's own transformer; `ahead` says how many later tokens a token sees: 0 is causal, None hides nothing."""

    def __init__(self, ahead: int | None = 0, dropout: float = 0.1):
        super().__init__()
        self.ahead = ahead
        self.embed, self.places = nn.Embedding(WORDS, 16), nn.Embedding(LENGTH, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, WORDS)

    def forward(self, input_ids: Tensor) -> Tensor:
        length = input_ids.shape[1]
        x = self.embed(input_ids) + self.places(torch.arange(length))
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1 + (self.ahead or 0))
        return self.head(self.encoder(x, mask=None if self.ahead is None else hidden))


class Convolution(nn.Module):
    """Reads a window of five tokens: the last five, or two of them ahead."""

    def __init__(self, centred: bool = False):
        super().__init__()
        self.embed, self.window = nn.Embedding(WORDS, 16), nn.Conv1d(16, WORDS, 5)
        self.padding = (2, 2) if centred else (4, 0)

    def forward(self, tokens: Tensor) -> Tensor:
        x = nn.functional.pad(self.embed(tokens).transpose(1, 2), self.padding)
        return self.window(x).transpose(1, 2)


class SmoothedBySequence(nn.Module):
    """Subtracts the mean over all tokens: a norm over the wrong axis."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, 16), nn.Linear(16, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        return self.head(x - x.mean(1, keepdim=True))


CAUSAL = {
    "lstm": Recurrent, "encoder": Encoder, "encoder of one layer's window": Convolution,
}  # fmt: skip
LEAKS = {
    "both directions": lambda: Recurrent(both=True),
    "no mask": lambda: Encoder(ahead=None),
    "one ahead": lambda: Encoder(ahead=1),
    "centred window": lambda: Convolution(centred=True),
    "mean over the sequence": SmoothedBySequence,
}


def sequences(samples: int = 8, seed: int = 0) -> Tensor:
    """Tokens that count upwards from a random one, in steps of 1, with some noise: the next one can be predicted."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(WORDS, (samples, 1), generator=generator)
    noise = torch.rand(samples, LENGTH, generator=generator) < 0.05
    return (first + torch.arange(LENGTH) + noise.long()) % WORDS


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
