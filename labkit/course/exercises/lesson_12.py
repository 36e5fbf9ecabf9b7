"""Exercises of lesson 12, watching your own training loop; and its five sealed runs."""

import copy

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from labkit.course.grading import NotYet, Student, build, cure, everything_but, expect, expect_close, explain
from labkit.diagnosis.watch import Alarm, Watch, watch
from labkit.failures.catalogue import FAILURES
from labkit.recording.run import Run
from labkit.training.data import load
from labkit.training.loop import train
from labkit.training.recipe import Recipe

# --- the sealed runs of 12.4 ---

METRIC, RATE, OVERFIT, SADDLE, CONVERGED = "broken metric", "decayed rate", "overfitting", "saddle", "convergence"
SEALED = {
    "A": (RATE, FAILURES["scheduler_stepped_per_batch"].sick.but(steps=200)),
    "B": (METRIC, FAILURES["metric_broadcast"].sick.but(steps=200)),
    "C": (SADDLE, FAILURES["saddle_point"].sick.but(steps=150)),
    "D": (CONVERGED, Recipe(momentum=0.9, steps=300, seed=3)),
    "E": (OVERFIT, FAILURES["too_few_samples"].sick.but(steps=200)),
}


def patients() -> dict[str, Run]:
    """Five runs, named by letters. The student finds why each one has plateaued."""
    return {letter: train(recipe, progress=False) for letter, (_, recipe) in SEALED.items()}


# --- 12.1 ---

BATCHES = 10


