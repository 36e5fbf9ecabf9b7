"""Exercises of lesson 09, silent bugs in data and code; and the broken set-ups of its ten-point list."""

import copy

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from labkit.course.grading import Student, build, changed_tensors, cure, everything_but, expect, expect_close, explain
from labkit.diagnosis.checkup import Checkup, checkup
from labkit.recording.run import Run
from labkit.training.data import load
from labkit.training.loop import train
from labkit.training.recipe import Recipe

# --- 09.1 ---


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


# --- 09.2 ---


class Mixing(nn.Module):
    """Adds to each row another row of the batch, in reverse order."""

    def forward(self, x):
        return x + 0.1 * x.flip(0)


class WrongReshape(nn.Module):
    """Transposes, then reshapes to the original shape."""

    def forward(self, x):
        return x.t().reshape(x.shape)


def small_net(*further: nn.Module, between: tuple[nn.Module, ...] = ()) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), *between, nn.Tanh(), nn.Linear(8, 4), *further)
    with torch.no_grad():
        for weight in net.parameters():
            weight.copy_(torch.rand(weight.shape, generator=generator) - 0.3)
    return net


def judge_samples_mixed(mine: Student) -> str:
    x = torch.rand(12, 6, generator=torch.Generator().manual_seed(1))
    expect(
        not mine.in_place(small_net(), x.clone()),
        "A plain net treats each sample alone, but you report that it mixes them.",
    )
    expect(
        mine.in_place(small_net(nn.Softmax(dim=0)), x.clone()), "A softmax over axis 0 is over the batch: that mixes."
    )
    expect(
        mine.in_place(small_net(WrongReshape()), x.clone()),
        "A wrong reshape after a transpose was not noticed.",
    )
    expect(
        mine.in_place(small_net(Mixing()), x.clone()), "Output 0 depends on the last sample only. Alter all the others."
    )
    net = small_net(between=(nn.BatchNorm1d(8), nn.Dropout(0.5)))
    before, batch = copy.deepcopy(net.state_dict()), x.clone()
    mixed = mine.in_place(net, batch)
    expect(not mixed, "Batch norm mixes in train mode, by design, and dropout is random there. Test in eval mode.")
    moved = changed_tensors(net, before)
    expect(not moved, f"Correct results, but your test changed {', '.join(moved)}.")
    expect(net.training, "Correct results, but the net was in train mode and is left in eval mode.")
    resting = small_net().eval()
    mine.in_place(resting, x.clone())
    expect(not resting.training, "Correct results, but a net that was in eval mode is left in train mode.")
    left = [name for name, weight in net.named_parameters() if weight.grad is not None]
    expect(not left, "Correct results, but gradients are left in the weights: torch.autograd.grad leaves none.")
    expect(torch.equal(batch, x), "Correct results, but you changed the caller's batch. Work on a clone.")
    return "It finds three ways of mixing, accepts batch norm, and leaves the net unchanged."


# --- 09.3 ---


def two_steps(recipe: Recipe, factor: float) -> Run:
    """Two steps; the gradients left by the first are multiplied by a factor before the second."""

    def step(training, x, y) -> None:
        recipe.step(training, x, y)
        for weight in training.model.parameters():
            if weight.grad is not None:
                weight.grad.mul_(factor)

    return train(recipe.but(step=step, steps=2, evaluate_every=0, samples=256), progress=False)


def judge_step(recipe: Recipe) -> None:
    """Clipping would hide the growth of the gradients well enough to learn, without clearing them."""
    plain, altered = two_steps(recipe, 1.0), two_steps(recipe, 1000.0)
    expect(len(plain) == 2, "Nothing was recorded: call training.look(loss, x, y) once in every step.")
    expect(
        plain.facts["weights_sha256"] == altered.facts["weights_sha256"],
        "After one step the stored gradients were multiplied by 1000, and your next step changed: gradients of an old "
        "batch still count.",
    )


# --- 09.4 is about these set-ups ---


SAMPLES = 2000


