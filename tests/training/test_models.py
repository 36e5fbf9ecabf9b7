"""The nets: their shapes, layers and names, how their weights are drawn, and what they compute."""

import math
from types import SimpleNamespace

import pytest
import torch
from helpers import tiny, trained
from torch import nn

from labkit.recording.meters import AttentionWeights
from labkit.training import models
from labkit.training.models import ACTIVATIONS, INITS, NORMALISATIONS
from labkit.training.recipe import Recipe, RecipeError


def shaped(channels: int, side: int) -> SimpleNamespace:
    return SimpleNamespace(train=SimpleNamespace(x=torch.zeros(1, channels, side, side)), classes=10)


DIGITS, PHOTOS = shaped(1, 28), shaped(3, 32)
NETS = ("mlp", "convnet", "rnn", "vit")


def made(data=DIGITS, seed: int = 0, **knobs) -> nn.Module:
    recipe = Recipe(**{"width": 8, "activation": "tanh"} | knobs)
    torch.manual_seed(seed)
    return recipe.model(recipe, data)


@pytest.mark.parametrize("data", [DIGITS, PHOTOS], ids=["mnist", "cifar10"])
@pytest.mark.parametrize("model", NETS)
def test_every_net_turns_images_into_one_score_per_class(model, data):
    net = made(data, model=model, depth=3)
    images = torch.randn(5, *data.train.x.shape[1:])
    assert net(images).shape == (5, 10)
    net.eval()
    torch.testing.assert_close(net(images)[:2], net(images[:2]))  # images do not look at each other


def test_depth_counts_the_layers_with_weights():
    for model, depth in (("mlp", 1), ("mlp", 2), ("mlp", 10), ("convnet", 1), ("convnet", 4)):
        layers = [each for each in made(model=model, depth=depth).modules() if isinstance(each, nn.Linear | nn.Conv2d)]
        assert len(layers) == depth
    assert len(made(model="vit", depth=3).blocks) == 3


def test_the_layers_of_a_perceptron_and_their_names():
    net = made(depth=3, width=20, activation="relu", normalisation="batch", dropout=0.5)
    names = "flatten layer1 norm1 relu1 dropout1 layer2 norm2 relu2 dropout2 layer3"
    assert [name for name, _ in net.named_children()] == names.split()
    assert [tuple(net.get_submodule(f"layer{n}").weight.shape) for n in (1, 2, 3)] == [(20, 784), (20, 20), (10, 20)]
    assert net.dropout1.p == 0.5


def test_the_channels_of_a_convnet_double_while_its_pictures_halve():
    net = made(model="convnet", depth=4, width=6)
    shapes = [tuple(net.get_submodule(f"layer{n}").weight.shape) for n in (1, 2, 3, 4)]
    assert shapes == [(6, 1, 5, 5), (12, 6, 3, 3), (24, 12, 3, 3), (10, 24 * 4 * 4)]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_is_the_one_named(activation):
    net = made(depth=3, activation=activation)
    assert (
        type(net.get_submodule(f"{activation}1"))
        is type(net.get_submodule(f"{activation}2"))
        is ACTIVATIONS[activation]
    )


@pytest.mark.parametrize("model", ["mlp", "convnet"])
@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_every_normalisation_stands_before_the_activation(model, normalisation):
    net = made(model=model, depth=3, normalisation=normalisation, activation="relu").train()
    found = {}
    net.relu1.register_forward_hook(lambda _, inputs, __: found.update(x=inputs[0]))
    net(3 + 5 * torch.randn(64, 1, 28, 28))
    axes = {"none": None, "batch": (0, *range(2, found["x"].ndim)), "layer": tuple(range(1, found["x"].ndim))}
    if normalisation == "none":
        assert not any("norm" in name for name, _ in net.named_children())
    else:
        mean, std = found["x"].mean(axes[normalisation]), found["x"].std(axes[normalisation], correction=0)
        torch.testing.assert_close(mean, torch.zeros_like(mean), atol=1e-4, rtol=0)
        torch.testing.assert_close(std, torch.ones_like(std), atol=1e-2, rtol=0)


def test_residuals_skip_the_hidden_layers_that_keep_the_width():
    net = made(depth=4, width=20, residual=True, activation="relu")
    assert [name for name, _ in net.named_children()] == ["flatten", "layer1", "relu1", "block2", "block3", "layer4"]
    x = torch.randn(3, 20)
    torch.testing.assert_close(net.block2(x), x + torch.relu(net.block2.block.layer2(x)))


# --- how the weights are drawn --------------------------------------------------------------------


def first_weights(**knobs) -> torch.Tensor:
    return made(width=400, **knobs).layer1.weight.detach()


@pytest.mark.parametrize(
    ("init", "std"),
    [
        ("default", 1 / math.sqrt(3 * 784)),  # uniform within 1 / sqrt(inputs)
        ("orthogonal", 1 / math.sqrt(3 * 784)),  # for the recurrent matrix alone
        ("he", math.sqrt(2 / 784)),
        ("xavier", math.sqrt(2 / (784 + 400))),
        ("normal", 1.0),
    ],
)
def test_every_random_init_has_its_spread(init, std):
    weights = first_weights(init=init)
    assert weights.mean().item() == pytest.approx(0, abs=0.02 * std)
    assert weights.std().item() == pytest.approx(std, rel=0.01)


