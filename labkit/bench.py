"""Speed, as ratios measured side by side in one run: never seconds, which say more about the machine."""

import gzip
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from labkit import data, vision
from labkit.recipe import Recipe
from labkit.train import Training

STEPS = 120  # of one timed stretch, after WARM_UP steps that are not timed
WARM_UP = 20
ROUNDS = 9  # each contestant runs once per round, in turn, so that a slow moment of the machine hits all
TUTORIAL_STEPS = 20  # its DataLoader takes some 20 times as long

NETS = {
    "mlp": Recipe(depth=3),
    "deep": Recipe(depth=10, width=64, activation="sigmoid"),
    "cnn": Recipe(model="convnet", depth=3, width=16),
}
GOALS = {
    "instruments.mlp": 1.05,
    "instruments.deep": 1.05,
    "instruments.cnn": 1.10,
    "data_path": 15,
    "help": 0.05,
}
HIGHER_IS_BETTER = {"data_path", "tutorial.mlp", "tutorial.deep", "tutorial.cnn"}


def measure(threads: int = 1) -> dict:
    """All ratios, by name; and under which conditions they were measured."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with tempfile.TemporaryDirectory() as folder:
            tutorial_set = torchvision_mnist(Path(folder))
            ratios = {"instruments": {}, "tutorial": {}}
            for name, recipe in tqdm(NETS.items(), desc="instruments", leave=False):
                ratios["instruments"][name] = compare(ours(recipe), bare(recipe))
                ratios["tutorial"][name] = compare(tutorial(recipe, tutorial_set), ours(recipe), rounds=3)
            ratios["data_path"] = compare(tutorial_batches(tutorial_set), our_batches(), rounds=3)
        ratios["help"] = compare(start("-m", "labkit", "--help"), start("-c", "import torch"), rounds=5)
    finally:
        torch.set_num_threads(before)
    return ratios | {"conditions": {"torch": torch.__version__, "threads": threads, "cpu": cpu_name()}}


def compare(one, other, rounds: int = ROUNDS) -> float:
    """The time of one contestant over the other's: the median of ratios taken round by round."""
    return round(statistics.median(one() / other() for _ in range(rounds)), 3)


# --- contestants: functions without arguments that return seconds per step ------------------------


def ours(recipe: Recipe):
    """labkit's own loop with every instrument, every step; validation is off here, as it is in the others."""

    def seconds() -> float:
        times: list[float] = []
        recorded = recipe.but(steps=WARM_UP + STEPS, evaluate_every=0, device="cpu")
        Training(recorded).run(progress=False, each_step=lambda _: times.append(time.perf_counter()))
        return (times[-1] - times[WARM_UP - 1]) / STEPS

    return seconds


def bare(recipe: Recipe):
    """The plain PyTorch loop: data in memory, stock SGD, no instruments."""

    def seconds() -> float:
        training = Training(recipe.but(device="cpu"))  # for the same net and data; its loop is not used
        model, (x, y) = training.model, training.data.train
        optimizer = torch.optim.SGD(model.parameters(), lr=recipe.lr, momentum=recipe.momentum)
        step = 0
        while True:
            for batch in torch.randperm(len(y)).split(recipe.batch_size):
                if step == WARM_UP:
                    began = time.perf_counter()
                if step == WARM_UP + STEPS:
                    return (time.perf_counter() - began) / STEPS
                optimizer.zero_grad()
                loss = cross_entropy(model(x[batch]), y[batch])
                loss.backward()
                optimizer.step()
                step += 1

    return seconds


def tutorial(recipe: Recipe, dataset):
    """As tutorials do it: a torchvision DataLoader, hooks, and `.norm().item()` for every parameter."""

    def seconds() -> float:
        model = Training(recipe.but(device="cpu")).model
        optimizer = torch.optim.SGD(model.parameters(), lr=recipe.lr, momentum=recipe.momentum)
        history: list[tuple] = []

        def note(module, inputs, output):
            history.append((output.mean().item(), output.std().item(), (output == 0).float().mean().item()))

        hooks = [module.register_forward_hook(note) for module in model.modules() if not any(module.children())]
        loader = iter(DataLoader(dataset, batch_size=recipe.batch_size, shuffle=True))
        began = time.perf_counter()
        for _ in range(TUTORIAL_STEPS):
            x, y = next(loader)
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
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
        took = time.perf_counter() - began
        for hook in hooks:
            hook.remove()
        return took / TUTORIAL_STEPS

    return seconds


def our_batches():
    """One normalised tensor, a permutation, index_select."""

    def seconds() -> float:
        recipe = Recipe(samples=60_000, device="cpu")
        batches = recipe.batches(recipe.data(recipe).train, recipe, torch.Generator().manual_seed(0))
        next(batches)
        began = time.perf_counter()
        for _ in range(STEPS):
            next(batches)
        return (time.perf_counter() - began) / STEPS

    return seconds


def tutorial_batches(dataset):
    def seconds() -> float:
        loader = iter(DataLoader(dataset, batch_size=Recipe().batch_size, shuffle=True))
        next(loader)
        began = time.perf_counter()
        for _ in range(TUTORIAL_STEPS):
            next(loader)
        return (time.perf_counter() - began) / TUTORIAL_STEPS

    return seconds


def start(*arguments: str):
    """A fresh Python that runs something and ends."""

    def seconds() -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began

    return seconds


def torchvision_mnist(folder: Path):
    """torchvision's own MNIST class, on the embedded files, with the transforms of every tutorial."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for owner, file, _ in data.EMBEDDED:
        if owner == "mnist":
            with (
                gzip.open(data.embedded_folder() / file) as source,
                open(raw / file.removesuffix(".gz"), "wb") as target,
            ):
                shutil.copyfileobj(source, target)
    torchvision = vision.torchvision()
    from torchvision import transforms

    change = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    return torchvision.datasets.MNIST(folder, transform=change)


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(": ")[1] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        import platform

        return platform.processor() or platform.machine()


def in_words(found: dict) -> str:
    """One line per ratio, with its goal where there is one."""
    lines = [", ".join(f"{name} {value}" for name, value in found["conditions"].items()), ""]
    meaning = {
        "instruments": "our loop with every instrument / bare PyTorch loop",
        "tutorial": "the tutorial way / our loop with every instrument",
        "data_path": "torchvision DataLoader / our batches",
        "help": "labkit --help / import torch",
    }
    for name, text in meaning.items():
        values = found[name] if isinstance(found[name], dict) else {"": found[name]}
        for net, value in values.items():
            key = f"{name}.{net}" if net else name
            goal = f"goal {'>=' if key in HIGHER_IS_BETTER else '<='} {GOALS[key]:g}" if key in GOALS else ""
            lines.append(f"{key:18}{value:8.3f}  {goal:14}{text}")
    return "\n".join(lines)
