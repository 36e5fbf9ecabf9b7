"""Exercises of lesson 09, bugs in the data; and its sealed run."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, TensorDataset

from labkit.course.grading import (
    Student,
    build,
    diagnose,
    expect,
    expect_close,
    explain,
    short,
)
from labkit.course.loops import Batches, Outcome, Setting, images, loop
from labkit.course.predictions import prediction
from labkit.recording.run import Run
from labkit.training import parts
from labkit.training.data import load
from labkit.training.loop import train
from labkit.training.recipe import Recipe

predictions = (
    prediction(
        "09.0",
        correct=2,
        why="Thirty-two labels are few enough to be stored one by one, whether they make sense or not. Only on more "
        "images than the net can store does it matter that nothing in an image leads to its label.",
        wrong={
            1: "That is why the net cannot learn anything useful; it can still memorise.",
            3: "At any learning rate that trains, both sets of labels are memorised.",
        },
    ),
)

# --- 09.1: an exam for loaders ---

NAMES = ("fine", "blank", "one class", "sorted", "labels move", "shuffled")
SAMPLES = 1000


class MovingLabels(Dataset):
    """Each time an image is read it gets a random label."""

    def __init__(self, x: Tensor, y: Tensor):
        self.x, self.y = x, y
        self.generator = torch.Generator().manual_seed(0)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        drawn = int(torch.randint(len(self.y), (1,), generator=self.generator))
        return self.x[index], self.y[drawn]


def faulty_loader(name: str, seed: int) -> DataLoader:
    """A thousand digits that no lesson shows, with the fault of this name."""
    order = torch.Generator().manual_seed(seed)
    known = load("mnist", "train", samples=30_000)
    chosen = 12_000 + torch.randperm(10_000, generator=order)[: 12 * SAMPLES]
    x, y = known.x[chosen], known.y[chosen]
    kept = (y == seed % 10) if name == "one class" else torch.ones(len(y), dtype=torch.bool)
    x, y = x[kept][:SAMPLES], y[kept][:SAMPLES]
    options = {"batch_size": 50, "shuffle": name != "sorted", "generator": order}
    if name == "blank":
        x = torch.full_like(x, -0.4)  # black, after normalising
    if name == "sorted":
        by_class = y.argsort(stable=True)
        x, y = x[by_class], y[by_class]
    if name == "shuffled":
        y = y[torch.randperm(len(y), generator=order)]
    return DataLoader(MovingLabels(x, y) if name == "labels move" else TensorDataset(x, y), **options)


LOOK_ALIKE = {
    ("blank", "fine"): "Print x.std() of one batch.",
    ("blank", "shuffled"): "No image says anything about its label, that is true: but look at the images.",
    ("labels move", "shuffled"): "Go through the loader twice: does an image keep its label?",
    ("labels move", "fine"): "Go through the loader twice: does an image keep its label?",
    ("shuffled", "labels move"): "Every image keeps its label in the next epoch.",
    ("shuffled", "fine"): "Are images of one label alike? Compare half of them with the means of the other half.",
    ("sorted", "one class"): "Every batch has one or two classes, but not all batches have the same.",
    ("sorted", "fine"): "How many classes has one batch?",
    ("one class", "sorted"): "How many classes are there in all batches together?",
    ("one class", "fine"): "How many classes are there in all batches together?",
    ("fine", "labels move"): "Every image keeps its label. Do you compare by index, though each epoch has a new order?",
    ("fine", "shuffled"): "A nearest-mean classifier reaches 70 to 80 % on the other half of it.",
}


def judge_names(mine: Student) -> str:
    for place, name in enumerate(NAMES):
        for seed in (21, 22):
            seen = mine.in_place(faulty_loader(name, seed + 2 * place))
            expect(seen in NAMES, f"Expected one of {', '.join(NAMES)}, got {short(seen)}.")
            advice = LOOK_ALIKE.get((name, seen), "")
            expect(seen == name, f'A loader that is "{name}" was called "{seen}". {advice}'.strip())
    return "Twelve loaders, six kinds, none mistaken for another."


# --- 09.2 ---


def judge_shared(mine: Student) -> str:
    generator = torch.Generator().manual_seed(0)
    train, fresh = (torch.rand(count, 1, 6, 6, generator=generator) for count in (40, 9))
    val = torch.cat([fresh[:4], train[[31]], fresh[4:], train[[7]]])
    seen = mine(train, val)
    if torch.is_tensor(seen) or isinstance(seen, int | float):
        advice = "Did you compare index by index, or put tensors into a set? Equal tensors have different hashes."
        expect(float(seen) != 0, f"Two images are in both sets, at different indices. {advice}")
    expect_close(seen, 2, "Two of eleven validation images are in training, at different indices")
    twice = torch.cat([train, train[:3]])
    seen = mine(twice, torch.cat([fresh, train[[2, 2, 2]]]))
    expect(seen != 1, "One image leaked, and it is three times in validation: count three, not one.")
    expect(seen != 6, "You count pairs: three copies in validation times two in training. Count validation images.")
    expect_close(seen, 3, "Three of the validation images are copies of the same training image")
    flipped = mine(train, train[:5].flip(-1))
    expect(flipped == 0, "Mirrored images have the same pixels in another order. A checksum must depend on the order.")
    near = train[:5].clone()
    near[:, 0, 0, 0] += 0.01
    expect_close(mine(train, near), 0, "One pixel of each differs: a checksum does not find near copies")
    expect_close(mine(train, train), len(train), "Validation is the training set itself")
    return "Different indices, several copies, mirrored images: it counts what leaked and nothing else."


# --- 09.3 ---


def judge_weights(mine: Student) -> str:
    labels = torch.tensor([0] * 3 + [1])
    seen = torch.as_tensor(mine(labels, 2)).float()
    expect(seen.shape == (2,), f"Two classes: expected two weights, got the shape {tuple(seen.shape)}.")
    right = torch.tensor([2 / 3, 2.0])
    turned = seen[0] > seen[1]
    expect(not turned, "The frequent class has the larger weight: divide by the counts, do not multiply.")
    same_ratio = torch.allclose(seen / seen.sum(), right / right.sum(), atol=1e-4)
    expect(
        not same_ratio or torch.allclose(seen, right, atol=1e-4),
        f"The ratio is right, the size is not: over the four samples your weights average "
        f"{seen[labels].mean():.3g}, which changes the size of the loss. Make it 1.",
    )
    expect_close(seen, right, "Of the labels 0, 0, 0, 1 and two classes")
    many = torch.tensor([0] * 90 + [1] * 9 + [3])
    seen = torch.as_tensor(mine(many, 5)).float()
    expect(seen.shape == (5,), f"Five classes, two of them without samples: expected five weights, got {len(seen)}.")
    expect(bool(torch.isfinite(seen).all()), "A class without samples got an infinite weight: give it 0.")
    expect_close(seen, torch.tensor([100 / 270, 100 / 27, 0.0, 100 / 3, 0.0]), "90, 9 and 1 samples, two empty classes")
    even = torch.arange(10).repeat(7)
    expect_close(mine(even, 10), torch.ones(10), "Ten equal classes")
    return "Inverse to the counts, an average of 1 over the samples, and 0 for classes that are empty."


# --- 09.4: a loop that survives ---

FACTOR = 200.0  # of the corrupt batch; a hundred is enough to leave the plain loop below 80 %


def small_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def sgd(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def with_a_corrupt_batch(seed: int) -> Setting:
    """robust_train(model, optimizer, loader): the loader's tenth batch from the end is useless and far too large."""
    usual = images(small_net, sgd, samples=4_000)(seed)
    loader = usual.loader
    batches = list(loader)
    x, y = batches[-10]
    batches[-10] = (x * FACTOR, y.roll(1))
    whole = tuple(torch.cat(each) for each in zip(*batches, strict=True))
    in_order = Batches(TensorDataset(*whole), batch_size=loader.batch_size, shuffle=False)
    arguments = tuple(in_order if each is loader else each for each in usual.arguments)
    return Setting(arguments, usual.held_out)


