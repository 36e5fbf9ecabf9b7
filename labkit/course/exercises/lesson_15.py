"""Exercises of lesson 15, the final exam: a sealed patient of the class ward, a script, and your own signatures."""

import dataclasses
import functools
from collections.abc import Mapping

import torch
from torch.nn.functional import cross_entropy

from labkit.course.exercises.lesson_10 import EPOCHS, judge_modes, with_validation
from labkit.course.grading import Exercise, NotYet, Student, build, expect, explain, short
from labkit.course.loops import Outcome, loop
from labkit.course.predictions import prediction
from labkit.course.ward.cases import draw
from labkit.course.ward.game import Treated, Ward, ward
from labkit.errors import RecipeError
from labkit.failures.catalogue import FAILURES
from labkit.failures.mode import Evidence
from labkit.recording.run import Run
from labkit.training import run_store
from labkit.training.recipe import Recipe

predictions = (
    prediction(
        "15.0",
        correct=2,
        why="Each suspect predicts other updates: dead units give the hidden layers exactly 0, a detached loss gives 0 "
        "to all layers, wrong labels give updates of ordinary size, and a learning rate that is too low gives tiny "
        "ones that are not 0.",
        wrong={
            1: "It would repeat what the loss says already: nothing was learned.",
            3: "It shows a number and leaves it to you whether that is too low for this net.",
        },
    ),
)

CLASS_SEED = 2026  # everybody who takes the course gets the same ward
BEDS = 5


def class_ward(student: str = "") -> Ward:
    """The ward of the exam. The student finds which failure each patient has."""
    return ward(seed=CLASS_SEED, patients=BEDS, student=student)


SEALED = draw(CLASS_SEED, BEDS)[0].name  # patient 1, the subject of 15.1 and 15.2

# --- 15.2 ---


def judge_prescription(prescription) -> str:
    if not isinstance(prescription, Mapping):
        example = '{"momentum": 0.5}'
        raise NotYet(f"Expected a dict of settings such as {example}, got {short(prescription)}.")
    try:
        treated = treated_with(tuple(sorted(prescription.items())))
    except RecipeError as error:
        raise NotYet(f"Invalid prescription: {error}.") from None
    expect(treated.cured, treated.words)
    return "Trained again: as accurate as the healthy twin, and no failure found."


@functools.lru_cache(maxsize=32)
def treated_with(settings: tuple) -> Treated:
    """The result of a prescription for patient 1, cached; in a fresh ward, so that it uses up no tries."""
    fresh = class_ward()
    return fresh[1].prescribe(**dict(settings))


# --- 15.3 ---

STEPS = {"steps": 100, "evaluate_every": 25}


LOW = FAILURES["learning_rate_too_low"]
HIDDEN = {
    "sick": LOW.sick.but(seed=11),
    "sick, another net": LOW.sick.but(seed=12, width=48, lr=3e-6, activation="tanh"),
    "healthy": LOW.healthy.but(seed=11),
    "cured": next(iter(LOW.cures.values())).but(seed=12),
    "adam": Recipe(optimizer="adam", lr=0.001, seed=11),
    "dead": FAILURES["dead_relu"].sick.but(seed=11),
    "cut off": FAILURES["silently_detached_loss"].sick.but(seed=11),
}


def hidden_run(role: str) -> Run:
    """A run to test a signature on; trained once, when first needed. The learning rate is left out."""
    run = run_store.in_memory.run_of(HIDDEN[role].but(**STEPS), errors="raise", progress=False)
    traces = {name: values for name, values in run.traces.items() if name != "lr"}
    return dataclasses.replace(run, traces=traces, recipe={})


FALSE_ALARMS = {
    "healthy": "It fires on a healthy run. What is the healthy range of the trace you test?",
    "cured": "It fires on the cured run. It must not fire on a run that learns.",
    "adam": "It fires on a healthy run with Adam at a learning rate of 0.001. What is low for one optimizer is "
    "normal for another: look at how much the weights change.",
    "dead": "It fires on a net whose units are dead. Its loss is flat too, but its updates are exactly 0 in most "
    "layers, and a higher learning rate would not help.",
    "cut off": "It fires on a net whose loss is detached from its weights: its updates are exactly 0, and no learning "
    "rate would help.",
}


def judge_signature(mine: Student) -> str:
    for role in ("sick", "sick, another net"):
        expect(
            fires(mine, hidden_run(role)),
            f"It does not fire on a run with the failure ({role}). Is the threshold too strict?",
        )
    for role, words in FALSE_ALARMS.items():
        expect(not fires(mine, hidden_run(role)), words)
    return "It fires on both sick runs, and on none of the other five: three that learn, one dead, one detached."


# --- 15.4 ---


def repaired(model, optimizer, loader, val_x, val_y):
    """The reference: half of the learning rate after each epoch, the right modes, and a metric that compares alike."""
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    scores = []
    for _ in range(EPOCHS):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
        scheduler.step()
        model.eval()
        with torch.no_grad():
            right = model(val_x).argmax(1) == val_y
        scores.append(right.float().mean().item())
    return scores


