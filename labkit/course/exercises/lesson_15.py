"""Exercises of lesson 15, the final exam: a sealed patient of the class ward, and your own signature."""

import dataclasses
import functools
from collections.abc import Mapping

from labkit.course.grading import Exercise, NotYet, Student, build, expect, explain, short
from labkit.course.ward.cases import draw
from labkit.course.ward.game import Treated, Ward, ward
from labkit.errors import RecipeError
from labkit.failures.catalogue import FAILURES
from labkit.failures.mode import Evidence
from labkit.recording.run import Run
from labkit.training import run_store
from labkit.training.recipe import Recipe

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
)
