"""The targets are the tokens that the net reads: it is asked to repeat each token instead of predicting the next."""

from torch import Tensor

from labkit.failures.language_signs import ON_TOKENS, WRITES, asked_for
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.training.data import Data, Split
from labkit.training.tokens import token_data

healthy = WRITES


def as_they_are_read(tokens: Tensor) -> Split:
    """Inputs and targets are the same tokens."""
    return Split(tokens[:, :-1].contiguous(), tokens[:, :-1].contiguous())


def unshifted_tokens(recipe) -> Data:
    """MNIST as tokens, with the targets not shifted."""
    return token_data(recipe, pairs=as_they_are_read)


sick = healthy.but(data=unshifted_tokens)


def signature(run: Run) -> Evidence | None:
    return asked_for(run, 0)


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Targets not shifted",
    cures={"each target is the next token": sick.but(data="mnist_tokens")},
    false_cures={
        "dropout 0.3: repeating stays easy": sick.but(dropout=0.3),
    },
    harm=0.5,
    symptom="The loss falls to 0 within a few dozen steps, in training and in validation. What the net writes is one "
    "token again and again.",
    mechanism="Skip connections carry each token straight to the head, so repeating it takes no attention at all. "
    "The causal mask is fine: nothing later is needed.",
    formula=r"L = -\frac{1}{T} \sum_t \ln p(x_t \mid x_1, \ldots, x_t)",
    first_check="Compare the loss against the same token, the next one and the one after it: "
    "`labkit.tools.shift_scan`. Or print four inputs beside their targets.",
    remedy="logits[:, :-1] against tokens[:, 1:]. Many libraries shift inside the model: give them the tokens as "
    "labels, and do not rely on it where you compute the loss yourself.",
    reference="huggingface/transformers issue 27517 (2023)",
    looks="nothing",
    shows="shift_loss",
    knobs=(
        Knob("steps", (100, 600)),
        Knob("depth", (1, 4)),
        Knob("dropout", (0.0, 0.5)),
    ),
    also_causes=("target_in_inputs",),
    not_on_cifar10=ON_TOKENS,
    where=("targets",),
)
