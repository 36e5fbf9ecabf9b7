"""Exercises of lesson 09, silent bugs in data and code; and the broken set-ups of its ten-point list."""

import copy

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from labkit.diagnosis.checkup import Checkup, checkup
from labkit.training.data import load
from labkit.course.grading import Student, build, cure, everything_but, expect, expect_close, explain
from labkit.training.recipe import Recipe
from labkit.recording.run import Run
from labkit.training.loop import train

# --- 09.1 ---


def judge_shared(mine: Student) -> str:
    generator = torch.Generator().manual_seed(0)
    train, fresh = (torch.rand(count, 1, 6, 6, generator=generator) for count in (40, 9))
    val = torch.cat([fresh[:4], train[[31]], fresh[4:], train[[7]]])
    seen = mine(train, val)
    if torch.is_tensor(seen) or isinstance(seen, int | float):
        advice = "Did you compare place with place, or put tensors into a set? Equal tensors have different hashes."
        expect(float(seen) != 0, f"Two images are in both sets, at other places. {advice}")
    expect_close(seen, 2, "Two of eleven validation images are in training, at other places")
    twice = torch.cat([train, train[:3]])
    seen = mine(twice, torch.cat([fresh, train[[2, 2, 2]]]))
    expect(seen != 1, "One image leaked, and it is three times in validation: three scores are spoilt, not one.")
    expect(seen != 6, "You count pairs: three copies in validation times two in training. Count validation images.")
    expect_close(seen, 3, "Three of the validation images are one and the same training image")
    flipped = mine(train, train[:5].flip(-1))
    expect(flipped == 0, "Mirrored images have the same pixels in another order. A checksum must see the order.")
    near = train[:5].clone()
    near[:, 0, 0, 0] += 0.01
    expect_close(mine(train, near), 0, "One pixel of each is another: near copies are not what a checksum finds")
    expect_close(mine(train, train), len(train), "Validation is the training set itself")
    return "Other places, several copies, mirrored images: it counts what leaked and nothing else."


# --- 09.2 ---


class Mixing(nn.Module):
    """Adds to each row what it should know nothing of: the row as far from the end as it is from the start."""

    def forward(self, x):
        return x + 0.1 * x.flip(0)


class WrongReshape(nn.Module):
    """Rows and columns exchanged, and the shape put right by force."""

    def forward(self, x):
        return x.t().reshape(x.shape)


def net_of(*further: nn.Module, between: tuple[nn.Module, ...] = ()) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), *between, nn.Tanh(), nn.Linear(8, 4), *further)
    with torch.no_grad():
        for weight in net.parameters():
            weight.copy_(torch.rand(weight.shape, generator=generator) - 0.3)
    return net


def judge_samples_mixed(mine: Student) -> str:
    x = torch.rand(12, 6, generator=torch.Generator().manual_seed(1))
    expect(not mine.on(net_of(), x.clone()), "A plain net treats each sample alone, and you say that it mixes them.")
    expect(mine.on(net_of(nn.Softmax(dim=0)), x.clone()), "A softmax over axis 0 is over the batch: that mixes.")
    expect(mine.on(net_of(WrongReshape()), x.clone()), "A reshape that exchanged rows and columns was not noticed.")
    expect(mine.on(net_of(Mixing()), x.clone()), "Output 0 hears of the last sample only. Alter all the others.")
    net = net_of(between=(nn.BatchNorm1d(8), nn.Dropout(0.5)))
    before, batch = copy.deepcopy(net.state_dict()), x.clone()
    mixed = mine.on(net, batch)
    expect(not mixed, "Batch norm mixes in train mode, by design, and dropout is random there. Ask in eval mode.")
    moved = [name for name, value in net.state_dict().items() if not torch.equal(value, before[name])]
    expect(not moved, f"Right answers, but asking changed {', '.join(moved)}.")
    expect(net.training, "Right answers, but the net came in train mode and left in eval mode.")
    resting = net_of().eval()
    mine.on(resting, x.clone())
    expect(not resting.training, "Right answers, but a net that came in eval mode left in train mode.")
    left = [name for name, weight in net.named_parameters() if weight.grad is not None]
    expect(not left, "Right answers, but gradients stay behind in the weights: torch.autograd.grad leaves none.")
    expect(torch.equal(batch, x), "Right answers, but you altered the caller's batch. Work on a clone.")
    return "It found three ways of mixing, let batch norm be, and left no trace."


