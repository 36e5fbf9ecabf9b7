"""Speed as ratios measured side by side in one run: seconds would say more about the machine."""

import contextlib
import gzip
import importlib.util
import io
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Subset, TensorDataset
from tqdm.auto import tqdm

from labkit.diagnosis.watch import watch
from labkit.drawing.markdown import table
from labkit.failures.catalogue import FAILURES, HEADLINES
from labkit.recording.machine import cpu_name
from labkit.tools.lr_finder import find_lr
from labkit.training import data, torchvision_shim
from labkit.training.loop import Training, evaluation_steps, few_threads
from labkit.training.recipe import Recipe

STEPS = 120  # of one timed stretch, after WARM_UP steps that are not timed
WARM_UP = 60  # beyond the first steps, which are measured in full
ROUNDS = 9  # each contestant runs once per round, in turn, so that a slow moment of the machine affects all
TUTORIAL_STEPS = 20  # its DataLoader takes some 20 times as long
POSTER_SHARE = 2  # the poster's runs are half as long: what a run costs once (set-up, sharpness) weighs nearly as there

NETS = {
    "mlp": Recipe(depth=3),
    "two_layers": Recipe(depth=2),
    "wide": Recipe(depth=3, width=512),
    "deep": Recipe(depth=10, width=64, activation="sigmoid"),
    "cnn": Recipe(model="convnet", depth=3, width=16),
}
GOALS = {
    "instruments.mlp": 1.05,
    "instruments.two_layers": 1.05,
    "instruments.deep": 1.05,
    "instruments.cnn": 1.03,
    "data_path": 15,
    "help": 0.05,
    "poster": 0.05,
    "watch.mlp": 1.10,
    "watch.two_layers": 1.10,
    "watch.deep": 1.10,
    "watch.cnn": 1.03,
    "growth.steps": 10.5,
    "growth.layers": 10.5,
    "growth.steps_traces": 10.5,
    "growth.layers_traces": 10.5,
    "find_lr": 0.6,
}
HIGHER_IS_BETTER = {"data_path"}


def measure() -> dict:
    """All ratios by name, and the conditions of the measurement."""
    with few_threads(), tempfile.TemporaryDirectory() as folder:
        threads = torch.get_num_threads()
        tutorial_set = torchvision_mnist(Path(folder))
        ratios = {"instruments": {}, "norms": {}, "tutorial": {}, "watch": {}}
        for name, recipe in tqdm(NETS.items(), desc="instruments", leave=False):
            ratios["instruments"][name] = compare(ours(recipe), bare(recipe))
            ratios["norms"][name] = compare(with_norms(recipe), unwatched(recipe))
            ratios["tutorial"][name] = compare(tutorial(recipe, tutorial_set), ours(recipe), rounds=3)
            ratios["watch"][name] = compare(watched(recipe, 1), unwatched(recipe))
        ratios["watch"]["every_10th"] = compare(watched(NETS["mlp"], 10), unwatched(NETS["mlp"]))
        for name, made in other_watchers().items():
            ratios["watch"][name] = compare(made(NETS["mlp"]), unwatched(NETS["mlp"]), rounds=3)
        ratios["whole_run"] = compare(ours(Recipe(), whole=True), bare(Recipe(), whole=True))
        ratios["growth"] = growth()
        if other := torch_lr_finder():
            ratios["find_lr"] = compare(our_range_test(), other, rounds=5)
        ratios["poster"] = poster_ratio(Path(folder))
        ratios["data_path"] = compare(tutorial_batches(tutorial_set), our_batches(), rounds=3)
    ratios["help"] = compare(start("-m", "labkit", "--help"), start("-c", "import torch"), rounds=5)
    return ratios | {"conditions": {"torch": torch.__version__, "threads": threads, "cpu": cpu_name()}}


