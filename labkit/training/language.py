"""The recipe of a language model: its own entries, and the healthy baseline as their defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from labkit.recording import token_tests
from labkit.recording.measure import MEASURES
from labkit.recording.undisturbed import evaluating
from labkit.training import gpt, parts, tokens, writing
from labkit.training.models import ACTIVATIONS
from labkit.training.recipe import COUNT, DEPTH, POSITIVE, Recipe, knob, part
from labkit.training.rules import Flag, Number, OneOf

if TYPE_CHECKING:
    from labkit.training.data import Split
    from labkit.training.protocols import (
        AttendPart,
        BatchesPart,
        DataPart,
        EvaluatePart,
        LossPart,
        MaskPart,
        MergeHeadsPart,
        ModelPart,
        OptimizerPart,
        Part,
        PlacesPart,
        SchedulePart,
        SplitHeadsPart,
        WritePart,
    )
    from labkit.training.state import TrainingState

EVALUATED = 250  # sequences that are evaluated at once
SHOWN = 40  # samples that are kept with a run, for its picture: four of each digit


def next_token_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy in nats, averaged over all places whose target is not -100."""
    return cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=tokens.IGNORED)


@torch.no_grad()
def next_token_evaluate(training: TrainingState, split: Split) -> dict[str, Tensor | float]:
    """The loss, nats per token, token accuracy and confidence on a split; after the last step also the judge's word.

    `loss` is the recipe's own loss; `nats` is the cross-entropy of every token, whatever that loss leaves out.
    """
    training.model.eval()
    results = [
        token_scores(training, x, y) for x, y in zip(split.x.split(EVALUATED), split.y.split(EVALUATED), strict=True)
    ]
    training.model.train()
    count = torch.stack([each.pop("count") for each in results]).sum()
    found = {name: sum(each[name] for each in results) / count for name in results[0]}
    return found | (judged(training) if training.is_last_evaluation else {})


