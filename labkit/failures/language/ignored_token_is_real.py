"""The loss ignores a token that is not padding but a word of the language: here 0, the blank patch."""

import numpy as np
from torch import Tensor
from torch.nn.functional import cross_entropy

from labkit.failures.language_signs import ON_TOKENS
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import tested
from labkit.recording.run import Run
from labkit.training.language import LanguageRecipe

# Share of the targets that are a word which the loss never counts, between words that it counts. Every healthy loss: 0,
# with padding too, which stands at an end. The blank patch: 0.39.
SEEN = 0.005

healthy = LanguageRecipe()


def blank_ignored(outputs: Tensor, targets: Tensor) -> Tensor:
    """ignore_index=0, as for padding. Here 0 is the most frequent word."""
    return cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=0)


sick = healthy.but(loss=blank_ignored)


def signature(run: Run) -> Evidence | None:
    tests, left_out = tested(run), tested(run).get("uncounted", 0.0)
    if not left_out > SEEN:
        return None
    word = int(tests["uncounted_word"])
    losses = run["word_loss"][-1] if "word_loss" in run else np.zeros(0)
    cost = f", and the net's loss there is {losses[word]:.2g}" if word < len(losses) else ""
    return Evidence(
        seen=f"{left_out:.0%} of the targets are token {word}, which the loss does not count anywhere although counted "
        f"ones stand before and after it{cost}",
        usual="0 such tokens: all are counted, except padding at the end of a sequence",
        onset=int(run["val_step"][0]),
        place="loss",
        confidence=0.95,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Ignored token is a real one",
    cures={"ignore -100, which is no token": sick.but(loss="next_token_loss")},
    harm=0.5,
    symptom="The loss ends too high, and one token never occurs in what the net writes.",
    mechanism="Where the target is 0 the loss is not computed, so nothing teaches the net to predict 0. It learns to "
    "give 0 no probability at all, because at every place that counts something else was right.",
    formula=r"L = -\frac{1}{|\{t: y_t \neq 0\}|} \sum_{t: y_t \neq 0} \ln p_{y_t} \quad \Rightarrow \quad p_0 \to 0",
    first_check="The loss of each token (`labkit.tools.loss_by_token`), and how often each token occurs in samples "
    "beside how often it does in the data.",
    remedy="Use an ignore_index that no token has: -100, torch's default. Set targets of padding to it, and check that "
    "the padding token has an id of its own.",
    reference="NVIDIA-NeMo/Megatron-Bridge issue 4660 (2026); PyTorch, CrossEntropyLoss: ignore_index",
    looks="stops too high",
    shows="word_loss",
    knobs=(
        Knob("steps", (100, 900)),
        Knob("depth", (1, 4)),
        Knob("lr", (1e-3, 2e-2), log=True),
    ),
    not_on_cifar10=ON_TOKENS,
    where=("loss",),
)
