"""A learning rate of 0.1: queries and keys grow step by step, until each token attends to a single other one."""

import numpy as np

from labkit.failures.language_signs import ON_TOKENS
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import left_over
from labkit.recording.run import Run
from labkit.training.language import LanguageRecipe

# The largest attention logit at the first evaluation, and at its highest. Healthy GPTs begin at 0.1 to 5 and reach 10
# to 43, at a learning rate of 0.03 up to 145, which does no harm; at 0.1 they reach 5,200 to 8,000 (seeds 0 to 4).
SMALL, LARGE = 30.0, 1000.0
# Mean attention entropy at its lowest, over that of the start: healthy 0.4 to 0.9, at a learning rate of 0.03 0.41, at
# 0.1 0.01 to 0.03.
NARROW = 0.15
LEFT = 0.58  # of the loss of a constant prediction: healthy 0.43 to 0.47, here 0.70 to 0.74
# The largest of the first ten updates, as a share of its layer. Without a warm-up a single step does the harm: 0.6
# there and 0.14 to 0.15 here.
VIOLENT, FIRST = 0.3, 10

healthy = LanguageRecipe()
sick = healthy.but(lr=0.1)


def signature(run: Run) -> Evidence | None:
    logits, entropy = run["attention_logit"].max(axis=1), run["attention_entropy"].mean(axis=1)
    if not (np.isfinite(logits).all() and np.isfinite(entropy).all() and entropy[0] > 0):
        return None
    narrowest = float(entropy.min() / entropy[0])
    if not (logits[0] < SMALL and logits.max() > LARGE and narrowest < NARROW and left_over(run) > LEFT):
        return None
    if not run["update_ratio"][:FIRST].max() < VIOLENT:
        return None
    grown = int(np.argmax(logits > LARGE))
    return Evidence(
        seen=f"the largest attention logit grew from {logits[0]:.2g} to {logits.max():,.0f}, and the entropy of "
        f"attention fell to {narrowest:.0%} of its first value; {left_over(run):.2f} of the loss of a constant "
        "prediction is left",
        usual="logits of 10 to 150, and 40 to 80 % of the entropy",
        onset=int(run["val_step"][max(0, grown - 1)]),
        place=run.heads[int(np.argmax(run["attention_logit"].max(axis=0)))],
        confidence=0.85,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Attention logits grow",
    cures={"a learning rate of 0.006": sick.but(lr=6e-3)},
    false_cures={
        "clipping the gradient norm to 0.1: Adam divides it out again": sick.but(clip=0.1),
    },
    harm=0.06,
    symptom="No NaN and no jump: the loss falls fast at first, then hardly at all, and ends far above what lower "
    "learning rates reach.",
    mechanism="A logit is a product of query and key, so it grows with the square of the weights. Once the softmax "
    "has picked one token it passes hardly any gradient, and nothing brings the logits back.",
    formula=r"s_{ij} = \frac{(W_q x_i)^\top (W_k x_j)}{\sqrt{d}} \sim \lVert W \rVert^2, \qquad \frac{\partial "
    r"p}{\partial s} = p (1 - p) \to 0",
    first_check="The largest attention logit and the entropy of attention at each validation. Large logits alone are "
    "no failure: at a learning rate of 0.03 they reach 145, and the loss is as low as ever.",
    remedy="Lower the learning rate. At the same learning rate of 0.1, normalised queries and keys (QK-norm) keep the "
    "logits below 10 and three times the warm-up helps as well; both end at 0.63 nats (seed 0) instead of 0.60.",
    reference="Wortsman et al., Small-scale proxies for large-scale Transformer training instabilities, arXiv "
    "2309.14322 (2023); Zhai et al., arXiv 2303.06296 (2023)",
    looks="stops too high",
    shows="attention_logit",
    knobs=(
        Knob("lr", (3e-3, 0.3), log=True),
        Knob("qk_norm", (False, True)),
        Knob("warmup", (0, 150)),
        Knob("depth", (1, 4)),
    ),
    not_on_cifar10=ON_TOKENS,
    where=("blocks",),
)
