"""The blind evaluation: what is counted, what a right place and a right onset are, and which runs are held out."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from helpers import hand_made, tiny, trained

from labkit.diagnosis.evaluation import blind, healthy_runs
from labkit.errors import RecipeError
from labkit.failures.catalogue import FAILURES
from labkit.training import run_store

PATIENT = blind.Patient(
    name="dead_relu",
    net="own",
    dataset="mnist",
    seed=1000,
    ill=True,
    twin_learned=True,
    verdict=("dead_relu",),
    twin_verdict=(),
    twin="a",
    onset=0,
    place="relu1",
    departure=0,
    loss_alarm=20,
    wanted=(),
)


def patient(**changes) -> blind.Patient:
    return dataclasses.replace(PATIENT, **changes)


def healthy(verdict=(), learned=True) -> blind.Healthy:
    return blind.Healthy("clipped", learned, 0.93, tuple(verdict))


HELD_OUT = blind.cases(None, blind.SPLITS["held-out"], 2, ("mnist",))
FOUND = blind.Evaluation(
    [
        patient(),
        patient(verdict=("plateau", "dead_relu"), net="deeper"),
        patient(verdict=("unsure",)),
        patient(verdict=()),
        patient(verdict=(), ill=False),
        patient(verdict=(), twin_learned=False),
    ],
    [healthy(), healthy(("plateau",)), healthy(("plateau",), learned=False)],
)


def test_only_those_that_fell_ill_beside_a_healthy_twin_and_those_that_learned_are_counted():
    assert FOUND.named() == (1, 4) and FOUND.named(within=2) == (2, 4)
    assert FOUND.only(net="deeper").named() == (0, 1) and FOUND.only(net=("own", "deeper")).named() == (1, 4)
    assert FOUND.unsure == (1, 4) and len(FOUND.counted) == 2 and len(FOUND.false_alarms) == 1


def test_a_twin_that_several_modes_share_is_one_healthy_run():
    alarmed = patient(twin="b", twin_verdict=("plateau",))
    found = blind.Evaluation([patient(), patient(name="plateau"), alarmed, patient(twin="c", twin_learned=False)], [])
    assert [each.twin for each in found.twins] == ["a", "b"] and found.alarmed_twins == [alarmed]


def test_in_turn_every_mode_plays_on_its_own_net_and_on_one_other_and_the_next_seed_on_the_next():
    always = ("own", *blind.SPLITS["held-out"].also)
    one = {name: net for name, net, _, seed in HELD_OUT if seed == 2000 and net not in always}
    next_one = {name: net for name, net, _, seed in HELD_OUT if seed == 2001 and net not in always}
    assert set(one.values()) == {"two layers deeper", "a third activation"}
    assert one["plateau"] != next_one["plateau"] and one["dead_relu"] == next_one["dead_relu"] == "two layers deeper"
    assert [net for name, net, *_ in HELD_OUT if name == "plateau"].count("own") == 2
    assert "exploding_recurrent_gradients" not in one  # there is no such net


def test_confusions_are_told_with_what_was_said_instead():
    wrong = {("dead_relu", "plateau", 1), ("dead_relu", "unsure", 1), ("dead_relu", "nothing", 1)}
    assert set(FOUND.confusions()) == wrong


@pytest.mark.parametrize(
    ("place", "right"),
    [("layer1", True), ("layer1.weight", True), ("layer10", False), ("layer2", False), ("", False)],
)
def test_a_place_is_right_when_it_is_where_the_fault_was_put_or_a_part_of_it(place, right):
    assert patient(place=place, wanted=("layer3", "layer1")).place_right is right


def test_a_wrong_name_is_a_wrong_place_and_no_place_is_not_asked():
    assert patient(place="layer1", wanted=("layer1",), verdict=("plateau", "dead_relu")).place_right is False
    assert patient(wanted=()).place_right is None
    found = blind.Evaluation([patient(), patient(place="layer1", wanted=("layer1",))], [])
    assert found.placed == (1, 1)


@pytest.mark.parametrize(
    ("onset", "departure", "alarm", "right"),
    [
        (0, 0, 20, True),
        (20, 0, 20, True),
        (21, 0, 20, False),  # anybody saw it before
        (8, 10, 20, False),  # before there was anything to see
        (9, 10, 20, True),
        (11, 10, 10, True),
        (12, 10, 10, False),
        (200, 10, None, True),  # the loss never tells
        (5, 10, None, False),
        (5, 0, None, None),  # no step would be wrong
    ],
)
def test_an_onset_is_right_between_the_departure_and_the_alarm_of_the_loss(onset, departure, alarm, right):
    assert patient(onset=onset, departure=departure, loss_alarm=alarm).onset_right is right


def test_lead_time_is_counted_where_the_name_is_right_and_the_loss_tells():
    assert patient(onset=5, loss_alarm=20).lead == 15
    assert patient(onset=5, loss_alarm=20, verdict=("plateau",)).lead is None
    assert patient(onset=5, loss_alarm=None).lead is None
    assert patient(onset=5, verdict=("plateau",)).onset_right is False


def test_a_run_leaves_its_twins_path_where_the_first_reading_differs():
    twin = hand_made()
    assert blind.departure(hand_made(loss=np.where(np.arange(40) == 13, 9.0, twin["loss"])), twin) == 13
    assert blind.departure(hand_made(lr=np.where(np.arange(40) >= 30, 0.2, 0.1)), twin) == 30
    assert blind.departure(hand_made(val_loss=np.array([2.3, 1.8, 1.3, 9.0, 9.0])), twin) == 30  # the fourth of five
    assert blind.departure(trained(tiny()), trained(tiny())) == 0
    assert blind.departure(trained(tiny(lr=0.5)), trained(tiny())) == 0  # the rate itself differs from the start


@pytest.mark.parametrize(("count", "of", "low", "high"), [(0, 200, 0.0, 0.019), (2, 200, 0.003, 0.036), (0, 0, 0, 1)])
def test_the_interval_of_a_share(count, of, low, high):
    assert blind.interval(count, of) == pytest.approx((low, high), abs=0.002)


# --- which runs are held out -----------------------------------------------------------------------------


def test_no_seed_and_no_net_that_a_threshold_was_set_on_is_held_out():
    *looked_at, held_out = blind.SPLITS.values()
    assert blind.SPLITS["held-out"] is held_out and len(looked_at) == 2
    asked = {split: set(blind.cases(None, blind.SPLITS[split], 2, ("mnist", "cifar10"))) for split in blind.SPLITS}
    assert {name for name, *_ in asked["held-out"]} == set(FAILURES)
    for split in looked_at:
        assert 5 <= split.first_seed < split.first_seed + 100 < held_out.first_seed  # 0 to 4 are the contract's
        assert not (set(split.nets["mnist"]) & set(held_out.nets["mnist"])) - {"own"}
    assert not (asked["development"] | asked["retired"]) & asked["held-out"]


def test_the_healthy_runs_of_the_splits_are_all_different():
    drawn = [{recipe for _, recipe in healthy_runs.draw(200, seed=each.first_seed)} for each in blind.SPLITS.values()]
    assert len(set().union(*drawn)) == 200 * len(blind.SPLITS)


def test_another_net_is_another_net_that_can_be_built():
    for mode in FAILURES.values():
        recipe = mode.recipes()["sick"]
        for net in blind.NETS:
            changed = blind.recipes_on(mode, net, "mnist", 0)
            if changed:
                assert (changed["sick"] == recipe) == (net == "own")
                assert changed["sick"].model.__name__ != "vit" or changed["sick"].width % changed["sick"].heads == 0


def test_a_net_is_not_asked_of_a_mode_that_is_about_what_would_change():
    def asked(name, net):
        return blind.recipes_on(FAILURES[name], net, "mnist", 0) is not None

    assert not asked("underfit", "wider") and asked("underfit", "deeper")
    assert not asked("vanishing_gradients", "another activation") and not asked("dead_relu", "another activation")
    assert not asked("exploding_recurrent_gradients", "deeper")
    assert blind.recipes_on(FAILURES["attention_entropy_collapse"], "own", "cifar10", 0) is None


# --- held -----------------------------------------------------------------------------------------


def test_one_patient_is_examined_and_its_runs_are_kept_and_taken_again(tmp_path, monkeypatch):
    found = blind.examine_patient("learning_rate_too_low", "wider", "mnist", 100, tmp_path)
    assert found.counts and found.rank == 1 and found.onset == 0 and found.twin_verdict == ()
    assert len(list(tmp_path.glob("*.npz"))) == 2
    run_store.in_memory.forget()
    monkeypatch.setattr(run_store, "train", None)  # whatever trains now fails
    assert blind.examine_patient("learning_rate_too_low", "wider", "mnist", 100, tmp_path) == found


def test_what_is_not_kept_can_be_left_out_and_is_counted(tmp_path):
    found = blind.evaluate(["detached_loss"], split="development", healthy=2, folder=tmp_path, kept_only=True)
    assert (found.patients, found.healthy, found.skipped) == ([], [], 5)
    one = blind.examine_patient("detached_loss", "own", "mnist", 100, tmp_path)  # a run of no step at all is a run
    found = blind.evaluate(["detached_loss"], split="development", healthy=2, folder=tmp_path, kept_only=True)
    assert (found.patients, found.skipped) == ([one], 4)


def test_only_what_is_in_the_folder_counts_as_kept(tmp_path):
    run_store.in_memory.put(tiny(), trained(tiny()))
    assert not blind.kept(tmp_path, tiny())
    run_store.RunStore(tmp_path).put(tiny(), trained(tiny()))
    assert blind.kept(tmp_path, tiny()) and not blind.kept(tmp_path, tiny(lr=0.2))


def test_modes_of_one_seed_share_the_twin_that_this_process_has_trained(monkeypatch):
    asked, train = [], run_store.train
    monkeypatch.setattr(run_store, "train", lambda recipe, **options: asked.append(recipe) or train(recipe, **options))
    one, other = (blind.examine_patient(name, "own", "mnist", 100) for name in ("learning_rate_too_low", "zero_init"))
    assert one.twin == other.twin and len(asked) == 3


def test_a_healthy_run_is_examined_and_one_that_did_not_learn_is_not_counted():
    kind, recipe = healthy_runs.draw(1)[0]
    assert blind.examine_healthy(kind, recipe.but(steps=100, samples=5000)).learned
    assert not blind.examine_healthy(kind, tiny()).learned


def test_the_whole_clinic_is_held_on_the_split_that_was_asked_for():
    found = blind.evaluate(["learning_rate_too_low"], split="development", healthy=0)
    assert [each.net for each in found.patients] == ["own", "wider", "narrower"] and found.split == "development"
    assert {each.seed for each in found.patients} == {100} and found.named() == (3, 3) and found.healthy == []


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"jobs": 0}, "jobs"),
        ({"seeds": 0}, "seeds"),
        ({"kept_only": True}, "--runs FOLDER"),
        ({"split": "held out"}, "split: expected one of .* Did you mean 'held-out'"),
        ({"kept_only": True, "folder": Path("nowhere")}, "there is no folder nowhere"),
        ({"datasets": ["mnits"]}, "dataset: expected one of mnist, cifar10"),
    ],
)
def test_bad_wishes_are_refused_before_anything_is_trained(wish, words):
    with pytest.raises(RecipeError, match=words):
        blind.evaluate(**wish)


def test_the_healthy_runs_are_the_same_for_the_same_seed_and_of_every_kind():
    one, again, other = (
        healthy_runs.draw(45, 1),
        healthy_runs.draw(45, 1),
        healthy_runs.draw(45, 2),
    )
    assert one == again != other
    assert {kind for kind, _ in one} == set(healthy_runs.KINDS) and len({recipe for _, recipe in one}) == 45
    assert healthy_runs.choices_as_text("clipped").endswith("clip 1, 2; lr 0.1; momentum 0.9; depth 2, 3")
