"""Exercises of lesson 12, watching one's own loop; and the five sealed runs of its two hours."""

import copy

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from labkit.training.data import load
from labkit.course.grading import NotYet, Student, build, cure, everything_but, expect, expect_close, explain
from labkit.failures import FAILURES
from labkit.training.recipe import Recipe
from labkit.recording.run import Run
from labkit.training.loop import train
from labkit.diagnosis.watch import Alarm, Watch, watch

# --- the sealed runs of 12.4 ---

METRIC, RATE, OVERFIT, SADDLE, CONVERGED = "broken metric", "decayed rate", "overfitting", "saddle", "convergence"
SEALED = {
    "A": (RATE, FAILURES["scheduler_stepped_per_batch"].sick.but(steps=200)),
    "B": (METRIC, FAILURES["metric_broadcast"].sick.but(steps=200)),
    "C": (SADDLE, FAILURES["saddle_point"].sick.but(steps=150)),
    "D": (CONVERGED, Recipe(steps=300, seed=3)),
    "E": (OVERFIT, FAILURES["too_few_samples"].sick.but(steps=200)),
}


def patients() -> dict[str, Run]:
    """Five recorded runs, with letters for names. Why each has come to rest is for the reader to find out."""
    return {letter: train(recipe, progress=False) for letter, (_, recipe) in SEALED.items()}


# --- 12.1 ---

BATCHES = 10


def small_case():
    """A net with dropout, its optimizer, ten batches of digits, and a test on others."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = (each[: 32 * BATCHES] for each in load("mnist", "train", samples=32 * BATCHES))
    return model, optimizer, list(zip(x.split(32), y.split(32), strict=True)), (x[:64], y[:64])


def small_test(model) -> dict:
    return {"loss": 0.25, "accuracy": 0.75 if not model.training else 0.5}


def reference(model, optimizer, loader, probe, test):
    """The loop of 12.1, watched as it should be."""
    with watch(model, optimizer, probe=probe) as record:
        model.train()
        for data, target in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(data), target)
            loss.backward()
            optimizer.step()
            record.step(loss, batch=(data, target))
        model.eval()
        record.validation(**test(model))
    return record


def judge_watched(mine: Student) -> str:
    model, optimizer, loader, probe = small_case()
    twin = copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        right = reference(twin, torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9), loader, probe, small_test).run
        torch.manual_seed(5)
        record = mine.on(model, optimizer, loader, probe, small_test)
    expect(isinstance(record, Watch), "Return the record: what `with ... as` gave you.")
    expect(record.hook, "The watch was made, but never entered: `with labkit.watch(...) as record:`.")
    run = record.run
    expect(len(run) > 0, "The record is empty: tell it of each update with record.step(loss, batch=...).")
    expect(len(run) == BATCHES, f"There were {BATCHES} updates, and the record has {len(run)} of them.")
    same = all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    expect(same, "The net ends with other weights than the plain loop's. Keep each of its lines, in their order.")
    left = optimizer._optimizer_step_pre_hooks or any(part._forward_hooks for part in model.modules())
    expect(not left, "Hooks are still on the net or the optimizer: leave through the end of a `with` block.")
    close = torch.allclose(torch.tensor(run["update_norm"]), torch.tensor(right["update_norm"]), rtol=1e-4)
    expect(close, "The updates on record are not those that were made: call record.step just after optimizer.step().")
    expect_close(run["loss"], right["loss"], "The loss of each step", tolerance=1e-4)
    seen = set(right.traces) - set(run.traces)
    expect("val_accuracy" in run, "The validation is not on record: record.validation(**test(model)).")
    expect_close(run.accuracy, 0.75, "The accuracy that test gave in eval mode, at the end")
    expect("dead" in run, "No probe was given, so no dead units were looked for: watch(..., probe=probe).")
    batch = run.facts.get("batch_length") == right.facts.get("batch_length")
    expect(batch and not seen, "The batches are not on record: record.step(loss, batch=(data, target)).")
    return "Every update, the batches, the probe and the validation; and the weights are the same to the last bit."


# --- 12.2 ---


class Broken(RuntimeError):  # as the alarm is one, too
    """An error that is none of the watch's business."""