# --- 09.3 ---


def two_steps(recipe: Recipe, factor: float) -> Run:
    """Two steps, with what the first left in the gradients times a factor before the second."""

    def step(training, x, y) -> None:
        recipe.step(training, x, y)
        for weight in training.model.parameters():
            if weight.grad is not None:
                weight.grad.mul_(factor)

    return train(recipe.but(step=step, steps=2, evaluate_every=0, samples=256), progress=False)


def judge_step(recipe: Recipe) -> None:
    """Clipping hides the growth of the gradients well enough to learn, and forgets nothing."""
    plain, altered = two_steps(recipe, 1.0), two_steps(recipe, 1000.0)
    expect(len(plain) == 2, "The instruments saw nothing: call training.look(loss, x, y) once in every step.")
    expect(
        plain.facts["weights_sha256"] == altered.facts["weights_sha256"],
        "After one step the gradients in the weights were made a thousand times larger, and your next step was another "
        "one: what an old batch left behind still counts.",
    )


# --- 09.4 is about these set-ups ---


SAMPLES = 2000


def setups() -> dict[str, Checkup]:
    """The bugs of 09.4 that stand in a net, an optimizer or the data, each as `checkup` finds it.

    (The other two stand in the loop and in the metric, and no test before training is shown those.)
    """
    x, y = (each[:SAMPLES] for each in load("mnist", "train", samples=SAMPLES))
    val = load("mnist", "val")
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1))
    raw = load("mnist", "train", inputs="raw", samples=SAMPLES).x[:SAMPLES]
    raw_val = load("mnist", "val", inputs="raw").x
    replaced = digit_net()
    stale = torch.optim.SGD(replaced.parameters(), lr=0.1)
    replaced[3] = nn.Linear(128, 10)
    leaked = torch.cat([x, val.x[::2]]), torch.cat([y, val.y[::2]])
    return {
        "A": looked_at(digit_net(), (x, y[order]), val),
        "B": looked_at(digit_net(), leaked, val),
        "C": looked_at(digit_net(nn.Softmax(dim=1)), (x, y), val),
        "D": looked_at(replaced, (x, y), val, stale),
        "E": looked_at(digit_net().eval(), (x, y), val),
        "H": looked_at(digit_net(), (raw, y), (raw_val, val.y)),
    }


def digit_net(*further: nn.Module) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10), *further)


def looked_at(net: nn.Module, train, val, optimizer=None) -> Checkup:
    return checkup(net, cross_entropy, train, tuple(val), optimizer or torch.optim.SGD(net.parameters(), lr=0.1))


NOT_SEEN = "is it shown the thing that is broken? Look at what `checkup` is given."


def choices(right: str, **reasons: str) -> dict[str, str]:
    """Why each of the other checks is not the one; a general word where nothing special is to be said."""
    reasons = {name.replace("_", " "): words for name, words in reasons.items()}
    others = [name for name in CHECKS if name != right]
    return {name: reasons.get(name, f"'{name}' would say ok. {ASKS[name]}") for name in others}


ASKS = {
    "first loss": "It asks whether an untrained net guesses.",
    "one batch by heart": "It asks whether this net with this loss can learn anything.",
    "output shape": "It asks for one row per sample and one column per class.",
    "one step": "It asks whether the loss falls after one update by your optimizer.",
    "gradients": "It asks whether each parameter has a gradient and is held by the optimizer.",
    "inputs": "It asks whether the pixels are finite, centred and scaled.",
    "splits": "It asks whether an image is in both sets.",
    "validation data": "It asks whether validation is the same at each pass, and scaled as training is.",
    "modes": "It asks in which mode the net is now.",
    "checkpoint": "It asks whether a resumed run would find all it needs.",
    "none": "One of the checks would have seen it.",
}
CHECKS = tuple(ASKS)

