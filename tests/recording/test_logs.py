"""Other people's viewers and logs: what goes out comes back, and what cannot be read says why."""

import csv
import json

import numpy as np
import pytest
from helpers import hand_made, tiny, trained

from labkit.cli.main import main
from labkit.diagnosis.diagnose import diagnose
from labkit.recording import logs
from labkit.recording.run import RunError


@pytest.fixture(scope="module")
def run():
    return trained(tiny(steps=8, evaluate_every=4))


def test_every_number_has_a_name_and_a_step(run):
    rows = list(logs.scalars(run))
    names = {name for name, _, _ in rows}
    assert {"loss", "grad_norm/layer1", "grad_mean/layer2.bias", "dead/relu1", "val_accuracy"} <= names
    assert [step for name, step, _ in rows if name == "val_loss"] == run["val_step"].tolist()
    assert [value for name, _, value in rows if name == "loss"] == pytest.approx(run["loss"])


def test_a_csv_file_holds_it_all_and_can_be_read_back(run, tmp_path):
    path = logs.to_csv(run, tmp_path / "run.csv")
    with open(path, newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 9 and float(rows[0]["loss"]) == pytest.approx(run["loss"][0])  # a validation after the last
    again = logs.read(path)
    np.testing.assert_allclose(again["loss"], run["loss"])
    np.testing.assert_allclose(again["val_accuracy"], run["val_accuracy"], rtol=1e-6)


def test_json_has_null_for_nan(run, tmp_path):
    broken = hand_made(loss=np.array([1.0, np.nan, np.inf]))
    content = json.loads(logs.to_json(broken, tmp_path / "run.json").read_text(encoding="utf-8"))
    assert content["traces"]["loss"] == [1.0, None, None] and content["layers"] == ["layer1", "layer2", "layer3"]


def test_tensorboard_gets_scalars_histograms_and_settings(run, tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logs.to_tensorboard(run, tmp_path)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [one.value for one in events.Scalars("loss")] == pytest.approx(run["loss"])
    assert "activation/relu1" in events.Tags()["histograms"] and events.Tags()["tensors"] is not None
    np.testing.assert_allclose(logs.read(tmp_path)["loss"], run["loss"], rtol=1e-6)


def test_wandb_offline_writes_a_folder(run, tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.chdir(tmp_path)
    logs.to_wandb(run, settings={"silent": True})
    assert list(tmp_path.glob("wandb/offline-run-*"))


@pytest.mark.parametrize(
    ("content", "words"),
    [("a,b\n1,2\n", "expected a column 'step', found a, b"), ("step,b\n1,2\n", "expected a series 'loss', found b")],
)
def test_a_log_that_cannot_be_understood_says_what_is_missing(content, words, tmp_path):
    (tmp_path / "log.csv").write_text(content, encoding="utf-8")
    with pytest.raises(RunError, match=words):
        logs.read(tmp_path / "log.csv")


def test_other_names_and_empty_cells_are_understood(tmp_path):
    (tmp_path / "log.csv").write_text(
        "global_step,train/loss,eval_loss,note\n0,2.3,,x\n1,2.1,2.2,y\n", encoding="utf-8"
    )
    run = logs.read(tmp_path / "log.csv")
    assert run["loss"].tolist() == [2.3, 2.1] and run["val_step"].tolist() == [1] and run["val_loss"].tolist() == [2.2]


def test_the_command_examines_a_saved_run(tmp_path, capsys):
    path = hand_made().save(tmp_path / "run.npz")
    assert main(["diagnose", str(path)]) == 0
    assert "no failure shows" in capsys.readouterr().out
    assert main(["diagnose", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main(["diagnose", str(tmp_path / "nothing.csv")]) == 2


def test_a_log_of_the_loss_alone_is_asked_what_it_can_answer(tmp_path):
    rows = "".join(f"{step},{2.3 - 0.02 * step}\n" for step in range(60))
    (tmp_path / "log.csv").write_text("step,loss\n" + rows, encoding="utf-8")
    assert diagnose(logs.read(tmp_path / "log.csv")) == []


LOSSES = [2.3, 2.1, 1.9]


@pytest.mark.parametrize("name", ["run-train-tag-epoch_loss", "loss of my run"])
def test_a_scalar_that_tensorboard_exported_is_read(name, tmp_path):
    rows = [(1.5e9 + step, step, loss) for step, loss in enumerate(LOSSES)]
    table = "Wall time,Step,Value\n" + "".join(f"{when},{step},{loss}\n" for when, step, loss in rows)
    (tmp_path / f"{name}.csv").write_text(table, encoding="utf-8")
    (tmp_path / f"{name}.json").write_text(json.dumps(rows), encoding="utf-8")
    for kind in (".csv", ".json"):
        run = logs.read(tmp_path / f"{name}{kind}")
        assert run["loss"].tolist() == LOSSES and run["step"].tolist() == [0, 1, 2]


def test_another_scalar_is_not_taken_for_the_loss(tmp_path):
    (tmp_path / "run-a-tag-accuracy.csv").write_text("Wall time,Step,Value\n1,0,0.5\n", encoding="utf-8")
    with pytest.raises(RunError, match="expected a series 'loss', found accuracy"):
        logs.read(tmp_path / "run-a-tag-accuracy.csv")


@pytest.mark.parametrize("content", ["{}", "[[1, 2]]", "[[1, 2, true]]", "[1", '[[1, 2, "3"]]'])
def test_json_that_is_no_exported_scalar_is_refused(content, tmp_path):
    (tmp_path / "log.json").write_text(content, encoding="utf-8")
    with pytest.raises(RunError, match=r"log\.json"):
        logs.read(tmp_path / "log.json")


def test_json_with_a_step_that_is_no_number_of_steps_is_refused(tmp_path):
    (tmp_path / "log.json").write_text(f"[[1, -1, 2], [1, {10**400}, 2]]", encoding="utf-8")
    with pytest.raises(RunError, match="expected a step"):
        logs.read(tmp_path / "log.json")
