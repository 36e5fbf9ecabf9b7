"""The hunt for the first NaN, on anybody's model: where it was, on which samples, and nothing disturbed."""

import functools
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from labkit.recording.nan_hunt import hunt


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(10, 6, generator=generator), torch.randint(3, (10,), generator=generator)


def backpropagated(model, x, y):
    cross_entropy(model(x), y).backward()
    return model


def test_a_healthy_model_has_nothing_to_find(batch):
    assert hunt(backpropagated(net(), *batch), *batch, cross_entropy) is None
    assert hunt(net()) is None


def test_weights_come_first(batch):
    model = backpropagated(net(), *batch)
    with torch.no_grad():
        model[4].weight[1, :2] = math.inf
    found = hunt(model, *batch, cross_entropy)
    assert found == {"stage": "weights", "place": "4.weight", "count": 2, "nan": 0, "dtype": "float32"}


def test_buffers_count_as_weights(batch):
    model = net()
    model[1].running_var[3] = math.nan
    found = hunt(model, *batch, cross_entropy)
    assert (found["stage"], found["place"], found["count"]) == ("weights", "1.running_var", 1)


def test_inputs_are_named_by_sample(batch):
    x, y = batch
    x[3, 0], x[7, 2] = math.nan, math.inf
    found = hunt(net(), x, y, cross_entropy)
    assert (found["stage"], found["place"], found["dtype"]) == ("inputs", "batch", "float32")
    assert (found["count"], found["nan"], found["samples"]) == (2, 1, [3, 7])
    assert found["share"] == pytest.approx(1 / 6)


class Logarithm(nn.Module):
    def forward(self, x):
        return torch.log(x)


def test_the_first_activation_is_named_and_not_those_it_spoils(batch):
    x, y = batch
    model = nn.Sequential(nn.Identity(), Logarithm(), nn.Linear(6, 3))
    found = hunt(model, x, y, cross_entropy)
    negative = (x <= 0).any(1).nonzero().flatten().tolist()
    assert (found["stage"], found["place"], found["count"]) == ("activations", "1", int((x <= 0).sum()))
    assert found["samples"] == negative[:10]


def test_an_overflow_in_half_precision_is_shown_in_float32(batch):
    x, y = batch
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    with torch.no_grad():
        model[0].weight.fill_(1e4)
        model[0].bias.zero_()
    autocast = functools.partial(torch.autocast, "cpu", torch.float16)
    x = x.abs() + 2
    found = hunt(model, x, y, cross_entropy, autocast)
    assert (found["stage"], found["place"], found["dtype"]) == ("activations", "0", "float16")
    assert found["float32"] == pytest.approx(model[0](x).abs().max().item(), rel=1e-3)
    assert found["float32"] > 65504
    assert set(found["float32_sizes"]) == {"0", "1"}
    assert hunt(model, x, y, cross_entropy) is None  # nothing is wrong with it in float32


def test_the_loss_is_named(batch):
    def broken_loss(outputs, targets):
        return cross_entropy(outputs, targets) * math.inf

    found = hunt(net(), *batch, broken_loss)
    assert (found["stage"], found["place"], found["count"], found["nan"]) == ("loss", "broken_loss", 1, 0)
    assert found["largest"][0] is None  # no sample is fine
    assert hunt(net(), *batch) is None  # it was not asked to look there


def test_it_says_up_to_which_outputs_a_loss_holds():
    """exp of more than 88.7 is infinite in float32; behind: how far the right class is below the largest."""

    def by_hand(outputs, targets):
        shares = outputs.exp() / outputs.exp().sum(1, keepdim=True)
        return -shares.gather(1, targets[:, None]).log().mean()

    x = torch.tensor([[1.0, 3.0], [80.0, 0.0], [90.0, 0.0], [-1.0, 100.0]])
    found = hunt(nn.Linear(2, 2), x, torch.tensor([0, 0, 0, 0]), by_hand)
    assert found is None
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.eye(2))
        model.bias.zero_()
    found = hunt(model, x, torch.tensor([0, 0, 0, 0]), by_hand)
    assert (found["stage"], found["place"], found["nan_losses"]) == ("loss", "by_hand", 1)
    assert (found["largest"], found["behind"]) == ([80, 90, 100], [2, 0, 101])
    one_wide = hunt(model, x, torch.tensor([0.0, 0.0, 0.0, 0.0]), lambda outputs, _: outputs.exp().sum())
    assert "largest" not in one_wide  # targets that are no classes


def test_a_finite_loss_whose_gradient_is_not_is_caught_at_the_outputs():
    """Behind by 95, the share of the right class is 5e-42: its logarithm is fine, 1 divided by it is infinite."""

    def by_hand(outputs, targets):
        return -outputs.softmax(1).gather(1, targets[:, None]).log().mean()

    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.eye(2))
        model.bias.zero_()
    found = hunt(model, torch.tensor([[95.0, 0.0], [50.0, 0.0]]), torch.tensor([1, 1]), by_hand)
    assert (found["stage"], found["place"], found["samples"]) == ("gradients", "outputs", [0])
    assert (found["behind"], found["nan_losses"]) == ([50, 95, 95], 0)


