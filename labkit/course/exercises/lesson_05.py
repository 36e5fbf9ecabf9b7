"""Exercises of lesson 05, vanishing and exploding gradients; and its sealed patients."""

import torch
from torch import nn

from labkit.course.grading import Student, build, cure, expect, expect_close, explain, sealed_runs
from labkit.recording.run import Run

# --- the sealed patients of 05.4: four losses that do not move ---

SEALED = {
    "A": "clipping_too_tight",
    "B": "dead_relu",
    "C": "learning_rate_too_low",
    "D": "vanishing_gradients",
}
# Stronger than in the mode's own recipe, so that these losses do not move within 100 steps.
HARDER = {"A": {"clip": 1e-5}, "D": {"depth": 8, "init": "default"}}


def patients() -> dict[str, Run]:
    """Four runs, named by letters. The student finds which failure each one shows."""
    return sealed_runs(SEALED, HARDER, steps=100, evaluate_every=20)


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


# --- 05.3 is a cure, 05.4 the evidence ---

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
        points=4,
        hints=(
            "Look at the table of first and last gradients again: which sigmoid net had a ratio near 1?",
            "A layer that centres and rescales each unit over the batch keeps a sigmoid in its steepest range.",
            "Batch normalisation restores the gradients. For the last two points of accuracy, train faster and then "
            "anneal: momentum, and a schedule that ends at 0.",
        ),
    ),
    explain(
        "05.4",
        "Four losses that do not move",
        modes=tuple(SEALED.values()),
        points=5,
        right=SEALED | {"learns least": "the first layers"},
        because="A's gradients are healthy and clipped at every step; B's hidden layers get exactly 0; C's are healthy "
        "and not clipped, but its learning rate is tiny; D's shrink layer by layer, so the first layers hardly move.",
        wrong={
            "A": {
                "dead_relu": "its gradients are of normal size in every layer. Dead layers pass back exactly 0.",
                "learning_rate_too_low": "the updates are tiny, but look at the share of clipped steps first.",
                "vanishing_gradients": "its first layer has as large a gradient as its last.",
            },
            "B": {
                "clipping_too_tight": "not one of its steps was clipped.",
                "learning_rate_too_low": "the learning rate does not change gradients. Which of its layers have "
                "any at all?",
                "vanishing_gradients": "vanishing gradients are small, and shrink from layer to layer. These are 0.",
            },
            "C": {
                "clipping_too_tight": "not one of its steps was clipped.",
                "dead_relu": "its gradients are of normal size in every layer. Dead layers pass back exactly 0.",
                "vanishing_gradients": "its first layer has as large a gradient as its last.",
            },
            "D": {
                "clipping_too_tight": "not one of its steps was clipped.",
                "dead_relu": "small is not 0: look at the numbers from the last layer to the first.",
                "learning_rate_too_low": "then all layers would have normal gradients. Compare its first and last.",
            },
            "learns least": {
                "the last layers": "the last layer is next to the loss: nothing in between shrinks its gradient.",
                "all alike": "compare update / weight of its layers: they are powers of ten apart.",
            },
        },
        hints=(
            "Three questions for each: is it clipped? is a gradient exactly 0? are the first and last gradients "
            "similar?",
            "Only one was clipped, and only one has zeros. Two remain.",
            "Of these, one has normal gradients in all layers; in the other they shrink by powers of ten.",
        ),
    ),
)
