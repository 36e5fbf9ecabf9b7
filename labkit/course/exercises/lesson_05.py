"""Exercises of lesson 05, vanishing and exploding gradients; and its sealed patient."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from labkit.course.grading import NotYet, Student, build, cure, diagnose, expect, expect_close, number, short
from labkit.course.loops import Batches, Outcome, Setting, images, loop
from labkit.course.predictions import prediction
from labkit.failures.catalogue import FAILURES
from labkit.recording.run import Run
from labkit.training.loop import train

# --- the sealed patient of 05.5: a loss that does not move ---


SMALLEST = (5e-7, 1e-5)  # median gradient of the layer that learns least: 2.7e-6 to 3.1e-6 over seeds 0 to 4


def patient() -> Run:
    """One run whose loss stands still. The student finds out why."""
    recipe = FAILURES["vanishing_gradients"].sick.but(depth=8, init="default", seed=3)
    return train(recipe.but(steps=100, evaluate_every=20), progress=False)


# --- 05.1 ---


def net_with_gradients() -> nn.Module:
    """A linear layer, a nested block of two layers, and a head; the linear layer of the block has no gradient."""
    block = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), block, nn.Linear(3, 2))
    with torch.no_grad():
        for weight in net.parameters():
            weight.fill_(7.0)
    net[0].weight.grad = torch.full((3, 2), 2.0)  # 6 entries of 2: norm √24
    net[0].bias.grad = torch.tensor([-3.0, 3.0, -3.0])  # norm √27
    net[2][1].weight.grad, net[2][1].bias.grad = torch.zeros(3), torch.zeros(3)
    net[3].weight.grad = torch.full((2, 3), -1e-9)  # its bias is frozen and has none
    return net


def judge_layer_norms(mine: Student) -> str:
    net = net_with_gradients()
    before = {name: weight.grad for name, weight in net.named_parameters()}
    copies = {name: grad.clone() for name, grad in before.items() if grad is not None}
    found = mine.in_place(net)
    expect(isinstance(found, dict), f"Expected a dict, name of the layer -> norm of its gradient, got {found!r}.")
    judge_names(found)
    judge_values(found)
    after = {name: weight.grad for name, weight in net.named_parameters()}
    moved = [name for name, grad in after.items() if (grad is None) != (before[name] is None)]
    moved += [name for name, grad in copies.items() if after[name] is None or not torch.equal(grad, after[name])]
    expect(not moved, f"Correct numbers, but the gradients of {', '.join(moved)} have changed. Only read them.")
    return "Weight and bias together, nested blocks, and no gradient distinguished from a gradient of 0."


def judge_names(found: dict) -> None:
    layers = ["0", "2.0", "2.1", "3"]
    blocks = [name for name in found if name in ("", "2")]
    expect(not blocks, f"{blocks} are containers. With `recurse=False` a module lists its own parameters only.")
    expect("1" not in found, "'1' is a ReLU: it has no parameters, so it does not count as a layer here.")
    single = [name for name in found if str(name).endswith(("weight", "bias"))]
    expect(not single, f"{single[:2]} are single parameters. A layer's weight and bias count together, by its name.")
    expect(sorted(found) == layers, f"The net has the layers {layers}; your dict has {sorted(map(str, found))}.")


def judge_values(found: dict) -> None:
    expect(found["2.0"] is None, f"Layer '2.0' has no gradient at all: expected None, got {found['2.0']!r}.")
    expect(found["2.1"] is not None, "Layer '2.1' has a gradient of exactly 0. That is not the same as none.")
    first, together = float(torch.as_tensor(found["0"]).detach()), 51**0.5
    expect(abs(first - (24**0.5 + 27**0.5)) > 1e-3, "The norms of weight and bias were added. Their squares add up.")
    expect(abs(first - 24**0.5) > 1e-3, "Layer '0': this is the norm of the weight's gradient. The bias has one too.")
    expect(abs(first - 51.0) > 1e-3, "Layer '0': this is the sum of squares. A norm is its square root.")
    expect(
        abs(first - 21.0) > 1e-3, "Layer '0': this is the norm of the weights, which are all 7 here. Look at `.grad`."
    )
    expect_close(first, together, "Layer '0', six entries of 2 and three of 3")
    expect_close(found["2.1"], 0.0, "Layer '2.1', all entries 0")
    whole = "None is for layers without any gradient"
    expect(found["3"] is not None, f"Layer '3' has a gradient for its weight, though not for its frozen bias: {whole}.")
    expect_close(float(found["3"]) * 1e9, 6**0.5, "Layer '3', six entries of -1e-9, the norm times 1e9", 1e-3)


# --- 05.2 ---


def judge_gain(mine: Student) -> str:
    relu = float(mine.in_place(torch.relu))
    expect(
        abs(relu - 0.5**0.5) > 0.02,
        "For ReLU you got 0.71, the size of f(z). The gain is the factor that makes it 1 again.",
    )
    expect(abs(relu - 2.0) > 0.03, "For ReLU you got 2, which is He's variance. The gain is a standard deviation.")
    expect(
        abs(relu - 1.713) > 0.03,
        "For ReLU you got 1.71: one over the *standard deviation* of f(z). The mean of f(z) is passed to the "
        "next layer "
        "too, so take the root of the mean square.",
    )
    expect_close(relu, 2**0.5, "gain(torch.relu)", 0.01)
    expect_close(mine.in_place(lambda z: z), 1.0, "gain of the identity", 0.01)
    expect_close(mine.in_place(lambda z: -3 * z), 1 / 3, "gain of f(z) = -3z", 0.01)
    expect_close(mine.in_place(torch.ones_like), 1.0, "gain of f(z) = 1, which never varies", 0.01)
    expect_close(mine.in_place(torch.tanh), 1.593, "gain(torch.tanh)", 0.01)
    return "One number per activation, measured rather than looked up. For ReLU it is He's gain."


# --- 05.4: clip between backward() and step() ---

BROKEN, BRIGHT = 10, 100.0  # images of 2,000 that are nothing but noise, and how bright it is: digits have 1
# A norm of a batch with such an image, over the median of all. Over seeds 0 to 4 and 11 the largest is 21 to 62.
PEAK = 10.0


def small_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def some_broken(seed: int) -> Setting:
    """A net, its optimizer and a loader in which a few images are bright noise."""
    plain = images(small_net, lambda weights: torch.optim.SGD(weights, lr=0.1))(seed)
    model, optimizer, loader = plain.arguments
    x, y = loader.dataset.tensors
    order = torch.Generator().manual_seed(seed)
    x, chosen = x.clone(), torch.randperm(len(x), generator=order)[:BROKEN]
    x[chosen] = BRIGHT * torch.randn(x[chosen].shape, generator=order)
    broken = Batches(TensorDataset(x, y), batch_size=loader.batch_size, shuffle=True, generator=order)
    return Setting((model, optimizer, broken), plain.held_out)


def clipped_in_time(model, optimizer, loader) -> list[float]:
    norms = []
    for _ in range(5):
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
            optimizer.step()
    return norms


def judge_norms(outcome: Outcome) -> str:
    steps, mine = len(outcome.run), outcome.returned
    if not isinstance(mine, list | tuple) or len(mine) != steps:
        count = f"{len(mine)} values" if isinstance(mine, list | tuple) else short(mine)
        raise NotYet(f"It learns. Now return the norm before clipping of each of {steps} steps; you returned {count}.")
    norms = sorted(number(each, "a norm") for each in mine)
    median = norms[len(norms) // 2]
    expect(
        norms[-1] > 1.001,
        "It learns, but no norm is above 1, the threshold: these were taken after clipping, not before.",
    )
    expect(
        norms[-1] > PEAK * median,
        f"It learns, but the largest norm you returned, {norms[-1]:.3g}, is no peak: the median is {median:.3g}. "
        "`clip_grad_norm_` returns the norm of all gradients together, before it clips.",
    )
    return (
        f"{outcome.accuracy:.1%} correct although ten images are noise. The log shows them: the largest norm before "
        f"clipping is {norms[-1]:,.0f}, the median {median:.2g}."
    )


# --- 05.6: a sigmoid net that computes what a tanh net computes ---


def judge_as_sigmoids(mine: Student) -> str:
    draw = torch.Generator().manual_seed(0)
    shapes = ((5, 4), (6, 5), (3, 6))
    weights = [torch.randn(shape, generator=draw) / 2 for shape in shapes]
    biases = [torch.randn(shape[0], generator=draw) / 2 for shape in shapes]
    found = mine(weights, biases)
    if not isinstance(found, list | tuple) or len(found) != 2 or any(len(part) != len(shapes) for part in found):
        raise NotYet(f"Expected two lists of {len(shapes)}, the weights and the biases, got {short(found)}.")
    x = torch.randn((20, 4), generator=draw)
    for depth in range(1, len(shapes)):  # layer by layer, so that the first wrong one is named
        inner = _signals(x, found, torch.sigmoid)[depth]
        wanted = (1 + _signals(x, (weights, biases), torch.tanh)[depth]) / 2
        expect_close(inner, wanted, f"The outputs of sigmoid layer {depth}, which should be (1 + tanh) / 2", 1e-4)
    expect_close(
        _signals(x, found, torch.sigmoid)[-1],
        _signals(x, (weights, biases), torch.tanh)[-1],
        "The outputs of the last layer, which has no activation",
        1e-4,
    )
    return "The same function. The sigmoid was never the problem: the weights that one usually draws for it are."


def _signals(x, net, activation) -> list[torch.Tensor]:
    """The inputs, what each hidden layer passes on, and the outputs."""
    weights, biases = net
    found = [x]
    for place, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        z = found[-1] @ weight.T + bias
        found.append(z if place == len(weights) - 1 else activation(z))
    return found


# --- 05.3 is a cure, 05.5 a diagnosis ---

predictions = (
    prediction(
        "05.0",
        correct=3,
        why="Each sigmoid layer multiplies the gradient by about 0.23, and 0.23 to the power of nine is two "
        "millionths. (The first layer ends at some hundred-thousandths, because it has more inputs than the others.) "
        "The loss does not fall slowly: it stays where guessing is.",
        wrong={1: "That is what the tanh net loses.", 2: "That is about what four sigmoid layers lose."},
    ),
)

exercises = (
    build(
        "05.1",
        "A gradient logger",
        judge_layer_norms,
        example="layer_norms(net)",
        points=3,
        hints=(
            "Loop over net.named_modules(), and keep those with parameters of their own.",
            "The norm of several tensors together is that of one long vector: flatten each, torch.cat, .norm().",
            "`weight.grad is None` means no gradient. If that holds for all parameters of a layer, its value is None.",
        ),
    ),
    build(
        "05.2",
        "The gain of an activation",
        judge_gain,
        example="gain(f)",
        points=2,
        hints=(
            "Draw z = torch.randn(100_000), and measure how large f(z) is.",
            "Measure the root mean square, not the standard deviation, which subtracts the mean.",
            "If f(z) has the size 0.71, weights 1 / 0.71 times as large compensate for it.",
        ),
    ),
    cure(
        "05.3",
        "Ten sigmoid layers that learn",
        "vanishing_gradients",
        keep=("activation", "depth"),
        seeds=(11,),
        points=3,
        hints=(
            "Look at both ends of the eight nets again: in which sigmoid nets are they close together?",
            "A layer that divides each unit by its standard deviation over the batch divides the gradient by it too.",
            "Batch normalisation restores the gradients. For the last two points of accuracy, train faster and then "
            "anneal: momentum, and a schedule that ends at 0.",
        ),
    ),
    loop(
        "05.4",
        "Clip where it counts",
        some_broken,
        clipped_in_time,
        example="train_clipped(model, optimizer, loader)",
        also=judge_norms,
        points=3,
        hints=(
            "What does `optimizer.step()` use: the gradients before clipping, or after it?",
            "zero_grad, loss, backward, clip, step. In the loop you were given, the clipped gradients are cleared "
            "before anybody uses them.",
            "norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()), between backward() and step().",
        ),
    ),
    diagnose(
        "05.5",
        "One loss that does not move",
        failure="vanishing_gradients",
        place=("layer1", "layer2"),
        evidence={"grad_norm": SMALLEST, "grad_ratio": None},
        wrong={
            "clipping_too_tight": "not one of its steps was clipped.",
            "dead_relu": "small is not 0: look at the bars from the last layer to the first.",
            "learning_rate_too_low": "then all layers would have ordinary gradients. Compare the first and the last.",
            "zero_init": "then the gradients of all layers but the last would be exactly 0.",
        },
        because="The gradients shrink by the same factor at every layer, from 0.35 at the output to a few "
        "millionths at the input. Nothing was clipped and nothing is exactly 0.",
        points=3,
        hints=(
            "Three questions: was it clipped? is a gradient exactly 0? are the first and last gradients alike?",
            "Gradients that shrink along a straight line on a log axis have a name of their own.",
            'np.median(run["grad_norm"], axis=0) has one number per layer. The smallest one and its layer are asked.',
        ),
    ),
    build(
        "05.6",
        "Hard: sigmoids that behave like tanh",
        judge_as_sigmoids,
        example="as_sigmoids(weights, biases)",
        points=0,
        hints=(
            "tanh(u) = 2 s(2u) - 1, where s is the sigmoid. What has to stand in its argument?",
            "Hidden layers after the first receive s = (1 + h) / 2 instead of h. Put h = 2 s - 1 into W h + b.",
            "W h + b = 2 W s + (b - W 1). For hidden layers double all of that once more; for the last do not.",
        ),
    ),
)
