"""Around anybody's own loop: the same run as ours, nothing changed, no hook left behind."""

import copy
import types

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import labkit
from labkit.diagnosis.watch import (
    USUAL_LOSSES,
    Alarm,
    Watch,
    bare,
    log_likelihood,
    recorded_loss,
    usual_loss,
    watch,
    yes_or_no_of_probabilities,
)
from labkit.recording.meters import WeightMeter
from labkit.recording.recorder import Recorder
from labkit.training.data import load
from labkit.training.loop import train
from labkit.training.recipe import Recipe

X, Y = (part[:512] for part in load("mnist", "train"))


def net(seed: int = 0, hidden=nn.ReLU) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 16), hidden(), nn.Linear(16, 10))


def batches(count: int, size: int = 32):
    order = torch.Generator().manual_seed(0)
    for _ in range(count):
        chosen = torch.randperm(len(Y), generator=order)[:size]
        yield X[chosen], Y[chosen]


def plain_loop(model, optimizer, steps: int = 20, record=None, loss_fn=cross_entropy):
    for x, y in batches(steps):
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        if record:
            record.step(loss, batch=(x, y))


def weights(model) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
def test_the_loop_is_not_changed_by_a_bit(every, make):
    plain, seen = net(), net()
    plain_loop(plain, make(plain.parameters(), lr=0.01))
    torch.manual_seed(3)
    state = torch.get_rng_state()
    optimizer = make(seen.parameters(), lr=0.01)
    with watch(seen, optimizer, probe=(X[:64], Y[:64]), every=every) as record:
        plain_loop(seen, optimizer, record=record)
        record.validation(loss=1.0, accuracy=0.5)
    assert torch.equal(weights(plain), weights(seen))
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in seen.modules())
    assert not optimizer._optimizer_step_pre_hooks
    assert record.run["step"].tolist() == list(range(0, 20, every))


def test_it_records_what_our_own_loop_records():
    recipe = Recipe(samples=512, batch_size=32, width=16, steps=12, momentum=0.0, device="cpu")
    ours = train(recipe, progress=False)
    from labkit.training.loop import Training

    training = Training(recipe)
    order = torch.Generator().manual_seed(recipe.seed)
    theirs = iter(recipe.batches(training.data.train, recipe, order))
    model, optimizer = training.model, torch.optim.SGD(training.model.parameters(), lr=0.1)
    with watch(model, optimizer) as record:
        for _ in range(12):
            x, y = next(theirs)
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            record.step(loss, batch=(x, y))
    for name in ("loss", "grad_norm", "weight_norm", "update_ratio", "activation_mean", "label_entropy"):
        np.testing.assert_allclose(record.run[name], ours[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_gradients_are_seen_though_they_are_cleared_at_once():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer) as record:
        for x, y in batches(3):
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()  # before the record is told
            record.step(loss)
    assert (record.run["grad_norm_total"] > 0.1).all()


@pytest.mark.parametrize("hidden", [16, 64])  # the first matrix below and above the size that is measured by itself
def test_a_float64_net_is_measured_in_float64(hidden):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watch(model, optimizer) as record:
        for x, y in batches(3):
            optimizer.zero_grad()
            loss = cross_entropy(model(x.double()), y)
            loss.backward()
            optimizer.step()
            record.step(loss, batch=(x.double(), y))
    run = record.run
    assert run["weight_norm"][2, 0] == pytest.approx(by_hand(model[1]), rel=1e-4)
    np.testing.assert_allclose(run["update_norm"], 1e-3 * run["grad_norm"], rtol=1e-3)
    assert run.facts["dtypes"]["weights"] == ["float64"]


def by_hand(layer: nn.Module) -> float:
    return weights(layer).norm().item()


class Spectral(nn.Module):
    """A filter with complex weights on the spectrum of an image."""

    def __init__(self, height: int, dtype: torch.dtype):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(height, 28, 15, dtype=dtype))
        self.last = nn.Linear(784, 10)

    def forward(self, x):
        filtered = torch.fft.irfft2(torch.fft.rfft2(x) * self.filter.sum(0), s=(28, 28)).float()
        return self.last(filtered.flatten(1))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("height", [1, 40])  # 840 and 33,600 real numbers: small and large