@pytest.mark.parametrize("init", INITS)
def test_the_scale_multiplies_the_draw(init):
    factor = 1.0 if init == "orthogonal" else 3.0
    torch.testing.assert_close(first_weights(init=init, init_scale=3.0), factor * first_weights(init=init))


def test_zero_and_constant_are_what_they_say():
    assert first_weights(init="zero").unique().tolist() == [0]
    assert first_weights(init="constant", init_scale=0.25).unique().tolist() == [0.25]


@pytest.mark.parametrize("model", NETS)
@pytest.mark.parametrize("init", INITS)
def test_biases_start_at_zero_unless_the_draw_is_pytorchs_own(model, init):
    biases = [weight for name, weight in made(model=model, init=init).named_parameters() if "bias" in name]
    drawn = [bias.abs().max().item() > 0 for bias in biases]
    assert any(drawn) == (init in ("default", "orthogonal"))


def test_the_default_init_is_pytorchs_own_draw():
    torch.manual_seed(3)
    theirs = nn.Linear(784, 8)
    assert torch.equal(made(seed=3).layer1.weight, theirs.weight)
    assert torch.equal(made(seed=3).layer1.bias, theirs.bias)


def test_orthogonal_is_the_recurrent_matrix_times_the_scale():
    net = made(model="rnn", width=16, init="orthogonal", init_scale=0.5)
    recurrent = net.rnn.weight_hh_l0
    torch.testing.assert_close(recurrent @ recurrent.T, 0.25 * torch.eye(16), atol=1e-5, rtol=0)
    assert torch.equal(net.rnn.weight_ih_l0, made(model="rnn", width=16).rnn.weight_ih_l0)


def test_the_position_of_a_transformer_is_no_weight_matrix():
    net = made(model="vit", init="zero", width=64)
    assert net.position.std().item() == pytest.approx(0.02, rel=0.1)
    assert net.head.weight.abs().max() == 0


# --- what they compute ----------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_the_recurrent_net_reads_row_by_row(activation):
    net = made(PHOTOS, model="rnn", activation=activation)
    images = torch.randn(2, 3, 32, 32)
    state = torch.zeros(2, 8)
    for row in range(32):
        pixels = images[:, :, row].flatten(1)  # channel x column
        into = pixels @ net.rnn.weight_ih_l0.T + net.rnn.bias_ih_l0
        state = getattr(torch, activation)(into + state @ net.rnn.weight_hh_l0.T + net.rnn.bias_hh_l0)
    torch.testing.assert_close(net(images), net.head(state), atol=1e-5, rtol=1e-4)


def test_attention_is_a_softmax_over_scaled_products():
    query, key = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5)
    weights = AttentionWeights()(query, key)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 4))
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) / math.sqrt(5)
    torch.testing.assert_close(weights, scores.exp() / scores.exp().sum(-1, keepdim=True))


def test_attention_is_that_of_torch():
    attention = models.Attention(8, heads=2)
    theirs = nn.MultiheadAttention(8, 2, batch_first=True)
    with torch.no_grad():
        inputs = (attention.query, attention.key, attention.value)
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in inputs]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in inputs]))
        theirs.out_proj.load_state_dict(attention.out.state_dict())
    x = torch.randn(3, 16, 8)
    torch.testing.assert_close(attention(x), theirs(x, x, x, need_weights=False)[0])


@pytest.mark.parametrize("data", [DIGITS, PHOTOS], ids=["mnist", "cifar10"])
def test_a_transformer_sees_sixteen_patches(data):
    net = made(data, model="vit")
    channels, side = data.train.x.shape[1:3]
    seen = {}
    net.embed.register_forward_hook(lambda _, inputs, __: seen.update(x=inputs[0]))
    image = torch.randn(1, channels, side, side)
    net(image)
    quarter = side // 4
    assert seen["x"].shape == (1, 16, channels * quarter**2)
    torch.testing.assert_close(seen["x"][0, 5], image[0, :, quarter : 2 * quarter, quarter : 2 * quarter].flatten())


def test_what_a_net_cannot_do_is_said():
    with pytest.raises(RecipeError, match="rnn knows activation 'relu' or 'tanh', not 'gelu'"):
        made(model="rnn", activation="gelu")
    with pytest.raises(RecipeError, match="width 8 must be a multiple of heads 3"):
        made(model="vit", heads=3)


@pytest.mark.parametrize(
    "knobs",
    [
        {"model": "convnet", "depth": 3, "width": 4},
        {"model": "convnet", "depth": 3, "width": 4, "normalisation": "layer"},
        {"model": "rnn", "activation": "tanh", "optimizer": "adam", "lr": 0.01, "width": 48},
        {"model": "vit", "depth": 1, "width": 16, "optimizer": "adam", "lr": 0.003},
        {"depth": 4, "normalisation": "batch", "dropout": 0.2, "residual": True},
        {"depth": 4, "normalisation": "layer", "activation": "silu"},
    ],
    ids=lambda knobs: "-".join(map(str, knobs.values())),
)
def test_every_net_learns(knobs):
    run = trained(tiny(samples=200, steps=30, lr=0.05, batch_size=50, evaluate_every=0).but(**knobs))
    assert run["loss"][-5:].mean() < 0.9 * run["loss"][:3].mean()
