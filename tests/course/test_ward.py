"""The ward: a patient says nothing of what it has, the seed makes it the same for all, and the grade is earned."""

import copy
import csv
import dataclasses
import json
import pickle
import sys
import threading
import traceback

import pytest
from helpers import tiny, trained
from short_ward import tells, ward_of

import labkit
from labkit.cli.main import main
from labkit.course.ward import cases, prescriptions
from labkit.course.ward.cases import NETS, Case, draw, is_solvable, is_verified, play_case, verified_cases
from labkit.course.ward.game import _FILES, AGAIN, BETTER, CURED, MOST, RIGHT, TRIES, Stopped, Ward, truth, ward
from labkit.course.ward.instruments import INSTRUMENTS, Chart, believed_part
from labkit.errors import RecipeError
from labkit.failures.catalogue import FAILURES, HEADLINES
from labkit.training import run_store
from labkit.training.recipe import Recipe

CASES = verified_cases()
MODULE = sys.modules["labkit.course.ward.game"]


def patient_with(name: str):
    patients = ward_of(name)
    _KEPT.append(patients)  # a patient is known as long as its ward is
    return patients[1]


_KEPT: list[Ward] = []


# --- who is drawn ---------------------------------------------------------------------------------


def test_a_seed_admits_the_same_patients_and_another_one_others():
    assert draw(7, 6) == draw(7, 6) != draw(8, 6)
    assert draw(7, 10)[:4] == draw(7, 4)
    assert len({case.name for case in draw(7, len(CASES))}) == len(CASES)


def test_a_ward_has_headlines_and_others_in_each_group_of_three():
    listed_headlines = set(HEADLINES) & set(CASES)
    for seed in range(20):
        for group in (draw(seed, 6)[:3], draw(seed, 6)[3:]):
            assert len({case.name for case in group} & listed_headlines) == 1


def test_every_net_and_several_topics_are_drawn():
    drawn = [case for seed in range(10) for case in draw(seed, 6)]
    assert {case.net for case in drawn} == set(NETS)
    assert len({case.mode.topic for case in drawn}) >= 6


def test_only_failures_that_can_be_found_are_listed():
    assert all(is_solvable(FAILURES[name]) for name in CASES) and all(CASES.values())
    assert not is_solvable(FAILURES["in_place_edit"]) and not is_solvable(FAILURES["sampler_missing"])
    assert not is_solvable(FAILURES["leakage"])
    told = {name: mode.not_in_ward for name, mode in FAILURES.items() if mode.not_in_ward}
    assert set(told) == {"unregistered_layers", "warmup_missing"}
    for name in told:  # solvable, if its file did not exclude it
        mode = FAILURES[name]
        assert not is_solvable(mode) and is_solvable(dataclasses.replace(mode, not_in_ward=""))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_listed_patient_fails_is_named_and_is_cured(seed):
    [case] = draw(seed, 1)
    assert is_verified(play_case(case))


def test_what_does_not_hold_is_not_listed(monkeypatch, tmp_path):
    monkeypatch.setattr(cases, "is_solvable", lambda mode: mode.name in ("dead_relu", "underfit"))
    monkeypatch.setattr(cases, "_passes", lambda case: case.name == "underfit" and case.net == "own")
    assert cases.regenerate([5], path=tmp_path / "list.json") == 1
    assert json.loads((tmp_path / "list.json").read_text(encoding="utf-8")) == {"underfit": {"own": [5]}}


def test_bad_wishes_are_refused():
    with pytest.raises(RecipeError, match=r"seed: expected a whole number, got 'seven'"):
        labkit.ward(seed="seven")
    with pytest.raises(RecipeError, match="patients: expected a whole number at least 1, got 0"):
        labkit.ward(patients=0)
    with pytest.raises(RecipeError, match=rf"patients: expected at most {len(CASES)}, one per failure, got 1000"):
        labkit.ward(patients=1000)
    with pytest.raises(RecipeError, match="the ward has the patients 1 to 2, got 0"):
        labkit.ward(patients=2)[0]


# --- sealed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["zero_grad_missing", "softmax_before_cross_entropy", "fp16_overflow"])
def test_a_patient_does_not_say_what_it_has(name):
    patient = patient_with(name)
    finding = patient.order("gradients")
    shown = [repr(patient), str(patient), str(vars(patient)), str(dir(patient)), patient._repr_html_()]
    shown += [repr(_FILES[patient]), repr(vars(_FILES[patient])["case"]), repr(finding), str(finding.run)]
    shown += [str(finding), finding._repr_html_().split("<img")[0], str(patient.record()), str(_KEPT[-1])]
    assert not any(tells(text, name) for text in shown)
    assert finding.run.recipe == {} and set(finding.run.facts) == {"first_nonfinite"}


