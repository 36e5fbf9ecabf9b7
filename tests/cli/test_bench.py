"""The bench: ratios of contestants that take turns, the same work for all of them, and words with the goals."""

import importlib.util
import itertools
import json
import subprocess

import pytest
import torch
from helpers import tiny
from torch.utils.data import TensorDataset

from labkit.cli import bench
from labkit.failures.catalogue import FAILURES, HEADLINES
from labkit.recording.machine import cpu_name
from labkit.training.loop import evaluation_steps
from labkit.training.recipe import Recipe


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """torchvision's MNIST on the embedded files."""
    return bench.torchvision_mnist(tmp_path_factory.mktemp("mnist"))


@pytest.fixture
def short(monkeypatch):
    for name, value in {
        "STEPS": 3,
        "WARM_UP": 2,
        "TUTORIAL_STEPS": 2,
        "POSTER_SHARE": 100,
    }.items():
        monkeypatch.setattr(bench, name, value)


# --- comparing ------------------------------------------------------------------------------------


def contestants(ours: list[float], theirs: list[float]):
    """Two that take these times, one after the other, and the order in which they were asked."""
    order = []

    def contestant(name, times):
        times = iter(times)
        return lambda: order.append(name) or next(times)

    return contestant("a", ours), contestant("b", theirs), order


def test_the_median_of_the_ratios_of_each_round():
    # Round by round 2, 3, 100: neither the mean (35) nor the ratio of the medians (2) nor of the sums (10.5).
    one, other, _ = contestants([2, 3, 100], [1, 1, 1])
    assert bench.compare(one, other, rounds=3) == 3
    one, other, _ = contestants([10, 2, 300], [5, 1, 100])
    assert bench.compare(one, other, rounds=3) == 2


def test_a_slow_moment_of_the_machine_hits_both_and_cancels():
    slow = [1, 1, 50, 50, 1]
    one, other, order = contestants([1.1 * each for each in slow], slow)
    assert bench.compare(one, other, rounds=5) == pytest.approx(1.1)
    assert order == ["a", "b"] * 5


def test_as_many_rounds_as_asked_for():
    one, other, order = contestants(itertools.repeat(1.0), itertools.repeat(3.0))
    assert bench.compare(one, other) == 0.333
    assert len(order) == 2 * bench.ROUNDS >= 10


# --- contestants ----------------------------------------------------------------------------------


@pytest.mark.parametrize("net", bench.NETS)
def test_the_loops_really_train(net, short, digits, monkeypatch):
    trained = []
    make = bench.Training

    def noted(recipe):
        trained.append(make(recipe))
        trained[-1].before = [weight.detach().clone() for weight in trained[-1].model.parameters()]
        return trained[-1]

    monkeypatch.setattr(bench, "Training", noted)
    recipe = bench.NETS[net].but(samples=512, width=8)
    loops = [bench.watched(recipe, 1), bench.unwatched(recipe), bench.with_norms(recipe)]
    for contestant in (bench.ours(recipe), bench.bare(recipe), bench.tutorial(recipe, digits), *loops):
        assert contestant() > 0
    assert len(trained) == 6
    for training in trained:
        after = list(training.model.parameters())
        assert any(not torch.equal(old, new) for old, new in zip(training.before, after, strict=True))
    first = trained[0].before
    assert all(torch.equal(a, b) for each in trained[1:] for a, b in zip(first, each.before, strict=True))  # one net


def test_ours_takes_as_many_steps_as_the_bare_loop_and_validates_never(short, monkeypatch):
    looked, updates = [], []
    run, step = bench.Training.run, torch.optim.SGD.step

    def noted(self, **options):
        looked.append(run(self, **options))
        return looked[-1]

    monkeypatch.setattr(bench.Training, "run", noted)
    bench.ours(tiny())()
    assert len(looked[0]) == 5 and "val_step" not in looked[0] and "grad_norm" in looked[0]
    monkeypatch.setattr(torch.optim.SGD, "step", lambda self, *args: updates.append(1) or step(self, *args))
    bench.bare(tiny())()
    assert len(updates) == 5


def test_three_norms_of_every_parameter_are_taken_at_each_step(short, monkeypatch):
    taken, norms = [], torch._foreach_norm
    monkeypatch.setattr(torch, "_foreach_norm", lambda tensors: taken.append(norms(tensors)) or taken[-1])
    bench.with_norms(tiny(depth=2))()
    assert len(taken) == 3 * 5 and {len(each) for each in taken} == {4}
    assert all(norm > 0 for each in taken for norm in each)  # an update moves every parameter


def test_a_whole_run_is_timed_from_its_first_step(short, monkeypatch):
    moments, looked, updates = itertools.count(), [], []
    run, step = bench.Training.run, torch.optim.SGD.step
    monkeypatch.setattr(bench.Training, "run", lambda self, **options: looked.append(run(self, **options)))
    monkeypatch.setattr(torch.optim.SGD, "step", lambda self, *args: updates.append(1) or step(self, *args))
    monkeypatch.setattr(bench.time, "perf_counter", lambda: float(next(moments)))
    bench.ours(tiny(), whole=True)()
    assert len(looked[0]) == tiny().steps == len(updates)
    updates.clear()
    assert bench.bare(tiny(), whole=True)() == pytest.approx(1 / tiny().steps)  # asked twice: before and after all
    assert len(updates) == tiny().steps


