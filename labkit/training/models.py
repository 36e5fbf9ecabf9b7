"""Small nets, each a function of a recipe and its data."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from labkit.errors import RecipeError
from labkit.recording.meters import AttentionWeights

if TYPE_CHECKING:
    from collections.abc import Callable

    from labkit.training.data import Data
    from labkit.training.recipe import Recipe

    Norm = Callable[[int], nn.Module]  # makes the normalisation for n features

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "identity": nn.Identity,
}
NORMALISATIONS = ("none", "batch", "layer")
INITS = ("default", "he", "xavier", "orthogonal", "normal", "zero", "constant")


def mlp(recipe: Recipe, data: Data) -> nn.Module:
    """A multi-layer perceptron of `depth` linear layers, `width` units in each hidden one."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    features = math.prod(data.train.x.shape[1:])
    for number in range(1, recipe.depth):
        block = _hidden(recipe, number, nn.Linear(features, recipe.width), nn.LayerNorm, nn.BatchNorm1d)
        if recipe.residual and features == recipe.width:
            layers[f"block{number}"] = Residual(nn.Sequential(block))
        else:
            layers |= block
        features = recipe.width
    layers[f"layer{recipe.depth}"] = nn.Linear(features, data.classes)
    return initialise(nn.Sequential(layers), recipe)


def convnet(recipe: Recipe, data: Data) -> nn.Module:
    """`depth - 1` strided convolutions, `width` channels in the first and doubled in each next, then a linear layer."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels, side = data.train.x.shape[1], data.train.x.shape[2]
    for number in range(1, recipe.depth):
        wider = recipe.width * 2 ** (number - 1)
        kernel = 5 if number == 1 else 3
        convolution = nn.Conv2d(channels, wider, kernel, stride=2, padding=kernel // 2)
        layers |= _hidden(recipe, number, convolution, lambda c: nn.GroupNorm(1, c), nn.BatchNorm2d)
        channels, side = wider, math.ceil(side / 2)
    layers["flatten"] = nn.Flatten()
    layers[f"layer{recipe.depth}"] = nn.Linear(channels * side * side, data.classes)
    return initialise(nn.Sequential(layers), recipe)


def rnn(recipe: Recipe, data: Data) -> nn.Module:
    """A plain recurrent net that reads an image row by row, then a linear layer on its last state."""
    if recipe.activation not in ("relu", "tanh"):
        raise RecipeError(f"rnn knows activation 'relu' or 'tanh', not {recipe.activation!r}; use one of these two")
    return initialise(RowReader(recipe, data), recipe)


def vit(recipe: Recipe, data: Data) -> nn.Module:
    """A small pre-norm vision transformer over 4 x 4 patches, `depth` blocks of `width` features."""
    if recipe.width % recipe.heads:
        raise RecipeError(f"width {recipe.width} must be a multiple of heads {recipe.heads}; change one of the two")
    return initialise(VisionTransformer(recipe, data), recipe)


def _hidden(
    recipe: Recipe, number: int, linear: nn.Linear | nn.Conv2d, layer_norm: Norm, batch_norm: Norm
) -> OrderedDict[str, nn.Module]:
    """One hidden block: linear, then normalisation, activation and dropout as the recipe says."""
    width = linear.weight.shape[0]
    stage: OrderedDict[str, nn.Module] = OrderedDict({f"layer{number}": linear})
    if recipe.normalisation != "none":
        stage[f"norm{number}"] = batch_norm(width) if recipe.normalisation == "batch" else layer_norm(width)
    stage[f"{recipe.activation}{number}"] = ACTIVATIONS[recipe.activation]()
    if recipe.dropout:
        stage[f"dropout{number}"] = nn.Dropout(recipe.dropout)
    return stage


def initialise(model: nn.Module, recipe: Recipe) -> nn.Module:
    """Initialise the weights as the recipe's `init` and `init_scale` say; the default is PyTorch's own."""
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            if weight.ndim >= 2 and not name.startswith("position"):
                _draw(weight, recipe.init, recipe.init_scale, recurrent=name == "weight_hh_l0")
            elif name.startswith("bias") and recipe.init not in ("default", "orthogonal"):
                nn.init.zeros_(weight)
    return model


@torch.no_grad()
def _draw(weight: torch.Tensor, init: str, scale: float, recurrent: bool) -> None:
    match init:
        case "he":
            nn.init.kaiming_normal_(weight, nonlinearity="relu")
        case "xavier":
            nn.init.xavier_normal_(weight)
        case "orthogonal":
            if recurrent:  # the usual choice for the recurrent matrix alone; the scale does not apply elsewhere
                nn.init.orthogonal_(weight, gain=scale)
            return
        case "normal":
            nn.init.normal_(weight)
        case "zero":
            nn.init.zeros_(weight)
        case "constant":
            nn.init.ones_(weight)
    weight.mul_(scale)


class Residual(nn.Module):
    """x + block(x)."""

    def __init__(self, block: nn.Module):
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


class RowReader(nn.Module):
    def __init__(self, recipe: Recipe, data: Data):
        super().__init__()
        channels, _, columns = data.train.x.shape[1:]
        self.rnn = nn.RNN(channels * columns, recipe.width, nonlinearity=recipe.activation, batch_first=True)
        self.head = nn.Linear(recipe.width, data.classes)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.permute(0, 2, 1, 3).flatten(2)  # (image, row, channel x column)
        states, _ = self.rnn(rows)
        return self.head(states[:, -1])


class VisionTransformer(nn.Module):
    def __init__(self, recipe: Recipe, data: Data):
        super().__init__()
        channels, side = data.train.x.shape[1], data.train.x.shape[2]
        self.patch = side // 4  # 16 patches: 7 x 7 pixels on MNIST, 8 x 8 on CIFAR-10
        self.embed = nn.Linear(channels * self.patch**2, recipe.width)
        self.position = nn.Parameter(0.02 * torch.randn(1, 16, recipe.width))  # 0.02: the usual ViT value
        self.blocks = nn.Sequential(*(Block(recipe) for _ in range(recipe.depth)))
        self.norm = nn.LayerNorm(recipe.width)
        self.head = nn.Linear(recipe.width, data.classes)

    def forward(self, x: Tensor) -> Tensor:
        patches = nn.functional.unfold(x, self.patch, stride=self.patch).transpose(1, 2)
        tokens = self.blocks(self.embed(patches) + self.position)
        return self.head(self.norm(tokens).mean(1))


class Block(nn.Module):
    def __init__(self, recipe: Recipe):
        super().__init__()
        width = recipe.width
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, recipe.heads)
        self.layer1, self.layer2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.act, self.dropout = ACTIVATIONS[recipe.activation](), nn.Dropout(recipe.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.dropout(self.layer2(self.act(self.layer1(self.norm2(x)))))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.weights = AttentionWeights()
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self._split(part(x)) for part in (self.query, self.key, self.value))
        return self.out((self.weights(query, key) @ value).transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)  # (image, head, token, feature)