@pytest.mark.parametrize("name", ["zero_grad_missing", "naive_softmax", "stale_optimizer"])
def test_no_instrument_names_the_failure(name):
    patient = patient_with(name)
    for instrument in INSTRUMENTS.keys() - {"colleague"}:
        finding = patient.order(instrument)
        assert finding.rows and not tells(str(finding), name), instrument
        assert set(finding.run.traces) <= {"step", "val_step", *INSTRUMENTS[instrument].traces}


def test_a_loss_of_ones_own_is_not_called_by_its_name():
    finding = patient_with("naive_softmax").order("first_nan")
    assert "loss: the loss function" in finding.words and finding.run.facts["first_nonfinite"]["stage"] == "loss"


def test_a_patient_cannot_be_pickled_or_copied():
    admitted = ward(3, 1)
    for thing in (admitted, admitted[1]):
        for save in (pickle.dumps, copy.deepcopy):
            with pytest.raises(RecipeError, match="cannot be saved"):
                save(thing)


def test_the_runs_of_a_patient_are_nowhere_but_in_its_file(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))
    patient = patient_with("dead_relu")
    patient.order("loss")
    recipe = _FILES[patient].case.recipes["sick"]
    assert run_store.in_memory.get(recipe) is None and list(tmp_path.iterdir()) == []
    monkeypatch.setattr(run_store, "train", lambda *_, **__: pytest.fail("trained again"))
    patient.order("gradients")


def test_an_error_does_not_show_the_failures_own_file(monkeypatch):
    patient = patient_with("dead_relu")

    def broken(*_, **__):
        raise ValueError("no such shape\n  at failures/activations/dead_relu.py")

    monkeypatch.setattr(run_store, "train", broken)
    with pytest.raises(RecipeError, match="training failed: no such shape") as caught:
        patient.order("loss")
    assert caught.value.__context__ is None and caught.value.__cause__ is None
    assert not tells("".join(traceback.format_exception(caught.value)), "dead_relu")
    assert patient.spent == 0 and patient.record()["ordered"] == []


def test_every_settings_sheet_names_plain_parts_alone():
    for name in CASES:
        recipes = Case(name, "own", 0).recipes
        chart = Chart(None, recipes["sick"], recipes["healthy"], FAILURES[name])
        for part in ("optimizer", "schedule"):
            assert believed_part(part, chart) in Recipe.__dataclass_fields__[part].metadata["known"]


# --- instruments ----------------------------------------------------------------------------------


def test_an_instrument_is_paid_once_and_the_loss_is_free():
    patient = patient_with("learning_rate_too_high")
    patient.order()
    assert patient.spent == 0
    first = patient.order("gradients")
    assert patient.order("gradients") is first and patient.spent == INSTRUMENTS["gradients"].price == 2
    assert first["grad_norm"].shape == (len(first["step"]), 3) and len(first.figure().axes) == 3
    with pytest.raises(RecipeError, match=r"there is no instrument 'gradient'\. Did you mean 'gradients'"):
        patient.order("gradient")


def test_all_instruments_cost_more_than_a_patient_is_worth():
    prices = ward(0, 1).prices
    assert prices["loss"] == 0 and min(price for name, price in prices.items() if name != "loss") > 0
    assert sum(prices.values()) > MOST


def test_a_colleague_has_the_right_name_among_look_alikes():
    [(_, names)] = patient_with("dead_relu").order("colleague").rows
    assert "dead_relu" in names.split(", ") and len(names.split(", ")) == 4
    assert {FAILURES[each].looks for each in names.split(", ")} == {FAILURES["dead_relu"].looks}
    assert patient_with("dead_relu").order("colleague").rows[0][1] == names


def test_the_numbers_are_those_of_the_run():
    patient = patient_with("learning_rate_too_low")
    run = trained(_FILES[patient].case.recipes["sick"])
    assert (patient.order("loss")["loss"] == run["loss"]).all()
    assert f"{run.accuracy:.1%} at the end" in patient.order("validation").words
    assert dict(patient.order("settings").rows)["lr"] == "1e-06"


def test_a_run_that_is_stopped_costs_nothing():
    patient = patient_with("dead_relu")
    with pytest.raises(Stopped):
        patient.order("gradients", each_step=lambda _: True)
    assert patient.spent == 0
    assert len(patient.order("gradients")["step"]) == 6


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("truth", "said", "points", "words"),
    [
        ("zero_grad_missing", "zero_grad_missing", 10, "Correct: Gradients never cleared"),
        ("zero_grad_missing", "dead_relu", 5, "something else causes it"),
        ("dead_relu", "zero_grad_missing", 5, "that can cause"),
        ("learning_rate_too_low", "learning_rate_left_low", 3, "the same kind"),
        ("blank_inputs", "step_missing", 2, "the loss would look the same"),
        ("blank_inputs", "fp16_overflow", 0, "No"),
    ],
)
def test_a_name_is_worth_what_it_is_near(truth, said, points, words):
    patient = patient_with(truth)
    answer = patient.name(said)
    assert (answer.points, answer.right) == (points, points == RIGHT) and words in answer.words
    assert patient.record()["name_points"] == points and not patient.graded


