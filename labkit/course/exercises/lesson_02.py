"""Exercises of lesson 02, the gallery of loss curves; and its sealed curves."""

import numpy as np

from labkit.course.grading import Student, build, cure, expect, explain, short
from labkit.failures.catalogue import FAILURES
from labkit.recording.run import Run
from labkit.training.loop import train

# --- the sealed curves of 02.3 ---

SEALED = {
    "A": "sorted_data",
    "B": "underfit",
    "C": "learning_rate_too_high",
    "D": "corrupt_batch",
    "E": "too_few_samples",
    "F": "batch_too_small",
}
STEPS = {"B": 300, "D": 300}  # B plateaus slowly, D fails late; 200 steps are enough for the others
FACES = {"C": "two_layers"}  # the same failure as in the gallery with a different curve
SEED = 5  # not the seed of the gallery: the shape counts, not this exact curve


def patients() -> dict[str, Run]:
    """Six runs, named by letters. The student finds which failure each one shows."""
    runs = {}
    for letter, name in SEALED.items():
        recipe = FAILURES[name].recipes(face=FACES.get(letter), seed=SEED)["sick"]
        runs[letter] = train(recipe.but(steps=STEPS.get(letter, 200)), progress=False)
    return runs


# --- 02.1 ---


def falling(first: float, last: float, steps: int = 100) -> np.ndarray:
    return np.geomspace(first, last, steps)


def judge_shape(mine: Student) -> str:
    def expect_shape(train, val, right: str, what: str, otherwise: str = "") -> None:
        seen = mine(np.array(train, dtype=float), np.array(val, dtype=float))
        names = ("diverged", "stuck", "overfit", "falls")
        expect(isinstance(seen, str) and seen in names, f"Expected one of {', '.join(names)}, got {short(seen)}.")
        expect(seen == right, f"{what}: expected {right!r}, got {seen!r}. {otherwise}")

    level, well = np.full(100, 2.3), [2.3, 0.8, 0.4, 0.3]
    expect_shape(falling(2.3, 0.1), well, "falls", "A healthy run")
    late = falling(2.3, 0.5)
    late[-3:] = np.nan
    never = "Every comparison with a NaN is False, so no threshold catches it. Use np.isfinite."
    expect_shape(late, well, "diverged", "A run that ends in NaN", never)
    expect_shape(falling(2.3, 0.5), [2.3, 1.0, np.inf], "diverged", "Training is fine, the validation loss is infinite")
    jump = level.copy()
    jump[4:8] = 3e5
    back = "It jumped to 100,000 times its first loss and came back to chance. Look at all values, and test this first."
    expect_shape(jump, [2.3, 2.3, 2.3], "diverged", "A jump in the middle", back)
    expect_shape(level, [2.3, 2.3, 2.3], "stuck", "A flat line")
    lucky = level.copy()
    lucky[-1] = 1.6
    batch = "Only the last batch was an easy one. Take the mean of the last 20."
    expect_shape(lucky, [2.3, 2.3, 2.3], "stuck", "A flat line with one low value at its end", batch)
    lowest = "The last validation loss is three times the lowest one. Compare with the lowest, not with the first."
    expect_shape(falling(2.3, 1e-4), [2.5, 1.1, 2.0, 3.3], "overfit", "Memorised", lowest)
    expect_shape(falling(2.3, 1e-3), [4.0, 1.0, 2.0, 2.5], "overfit", "Memorised, slowly", lowest)
    near = falling(2.3, 0.3)
    near[5] = 30.0
    expect_shape(near, well, "diverged", "A jump to 13 times the first loss", "The rule says above 10 times.")
    near[5] = 18.0
    expect_shape(near, well, "falls", "A jump to 8 times the first loss", "The rule says above 10 times.")
    nine = "The rule says above 0.9 times the first one."
    expect_shape(falling(2.3, 2.15), [2.3, 2.2], "stuck", "A loss that ends at 0.94 of its first", nine)
    expect_shape(falling(2.3, 1.8), [2.3, 1.9], "falls", "A loss that ends at 0.8 of its first", nine)
    rise = "The rule says above 1.3 times the lowest."
    expect_shape(falling(2.3, 0.01), [2.3, 0.5, 0.7], "overfit", "A last validation loss of 1.4 times the lowest", rise)
    small = "A rise by a tenth is noise; the rule says 1.3 times."
    expect_shape(falling(2.3, 0.2), [2.3, 0.5, 0.55], "falls", "A small rise at the end", small)
    order = "Two rules match. The first in the list counts: a net that learned nothing cannot overfit."
    expect_shape(level, [2.3, 2.2, 3.5], "stuck", "A flat line, and a validation loss that rises", order)
    expect_shape([2.3, 1.5, 1.0, 0.6, 0.2], well, "falls", "Five steps only", "Does it work on a short run?")
    return "NaN, jumps, easy batches and noise are all classified correctly."