def test_complex_weights_are_measured_as_pairs_of_real_ones(height, dtype):
    torch.manual_seed(0)
    model = Spectral(height, dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watch(model, optimizer) as record:
        plain_loop(model, optimizer, steps=3, record=record)
    run, gradient = record.run, torch.view_as_real(model.filter.grad).double()
    assert run["grad_norm"][2, 0] == pytest.approx(gradient.norm().item(), rel=1e-4)
    assert run["grad_mean"][2, 0] == pytest.approx(gradient.mean().item(), rel=1e-3)
    assert run["grad_max"][2, 0] == pytest.approx(gradient.max().item(), rel=1e-4)
    np.testing.assert_allclose(run["update_norm"][:, 0], 1e-3 * run["grad_norm"][:, 0], rtol=1e-3)


def test_a_closure_is_waited_for():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer) as record:
        for x, y in batches(3):

            def closure(x=x, y=y):
                optimizer.zero_grad()
                loss = cross_entropy(model(x), y)
                loss.backward()
                return loss

            record.step(optimizer.step(closure))
    run = record.run
    assert (run["grad_norm_total"] > 0.1).all()
    np.testing.assert_allclose(run["update_norm"], 0.1 * run["grad_norm"], rtol=1e-4)


@pytest.mark.parametrize("bad", [False, True])
def test_before_the_loss_is_known_only_gradients_and_weights_are_held(bad, monkeypatch):
    measured = []
    monkeypatch.setattr(WeightMeter, "measure", lambda meter, loss: measured.append(loss))
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer) as record:
        x, y = next(batches(1))
        loss = cross_entropy(model(x), y)
        loss.backward()
        if bad:
            model[1].weight.grad[0, 0] = torch.nan
        optimizer.step()
        norm = torch.cat([weight.grad.flatten() for weight in model.parameters()]).norm().item()
        assert record.held == pytest.approx(norm, rel=1e-4, nan_ok=True) and np.isnan(record.held) == bad
        record.step(loss)
        assert record.held is None
    assert record.run["loss"] == pytest.approx([loss.item()])
    assert measured == []  # nothing was measured with a loss that is not the loss


@pytest.mark.parametrize("told", [lambda loss: loss.item(), lambda loss: loss.double(), lambda loss: loss.reshape(1)])
def test_a_loss_may_be_a_number_or_any_tensor_of_one(told):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer) as record:
        x, y = next(batches(1))
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        record.step(told(loss))
    assert record.run["loss"] == pytest.approx([loss.item()])


def test_the_run_of_a_watch_is_a_property_and_a_recorder_has_a_method_of_another_name():
    assert isinstance(Watch.run, property) and not hasattr(Recorder, "run")


def test_accumulated_gradients_are_one_step():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer) as record:
        for _ in range(4):
            optimizer.zero_grad()
            for x, y in batches(3):
                loss = cross_entropy(model(x), y) / 3
                loss.backward()
            optimizer.step()
            record.step(loss, batch=(x, y))
    assert len(record.run) == 4 and (record.run["update_norm"] > 0).all()


def test_several_groups_frozen_and_shared_parameters():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.head = nn.Linear(784, 16), nn.Linear(16, 16), nn.Linear(16, 10)
            self.again = self.second
            self.first.requires_grad_(False)

        def forward(self, x):
            return self.head(torch.relu(self.again(torch.relu(self.second(self.first(x.flatten(1)))))))

    model = Tied()
    groups = [{"params": model.second.parameters(), "lr": 0.1}, {"params": model.head.parameters(), "lr": 0.01}]
    optimizer = torch.optim.SGD(groups)
    with watch(model, optimizer) as record:
        plain_loop(model, optimizer, 5, record)
    run = record.run
    assert run.facts["without_gradient"] == ["first.bias", "first.weight"]
    assert set(run.layers) == {"first", "second", "head"} and len(run) == 5
    assert run["update_norm"][:, run.layers.index("first")].max() == 0


def test_a_scaler_that_skips_a_step_leaves_a_step_without_update():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)  # overflows at first
    with watch(model, optimizer, scaler=scaler) as record:
        for x, y in batches(30):
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            scaler.scale(1000 * loss).backward()
            scaler.step(optimizer)
            scaler.update()
            record.step(loss, batch=(x, y))
    run = record.run
    assert len(run) == 30 and run["loss_scale"][0] > run["loss_scale"][-1]
    assert (run["update_norm"][0] == 0).all() and (run["update_norm"][-1] > 0).all()
    assert np.isfinite(run["loss"]).all()


def test_a_compiled_net_is_watched_from_outside():
    model = net()
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1)
    with watch(compiled, optimizer, probe=(X[:64], Y[:64])) as record:
        plain_loop(compiled, optimizer, 5, record)
        record.validation(accuracy=0.5)
    run = record.run
    assert run.layers == ("1", "3") and (run["grad_norm"] > 0).all() and run["dead"].shape[0] == 1
    assert run["dead"].shape[1] == len(run.activations)  # a column for each name
    assert record.report()


def test_wrappers_are_looked_through():
    model = net()
    assert bare(model) is model
    assert bare(torch.compile(model, backend="eager")) is model
    assert bare(nn.DataParallel(model)) is model


