"""`labkit.treat`: a cure is reported when it was seen to work beside untreated and placebo, and only then."""

import dataclasses
import functools
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from treated_programs import ascending, ascending_and_slow, healthy, seeds_itself, slow, train

import labkit
from labkit.diagnosis.diagnose import UNSURE
from labkit.diagnosis.treatment import arms, experiment
from labkit.diagnosis.treatment.answer import CURED, NOT_CURED, NOTHING, UNPROVEN
from labkit.diagnosis.treatment.arms import (
    CRASHED,
    DONE,
    KILLED,
    LATE,
    REFUSED,
    Arm,
    Forked,
    Here,
    Order,
    Script,
    script,
)
from labkit.diagnosis.treatment.judgement import TRAINING, Measure
from labkit.diagnosis.treatment.plots import frame
from labkit.diagnosis.treatment.treat import treat
from labkit.diagnosis.treatment.words import confirmation
from labkit.errors import RecipeError

forks = pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="needs fork")


@pytest.fixture(scope="module")
def cured():
    return treat(ascending, progress=False)


def test_the_cure_is_found_proven_and_written_down(cured):
    assert cured.verdict == CURED and cured.names == ("sign_changed",) and cured.confirmed
    assert cured.effect.low > 0 and cured.over_placebo.low > 0 and cured.effect.seeds >= 3
    text = str(cured)
    for part in ("Cured", "(-loss).backward()", "a change that should not matter", "95 % interval", "untreated"):
        assert part in text


def test_the_answer_as_json_runs_and_picture(cured):
    plain = json.loads(cured.to_json())
    assert plain["verdict"] == CURED and plain["cure"]["names"] == ["sign_changed"] and plain["runs"] == cured.spent
    assert {each["words"] for each in plain["tried"]} >= {"untreated", "a change that should not matter"}
    assert cured.runs[Arm(("sign_changed",), 1)].accuracy > cured.runs[Arm((), 1)].accuracy + 0.2
    ax = cured.plot()
    assert {"untreated", "placebo"} <= set(ax.get_legend_handles_labels()[1])


def test_a_healthy_program_is_left_alone_after_one_run():
    answer = treat(healthy, progress=False)
    assert answer.verdict == NOTHING and answer.spent == 1 and not answer.names
    assert "Nothing to treat" in str(answer) and "ends with a validation accuracy of 0." in str(answer)


def test_two_faults_are_peeled_one_after_the_other():
    answer = treat(ascending_and_slow, progress=False)
    assert answer.verdict == CURED and len(answer.names) == 2, str(answer)
    assert "sign_changed" in answer.names or "usual_loss" in answer.names


def test_a_program_that_seeds_itself_rests_on_one_seed():
    answer = treat(seeds_itself, progress=False)
    assert answer.verdict == CURED and answer.one_seed and "rests on one seed" in str(answer)
    longer = [each.names for each in answer.tried if any("as_long" in name for name in each.names)]
    assert all(len(names) == 1 for names in longer)  # beside what cures, longer training is no second cure
    untreated = [answer.runs[Arm((), seed)]["loss"] for seed in (0, 1, 2)]
    assert answer.stirred and answer.effect.seeds >= 3  # other batches, drawn after the call of watch
    assert not np.array_equal(untreated[1], untreated[2])


@pytest.mark.parametrize("name", ["sign_changed", "usual_loss", "watched_loss"])
def test_an_arm_that_minimises_another_loss_records_it_and_keeps_the_programs_own(name):
    """The program's own loss, of the wrong sign, rises while the net learns: a diagnosis of it would be wrong."""
    run = Here(ascending)(Order(Arm((name,), 0), steps=60)).run
    assert run["loss"][-10:].mean() < 0.7 * run["loss"][:10].mean()
    assert np.allclose(run["program_loss"], -run["loss"], atol=1e-5)
    assert not labkit.diagnose(run)
    own = Measure(TRAINING, higher=False).curve(run)  # arms are compared by one and the same loss
    assert own.values[-1] < own.values[0]


def test_an_arm_with_the_programs_own_loss_has_no_other():
    assert "program_loss" not in Here(ascending)(Order(Arm(("faster_adam",), 0), steps=60)).run


# --- luck ---------------------------------------------------------------------------------------------