def small_case():
    """A net with dropout, its optimizer, ten batches of digits, and a probe batch."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = (each[: 32 * BATCHES] for each in load("mnist", "train", samples=32 * BATCHES))
    return model, optimizer, list(zip(x.split(32), y.split(32), strict=True)), (x[:64], y[:64])


def small_test(model) -> dict:
    return {"loss": 0.25, "accuracy": 0.75 if not model.training else 0.5}


def watched_correctly(model, optimizer, loader, probe, test):
    """The reference solution of 12.1."""
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
        right = watched_correctly(
            twin, torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9), loader, probe, small_test
        ).run
        torch.manual_seed(5)
        record = mine.in_place(model, optimizer, loader, probe, small_test)
    expect(isinstance(record, Watch), "Return the record: the object from `with ... as`.")
    expect(record.hook, "The watch was created, but never entered: `with labkit.watch(...) as record:`.")
    run = record.run
    expect(len(run) > 0, "The record is empty: call record.step(loss, batch=...) after each update.")
    expect(len(run) == BATCHES, f"There were {BATCHES} updates, but the record has {len(run)} of them.")
    same = all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    expect(same, "The net ends with other weights than after the plain loop. Keep all of its lines, in order.")
    left = optimizer._optimizer_step_pre_hooks or any(part._forward_hooks for part in model.modules())
    expect(not left, "Hooks are still on the net or the optimizer: leave through the end of a `with` block.")
    close = torch.allclose(torch.tensor(run["update_norm"]), torch.tensor(right["update_norm"]), rtol=1e-4)
    expect(close, "The recorded updates are wrong: call record.step just after optimizer.step().")
    expect_close(run["loss"], right["loss"], "The loss of each step", tolerance=1e-4)
    seen = set(right.traces) - set(run.traces)
    expect("val_accuracy" in run, "The validation is not recorded: call record.validation(**test(model)).")
    expect_close(run.accuracy, 0.75, "The accuracy that test returns in eval mode, at the end")
    expect("dead" in run, "No probe was given, so dead units were not measured: watch(..., probe=probe).")
    batch = run.facts.get("batch_length") == right.facts.get("batch_length")
    expect(batch and not seen, "The batches are not recorded: record.step(loss, batch=(data, target)).")
    return "Every update, the batches, the probe and the validation; and the weights are bit-identical."


# --- 12.2 ---


class Broken(RuntimeError):  # like Alarm itself
    """An error of the loop that has nothing to do with the watch."""


def make_loop(model, optimizer, loader, made: list):
    """A loop that takes a record, and appends the loss of each update to `made`."""

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
    return model, optimizer, make_loop(model, optimizer, loader * 4, made), made


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
    seen = mine.in_place(model, optimizer, loop)
    expect(
        seen != "quiet", f"At a learning rate of 50 the alarm is raised at update {len(steps)}, but you report 'quiet'."
    )
    expect(len(made) > 0, "The loop was never run. Give it the record: loop(record).")
    expect(len(made) <= len(steps), f"The alarm is raised at update {len(steps)}; your loop continued to {len(made)}.")
    seen = getattr(seen, "name", seen)
    expect(seen == name, f"The first alarm is {name!r}; you returned {seen!r}.")
    model, optimizer, loop, made = guarded_case(lr=0.05)
    seen = mine.in_place(model, optimizer, loop)
    expect(seen == "quiet", f"A healthy loop raises no alarm: expected 'quiet', got {seen!r}.")
    expect(len(made) == 4 * BATCHES, f"A healthy loop makes {4 * BATCHES} updates; yours made {len(made)}.")
    model, optimizer, *_ = guarded_case(lr=0.05)
    try:
        mine.in_place(model, optimizer, broken_loop)
    except NotYet as passed:
        if isinstance(passed.__cause__, Broken):
            return "It stops at the first alarm, lets a healthy loop finish, and swallows no other error."
        raise
    raise NotYet("The loop raised its own error, and you swallowed it. Catch labkit.Alarm and nothing else.")


# --- 12.5 ---


def judge_schedule(recipe: Recipe) -> None:
    """In mid-epoch, for two epoch lengths: 'constant' would cure this patient too."""
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
    "loss against metric": "that test shows whether the reported metric can be true.",
    "rate really used": "that test shows whether the weights can still change.",
    "two losses": "that test shows whether training still improves while validation does not.",
    "first gradient": "that test shows whether a gradient grows while the loss is flat.",
    "train on": "that test costs another run; use it when all the others are clean.",
}


def other_tests(right: str) -> dict[str, str]:
    return {name: why for name, why in WHY_NOT.items() if name != right}


def other_causes(right: str, **reasons: str) -> dict[str, str]:
    """Why each of the other four is wrong."""
    general = {
        METRIC: "its accuracy is not below 1 - loss / ln 2: the metric can be true.",
        RATE: "its learning rate is the same from the first step to the last.",
        OVERFIT: "its training loss is not lower than a healthy net's, or its gap is small.",
        SADDLE: "its first-layer gradient does not grow from almost 0.",
        CONVERGED: "look again: one of the four tests is not clean.",
    }
    return {name: reasons.get(name.split()[-1], why) for name, why in general.items() if name != right}


exercises = (
    build(
        "12.1",
        "Watch your own training loop",
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
        because="The metric comes first, because you see everything else through it. Convergence comes last: it is "
        "what remains when all the cheap tests are clean.",
        wrong={
            **{cause: other_tests(test) for cause, test in TESTS.items()},
            "first": {
                "rate really used": "cheap, too. But if the metric is wrong, is there a problem at all?",
                "two losses": "one of these two curves may be measured wrongly. Which test would show that?",
                "first gradient": "if the metric is wrong, is there a problem at all?",
                "train on": "it is the only one that costs a run.",
            },
            "last": {
                "loss against metric": "it costs nothing, and the others rely on it.",
                "rate really used": "it takes one look at the log.",
                "two losses": "both are already recorded.",
                "first gradient": "it is already recorded.",
            },
        },
        hints=(
            "What does each hypothesis change in the record that the other four do not?",
            "Four of the five tests use what is recorded. One needs another run: do it last.",
        ),
    ),
    explain(
        "12.4",
        "Five flat curves",
        modes=("scheduler_stepped_per_batch", "metric_broadcast", "saddle_point", "too_few_samples"),
        points=5,
        right={letter: cause for letter, (cause, _) in SEALED.items()},
        because="Only one of the five has converged. One needs its scheduler fixed, one needs more steps or momentum, "
        "one needs data; and one net was healthy all along.",
        wrong={
            "A": other_causes(RATE),
            "B": other_causes(METRIC, convergence="a loss this low with an accuracy of 10 %: can that be?"),
            "C": other_causes(SADDLE, convergence="at chance level? Look at its first-layer gradient."),
            "D": other_causes(CONVERGED),
            "E": other_causes(OVERFIT, convergence="its training loss fell to almost 0, and its validation loss rose."),
        },
        hints=(
            "Go in the order of 12.3: metric, learning rate, two losses, first gradient. Stop at the first failure.",
            "Only one has an accuracy below 1 - loss / ln 2. Only one has a learning rate that decayed to 0.",
            "Of the other three, one has a large gap, and one a gradient that grew ten thousandfold.",
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
            "An epoch has recipe.samples // recipe.batch_size steps; step // that is the index of the epoch.",
            "recipe.lr * recipe.decay ** epoch.",
        ),
    ),
)