def compare(one, other, rounds: int = ROUNDS) -> float:
    """The time of one contestant over the other's: the median of ratios taken round by round."""
    return round(statistics.median(one() / other() for _ in range(rounds)), 3)


def growth() -> dict[str, float]:
    """The time of a whole run with ten times the steps or the layers, and the bytes of its recorded traces."""
    small = Recipe(depth=3, width=64, activation="sigmoid", steps=STEPS, evaluate_every=0, device="cpu")
    longer, deeper = small.but(steps=10 * small.steps), small.but(depth=10 * small.depth)
    return {
        "steps": compare(whole_run(longer), whole_run(small), rounds=3),
        "layers": compare(whole_run(deeper), whole_run(small), rounds=3),
        "steps_traces": round(trace_bytes(longer) / trace_bytes(small), 3),
        "layers_traces": round(trace_bytes(deeper) / trace_bytes(small), 3),
    }


def whole_run(recipe: Recipe):
    """A contestant: everything from the recipe to the run."""

    def seconds() -> float:
        began = time.perf_counter()
        Training(recipe).run(progress=False)
        return time.perf_counter() - began

    return seconds


def trace_bytes(recipe: Recipe) -> int:
    """What the run keeps in memory. Buffers of the recorder while it trains are not part of it."""
    return sum(trace.nbytes for trace in Training(recipe).run(progress=False).traces.values())


# --- contestants: functions without arguments that return seconds per step ------------------------


def timed(recipe: Recipe, whole: bool) -> tuple[int, int]:
    """How many steps come before the timed ones, and how many are timed."""
    return (0, recipe.steps) if whole else (WARM_UP, STEPS)


def ours(recipe: Recipe, whole: bool = False):
    """labkit's own loop with the instruments of `train`; validation is off here, as it is in the others.

    Norms are measured at every step, everything else at some: all of the first 50, then every 16th and after jumps.
    The first ones are not timed, unless the whole run is.
    """
    before, steps = timed(recipe, whole)

    def seconds() -> float:
        training = Training(recipe.but(steps=before + steps, evaluate_every=0, device="cpu"))
        times = [time.perf_counter()]
        training.run(progress=False, each_step=lambda _: times.append(time.perf_counter()))
        return (times[-1] - times[before]) / steps

    return seconds


def bare(recipe: Recipe, whole: bool = False):
    """The plain PyTorch loop: data in memory, stock SGD, no instruments."""
    before, steps = timed(recipe, whole)

    def seconds() -> float:
        training = Training(recipe.but(device="cpu"))  # for the same net and data; its loop is not used
        model, (x, y) = training.model, training.data.train
        optimizer = torch.optim.SGD(model.parameters(), lr=recipe.lr, momentum=recipe.momentum)
        step = 0
        while True:
            for batch in torch.randperm(len(y)).split(recipe.batch_size):
                if step == before:
                    began = time.perf_counter()
                if step == before + steps:
                    return (time.perf_counter() - began) / steps
                optimizer.zero_grad()
                loss = cross_entropy(model(x[batch]), y[batch])
                loss.backward()
                optimizer.step()
                step += 1

    return seconds


def watched(recipe: Recipe, every: int):
    """The plain PyTorch loop with `labkit.watch` around it."""
    return timed_loop(recipe, lambda model, optimizer: watch(model, optimizer, every=every))


def unwatched(recipe: Recipe):
    """The same loop alone."""
    return timed_loop(recipe, lambda model, optimizer: contextlib.nullcontext(lambda loss, batch: None))


def with_norms(recipe: Recipe):
    """The same loop with nothing but the norms of gradients, weights and updates, in the fewest calls of PyTorch."""

    @contextlib.contextmanager
    def around(model, optimizer):
        weights = list(model.parameters())
        before, history = [weight.detach().clone() for weight in weights], []

        @torch.no_grad()
        def note(loss, batch) -> None:
            gradients = [weight.grad for weight in weights]
            torch._foreach_sub_(before, weights)
            norms = [norm for each in (gradients, weights, before) for norm in torch._foreach_norm(each)]
            torch._foreach_copy_(before, weights)
            history.append(torch.stack(norms))
            loss.item()

        yield note

    return timed_loop(recipe, around)