def judge_script(outcome: Outcome) -> str:
    rates, steps = outcome.run["lr"], len(outcome.setting.loader)
    wanted = [rates[0] / 2**epoch for epoch in range(EPOCHS)]
    used = [float(each) for each in rates[::steps][:EPOCHS]]
    close = len(rates) == EPOCHS * steps and all(abs(a - b) < 0.02 * b for a, b in zip(used, wanted, strict=True))
    expect(
        close and abs(rates[-1] - wanted[-1]) < 0.02 * wanted[-1],
        f"The epochs begin at learning rates of {', '.join(f'{each:.2g}' for each in used)}, and the last step has "
        f"{rates[-1]:.2g}; half of it after each epoch is {', '.join(f'{each:.2g}' for each in wanted)}.",
    )
    judge_modes(outcome)
    return "On other digits it learns as well as a correct script, in the right modes, and its accuracies are true."


# --- 15.5 ---

ENDED = {
    "sick": FAILURES["schedule_too_short"].sick.but(seed=11, steps=120),
    "sick, later": FAILURES["schedule_too_short"].sick.but(seed=12, steps=60),
}
NOT_ENDED = {
    "a cosine that ends with the run": (Recipe(schedule="cosine", seed=11), "its learning rate is 0 at its very end."),
    "a constant learning rate": (Recipe(seed=11), "its learning rate never changes."),
    "a constant, tiny learning rate": (LOW.sick.but(seed=11), "it is low from the start: another failure."),
    "a warm-up that is too long": (FAILURES["warmup_too_long"].sick.but(seed=11), "its learning rate is still rising."),
}


@functools.cache
def run_with_schedule(recipe: Recipe) -> Run:
    steps = {} if recipe in ENDED.values() else {"steps": 100}
    run = run_store.in_memory.run_of(recipe.but(evaluate_every=50, **steps), errors="raise", progress=False)
    return dataclasses.replace(run, recipe={})


def judge_ended(mine: Student) -> str:
    for role, recipe in ENDED.items():
        expect(fires(mine, run_with_schedule(recipe)), f"It does not fire on a schedule that ended early ({role}).")
    for words, (recipe, why) in NOT_ENDED.items():
        expect(not fires(mine, run_with_schedule(recipe)), f"It fires on {words}: {why}")
    return "It fires where the learning rate was at work and then ended too early, and nowhere else."


def fires(mine: Student, run: Run) -> bool:
    answer = mine.call_or_none(run)
    # As in the catalogue's own signatures: None does not fire, Evidence does.
    known = answer is None or isinstance(answer, Evidence) or hasattr(answer, "__bool__")
    expect(known, f"Expected True or False, got {short(answer)}.")
    return bool(answer)


exercises = (
    explain(
        "15.1",
        "Name the failure",
        modes=("init_too_large", "head_init_too_large", "inputs_not_normalised", "learning_rate_too_high"),
        points=3,
        right=SEALED,
        because="The first loss is far above chance before the first step, the inputs have a normal scale, and the "
        "activations of the hidden layer are already far too large.",
        wrong={
            "head_init_too_large": "then the hidden activations would be of normal size, and only the outputs "
            "too large.",
            "inputs_not_normalised": "the data log shows a standard deviation of the inputs near 1.",
            "learning_rate_too_high": "the loss is highest before the first step, when the learning rate has "
            "had no effect yet.",
            "exploding_gradients": "that takes many layers and a first gradient in the thousands. Count the layers.",
        },
        hints=(
            "Compare the first loss with chance level.",
            "What is too large before the first step: the inputs, the hidden activations, or the outputs alone?",
            '"data" shows the standard deviation of the inputs, "activations" that of every layer.',
        ),
    ),
    Exercise(
        id="15.2",
        title="Prescribe",
        kind="cure",
        judge=judge_prescription,
        modes=(SEALED,),
        points=3,
        hints=(
            "Do not change the training: the patient was sick before the first step.",
            "Which setting controls the initial weights? labkit.Recipe lists the choices when you try an unknown one.",
        ),
    ),
    build(
        "15.3",
        "Your own signature",
        judge_signature,
        example="signature(run)",
        points=4,
        modes=("learning_rate_too_low", "dead_relu"),
        hints=(
            'run["update_ratio"] has one row per step and one column per layer: update norm / weight norm.',
            "Healthy runs have 0.001 to 0.03. With a learning rate of 1e-6 it is about 1e-6.",
            "A dead net has exactly 0 in its hidden layers. So: the median over all layers and steps is above 0 "
            "and below 1e-4.",
        ),
    ),
    loop(
        "15.4",
        "A script with three faults",
        with_validation,
        repaired,
        example="script(model, optimizer, loader, val_x, val_y)",
        free_of=(),
        margin=0.06,  # the judge of the learning rate and the modes has more to say than the accuracy
        also=judge_script,
        modes=("scheduler_stepped_per_batch", "eval_mode_in_training", "metric_broadcast"),
        points=4,
        hints=(
            "One fault is in the schedule, one in the modes, one in the metric. Lessons 04 and 10 have each of them.",
            "How often is 0.5 multiplied? In which mode does the second epoch train? Which shape has `right`?",
            "scheduler.step() after the batches, model.train() at the top of each epoch, argmax(1) without keepdim.",
        ),
    ),
    build(
        "15.5",
        "Optional: a schedule that ended early",
        judge_ended,
        example="ended_early(run)",
        points=0,
        modes=("schedule_too_short",),
        hints=(
            'run["lr"] is the learning rate that was really used, one per step.',
            "It was at work once, and for how large a share of the run was it next to nothing afterwards?",
            "After its highest value: more than a quarter of all steps below a thousandth of it.",
        ),
    ),
)
