"""The Recorder around anybody's loop: what it notes, and where it says that the first NaN came from."""

import contextlib
import itertools
import math
import os
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from labkit.recording import sample_log
from labkit.recording.meters import BLOCK, LargeTensors, SmallTensors
from labkit.recording.recorder import PATIENCE, LossRecorder, Recorder, origin_from_traces, stacked
from labkit.recording.run import Run

STEPS = 20
CPU = torch.device("cpu")


class Fuse(nn.ReLU):
    """An activation that can blow."""

    blown = False

    def forward(self, x):
        return super().forward(x) + (math.inf if self.blown else 0)


class Bench:
    """A small training loop of its own, in which something can go wrong at a chosen step."""

    def __init__(self, **options):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 8), Fuse(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.bad_loss = False
        self.recorder = Recorder(self.model, self.optimizer, loss=self.loss, **options)
        self.x, self.y = torch.randn(10, 6), torch.randint(3, (10,))

    def loss(self, outputs, targets):
        value = cross_entropy(outputs, targets)
        return value * math.nan if self.bad_loss else value

    def run(self, steps: int = STEPS, before=None, gradient=None, after=None):
        """Each of the three is called with the step: before it, when gradients are there, and after the update."""
        with self.recorder:
            for step in range(steps):
                x = self.x.clone()
                if before:
                    before(step, x)
                self.optimizer.zero_grad()
                loss = self.loss(self.model(x), self.y)
                loss.backward()
                if gradient:
                    gradient(step)
                self.recorder.look(loss, x, self.y)
                if all(weight.grad.isfinite().all() for weight in self.model.parameters()):
                    self.optimizer.step()  # as GradScaler does; without it every fault would end in the weights
                if after:
                    after(step)
        return self.recorder.as_run()


# --- what is noted --------------------------------------------------------------------------------


def test_the_axes_name_what_was_measured():
    run = Bench().run(3)
    assert run.layers == ("0", "2", "4")
    assert run.parameters == ("0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias")
    assert run.activations == ("inputs", "1", "3", "outputs")
    axes = {"grad_norm": 3, "weight_norm": 3, "update_norm": 3, "update_ratio": 3, "grad_mean": 6, "grad_std": 6}
    axes |= {"grad_min": 6, "grad_max": 6, "grad_near_zero": 6, "activation_mean": 4, "activation_std": 4}
    for name, width in axes.items():
        assert run[name].shape == (3, width), name
    for name in ("loss", "lr", "loss_scale", "step", "grad_norm_total"):
        assert run[name].shape == (3,), name


def test_losses_are_those_of_the_batches():
    bench = Bench()
    noted = []
    run = bench.run(5, gradient=lambda _: noted.append(bench.loss(bench.model(bench.x), bench.y).item()))
    assert run["loss"] == pytest.approx(noted)
    assert noted[-1] < noted[0]


def test_the_learning_rate_is_the_one_the_optimizer_has():
    bench = Bench()

    def change(step, _):
        bench.optimizer.param_groups[0]["lr"] = 0.01 * 2**step

    assert bench.run(4, before=change)["lr"] == pytest.approx([0.01, 0.02, 0.04, 0.08])


def test_loss_scales_may_be_tensors():
    recorder = LossRecorder(Bench().optimizer, CPU)
    for scale in (65536.0, torch.tensor(32768.0), 1):
        recorder.look(torch.tensor(1.0), loss_scale=scale)
    assert recorder.as_run()["loss_scale"].tolist() == [65536, 32768, 1]


def test_validations_know_how_many_updates_the_weights_had_seen():
    bench = Bench()

    def validate(step, _):
        if step in (0, 3):
            bench.recorder.validate(loss=torch.tensor(float(step)), accuracy=0.5)

    run = bench.run(5, before=validate)
    assert run["val_step"].tolist() == [0, 3]
    assert run["val_loss"].tolist() == [0, 3] and run["val_accuracy"].tolist() == [0.5, 0.5]


def test_the_probe_is_examined_with_every_validation():
    probe = (torch.randn(12, 6), torch.randint(3, (12,)))
    bench = Bench(probe=probe)
    run = bench.run(4, before=lambda step, _: bench.recorder.validate(loss=0.0))
    assert run["probe_loss"].shape == (4,) and run["dead"].shape == (4, 4) and run["histogram"].shape[:2] == (4, 4)
    assert len(set(run["probe_loss"].tolist())) == 4  # the same images, other weights


def test_a_run_can_be_taken_at_any_time():
    bench, taken = Bench(), []
    final = bench.run(18, after=lambda step: taken.append(bench.recorder.as_run()))
    assert [len(run) for run in taken] == list(range(1, 19))
    for run in taken:
        steps = len(run)
        for name in ("loss", "grad_norm", "update_norm", "activation_std"):
            np.testing.assert_allclose(run[name], final[name][:steps], rtol=1e-6, err_msg=name)


def test_frozen_layers_are_named():
    bench = Bench()
    bench.model[2].requires_grad_(False)
    bench.optimizer.param_groups[0]["params"] = [w for w in bench.model.parameters() if w.requires_grad]
    with bench.recorder:
        loss = bench.loss(bench.model(bench.x), bench.y)
        loss.backward()
        bench.recorder.look(loss, bench.x, bench.y)
        bench.optimizer.step()
    run = bench.recorder.as_run()
    assert run.facts["without_gradient"] == ["2.bias", "2.weight"]
    assert run["grad_norm"][0, 1] == run["update_norm"][0, 1] == 0 and (run["grad_norm"][0, [0, 2]] > 0).all()


def test_hooks_are_gone_after_the_loop_and_after_an_error():
    bench = Bench()
    bench.run(1)
    hooked = [module for module in bench.model.modules() if module._forward_hooks or module._forward_pre_hooks]
    assert hooked == []
    with pytest.raises(ZeroDivisionError):
        bench.run(1, before=lambda *_: 1 / 0)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in bench.model.modules())