exercises = (
    build(
        "09.1",
        "Which validation images were trained on?",
        judge_shared,
        example="shared(train, val)",
        points=2,
        hints=(
            "Comparing all pairs is slow, and comparing place with place finds nothing. What can a set look up?",
            "`image.numpy().tobytes()` is the same for the same image only, and a set can hold it.",
            "Make a set of all training images, then count the validation images that are in it.",
        ),
    ),
    build(
        "09.2",
        "Do the samples of a batch know each other?",
        judge_samples_mixed,
        example="samples_mixed(net, x)",
        points=3,
        hints=(
            "Keep sample 0 as it is and alter all the others. May output 0 change?",
            "Ask in eval mode under no_grad, on a clone of x, and give the net back in the mode it came in.",
            "`not torch.allclose(net(x)[0], net(altered)[0])`, where altered[1:] is x[1:] plus something.",
        ),
    ),
    cure(
        "09.3",
        "Give the patient a step that forgets",
        "zero_grad_missing",
        keep=everything_but("step"),
        also=judge_step,
        seeds=(11,),
        points=3,
        hints=(
            "The step shown above has five lines. A sound one has six.",
            "Before backward, the gradients of the last step have to go.",
            "training.optimizer is an ordinary torch optimizer, with the method that clears all gradients.",
        ),
    ),
    explain(
        "09.4",
        "Which check would have seen it?",
        modes=(
            "labels_shuffled",
            "leakage",
            "softmax_before_cross_entropy",
            "stale_optimizer",
            "eval_mode_in_training",
            "zero_grad_missing",
            "metric_broadcast",
            "inputs_not_normalised",
        ),
        points=4,
        right={
            "A": "none",
            "B": "splits",
            "C": "one batch by heart",
            "D": "gradients",
            "E": "modes",
            "F": "none",
            "G": "none",
            "H": "inputs",
        },
        because="Five of eight. The labels, the loop and the metric are yours to look after: draw images with their "
        "labels, plot the gradient norm, and try the metric on a case whose answer you know.",
        wrong={
            "A": choices(
                "none",
                one_batch_by_heart="you saw it pass: any 32 labels can be learned by heart.",
                first_loss="an untrained net guesses, and guessing costs the same with any labels.",
            ),
            "B": choices("splits", none="a checksum of each image would have."),
            "C": choices(
                "one batch by heart",
                first_loss="probabilities that are all near 1/10 give ln 10 too: it passes.",
                none="the loss cannot fall below 1.46. Which check needs it to?",
            ),
            "D": choices(
                "gradients",
                one_batch_by_heart="it brings an optimizer of its own, which holds the new head.",
                one_step="the old layers still move, and the loss still falls.",
                none="which check compares the net's parameters with the optimizer's?",
            ),
            "E": choices("modes"),
            "F": choices(
                "none",
                gradients=f"after one backward they are in order. {NOT_SEEN}",
                one_batch_by_heart=f"it has a loop of its own, which clears its gradients. {NOT_SEEN}",
            ),
            "G": choices(
                "none",
                validation_data=f"the images are in order; what is broken is how the answers are counted. {NOT_SEEN}",
            ),
            "H": choices(
                "inputs",
                first_loss="it stumbles over this too, and cannot say why. Which one looks at the pixels?",
                one_step="it stumbles over this too, and cannot say why. Which one looks at the pixels?",
                one_batch_by_heart="raw pixels are learned by heart as well.",
                validation_data="both splits are scaled alike here.",
            ),
        },
        hints=(
            "For each bug: is what is broken among net, loss, data and optimizer? The checks are shown nothing else.",
            "Three of the eight are seen by none of them. One of these three is in the data.",
            "Two softmaxes: the first loss is ln 10, as it should be. But how low can it fall?",
        ),
    ),
)