def test_a_loop_that_raises_keeps_what_was_seen_and_leaves_no_hook():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    record = watch(model, optimizer)
    with pytest.raises(ZeroDivisionError), record:
        plain_loop(model, optimizer, 4, record)
        1 / 0  # noqa: B018
    assert len(record.run) == 4 and record.run.facts["error"]["kind"] == "ZeroDivisionError"
    assert not any(module._forward_hooks for module in model.modules())


def test_regression_functional_activations_and_named_inputs():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(784, 8), nn.Linear(8, 1)

        def forward(self, *, pixels):
            return {"logits": self.last(torch.relu(self.first(pixels.flatten(1))))}

    model = Functional()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with watch(model, optimizer) as record:
        for x, y in batches(5):
            optimizer.zero_grad()
            loss = mse_loss(model(pixels=x)["logits"][:, 0], y.float())
            loss.backward()
            optimizer.step()
            record.step(loss, batch=(x, y.float()))
    run = record.run
    assert run.activations == ("inputs", "outputs") and np.isfinite(run["activation_std"]).all()
    assert "label_entropy" not in run and isinstance(record.diagnose(), list)


def test_a_number_will_do_for_the_loss_and_nothing_else_is_needed():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer) as record:
        for x, y in batches(3):
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            record.step(loss.item())
    assert len(record.run) == 3 and record.run.accuracy is None
    assert "verdict" in record.report()


# --- alarms ---------------------------------------------------------------------------------------


def diverging(on_alarm):
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
    with watch(model, optimizer, probe=(X, Y), on_alarm=on_alarm) as record:
        plain_loop(model, optimizer, 40, record)
    return record


def test_each_cause_is_told_once_while_training():
    told = []
    diverging(told.append)
    names = [found.name for found in told]
    assert "learning_rate_too_high" in names and len(names) == len(set(names))


def test_an_alarm_can_stop_the_loop():
    with pytest.raises(Alarm, match="learning_rate_too_high") as caught:
        diverging("raise")
    assert caught.value.diagnosis.name == "learning_rate_too_high"


def test_an_alarm_is_printed_with_its_step(capsys):
    diverging("print")
    assert "labkit, step 8: Learning rate too high" in capsys.readouterr().err


def test_a_healthy_loop_raises_no_alarm():
    told = []
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, probe=(X, Y), on_alarm=told.append) as record:
        plain_loop(model, optimizer, 130, record)
    assert told == []


@pytest.mark.parametrize("wrong", [{"every": 0}, {"every": 1.5}, {"on_alarm": "shout"}])
def test_bad_wishes_are_refused(wrong):
    model = net()
    with pytest.raises(ValueError, match="expected"):
        watch(model, torch.optim.SGD(model.parameters(), lr=0.1), **wrong)


def test_a_deep_copy_of_the_net_can_still_be_made():
    model = net()
    with watch(model, torch.optim.SGD(model.parameters(), lr=0.1)):
        copy.deepcopy(model)
    assert labkit.watch is watch


def test_a_watch_that_was_never_begun_says_how():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with pytest.raises(RuntimeError, match=r"with labkit\.watch\(model, optimizer\) as record"):
        plain_loop(model, optimizer, steps=1, record=watch(model, optimizer))


def test_of_two_updates_before_a_step_the_first_is_measured():
    model, norms = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = next(iter(batches(1)))
    with watch(model, optimizer) as record:
        for _ in range(3):
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            norms.append(torch.nn.utils.get_total_norm([weight.grad for weight in model.parameters()]).item())
            optimizer.step()
            for weight in model.parameters():
                weight.grad.mul_(2)
            optimizer.step()
            record.step(loss, batch=(x, y))
    assert record.run["grad_norm_total"].tolist() == pytest.approx(norms, rel=1e-4)


def test_a_loop_that_zeroes_its_gradients_before_it_reports_a_jump_has_gradients():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    with watch(model, optimizer) as record:
        for step, (x, y) in enumerate(batches(120)):
            loss = cross_entropy(model(x * (100 if step == 101 else 1)), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            record.step(loss, batch=(x, y))
    run = record.run
    assert run.facts["measured_in_full"]["also"] and run.facts["without_gradient"] == []
    assert (run["grad_max"].max(axis=1) > 0).all()


@pytest.mark.parametrize("labels", [(-1, 1), (0, 1_700_000_000)], ids=["signs", "ids"])
def test_whole_numbers_that_are_no_classes_are_left_alone(labels, tmp_path):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, optimizer) as record:
        for _ in range(3):
            x, y = torch.randn(8, 4), torch.tensor(labels * 4)
            loss = (model(x)[:, 0] - y.sign()).square().mean()
            loss.backward()
            optimizer.step()
            record.step(loss, batch=(x, y))
    run = record.run
    assert "label_entropy" not in run and "classes" not in run.facts
    run.save(tmp_path / "run.npz")


