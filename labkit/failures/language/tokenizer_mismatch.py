"""Validation is tokenized by other rules than training: the same images, in tokens with other meanings."""

import numpy as np
from torch import Tensor

from labkit.failures.language_signs import ON_TOKENS
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.training import tokens
from labkit.training.language import LanguageRecipe


def column_by_column(images: Tensor) -> Tensor:
    """Each patch as a number of four bits, its pixels column by column instead of row by row."""
    return (tokens.patches(images)[..., [0, 2, 1, 3]] * tokens.bits(images.device)).sum(-1)


def tokenized_differently(recipe) -> tokens.TokenData:
    """MNIST as tokens, and the validation images by the other rule."""
    return tokens.token_data(recipe, name="tokenized_differently", tokenize_val=column_by_column)


# What swaps of tokens gain in nats per token, when validation sequences are rated by the pairs of training sequences.
# Healthy: no swap gains 0.001, from 64 to 10,000 training sequences; patches read by columns 0.30 to 0.37.
RENAMED = 0.1
# And the share that this is of the excess over the training sequences themselves. Columns: 0.95 to 1.02 with 1,000
# training sequences and more, 0.87 with 200, 0.74 with 64.
EXPLAINED = 0.6

healthy = LanguageRecipe()
sick = healthy.but(data=tokenized_differently)


def signature(run: Run) -> Evidence | None:
    found = run.facts.get("val_relabelled") or {}
    trained, as_is, swapped = (found.get(name, np.nan) for name in ("trained", "as_is", "swapped"))
    if not as_is - swapped > max(RENAMED, EXPLAINED * (as_is - trained)):
        return None
    pairs = ", ".join(f"{one} and {other}" for one, other in found["swaps"])
    return Evidence(
        seen=f"validation tokens follow one another as in training if these are swapped: {pairs}; by the frequencies "
        f"of training, a token after the one before it then has {swapped:.2f} nats instead of {as_is:.2f}",
        usual="no swaps gain more than 0.001 nats",
        onset=int(run["val_step"][0]),
        place="validation data",
        confidence=0.95,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Tokenizer mismatch",
    cures={"the tokenizer of training for everything": sick.but(data="mnist_tokens")},
    false_cures={"dropout 0.3, as against overfitting": sick.but(dropout=0.3)},
    harm=0.15,
    symptom="Training is healthy, and so are the samples. The validation loss is far too high from the first "
    "evaluation on, and does not fall. It looks like overfitting.",
    mechanism="Two versions of a tokenizer give the same text different tokens. What the net has learned about a token "
    "is then about another one. Tokens that both have alike, such as blank, stay healthy.",
    first_check="Tokenize one training sample by the code of validation, and compare. Decode a validation sample.",
    remedy="Save the tokenizer with the weights, load it from there, and compare a checksum.",
    reference="openai/tiktoken issue 149; Humbatova et al., Taxonomy of Real Faults in Deep Learning Systems (2020)",
    looks="validation worse",
    shows="val_nats",
    knobs=(Knob("steps", (100, 600)), Knob("dropout", (0.0, 0.5))),
    not_on_cifar10=ON_TOKENS,
    where=("validation data",),
)