def token_scores(training: TrainingState, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Of one batch, each summed over its tokens."""
    outputs = training.forward(x)
    counted = y != tokens.IGNORED
    count, logits, targets = counted.sum(), outputs.float()[counted], y[counted]
    return {
        "count": count,
        "loss": training.recipe.loss(outputs, y).float() * count,
        "nats": cross_entropy(logits, targets, reduction="sum"),
        "accuracy": (logits.argmax(-1) == targets).sum(),
        "confidence": logits.softmax(-1).amax(-1).sum(),
    }


def judged(training: TrainingState) -> dict[str, float]:
    """Samples, written with the recipe's own writer: the share that the judge can read, and what they depend on."""
    recipe: Any = training.recipe  # a LanguageRecipe
    model, end = training.model, getattr(training.data, "end", None)
    with training.unobserved(), training.autocast():
        with token_tests.lengths_read(model) as lengths:
            options = {"temperature": recipe.temperature, "seed": recipe.seed}
            written = token_tests.until(writing.write_digits(model, recipe.write, **options), end)
        prompts = writing.prompts(len(written), written.device)
        with evaluating(model):
            surprised = token_tests.surprise(model, prompts, written, end)
        training.noted |= writing.agreements(model, recipe.write)
    words, seen = training.data.classes, training.data.val.y
    training.noted |= {
        "written": written[:SHOWN].tolist(),
        "pictures": [tokens.in_words(each) for each in tokens.pictures(written[:SHOWN, : tokens.PATCHES].cpu())],
        "written_shares": token_tests.written_shares(written, words),
        "token_shares": token_tests.written_shares(seen[seen != tokens.IGNORED], words),
        "prompt_length": prompts.shape[1],
        "length_read_first": lengths[0],
        "val_relabelled": token_tests.relabelled(training.data.train.x, training.data.val.x, words),
    }
    if end is None:
        return {"legible": writing.legible(written), "surprise": surprised}
    training.noted["end_token"] = end
    stopped = token_tests.stopped_share(written, end)
    return {"legible": writing.legible(written), "surprise": surprised, "stopped": stopped}


@dataclass(frozen=True, kw_only=True)
class LanguageRecipe(Recipe):
    """The recipe of a small GPT. The defaults are the healthy baseline.

    Two layers of width 64 read MNIST as sequences of 50 tokens: 0.60 to 0.62 nats per token on validation after 300
    steps of batch 32 (seeds 0 to 4), and 71 to 78 of 100 samples are legible.
    """

    data: Part[DataPart] = part(tokens.mnist_tokens, (tokens.mnist_tokens,), "the data set")
    model: Part[ModelPart] = part(gpt.gpt, (gpt.gpt,), "the network architecture")
    loss: Part[LossPart] = part(next_token_loss, (next_token_loss,), "the loss function")
    optimizer: Part[OptimizerPart] = part(parts.adamw_on_matrices, parts.OPTIMIZERS, "the optimizer")
    schedule: Part[SchedulePart] = part(parts.warmup_cosine_to_tenth, parts.SCHEDULES, "the learning rate schedule")
    batches: Part[BatchesPart] = part(parts.shuffled, parts.BATCHES, "how batches are drawn from the training set")
    evaluate: Part[EvaluatePart] = part(
        next_token_evaluate, (next_token_evaluate,), "how the validation metrics are computed"
    )
    mask: Part[MaskPart] = part(gpt.causal_mask, (gpt.causal_mask,), "which tokens a token may attend to")
    attend: Part[AttendPart] = part(gpt.masked_softmax, (gpt.masked_softmax,), "attention weights from scores and mask")
    split_heads: Part[SplitHeadsPart] = part(gpt.heads_apart, (gpt.heads_apart,), "how features are split into heads")
    merge_heads: Part[MergeHeadsPart] = part(gpt.heads_joined, (gpt.heads_joined,), "how heads are joined again")
    places: Part[PlacesPart] = part(gpt.counted_on, (gpt.counted_on,), "the position of each token")
    write: Part[WritePart] = part(writing.written_with_cache, writing.WRITERS, "how samples are written")

    width: int = knob(64, COUNT, "features of each token")
    depth: int = knob(2, DEPTH, "number of blocks")
    heads: int = knob(4, COUNT, "number of attention heads")
    activation: str = knob("gelu", OneOf(tuple(ACTIVATIONS)), "the activation function")
    residual: bool = knob(True, Flag(), "skip connections around attention and perceptron")
    norm_order: str = knob("pre", OneOf(("pre", "post")), "layer norm before attention and perceptron, or after")
    positions: str = knob("learned", OneOf(("learned", "none")), "position embeddings")
    qk_norm: bool = knob(False, Flag(), "layer norm on queries and keys")
    tied: bool = knob(False, Flag(), "the output layer uses the token embeddings as its weights")
    init_scale: float = knob(0.1, Number(0), "standard deviation of the initial matrices")
    embedding_scale: float = knob(0.3, Number(0), "standard deviation of the initial embeddings")

    lr: float = knob(6e-3, POSITIVE, "learning rate; the peak of the schedule")
    weight_decay: float = knob(0.1, Number(0), "decoupled weight decay")
    warmup: int = knob(30, Number(0, whole=True), "warm-up steps with a rising learning rate")
    clip: float | None = knob(
        1.0, Number(0, above=True, optional=True), "gradient clipping threshold; None: no clipping"
    )
    batch_size: int = knob(32, COUNT, "sequences per step")
    steps: int = knob(300, COUNT, "number of training steps; 300 are one epoch of the standard set")
    evaluate_every: int | None = knob(
        50, Number(0, whole=True, optional=True), "steps between validations; None: often early, rarely later; 0: never"
    )
    temperature: float = knob(1.0, Number(0), "of the samples: 0 takes the most likely token")
    measure: str = knob("nats", OneOf(tuple(MEASURES)), "what says how good a run is")
