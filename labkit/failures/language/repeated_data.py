"""Five hundred images, read nineteen times: the net memorises them, and the loss on others rises again."""

import numpy as np

from labkit.failures.language_signs import ON_TOKENS, asks
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.recording.summaries import chance_loss
from labkit.training.language import LanguageRecipe

PASSES = 4.0  # through the data: up to four are as good as new data (Muennighoff et al. 2023); here 20
# Validation loss at the end over its lowest: healthy 1, here 1.14 to 1.22; with dropout 0.3 it does not rise.
RISE = 1.07
# Validation loss minus training loss at the end, over the loss of a constant prediction: healthy 0.02 to 0.04, here
# 0.40 to 0.48; with dropout 0.3 0.10.
GAP = 0.2

# Different sequences from which on this is the name for it; with fewer it is too_few_samples. Here 498.
FEW = 200

healthy = LanguageRecipe()
sick = healthy.but(samples=500)


def predicts_next(run: Run) -> bool:
    """Does the loss ask for the next token? Tags and translations are read many times as a matter of course."""
    costs = asks(run)
    return bool(np.isfinite(costs).all() and costs.argmin() == 1)


def signature(run: Run) -> Evidence | None:
    losses, fresh = run["val_loss"], run.facts.get("fresh_steps", 0)
    if not predicts_next(run) or not fresh or not np.isfinite(losses).all():
        return None
    if run.facts.get("different_samples", 0) < FEW:
        return None
    passes, lowest = len(run) / fresh, int(np.argmin(losses))
    gap = float(run.gap[-1] / chance_loss(run))
    if not (passes > PASSES and losses[-1] > RISE * losses[lowest] and gap > GAP):
        return None
    return Evidence(
        seen=f"every sequence was read about {passes:.0f} times; the validation loss rose from {losses[lowest]:.3f} to "
        f"{losses[-1]:.3f} while the loss on training sequences fell to {run['probe_loss'][-1]:.3f}",
        usual="one to four passes, and two losses that are less than 0.1 apart",
        onset=int(run["val_step"][lowest]),
        confidence=0.85,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Repeated data",
    cures={"10,000 images, each read once": sick.but(samples=10_000)},
    false_cures={
        "dropout 0.3: no rise, but 0.15 nats too high": sick.but(samples=500, dropout=0.3),
        "weight decay 1: 0.14 nats too high": sick.but(weight_decay=1.0),
    },
    harm=0.06,
    symptom="The training loss falls faster than ever. The validation loss turns after a third of the run and rises. "
    "Samples look excellent, because many are copies.",
    mechanism="A language model is trained on so much text that it reads each once. Read often, a sequence is "
    "memorised, and what is memorised says little about the next one.",
    formula=r"L_{\text{train}} \to 0 \text{ over the same sequences}, \quad L_{\text{val}} \text{ rises}",
    first_check="Steps times batch size over the number of different sequences. Then training and validation loss on "
    "the same axes.",
    remedy="More data; up to about four passes cost little. Stop at the lowest validation loss. Dropout helps in part.",
    reference="Muennighoff et al., Scaling Data-Constrained Language Models, arXiv 2305.16264 (2023)",
    looks="nothing",
    shows="gap",
    knobs=(
        Knob("samples", (200, 10_000), log=True),
        Knob("dropout", (0.0, 0.5)),
        Knob("weight_decay", (0.0, 2.0)),
        Knob("steps", (100, 600)),
    ),
    not_on_cifar10=ON_TOKENS,
)