def test_a_further_name_costs_and_a_misspelt_one_does_not():
    patient = patient_with("blank_inputs")
    with pytest.raises(KeyError, match="Did you mean 'dead_relu'"):
        patient.name("dead_rellu")
    patient.name("fp16_overflow")
    patient.name("blank_inputs")
    assert patient.record()["name_points"] == RIGHT - AGAIN
    with pytest.raises(RecipeError, match="already has the correct name"):
        patient.name("dead_relu")


def test_three_names_are_the_most():
    patient = patient_with("blank_inputs")
    for _ in range(TRIES):
        patient.name("fp16_overflow")
    with pytest.raises(RecipeError, match="has used all 3 tries"):
        patient.name("blank_inputs")
    assert patient.record()["name_points"] == 0


# --- prescriptions --------------------------------------------------------------------------------


def test_the_prescription_of_the_truth_is_the_proven_cure():
    for row, case in zip(truth(4, len(CASES)), draw(4, len(CASES)), strict=True):
        code, settings = eval(row["prescribe"], {"patient": Scribe()})
        prescriptions.check(code, settings)
        assert prescriptions.apply(case.recipes["sick"], code, settings) == case.recipes["cured"], row["failure"]


class Scribe:
    """A patient that only writes down what is prescribed."""

    def prescribe(self, code=None, **settings):
        return code, settings


def test_a_change_of_code_does_nothing_where_its_fault_is_not():
    sick = FAILURES["zero_grad_missing"].sick
    assert prescriptions.apply(sick, "zero_grad() before each backward", {}).step is Recipe().step
    assert prescriptions.apply(sick, "optimizer.step() after backward", {}) == sick
    treated = patient_with("zero_grad_missing").prescribe("optimizer.step() after backward")
    assert not treated.cured and "already has these settings" in treated.words and treated.figure() is None


@pytest.mark.parametrize(
    ("code", "settings", "message"),
    [
        (None, {}, "an empty prescription"),
        ("zero_grad before each backward", {}, r"Did you mean 'zero_grad\(\) before each backward'"),
        (None, {"seed": 3}, "cannot be prescribed"),
        (None, {"step": "plain_step"}, "changed by one of ward.treatments"),
        (None, {"lrr": 1.0}, "there is no setting 'lrr'. Did you mean 'lr'"),
        (None, {"lr": -1.0}, "lr: expected a number above 0"),
        (None, {"width": 5000}, "width: at most 512"),
        (None, {"lr": 1.0, "momentum": 0.0, "clip": 1.0, "width": 9}, "of 4 changes: at most 3"),
        (None, {"steps": 10_000}, "steps: at most 12 here"),
    ],
)
def test_a_prescription_that_cannot_be_followed_does_not_count(code, settings, message):
    patient = patient_with("learning_rate_too_high")
    with pytest.raises(RecipeError, match=message):
        patient.prescribe(code, **settings)
    assert patient.record()["prescribed"] == []


def graded(monkeypatch, accuracies: dict, problem: str = "not yet"):
    """What a prescription is worth when the runs end so."""
    patient = patient_with("learning_rate_too_high")
    run, file = trained(tiny()), _FILES[patient]
    roles = {file.case.recipes["healthy"]: "healthy", file.case.recipes["sick"]: "sick"}

    def ended(recipe, **_):
        traces = run.traces | {"val_accuracy": run["val_accuracy"] * 0 + accuracies[roles.get(recipe, "treated")]}
        return dataclasses.replace(run, traces=traces)

    monkeypatch.setattr(run_store, "train", ended)
    monkeypatch.setattr(MODULE, "why_not_cured", lambda *_: problem)
    return patient.prescribe(lr=0.2)


def test_a_prescription_is_graded_by_what_comes_of_it(monkeypatch):
    cured = graded(monkeypatch, {"healthy": 0.9, "sick": 0.1, "treated": 0.9}, problem="")
    assert (cured.points, cured.cured) == (CURED, True) and "Cured: 90.0%" in cured.words
    better = graded(monkeypatch, {"healthy": 0.9, "sick": 0.1, "treated": 0.6})
    assert (better.points, better.cured) == (BETTER, False) and "Better, not cured" in better.words
    worse = graded(monkeypatch, {"healthy": 0.9, "sick": 0.1, "treated": 0.4})
    assert worse.points == 0 and "Not cured: 40.0%" in worse.words and "had 10.0%" in worse.words
    assert len(cured.figure().axes) == 2