def test_a_cure_confirms_a_diagnosis_only_if_it_is_made_for_it(cured):
    (first, *_), unsure = cured.diagnoses, ("zero_init", "dead_relu", "loss_scaled_down")
    several = (dataclasses.replace(first, name=UNSURE, candidates=unsure),)
    assert "Confirmed" in confirmation(cured)
    assert "does not confirm it" in confirmation(dataclasses.replace(cured, names=("usual_loss",)))
    assert "Not confirmed" in confirmation(dataclasses.replace(cured, names=("warm_up",)))
    assert "does not tell" in confirmation(dataclasses.replace(cured, names=("adam",), diagnoses=several))
    assert "candidates, dead" in confirmation(dataclasses.replace(cured, names=("leaky",), diagnoses=several))


def test_the_picture_has_no_range_test_and_room_for_what_matters():
    answer = treat(slow, progress=False, budget=14)
    assert any("range_test" in arm.names for arm in answer.runs)
    assert len(answer.plot().lines) == len([arm for arm in answer.runs if "range_test" not in arm.names])
    _, ax = plt.subplots()
    frame(ax, [0.1, 0.5, 40.0, np.nan])
    assert ax.get_yscale() == "log" and ax.get_ylim()[1] < 60
    frame(other := plt.subplots()[1], [0.2, 0.8])
    assert other.get_yscale() == "linear" and 0.8 < other.get_ylim()[1] < 0.9
    plt.close("all")


class Played:
    """Arms with given scores in the place of real runs."""

    def __init__(self, scores, drawn=True):
        self.scores = scores  # (names, seed) -> accuracy
        self.drawn = drawn  # another run for each seed, or the same

    def __call__(self, order, report=None):
        value = self.scores(order.arm.names, order.arm.seed)
        loss = np.full(40, 0.7 + 0.01 * order.arm.seed * self.drawn)
        traces = {"step": np.arange(40), "loss": loss, "val_step": np.array([40]), "val_accuracy": np.array([value])}
        run = labkit.Run(traces, facts={"label_shares": [0.5, 0.5]})
        return arms.Result(order.arm, DONE, "", run, ("accuracy",), 0.01)


def experiment_of(scores):
    return experiment.Experiment(Played(scores), (0, 1, 2, 3, 4), progress=False)


def test_a_placebo_that_wins_by_luck_on_one_seed_is_not_reported():
    """On the first seed the placebo reaches 95 %, far more than any treated arm; on the others it does nothing."""

    def scores(names, seed):
        noise = 0.01 * ((seed * 7) % 3)
        if names == ("placebo",):
            return 0.95 if seed == 0 else 0.6 + noise
        return {(): 0.6, ("clipped",): 0.75}.get(names, 0.6) + noise

    one = experiment_of(scores)
    one.run([Arm((), 0), Arm(("clipped",), 0)])
    winner = one.prove(("clipped",))
    assert winner == ("clipped",) and one.gain(("placebo",)) > 0.3  # it did win there
    assert not one.proven(("placebo",))
    assert one.best_so_far().arm.names == ("clipped",)
    assert not one.proven(("clipped",))  # and an arm that is not better than chance is no cure either


def test_an_arm_that_wins_by_luck_on_one_seed_is_not_proven():
    def scores(names, seed):
        return 0.6 + 0.01 * seed + (0.3 if names == ("clipped",) and seed == 0 else 0.0)

    one = experiment_of(scores)
    one.run([Arm((), 0), Arm(("clipped",), 0)])
    one.prove(("clipped",))
    assert len(one.scores(("clipped",))) == 5 and not one.proven(("clipped",))


def test_an_arm_that_wins_on_every_seed_is_proven_after_three():
    one = experiment_of(
        lambda names, seed: 0.6 + 0.01 * seed + (0.3 + 0.01 * (seed % 2) if names == ("clipped",) else 0.0)
    )
    one.run([Arm((), 0), Arm(("clipped",), 0)])
    one.prove(("clipped",))
    assert len(one.scores(("clipped",))) == 3 and one.proven(("clipped",))


def test_a_gain_that_is_certain_but_small_is_no_cure():
    one = experiment_of(lambda names, seed: 0.8 + 0.01 * seed + (0.02 if names == ("clipped",) else 0.0))
    one.run([Arm((), 0), Arm(("clipped",), 0)])
    one.prove(("clipped",))
    assert one.effect(("clipped",)).low > 0 and not one.proven(("clipped",))


