"""No positions are added to the embeddings: the net hardly knows the order of the tokens."""

import numpy as np

from labkit.failures.language_signs import ON_TOKENS
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import left_over
from labkit.recording.run import Run
from labkit.training.language import LanguageRecipe

# Difference of the logits from position to position when every token is the same, relative to their deviation.
# Without positions 1e-7 to 3e-7, which is rounding; with learned ones 0.1 to 0.7, before training and after it.
SAME = 1e-4
# Loss at the end over that of a constant prediction: healthy 0.44, without positions 0.66 to 0.68 (two seeds). Rotary
# and other relative positions give 0 above too, so a net that has learned well is left alone. A net that has learned
# nothing, above the second, may have the same outputs everywhere for other reasons.
LEARNED, NOTHING_LEARNED = 0.55, 0.95

healthy = LanguageRecipe()
sick = healthy.but(positions="none")


def signature(run: Run) -> Evidence | None:
    differ, left = run["position_signal"], left_over(run)
    if not np.max(differ, initial=0.0) < SAME or not LEARNED < left < NOTHING_LEARNED:
        return None
    return Evidence(
        seen=f"a sequence of one repeated token has the same logits at every position, within {differ.max():.0e} of "
        f"their deviation, and {left:.2f} of the loss of a constant prediction is left",
        usual="0.1 to 0.7 with learned positions; 0 with rotary ones, which this cannot see",
        onset=int(run["val_step"][0]),
        place="embeddings",
        confidence=0.8,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Positions missing",
    cures={"learned position embeddings, added to those of the tokens": sick.but(positions="learned")},
    harm=0.07,
    symptom="The loss plateaus too high, and samples have the right tokens in the wrong places.",
    mechanism="Attention is a weighted mean, and a mean does not know the order of what it adds up. The causal mask "
    "tells a deep net something about positions, because early tokens see fewer others; two blocks cannot do much "
    "with that.",
    formula=r"\mathrm{attention}(P x) = P \, \mathrm{attention}(x)",
    first_check="Give the net one token, repeated: without positions all logits are the same at every position.",
    remedy="Add position embeddings to the token embeddings, or rotate queries and keys (RoPE). Check that they are "
    "used in forward, and not only defined.",
    reference="Haviv et al., Transformer Language Models without Positional Encodings Still Learn Positional "
    "Information, arXiv 2203.16634 (2022)",
    looks="stops too high",
    shows="position_signal",
    knobs=(Knob("positions", ("none", "learned")), Knob("depth", (1, 6)), Knob("steps", (100, 900))),
    not_on_cifar10=ON_TOKENS,
    where=("embeddings",),
)