def other_watchers() -> dict:
    """What other libraries offer for the same purpose, where they are installed."""
    known = {
        "wandb": wandb_watched,
        "ignite": ignite_watched,
        "skorch": lambda recipe: fitted(recipe, skorch_fit),
        "lightning": lambda recipe: fitted(recipe, lightning_fit),
        "fastai": lambda recipe: fitted(recipe, fastai_fit),
    }
    return {name: made for name, made in known.items() if importlib.util.find_spec(name)}


def wandb_watched(recipe: Recipe):
    """wandb.watch with gradients and parameters at each step, offline."""
    import wandb

    @contextlib.contextmanager
    def around(model, optimizer):
        options = {"mode": "offline", "settings": {"silent": True}}
        with tempfile.TemporaryDirectory() as folder, wandb.init(dir=folder, **options) as run:
            wandb.watch(model, log="all", log_freq=1)
            yield lambda loss, batch: run.log({"loss": loss})
            wandb.unwatch(model)

    return timed_loop(recipe, around)


def ignite_watched(recipe: Recipe):
    """An ignite engine whose handler takes the norm of every gradient and weight."""
    from ignite.engine import Engine, Events

    @contextlib.contextmanager
    def around(model, optimizer):
        engine, note = Engine(lambda engine, batch: batch), norm_noter(model)
        engine.add_event_handler(Events.ITERATION_COMPLETED, note)
        yield lambda loss, batch: engine.run([loss], max_epochs=1)

    return timed_loop(recipe, around)


def norm_noter(model):
    """A function that takes the norm of every gradient and weight, as people write it."""
    history = []
    return lambda: history.append([(each.grad.norm().item(), each.norm().item()) for each in model.parameters()])


def fitted(recipe: Recipe, fit):
    """A contestant: a library's own loop; `fit` has it call `note` at each step, when the gradients are ready."""

    def seconds() -> float:
        training, times = Training(recipe.but(device="cpu")), []
        x, y = training.data.train
        chosen = torch.randint(len(y), ((WARM_UP + STEPS) * recipe.batch_size,))
        norms = norm_noter(training.model)

        def note(*_, **__) -> None:
            norms()
            times.append(time.perf_counter())

        fit(training.model, TensorDataset(x[chosen], y[chosen]), recipe, note)
        return (times[-1] - times[WARM_UP - 1]) / STEPS

    return seconds


def skorch_fit(model, dataset, recipe: Recipe, note) -> None:
    import skorch

    listener = skorch.callbacks.Callback()
    listener.on_grad_computed = note
    options = {"optimizer__momentum": recipe.momentum, "lr": recipe.lr, "batch_size": recipe.batch_size}
    own = {"max_epochs": 1, "train_split": None, "verbose": 0, "callbacks": [("norms", listener)]}
    net = skorch.NeuralNet(model, torch.nn.CrossEntropyLoss, optimizer=torch.optim.SGD, **options, **own)
    net.fit(dataset, None)


def lightning_fit(model, dataset, recipe: Recipe, note) -> None:
    torchvision_shim.torchvision()  # lightning imports it, which needs the shim where its operators are missing
    import lightning

    class Lit(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = model

        def training_step(self, batch, index):
            return cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(model.parameters(), lr=recipe.lr, momentum=recipe.momentum)

        def on_before_optimizer_step(self, optimizer):
            note()

    silent = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary", "barebones"), False
    )
    with contextlib.redirect_stderr(io.StringIO()):
        trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", **silent)
        trainer.fit(Lit(), DataLoader(dataset, recipe.batch_size, shuffle=True))