def robust_train(model, optimizer, loader):
    """The reference: the gradient norm is clipped."""
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def judge_survival(outcome: Outcome) -> str:
    seen = len(outcome.run)
    expect(seen >= 50, f"Your loop made {seen} steps; the loader has 63 batches. Leave out single batches only.")
    return f"With a batch that is {FACTOR:.0f} times too large among other digits, it learns as well as a clipped loop."


# --- 09.5: the sealed run ---

BAD, TIMES = 143, 500


def one_bad_image(split, recipe, generator):
    """The usual batches; one image of one of them is far too large."""
    for step, (x, y) in enumerate(parts.shuffled(split, recipe, generator)):
        if step == BAD:
            x = x.clone()
            x[17] *= TIMES
        yield x, y


def sealed() -> Run:
    """A run of 200 steps on photographs with one bad moment."""
    return train(Recipe(data="cifar10", lr=0.02, steps=200, batches=one_bad_image, seed=4), progress=False)


# --- 09.7: near copies ---


def cousins_of(x: Tensor) -> Tensor:
    """Near copies of eight images: brighter, darker, shifted by one pixel, with a little noise."""
    noise = torch.randn(x[6:8].shape, generator=torch.Generator().manual_seed(3))
    brightness = torch.cat([1.3 * x[:2], 0.7 * x[2:4] - 0.1])
    return torch.cat([brightness, x[4:5].roll(1, 2), x[5:6].roll((-1, 1), (2, 3)), x[6:8] + 0.05 * noise])


