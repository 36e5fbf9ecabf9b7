"""The end of a sequence serves as padding and is ignored with it: the net is never asked to stop, and does not."""

import dataclasses

import numpy as np
import torch
from torch import Tensor

from labkit.failures.language_signs import ON_TOKENS
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.training import tokens
from labkit.training.language import LanguageRecipe
from labkit.training.tokens import IGNORED, KINDS, PATCHES, WORDS, Split, TokenData

END, PAD = WORDS, WORDS + 1
# Share of the samples that stop. Healthy: all of 100 on seeds 0 to 4; with the end ignored: none.
STOPS = 0.5


def digits_that_end(recipe) -> TokenData:
    """MNIST as tokens up to the last one with ink, then an end; the padding after it has a token of its own."""
    return _ending(recipe, "digits_that_end", PAD)


def padded_with_the_end(recipe) -> TokenData:
    """The same, padded with the end; every target that is padding, by its id, is ignored."""
    return _ending(recipe, "padded_with_the_end", END)


def _ending(recipe, name: str, pad: int) -> TokenData:
    def pairs(sequences: Tensor) -> Split:
        rows = ended(sequences, pad)
        x, y = rows[:, :-1], rows[:, 1:]
        return Split(x.contiguous(), torch.where(y == pad, IGNORED, y))

    return dataclasses.replace(tokens.token_data(recipe, name=name, pairs=pairs), classes=WORDS + 2, end=END)


def ended(sequences: Tensor, pad: int) -> Tensor:
    """(n, 51) from (n, 50): what comes after the last patch with ink is cut off, and END and padding take its place."""
    place = torch.arange(PATCHES + 2, device=sequences.device)
    ink = (sequences > 0) & (sequences < KINDS)
    last = (ink * place[:-1]).amax(1, keepdim=True)
    room = torch.nn.functional.pad(sequences, (0, 1), value=pad)
    return torch.where(place <= last, room, torch.where(place == last + 1, END, pad))


healthy = LanguageRecipe(data=digits_that_end, measure="stopped")
sick = healthy.but(data=padded_with_the_end)


def signature(run: Run) -> Evidence | None:
    end, losses = run.facts.get("end_token"), run["word_loss"][-1]
    if end is None or not np.isnan(losses[end]) or not run["val_stopped"][-1] < STOPS:
        return None
    return Evidence(
        seen=f"{run['val_stopped'][-1]:.0%} of the samples stop, and token {end}, which ends a sequence, is asked for "
        "nowhere in the probe: it has no loss",
        usual="nearly 100 % stop, and the end has a loss of 0.3 to 0.4 nats",
        onset=int(run["val_step"][0]),
        place="targets",
        confidence=0.95,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="End masked as padding",
    cures={"a padding token of its own": sick.but(data=digits_that_end)},
    harm=0.9,
    symptom="The loss is as good as the twin's, or looks a little better. Samples never stop: after the digit comes "
    "something that the net was never taught.",
    mechanism="The padding has the id of the end, and all targets with that id are ignored. So the one end that the "
    "net should learn is ignored too, and what to do after it is left to chance.",
    first_check="Count how often the end is among the targets that are not ignored. It must be once per sequence.",
    remedy="Give padding its own token, or ignore it by the length of the sequence and keep the first end.",
    reference="huggingface/llm-course issue 33; huggingface/transformers: DataCollatorForLanguageModeling "
    "ignores every target with the id of padding",
    looks="nothing",
    shows="val_stopped",
    knobs=(
        Knob("steps", (100, 600)),
        Knob("temperature", (0.0, 1.5)),
    ),
    not_on_cifar10=ON_TOKENS,
    where=("targets",),
)
