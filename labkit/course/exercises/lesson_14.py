"""Exercises and predictions of lesson 14, watching your own training loop; and its five sealed runs."""

import copy
import io

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR
from torch.utils.data import DataLoader

from labkit.course.grading import NotYet, Student, build, expect, expect_close, explain
from labkit.course.loops import Outcome, images, loop
from labkit.course.predictions import prediction
from labkit.diagnosis.watch import Alarm, Watch, watch
from labkit.failures.catalogue import FAILURES
from labkit.recording.run import Run
from labkit.training.data import load
from labkit.training.loop import train
from labkit.training.recipe import Recipe

predictions = (
    prediction(
        "14.0",
        correct=3,
        why="The watch only reads. Where it has to run the net itself, it restores modes and random numbers.",
        wrong={
            1: "Reading a gradient rounds nothing: the update is computed from the same numbers.",
            2: "It would, if the watch drew any and did not restore the state of the generator.",
        },
    ),
    prediction(
        "14.0b",
        correct=2,
        why="A constant learning rate holds the net above the minimum, at a height proportional to the rate. The level "
        "line was this noise floor.",
        wrong={
            1: "A level line says that progress and noise are in balance. A lower rate moves the balance.",
            3: "At a lower rate there is less noise, and no reason to climb.",
        },
    ),
    prediction(
        "14.0c",
        correct=3,
        why="The first step of a fresh Adam divides each gradient by its own size, so every weight moves by the full "
        "learning rate, however small its gradient. And a fresh optimizer also begins at the initial rate.",
        wrong={
            1: "So it would be for SGD with momentum. Adam corrects for the empty averages.",
            2: "Adam's steps depend on its averages, and these are gone.",
        },
    ),
)

# --- the sealed runs of 14.4 ---

METRIC, RATE, OVERFIT, SADDLE = "broken metric", "decayed rate", "overfitting", "saddle"
CONVERGED = "convergence or noise floor"
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


# --- 14.1 ---

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
    """The reference solution of 14.1."""
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
    given = record.probe is not None and record.probe.x is probe[0]  # without one, the first batch is examined
    expect(given, "No probe was given, so dead units were not measured on it: watch(..., probe=probe).")
    batch = run.facts.get("batch_length") == right.facts.get("batch_length")
    expect(batch and not seen, "The batches are not recorded: record.step(loss, batch=(data, target)).")
    return "Every update, the batches, the probe and the validation; and the weights are bit-identical."


# --- 14.2 ---


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


# --- 14.5 ---

DECAY = 0.7
EPOCHS = 6


def small_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))


