"""Exercises of lesson 08, overfitting and underfitting; and its sealed patients."""

import torch

from labkit.course.grading import Student, build, cure, expect, expect_close, explain, sealed_runs, short
from labkit.recording.run import Run

# --- the sealed patients of 08.4 ---

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


# --- 08.2 ---


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


# --- 08.3 is a cure, 08.4 the evidence ---

exercises = (
    build(
        "08.1",
        "Early stopping with patience",
        judge_early_stop,
        example="early_stop(losses, patience)",
        points=3,
        hints=(
            "Go through the losses once, in order, and keep two things: the best so far, and its index.",
            "At each loss that is not better: how many evaluations ago was the best? If `patience`, return.",
            "Start with best = infinity, so that the first loss is a new best. `loss < best` is False for a NaN.",
        ),
    ),
    build(
        "08.2",
        "Expected calibration error",
        judge_calibration_error,
        example="calibration_error(confidence, right, bins=10)",
        points=3,
        hints=(
            "Which predictions belong in one bin, and how much should a bin with a single prediction count?",
            "`(confidence * bins).long()` is the index of the bin; 1.0 would get one bin too many: clamp it.",
            "For each bin that is not empty: the absolute difference of mean confidence and accuracy.",
            "Add them up, each times (predictions in this bin) / (all predictions).",
        ),
    ),
    cure(
        "08.3",
        "A net that underfits",
        "underfit",
        keep=("steps", "samples"),
        seeds=(11,),
        points=2,
        hints=(
            "Training accuracy is low too. So the problem is not generalisation.",
            "The last layer gets one number per hidden unit. How many units are there?",
            "The entry is `width`. Ten digits need many more than ten units.",
        ),
    ),
    explain(
        "08.4",
        "Which failure does each run show?",
        modes=tuple(SEALED.values()),
        points=4,
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
)
