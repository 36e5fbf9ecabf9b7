"""Exercises of lesson 10, bugs in the code; the broken set-ups of its ten points, and its sealed run."""

import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from labkit.course.grading import (
    Student,
    build,
    changed_tensors,
    diagnose,
    expect,
    explain,
    short,
)
from labkit.course.loops import Batches, Outcome, Setting, images, loop
from labkit.course.predictions import prediction
from labkit.diagnosis.checkup import Checkup, checkup
from labkit.failures.code import stale_optimizer
from labkit.recording.run import Run
from labkit.recording.undisturbed import evaluating
from labkit.training.data import load
from labkit.training.loop import train

predictions = (
    prediction(
        "10.0",
        correct=2,
        why="The stored gradient is a sum over all steps, so the net overshoots and swings. A smaller learning rate "
        "makes the swing slower, and it never dies out.",
        wrong={
            1: "At first it does: the sum of ten gradients is about ten times one of them. But it goes on growing.",
            3: "PyTorch adds on purpose, so that gradients can be accumulated. There is no error.",
        },
    ),
)

# --- 10.1 ---


class Unused(nn.Module):
    """A net with a layer that forward() never uses."""

    def __init__(self):
        super().__init__()
        self.used, self.forgotten = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x):
        return self.used(x)


def dead_middle() -> nn.Sequential:
    """A net whose hidden units are all dead: their weights have a gradient, and it is 0 everywhere."""
    net = small_net()
    with torch.no_grad():
        net[0].bias.fill_(-100.0)
    net[1] = nn.ReLU()
    return net


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def judge_untrained(mine: Student) -> str:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.rand(12, 6, generator=generator), torch.arange(12) % 4

    def expect_reasons(what: str, net: nn.Module, optimizer: torch.optim.Optimizer, right: dict[str, str]) -> None:
        before, modes = copy.deepcopy(net.state_dict()), net.training
        seen = mine.in_place(net, optimizer, x.clone(), y.clone())
        expect(isinstance(seen, dict), f"Expected a dict of names and reasons, got {short(seen)}.")
        missed = [name for name in right if name not in seen]
        expect(not missed, f"{what}: {', '.join(missed)} did not change, and you do not report it.")
        accused = [name for name in seen if name not in right]
        expect(not accused, f"{what}: a step changes {', '.join(map(str, accused))}, but you report it.")
        for name, reason in right.items():
            expect(seen[name] == reason, f'{what}: {name} is "{reason}", you say {short(seen[name])}.')
        moved = changed_tensors(net, before)
        expect(not moved, f"{what}: correct, but your test left {', '.join(moved)} changed.")
        expect(net.training == modes, f"{what}: correct, but your test changed the mode of the net.")

    net = small_net()
    expect_reasons("A sound net", net, sgd(net), {})
    net = small_net()
    net[0].requires_grad_(False)
    expect_reasons("A frozen first layer", net, sgd(net), {"0.weight": "frozen", "0.bias": "frozen"})
    net = small_net()
    stale = sgd(net)
    net[2] = nn.Linear(8, 4)
    names = ("2.weight", "2.bias")
    expect_reasons("A head made after the optimizer", net, stale, dict.fromkeys(names, "not in the optimizer"))
    net = Unused()
    names = ("forgotten.weight", "forgotten.bias")
    expect_reasons("A layer that forward() never uses", net, sgd(net), dict.fromkeys(names, "no gradient"))
    net = dead_middle()
    dead = dict.fromkeys(("0.weight", "0.bias", "2.weight"), "no gradient")
    expect_reasons("A net whose hidden units are dead", net, sgd(net), dead)
    net = small_net(between=(nn.BatchNorm1d(8),))
    expect_reasons("A net with batch norm, whose averages move in a forward pass", net, sgd(net), {})
    return "Frozen, not in the optimizer, no gradient; and the net is left as it was."


# --- 10.2 ---


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


# --- 10.3: three bugs in one file ---