def fastai_fit(model, dataset, recipe: Recipe, note) -> None:
    from fastai.basics import SGD, Callback, DataLoader, DataLoaders, Learner
    from fastai.callback import progress  # noqa: F401 -- gives a Learner its `no_bar`

    class Norms(Callback):
        def before_step(self):
            note()

    loader = DataLoader(dataset, bs=recipe.batch_size, shuffle=True, num_workers=0)
    options = {"opt_func": SGD, "loss_func": cross_entropy, "moms": (recipe.momentum,) * 3, "cbs": [Norms()]}
    learner = Learner(DataLoaders(loader, loader), model, **options)
    learner._do_epoch_validate = lambda *_, **__: None  # the others do not validate either
    with learner.no_bar(), learner.no_logging():
        learner.fit(1, recipe.lr)


def timed_loop(recipe: Recipe, around):
    """A contestant: the plain loop inside a context that yields a function to pass the loss to."""

    def seconds() -> float:
        training = Training(recipe.but(device="cpu"))
        model, (x, y) = training.model, training.data.train
        optimizer = torch.optim.SGD(model.parameters(), lr=recipe.lr, momentum=recipe.momentum)
        with around(model, optimizer) as record:
            tell = record.step if hasattr(record, "step") else record
            for step in range(WARM_UP + STEPS):
                if step == WARM_UP:
                    began = time.perf_counter()
                batch = torch.randint(len(y), (recipe.batch_size,))
                inputs, targets = x[batch], y[batch]
                optimizer.zero_grad()
                loss = cross_entropy(model(inputs), targets)
                loss.backward()
                optimizer.step()
                tell(loss, (inputs, targets))
            return (time.perf_counter() - began) / STEPS

    return seconds


RANGE_STEPS = 100


def our_range_test():
    """Our learning-rate range test, on data in memory."""

    def seconds() -> float:
        training = Training(Recipe(device="cpu"))
        began = time.perf_counter()
        find_lr(
            training.model, cross_entropy, tuple(training.data.train), training.optimizer, high=1.0, steps=RANGE_STEPS
        )
        return time.perf_counter() - began

    return seconds


def torch_lr_finder():
    """The package torch-lr-finder on the same data in a DataLoader, where it is installed; None where it is not."""
    if not importlib.util.find_spec("torch_lr_finder"):
        return None
    from torch_lr_finder import LRFinder

    def seconds() -> float:
        training = Training(Recipe(device="cpu"))
        loader = DataLoader(TensorDataset(*training.data.train), Recipe().batch_size, shuffle=True)
        optimizer = torch.optim.SGD(training.model.parameters(), lr=1e-5, momentum=0.9)
        began = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            finder = LRFinder(training.model, optimizer, torch.nn.CrossEntropyLoss(), device="cpu")
            finder.range_test(loader, end_lr=1.0, num_iter=RANGE_STEPS, diverge_th=1e9)
            finder.reset()
        return time.perf_counter() - began

    return seconds


def tutorial(recipe: Recipe, dataset):
    """As tutorials do it: a torchvision DataLoader, hooks, and `.norm().item()` for every parameter."""
    return lambda: tutorial_seconds(recipe, dataset, steps=TUTORIAL_STEPS) / TUTORIAL_STEPS


