"""The training loop without instruments, which `labkit explain NAME --script` writes out for readers to take away."""

import argparse
import gzip
import os
import socket
from pathlib import Path
from types import SimpleNamespace

import torch

from labkit.training.data import Data, Split
from labkit.training.state import TrainingState

SHOWN = 8  # lines of progress per run
FOLDER = Path(os.environ.get("MNIST_FOLDER", "datasets"))  # where MNIST's four .gz files are


class Settings(SimpleNamespace):
    """Everything one run is made of."""

    def but(self, **changes):
        return Settings(**vars(self) | changes)


def read_idx(file: str) -> torch.Tensor:
    """One of MNIST's files: two zeros, the type, the number of dimensions, each as four bytes, then the values."""
    path = FOLDER / file
    if not path.is_file():
        raise SystemExit(f"{path} is not there; set MNIST_FOLDER to the folder that has MNIST's four .gz files")
    content = bytearray(gzip.decompress(path.read_bytes()))
    shape = [int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(content[3])]
    return torch.frombuffer(content, dtype=torch.uint8, offset=4 + 4 * content[3]).reshape(shape)


def load(name: str, part: str, *, inputs: str = "normalised", device: str = "cpu", samples: int | None = None) -> Split:
    """Images and labels of "train", "test" or "val" (every fifth test image)."""
    stem = "train" if part == "train" else "t10k"
    images, labels = (read_idx(f"{stem}-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1"))
    if part == "val":
        images, labels = images[::5], labels[::5]
    images, labels = images[:samples], labels[:samples]
    x = images[:, None].float().to(device)
    if inputs != "raw":
        x = x / 255
    if inputs == "normalised":
        x = (x - 0.1307) / 0.3081
    return Split(x, labels.long().to(device))


def mnist(recipe) -> Data:
    """Handwritten digits."""
    options = {"inputs": recipe.inputs, "device": recipe.device}
    train = load("mnist", "train", **options)
    train = Split(train.x[: recipe.samples], train.y[: recipe.samples])
    return Data("mnist", train, load("mnist", "val", **options), 10)


@torch.no_grad()
def next_token_evaluate(training, split) -> dict:
    """The loss and the token accuracy on a split, in eval mode."""
    training.model.eval()
    outputs = [training.forward(x) for x in split.x.split(250)]
    training.model.train()
    outputs = torch.cat(outputs)
    counted = split.y != -100
    right = outputs.argmax(-1)[counted] == split.y[counted]
    return {"loss": training.recipe.loss(outputs, split.y), "accuracy": right.float().mean()}


def shuffled(split, recipe, generator):
    """A new random order each epoch, whole batches only."""
    count = len(split.y)
    size = min(recipe.batch_size, count)
    while True:
        order = torch.randperm(count, generator=generator).to(split.y.device)
        for batch in order[: count - count % size].split(size):
            yield split.x.index_select(0, batch), split.y.index_select(0, batch)


class Float32State:
    """Data, net and optimizer, made and ready; a recipe's `step` puts the pieces in order."""

    def __init__(self, recipe):
        self.recipe = recipe
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(recipe.seed)
        self.data = recipe.data(recipe.but(device=self.device))
        self.model = recipe.model(recipe, self.data).to(self.device)
        self.optimizer = recipe.optimizer(self.model, recipe)

    def forward(self, x):
        return self.model(x)

    def loss(self, x, y):
        return self.recipe.loss(self.model(x), y)

    def backward(self, loss) -> None:
        loss.backward()

    def look(self, loss, x, y) -> None:
        self.recorder.look(loss, x, y, 1.0)

    def clip(self) -> None:
        clip, by_norm = self.recipe.clip, self.recipe.clip_by == "norm"
        if clip is not None and by_norm:
            torch.nn.utils.clip_grad_norm_(self.weights(), clip)
        elif clip is not None:
            torch.nn.utils.clip_grad_value_(self.weights(), clip)

    def update(self) -> None:
        self.optimizer.step()

    def weights(self) -> list:
        return [weight for weight in self.model.parameters() if weight.grad is not None]

    def set_lr(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr


class Losses:
    """Notes the loss of every step, and shows some."""

    def __init__(self, steps: int):
        self.values, self.shown = [], {round(index * (steps - 1) / (SHOWN - 1)) for index in range(SHOWN)}

    @property
    def steps(self) -> int:
        return len(self.values)

    def look(self, loss, x, y, loss_scale) -> None:
        if self.steps in self.shown:
            print(f"  step {self.steps:4}  loss {loss.item():.4g}")
        self.values.append(loss.detach())


def train(recipe) -> None:
    """One run: step by step, then the validation."""
    training = TrainingState(recipe)
    training.recorder = Losses(recipe.steps)
    torch.manual_seed(recipe.seed)
    order = torch.Generator().manual_seed(recipe.seed)
    batches = recipe.batches(training.data.train, recipe, order)
    for step, (x, y) in zip(range(recipe.steps), batches, strict=False):
        training.set_lr(recipe.schedule(step, recipe))
        recipe.step(training, x, y)
    found = recipe.evaluate(training, training.data.val)
    print("  validation: " + ", ".join(f"{name} {float(value):.4g}" for name, value in found.items()))


def start(recipe) -> None:
    """One run in this process."""
    train(recipe)


def start_several(recipe) -> None:
    """One run in several processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(work, (recipe, port), nprocs=recipe.processes)


def work(rank: int, recipe, port: int) -> None:
    """One of several processes that train together."""
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.distributed.init_process_group("gloo", rank=rank, world_size=recipe.processes)
    train(recipe)
    torch.distributed.destroy_process_group()


def main(recipes: dict) -> None:
    """Train the recipes one after the other."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, help="fewer steps, for a quick look")
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    for words, recipe in recipes.items():
        print(words)
        try:
            start(recipe.but(steps=steps or recipe.steps))
        except RuntimeError as error:
            print(f"  {type(error).__name__}: {error}")