def test_a_module_that_was_given_a_constant_is_told_apart():
    class Standardise(nn.Module):
        def forward(self, x):
            return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)

    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    x[2] = 7.0
    found = hunt(nn.Sequential(Standardise(), nn.Linear(6, 3)), x)
    assert (found["place"], found["samples"], found["share"], found["spread"]) == ("0", [2], 1.0, 0.0)
    x[2] = 1e38
    x[2, 0] = 0.0
    assert hunt(nn.Sequential(Standardise(), nn.Linear(6, 3)), x)["spread"] == pytest.approx(1e38)


def test_a_loss_is_computed_in_the_precision_of_the_training():
    """40,000 and -40,000 fit into float16, their difference does not; under autocast the loss is float32."""
    x, y = torch.tensor([[40_000.0, -40_000.0]]), torch.tensor([1])
    autocast = functools.partial(torch.autocast, "cpu", torch.float16)

    class Half(nn.Linear):
        def forward(self, x):
            return x.half()

    assert hunt(Half(2, 2), x, y, cross_entropy, autocast) is None
    assert hunt(Half(2, 2), x, y, cross_entropy)["stage"] == "loss"


def test_of_several_gradients_the_one_nearest_the_loss_is_named(batch):
    model = backpropagated(net(), *batch)
    model[0].weight.grad[0, 0] = math.nan
    model[4].weight.grad[2, 1] = math.inf
    found = hunt(model, *batch, cross_entropy)
    assert (found["stage"], found["place"], found["count"], found["nan"]) == ("gradients", "4.weight", 1, 0)
    assert found["weight"] == pytest.approx(model[4].weight.abs().max().item())


def test_the_hunt_changes_nothing(batch):
    x, y = batch
    model = backpropagated(net(), x, y)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    gradients = [weight.grad.clone() for weight in model.parameters()]
    state = torch.get_rng_state()
    x[0, 0] = 1e30  # so that it also looks how large everything is
    model.append(Logarithm())
    assert hunt(model, x, y, cross_entropy)["stage"] == "activations"
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(torch.equal(*pair) for pair in zip(gradients, (w.grad for w in model.parameters()), strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks for module in model.modules())


def test_hooks_and_buffers_are_put_back_when_the_model_fails(batch):
    class Failing(nn.Module):
        def forward(self, x):
            raise ZeroDivisionError

    model = net().append(Failing())
    before = model[1].running_mean.clone()
    with pytest.raises(ZeroDivisionError):
        hunt(model, *batch, cross_entropy)
    assert torch.equal(model[1].running_mean, before)
    assert not any(module._forward_hooks for module in model.modules())


# --- foreign models -------------------------------------------------------------------------------


def test_a_function_between_the_modules_is_found_in_the_outputs(batch):
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x):
            return torch.log(self.layer(x) - 100)

    found = hunt(Functional(), *batch, cross_entropy)
    assert (found["stage"], found["place"], found["count"]) == ("activations", "outputs", 30)


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent_layers_return_more_than_one_thing(kind):
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.reader, self.head = kind(4, 5, batch_first=True), nn.Linear(5, 2)

        def forward(self, x):
            return self.head(self.reader(x)[0][:, -1])

    assert hunt(Reader(), torch.randn(3, 7, 4), torch.tensor([0, 1, 1]), cross_entropy) is None


def test_a_plain_recurrent_layer_that_overflows_is_named():
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.reader = nn.RNN(4, 5, batch_first=True, nonlinearity="relu")

        def forward(self, x):
            return self.reader(x)[0][:, -1]

    model = Reader()
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(1e30)
    found = hunt(model, torch.ones(3, 7, 4), torch.tensor([0, 1, 1]), cross_entropy)
    assert (found["stage"], found["place"], found["samples"]) == ("activations", "reader", [0, 1, 2])


def test_outputs_of_one_number_per_sample(batch):
    class Column(nn.Module):
        def forward(self, x):
            return torch.log(x.squeeze(1))

    model = nn.Sequential(nn.Linear(6, 1), Column())
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.fill_(-1)
    found = hunt(model, batch[0], torch.randn(10), mse_loss)
    assert (found["stage"], found["place"], found["samples"]) == ("activations", "1", list(range(10)))


def test_outputs_of_one_number_in_all(batch):
    class Mean(nn.Module):
        def forward(self, x):
            return torch.log(-x.abs().mean())

    found = hunt(nn.Sequential(nn.Linear(6, 1), Mean()), batch[0])
    assert (found["stage"], found["place"], found["count"]) == ("activations", "1", 1)


def test_modules_that_return_no_tensor_are_passed_over(batch):
    class Described(nn.Module):
        def forward(self, x):
            return {"x": x, "mask": x > 0}

    class Undescribed(nn.Module):
        def forward(self, described):
            return torch.log(described["x"] - 100)

    found = hunt(nn.Sequential(nn.Linear(6, 3), Described(), Undescribed()), batch[0])
    assert (found["stage"], found["place"]) == ("activations", "2")


def test_words_are_no_bad_numbers():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 2))
    assert hunt(model, torch.randint(10, (5, 3)), torch.randint(2, (5,)), cross_entropy) is None


def test_a_loss_object_is_named_by_its_class(batch):
    class Infinite(nn.Module):
        def forward(self, outputs, targets):
            return outputs.sum() * math.inf

    assert hunt(net(), *batch, Infinite())["place"] == "Infinite"