def test_the_loss_recorder_notes_the_loss_and_no_more():
    recorder = LossRecorder(Bench().optimizer, CPU)
    with recorder:
        for value in (3.0, 2.0):
            recorder.look(torch.tensor(value, requires_grad=True))
    recorder.validate(loss=1.0)
    run = recorder.as_run({"lr": 0.01}, answer=42)
    assert set(run.traces) == {"step", "lr", "loss_scale", "loss", "val_step", "val_loss"}
    assert run["loss"].tolist() == [3, 2] and run["loss"].dtype == np.float64
    assert run.recipe == {"lr": 0.01} and run.facts["answer"] == 42


def test_nothing_recorded_is_an_empty_run():
    for recorder in (Bench().recorder, LossRecorder(Bench().optimizer, CPU)):
        run = recorder.as_run()
        assert len(run) == 0 and run["lr"].shape == (0,) and run.facts["first_nonfinite"] is None


# --- the first value that is not finite -----------------------------------------------------------


def spoil(bench: Bench, stage: str, when: int) -> dict:
    """What to hand to `Bench.run` so that this goes wrong at this step, for good."""

    def before(step, x):
        if step >= when:
            if stage == "inputs":
                x[4, 2] = math.nan
            bench.model[1].blown = stage == "activations"
            bench.bad_loss = stage == "loss"

    def gradient(step):
        if step >= when and stage == "gradients":
            bench.model[2].weight.grad[1, 1] = math.inf

    def after(step):
        if step >= when and stage == "weights":
            with torch.no_grad():
                bench.model[2].weight[1, 1] = math.nan

    return {"before": before, "gradient": gradient, "after": after}


PLACES = {  # stage: exactly, and as read off the traces
    "inputs": ("batch", "batch"),
    "activations": ("1", "1"),
    "loss": ("loss", "loss"),
    "gradients": ("2.weight", "2"),
    "weights": ("2.weight", "2"),
}


@pytest.mark.parametrize("when", [0, 11, 17])
@pytest.mark.parametrize("stage", PLACES)
def test_the_first_value_that_is_not_finite_is_found_where_it_began(stage, when):
    bench = Bench()
    found = bench.run(**spoil(bench, stage, when)).facts["first_nonfinite"]
    assert (found["step"], found["stage"], found["place"]) == (when, stage, PLACES[stage][0])
    if stage == "inputs":
        assert found["samples"] == [4]
    if stage in ("inputs", "gradients", "weights"):
        assert found["count"] == 1


@pytest.mark.parametrize("when", [0, 11, 17])  # 17: after the last check of a block of 8
@pytest.mark.parametrize("stage", PLACES)
def test_it_is_read_off_the_traces_where_a_check_comes_late(stage, when):
    bench = Bench(check_every=8)
    found = bench.run(**spoil(bench, stage, when)).facts["first_nonfinite"]
    assert (found["step"], found["stage"], found["place"]) == (when, stage, PLACES[stage][1])