def loop_of(model, optimizer, loader, made: list):
    """A loop that takes a record, and writes down the updates it made."""

    def loop(record) -> None:
        for data, target in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(data), target)
            loss.backward()
            optimizer.step()
            made.append(loss.item())
            record.step(loss, batch=(data, target))

    return loop


def broken_loop(record) -> None:
    raise Broken("the disk is full")


def guarded_case(lr: float):
    model, optimizer, loader, _ = small_case()
    optimizer.param_groups[0]["lr"] = lr
    made: list[float] = []
    return model, optimizer, loop_of(model, optimizer, loader * 4, made), made


def name_of_first_alarm(model, optimizer, loop) -> str:
    try:
        with watch(model, optimizer, on_alarm="raise") as record:
            loop(record)
    except Alarm as alarm:
        return alarm.diagnosis.name
    return "quiet"


def judge_guarded(mine: Student) -> str:
    *right, steps = guarded_case(lr=50.0)
    name = name_of_first_alarm(*right)
    model, optimizer, loop, made = guarded_case(lr=50.0)
    seen = mine.on(model, optimizer, loop)
    expect(seen != "quiet", f"At a rate of 50 the alarm rings at update {len(steps)}, and you report 'quiet'.")
    expect(len(made) > 0, "The loop was never run. Give it the record: loop(record).")
    expect(len(made) <= len(steps), f"The alarm rings at update {len(steps)}; your loop went on to {len(made)}.")
    seen = getattr(seen, "name", seen)
    expect(seen == name, f"The first alarm is {name!r}; you returned {seen!r}.")
    model, optimizer, loop, made = guarded_case(lr=0.05)
    seen = mine.on(model, optimizer, loop)
    expect(seen == "quiet", f"A sound loop rings no alarm: expected 'quiet', got {seen!r}.")
    expect(len(made) == 4 * BATCHES, f"A sound loop has {4 * BATCHES} updates to make; yours made {len(made)}.")
    model, optimizer, *_ = guarded_case(lr=0.05)
    try:
        mine.on(model, optimizer, broken_loop)
    except NotYet as passed:
        if isinstance(passed.__cause__, Broken):
            return "It stops at the first alarm, lets a sound loop finish, and swallows no other error."
        raise
    raise NotYet("The loop failed with an error of its own, and you swallowed it. Catch labkit.Alarm and nothing else.")


# --- 12.5 ---


