"""Exercises of lesson 08, overfitting and underfitting; and its sealed patients."""

import torch

from labkit.course.grading import Student, build, cure, expect, expect_close, explain, recorded, short
from labkit.recording.run import Run

# --- the sealed patients of 08.4 ---

SEALED = {
    "A": "overconfidence",
    "B": "underfit",
    "C": "too_few_samples",
    "D": "too_much_dropout",
}
OWN = {"A": {"steps": 500}, "B": {"steps": 400}}  # of the others 150 show all there is to see
SEED = 5  # not the seed of the lesson, where the same four are seen under their names


def patients() -> dict[str, Run]:
    """Four recorded runs, with letters for names. What was done to them is for the reader to find out."""
    return recorded(SEALED, OWN, steps=150, seed=SEED)


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
    kept_low = "Training ends at the second number; what you keep is the lowest one before it."
    expect_stop([3.0, 2.0, 1.0, 2.0, 3.0, 4.0], 2, (2, 4), kept_low)
    previous = "Each is lower than the one before it, and none is lower than the best. Compare with the best."
    expect_stop([3.0, 1.0, 1.5, 1.4, 1.3, 1.2, 1.1], 3, (1, 4), previous)
    peeked = "The 0.2 comes after training has ended: nobody would ever have seen it."
    expect_stop([3.0, 2.0, 1.0, 1.2, 1.1, 1.3, 0.2], 3, (2, 5), peeked)
    reset = "Every second one is a new best, and a new best starts the count anew."
    expect_stop([5.0, 4.0, 4.5, 3.0, 3.5, 2.0, 2.5, 1.0], 2, (7, 7), reset)
    expect_stop([1.0, 1.0, 1.0, 1.0], 2, (0, 2), "As good as the best is not better than the best.")
    nan = float("nan")
    expect_stop([2.0, 1.0, nan, nan, nan], 2, (1, 3), "A NaN is never better, and a run of them must end.")
    return "It waits as long as told, never peeks, and keeps the best net and not the last."


# --- 08.2 ---


def judge_calibration_error(mine: Student) -> str:
    honest = torch.tensor([0.75] * 8), torch.tensor([True] * 6 + [False] * 2)
    expect_close(mine(*honest), 0.0, "Eight answers, each 75 % sure, six of them right")
    sure = torch.tensor([1.0] * 10), torch.tensor([True] * 6 + [False] * 4)
    what = "Ten answers of confidence exactly 1, six right (does the last bin hold 1.0?)"
    expect_close(mine(*sure), 0.4, what)
    both = torch.tensor([0.95] * 10 + [0.55] * 10), torch.tensor([True] * 5 + [False] * 5 + [True] * 9 + [False])
    seen = float(mine(*both))
    expect(
        abs(seen - 0.05) > 1e-4,
        "Half the answers are too sure by 0.45, half not sure enough by 0.35, and you got 0.05: that is the difference "
        "of the two means. Take the size of each bin's difference before you add: they must not cancel.",
    )
    expect_close(seen, 0.4, "Half the answers too sure by 0.45, half not sure enough by 0.35")
    few = torch.tensor([0.95] * 9 + [0.35]), torch.tensor([True] * 9 + [True])
    seen = float(mine(*few))
    expect(
        abs(seen - 0.35) > 1e-4,
        "Nine answers in one bin and one in another counted the same. Weigh each bin by its share of the answers.",
    )
    expect_close(seen, 0.9 * 0.05 + 0.1 * 0.65, "Nine answers off by 0.05, one off by 0.65")
    inside = torch.tensor([0.62] * 5 + [0.68] * 5), torch.tensor([True] * 5 + [False] * 5)
    expect_close(mine(*inside), 0.15, "Answers of 0.62 and 0.68, which are in one bin, from 0.6 to 0.7")
    expect_close(mine(*both, bins=1), 0.05, "All answers in a single bin (bins=1)")
    return "Bins weighed by their answers, nothing cancels, empty bins stay silent, and 1.0 has its place."


# --- 08.3 is a cure, 08.4 the evidence ---

exercises = (
    build(
        "08.1",
        "Early stopping with patience",
        judge_early_stop,
        example="early_stop(losses, patience)",
        points=3,
        hints=(
            "Go through the losses once, in order, and remember two things: the best so far, and where it was.",
            "At each loss that is not better: how far behind you is the best? If that is `patience`, return.",
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
            "Which answers may be compared with each other, and how much should a bin with a single answer count?",
            "`(confidence * bins).long()` is the number of the bin; 1.0 would get a bin too many: clamp it.",
            "For each bin with answers: mean confidence minus share of right ones, and its absolute value.",
            "Add them up, each times (answers in this bin) / (all answers).",
        ),
    ),
    cure(
        "08.3",
        "A net that cannot",
        "underfit",
        keep=("steps", "samples"),
        seeds=(11,),
        points=2,
        hints=(
            "Training accuracy is low too. So it is not about images the net has not seen.",
            "All that reaches the last layer is one number per hidden unit. How many does it have?",
            "The knob is `width`. Ten digits ask for a good deal more than ten units.",
        ),
    ),
    explain(
        "08.4",
        "Which patient has what?",
        modes=tuple(SEALED.values()),
        points=4,
        right=SEALED,
        because="A is right and too sure of it; B is the same on seen and unseen images, and bad on both; C knows its "
        "images by heart; D does better at the test than in training, because it trains under a handicap.",
        wrong={
            "A": {
                "underfit": "every training image is right. This net can.",
                "too_few_samples": "close, and nine of ten unseen images are right. What rose while that stayed?",
                "too_much_dropout": "its batch loss is not above its loss on training images.",
            },
            "B": {
                "overconfidence": "it is not sure of anything: compare confidence and accuracy.",
                "too_few_samples": "it does not even know its training images.",
                "too_much_dropout": "with dropout the batch loss would stand far above the training loss. They agree.",
            },
            "C": {
                "overconfidence": "far too sure, that is true. But it also misses a third of the unseen images.",
                "underfit": "every training image is right. This net can.",
                "too_much_dropout": "its batch loss is next to nothing.",
            },
            "D": {
                "overconfidence": "it is right far more often than it is sure.",
                "underfit": "nearly. But look at the batch loss beside the loss on training images: the same images.",
                "too_few_samples": "it does as well on unseen images as on seen ones.",
            },
        },
        hints=(
            "Three questions to each: are the training images right? are the unseen ones? do batch and training agree?",
            "Two of them know every training image. One of those two is nearly as good on unseen ones.",
            "The batch loss is measured with dropout on, the training loss with dropout off.",
        ),
    ),
)
