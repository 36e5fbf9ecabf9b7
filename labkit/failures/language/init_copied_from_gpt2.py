"""N(0, 0.02) for all weights, as GPT-2 has it: right for a width of 768, and far too small for one of 64."""

import numpy as np

from labkit.failures.language_signs import ON_TOKENS
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import first_weights, left_over
from labkit.recording.run import Run
from labkit.training.language import LanguageRecipe

# The median gain of the weight matrices before the first step: their standard deviation times the root of their inputs.
# 0.02 gives 0.16 here and 0.55 in GPT-2; N(0, 0.1) 0.8.
SMALL = 0.3
# Of the loss of a constant prediction, at the end: healthy 0.43 to 0.47, here 0.53 to 0.58. A longer run catches up.
LEFT = 0.49

healthy = LanguageRecipe()
sick = healthy.but(init_scale=0.02, embedding_scale=0.02)


def signature(run: Run) -> Evidence | None:
    gains = [*first_weights(run, "gain").values()]
    if run.facts.get("task") != "tokens" or not gains or run["val_step"][0] > 0:
        return None
    typical = float(np.median(gains))
    if not typical < SMALL or not left_over(run) > LEFT:
        return None
    return Evidence(
        seen=f"before the first step a typical weight matrix makes a signal {typical:.2g} times as large, and at the "
        f"end {left_over(run):.2f} of the loss of a constant prediction is left",
        usual="0.5 to 1.2 times",
        onset=0,
        place="blocks",
        confidence=0.8,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Init copied from GPT-2",
    cures={"N(0, 0.1) for matrices and N(0, 0.3) for embeddings": sick.but(init_scale=0.1, embedding_scale=0.3)},
    false_cures={
        "no warm-up, to use every step": sick.but(warmup=0),
    },
    harm=0.025,
    costs="0.09 to 0.17 nats per token more than the twin's 0.60 to 0.62, and 21 to 38 of 100 samples are legible "
    "instead of 71 to 78 (seeds 0 to 4).",
    symptom="The first loss is ln(words), as it should be, and every curve is smooth. The loss falls late and "
    "ends too high.",
    mechanism="A standard deviation is right for one width only: 0.02 times the root of 768 is 0.55, times the root of "
    "64 it is 0.16. Queries and keys are then so small that attention is a plain mean at first, and a large part of a "
    "short run goes into growing the weights.",
    formula=r"0.02 \sqrt{768} = 0.55, \qquad 0.02 \sqrt{64} = 0.16",
    first_check="The standard deviation of a weight matrix times the root of its inputs: 0.5 to 1.2. The first loss "
    "does not show it.",
    remedy="Scale the init with the width: about 0.6 to 1 over the root of the inputs.",
    reference="karpathy/build-nanogpt issue 18 (2024); Radford et al., Language Models are Unsupervised Multitask "
    "Learners (2019), section 2.3",
    looks="nothing",
    shows="update_ratio",
    knobs=(
        Knob("init_scale", (0.005, 0.3), log=True),
        Knob("embedding_scale", (0.005, 1.0), log=True),
        Knob("steps", (100, 900)),
        Knob("width", (32, 64, 128)),
    ),
    not_on_cifar10=ON_TOKENS,
    where=("blocks",),
)