def test_traces_of_a_longer_and_a_deeper_run_are_counted():
    small = bench.trace_bytes(tiny(evaluate_every=0))
    assert 1.5 < bench.trace_bytes(tiny(evaluate_every=0, steps=12)) / small < 2.1
    assert 1.2 < bench.trace_bytes(tiny(evaluate_every=0, depth=4)) / small < 2.1


def test_torch_lr_finder_takes_as_many_steps_as_ours(monkeypatch):
    pytest.importorskip("torch_lr_finder", reason="not installed: torch-lr-finder (extra bench)")
    updates, step = [], torch.optim.SGD.step
    monkeypatch.setattr(bench, "RANGE_STEPS", 20)
    monkeypatch.setattr(torch.optim.SGD, "step", lambda self, *args: updates.append(1) or step(self, *args))
    for contestant in (bench.our_range_test(), bench.torch_lr_finder()):
        assert contestant() > 0
        assert len(updates) == 20
        updates.clear()


def test_the_tutorial_validates_only_where_there_is_something_to_validate(short, monkeypatch):
    noted = []
    monkeypatch.setattr(bench, "validate_like_a_tutorial", lambda *given: noted.append(given))
    images = TensorDataset(torch.zeros(64, 1, 28, 28), torch.zeros(64, dtype=torch.int64))
    recipe = tiny(samples=64, evaluate_every=2)
    assert bench.tutorial_seconds(recipe, images, steps=4) > 0
    assert noted == []
    assert bench.tutorial_seconds(recipe, images, steps=4, validation_set=images) > 0
    assert len(noted) == 3  # before steps 0 and 2, and at the end


def test_the_tutorial_validates_as_we_do(digits):
    training = bench.Training(tiny())
    part = bench.Subset(digits, range(1500))
    x, y = (torch.stack([digits[i][0] for i in range(1500)]), torch.tensor([digits[i][1] for i in range(1500)]))
    ours = training.recipe.evaluate(training, type(training.data.val)(x, y))
    loss, accuracy = bench.validate_like_a_tutorial(training, part)
    assert loss == pytest.approx(float(ours["loss"]), rel=1e-5)
    assert accuracy == pytest.approx(float(ours["accuracy"]))
    assert training.model.training


def test_the_tutorials_images_are_ours(digits):
    assert len(digits) == 60_000
    ours = Recipe(samples=60_000, device="cpu")
    x, y = ours.data(ours).train
    for index in (0, 1, 59_999):
        image, label = digits[index]
        assert label == y[index]
        torch.testing.assert_close(image, x[index], atol=0.002, rtol=0)  # the tutorials' constants are rounded


@pytest.mark.parametrize("library", ["skorch", "lightning", "fastai"])
def test_a_librarys_own_loop_trains_as_many_steps_and_notes_each(library, short, monkeypatch):
    if not importlib.util.find_spec(library):
        pytest.skip(f"{library} is not installed")
    noted, noter = [], bench.norm_noter
    monkeypatch.setattr(bench, "norm_noter", lambda model: lambda: noted.append(noter(model)()))
    recipe = tiny()
    assert bench.fitted(recipe, getattr(bench, f"{library}_fit"))() > 0
    assert len(noted) == bench.WARM_UP + bench.STEPS


def test_the_tutorial_trains_with_the_recipes_optimizer(monkeypatch):
    stepped = []
    step = torch.optim.Adam.step
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self, *args: stepped.append(1) or step(self, *args))
    images = TensorDataset(torch.rand(64, 1, 28, 28), torch.zeros(64, dtype=torch.int64))
    bench.tutorial_seconds(tiny(samples=64, optimizer="adam"), images, steps=2)
    assert len(stepped) == 2


def test_batches_of_both_ways_take_time(short, digits):
    assert bench.our_batches()() > 0
    assert bench.tutorial_batches(digits)() > 0


def test_a_fresh_python_is_timed_and_its_failure_is_seen():
    assert bench.start("-c", "pass")() > 0
    with pytest.raises(subprocess.CalledProcessError):
        bench.start("-c", "raise SystemExit(3)")()


def test_the_posters_mix_is_that_of_the_poster_without_doubles(short):
    recipes = bench.poster_mix()
    assert len(set(recipes)) == len(recipes)
    wanted = {recipe for name in HEADLINES for recipe in FAILURES[name].recipes().values()}
    assert {bench.shortened(recipe) for recipe in wanted} == set(recipes)


