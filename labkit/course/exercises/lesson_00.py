"""Exercises of lesson 00, start here: one of each kind, and a plain PyTorch loop to repair."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from labkit.course.grading import Student, build, cure, expect_close, explain
from labkit.course.loops import images, loop
from labkit.course.predictions import prediction


def judge_update_ratio(mine: Student) -> str:
    before = torch.tensor([3.0, 4.0])
    expect_close(mine(before, before), 0.0, "Nothing moved")
    expect_close(mine(before, torch.tensor([3.0, 4.5])), 0.1, "Weights of length 5 moved by 0.5")
    expect_close(mine(before, -before), 2.0, "Weights that changed their sign moved by twice their length")
    matrix = torch.ones(30, 30)
    expect_close(mine(matrix, 1.01 * matrix), 0.01, "A matrix that grew by 1 %", 1e-3)
    return "It measures a step of any size, for vectors and matrices."


# --- the loop of the lesson ---


def make_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


def make_sgd(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, loader) -> None:
    """The loop of the lesson without its mistake."""
    for _ in range(3):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()


def train_from_scratch(model: nn.Module, loader) -> None:
    train(model, make_sgd(model.parameters()), loader)


predictions = (
    prediction(
        "00.0",
        correct=3,
        why="Each step is longer than the valley is wide and lands higher on the other side, where the gradient is "
        "larger and the next step longer still.",
        wrong={
            1: "A longer step is faster only as long as it still lands lower down.",
            2: "It would oscillate if each overshoot were smaller than the one before. Here each is larger.",
        },
    ),
)
exercises = (
    build(
        "00.1",
        "How large is a step?",
        judge_update_ratio,
        example="update_ratio(before, after)",
        points=2,
        hints=(
            "The size of a tensor is its norm: `before.norm()`.",
            "What moved is `after - before`. Divide its norm by the norm of `before`.",
        ),
    ),
    explain(
        "00.2",
        "What gave it away?",
        right="update_ratio",
        wrong={
            "loss": "the loss shows that something is wrong, but many failures look like this. Which trace "
            "tells them apart?",
            "lr": "the learning rate is the cause. Whether it is too high depends on how much it changes the weights.",
            "val_accuracy": "chance level says that nothing was learned, but not why.",
        },
        because="The loss of many failures looks like this one. Only here does the first step replace the weights.",
        hints=(
            "Look at the last panel: which instrument left the healthy band at the first step?",
            'The diagnosis says it in words: "changed a layer by ... times its own size".',
        ),
    ),
    cure(
        "00.3",
        "Your first patient",
        "learning_rate_too_high",
        seeds=(11,),
        points=3,
        hints=(
            "Which one entry differs from the healthy twin? `study.recipes` has both recipes.",
            "The learning rate is 100 times too high. A tenth of it is still 10 times too high.",
        ),
    ),
    loop(
        "00.4",
        "Repair a loop",
        images(make_net, make_sgd),
        train,
        points=4,
        hints=(
            "Say what each line does, in order, for one batch. What happens to the gradients of the batch before?",
            "`.backward()` adds to `.grad`. Nothing in this loop sets it back.",
            "`optimizer.zero_grad()` at the start of every batch.",
        ),
    ),
    loop(
        "00.5",
        "A script with two bugs (optional)",
        images(make_net),
        train_from_scratch,
        example="train_script(model, loader)",
        points=0,
        hints=(
            "How often does the optimizer step in one epoch? Count it, do not guess.",
            "What does `cross_entropy` expect: probabilities or logits? Its documentation has one sentence on it.",
            "Indent `optimizer.step()` by one level, and give `cross_entropy` the model's outputs as they are.",
        ),
    ),
)