def judge_schedule(recipe: Recipe) -> None:
    """In the middle of epochs, for two sizes of them: 'constant' would cure this patient too."""
    for samples, size in ((10_000, 128), (1_000, 50)):
        case = recipe.but(samples=samples, batch_size=size)
        for epoch in (0, 1, 4):
            step = int((epoch + 0.5) * (samples // size))
            what = f"{samples:,} images in batches of {size}, step {step}, which is in epoch {epoch} counted from 0"
            expect_close(case.schedule(step, case), case.lr * case.decay**epoch, what)


# --- 12.3 and 12.4: the hypotheses, their tests, and the runs; 12.5 is a cure ---

TESTS = {
    METRIC: "loss against metric",
    RATE: "rate really used",
    OVERFIT: "two losses",
    SADDLE: "first gradient",
    CONVERGED: "train on",
}
WHY_NOT = {
    "loss against metric": "that test asks whether the number on the screen can be true.",
    "rate really used": "that test asks whether anything may still move.",
    "two losses": "that test asks whether training goes on improving while validation does not.",
    "first gradient": "that test asks whether something grows under a loss that does not move.",
    "train on": "that test costs another run; it is for the case where all the others are clean.",
}


def other_tests(right: str) -> dict[str, str]:
    return {name: why for name, why in WHY_NOT.items() if name != right}


def other_causes(right: str, **reasons: str) -> dict[str, str]:
    """Why not, for each of the other four."""
    general = {
        METRIC: "its accuracy is not below 1 - loss / ln 2: the number can be true.",
        RATE: "its rate is the same from the first step to the last.",
        OVERFIT: "its training loss is no lower than a healthy net's, or its gap is small.",
        SADDLE: "its first gradient does not grow by itself from almost nothing.",
        CONVERGED: "look again: one of the four tests does not come out clean.",
    }
    return {name: reasons.get(name.split()[-1], why) for name, why in general.items() if name != right}


exercises = (
    build(
        "12.1",
        "Two lines around a loop",
        judge_watched,
        example="watched(model, optimizer, loader, probe, test)",
        points=3,
        hints=(
            "Copy the plain loop, put `with labkit.watch(model, optimizer, probe=probe) as record:` around it.",
            "Inside, just after optimizer.step(): record.step(loss, batch=(data, target)).",
            "After the loop, still inside: model.eval(), record.validation(**test(model)). Then return record.",
        ),
    ),
    build(
        "12.2",
        "Stop at the first alarm",
        judge_guarded,
        example="guarded(model, optimizer, loop)",
        points=2,
        hints=(
            'watch(..., on_alarm="raise") raises labkit.Alarm out of record.step.',
            "try: with watch(...) as record: loop(record); except labkit.Alarm as alarm: ...",
            "alarm.diagnosis is a Diagnosis; it has a name.",
        ),
    ),
    explain(
        "12.3",
        "Each hypothesis has its test",
        points=3,
        right=TESTS | {"first": "loss against metric", "last": "train on"},
        because="The metric comes first, because everything else is read through it. Convergence comes last: it is "
        "what remains when all the cheap tests are clean.",
        wrong={
            **{cause: other_tests(test) for cause, test in TESTS.items()},
            "first": {
                "rate really used": "cheap, too. But if the number on the screen is wrong, is there a problem at all?",
                "two losses": "one of these two curves may be measured wrongly. What would tell?",
                "first gradient": "if the number on the screen is wrong, is there a problem at all?",
                "train on": "it is the only one that costs a run.",
            },
            "last": {
                "loss against metric": "it costs nothing, and the others are read through it.",
                "rate really used": "one look at the log.",
                "two losses": "both are on record already.",
                "first gradient": "it is on record already.",
            },
        },
        hints=(
            "What would each hypothesis change in the record, and the other four not?",
            "Four of the five tests read what is recorded. One needs another run: do it last.",
        ),
    ),
    explain(
        "12.4",
        "Five flat curves",
        modes=("scheduler_stepped_per_batch", "metric_broadcast", "saddle_point", "too_few_samples"),
        points=5,
        right={letter: cause for letter, (cause, _) in SEALED.items()},
        because="Only one of the five is done. One needs a scheduler put right, one needs patience or momentum, one "
        "needs data; and one net was well all along.",
        wrong={
            "A": other_causes(RATE),
            "B": other_causes(METRIC, convergence="a loss as low as this and one answer in ten right: can that be?"),
            "C": other_causes(SADDLE, convergence="at the loss of pure guessing? Look at its first gradient."),
            "D": other_causes(CONVERGED),
            "E": other_causes(OVERFIT, convergence="training went on to almost nothing, and validation turned."),
        },
        hints=(
            "Go in the order of 12.3: metric, rate, two losses, first gradient. Stop at the first that is not clean.",
            "Only one has an accuracy below 1 - loss / ln 2. Only one has lost its learning rate.",
            "Of the other three, one has a wide gap, and one a gradient that grew ten thousandfold.",
        ),
    ),
    cure(
        "12.5",
        "Put the scheduler where it belongs",
        "scheduler_stepped_per_batch",
        keep=everything_but("schedule"),
        also=judge_schedule,
        seeds=(11,),
        points=3,
        hints=(
            "The factor 0.9 was meant for epochs. How many steps does an epoch have here?",
            "recipe.samples // recipe.batch_size steps are an epoch; step // that is the number of the epoch.",
            "recipe.lr * recipe.decay ** epoch.",
        ),
    ),
)
