"""Exercises of lesson 02, the gallery of loss curves; and its sealed curves."""

import numpy as np

from labkit.course.grading import Student, build, cure, expect, explain, short
from labkit.failures import FAILURES
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
STEPS = {"B": 300, "D": 300}  # B levels off slowly, D has its event late; of the others 200 steps show all
FACES = {"C": "two_layers"}  # the same failure as in the gallery, and another curve
SEED = 5  # not the seed of the gallery: it is the shape that counts, not this very curve


def patients() -> dict[str, Run]:
    """Six recorded runs, with letters for names. What was done to them is for the reader to find out."""
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
    never = "Every comparison with a NaN is False, so no threshold ever catches it. Ask np.isfinite."
    expect_shape(late, well, "diverged", "A run that ends in NaN", never)
    expect_shape(falling(2.3, 0.5), [2.3, 1.0, np.inf], "diverged", "Training is fine, the validation loss is infinite")
    jump = level.copy()
    jump[4:8] = 3e5
    back = "It jumped to 100,000 times its first loss and came back to chance. Look at all values, and ask this first."
    expect_shape(jump, [2.3, 2.3, 2.3], "diverged", "A jump in the middle", back)
    expect_shape(level, [2.3, 2.3, 2.3], "stuck", "A level line")
    lucky = level.copy()
    lucky[-1] = 1.6
    batch = "Only the last batch was an easy one. Take the mean of the last 20."
    expect_shape(lucky, [2.3, 2.3, 2.3], "stuck", "A level line with one low value at its end", batch)
    lowest = "The last validation loss is three times the lowest one. Compare with the lowest, not with the first."
    expect_shape(falling(2.3, 1e-4), [2.5, 1.1, 2.0, 3.3], "overfit", "Learned by heart", lowest)
    expect_shape(falling(2.3, 1e-3), [4.0, 1.0, 2.0, 2.5], "overfit", "Learned by heart, slowly", lowest)
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
    small = "A rise by a tenth is wobble; the rule says 1.3 times."
    expect_shape(falling(2.3, 0.2), [2.3, 0.5, 0.55], "falls", "A small rise at the end", small)
    order = "Two rules fit. The first in the list counts: a net that learned nothing has nothing to overfit."
    expect_shape(level, [2.3, 2.2, 3.5], "stuck", "A level line, and a validation loss that rises", order)
    expect_shape([2.3, 1.5, 1.0, 0.6, 0.2], well, "falls", "Five steps only", "Does it work on a short run?")
    return "NaN, jumps, lucky batches and wobbles: each in its drawer."


# --- 02.2, 02.3: the evidence; 02.4 is a cure ---

SEPARATES = {"P": "grad_norm", "Q": "dead", "R": "lr", "S": "val_train_mode"}
ONCE = "Each instrument is ordered once."
VALIDATION = "both are validated in eval mode, as they should be."

LOOK_AGAIN = {
    "A": "look at the rhythm: it falls to almost nothing and jumps, again and again, at regular distances.",
    "B": "line and dots lie on each other, calm and level, well below chance and far too high.",
    "C": "look at the first ten steps, and at how many powers of ten the axis has. It never learned anything.",
    "D": "it was doing well. Then, at one single step, something happened to it.",
    "E": "compare the line (training) with the dots (validation). They went different ways.",
    "F": "a thick band, from beginning to end, that hardly sinks, without a rhythm and without an event.",
}

exercises = (
    build(
        "02.1",
        "The shape of a curve",
        judge_shape,
        example="shape(train, val)",
        points=3,
        hints=(
            "Four questions in the order of the list, each with a return; the last return needs no question.",
            "np.isfinite(train).all() is False as soon as one value is NaN or infinite. Ask it of both arrays.",
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
        because="P: living gradients in every layer, or only in the last ones. Q: silent units, or none. R: a rate "
        "that has gone to 0, or one at work. S: a net examined in train mode, or one that is really no better.",
        wrong={
            "P": {
                "dead": "neither has a silent unit: one is not moved, the other not reached.",
                "lr": f"a rate is low or high for a net, not by itself; R needs this more. {ONCE}",
                "val_train_mode": VALIDATION,
            },
            "Q": {
                "grad_norm": f"both starve the first layer: 0 in one, nearly 0 in the other. P needs it more. {ONCE}",
                "lr": "both rates are ordinary.",
                "val_train_mode": VALIDATION,
            },
            "R": {
                "grad_norm": "both have gradients of ordinary size in every layer. What are they multiplied with?",
                "dead": "neither has dead units to speak of.",
                "val_train_mode": VALIDATION,
            },
            "S": {
                "grad_norm": "both nets train well. The question is how they are examined.",
                "dead": "both nets train well. The question is how they are examined.",
                "lr": "both nets train well. The question is how they are examined.",
            },
        },
        hints=(
            "For each pair say in one sentence what is broken in each of the two. Which instrument looks there?",
            "Q: in one of them the units are silent. R: in one of them the updates end early.",
            "S: dropout belongs in training. An instrument that looks at the mode during validation sees it at once.",
        ),
    ),
    explain(
        "02.3",
        "Six sealed curves",
        modes=tuple(SEALED.values()),
        points=4,
        right=SEALED,
        because="A saws with the classes; B is level with both losses together; C jumped at once and never learned; D "
        "was well until one step; E parts from its dots; F is a thick band.",
        wrong={
            letter: dict.fromkeys((name for name in SEALED.values() if name != SEALED[letter]), remark)
            for letter, remark in LOOK_AGAIN.items()
        },
        hints=(
            "Line against dots first: in one picture they part for good while the line dives.",
            "Two curves jump by powers of ten: one at its start, one in the middle of a good life.",
            "Of the three that are left one has a rhythm, one is a band, one is calm.",
        ),
    ),
    cure(
        "02.4",
        "Survive the blow",
        "corrupt_batch",
        keep=("data", "batches", "batch_size", "steps"),
        seeds=(11,),
        points=3,
        hints=(
            "The batch stays bad, so its loss will jump whatever you do. What must stay small is the step.",
            "A step is rate times gradient. Which of the two jumped at step 270, and can you put a limit on it?",
            "Look at the knob `clip`: a gradient longer than that is shortened. What norm do the good batches have?",
        ),
    ),
)