def test_what_is_left_of_the_failure_is_not_told_by_a_wrong_prescription():
    treated = patient_with("learning_rate_too_low").prescribe(lr=2e-6)
    assert not treated.cured and not tells(treated.words, "learning_rate_too_low")
    assert all(run.recipe == {} for run in treated.runs.values())


def test_a_net_that_cannot_be_built_does_not_count_and_one_that_stops_with_an_error_is_not_cured():
    patient = patient_with("attention_entropy_collapse")
    with pytest.raises(RecipeError, match="must be a multiple of heads 3"):
        patient.prescribe(heads=3)
    assert patient.record()["prescribed"] == []
    treated = patient_with("dead_relu").prescribe(normalisation="batch", batch_size=1)
    assert not treated.cured and "it now stops with ValueError" in treated.words


# --- to the end -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_patient_from_admission_to_the_open_file(tmp_path):
    """A whole visit, with real runs: the first patient of ward 1, cured as the instructor's list says."""
    admitted = labkit.ward(seed=1, patients=2, student="Ada")
    [row, _] = truth(1, 2)
    patient = admitted[1]
    patient.order("loss")
    patient.order("validation")
    with pytest.raises(RecipeError, match="stays sealed until you give a name"):
        patient.reveal()
    assert patient.name(row["failure"]).right
    with pytest.raises(RecipeError, match="stays sealed until you give a prescription"):
        patient.reveal()
    assert eval(row["prescribe"], {"patient": patient}).cured
    assert admitted.score == patient.points == MOST - 1
    assert admitted.records()[0]["truth"] is None
    study = patient.reveal()
    assert study.named and study.name == row["failure"] and patient.closed
    assert admitted.records()[0]["truth"] == row["failure"] and admitted.records()[1]["truth"] is None
    with pytest.raises(RecipeError, match="a name no longer counts"):
        patient.name("dead_relu")
    sheet = json.loads(admitted.score_sheet(tmp_path / "ada.json").read_text(encoding="utf-8"))
    assert (sheet["student"], sheet["seed"], sheet["score"], sheet["of"]) == ("Ada", 1, MOST - 1, 2 * MOST)
    assert sheet["patients"][0]["ordered"] == ["loss", "validation"]


def test_the_sheet_as_a_table(tmp_path):
    admitted = ward_of("blank_inputs", "dead_relu")
    admitted[1].name("fp16_overflow")
    admitted[1].name("dead_relu")
    path = admitted.score_sheet(tmp_path / "sheet.csv")
    with path.open(encoding="utf-8", newline="") as stream:
        first, second = csv.DictReader(stream)
    assert first["named"] == "fp16_overflow; dead_relu" and first["points"] == "0" and first["truth"] == ""
    assert second["patient"] == "2" and second["cured"] == "False"
    with pytest.raises(RecipeError, match=r"a \.json or a \.csv file, got 'txt'"):
        admitted.score_sheet(tmp_path / "sheet.txt")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["sheet.csv"]


def test_points_never_fall_below_zero():
    patient = patient_with("blank_inputs")
    for name in ("gradients", "updates", "colleague"):
        patient.order(name)
    assert patient.points == 0 and "0 of 20 points" in patient.grade
    patient.name("blank_inputs")
    assert patient.points == RIGHT - 9


def test_two_threads_pay_once():
    patient = patient_with("blank_inputs")
    threads = [threading.Thread(target=patient.order, args=("gradients",)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert patient.record()["ordered"] == ["gradients"]


# --- on the command line --------------------------------------------------------------------------


def test_the_waiting_room_tells_complaints_and_the_check_the_truth(capsys):
    assert main(["ward", "--seed", "7", "--patients", "4"]) == 0
    room = capsys.readouterr().out
    assert "Ward 7: 0 of 80 points" in room and "labkit.ward_panel(seed=7, patients=4)" in room
    assert not any(tells(room, case.name) for case in draw(7, 4))
    assert main(["ward", "--seed", "7", "--patients", "4", "--check"]) == 0
    check = capsys.readouterr().out
    assert all(case.name in check and next(iter(case.mode.cures)) in check for case in draw(7, 4))
    assert check.count("patient.prescribe(") == 4


def test_both_for_programs(capsys):
    main(["ward", "--seed", "7", "--patients", "2", "--json"])
    assert [set(row) for row in json.loads(capsys.readouterr().out)] == 2 * [{"patient", "complaint", "net"}]
    main(["ward", "--seed", "7", "--patients", "2", "--check", "--json"])
    assert [row["failure"] for row in json.loads(capsys.readouterr().out)] == [case.name for case in draw(7, 2)]


def test_a_ward_too_large_is_one_message(capsys):
    assert main(["ward", "--patients", "1000"]) == 2
    assert "one per failure, got 1000" in capsys.readouterr().err