def decayed_per_epoch(model: nn.Module, loader: DataLoader) -> None:
    """The reference solution of 14.5."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = ExponentialLR(optimizer, DECAY)
    for _ in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
        scheduler.step()


def with_the_schedule_as_meant(outcome: Outcome) -> None:
    """A constant rate would learn as well: the decay has to be there, once per epoch."""
    rates, length = torch.as_tensor(outcome.run["lr"]), len(outcome.setting.loader)
    expect(
        len(rates) == EPOCHS * length,
        f"Expected {EPOCHS} epochs of {length} batches; your loop made {len(rates)} updates.",
    )
    for epoch, seen in enumerate(rates.split(length)):
        what = f"The learning rate within epoch {epoch}, counted from 0"
        expect_close(seen, torch.full_like(seen, 0.1 * DECAY**epoch), what)


# --- 14.6 ---

PARTS = ("model", "optimizer", "scheduler", "random")


class Session:
    """A small training with dropout, Adam and a schedule, so that everything a checkpoint can miss matters."""

    def __init__(self, seed: int):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 10))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.scheduler = LambdaLR(self.optimizer, lambda step: 1 / (1 + step))
        x, y = (each[: 32 * BATCHES] for each in load("mnist", "train", samples=32 * BATCHES))
        self.batches = list(zip(x.split(32), y.split(32), strict=True))

    def train(self, first: int, last: int) -> None:
        for x, y in self.batches[first:last]:
            self.optimizer.zero_grad()
            cross_entropy(self.model(x), y).backward()
            self.optimizer.step()
            self.scheduler.step()

    def restore(self, state: dict) -> None:
        for name in PARTS[:-1]:
            getattr(self, name).load_state_dict(state[name])
        torch.set_rng_state(state["random"])

    @property
    def weights(self) -> torch.Tensor:
        return nn.utils.parameters_to_vector(self.model.parameters()).detach().clone()


def judge_checkpoint(mine: Student) -> str:
    with torch.random.fork_rng(devices=[]):
        session = Session(seed=5)
        session.train(0, 5)
        kept, random = session.weights, torch.get_rng_state()
        state = mine.in_place(session.model, session.optimizer, session.scheduler)
        untouched = torch.equal(session.weights, kept) and torch.equal(torch.get_rng_state(), random)
        expect(untouched, "The checkpoint changed the net or the random numbers. It should only read.")
        expect(isinstance(state, dict), f"Return a dict, not {type(state).__name__}.")
        missing = [name for name in PARTS if name not in state]
        expect(not missing, f"The dict has no {', '.join(map(repr, missing))}; it needs {', '.join(PARTS)}.")
        session.train(5, BATCHES)
        return _resumed(state, kept, session.weights)


def _resumed(state: dict, kept: torch.Tensor, final: torch.Tensor) -> str:
    """The session of a saved and loaded state ends as the one that was never interrupted."""
    file = io.BytesIO()
    try:
        torch.save(state, file)
        file.seek(0)
        state = torch.load(file, weights_only=True)
        second = Session(seed=6)
        second.restore(state)
    except Exception as failed:
        raise NotYet(f"Saved, loaded and restored, it fails: {failed}") from failed
    moved = not torch.equal(second.weights, kept)
    expect(not moved, "After five more updates the stored weights had changed: a state_dict refers, it does not copy.")
    second.train(5, BATCHES)
    same = torch.equal(second.weights, final)
    expect(same, "The weights are restored, but the resumed run ends elsewhere. Are all four states copies of now?")
    return "Resumed from it, the run is bit-identical to one that was never interrupted."


# --- 14.3 and 14.4: the hypotheses, their tests, and the runs ---

TESTS = {
    METRIC: "loss against metric",
    RATE: "rate really used",
    OVERFIT: "two losses",
    SADDLE: "first gradient",
    CONVERGED: "a tenth of the rate",
}
WHY_NOT = {
    "loss against metric": "that test shows whether the reported metric can be true.",
    "rate really used": "that test shows whether the weights can still change.",
    "two losses": "that test shows whether training still improves while validation does not.",
    "first gradient": "that test shows whether a gradient grows while the loss is flat.",
    "a tenth of the rate": "that test costs another run; use it when all the others are clean.",
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
    return {name: reasons.get(name.split()[0], why) for name, why in general.items() if name != right}


exercises = (
    build(
        "14.1",
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
        "14.2",
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
        "14.3",
        "Each hypothesis has its test",
        points=3,
        right=TESTS | {"first": "loss against metric", "last": "a tenth of the rate"},
        because="The metric comes first, because you see everything else through it. The tenth comes last: only a "
        "run can tell convergence from the noise floor of a constant learning rate.",
        wrong={
            **{cause: other_tests(test) for cause, test in TESTS.items()},
            "first": {
                "rate really used": "cheap, too. But if the metric is wrong, is there a problem at all?",
                "two losses": "one of these two curves may be measured wrongly. Which test would show that?",
                "first gradient": "if the metric is wrong, is there a problem at all?",
                "a tenth of the rate": "it is the only one that costs a run.",
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
        "14.4",
        "Five flat curves",
        modes=("scheduler_stepped_per_batch", "metric_broadcast", "saddle_point", "too_few_samples"),
        points=4,
        right={letter: cause for letter, (cause, _) in SEALED.items()},
        because="Only one of the five may have converged. One needs its scheduler fixed, one more steps or momentum, "
        "one data; and one net was healthy all along.",
        wrong={
            "A": other_causes(RATE),
            "B": other_causes(METRIC, convergence="a loss this low with an accuracy of 10 %: can that be?"),
            "C": other_causes(SADDLE, convergence="at chance level? Look at its first-layer gradient."),
            "D": other_causes(CONVERGED),
            "E": other_causes(OVERFIT, convergence="its training loss fell to almost 0, and its validation loss rose."),
        },
        hints=(
            "Go in the order of 14.3: metric, learning rate, two losses, first gradient. Stop at the first failure.",
            "Only one has an accuracy below 1 - loss / ln 2. Only one has a learning rate that decayed to 0.",
            "Of the other three, one has a large gap, and one a gradient that grew ten thousandfold.",
        ),
    ),
    loop(
        "14.5",
        "Put the scheduler where it belongs",
        images(small_net),
        decayed_per_epoch,
        example="train(model, loader)",
        free_of=("scheduler_stepped_per_batch",),
        also=with_the_schedule_as_meant,
        points=3,
        hints=(
            f"The factor {DECAY} was meant for epochs. How often is it applied in one pass through the loader?",
            "Which of the two loops does the line scheduler.step() belong to?",
            "One indentation less: after the loop over batches, still inside the loop over epochs.",
        ),
    ),
    build(
        "14.6",
        "Optional: a checkpoint that resumes exactly",
        judge_checkpoint,
        example="checkpoint(model, optimizer, scheduler)",
        hints=(
            "Three of the four have a state_dict(). The random numbers have torch.get_rng_state().",
            "Do the tensors of a state_dict change when training goes on? They are the weights themselves.",
            "copy.deepcopy copies a dict with all tensors in it.",
        ),
    ),
)
