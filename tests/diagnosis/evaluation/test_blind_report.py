"""What a blind evaluation found, as people see it: missed goals are said, misses listed, conditions told."""

import dataclasses
import json

import pytest
from test_blind import FOUND, healthy, patient

from labkit.cli.main import main
from labkit.diagnosis.evaluation import blind, report
from labkit.failures.catalogue import FAILURES


def rows(found) -> dict:
    return {row.what: row for row in report.numbers(found)}


def test_each_number_stands_beside_its_goal_and_a_missed_goal_is_said():
    found = rows(FOUND)
    own = found["named first, own nets on held-out seeds"]
    assert (own.count, own.of, own.answer) == (1, 3, "MISSED") and own.wanted == "at least 95%"
    alarms = found["false alarms on healthy runs"]
    assert (alarms.count, alarms.of, alarms.answer, alarms.wanted) == (1, 3, "MISSED", "at most 1%")
    assert found["- drawn at random"].cells[1] == "1 of 2" and found["- twins of the patients"].cells[1] == "0 of 1"
    assert found["named among the first two"].answer == ""  # it has no goal


def test_a_goal_that_was_reached_is_said_too_and_nothing_is_said_of_nothing():
    good = rows(blind.Evaluation([patient(), patient(net="deeper")], [healthy()] * 3))
    assert {row.answer for row in good.values() if row.goal and row.of} == {"reached"}
    assert good["place correct, where there is one"].cells[1:] == ("0 of 0", "-", "-", "at least 90%", "")


def test_data_sets_are_told_apart_where_there_are_several():
    found = rows(blind.Evaluation([patient(), patient(dataset="cifar10", verdict=("plateau",))], []))
    assert found["named first, own nets on held-out seeds (mnist)"].answer == "reached"
    assert found["named first, own nets on held-out seeds (cifar10)"].answer == "MISSED"


def test_everything_that_went_wrong_has_a_line():
    late = patient(onset=30, place="layer2", wanted=("layer1",))
    lines = report.misses(blind.Evaluation([*FOUND.patients, late], FOUND.healthy))
    assert "dead_relu, deeper net, mnist, seed 1000: called plateau, then dead_relu" in lines
    assert "dead_relu, own net, mnist, seed 1000: called nothing" in lines
    assert any("placed in layer2, not in layer1" in line for line in lines)
    assert any("onset given as 30; it differs from its twin from step 0" in line for line in lines)
    assert lines[-1] == "false alarm on a healthy run, clipped: plateau" and len(lines) == 6
    alarmed = blind.Evaluation([patient(twin_verdict=("plateau",))], [])
    assert report.misses(alarmed) == ["false alarm on the twin of dead_relu, own net, mnist, seed 1000: plateau"]


def test_words_for_the_terminal_have_numbers_lead_time_and_what_was_left_out():
    words = " ".join(report.evaluation_as_text(FOUND).split())
    assert "1 of 3" in words and "is 20 steps (median" in words
    assert "1 of 6 patients that did not fail" in words and "1 of 3 healthy runs that did not learn" in words
    assert "the loss shows none of the failures" in report.evaluation_as_text(
        blind.Evaluation([patient(loss_alarm=None)], [])
    )


def test_the_page_says_its_conditions_its_split_and_every_miss():
    page = report.in_markdown(FOUND, "labkit clinic --healthy 3", "CLINIC.png")
    flat = " ".join(page.split())
    for words in (
        "`labkit clinic --healthy 3`",
        "torch",
        "seed 1000",
        "--split development",
        "**This page.**",
        "MISSED",
    ):
        assert words in flat, words
    assert "![Confusion matrix](CLINIC.png)" in page and "| clipped | 3 | 2 |" in page
    assert f"{len({each.name for each in FOUND.patients})} of {len(FAILURES)} modes, sick and healthy" in flat
    assert "`frozen_layers`" in page  # among the modes that have a place
    assert "**plateau**, then correct" in page and "twin did not learn" in page
    assert all(len(line) <= 120 for line in page.splitlines() if not line.startswith("|"))


def test_what_was_not_trained_yet_is_said():
    part = dataclasses.replace(FOUND, skipped=7)
    assert "7 cases that were not trained yet" in " ".join(report.evaluation_as_text(part).split())
    assert "**Not complete: 7 cases" in " ".join(report.in_markdown(part, "labkit clinic").split())
    assert "Not complete" not in report.in_markdown(FOUND, "labkit clinic")


def test_the_confusion_matrix_has_a_row_for_each_that_was_confused_and_one_for_the_rest():
    found = blind.Evaluation([*FOUND.patients, patient(name="plateau", verdict=("plateau",))], [])
    ax = report.confusion_picture(found).axes[0]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["dead_relu", "1 other modes"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["correct", "plateau", "unsure", "nothing"]
    assert [text.get_text() for text in ax.texts] == ["1"] * 5
    nobody = report.confusion_picture(blind.Evaluation([patient()] * 3, [])).axes[0]
    assert [label.get_text() for label in nobody.get_yticklabels()] == ["all 1 modes"]
    assert [text.get_text() for text in nobody.texts] == ["3"]


def test_the_command_shows_draws_and_writes(monkeypatch, capsys, tmp_path):
    asked = {}
    monkeypatch.setattr(blind, "evaluate", lambda names, **wishes: asked.update(wishes, names=names) or FOUND)
    page = tmp_path / "page.md"
    wishes = ["--modes", "dead_relu", "--dataset", "mnist,cifar10", "--split", "development", "--runs", str(tmp_path)]
    assert main(["clinic", *wishes, "--out", str(page)]) == 0
    assert "MISSED" in capsys.readouterr().out and (tmp_path / "page.png").exists()
    command = "`labkit clinic --split development --modes dead_relu --dataset mnist,cifar10`"
    assert command in page.read_text(encoding="utf-8").replace("\n", " ")
    assert asked["datasets"] == ["mnist", "cifar10"] and asked["folder"] == tmp_path and asked["seeds"] == 1
    assert main(["clinic", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["patients"][0]["name"] == "dead_relu"


def test_a_file_that_is_neither_page_nor_picture_is_refused_before_anything_is_trained(monkeypatch, capsys):
    monkeypatch.setattr(blind, "evaluate", lambda *_, **__: pytest.fail("it was evaluated"))
    assert main(["clinic", "--out", "page.doc"]) == 2
    assert "page.doc" in capsys.readouterr().err
