"""Attention and perceptron replace their input instead of adding to it: no skip connections."""

from labkit.failures.language_signs import ON_TOKENS
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.training.language import LanguageRecipe

# Change of the logits when the token at this position itself is replaced, relative to their deviation, before the
# first step. Healthy nets of 2 to 12 blocks, pre- and post-norm, four scales of the init: 0.63 to 1.26. Without skip
# connections 0.0002 to 0.05 from two blocks on; with a single block 0.25 to 0.36, which is not told apart.
OWN = 0.15

healthy = LanguageRecipe()
sick = healthy.but(residual=False)


def signature(run: Run) -> Evidence | None:
    own = float(run["own_token"][0])
    if not own < OWN or run["val_step"][0] > 0:  # a trained net has learned to read its own token
        return None
    return Evidence(
        seen=f"before the first step, another token changes the logits at its own position by {own:.2g} of their "
        "deviation: on its way through the blocks it is lost in the mean over all tokens",
        usual="0.6 to 1.3",
        onset=0,
        place="blocks",
        confidence=0.85,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Skip connections missing",
    cures={"x = x + f(x) around attention and perceptron": sick.but(residual=True)},
    false_cures={
        "half the learning rate": sick.but(lr=3e-3),
        "twice as much warm-up": sick.but(warmup=60),
    },
    harm=0.03,
    costs="0.14 to 0.15 nats per token more than the twin's 0.60 to 0.62, and 39 to 54 of 100 samples are legible "
    "instead of 71 to 78 (seeds 0 to 2).",
    symptom="The loss falls late and stays somewhat too high. Deeper nets do worse instead of better.",
    mechanism="Without x + f(x), what a token is passes only through attention, which averages it with all tokens "
    "before it. Each block dilutes it again, and gradients take the same way back.",
    formula=r"x_{l+1} = f(x_l) \quad \text{instead of} \quad x_l + f(x_l)",
    first_check="Read forward: each of the two layers of a block must add to x. Before training, replace the last "
    "token: the last logits must change clearly.",
    remedy="x = x + attention(norm(x)), then x = x + perceptron(norm(x)).",
    reference="He et al., Deep Residual Learning (2016); Dong et al., Attention is not all you need (2021)",
    looks="stops too high",
    shows="own_token",
    knobs=(
        Knob("residual", (False, True)),
        Knob("depth", (1, 6)),
        Knob("lr", (1e-3, 2e-2), log=True),
        Knob("steps", (100, 900)),
    ),
    not_on_cifar10=ON_TOKENS,
    where=("blocks",),
)