@pytest.mark.parametrize(("reached", "proven"), [(0.62, False), (0.85, True)])
def test_one_run_each_proves_a_large_effect_only(reached, proven):
    """Between seeds healthy programs differ by 2 % to 15 %: a single run that is 17 % better may be luck."""
    one = experiment_of(lambda names, seed: 0.6)
    one.runner = Played(lambda names, seed: reached if names == ("clipped",) else 0.6, drawn=False)
    one.run([Arm((), 0), Arm(("clipped",), 0)])
    one.prove(("clipped",))
    assert one.repeats_itself and one.stirred and one.effect(("clipped",)).share > 0.1
    assert one.proven(("clipped",)) is proven


def test_half_a_point_of_accuracy_is_no_cure_of_a_program_that_learned_nothing():
    one = experiment_of(lambda names, seed: 0.505 if names == ("clipped",) else 0.5)
    one.run([Arm((), 0), Arm(("clipped",), 0)])
    one.prove(("clipped",))
    assert one.effect(("clipped",)).low > 0 and not one.proven(("clipped",)) and one.best_so_far() is None


def test_what_is_made_of_parts_is_taken_apart():
    good = {("standard_data",): 0.9, ("standard_targets",): 0.9}
    one = experiment_of(lambda names, seed: good.get(names, 0.6))
    one.run([Arm((), 0), Arm(("standard_data",), 0)])
    assert one.simplest(("standard_data",)) == ("standard_targets",)


def test_runs_are_kept_for_the_proof():
    answer = treat(slow, progress=False, budget=14)
    assert answer.spent <= 14 and answer.effect.seeds == answer.over_placebo.seeds == 3, str(answer)


# --- arms that fail -----------------------------------------------------------------------------------


def killing(watch, seed):
    train(watch, seed, each_step=lambda step, model: step == 20 and __import__("os").kill(__import__("os").getpid(), 9))


def hanging(watch, seed):
    train(watch, seed, each_step=lambda step, model: step == 20 and __import__("time").sleep(3600))


def raising(watch, seed):
    train(watch, seed, each_step=lambda step, model: 1 / (20 - step))


@forks
def test_a_killed_arm_is_one_that_failed():
    result = Forked(killing)(Order(Arm()))
    assert (result.status, result.run) == (KILLED, None) and "signal 9" in result.why


@forks
def test_a_hanging_arm_is_ended():
    result = Forked(hanging)(Order(Arm(), seconds=8.0))
    assert result.status == LATE and "no end after 8 s" in result.why


def leaving(watch, seed, folder, how):
    """Starts a process that outlives it and has its pipes, then is killed or hangs."""

    def each(step, model):
        if step == 20:
            child = os.fork()
            if child == 0:
                time.sleep(3600)
            Path(folder, "child").write_text(str(child))
            how()

    train(watch, seed, each_step=each)


def wait_until(true):
    """A killed process needs a moment to end; the test's own time limit ends the wait for one that was not killed."""
    while not true():
        time.sleep(0.05)