def test_a_net_that_is_one_recurrent_layer_can_be_saved(tmp_path):
    model = nn.RNN(3, 5, batch_first=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, optimizer) as record:
        loss = model(torch.randn(2, 4, 3))[0].square().mean()
        loss.backward()
        optimizer.step()
        record.step(loss)
    assert record.run.activations == ("inputs", "net", "outputs")
    record.run.save(tmp_path / "run.npz")


# --- loops of other kinds; tests/hostile/test_hostile_loops.py has many more ----------------------


def strictly(*things, **options) -> Watch:
    return watch(*things, strict=True, **options)


def test_two_optimizers_are_watched_together():
    """As in a GAN: one step of each before `record.step`."""
    torch.manual_seed(0)
    nets = nn.ModuleDict({"first": nn.Linear(784, 8), "second": nn.Sequential(nn.ReLU(), nn.Linear(8, 10))})
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in nets.values()]
    with strictly(nets, optimizers) as record:
        for x, y in batches(12):
            loss = cross_entropy(nets["second"](nets["first"](x.flatten(1))), y)
            for each in optimizers:
                each.zero_grad()
            loss.backward()
            for each in optimizers:
                each.step()
            record.step(loss, batch=(x, y))
    run = record.run
    assert run.facts["not_in_optimizer"] == [] and run["grad_norm"].min() > 0 and run["update_ratio"][:-1].min() > 0


def test_two_watches_at_once_see_their_own_net():
    torch.manual_seed(0)
    one, other = nn.Linear(784, 10), nn.Linear(784, 10)
    first, second = torch.optim.SGD(one.parameters(), lr=0.1), torch.optim.SGD(other.parameters(), lr=0.001)
    with strictly(one, first) as record, strictly(other, second) as beside:
        for x, y in batches(12):
            for net_, optimizer, watching in ((one, first, record), (other, second, beside)):
                optimizer.zero_grad()
                loss = cross_entropy(net_(x.flatten(1)), y)
                loss.backward()
                optimizer.step()
                watching.step(loss, batch=(x, y))
    assert record.run["update_ratio"].max() > 10 * beside.run["update_ratio"].max()


class Graph:
    """As the batches of graph libraries: an object with attributes."""

    def __init__(self, x, y):
        self.x, self.y, self.edges = x, y, torch.tensor([[0, 1], [1, 2]])


class GraphNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(784, 10)

    def forward(self, graph: Graph) -> torch.Tensor:
        return self.layer(graph.x.flatten(1))


def test_a_batch_may_be_an_object_as_in_graph_libraries():
    torch.manual_seed(0)
    model = GraphNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with strictly(model, optimizer, probe=Graph(X[:64], Y[:64])) as record:
        for x, y in batches(12):
            graph = Graph(x, y)
            optimizer.zero_grad()
            loss = cross_entropy(model(graph), y)
            loss.backward()
            optimizer.step()
            record.step(loss, batch=graph)
        record.validation(loss=1.0)
    run = record.run
    assert "probe_accuracy" in run and run.facts["batch_length"] == 32 and "label_entropy" in run


