"""Language models on characters of English text, for the blind evaluation: no threshold was set on such tokens."""

import functools
import re

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from labkit.failures.catalogue import FAILURES
from labkit.training.data import Split
from labkit.training.language import next_token_evaluate
from labkit.training.state import TrainingState
from labkit.training.tokens import IGNORED, TokenData, next_tokens

LETTERS = "abcdefghijklmnopqrstuvwxyz .,-'0"
END = PAD = len(LETTERS)  # a token of its own, where there is one
LENGTH, STRIDE = 50, 5  # characters of a sequence, and from one to the next
VALIDATED = 0.1  # of the text, its end
SHORTEST = 15  # characters of a padded sequence
PREFIXES = (8, 16, 24, 32, 40, 48)  # tokens that the net has when it is asked for the next one


def english_text(recipe) -> TokenData:
    """What the catalogue says about its modes, in sequences of 50 characters."""
    return _windows(recipe, "english_text", letters())


def packed_text(recipe) -> TokenData:
    """The same, sentence after sentence with a token between them, cut wherever a sequence is full."""
    ends = letters() == LETTERS.index(".")
    return _windows(recipe, "packed_text", torch.where(ends, END, letters()))


def padded_text(recipe) -> TokenData:
    """The same, each sequence cut at another length and padded; padding is no target."""
    data = _windows(recipe, "padded_text", letters())
    return TokenData(data.name, *(_padded(each) for each in (data.train, data.val)), data.classes)


def _padded(split: Split) -> Split:
    place = torch.arange(split.x.shape[1], device=split.x.device)
    draws = torch.rand(len(split.x), generator=torch.Generator().manual_seed(0)).to(split.x.device)
    lengths = (SHORTEST + draws * (len(place) - SHORTEST)).long()[:, None]
    return Split(torch.where(place < lengths, split.x, PAD), torch.where(place < lengths, split.y, IGNORED))


@functools.cache
def letters() -> Tensor:
    """The text of the catalogue as numbers: small letters, and 0 for any number."""
    words = " ".join(
        " ".join((mode.symptom, mode.mechanism, mode.first_check, mode.remedy)) for mode in FAILURES.values()
    )
    plain = re.sub(r"[0-9][0-9,.]*", "0", words.lower())
    return torch.tensor([LETTERS.index(letter) for letter in plain if letter in LETTERS])


def _windows(recipe, name: str, text: Tensor) -> TokenData:
    """Sequences in a fixed random order; those of validation share no character with those of training."""
    cut = int((1 - VALIDATED) * len(text))
    train, val = (part.unfold(0, LENGTH, step) for part, step in ((text[:cut], STRIDE), (text[cut:], LENGTH)))
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    splits = (next_tokens(each.to(recipe.device)) for each in (train[order][: recipe.samples], val))
    return TokenData(name, *splits, len(LETTERS) + 1)


@torch.no_grad()
def evaluate_in_use(training: TrainingState, split: Split) -> dict[str, Tensor | float]:
    """As `next_token_evaluate`, but `nats` is the loss where the net has nothing except the tokens before.

    A net that looks ahead is then as bad as in use, whatever its loss on whole sequences. No digits are written.
    """
    last, training.is_last_evaluation = training.is_last_evaluation, False
    found = next_token_evaluate(training, split)
    training.is_last_evaluation = last
    training.model.eval()
    with training.unobserved():
        losses = [
            cross_entropy(training.forward(split.x[:, :seen])[:, -1].float(), split.y[:, seen - 1], reduction="none")
            for seen in PREFIXES
        ]
    training.model.train()
    counted = split.y[:, [seen - 1 for seen in PREFIXES]] != IGNORED
    return found | {"nats": torch.stack(losses, dim=1)[counted].mean()}


# --- healthy ways to train ------------------------------------------------------------------------


def smoothed_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy with smoothed labels."""
    return cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, label_smoothing=0.1)


def accumulating_step(training: TrainingState, x: Tensor, y: Tensor) -> None:
    """Two halves of a batch, each counted by its number of targets, as one batch would be."""
    training.optimizer.zero_grad()
    counts = [int((each != IGNORED).sum()) for each in y.chunk(2)]
    losses = []
    for part, asked, count in zip(x.chunk(2), y.chunk(2), counts, strict=True):
        losses.append(training.loss(part, asked) * count / sum(counts))
        training.backward(losses[-1])
    training.look(torch.stack(losses).sum().detach(), x, y)
    training.clip()
    training.update()