def judge_cousins(mine: Student) -> str:
    known = load("mnist", "train", samples=20_000)
    train, val = known.x[12_000:12_500], load("mnist", "val").x[:200]
    plain = mine(train, val)
    expect(plain == 0, f"No image of this pair of sets is a near copy of another, and you count {short(plain)}.")
    near = cousins_of(train[100:108])
    kinds = ("brighter", "brighter", "darker", "darker", "shifted down", "shifted up and right", "noisy", "noisy")
    for kind, one in zip(kinds, near, strict=True):
        seen = mine(train, torch.cat([val[:20], one[None]]))
        expect(seen != 0, f"A copy that is {kind} was not found among 21 images.")
        expect_close(seen, 1, f"One copy that is {kind}, among 21 images")
    expect_close(mine(train, torch.cat([val, near])), len(near), "Eight near copies among 208 images")
    return "Brighter, darker, shifted and noisy copies are found, and no two different digits are called cousins."


SAME_RESULT = {  # question: experiment -> why it does not tell the two apart
    "A": {
        "memorise 32 images": "with one fixed batch each image has one label in both cases: both pass.",
        "gap in the first epoch": "neither learns anything: no gap in either.",
        "cover parts of the inputs": "neither net uses its inputs.",
        "count identical images": "the images are the right ones in both cases.",
        "lower the learning rate": "the loss stays at the entropy of the labels in both.",
    },
    "B": {
        "memorise 32 images": "both nets memorise.",
        "follow one image through two epochs": "the training set is sound in both.",
        "cover parts of the inputs": "it shows what the net uses, and both use the digits.",
        "count identical images": "neither set contains images of the other.",
        "lower the learning rate": "both gaps open more slowly.",
    },
    "C": {
        "memorise 32 images": "both nets memorise.",
        "follow one image through two epochs": "each image keeps its label in both.",
        "gap in the first epoch": "validation has the same leak: no gap in either.",
        "count identical images": "the images differ, each with its own mark.",
        "lower the learning rate": "both learn, more slowly.",
    },
    "D": {
        "memorise 32 images": "both nets memorise.",
        "follow one image through two epochs": "each image keeps its label in both.",
        "gap in the first epoch": "a leak makes the gap smaller, and so does a better net.",
        "cover parts of the inputs": "both use the digits.",
        "lower the learning rate": "both learn, more slowly.",
    },
}