def tutorial_seconds(recipe: Recipe, dataset, steps: int, validation_set=None) -> float:
    """Train n steps the tutorial way, with as many validations as ours if there is validation data."""
    training = Training(recipe.but(device="cpu"))  # for the same net, optimizer and precision; its loop is not used
    model, optimizer, history = training.model, training.optimizer, []

    def note(module, inputs, output):
        history.append((output.mean().item(), output.std().item(), (output == 0).float().mean().item()))

    for module in model.modules():
        if not any(module.children()):
            module.register_forward_hook(note)
    batches = endless(DataLoader(Subset(dataset, range(recipe.samples)), recipe.batch_size, shuffle=True))
    began = time.perf_counter()
    for step in range(steps):
        if validation_set and step % recipe.evaluate_every == 0:
            validate_like_a_tutorial(training, validation_set)
        x, y = next(batches)
        optimizer.zero_grad()
        loss = training.loss(x, y)
        loss.backward()
        before = [weight.detach().clone() for weight in model.parameters()]
        for weight in model.parameters():
            gradient = weight.grad
            history.append((gradient.norm().item(), weight.norm().item(), gradient.mean().item()))
            history.append((gradient.std().item(), gradient.max().item(), gradient.min().item()))
            history.append(((gradient.abs() < 1e-8).float().mean().item(),))
        optimizer.step()
        history.extend((new - old).norm().item() for new, old in zip(model.parameters(), before, strict=True))
        history.append((loss.item(),))
    if validation_set:
        validate_like_a_tutorial(training, validation_set)
    return time.perf_counter() - began


def validate_like_a_tutorial(training: Training, dataset) -> tuple[float, float]:
    training.model.eval()
    total, right = 0.0, 0
    with torch.no_grad():
        for x, y in DataLoader(dataset, batch_size=1000):
            outputs = training.forward(x)
            total += training.recipe.loss(outputs, y).item() * len(y)
            right += (outputs.argmax(1) == y).sum().item()
    training.model.train()
    return total / len(dataset), right / len(dataset)


def endless(loader):
    while True:
        yield from loader


def poster_mix() -> list[Recipe]:
    """The runs of the default poster, shortened; with as many validations per step as the full ones have."""
    recipes = dict.fromkeys(recipe for name in HEADLINES for recipe in FAILURES[name].recipes().values())
    return [shortened(recipe) for recipe in recipes]