@pytest.mark.parametrize("numbers", [1, 50_000_000])
def test_nets_with_one_parameter_and_with_fifty_million(numbers):
    model = nn.Module()
    model.weight = nn.Parameter(torch.ones(numbers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    with strictly(model, optimizer) as record:
        for _ in range(3):
            optimizer.zero_grad()
            loss = model.weight.square().sum()
            loss.backward()
            optimizer.step()
            record.step(loss)
    assert record.run["grad_norm"].shape == (3, 1) and record.run["update_norm"][0] > 0


def test_a_net_without_parameters_is_told_and_its_loss_recorded(capsys):
    class Nothing(nn.Module):
        def forward(self, x):
            return x

    other = nn.Linear(2, 2)
    with watch(Nothing(), torch.optim.SGD(other.parameters(), lr=0.1)) as record:
        record.step(1.0)
    assert "gradients and weights could not be measured" in capsys.readouterr().err
    assert record.run["loss"].tolist() == [1.0] and record.diagnose() == []


@pytest.mark.parametrize("wrong", [None, "low", object(), [1.0, 2.0]])
def test_a_loss_that_is_not_a_number_is_refused_in_words(wrong):
    model = net()
    with watch(model, torch.optim.SGD(model.parameters(), lr=0.1)) as record:
        with pytest.raises(TypeError, match=r"record.step\(loss\): expected a number or a tensor, got"):
            record.step(wrong)
        with pytest.raises(TypeError, match=r"record.validation\(loss=...\): expected a number or a tensor, got"):
            record.validation(loss=wrong)


def test_the_usual_loss_fits_the_targets():
    random = torch.Generator().manual_seed(0)
    scores, tokens = torch.randn(4, 3, generator=random), torch.randn(2, 5, 7, generator=random)
    classes, words = torch.tensor([0, 2, 1, 1]), torch.randint(7, (2, 5), generator=random)
    assert usual_loss(scores, classes) == cross_entropy(scores, classes)
    assert usual_loss((None, {"logits": tokens}), words) == cross_entropy(tokens.flatten(0, 1), words.flatten())
    pixels = tokens.permute(0, 2, 1)[..., None]  # samples, classes, height, width
    assert torch.isclose(usual_loss(pixels, words[..., None]), usual_loss(tokens, words))
    assert usual_loss(scores[:, :1], torch.ones(4)) == mse_loss(scores[:, 0], torch.ones(4))
    yes = torch.tensor([1, 0, 1, 1])
    assert usual_loss(scores[:, 0], yes) == nn.functional.binary_cross_entropy_with_logits(scores[:, 0], yes.float())


def test_ignored_labels_of_minus_100_are_no_classes():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with strictly(model, optimizer) as record:
        for x, y in batches(4):
            y = torch.where(y < 5, y, -100)
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            record.step(loss, batch=(x, y))
    assert "classes" not in record.run.facts and len(record.run) == 4


# --- the origin of a NaN: found before the update makes the weights NaN as well -------------------


def watched_until_nan(spoil_input=lambda x: x, loss_of=cross_entropy, **options):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with strictly(model, optimizer, **options) as record:
        for step, (x, y) in enumerate(batches(12)):
            optimizer.zero_grad()
            x = spoil_input(x.clone()) if step == 5 else x
            loss = loss_of(model(x), y) if step == 5 else cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            record.step(loss, batch=(x, y))
    return record


def one_missing_value(x: torch.Tensor) -> torch.Tensor:
    x[3, 0, 14, 14] = float("nan")
    return x


def test_a_missing_value_in_the_data_is_named_with_its_sample():
    record = watched_until_nan(one_missing_value)
    origin = record.run.facts["first_nonfinite"]
    assert (origin["stage"], origin["step"], origin["samples"]) == ("inputs", 5, [3])
    assert [found.name for found in record.diagnose()] == ["nan_in_data"]


def log_of_softmax(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Overflows: naive, and with large outputs."""
    return -(1000 * outputs).exp().div((1000 * outputs).exp().sum(1, keepdim=True)).log()[:, 0].mean()


def test_a_loss_that_is_not_finite_is_found_behind_finite_outputs():
    record = watched_until_nan(loss_of=log_of_softmax, loss_fn=log_of_softmax)
    origin = record.run.facts["first_nonfinite"]
    assert (origin["stage"], origin["place"], origin["step"]) == ("loss", "log_of_softmax", 5)


def test_gradients_that_are_not_finite_are_found_though_the_loss_is_finite():
    def root_at_zero(outputs, targets):
        return cross_entropy(outputs, targets) + (outputs - outputs.detach()).square().sum().sqrt()

    origin = watched_until_nan(loss_of=root_at_zero).run.facts["first_nonfinite"]
    assert (origin["stage"], origin["step"]) == ("gradients", 5)


def test_a_term_of_the_loss_that_reads_the_weights_is_not_judged_after_the_update():
    model = net()
    start = [weight.detach().clone() for weight in model.parameters()]

    def penalised(outputs, targets):
        away = sum((now - then).square().sum() for now, then in zip(model.parameters(), start, strict=True))
        return cross_entropy(outputs, targets) + away.sqrt()  # 0 at the start: no derivative

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with strictly(model, optimizer, loss_fn=penalised) as record:
        for x, y in batches(3):
            optimizer.zero_grad()
            loss = penalised(model(x), y)
            loss.backward()
            optimizer.step()
            record.step(loss, batch=(x, y))
    assert record.run.facts["first_nonfinite"]["stage"] == "gradients"


def test_validations_of_different_lengths_and_with_results_of_different_shapes():
    """Sequences of any length, and one value per class of whichever classes there are."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with strictly(model, optimizer) as record:
        for step in range(4):
            x = torch.randint(9, (6, 3 + step))
            optimizer.zero_grad()
            loss = cross_entropy(model(x).flatten(0, 1), x.flatten())
            loss.backward()
            optimizer.step()
            record.step(loss, batch=(x, x))
            with torch.no_grad():
                model(torch.randint(9, (2, 4))), model(torch.randint(9, (2, 7 + step)))
            record.validation(loss=loss, per_class=torch.full((2 + step,), 0.5))
    run = record.run
    assert run["val_per_class"].tolist() == [0.5] * 4 and len(run["val_input_std"]) == 4


class Sampling(nn.Module):
    """As a VAE: draws random numbers in eval mode too."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(784, 10)

    def forward(self, x):
        return self.layer(x.flatten(1)) + 0.01 * torch.randn(len(x), 10)


def test_a_net_that_draws_random_numbers_in_eval_mode_is_not_disturbed_by_the_probe():
    found = []
    for watching in (False, True):
        torch.manual_seed(0)
        model = Sampling()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with strictly(model, optimizer, probe=(X[:32], Y[:32])) as record:
            for x, y in batches(6):
                optimizer.zero_grad()
                loss = cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                record.step(loss, batch=(x, y))
                if watching:
                    record.validation(loss=1.0)
        found.append(weights(model))
    assert torch.equal(*found)


def test_a_binary_probe_with_one_output_has_its_loss_and_no_accuracy_of_one_class():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    yes = (Y > 4).long()
    with strictly(model, optimizer, probe=(X[:64], yes[:64])) as record:
        record.step(1.0)
        record.validation(loss=1.0)
    run = record.run
    assert "probe_accuracy" not in run and 0.3 < run["probe_loss"][0] < 3


@pytest.mark.parametrize("targets", [torch.tensor([0, 1, 3]), torch.tensor([0, -1, 1])])
def test_classes_that_do_not_exist_are_refused_before_a_gpu_would_end(targets):
    with pytest.raises(ValueError, match="expected classes from 0 to 2, got"):
        usual_loss(torch.zeros(3, 3), targets)


def test_a_watched_net_can_be_saved_and_loaded(tmp_path):
    model = net()
    with strictly(model, torch.optim.SGD(model.parameters(), lr=0.1)):
        torch.save(model, tmp_path / "net.pt")
    again = torch.load(tmp_path / "net.pt", weights_only=False)
    assert torch.equal(again(X[:2]), model(X[:2]))


def test_alarms_are_looked_for_once_per_milestone_and_once_when_the_loss_is_lost(monkeypatch):
    model, looked = net(), []
    with strictly(model, torch.optim.SGD(model.parameters(), lr=0.1), on_alarm=lambda _: None, every=2) as record:
        monkeypatch.setattr(record, "raise_alarms", lambda: looked.append(record.steps))
        for step in range(100):
            record.step(1.0 if step < 60 else float("nan"))
    assert looked == [8, 16, 32, 35]  # of 50 measured steps; the fifth NaN in a row is the 35th


def test_a_rate_that_is_a_tensor_and_labels_in_reused_memory_are_copied():
    model, buffer = net(), torch.zeros(32, dtype=torch.long)
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1))
    with strictly(model, optimizer) as record:
        for step, (x, _) in enumerate(batches(4)):
            buffer.fill_(step)
            model(x)
            record.step(1.0, batch=(x, buffer))
            optimizer.param_groups[0]["lr"].mul_(0.5)
    run = record.run
    assert run["lr"] == pytest.approx([0.1, 0.05, 0.025, 0.0125]) and run.facts["label_shares"] == [0.25] * 4


def test_the_step_of_the_first_nan_is_counted_as_the_loop_counts():
    model = net()
    with strictly(model, torch.optim.SGD(model.parameters(), lr=0.1), every=3) as record:
        for step in range(30):
            record.step(float("nan") if step >= 12 else 1.0)
    run = record.run
    assert run.facts["first_nonfinite"]["step"] == 12
    assert np.isnan(run["loss"][run.row_of(12)]) and run["step"][run.row_of(12)] == 12
    assert record.run.facts["first_nonfinite"]["step"] == 12  # asked again


@pytest.mark.parametrize(("samples", "weight", "probed"), [(8, 1.0, True), (7, 1.0, False), (8, 1.001, False)])
def test_without_a_probe_the_first_batch_becomes_it_if_its_usual_loss_is_recorded(samples, weight, probed):
    """FEWEST and SAME_LOSS; what the net is called with counts, not what the loop records as the batch."""
    torch.manual_seed(0)
    model = nn.Linear(784, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with strictly(model, optimizer) as record:
        for x, y in batches(3):
            x, y = x[:samples], y[:samples]
            optimizer.zero_grad()
            loss = weight * cross_entropy(model(x.flatten(1)), y)
            loss.backward()
            optimizer.step()
            record.step(loss, batch=(x, y))
        record.validation(loss=1.0)
    assert ("probe_loss" in record.run) is probed
    assert ("constant_loss" in record.run.facts) is probed


# --- which loss does the loop record? -------------------------------------------------------------


def trained_on(x, y, model, cost, steps: int = 2, told=None, **options) -> Watch:
    """A watched loop on this batch, with one validation; `told` is what it records in the place of (x, y)."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with strictly(model, optimizer, **options) as record:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = cost(model(x), y)
            loss.backward()
            optimizer.step()
            record.step(loss, batch=(x, y) if told is None else told)
        record.validation(loss=1.0)
    return record


torch.manual_seed(0)
SCORES, CLASSES, NUMBERS = torch.randn(16, 3), torch.randint(3, (16,)), 2 * torch.randn(16, 3)


@pytest.mark.parametrize(("loss", "outputs", "targets"), [
    (cross_entropy, SCORES, CLASSES),
    (F.binary_cross_entropy_with_logits, SCORES, (NUMBERS > 0).float()),
    (F.binary_cross_entropy, SCORES.sigmoid(), (NUMBERS > 0).float()),
    (F.nll_loss, SCORES, CLASSES),
    (cross_entropy, SCORES, NUMBERS.softmax(1)),
    (F.l1_loss, SCORES, NUMBERS),
    (F.huber_loss, SCORES, NUMBERS),
    (F.smooth_l1_loss, SCORES, NUMBERS),
    (mse_loss, SCORES, NUMBERS),
])  # fmt: skip
def test_the_usual_losses_are_told_apart_by_their_value(loss, outputs, targets):
    value = float(loss(outputs, targets))
    found, shifted = recorded_loss(USUAL_LOSSES, outputs, targets, value)
    assert found and not shifted
    others = torch.randn(16, 3).sigmoid(), targets.roll(1, 0)
    assert float(found(*others)) == pytest.approx(float(loss(*others)), rel=1e-5)
    assert recorded_loss(USUAL_LOSSES, outputs, targets, 1.001 * value) == (None, False)  # SAME_LOSS


@pytest.mark.parametrize("outputs", [SCORES, SCORES.sigmoid() * torch.nan, SCORES / 0])
@pytest.mark.parametrize("targets", [(NUMBERS > 0).float(), NUMBERS])
def test_what_is_no_probability_never_reaches_a_loss_that_would_end_the_process_on_a_gpu(outputs, targets, monkeypatch):
    def checked(*given):
        assert all(((each >= 0) & (each <= 1)).all() for each in given)
        return F.binary_cross_entropy(*given)

    monkeypatch.setattr("labkit.diagnosis.watch.binary_cross_entropy", checked)
    assert yes_or_no_of_probabilities(outputs, targets).isnan()
    assert not yes_or_no_of_probabilities(SCORES.sigmoid(), (NUMBERS > 0).float()).isnan()


def test_classes_that_do_not_exist_never_reach_one_either():
    for targets in (CLASSES + 1, CLASSES - 1):
        with pytest.raises(ValueError, match="expected classes from 0 to 2"):
            log_likelihood(SCORES, targets)
    assert log_likelihood(SCORES, CLASSES) == F.nll_loss(SCORES, CLASSES)


def test_of_losses_that_are_nearly_the_same_before_training_the_nearest_counts():
    """A language model that shifts its labels inside; the other loss differs by 1e-5 as a share."""
    torch.manual_seed(0)
    outputs, labels = 1e-4 * torch.randn(16, 8, 50), torch.randint(50, (16, 8))
    inside = float(cross_entropy(outputs[:, :-1].flatten(0, 1), labels[:, 1:].flatten()))
    assert float(usual_loss(outputs, labels)) == pytest.approx(inside, rel=3e-5)
    assert recorded_loss(USUAL_LOSSES, outputs, labels, inside) == (usual_loss, True)
    assert recorded_loss(USUAL_LOSSES, outputs, labels, float(usual_loss(outputs, labels))) == (usual_loss, False)


@pytest.mark.parametrize("column", [True, False])
def test_shapes_that_broadcast_in_a_loss_of_numbers_are_named_without_being_given_the_loss(column):
    torch.manual_seed(0)
    x = torch.randn(320, 4)
    y = x.sum(1, keepdim=True) if column else x.sum(1)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with strictly(model, optimizer, probe=(x[:64], y[:64])) as record:
        for step in range(200):
            batch = slice(step % 10 * 32, step % 10 * 32 + 32)
            optimizer.zero_grad()
            loss = ((model(x[batch]) - y[batch]) ** 2).mean()
            loss.backward()
            optimizer.step()
            record.step(loss, batch=(x[batch], y[batch]))
            if step % 40 == 39:
                record.validation()
    assert [each.name for each in record.diagnose()][:1] == ([] if column else ["loss_broadcast"])


def test_targets_that_are_left_out_may_be_minus_one():
    """Only where the loop records that loss: elsewhere -1 is a class that does not exist."""
    torch.manual_seed(0)
    x, y = torch.randint(7, (16, 6)), torch.randint(-1, 7, (16, 6))
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7))

    def loss(outputs, targets):
        return cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=-1)

    record = trained_on(x, y, model, loss, probe=(x, y))
    assert record.run["probe_loss"] == pytest.approx([loss(model(x), y).item()])
    outputs = torch.randn(16, 7)
    assert recorded_loss(USUAL_LOSSES, outputs, y[:, 0], float(cross_entropy(outputs, y[:, 0].clamp(0)))) == (
        None,
        False,
    )