exercises = (
    build(
        "09.1",
        "An exam for a loader",
        judge_names,
        example="name_the_bug(loader)",
        points=3,
        modes=("blank_inputs", "single_class", "sorted_data", "labels_detached", "labels_shuffled"),
        hints=(
            "Cheap tests first: the standard deviation of the images, the classes of all batches, those of one batch.",
            "A loader shuffles again in each epoch, so recognise an image by its bytes: image.numpy().tobytes().",
            'For "shuffled": the mean image of each class from one half, the nearest mean for the other half.',
        ),
    ),
    build(
        "09.2",
        "Which validation images were trained on?",
        judge_shared,
        example="shared(train, val)",
        points=2,
        modes=("leakage",),
        hints=(
            "Comparing all pairs is slow, and comparing index by index finds nothing. What can a set look up?",
            "`image.numpy().tobytes()` is equal for equal images only, and can be put into a set.",
            "Make a set of all training images, then count the validation images that are in it.",
        ),
    ),
    build(
        "09.3",
        "Class weights",
        judge_weights,
        example="class_weights(labels, classes)",
        points=2,
        modes=("class_imbalance",),
        hints=(
            "labels.bincount(minlength=classes) counts every class, the empty ones too.",
            "Weights 1 / count, and 0 where the count is 0. Then scale them all by one number.",
            "The average over the samples is (weights * counts).sum() / len(labels): divide by it.",
        ),
    ),
    loop(
        "09.4",
        "A loop that survives a corrupt batch",
        with_a_corrupt_batch,
        robust_train,
        example="robust_train(model, optimizer, loader)",
        free_of=(),
        also=judge_survival,
        modes=("corrupt_batch",),
        points=2,
        hints=(
            "How long is the step that a batch can make you take, and what bounds it?",
            "Between backward and step: torch.nn.utils.clip_grad_norm_, or no step if the norm is far above the usual.",
            "clip_grad_norm_(model.parameters(), 1.0) returns the norm before clipping, if you want to skip instead.",
        ),
    ),
    diagnose(
        "09.5",
        "What came in?",
        failure="corrupt_sample",
        place=(f"batch {BAD}",),
        evidence={"input_max": (0.8 * TIMES, 3.0 * TIMES), "input_outliers": None},
        wrong={
            "corrupt_batch": "nearly. How large would the standard deviation of the whole batch be?",
            "learning_rate_too_high": "the loss falls smoothly before and after one moment.",
            "exploding_gradients": "the gradient is large at one step only; something came before it.",
            "nan_in_data": "every value of this run is finite.",
        },
        because="One image of batch 143 is 500 times too large. The gradient jumps with it, the loss of the following "
        "steps too: the input came first.",
        points=2,
        hints=(
            "Which of the three traces jumps first, or at the same step for no reason of its own?",
            "patient['input_max'].argmax() is a step; the place is 'batch' and that number.",
            "patient['input_outliers'] counts the samples of each batch that are far out: one, or all?",
        ),
    ),
    explain(
        "09.6",
        "Which experiment tells them apart?",
        modes=("labels_shuffled", "columns_differ_at_validation", "target_in_inputs", "leakage"),
        points=2,
        right={
            "A": "follow one image through two epochs",
            "B": "gap in the first epoch",
            "C": "cover parts of the inputs",
            "D": "count identical images",
        },
        because="An experiment is worth its price only if the two suspects predict different results.",
        wrong=SAME_RESULT,
        hints=(
            "For each pair and experiment: what would the first suspect give, and what the second?",
            "Overfitting needs several passes. A difference between two sets does not.",
            "The mark of the riddle was in the inputs of validation too. What did covering do?",
        ),
    ),
    build(
        "09.7",
        "Near copies",
        judge_cousins,
        example="cousins(train, val)",
        points=0,
        modes=("leakage",),
        hints=(
            "What of an image stays the same when it gets brighter? Subtract the mean and divide by the length.",
            "The product of two such images is their correlation: 1 for copies, far less for two different digits.",
            "Try the nine shifts by up to one pixel with torch.roll, and keep the best correlation of each image.",
        ),
    ),
)