class Body(nn.Sequential):
    """A small net that remembers the first weights of a head that replaces its own."""

    def __setitem__(self, index, module: nn.Module) -> None:
        super().__setitem__(index, module)
        vars(self)["first_head"] = [weight.detach().clone() for weight in module.parameters()]


def body() -> nn.Module:
    return Body(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def finetune(model, loader):
    """The reference: first the head, then the optimizer."""
    model[-1] = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


def judge_finetuned(outcome: Outcome) -> str:
    model = outcome.setting.model
    head = list(model[-1].parameters())  # type: ignore[index]
    first = vars(model).get("first_head")
    expect(first and len(head) == len(first), "The last layer should be a new one, model[-1] = nn.Linear(64, 10).")
    expect(
        not any(torch.equal(now, before) for now, before in zip(head, first, strict=True)),
        "It learns, by the body alone: the new head has its first weights, to the last bit. Who should update it?",
    )
    return "On other digits it learns as well as a correct loop, and none of the three bugs is left."


# --- 10.4: modes ---

EPOCHS = 3


def norm_net() -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs in (784, 64):
        layers += [nn.Linear(inputs, 64), nn.BatchNorm1d(64), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(64, 10))


class Modes:
    """Notes of every pass over a batch of the loader the mode of the net, over `val_x` mode and gradients."""

    def __init__(self, model: nn.Module, loader: Batches, val_x: Tensor):
        self.loader, self.place = loader, val_x.untyped_storage().data_ptr()
        self.training: list[bool] = []
        self.validating: list[tuple[bool, bool]] = []
        model.register_forward_hook(self)

    def __call__(self, model: nn.Module, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        if inputs[0].untyped_storage().data_ptr() == self.place:
            self.validating.append((model.training, torch.is_grad_enabled()))
        elif self.loader.latest is not None and torch.equal(inputs[0], self.loader.latest[0]):
            self.training.append(model.training)


VALIDATED = 1000  # validation images handed to the loop


def with_validation(seed: int) -> Setting:
    """train_and_validate(model, optimizer, loader, val_x, val_y)."""
    usual = images(norm_net, lambda parameters: torch.optim.SGD(parameters, lr=0.05))(seed)
    val_x, val_y = (each[:VALIDATED].clone() for each in usual.held_out)  # a copy: the judge validates on the others
    setting = Setting((*usual.arguments, val_x, val_y), usual.held_out)
    vars(setting.model)["modes"] = Modes(setting.model, setting.loader, val_x)
    return setting


def train_and_validate(model, optimizer, loader, val_x, val_y):
    """The reference: train() in every epoch, eval() and no_grad() for validation."""
    scores = []
    for _ in range(EPOCHS):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = model(val_x).argmax(1) == val_y
        scores.append(right.float().mean().item())
    return scores


def judge_modes(outcome: Outcome) -> str:
    model, val_x, val_y = outcome.setting.model, *outcome.setting.arguments[-2:]
    seen = vars(model)["modes"]
    first = next((step for step, on in enumerate(seen.training) if not on), None)
    expect(
        first is None,
        f"The accuracy is fine, the modes are not: from step {first} on the net trains in eval mode, where its batch "
        "norms use running averages that no longer move. Who says train() after the first validation?",
    )
    expect(len(seen.validating) >= EPOCHS, f"The net saw val_x {len(seen.validating)} times in {EPOCHS} epochs.")
    expect(
        not any(on for on, _ in seen.validating),
        "The net is validated in train mode: batch norm uses the statistics of val_x, and moves its averages to them.",
    )
    expect(not any(on for _, on in seen.validating), "Modes are right. Validation keeps a graph: use torch.no_grad().")
    scores = outcome.returned
    expect(isinstance(scores, list) and len(scores) == EPOCHS, f"Expected {EPOCHS} accuracies, got {short(scores)}.")
    with evaluating(model), torch.no_grad():
        right = (model(val_x).argmax(1) == val_y).float().mean().item()
    expect(abs(float(scores[-1]) - right) < 1e-6, f"The last accuracy is {right:.4f}, you return {short(scores[-1])}.")
    return "train() in each epoch, eval() and no_grad() for validation, and the accuracies are right."


# --- 10.5 is about these set-ups ---


SAMPLES = 2000


def setups() -> dict[str, Checkup]:
    """The bugs of 10.5 that are in a net, an optimizer or the data, each with its `checkup`.

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
    "one batch memorised": "It tests whether this net with this loss can memorise a batch.",
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

# --- 10.6: the sealed run ---


def sealed() -> Run:
    """A net on photographs that learns slowly and not far."""
    recipe = stale_optimizer.sick.but(data="cifar10", depth=3, steps=150, lr=0.05, seed=6)
    return train(recipe, progress=False)


# --- 10.7: accumulation ---


def judge_accumulation(mine: Student) -> str:
    x, y = (each[10_000:10_110] for each in load("mnist", "train", samples=20_000))

    def steps_of(function, pieces: int, size: int) -> tuple[list[Tensor], int]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = body()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        made = []
        optimizer.register_step_post_hook(lambda *_: made.append(1))
        loader = DataLoader(TensorDataset(x, y), batch_size=size, shuffle=False)
        function(model, optimizer, loader, pieces)
        return [weight.detach() for weight in model.parameters()], len(made)

    def large(model, optimizer, loader, _) -> None:
        for inputs, labels in loader:
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()

    for pieces, size in ((1, 16), (4, 8), (4, 10), (3, 16)):
        wanted, number = steps_of(large, 1, pieces * size)
        seen, made = steps_of(mine.call_or_none, pieces, size)
        what = f"{len(y)} images in batches of {size}, {pieces} pieces to a step"
        expect(made == number, f"{what}: expected {number} steps, counted {made}. Does the last group get its step?")
        apart = max(float((one - two).abs().max()) for one, two in zip(seen, wanted, strict=True))
        expect(
            apart < 1e-5,
            f"{what}: the weights differ from those of batches of {pieces * size} by {apart:.1g}. Is the gradient the "
            "mean over all images of the group, also where its last batch is smaller, or the group has fewer batches?",
        )
    return "The weights of the large batch, also where the last batch and the last group are smaller."


exercises = (
    build(
        "10.1",
        "Which weights does a step change?",
        judge_untrained,
        example="untrained(model, optimizer, x, y)",
        points=3,
        modes=("frozen_layers", "stale_optimizer", "unregistered_layers"),
        hints=(
            "You need no step at all: requires_grad, the ids in optimizer.param_groups, and one backward pass say it.",
            "{id(p) for group in optimizer.param_groups for p in group['params']} is what the optimizer holds.",
            "Ask in this order: frozen, not in the optimizer, gradient None or all 0. A forward pass in train mode "
            "moves batch norm's averages: keep a copy of state_dict() and put it back.",
        ),
    ),
    build(
        "10.2",
        "Does the net mix the samples of a batch?",
        judge_samples_mixed,
        example="samples_mixed(net, x)",
        points=2,
        modes=("softmax_over_batch",),
        hints=(
            "Keep sample 0 and change all the others. May output 0 change?",
            "Test in eval mode under no_grad, on a clone of x, and restore the mode of the net.",
            "`not torch.allclose(net(x)[0], net(altered)[0])`, where altered[1:] is x[1:] plus something.",
        ),
    ),
    loop(
        "10.3",
        "Three bugs in one file",
        images(body, samples=3_000),
        finetune,
        example="finetune(model, loader)",
        free_of=("stale_optimizer", "softmax_before_cross_entropy", "zero_grad_missing"),
        also=judge_finetuned,
        points=3,
        hints=(
            "Go through the three places of this lesson: the net and its optimizer, the loss, the step.",
            "Which weights does the optimizer hold, those of the old head or of the new one?",
            "cross_entropy has a softmax of its own. And which line of the healthy loop is not there?",
        ),
    ),
    loop(
        "10.4",
        "The right mode at the right time",
        with_validation,
        train_and_validate,
        example="train_and_validate(model, optimizer, loader, val_x, val_y)",
        free_of=(),
        margin=0.06,  # the judge of the modes has more to say than the accuracy
        also=judge_modes,
        modes=("eval_mode_in_training", "batch_norm_in_train_mode_at_validation"),
        points=2,
        hints=(
            "In which mode is the net in the first epoch's batches, in its validation, and in the second epoch?",
            "train() belongs to the top of every epoch, eval() in front of validation.",
            "And with torch.no_grad() around the validation pass.",
        ),
    ),
    explain(
        "10.5",
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
        points=2,
        right={
            "A": "none",
            "B": "splits",
            "C": "one batch memorised",
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
                one_batch_memorised="you saw it pass: any 32 labels can be memorised.",
                first_loss="an untrained net is at chance level, with any labels.",
            ),
            "B": choices("splits", none="a checksum of each image would catch it."),
            "C": choices(
                "one batch memorised",
                first_loss="probabilities near 1/10 give ln 10 too: it passes.",
                none="the loss cannot fall below 1.46. Which check needs it to?",
            ),
            "D": choices(
                "gradients",
                one_batch_memorised="it uses its own optimizer, which contains the new head.",
                one_step="the old layers still move, and the loss still falls.",
                none="which check compares the net's parameters with the optimizer's?",
            ),
            "E": choices("modes"),
            "F": choices(
                "none",
                gradients=f"after one backward they are correct. {NOT_SEEN}",
                one_batch_memorised=f"it uses its own loop, which clears the gradients. {NOT_SEEN}",
            ),
            "G": choices(
                "none",
                validation_data=f"the images are correct; what is broken is how accuracy is computed. {NOT_SEEN}",
            ),
            "H": choices(
                "inputs",
                first_loss="it fails too, but cannot say why. Which one looks at the pixels?",
                one_step="it fails too, but cannot say why. Which one looks at the pixels?",
                one_batch_memorised="raw pixels can be memorised as well.",
                validation_data="both splits are scaled alike here.",
            ),
        },
        hints=(
            "For each bug: is it in the net, loss, data or optimizer? The checks see nothing else.",
            "Three of the eight are caught by none of them. One of these three is in the data.",
            "With two softmaxes the first loss is ln 10, as it should be. But how low can it fall?",
        ),
    ),
    diagnose(
        "10.6",
        "It learns, but not far",
        failure="stale_optimizer",
        place="layer3",
        evidence={"update_ratio": (0.0, 1e-9), "weight_norm": None},
        wrong={
            "frozen_layers": "a frozen layer has no gradient. Look at the middle plot.",
            "unregistered_layers": "a layer that is not registered is not recorded either: you would not see its line.",
            "learning_rate_too_low": "most layers move at a healthy pace.",
            "vanishing_gradients": "the gradients of all layers are of healthy size.",
        },
        because="The head has a gradient, the largest of all, and not one update: the optimizer holds the head that "
        "was replaced.",
        points=2,
        hints=(
            "Which layer has a gradient and no update?",
            "What has a gradient, may be trained, and does not change? Something that the optimizer does not know.",
            'patient.labels_of("update_ratio") names the columns of patient["update_ratio"].',
        ),
    ),
    build(
        "10.7",
        "Gradient accumulation",
        judge_accumulation,
        example="accumulate(model, optimizer, loader, pieces)",
        points=0,
        modes=("zero_grad_missing", "summed_loss"),
        hints=(
            "zero_grad once per group, backward for each batch, step once per group.",
            "A mean over a small batch is not its share of the mean over the large one. What is?",
            'Sum the losses with reduction="sum" and divide by the number of images of the whole group.',
        ),
    ),
)