@pytest.mark.parametrize("check_every", [1, 8])
def test_a_healthy_run_has_no_such_value(check_every):
    run = Bench(check_every=check_every).run()
    assert run.facts["first_nonfinite"] is None and run.events == ()


@pytest.mark.parametrize("check_every", [1, 8])
def test_a_bad_step_that_was_skipped_is_an_event_and_no_failure(check_every):
    bench = Bench(check_every=check_every)

    def gradient(step):
        if step in (3, 4, 9):
            bench.model[2].weight.grad[1, 1] = math.inf

    run = bench.run(gradient=gradient)
    assert run.facts["first_nonfinite"] is None
    found = [(event["kind"], event["step"], event["stage"]) for event in run.events]
    assert found == [("skipped", 3, "gradients"), ("skipped", 9, "gradients")]
    assert {event["place"].removesuffix(".weight") for event in run.events} == {"2"}
    assert (run["update_norm"][[3, 4, 9]] == 0).all() and (run["update_norm"][5:9] > 0).all()


@pytest.mark.parametrize("check_every", [1, 8])
def test_a_skipped_step_is_not_taken_for_the_origin_of_a_later_failure(check_every):
    bench = Bench(check_every=check_every)
    faults = spoil(bench, "loss", 12)

    def gradient(step):
        if step == 3:
            bench.model[2].weight.grad[1, 1] = math.inf

    run = bench.run(**faults | {"gradient": gradient})
    assert [event["step"] for event in run.events] == [3]
    assert (run.facts["first_nonfinite"]["step"], run.facts["first_nonfinite"]["stage"]) == (12, "loss")