def shortened(recipe: Recipe) -> Recipe:
    validations = len(evaluation_steps(recipe.steps, recipe.evaluate_every))
    every = -(-recipe.steps // validations)
    return recipe.but(steps=recipe.steps // POSTER_SHARE, evaluate_every=every, device="cpu")


def poster_ratio(folder: Path) -> float:
    """Training time of the poster's runs, ours over the tutorial way; a run that we stop, the tutorial stops too."""
    training_set, validation_set = (
        torchvision_mnist(folder),
        Subset(torchvision_mnist(folder, train=False), range(0, 10_000, 5)),
    )
    ours_took = tutorial_took = 0.0
    for recipe in tqdm(poster_mix(), desc="poster", leave=False):
        began = time.perf_counter()
        run = Training(recipe).run(progress=False)
        ours_took += time.perf_counter() - began
        tutorial_took += tutorial_seconds(recipe, training_set, len(run), validation_set)
    return round(ours_took / tutorial_took, 4)


def our_batches():
    """One normalised tensor, a permutation, index_select."""

    def seconds() -> float:
        recipe = Recipe(samples=60_000, device="cpu")
        return seconds_each(recipe.batches(recipe.data(recipe).train, recipe, torch.Generator().manual_seed(0)), STEPS)

    return seconds


def tutorial_batches(dataset):
    """torchvision's DataLoader, shuffled."""
    loader = DataLoader(dataset, batch_size=Recipe().batch_size, shuffle=True)
    return lambda: seconds_each(iter(loader), TUTORIAL_STEPS)


def seconds_each(batches, count: int) -> float:
    """Mean time of n batches, after a first one that is not timed."""
    next(batches)
    began = time.perf_counter()
    for _ in range(count):
        next(batches)
    return (time.perf_counter() - began) / count


def start(*arguments: str):
    """A contestant: start Python, run something, exit."""

    def seconds() -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began

    return seconds


def torchvision_mnist(folder: Path, train: bool = True):
    """torchvision's own MNIST class, on the embedded files, with the transforms of every tutorial."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for owner, file, _ in data.EMBEDDED:
        if owner == "mnist":
            with (
                gzip.open(data.embedded_folder() / file) as source,
                open(raw / file.removesuffix(".gz"), "wb") as target,
            ):
                shutil.copyfileobj(source, target)
    torchvision = torchvision_shim.torchvision()
    from torchvision import transforms

    change = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    return torchvision.datasets.MNIST(folder, train=train, transform=change)


MEANING = {
    "instruments": "our loop with its instruments, after the first steps / bare PyTorch loop",
    "norms": "a plain loop that only takes the norms of gradients, weights and updates / the same alone",
    "whole_run": "the standard run of 400 steps, its first 50 measured in full / as many steps of the bare loop",
    "tutorial": "the tutorial way (DataLoader, hooks, `.item()`) / our loop with its instruments",
    "data_path": "torchvision DataLoader / our batches",
    "watch": "a plain loop that is watched / the same alone",
    "growth": "a run with ten times the steps or layers / the short one: its time, or the bytes of its traces",
    "find_lr": "our range test / torch-lr-finder, same number of steps",
    "poster": "training of the default poster, ours / the tutorial way",
    "help": "`labkit --help` / `import torch`",
}


def rows(found: dict) -> list[tuple[str, float, str, str]]:
    """Name, ratio, goal (empty where there is none) and meaning of everything that was measured."""
    made = []
    for name, meaning in MEANING.items():
        if name not in found:  # the other contestant is not installed
            continue
        values = found[name] if isinstance(found[name], dict) else {"": found[name]}
        for net, value in values.items():
            key = f"{name}.{net}" if net else name
            goal = f"{'>=' if key in HIGHER_IS_BETTER else '<='} {GOALS[key]:g}" if key in GOALS else ""
            made.append((key, value, goal, meaning))
    return made


def met(key: str, value: float) -> bool:
    return value >= GOALS[key] if key in HIGHER_IS_BETTER else value <= GOALS[key]


def conditions_as_text(found: dict) -> str:
    return ", ".join(f"{name} {value}" for name, value in found["conditions"].items())


def ratios_as_text(found: dict) -> str:
    """One line per ratio, with its goal where there is one."""
    lines = [
        f"{key:18}{value:8.3f}  {f'goal {goal}' if goal else '':14}{meaning}"
        for key, value, goal, meaning in rows(found)
    ]
    return "\n".join([conditions_as_text(found), "", *lines])


def ratios_as_page(found: dict) -> str:
    """The same as a page of the documentation, with its conditions."""
    cells = [
        (f"`{key}`", f"{value:.3g}", meaning, f"{goal}, {'met' if met(key, value) else 'missed'}" if goal else "")
        for key, value, goal, meaning in rows(found)
    ]
    lines = [
        "# Benchmarks",
        "",
        f"Generated by `labkit bench --out` ({conditions_as_text(found)}, batch {Recipe().batch_size}). Every number "
        "is a ratio of two times taken in turn within one run, the median over the rounds; validation is off except "
        "for the poster. Seconds would say more about the machine.",
        "",
        *table(("name", "ratio", "what is compared", "goal"), cells),
        "",
        "Where a goal for the instruments is missed: the norm of every gradient, weight and update is taken at every "
        "step, and `norms` is what that alone costs in PyTorch's own calls. The rest is the sample log, and the calls "
        "themselves: of a few microseconds each, in a step of a small net that takes a thousand.",
        "",
        "Where the goal for the poster is missed: one step of the bare loop takes 1 / (`tutorial` x `instruments`) of "
        "a tutorial's step, and no instrument makes it faster. The range test, too, is a bare loop.",
        "",
        "A run trains with one torch thread (`LABKIT_THREADS=2` for more): on a busy machine two threads wait for each "
        "other.",
        "",
        "Rows for other libraries appear where these are installed: torch-lr-finder with the extra `bench`, wandb with "
        "`tracking`, skorch and lightning with `adapters`; ignite and fastai with pip.",
    ]
    return "\n".join(lines) + "\n"
