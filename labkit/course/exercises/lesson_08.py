"""Exercises of lesson 08, overfitting and underfitting; and its sealed patients."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from labkit.course.grading import Student, build, cure, expect, expect_close, explain, number, sealed_runs, short
from labkit.course.loops import Outcome, Setting, images, loop
from labkit.course.predictions import prediction
from labkit.recording.run import Run
from labkit.recording.undisturbed import evaluating
from labkit.training.data import Split, load

predictions = (
    prediction(
        "08.0",
        correct=2,
        why="The loss on new digits goes from 1.2 to 3.0, and the accuracy stays near two thirds. It does not fall; it "
        "was never good. What rises is the confidence, in right and wrong predictions alike.",
        wrong={
            1: "Many expect the accuracy to fall with the loss.",
            3: "The training loss is at 0, but its gradient is not quite: the outputs go on growing.",
        },
    ),
)

# --- the sealed patients of 08.6 ---

SEALED = {
    "A": "overconfidence",
    "B": "underfit",
    "C": "too_few_samples",
    "D": "too_much_dropout",
}
OWN = {"A": {"steps": 500}, "B": {"steps": 400}}  # 150 steps are enough for the others
SEED = 5  # not the seed of the lesson, which shows the same four by name


def patients() -> dict[str, Run]:
    """Four runs, named by letters. The student finds which failure each one shows."""
    return sealed_runs(SEALED, OWN, steps=150, seed=SEED)


# --- 08.1 ---


def judge_early_stop(mine: Student) -> str:
    def expect_stop(losses: list[float], patience: int, right: tuple[int, int], otherwise: str) -> None:
        seen = mine(losses, patience)
        try:
            pair = tuple(int(each) for each in seen)
        except (TypeError, ValueError):
            pair = ()
        expect(len(pair) == 2, f"Expected two numbers, (kept, stopped), got {short(seen)}.")
        expect(pair == right, f"{losses} with patience {patience}: expected {right}, got {pair}. {otherwise}")

    expect_stop([3.0, 2.0, 1.0], 2, (2, 2), "It falls to the end: keep the last one.")
    kept_low = "Training ends at the second number; the net you keep is the one with the lowest loss before it."
    expect_stop([3.0, 2.0, 1.0, 2.0, 3.0, 4.0], 2, (2, 4), kept_low)
    previous = "Each is lower than the one before it, and none is lower than the best. Compare with the best."
    expect_stop([3.0, 1.0, 1.5, 1.4, 1.3, 1.2, 1.1], 3, (1, 4), previous)
    peeked = "The 0.2 comes after training has stopped: it is never computed."
    expect_stop([3.0, 2.0, 1.0, 1.2, 1.1, 1.3, 0.2], 3, (2, 5), peeked)
    reset = "Every second loss is a new best, and a new best resets the count."
    expect_stop([5.0, 4.0, 4.5, 3.0, 3.5, 2.0, 2.5, 1.0], 2, (7, 7), reset)
    expect_stop([1.0, 1.0, 1.0, 1.0], 2, (0, 2), "As good as the best is not better than the best.")
    nan = float("nan")
    expect_stop([2.0, 1.0, nan, nan, nan], 2, (1, 3), "A NaN is never better, and a series of NaNs must stop training.")
    return "It waits for `patience` evaluations, does not look ahead, and keeps the best net, not the last."


# --- 08.2: early stopping in a loop ---

FEW = 100  # images: the validation loss turns within ten epochs
SAME = (
    1e-4  # the loss of one net twice differs by rounding, 1e-7; the last net's is above the best one's by 0.05 and more
)


class Validation:
    """validate(model): the loss on held-out images. Remembers what it returned and how many epochs had passed."""

    def __init__(self, held_out: Split):
        self.x, self.y = (each[::2] for each in held_out)
        self.losses: list[float] = []

    def __call__(self, model: nn.Module) -> float:
        self.losses.append(self.loss(model))
        return self.losses[-1]

    @torch.no_grad()
    def loss(self, model: nn.Module) -> float:
        with evaluating(model):
            return cross_entropy(model(self.x), self.y).item()


def memorising_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


def adam(parameters) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.003)


def few_images(seed: int) -> Setting:
    """train_best(model, optimizer, loader, validate) on a hundred digits."""
    usual = images(memorising_net, adam, samples=FEW, batch_size=20)(seed)
    return Setting((*usual.arguments, Validation(usual.held_out)), usual.held_out)


def train_best(model, optimizer, loader, validate, epochs=40, patience=5):
    """The reference: keeps a copy of the weights of the lowest validation loss, and puts them back."""
    best, kept, waited = math.inf, {}, 0
    for _ in range(epochs):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
        loss = validate(model)
        if loss < best:
            best, waited = loss, 0
            kept = {name: value.clone() for name, value in model.state_dict().items()}
        else:
            waited += 1
            if waited == patience:
                break
    model.load_state_dict(kept)


def judge_kept(outcome: Outcome) -> str:
    validate = outcome.setting.arguments[-1]
    losses = validate.losses
    expect(len(losses) > 5, f"validate(model) was called {len(losses)} times: call it once in every epoch.")
    best = losses.index(min(losses))
    waited = len(losses) - 1 - best
    expect(waited > 0, "It trained to the last epoch and the last was the best: this cannot be, on a hundred digits.")
    expect(waited == 5, f"The best of {len(losses)} validations was number {best + 1}; patience 5 stops five later.")
    left = validate.loss(outcome.setting.model)
    expect(
        abs(left - losses[best]) < SAME,
        f"The lowest validation loss was {losses[best]:.3f}, and the net that you leave has {left:.3f}"
        + (", that of the last epoch" if abs(left - losses[-1]) < SAME else "")
        + ". `state_dict()` returns the tensors that the optimizer goes on changing, not a copy of them.",
    )
    return "On other digits with another seed: the net left behind is that of the lowest validation loss."


# --- 08.3 ---


def judge_calibration_error(mine: Student) -> str:
    honest = torch.tensor([0.75] * 8), torch.tensor([True] * 6 + [False] * 2)
    expect_close(mine(*honest), 0.0, "Eight predictions of confidence 0.75, six of them correct")
    sure = torch.tensor([1.0] * 10), torch.tensor([True] * 6 + [False] * 4)
    what = "Ten predictions of confidence exactly 1, six correct (does the last bin include 1.0?)"
    expect_close(mine(*sure), 0.4, what)
    both = torch.tensor([0.95] * 10 + [0.55] * 10), torch.tensor([True] * 5 + [False] * 5 + [True] * 9 + [False])
    seen = float(mine(*both))
    expect(
        abs(seen - 0.05) > 1e-4,
        "Half the predictions are overconfident by 0.45, half underconfident by 0.35, and you got 0.05: that is the "
        "difference of the two means. Take the absolute value per bin before you add: they must not cancel.",
    )
    expect_close(seen, 0.4, "Half the predictions overconfident by 0.45, half underconfident by 0.35")
    few = torch.tensor([0.95] * 9 + [0.35]), torch.tensor([True] * 9 + [True])
    seen = float(mine(*few))
    expect(
        abs(seen - 0.35) > 1e-4,
        "Nine predictions in one bin and one in another counted the same. Weight each bin by its share.",
    )
    expect_close(seen, 0.9 * 0.05 + 0.1 * 0.65, "Nine predictions off by 0.05, one off by 0.65")
    inside = torch.tensor([0.62] * 5 + [0.68] * 5), torch.tensor([True] * 5 + [False] * 5)
    expect_close(mine(*inside), 0.15, "Confidences of 0.62 and 0.68, which are in one bin, from 0.6 to 0.7")
    expect_close(mine(*both, bins=1), 0.05, "All predictions in a single bin (bins=1)")
    return "Bins weighted by their counts, nothing cancels, empty bins are ignored, and 1.0 is in the last bin."


# --- 08.4 ---


def overconfident_logits(scale: float, power: float = 1.0) -> tuple[Tensor, Tensor]:
    """Outputs of 400 samples and five classes, and labels drawn from the probabilities that fit.

    `scale` makes the outputs too large or too small; a `power` bends them, so that no temperature repairs them all.
    """
    generator = torch.Generator().manual_seed(0)
    honest = 2 * torch.randn(400, 5, generator=generator)
    labels = torch.multinomial(honest.softmax(1), 1, generator=generator).squeeze(1)
    return scale * honest.sign() * honest.abs() ** power, labels


def best_temperature(logits: Tensor, labels: Tensor) -> float:
    """Bisection on the derivative of the loss with respect to 1 / T, in double precision."""
    logits = logits.double()
    true = logits.gather(1, labels[:, None]).squeeze(1)
    low, high = 1e-4, 1e4
    for _ in range(100):
        middle = math.sqrt(low * high)
        slope = (((middle * logits).softmax(1) * logits).sum(1) - true).mean()
        low, high = (low, middle) if slope > 0 else (middle, high)
    return 1 / low


def judge_temperature(mine: Student) -> str:
    cases = (
        (3.0, 1.0, "outputs three times too large"),
        (0.2, 1.0, "outputs five times too small"),
        (1.0, 1.0, "outputs that fit"),
        (1.0, 2.0, "outputs that no temperature repairs in full"),
    )
    for scale, power, what in cases:
        logits, labels = overconfident_logits(scale, power)
        seen = number(mine(logits, labels), "the temperature")
        expect(seen > 0 and math.isfinite(seen), f"With {what} you return {seen}: expected a number above 0.")
        right = best_temperature(logits, labels)
        turned = "Did you return s = 1/T? " if abs(seen * right - 1) < 0.03 and abs(right - 1) > 0.1 else ""
        edge = "Is it the end of a grid? " if scale == 0.2 and 0.45 < seen <= 1.01 else ""
        expect(
            abs(math.log(seen / right)) < 0.02,
            f"With {what}: expected T = {right:.3f}, the lowest cross-entropy, got {seen:.3f}. {turned}{edge}".strip(),
        )
    logits, labels = overconfident_logits(3.0)
    before = logits.clone()
    mine.in_place(logits, labels)
    expect(torch.equal(before, logits), "Correct, but you changed the caller's logits.")
    return "Right for outputs that are too large, too small, and as they should be."


# --- 08.7: the experiment ---


def shifted(x: Tensor) -> Tensor:
    """Digits as from a camera that points four pixels too low."""
    return pad(x, (0, 0, 4, 0), value=float(x.min()))[:, :, : x.shape[2]]


def inverted(x: Tensor) -> Tensor:
    return -x


TEAMS = (  # images, and what happened to the validation images; None: nothing, the team has too few
    (300, None),
    (600, shifted),
    (400, None),
    (600, inverted),
)


def judge_experiment(mine: Student) -> str:
    known, val = load("mnist", "train", samples=20_000), load("mnist", "val")
    for place, (samples, change) in enumerate(TEAMS):
        first = 12_000 + 1000 * place
        x, y = known.x[first : first + samples], known.y[first : first + samples]
        seen = mine(x, y, change(val.x) if change else val.x, val.y)
        expect(isinstance(seen, bool), f"Expected True or False, got {short(seen)}.")
        expect(
            seen or change is not None,
            f"Team {place + 1} has {samples} images and nothing else is wrong: images held out from its own training "
            "set are classified no better than its validation images.",
        )
        expect(
            not seen or change is None,
            f"Team {place + 1}: images held out from its own training set are classified well, its validation images "
            "are not. More data of the same kind would not help.",
        )
    return "Four teams, and you sent only those for more data who need it."


# --- 08.5 is a cure, 08.6 the evidence ---

exercises = (
    build(
        "08.1",
        "Early stopping with patience",
        judge_early_stop,
        example="early_stop(losses, patience)",
        points=2,
        hints=(
            "Go through the losses once, in order, and keep two things: the best so far, and its index.",
            "At each loss that is not better: how many evaluations ago was the best? If `patience`, return.",
            "Start with best = infinity, so that the first loss is a new best. `loss < best` is False for a NaN.",
        ),
    ),
    loop(
        "08.2",
        "A loop that keeps its best net",
        few_images,
        train_best,
        example="train_best(model, optimizer, loader, validate)",
        free_of=(),
        also=judge_kept,
        modes=("too_few_samples",),
        points=3,
        hints=(
            "Print the validation loss of the net after load_state_dict. Which epoch's is it?",
            "A dictionary of tensors holds references. What does optimizer.step() do to these tensors?",
            "Keep a copy: copy.deepcopy(model.state_dict()), or clone each value.",
        ),
    ),
    build(
        "08.3",
        "Expected calibration error",
        judge_calibration_error,
        example="calibration_error(confidence, right, bins=10)",
        points=2,
        hints=(
            "Which predictions belong in one bin, and how much should a bin with a single prediction count?",
            "`(confidence * bins).long()` is the index of the bin; 1.0 would get one bin too many: clamp it.",
            "For each bin that is not empty: the absolute difference of mean confidence and accuracy.",
            "Add them up, each times (predictions in this bin) / (all predictions).",
        ),
    ),
    build(
        "08.4",
        "A temperature by likelihood",
        judge_temperature,
        example="fit_temperature(logits, labels)",
        points=2,
        hints=(
            "Look for s = 1/T with L'(s) = 0. Is L' below 0 when s is too small, or when it is too large?",
            "L' rises with s: halve an interval of s from 0.001 to 1000 until it is short. Take geometric means.",
            "L' is ((s * logits).softmax(1) * logits).sum(1) minus the output of the true class, averaged.",
        ),
    ),
    cure(
        "08.5",
        "A net that underfits",
        "underfit",
        keep=("steps", "samples"),
        seeds=(11,),
        points=1,
        hints=(
            "Training accuracy is low too. So the problem is not generalisation.",
            "The last layer gets one number per hidden unit. How many units are there?",
            "The entry is `width`. Ten digits need many more than ten units.",
        ),
    ),
    explain(
        "08.6",
        "Which failure does each run show?",
        modes=tuple(SEALED.values()),
        points=2,
        right=SEALED,
        because="A is accurate and overconfident; B is equally bad on training and held-out images; C has "
        "memorised its "
        "images; D does better in validation than in training, because dropout is on in training only.",
        wrong={
            "A": {
                "underfit": "it classifies every training image correctly. It has the capacity.",
                "too_few_samples": "close, but nine of ten held-out images are correct. What rose while "
                "accuracy did not fall?",
                "too_much_dropout": "its batch loss is not above its loss on training images.",
            },
            "B": {
                "overconfidence": "its confidence is low: compare confidence and accuracy.",
                "too_few_samples": "it does not even fit its training images.",
                "too_much_dropout": "with dropout the batch loss would be far above the training loss. They agree.",
            },
            "C": {
                "overconfidence": "overconfident, that is true. But it also gets a third of the held-out images wrong.",
                "underfit": "it classifies every training image correctly. It has the capacity.",
                "too_much_dropout": "its batch loss is almost 0.",
            },
            "D": {
                "overconfidence": "its accuracy is far above its confidence.",
                "underfit": "close. But compare the batch loss with the loss on training images: these are the "
                "same images.",
                "too_few_samples": "it does as well on held-out images as on training images.",
            },
        },
        hints=(
            "Three questions: training images correct? held-out images correct? do batch and training loss agree?",
            "Two of them fit every training image. One of those two is nearly as good on held-out images.",
            "The batch loss is measured with dropout on, the training loss with dropout off.",
        ),
    ),
    build(
        "08.7",
        "Too little data, or other data?",
        judge_experiment,
        example="lacks_data(train_x, train_y, val_x, val_y)",
        points=0,
        modes=("too_few_samples",),
        hints=(
            "Which images are new to the net and certainly come from the same camera as those it trains on?",
            "Hold out a quarter of the training images, train on the rest, and compare two accuracies.",
            "Too few images: both are equally low. Another camera: only the one on val_x is.",
        ),
    ),
)
