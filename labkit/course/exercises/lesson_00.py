"""Exercises of lesson 00, start here: one of each kind."""

import torch

from labkit.course.grading import Student, build, cure, expect_close, explain


def judge_update_ratio(mine: Student) -> str:
    before = torch.tensor([3.0, 4.0])
    expect_close(mine(before, before), 0.0, "Nothing moved")
    expect_close(mine(before, torch.tensor([3.0, 4.5])), 0.1, "Weights of length 5 moved by 0.5")
    expect_close(mine(before, -before), 2.0, "Weights that changed their sign moved by twice their length")
    matrix = torch.ones(30, 30)
    expect_close(mine(matrix, 1.01 * matrix), 0.01, "A matrix that grew by 1 %", 1e-3)
    return "It measures a step of any size, for vectors and matrices."


exercises = (
    build(
        "00.1",
        "How large is a step?",
        judge_update_ratio,
        example="update_ratio(before, after)",
        hints=(
            "The size of a tensor is its norm: `before.norm()`.",
            "What moved is `after - before`. Divide its norm by the norm of `before`.",
        ),
    ),
    cure(
        "00.2",
        "Your first patient",
        "learning_rate_too_high",
        seeds=(11,),
        hints=(
            "Which one entry differs from the healthy twin? `study.recipes` has both recipes.",
            "The learning rate is 100 times too high. A tenth of it is still 10 times too high.",
        ),
    ),
    explain(
        "00.3",
        "What gave it away?",
        right="update_ratio",
        wrong={
            "loss": "the loss shows that something is wrong, but many failures look like this. Which trace "
            "tells them apart?",
            "lr": "the learning rate is the cause. Whether it is too high depends on how much it changes the weights.",
            "val_accuracy": "chance level says that nothing was learned, but not why.",
        },
        hints=(
            "Look at the panel on the right: which instrument left the healthy band at the first step?",
            'The diagnosis says it in words: "changed a layer by ... times its own size".',
        ),
    ),
)
