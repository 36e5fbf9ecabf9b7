"""Exercises of lesson 13, the final exam: a sealed patient of the class's ward, and a signature of one's own."""

import dataclasses
import functools
from collections.abc import Mapping

from labkit.course.grading import Exercise, NotYet, Student, build, expect, explain, short
from labkit.failures.mode import Evidence
from labkit.failures import FAILURES
from labkit.training.rules import RecipeError
from labkit.training.recipe import Recipe
from labkit.recording.run import Run
from labkit.training.loop import train
from labkit.course.ward.game import Treated, Ward, ward
from labkit.course.ward.cases import draw

CLASS_SEED = 2026  # the same ward for everybody who takes the course
BEDS = 5


def class_ward(student: str = "") -> Ward:
    """The ward of the exam. What its patients have is for the reader to find out."""
    return ward(seed=CLASS_SEED, patients=BEDS, student=student)


SEALED = draw(CLASS_SEED, BEDS)[0].name  # patient 1, whom 13.1 and 13.2 are about

# --- 13.2 ---


def judge_prescription(prescription) -> str:
    if not isinstance(prescription, Mapping):
        example = '{"momentum": 0.5}'
        raise NotYet(f"Expected a dict of settings such as {example}, got {short(prescription)}.")
    try:
        treated = followed(tuple(sorted(prescription.items())))
    except RecipeError as error:
        raise NotYet(f"It was not filled: {error}.") from None
    expect(treated.cured, treated.words)
    return "Trained again: as good as the healthy twin, and no instrument complains."


@functools.lru_cache(maxsize=32)
def followed(settings: tuple) -> Treated:
    """What comes of a prescription for patient 1, once for each; in a ward of its own, where no tries are counted."""
    fresh = class_ward()
    return fresh[1].prescribe(**dict(settings))


# --- 13.3 ---

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


@functools.cache
def hidden_run(role: str) -> Run:
    """What a signature is tried on; trained when it is needed, and once. The rate itself is left out."""
    run = train(HIDDEN[role].but(**STEPS), progress=False)
    traces = {name: values for name, values in run.traces.items() if name != "lr"}
    return dataclasses.replace(run, traces=traces, recipe={})


FALSE_ALARMS = {
    "healthy": "It fires on a healthy run. What is the usual size of what you look at?",
    "cured": "It fires on the cured run: one that learns has to be left in peace.",
    "adam": "It fires on a healthy run with Adam at a rate of 0.001. What is low for one optimizer is usual for "
    "another: look at what the rate does to the weights.",
    "dead": "It fires on a net whose units are dead. Its loss stands still too, but nothing moves there at all: its "
    "steps are exactly 0 in most layers, and a higher rate would not help.",
    "cut off": "It fires on a net whose loss is cut off from its weights: its steps are exactly 0, and no rate would "
    "help.",
}


def judge_signature(mine: Student) -> str:
    for role in ("sick", "sick, another net"):
        expect(
            fires(mine, hidden_run(role)), f"It is silent on a run that is ill ({role}). Is the threshold too strict?"
        )
    for role, words in FALSE_ALARMS.items():
        expect(not fires(mine, hidden_run(role)), words)
    return (
        "It fires on both that are ill, and on none of five that have it not: three that learn, one dead, one cut off."
    )


def fires(mine: Student, run: Run) -> bool:
    answer = mine.says(run)
    # None is silence and Evidence an alarm, as in the catalogue's own signatures.
    known = answer is None or isinstance(answer, Evidence) or hasattr(answer, "__bool__")
    expect(known, f"True or False? It gave {short(answer)}.")
    return bool(answer)


exercises = (
    explain(
        "13.1",
        "Name the patient",
        modes=("init_too_large", "head_init_too_large", "inputs_not_normalised", "learning_rate_too_high"),
        points=3,
        right=SEALED,
        because="The first loss is far above chance before any step was taken, the inputs are of ordinary size, and "
        "the hidden layer is already far too loud.",
        wrong={
            "head_init_too_large": "then the hidden layers would be of ordinary size, and only the outputs loud.",
            "inputs_not_normalised": "the data ledger gives the spread of the inputs, and it is near 1.",
            "learning_rate_too_high": "the loss is at its worst before the first step. No rate has done anything yet.",
            "exploding_gradients": "that takes many layers and a first gradient in the thousands. Count the layers.",
        },
        hints=(
            "Read the first value of the loss, and compare it with the chance level beside it.",
            "Too loud before the first step: the inputs, the hidden layers, or the head alone? Order what tells.",
            '"data" gives the spread of the inputs, "activations" that of every layer.',
        ),
    ),
    Exercise(
        id="13.2",
        title="Prescribe",
        kind="cure",
        judge=judge_prescription,
        modes=(SEALED,),
        points=3,
        hints=(
            "Do not treat the training: the patient was ill before it began.",
            "Which setting says how the weights are drawn? labkit.Recipe names its choices when you try a wrong one.",
        ),
    ),
    build(
        "13.3",
        "A signature of your own",
        judge_signature,
        example="signature(run)",
        points=4,
        modes=("learning_rate_too_low", "dead_relu"),
        hints=(
            'run["update_ratio"] has one row per step and one column per layer: the step as a share of the weights.',
            "Healthy runs have 0.001 to 0.03. With a rate of 1e-6 it is some 1e-6.",
            "A dead net has exactly 0 in its hidden layers. So: the median of all, above 0 and below 1e-4.",
        ),
    ),
)