def gone(pid: int) -> bool:
    """Ended, and waiting at most for its new parent to notice."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize(
    ("how", "status", "seconds"),
    [(lambda: os.kill(os.getpid(), 9), KILLED, None), (lambda: time.sleep(3600), LATE, 8.0)],
)
def test_what_an_arm_has_started_ends_with_it(tmp_path, how, status, seconds):
    program = functools.partial(leaving, folder=tmp_path, how=how)
    assert Forked(program)(Order(Arm(), seconds=seconds)).status == status
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: gone(child))


def asking(watch, seed):
    input("which data? ")


@forks
def test_an_arm_that_asks_gets_no_answer(monkeypatch):
    monkeypatch.setattr("builtins.input", lambda _: os.read(0, 1) or 1 / 0)  # as at a terminal, where it would wait
    result = Forked(asking)(Order(Arm(), seconds=20.0))
    assert result.status == CRASHED and "ZeroDivisionError" in result.why


@forks
def test_a_program_that_treats_itself_is_told_so():
    def program(watch):
        treat(slow, progress=False)

    with pytest.raises(RecipeError, match=r"calls labkit\.treat itself"):
        treat(program, progress=False)


def test_a_crash_keeps_what_was_recorded():
    result = Here(raising)(Order(Arm()))
    assert result.status == CRASHED and "ZeroDivisionError" in result.why and len(result.run) == 21
    assert "(test_treat.py, line " in result.why


@forks
def test_an_experiment_goes_on_without_the_arms_that_failed():
    """Every learning rate that would cure kills its process; another prescription is not there: not cured."""

    def program(watch, seed):
        def fatal(step, model):
            if step > 3 and watch.names and "placebo" not in watch.names:
                __import__("os").kill(__import__("os").getpid(), 9)

        train(watch, seed, lr=5e-6, each_step=fatal)

    answer = treat(program, progress=False, budget=12)
    assert answer.verdict == NOT_CURED
    assert {each.status for each in answer.tried if each.names} - {REFUSED} == {KILLED}
    assert "signal 9" in str(answer)


# --- nothing changes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pytest.param(Forked, marks=forks), Here])
def test_nothing_of_the_caller_changes(kind):
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    backward, threads = torch.Tensor.backward, torch.get_num_threads()
    for names in ((), ("usual_loss",), ("placebo",)):
        assert kind(ascending)(Order(Arm(names, 0), steps=60)).status == DONE
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[2]
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert torch.Tensor.backward is backward and torch.get_num_threads() == threads


def test_an_untreated_arm_is_the_program_itself():
    """Through the intervening watch, without prescriptions, the losses are those of labkit.watch."""
    records = []

    def kept(model, optimizer, **options):
        records.append(labkit.watch(model, optimizer, **options))
        return records[-1]

    torch.manual_seed(0)
    ascending(kept, 0)
    result = Here(ascending)(Order(Arm()))
    assert np.array_equal(records[0].run["loss"], result.run["loss"])
    assert np.array_equal(records[0].run["lr"], result.run["lr"])


def test_ctrl_c_keeps_what_is_known():
    def interrupt(arm, event):
        if arm.names:
            raise KeyboardInterrupt

    answer = treat(slow, progress=False, on_event=interrupt)
    assert answer.ending == "interrupted" and answer.diagnoses and answer.verdict in (NOT_CURED, UNPROVEN)
    assert "interrupted" in str(answer)


@forks
def test_ctrl_c_ends_all_arms_that_are_under_way(tmp_path):
    """Of two at once one hangs, and the other reports."""
    hanging_one = tmp_path / "pid"

    def program(watch, seed):
        def wait(step, model):
            if step == 20 and watch.names and watch.names != ("range_test",) and not hanging_one.exists():
                hanging_one.write_text(str(os.getpid()))
                time.sleep(3600)

        train(watch, seed, lr=5e-6, each_step=wait)

    def interrupt(arm, event):
        if hanging_one.exists():
            raise KeyboardInterrupt

    answer = treat(program, progress=False, jobs=2, on_event=interrupt)
    assert answer.ending == "interrupted" and not answer.cured
    with pytest.raises(ProcessLookupError):
        os.kill(int(hanging_one.read_text()), 0)


def test_a_budget_is_kept():
    answer = treat(slow, progress=False, budget=3)
    assert answer.spent <= 3 and answer.verdict in (UNPROVEN, NOT_CURED) and "budget" in answer.ending


# --- bad input ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"program": 3}, "expected a function of `watch`"),
        ({"program": slow, "budget": "soon"}, "budget: expected a number of runs"),
        ({"program": slow, "budget": 0}, "budget: expected a number of runs"),
        ({"program": slow, "seeds": (1, 1, 1)}, "at least three different"),
        ({"program": slow, "jobs": 0}, "jobs"),
        ({"program": slow, "measure": "f1"}, "expected one of accuracy, got 'f1'"),
        ({"program": lambda watch: None}, "never called `watch`"),
    ],
)
def test_bad_input_is_explained(arguments, words):
    with pytest.raises(RecipeError, match=words):
        treat(progress=False, **arguments)


def test_a_script_without_watch_is_refused(tmp_path):
    (tmp_path / "plain.py").write_text("print('hello')")
    with pytest.raises(RecipeError, match="expected a function of `watch`"):
        script(str(tmp_path / "plain.py"))
    (tmp_path / "two.py").write_text("def a(watch): pass\ndef b(watch): pass")
    with pytest.raises(RecipeError, match="several functions"):
        script(str(tmp_path / "two.py"))
    with pytest.raises(RecipeError, match="no function 'c'"):
        script(f"{tmp_path / 'two.py'}:c")
    assert script(f"{tmp_path / 'two.py'}:b")[1] == "b"


# --- scripts, from the terminal ----------------------------------------------------------------------

WHOLE = """
import torch
from torch import nn
import labkit

