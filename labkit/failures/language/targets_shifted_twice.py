"""The targets are shifted in the data and once more in the loss: the net learns the token after the next one."""

from torch import Tensor

from labkit.failures.language_signs import ON_TOKENS, asked_for
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.training.language import LanguageRecipe, next_token_loss

healthy = LanguageRecipe()


def shifted_again(outputs: Tensor, targets: Tensor) -> Tensor:
    """The shift that many models make inside, on targets that the data have shifted already."""
    return next_token_loss(outputs[:, :-1], targets[:, 1:])


sick = healthy.but(loss=shifted_again)


def signature(run: Run) -> Evidence | None:
    return asked_for(run, 2)


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Targets shifted twice",
    cures={"shift once: in the data or in the loss": sick.but(loss="next_token_loss")},
    false_cures={
        "half the learning rate": sick.but(lr=3e-3),
    },
    harm=0.2,
    symptom="The loss looks almost healthy, and what the net writes is useless: it leaves out every other token.",
    mechanism="At each place the net predicts what comes two tokens later. That is harder by little, so the curve "
    "shows nothing. When it writes, that prediction is put at the next place.",
    formula=r"L = -\frac{1}{T} \sum_t \ln p(x_{t+2} \mid x_1, \ldots, x_t)",
    first_check="Compare the loss against the same token, the next one and the one after it: "
    "`labkit.tools.shift_scan`.",
    remedy="Decide who shifts. A model that takes `labels=` usually shifts inside: give it the tokens as they are.",
    reference="huggingface/transformers issue 44642 (2026)",
    looks="nothing",
    shows="shift_loss",
    knobs=(
        Knob("steps", (100, 900)),
        Knob("depth", (1, 4)),
        Knob("lr", (1e-3, 2e-2), log=True),
    ),
    also_causes=("loss_does_not_fit",),
    not_on_cifar10=ON_TOKENS,
    where=("targets",),
)