@pytest.mark.parametrize("check_every", [1, 4])
def test_hopeless_is_the_loss_bad_several_times_in_a_row(check_every):
    recorder = LossRecorder(Bench().optimizer, CPU, check_every)
    pattern = [math.nan] * (PATIENCE - 1) + [1.0] + [math.inf] * (PATIENCE + check_every)
    hopeless = []
    for value in pattern:
        recorder.look(torch.tensor(value))
        hopeless.append(recorder.hopeless)
    first = hopeless.index(True)
    exact = PATIENCE + PATIENCE - 1  # the good one in between began the count again
    assert first == (exact if check_every == 1 else (exact // check_every + 1) * check_every - 1)
    run = recorder.as_run()
    assert run.facts["first_nonfinite"] == {"step": PATIENCE, "stage": "loss", "place": "loss"}
    assert [event["step"] for event in run.events] == [0]


def test_a_bad_gradient_alone_is_not_hopeless():
    bench = Bench()
    run = bench.run(**spoil(bench, "gradients", 2))
    assert not bench.recorder.hopeless and len(run) == STEPS


def test_a_huge_loss_is_finite():
    recorder = LossRecorder(Bench().optimizer, CPU)
    for _ in range(PATIENCE):
        recorder.look(torch.tensor(3e38))
    assert recorder.first_nonfinite is None and not recorder.hopeless


def test_of_layers_that_went_bad_in_one_step_backward_meets_the_last_first():
    traces = {name: np.ones((4, 3)) for name in ("weight_norm", "activation_mean", "grad_norm")} | {"loss": np.ones(4)}
    axes = {"layers": ("a", "b", "c"), "activations": ("inputs", "relu", "outputs"), "heads": ()}
    assert origin_from_traces(traces, 0, **axes) is None
    traces["grad_norm"][2, :2] = np.inf
    assert origin_from_traces(traces, 0, **axes) == {"step": 2, "stage": "gradients", "place": "b"}
    traces["activation_mean"][2, 1:] = np.nan
    assert origin_from_traces(traces, 0, **axes) == {"step": 2, "stage": "activations", "place": "relu"}
    traces["weight_norm"][2, 0] = np.nan  # seen at look 2: it happened in the update of step 1
    assert origin_from_traces(traces, 0, **axes) == {"step": 1, "stage": "weights", "place": "a"}
    assert origin_from_traces(traces, 3, **axes) is None


# --- Ctrl-C at a bad moment -----------------------------------------------------------------------


def interrupt(*_, **__):
    raise KeyboardInterrupt


def test_an_interrupted_look_leaves_traces_of_one_length(monkeypatch):
    bench = Bench()

    def before(step, _):
        if step == 3:
            monkeypatch.setattr(bench.recorder.weights, "hold", interrupt)

    with pytest.raises(KeyboardInterrupt):
        bench.run(before=before)
    run = bench.recorder.as_run()
    assert {len(values) for values in run.traces.values()} == {3}


def large_and_small(steps: int, at: int | None = None, during=contextlib.nullcontext) -> Recorder:
    """The recorder of a loop whose net has parameters of both groups; look number `at` is made within `during`."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 150), nn.ReLU(), nn.Linear(150, 150), nn.Linear(150, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(10, 6), torch.randint(3, (10,))
    with Recorder(model, optimizer) as recorder:
        for step in range(steps):
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            with during() if step == at else contextlib.nullcontext():
                recorder.look(loss, x, y)
                optimizer.step()
    assert [type(group) for group in recorder.weights.groups] == [LargeTensors, SmallTensors]
    return recorder


def assert_begins_alike(run: Run, whole: Run, updates: int) -> None:
    """All traces of the steps that `run` has, but no more updates than were made."""
    for name, values in run.traces.items():
        rows = updates if name in ("update_norm", "update_ratio") else len(run)
        np.testing.assert_allclose(values[:rows], whole[name][:rows], rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("group", [LargeTensors, SmallTensors])
def test_ctrl_c_between_the_groups_of_weights_keeps_the_looks_before_it(monkeypatch, group):
    @contextlib.contextmanager
    def interrupted():
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(group, "look", interrupt)
            yield

    run = large_and_small(5, at=4, during=interrupted).as_run()
    assert len(run) == 4
    assert_begins_alike(run, large_and_small(5).as_run(), updates=4)


class CtrlC:
    """Raises KeyboardInterrupt before the n-th of the lines of `labkit/recording` that are executed within it."""

    def __init__(self, n: int):
        self.n, self.happened = n, False
        self.lines: set[tuple[str, int]] = set()

    def __call__(self, frame, event, _):
        if f"labkit{os.sep}recording" not in frame.f_code.co_filename:
            return None
        line = (frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and line not in self.lines:
            self.lines.add(line)
            if len(self.lines) == self.n:
                raise KeyboardInterrupt
        return self

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self)

    def __exit__(self, kind, *_):
        sys.settrace(self.before)
        self.happened = kind is KeyboardInterrupt
        return self.happened


@pytest.mark.parametrize("at", [2, BLOCK - 1, BLOCK])  # in a block of looks, and where blocks are measured
def test_ctrl_c_before_any_line_of_a_look_keeps_the_looks_before_it(at, monkeypatch):
    monkeypatch.setattr(sample_log, "TOGETHER", 10)  # every batch is fingerprinted at once
    whole = large_and_small(at + 1).as_run()
    for n in itertools.count(1):
        interruption = CtrlC(n)
        run = large_and_small(at + 1, at, lambda interruption=interruption: interruption).as_run()
        if not interruption.happened:
            break
        assert at <= len(run) <= at + 1
        assert_begins_alike(run, whole, updates=at)
    assert n > 50


@pytest.mark.parametrize("group", [LargeTensors, SmallTensors])
def test_a_loop_may_go_on_after_an_interrupted_look(monkeypatch, group):
    @contextlib.contextmanager
    def interrupted_once():
        with monkeypatch.context() as patch:
            patch.setattr(group, "look", interrupt)
            with contextlib.suppress(KeyboardInterrupt):
                yield

    steps = BLOCK + 4
    run, whole = large_and_small(steps, 3, interrupted_once).as_run(), large_and_small(steps - 1).as_run()
    for name in ("loss", "grad_norm", "weight_norm", "update_norm", "grad_mean", "grad_std", "grad_max"):
        np.testing.assert_array_equal(run[name], whole[name], err_msg=name)  # that step made no update either


def test_an_interrupted_validation_leaves_no_half_note(monkeypatch):
    probe = (torch.randn(12, 6), torch.randint(3, (12,)))
    bench = Bench(probe=probe)
    bench.run(2, before=lambda *_: bench.recorder.validate(loss=0.0))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(bench.recorder.probe, "examine", interrupt)
        bench.recorder.validate(loss=0.0)
    bench.recorder.validate(loss=0.0)
    run = bench.recorder.as_run()
    assert run["val_step"].tolist() == [0, 1, 2] and len(run["probe_loss"]) == 3


def test_results_are_stacked_as_they_come():
    found = stacked([{"val_step": 0, "val_loss": torch.tensor(1.0)}, {"val_step": 3, "val_loss": torch.tensor(2.0)}])
    assert found["val_step"].tolist() == [0, 3] and found["val_loss"].tolist() == [1, 2]
    assert stacked([]) == {}