@pytest.mark.parametrize(("samples", "features"), [(600, 4), (128, 784)])  # MOST_SAMPLES; meters.LARGE
def test_the_loss_of_a_probe_is_found_in_batches_of_any_size(samples, features):
    x = torch.rand(samples, features)
    record = trained_on(x, x, nn.Linear(features, features), F.l1_loss, probe=(x[:64], x[:64]))
    loss = F.l1_loss(record.model(x[:64]), x[:64])
    assert record.run["probe_loss"] == pytest.approx([loss.item()])


@pytest.mark.parametrize("most", [300, 200])
def test_a_first_batch_that_would_fill_the_memory_is_not_kept(most, monkeypatch):
    monkeypatch.setattr("labkit.diagnosis.watch.MOST_ENTRIES", most)
    x = torch.rand(32, 4)  # and as many outputs: 256 numbers
    record = trained_on(x, x, nn.Linear(4, 4), mse_loss)
    assert ("probe_loss" in record.run) is (most > 256)


@pytest.mark.parametrize("told", ["both", "loss alone"])
def test_a_probe_of_numbers_has_no_loss_where_none_is_known(told):
    """Of classes the loss can be guessed; of numbers it would be one of many."""
    x, batch = torch.randn(32, 4), None if told == "both" else ()
    odd = trained_on(x, x, nn.Linear(4, 4), lambda *pair: mse_loss(*pair) + 1, told=batch, probe=(x, x))
    assert "probe_loss" not in odd.run
    y = torch.randint(4, (32,))
    smooth = trained_on(
        x, y, nn.Linear(4, 4), lambda *pair: cross_entropy(*pair, label_smoothing=0.2), told=batch, probe=(x, y)
    )
    assert smooth.run["probe_loss"] == pytest.approx([cross_entropy(smooth.model(x), y).item()])


