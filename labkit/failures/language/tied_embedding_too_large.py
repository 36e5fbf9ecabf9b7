"""The head shares the weights of the embedding, and these begin at N(0, 1), as nn.Embedding has them by default."""

from math import log

from labkit.failures.language_signs import ON_TOKENS
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import first_weights
from labkit.recording.run import Run
from labkit.training.language import LanguageRecipe

# The gain of the head before the first step: its standard deviation times the root of its inputs. N(0, 0.1) 0.8,
# N(0, 1) 7.9; at the width of GPT-2 small 28.
LARGE = 4.0
# The first loss over ln(words): healthy 0.7 to 1.2, N(0, 1) 4.6 to 5.5.
WRONG = 2.5

healthy = LanguageRecipe(tied=True, embedding_scale=0.1)
sick = healthy.but(embedding_scale=1.0)


def signature(run: Run) -> Evidence | None:
    gains, words = first_weights(run, "gain"), first_weights(run, "units")
    if not gains or "probe_loss" not in run or run.facts.get("task") != "tokens" or run["val_step"][0] > 0:
        return None
    head = [*gains][-1]
    if head in run.layers or words[head] < 2:  # a layer that is listed has weights of its own
        return None
    first = float(run["probe_loss"][0]) / log(words[head])
    if not (gains[head] > LARGE and first > WRONG):
        return None
    return Evidence(
        seen=f"the weights of {head}, shared with another layer, make a signal {gains[head]:.2g} times as large before "
        f"the first step, and the first loss is {first:.2g} times ln({words[head]:.0f})",
        usual="0.5 to 2.5 times, and a first loss of 0.9 to 1.5 times ln(words)",
        onset=0,
        place=head,
        confidence=0.9,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Tied embedding too large",
    cures={"N(0, 0.1) for the shared weights": sick.but(embedding_scale=0.1)},
    false_cures={
        "three times as much warm-up": sick.but(warmup=90),
    },
    harm=0.015,
    costs="0.07 to 0.13 nats per token more than the twin's 0.60 to 0.61, and 29 to 62 of 100 samples are legible "
    "instead of 67 to 78 (seeds 0 to 4).",
    symptom="The first loss is five times ln(words). It falls at once, and ends a little too high.",
    mechanism="An embedding of N(0, 1) is normalised before it does harm. The same weights as a head have no norm "
    "behind them: each logit is a sum of 64 products and has a standard deviation of 8, so the first predictions are "
    "confident and wrong.",
    formula=r"z = E h, \quad E_{ij} \sim N(0, 1) \quad \Rightarrow \quad \mathrm{std}(z) = \sqrt{64} = 8",
    first_check="The first loss over ln(words): 1, not 5.",
    remedy="Initialise the shared weights for the head: N(0, 0.02) in GPT-2, or 1 over the root of the width.",
    reference="microsoft/torchscale issue 31 on RetNet (2023); huggingface/transformers pull request 26441 (2023)",
    looks="nothing",
    shows="log_z",
    knobs=(
        Knob("embedding_scale", (0.02, 2.0), log=True),
        Knob("tied", (True, False)),
        Knob("steps", (100, 900)),
        Knob("depth", (1, 4)),
    ),
    not_on_cifar10=ON_TOKENS,
    where=("head",),
)