def setups() -> dict[str, Checkup]:
    """The bugs of 09.4 that are in a net, an optimizer or the data, each with its `checkup`.

    (The other two are in the loop and in the metric, which no test before training sees.)
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
        "A": checkup_of(digit_net(), (x, y[order]), val),
        "B": checkup_of(digit_net(), leaked, val),
        "C": checkup_of(digit_net(nn.Softmax(dim=1)), (x, y), val),
        "D": checkup_of(replaced, (x, y), val, stale),
        "E": checkup_of(digit_net().eval(), (x, y), val),
        "H": checkup_of(digit_net(), (raw, y), (raw_val, val.y)),
    }


def digit_net(*further: nn.Module) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10), *further)


def checkup_of(net: nn.Module, train, val, optimizer=None) -> Checkup:
    return checkup(net, cross_entropy, train, tuple(val), optimizer or torch.optim.SGD(net.parameters(), lr=0.1))


NOT_SEEN = "does it see the part that is broken? Look at the arguments of `checkup`."


def choices(right: str, **reasons: str) -> dict[str, str]:
    """Why each of the other checks is wrong; a general reason where none is given."""
    reasons = {name.replace("_", " "): words for name, words in reasons.items()}
    others = [name for name in CHECKS if name != right]
    return {name: reasons.get(name, f"'{name}' would report ok. {WHAT_IT_TESTS[name]}") for name in others}


WHAT_IT_TESTS = {
    "first loss": "It tests whether an untrained net is at chance level.",
    "one batch by heart": "It tests whether this net with this loss can memorise a batch.",
    "output shape": "It tests for one row per sample and one column per class.",
    "one step": "It tests whether the loss falls after one update by your optimizer.",
    "gradients": "It tests whether each parameter has a gradient and is in the optimizer.",
    "inputs": "It tests whether the pixels are finite, centred and scaled.",
    "splits": "It tests whether an image is in both sets.",
    "validation data": "It tests whether validation data are the same at each pass, and scaled like the training data.",
    "modes": "It tests which mode the net is in now.",
    "checkpoint": "It tests whether a resumed run would find everything it needs.",
    "none": "One of the checks would have caught it.",
}
CHECKS = tuple(WHAT_IT_TESTS)

exercises = (
    build(
        "09.1",
        "Which validation images were trained on?",
        judge_shared,
        example="shared(train, val)",
        points=2,
        hints=(
            "Comparing all pairs is slow, and comparing index by index finds nothing. What can a set look up?",
            "`image.numpy().tobytes()` is equal for equal images only, and can be put into a set.",
            "Make a set of all training images, then count the validation images that are in it.",
        ),
    ),
    build(
        "09.2",
        "Does the net mix the samples of a batch?",
        judge_samples_mixed,
        example="samples_mixed(net, x)",
        points=3,
        hints=(
            "Keep sample 0 and change all the others. May output 0 change?",
            "Test in eval mode under no_grad, on a clone of x, and restore the mode of the net.",
            "`not torch.allclose(net(x)[0], net(altered)[0])`, where altered[1:] is x[1:] plus something.",
        ),
    ),
    cure(
        "09.3",
        "Write a training step without the bug",
        "zero_grad_missing",
        keep=everything_but("step"),
        also=judge_step,
        seeds=(11,),
        points=3,
        hints=(
            "The step shown above has five lines. A correct one has six.",
            "Before backward, clear the gradients of the previous step.",
            "training.optimizer is an ordinary torch optimizer, with the method that clears all gradients.",
        ),
    ),
    explain(
        "09.4",
        "Which check catches it?",
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
        because="Five of eight. Labels, loop and metric you have to check yourself: plot images with their "
        "labels, plot "
        "the gradient norm, and test the metric on a case whose result you know.",
        wrong={
            "A": choices(
                "none",
                one_batch_by_heart="you saw it pass: any 32 labels can be memorised.",
                first_loss="an untrained net is at chance level, with any labels.",
            ),
            "B": choices("splits", none="a checksum of each image would catch it."),
            "C": choices(
                "one batch by heart",
                first_loss="probabilities near 1/10 give ln 10 too: it passes.",
                none="the loss cannot fall below 1.46. Which check needs it to?",
            ),
            "D": choices(
                "gradients",
                one_batch_by_heart="it uses its own optimizer, which contains the new head.",
                one_step="the old layers still move, and the loss still falls.",
                none="which check compares the net's parameters with the optimizer's?",
            ),
            "E": choices("modes"),
            "F": choices(
                "none",
                gradients=f"after one backward they are correct. {NOT_SEEN}",
                one_batch_by_heart=f"it uses its own loop, which clears the gradients. {NOT_SEEN}",
            ),
            "G": choices(
                "none",
                validation_data=f"the images are correct; what is broken is how accuracy is computed. {NOT_SEEN}",
            ),
            "H": choices(
                "inputs",
                first_loss="it fails too, but cannot say why. Which one looks at the pixels?",
                one_step="it fails too, but cannot say why. Which one looks at the pixels?",
                one_batch_by_heart="raw pixels can be memorised as well.",
                validation_data="both splits are scaled alike here.",
            ),
        },
        hints=(
            "For each bug: is it in the net, loss, data or optimizer? The checks see nothing else.",
            "Three of the eight are caught by none of them. One of these three is in the data.",
            "With two softmaxes the first loss is ln 10, as it should be. But how low can it fall?",
        ),
    ),
)