@pytest.mark.parametrize("in_float32", [True, False])
def test_of_outputs_in_16_bits_the_loss_may_be_taken_in_either_format(in_float32):
    x, y = torch.randn(64, 5).bfloat16(), torch.randint(3, (64,))

    def loss(outputs, targets):
        return cross_entropy(outputs.float() if in_float32 else outputs, targets)

    assert "probe_loss" in trained_on(x, y, nn.Linear(5, 3).bfloat16(), loss).run


class Named(nn.Module):
    """Returns its scores under a name, in a dictionary or as the attribute of an object."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.layer = kind, nn.Linear(5, 3)

    def forward(self, x):
        return self.kind(scores=self.layer(x), name="scores")


@pytest.mark.parametrize(("kind", "read"), [
    (dict, lambda outputs: outputs["scores"]), (types.SimpleNamespace, lambda outputs: outputs.scores),
])  # fmt: skip
def test_a_loss_of_ones_own_gets_all_that_the_net_returns(kind, read):
    def loss(outputs, targets):
        return cross_entropy(read(outputs), targets)

    x, y = torch.randn(32, 5), torch.randint(3, (32,))
    assert "probe_loss" in trained_on(x, y, Named(kind), loss, loss_fn=loss).run


def test_a_loss_that_draws_random_numbers_draws_the_same_ones_without_the_watch():
    def loss(outputs, targets):
        return cross_entropy(outputs, targets) + 0 * torch.rand(())

    x, y = torch.randn(32, 5), torch.randint(3, (32,))
    trained_on(x, y, nn.Linear(5, 3), loss, loss_fn=loss)  # no number is drawn for the first time
    torch.manual_seed(1)
    trained_on(x, y, nn.Linear(5, 3), loss, loss_fn=loss)
    watched = torch.rand(1)
    torch.manual_seed(1)
    nn.Linear(5, 3)
    assert torch.equal(watched, torch.rand(4)[2:3])  # two steps, two numbers


def test_a_net_behind_another_net_is_probed_with_a_copy_of_its_inputs(capsys):
    torch.manual_seed(0)
    body, head = nn.Linear(5, 4), nn.Linear(4, 3)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    x, y = torch.randn(32, 5), torch.randint(3, (32,))
    with watch(head, optimizer) as record:
        for _ in range(2):
            optimizer.zero_grad()
            loss = cross_entropy(head(body(x)), y)
            loss.backward()
            optimizer.step()
            record.step(loss, batch=(x, y))
        record.validation(loss=1.0)
    assert "probe_loss" in record.run and not record.probe.x.requires_grad
    assert capsys.readouterr().err == ""


def test_a_lazy_net_may_be_asked_before_its_first_step():
    model = nn.Sequential(nn.LazyLinear(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(32, 5), torch.randint(3, (32,))
    with strictly(model, optimizer) as record:
        assert len(record.run) == 0 and "grad_norm" not in record.run
        cross_entropy(model(x), y).backward()
        optimizer.step()
        record.step(1.0, batch=(x, y))
    assert record.run.parameters == ("0.weight", "0.bias") and record.run["grad_norm"].shape == (1, 1)