torch.manual_seed(0)
x = torch.randn(300, 5)
y = (x[:, 0] * 3 - x[:, 1] + 2).unsqueeze(1) * 1000 + 5000          # prices, in dollars
model = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Linear(24, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loss_fn = nn.MSELoss()

with labkit.watch(model, optimizer, probe=(x[:64], y[:64]), loss_fn=loss_fn) as record:
    for epoch in range(8):
        for batch in torch.randperm(240).split(24):
            optimizer.zero_grad()
            loss = loss_fn(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            record.step(loss, batch=(x[batch], y[batch]))
        with torch.no_grad():
            error = loss_fn(model(x[240:]), y[240:])
        record.validation(loss=error, r2=1 - error / y[240:].var())
    print(record.report())
"""

FUNCTION = """
import argparse
import torch
from torch import nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(10, 32), nn.Linear(32, 4)

    def forward(self, x):
        return F.softmax(self.fc2(F.relu(self.fc1(x))), dim=0)      # over the batch


def main(watch, seed=0):
    torch.manual_seed(seed)
    x = torch.randn(400, 10)
    y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    with watch(net, opt, probe=(x[:100], y[:100])) as record:
        for i in range(90):
            idx = torch.randint(0, 300, (32,))
            opt.zero_grad()
            loss = F.cross_entropy(net(x[idx]), y[idx])
            loss.backward()
            opt.step()
            record.step(loss, batch=(x[idx], y[idx]))
            if i % 15 == 14:
                net.eval()
                with torch.no_grad():
                    out = net(x[300:])
                acc = (out.argmax(1) == y[300:]).float().mean()
                record.validation(loss=F.cross_entropy(out, y[300:]), accuracy=acc)
                net.train()


if __name__ == "__main__":
    argparse.ArgumentParser().parse_args()
    import labkit
    main(labkit.watch)
"""

LABELS = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy

def train(watch, seed):
    torch.manual_seed(seed)
    x = torch.randn(300, 8)
    y = (x[:, 0] > 0).long()
    y[:240] = y[:240][torch.randperm(240)]                          # a shuffle of one column of a table
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    with watch(net, opt, probe=(x[:64], y[:64])) as record:
        for epoch in range(6):
            for b in torch.randperm(240).split(24):
                opt.zero_grad()
                loss = cross_entropy(net(x[b]), y[b])
                loss.backward()
                opt.step()
                record.step(loss, batch=(x[b], y[b]))
            with torch.no_grad():
                out = net(x[240:])
            record.validation(loss=cross_entropy(out, y[240:]), accuracy=(out.argmax(1) == y[240:]).float().mean())
"""


def in_terminal(tmp_path: Path, source: str, *arguments: str, function: str = "") -> str:
    path = tmp_path / "train.py"
    path.write_text(source)
    command = [sys.executable, "-m", "labkit", "treat", f"{path}{function}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_a_whole_script_with_prices_as_targets(tmp_path):
    said = in_terminal(tmp_path, WHOLE, "--out", str(tmp_path / "arms.png"))
    assert said.startswith("Cured") and "targets with mean 0 and standard deviation 1" in said
    assert "y_train = (y_train - mean) / std" in said and "rests on one seed" in said
    assert (tmp_path / "arms.png").stat().st_size > 5000


def test_a_script_with_a_function_and_a_functional_softmax(tmp_path):
    said = json.loads(in_terminal(tmp_path, FUNCTION, "--json", function=":main"))
    assert said["verdict"] == CURED and "raw_outputs" in said["cure"]["names"], said["cure"]
    assert said["effect over untreated"]["low"] > 0 and not said["one seed"]


def test_a_script_whose_labels_are_wrong_is_not_cured_and_shows_samples(tmp_path):
    said = in_terminal(tmp_path, LABELS, "--budget", "30")
    assert said.startswith("Not cured") or said.startswith("Not proven")
    assert "Only you can change this" in said and "target" in said and "Tried" in said


def test_a_fresh_interpreter_gives_the_same_run_as_a_fork(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(LABELS)
    there = Script(path, "train")(Order(Arm(("adam",), 1), steps=60))
    here = Here(arms.program_of(path, "train"))(Order(Arm(("adam",), 1), steps=60))
    assert there.status == here.status == DONE and np.allclose(there.run["loss"], here.run["loss"])