def test_a_shortened_run_is_validated_as_often_per_step():
    full = Recipe(steps=400)
    short = bench.shortened(full)
    assert short == full.but(steps=400 // bench.POSTER_SHARE, evaluate_every=short.evaluate_every, device="cpu")
    often = [len(evaluation_steps(recipe.steps, recipe.evaluate_every)) / recipe.steps for recipe in (short, full)]
    assert often[0] == pytest.approx(often[1], rel=0.1)


# --- all of it ------------------------------------------------------------------------------------


@pytest.fixture
def found(short, monkeypatch) -> dict:
    """Everything measured, on small nets, with few steps, and without the fresh Pythons."""
    started, threads = [], []
    monkeypatch.setenv("LABKIT_THREADS", "7")
    monkeypatch.setattr(bench, "NETS", {name: net.but(width=8, samples=256) for name, net in bench.NETS.items()})
    monkeypatch.setattr(bench, "HEADLINES", ("learning_rate_too_high",))
    monkeypatch.setattr(bench, "validate_like_a_tutorial", lambda *_: None)  # it takes a second each time
    monkeypatch.setattr(bench, "other_watchers", dict)
    monkeypatch.setattr(bench, "torch_lr_finder", lambda: bench.our_range_test())
    monkeypatch.setattr(bench, "start", lambda *words: started.append(words) or (lambda: float(len(words))))
    monkeypatch.setattr(bench, "compare", lambda one, other, rounds=1: round(one() / other(), 3))
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[-1] if threads else 3)
    result = bench.measure()
    assert threads[0] == 7 and threads[-1] == 3  # put back at the end
    assert started == [("-m", "labkit", "--help"), ("-c", "import torch")]
    return result


def test_all_ratios_have_their_names_and_conditions_and_can_be_written_as_json(found):
    values = json.loads(json.dumps(found, allow_nan=False))
    assert set(values["instruments"]) == set(values["norms"]) == set(values["tutorial"]) == set(bench.NETS)
    assert set(values["watch"]) == {*bench.NETS, "every_10th"} and set(values["growth"]) == set(GROWTH)
    ratios = [*values["instruments"].values(), *values["tutorial"].values(), values["data_path"], values["poster"]]
    ratios += [values["whole_run"], values["find_lr"], *values["growth"].values()]
    assert all(ratio > 0 for ratio in ratios)
    assert values["help"] == 1.5  # ours over theirs
    assert values["conditions"] == {"torch": torch.__version__, "threads": 7, "cpu": cpu_name()}
    text = bench.ratios_as_text(found)
    assert all(key in text for key in bench.GOALS)


GROWTH = ("steps", "layers", "steps_traces", "layers_traces")
RATIOS = {
    "instruments": {"mlp": 1.012, "deep": 1.034, "cnn": 1.056},
    "tutorial": {"mlp": 20.5, "deep": 8.0, "cnn": 5.0},
    "watch": {"mlp": 1.08, "every_10th": 1.01}, "growth": dict(zip(GROWTH, (9.5, 7.0, 10.0, 9.0), strict=True)),
    "find_lr": 0.5, "whole_run": 1.07,
    "data_path": 41.25, "poster": 0.041, "help": 0.02,
    "conditions": {"torch": "2.8", "threads": 1, "cpu": "a fast one"},
}  # fmt: skip


def test_words_have_every_ratio_and_its_goal():
    head, empty, *lines = bench.ratios_as_text(RATIOS).splitlines()
    assert head == "torch 2.8, threads 1, cpu a fast one" and empty == ""
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines}
    assert rows["instruments.mlp"].startswith("1.012 goal <= 1.05 our loop with its instruments")
    assert rows["instruments.deep"].startswith("1.034 goal <= 1.05")
    assert rows["instruments.cnn"].startswith("1.056 goal <= 1.03 ")
    assert rows["data_path"].startswith("41.250 goal >= 15 ")
    assert rows["help"].startswith("0.020 goal <= 0.05 ")
    assert rows["poster"].startswith("0.041 goal <= 0.05 ")
    assert rows["tutorial.mlp"].startswith("20.500 the tutorial way")  # no goal
    assert rows["watch.mlp"].startswith("1.080 goal <= 1.1 ") and rows["growth.steps"].startswith("9.500 goal <= 10.5 ")
    assert rows["find_lr"].startswith("0.500 goal <= 0.6 ")
    assert rows["whole_run"].startswith("1.070 the standard run of 400 steps")  # no goal
    assert rows["growth.layers_traces"].startswith("9.000 goal <= 10.5 ")
    assert len(rows) == 17


def test_the_page_has_every_ratio_its_goal_and_the_conditions():
    page = bench.ratios_as_page(RATIOS | {"poster": 0.062})
    assert "torch 2.8, threads 1, cpu a fast one" in page
    assert page.count("\n| `") == 17
    assert "| `poster` | 0.062 | training of the default poster, ours / the tutorial way | <= 0.05, missed |" in page
    assert "| `data_path` | 41.2 | torchvision DataLoader / our batches | >= 15, met |" in page
    assert "| `tutorial.deep` | 8 |" in page


def test_every_goal_is_one_of_the_ratios():
    names = {f"{name}.{net}" for name in ("instruments", "tutorial", "watch") for net in bench.NETS}
    names |= {f"growth.{what}" for what in GROWTH} | {"data_path", "help", "poster", "find_lr"}
    assert bench.GOALS.keys() <= names and names >= bench.HIGHER_IS_BETTER