# --- 02.2, 02.3: the evidence; 02.4 is a cure ---

SEPARATES = {"P": "grad_norm", "Q": "dead", "R": "lr", "S": "val_train_mode"}
ONCE = "Each instrument can be ordered only once."
VALIDATION = "both are validated in eval mode, as they should be."

LOOK_AGAIN = {
    "A": "look at the sawtooth: it falls to almost 0 and jumps, again and again, at regular intervals.",
    "B": "training loss (line) and validation loss (dots) plateau together, below chance and far too high.",
    "C": "look at the first ten steps, and at how many powers of ten the axis spans. It never learned anything.",
    "D": "it trained well. Then, at one single step, something went wrong.",
    "E": "compare the line (training) with the dots (validation). They diverge.",
    "F": "a wide noisy band from start to end that hardly falls, with no sawtooth and no single jump.",
}

exercises = (
    build(
        "02.1",
        "The shape of a curve",
        judge_shape,
        example="shape(train, val)",
        points=3,
        hints=(
            "Test the rules in the order of the list, each with a return; the last return needs no test.",
            "np.isfinite(train).all() is False as soon as one value is NaN or infinite. Test both arrays.",
            "train[-20:].mean() works for shorter arrays too. val.min() is the lowest validation loss.",
        ),
    ),
    explain(
        "02.2",
        "Order the instrument that separates them",
        modes=(
            "learning_rate_too_low",
            "vanishing_gradients",
            "dead_relu",
            "schedule_too_short",
            "underfit",
            "too_few_samples",
            "dropout_at_validation",
        ),
        points=4,
        right=SEPARATES,
        because="P: gradients in every layer, or only in the last ones. Q: dead units, or none. R: a learning "
        "rate that "
        "has decayed to 0, or not. S: a net validated in train mode, or one that really is no better.",
        wrong={
            "P": {
                "dead": "neither has a dead unit: one has tiny updates, in the other no gradient reaches the "
                "first layers.",
                "lr": f"whether a learning rate is low depends on the net; R needs this more. {ONCE}",
                "val_train_mode": VALIDATION,
            },
            "Q": {
                "grad_norm": f"the first layer gets a gradient of 0 in one and of nearly 0 in the other. P "
                f"needs it more. {ONCE}",
                "lr": "both learning rates are normal.",
                "val_train_mode": VALIDATION,
            },
            "R": {
                "grad_norm": "both have gradients of normal size in every layer. What are they multiplied by?",
                "dead": "neither has dead units to speak of.",
                "val_train_mode": VALIDATION,
            },
            "S": {
                "grad_norm": "both nets train well. The question is how they are validated.",
                "dead": "both nets train well. The question is how they are validated.",
                "lr": "both nets train well. The question is how they are validated.",
            },
        },
        hints=(
            "For each pair say in one sentence what is broken in each of the two. Which instrument looks there?",
            "Q: in one of them the units are dead. R: in one of them the updates stop early.",
            "S: dropout belongs in training. An instrument that records the mode during validation shows it at once.",
        ),
    ),
    explain(
        "02.3",
        "Six sealed curves",
        modes=tuple(SEALED.values()),
        points=4,
        right=SEALED,
        because="A is a sawtooth with the period of the classes; in B both losses plateau together; C jumped at "
        "once and "
        "never learned; D was healthy until one step; E overfits; F is a wide noisy band.",
        wrong={
            letter: dict.fromkeys((name for name in SEALED.values() if name != SEALED[letter]), remark)
            for letter, remark in LOOK_AGAIN.items()
        },
        hints=(
            "Compare line and dots first: in one plot they diverge for good while the line falls to almost 0.",
            "Two curves jump by powers of ten: one at the start, one in the middle of healthy training.",
            "Of the other three, one is a regular sawtooth, one is a noisy band, one is smooth.",
        ),
    ),
    cure(
        "02.4",
        "Survive the corrupt batch",
        "corrupt_batch",
        keep=("data", "batches", "batch_size", "steps"),
        seeds=(11,),
        points=3,
        hints=(
            "The batch stays corrupt, so its loss will jump whatever you do. The update must stay small.",
            "An update is learning rate times gradient. Which of the two jumped at step 270, and can you limit it?",
            "Look at the entry `clip`: a gradient with a larger norm is scaled down. What norm do good batches have?",
        ),
    ),
)
