"""The loss counts padding: a seventh of the targets cost nothing, and the mean is smaller by a seventh."""

import dataclasses

from labkit.failures.language.end_masked_as_padding import END, PAD, digits_that_end, ended
from labkit.failures.language_signs import ON_TOKENS
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import tested
from labkit.recording.run import Run
from labkit.training import tokens
from labkit.training.language import LanguageRecipe
from labkit.training.tokens import WORDS, TokenData

# Share of the targets that are padding which the loss counts. Healthy losses: 0; here 0.14.
SEEN = 0.05
# The net's loss on words over its loss on words and padding. Before the first step 1; here 1.16.
FLATTERED = 1.1


def padding_as_targets(recipe) -> TokenData:
    """MNIST as tokens up to the last one with ink, an end, and padding; the net is asked for the padding too."""
    data = tokens.token_data(
        recipe, name="padding_as_targets", pairs=lambda sequences: tokens.next_tokens(ended(sequences, PAD))
    )
    return dataclasses.replace(data, classes=WORDS + 2, end=END)


healthy = LanguageRecipe(data=digits_that_end, measure="stopped")
sick = healthy.but(data=padding_as_targets)


def signature(run: Run) -> Evidence | None:
    tests = tested(run)
    share, counted, words = (tests.get(name, 0.0) for name in ("padding", "loss_with_padding", "loss_without_padding"))
    if not (share > SEEN and counted > 0 and words > FLATTERED * counted):
        return None
    return Evidence(
        seen=f"{share:.0%} of the targets are token {tests['padding_word']:.0f}, which fills sequences, and the loss "
        f"counts them: with them the net has {counted:.3g} nats per token, without them {words:.3g}",
        usual="0 % of the targets are padding: it is ignored",
        onset=0,
        place="targets",
        confidence=0.95,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Padding counted",
    cures={"padding ignored: the higher loss is the true one": sick.but(data=digits_that_end)},
    harm=0.0,
    costs="The number: 0.59 nats per token are reported where the twin, which is no better, has 0.69.",
    symptom="The loss is too good, and gets better with longer padding. Samples are those of the twin.",
    mechanism="After one padding token comes another: any net knows that after a few steps, and these targets cost "
    "nothing. A mean that counts them is smaller by their share, which depends on the batch and not on the net.",
    formula=r"L_{\text{reported}} = (1 - s) \, L_{\text{words}} + s \, L_{\text{padding}} "
    r"\approx (1 - s) \, L_{\text{words}}",
    first_check="The loss of each token and of each position (`labkit.tools.loss_by_token`, `loss_by_position`), and "
    "the share of targets that are padding.",
    remedy="Set the targets of padding to -100, which cross-entropy ignores, and divide by the number of targets that "
    "are left.",
    reference="PyTorch, CrossEntropyLoss: ignore_index; huggingface/transformers: labels of padding are to be -100",
    looks="nothing",
    shows="position_loss",
    knobs=(
        Knob("steps", (100, 600)),
        Knob("depth", (1, 4)),
    ),
    not_on_cifar10=ON_TOKENS,
    where=("targets",),
)
