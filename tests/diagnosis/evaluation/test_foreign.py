"""Foreign programs learn, faults change them as they say, the splits are fair, and results are counted as they are."""

import argparse
import json
import math
from collections import Counter

import pytest
import torch

from labkit.cli.main import main
from labkit.diagnosis.diagnose import UNSURE
from labkit.diagnosis.evaluation.calibrate import counts
from labkit.diagnosis.evaluation.foreign import clinic, report, verify
from labkit.diagnosis.evaluation.foreign.clinic import Case, Examined, Foreign, Recording
from labkit.diagnosis.evaluation.foreign.operators import INTENDED, DoesNotApply
from labkit.diagnosis.evaluation.foreign.registry import FAULTS, PROGRAMS, PURPOSES, SPLITS, healthy_variants
from labkit.diagnosis.evaluation.foreign.setup import unwatched
from labkit.errors import RecipeError
from labkit.failures.catalogue import FAILURES

# --- programs and splits ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_learns(name):
    assert verify.score_of(name, None, seed=3) >= PROGRAMS[name].enough


@pytest.mark.parametrize("name", ["robot_arm", "shopping_baskets", "shape_vae"])
def test_watching_changes_nothing(name):
    recording = Recording()
    assert PROGRAMS[name](recording, 0) == PROGRAMS[name](unwatched, 0)
    assert len(recording.record.run) > 100 and not recording.record.guard.off


@pytest.mark.parametrize(
    "name",
    ["heat_exchanger", "delivery_hours", "lung_scans", "market_volatility", "hotel_bookings", "weather_stations"],
)
def test_watching_changes_nothing_in_unusual_loops(name):
    """A closure, a dataclass, averaged weights, double precision, no probe, an adversary; all but the first are held
    out, so what was recorded is not looked at."""
    recording = Recording()
    assert PROGRAMS[name](recording, 0) == PROGRAMS[name](unwatched, 0)
    assert recording.record is not None and len(recording.record.run) > 100


@pytest.mark.parametrize("name", SPLITS["held-out"])
def test_a_held_out_program_is_the_same_each_time_and_depends_on_its_seed(name):
    one, again, other = (pieces(PROGRAMS[name].prepared(seed)) for seed in (0, 0, 1))
    assert one == again != other


def test_a_program_leaves_the_random_numbers_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    verify.score_of("two_rings", "no_step", 0)
    assert torch.equal(torch.rand(1), expected)


def test_the_splits_share_no_program_and_each_has_all_tasks():
    assert list(SPLITS) == list(PURPOSES) == ["development", "retired", "held-out"]
    names = Counter(name for each in SPLITS.values() for name in each)
    assert set(names) == set(PROGRAMS) and set(names.values()) == {1}
    tasks = {split: {PROGRAMS[name].task for name in each} for split, each in SPLITS.items()}
    assert tasks["development"] < tasks["retired"] < tasks["held-out"] and len(tasks["development"]) == 16


def test_the_retired_split_keeps_the_healthy_runs_that_it_was_evaluated_on():
    drawn = [(name, seed, chosen.optimizer, chosen.lr) for name, seed, chosen in healthy_variants("retired", 3)]
    robot, rings = ("robot_arm", 8158, "adam", 5e-3), ("two_rings", 2402, "rmsprop", 3e-3)
    assert drawn == [robot, rings, ("star_spectra", 5018, "adam", 3e-3)]
    assert [seed for _, seed, _ in healthy_variants("held-out", 3)] != [seed for _, seed, *_ in drawn]


def test_healthy_variants_stay_within_the_settings_of_their_program():
    drawn = healthy_variants("development", 200)
    assert drawn == healthy_variants("development", 200) and len(set(drawn)) > 190
    assert set(Counter(name for name, *_ in drawn)) == set(SPLITS["development"])
    for name, _, chosen in drawn:
        program = PROGRAMS[name]
        assert chosen.lr in program.optimizers[chosen.optimizer] and chosen.width in program.widths
        assert chosen.batch_size in program.batch_sizes and chosen.schedule in program.schedules
        steps = (chosen.epochs / chosen.batch_size) / (program.epochs / program.batch_sizes[0])
        assert 0.7 < steps < 1.4  # about as many as the program itself


def test_a_schedule_is_stepped_where_it_is_meant_to_be():
    setup = PROGRAMS["flat_rents"].prepared(0)
    rate = setup.settings.lr
    PROGRAMS["flat_rents"].loop(setup, unwatched)
    assert setup.settings.schedule == "linear decay" and setup.optimizer.param_groups[0]["lr"] == 0.05 * rate
    by_epoch = PROGRAMS["tide_gauge"].prepared(0)
    rates = []
    for stepped in (by_epoch.end_step, by_epoch.end_epoch, by_epoch.end_epoch):
        stepped()
        rates.append(by_epoch.optimizer.param_groups[0]["lr"] / by_epoch.settings.lr)
    assert rates[0] == 1 > rates[1] and rates[2] == 1  # restarted after two epochs


def test_one_cycle_rises_for_three_tenths_of_the_steps_and_then_falls():
    setup = PROGRAMS["product_catalogue"].prepared(0)
    steps = setup.epochs * setup.per_epoch
    rates = []
    for _ in range(steps):
        rates.append(setup.optimizer.param_groups[0]["lr"] / setup.settings.lr)
        setup.optimizer.step()
        setup.end_step()
    top = rates.index(max(rates))
    assert setup.settings.schedule == "one cycle" and top == pytest.approx(0.3 * steps, abs=1)
    assert rates[:top] == sorted(rates[:top]) and rates[top:] == sorted(rates[top:], reverse=True)
    assert rates[0] == pytest.approx(0.05) and max(rates) > 0.99 and rates[-1] < 0.03


# --- faults -------------------------------------------------------------------------------------------


def broken(name, fault):
    """(the setup of a program with a fault, and the places it gave)."""
    setup = PROGRAMS[name].prepared(0)
    return setup, FAULTS[fault](setup)


def pieces(s):
    """All that an operator may change, as plain values."""
    torch.manual_seed(0)
    batch = next(iter(s.epoch()))
    outputs = s.model(*batch[:-1])
    loss = s.loss(outputs, batch[-1])
    kind = loss.requires_grad, type(loss.grad_fn)
    if loss.requires_grad:
        loss.backward()
    overridden = [sorted(set(vars(each)) & {"step", "zero_grad", "train", "eval"}) for each in (s.model, *s.optimizers)]
    groups = [{key: value for key, value in group.items() if key != "params"} for each in s.optimizers
              for group in each.param_groups]  # fmt: skip
    known = {id(weight) for each in s.optimizers for group in each.param_groups for weight in group["params"]}
    modules = [(name, str(module), module.training, getattr(module, "momentum", None), getattr(module, "p", None))
               for name, module in s.model.named_modules()]  # fmt: skip
    weights = [(name, each.requires_grad, each.grad is None, id(each) in known, each.double().sum().item())
               for name, each in s.model.named_parameters()]  # fmt: skip
    data = [float(each.double().nan_to_num(9.0).mul(torch.arange(each.numel()).view(each.shape)).sum())
            for each in (*s.train, *s.val)]  # fmt: skip
    steps = s.batch_size, s.epochs, s.per_epoch, s.shuffle
    return str((overridden, groups, modules, weights, data, steps, loss.item(), kind))


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_changes_a_program_that_it_applies_to(fault):
    first = next(name for name in PROGRAMS if verify.applies(name, fault))
    assert pieces(PROGRAMS[first].prepared(0)) == pieces(PROGRAMS[first].prepared(0))
    assert pieces(broken(first, fault)[0]) != pieces(PROGRAMS[first].prepared(0))


def test_a_fault_that_has_no_place_in_a_program_says_so():
    with pytest.raises(DoesNotApply):
        broken("tiny_gpt", "inputs_times_1000")  # its inputs are tokens
    with pytest.raises(DoesNotApply):
        broken("robot_arm", "softmax_before_loss")


def test_every_accepted_name_is_a_mode_or_intended_to_be_one():
    accepted = {name for each in FAULTS.values() for name in each.accepted}
    assert accepted <= set(FAILURES) | set(INTENDED) and set(INTENDED) <= accepted


def assert_new_targets(name, y):
    """Faults that give inputs the targets of others: which share of them, and how many different ones."""
    late, noisy = (broken(name, fault)[0].train[1] for fault in ("targets_one_row_late", "most_labels_wrong"))
    assert torch.equal(late[1:], y[:-1]) and torch.equal(noisy.sort().values, y.sort().values)
    assert 0.05 < (noisy == y).float().mean() < 0.15
    (x, targets), (same, permuted) = (
        next(iter(each.epoch()))
        for each in (PROGRAMS[name].prepared(0), broken(name, "targets_permuted_in_each_batch")[0])
    )
    assert torch.equal(x, same) and not torch.equal(targets, permuted)
    assert torch.equal(targets.sort().values, permuted.sort().values)


def test_a_warm_up_for_another_data_set_leaves_the_learning_rate_low():
    setup, _ = broken("traffic_lights", "warmup_for_another_data_set")
    PROGRAMS["traffic_lights"].loop(setup, unwatched)
    rates = [group["lr"] for each in setup.optimizers for group in each.param_groups]
    assert rates == pytest.approx([0.02 * setup.settings.lr] * 2, rel=0.02)


def test_images_are_flipped_and_masks_are_not():
    healthy, (setup, _) = PROGRAMS["cell_masks"].prepared(0), broken("cell_masks", "flipped_without_the_mask")
    assert torch.equal(setup.train[0].flip(2), healthy.train[0]) and torch.equal(setup.train[1], healthy.train[1])
    assert all(map(torch.equal, setup.val, healthy.val))


def test_faults_of_the_optimizer_reach_a_loop_with_a_closure():
    def one_step(fault):
        setup, _ = broken("heat_exchanger", fault)
        before = [each.detach().clone() for each in setup.model.parameters()]

        def closure():
            loss = setup.loss(setup.model(setup.train[0]), setup.train[1])
            loss.backward()
            return loss

        assert setup.optimizer.step(closure) > 0
        moved = any(not torch.equal(one, other) for one, other in zip(before, setup.model.parameters(), strict=True))
        return moved, torch.nn.utils.get_total_norm(each.grad for each in setup.model.parameters())

    assert one_step("no_step")[0] is False
    moved, norm = one_step("clipped_to_1e_4")
    assert moved and norm == pytest.approx(1e-4, rel=0.02)


def test_outputs_that_are_a_dataclass_are_changed_in_their_first_part():
    setup, _ = broken("tide_gauge", "sigmoid_on_numbers")
    healthy = PROGRAMS["tide_gauge"].prepared(0)
    said, usual = setup.model(setup.val[0]), healthy.model(healthy.val[0])
    assert torch.equal(said.median, usual.median.sigmoid()) and torch.equal(said.high, usual.high)


def test_faults_do_what_they_say():
    (x, y), healthy = PROGRAMS["concrete_strength"].prepared(0).train, PROGRAMS["concrete_strength"].prepared(0)
    setup, _ = broken("concrete_strength", "shuffled_labels")
    assert torch.equal(setup.train[1].sort().values, y.sort().values) and not torch.equal(setup.train[1], y)
    setup, _ = broken("concrete_strength", "flipped_sign")
    assert setup.loss(x[:, :1], y) == -healthy.loss(x[:, :1], y)
    setup, _ = broken("concrete_strength", "broadcast_in_the_loss")
    assert setup.loss(y[:, None], y) > 0.5 > healthy.loss(y[:, None], y)  # perfect predictions, and still a loss
    setup, [place] = broken("wine_cultivars", "new_head_after_optimizer")
    held = {id(weight) for group in setup.optimizer.param_groups for weight in group["params"]}
    assert place == "exit" and id(setup.model.exit.weight) not in held and id(setup.model.entry.weight) in held
    setup, places = broken("wine_cultivars", "frozen_body")
    assert places == ("entry", "middle") and not setup.model.entry.weight.requires_grad
    setup, _ = broken("star_spectra", "softmax_over_the_batch")
    assert setup.model(setup.train[0][:8]).sum(0).allclose(torch.ones(20))
    healthy = PROGRAMS["article_tags"].prepared(0)
    setup, _ = broken("article_tags", "sigmoid_twice")  # once in the net, once in the loss
    for each in (setup, healthy):
        each.model.eval()
    assert setup.model(setup.val[0]).allclose(healthy.model(healthy.val[0]).sigmoid())
    assert_new_targets("concrete_strength", y)
    setup, _ = broken("shopping_baskets", "rate_times_100")
    assert [each.param_groups[0]["lr"] for each in setup.optimizers] == pytest.approx([100.0, 1.0])


def test_a_leak_is_judged_by_data_without_it(monkeypatch):
    """The validation of the program itself finds nothing wrong."""
    healthy = verify.healthy_score("concrete_strength", 0)
    setup, _ = broken("concrete_strength", "target_as_a_column")
    PROGRAMS["concrete_strength"].loop(setup, unwatched)
    assert setup.score > healthy > 0.5 > (setup.in_use() - setup.floor) / (1 - setup.floor)
    assert verify.score_of("concrete_strength", "target_as_a_column", 0) == pytest.approx(setup.in_use(), abs=1e-6)
    setup, _ = broken("film_ratings", "trained_on_validation_data")
    unseen = PROGRAMS["film_ratings"].prepared(0).train
    assert all(map(torch.equal, setup.train, setup.val)) and not torch.equal(setup.train[0][0], unseen[0][0])
    monkeypatch.setattr(setup, "measured_on", lambda data: float(torch.equal(data[0], unseen[0])))
    assert setup.in_use() == 1


def test_a_language_model_without_a_causal_mask_sees_the_future_and_gets_it_back_for_the_verdict():
    setup, _ = broken("tiny_gpt", "no_causal_mask")
    usual = PROGRAMS["tiny_gpt"].prepared(0).model.mask
    assert not setup.model.mask.any() and usual.any()
    setup.in_use()
    assert torch.equal(setup.model.mask, usual)
    setup, _ = broken("tiny_gpt", "labels_not_shifted")
    assert torch.equal(setup.train[0], setup.train[1]) and torch.equal(setup.val[0], setup.val[1])


def test_masks_of_the_loss_and_of_tokens_are_changed_where_they_are():
    (tokens, labels), (setup, _) = PROGRAMS["word_tags"].prepared(0).train, broken("word_tags", "loss_mask_inverted")
    assert setup.train[1][tokens == 0].eq(0).all() and setup.train[1][tokens != 0].eq(-100).all()
    (tokens, labels), (setup, _) = (
        PROGRAMS["masked_routes"].prepared(0).train,
        broken("masked_routes", "tokens_not_masked"),
    )
    hidden = labels != -100
    assert torch.equal(setup.train[0][hidden], labels[hidden]) and torch.equal(setup.train[0][~hidden], tokens[~hidden])
    for program, fault in (("masked_routes", "loss_mask_inverted"), ("word_tags", "tokens_not_masked")):
        with pytest.raises(DoesNotApply):
            broken(program, fault)


def test_an_augmentation_changes_images_and_leaves_labels():
    turned, labels = next(iter(broken("clock_faces", "turned_at_random")[0].epoch()))
    images, usual = next(iter(PROGRAMS["clock_faces"].prepared(0).epoch()))
    assert torch.equal(labels, usual)
    times = [[torch.equal(one.rot90(quarter, (1, 2)), other) for quarter in range(4)].index(True)
             for one, other in zip(images, turned, strict=True)]  # fmt: skip
    assert set(times) == {0, 1, 2, 3}


def after_training(fault, epochs=2):
    """(names of the layers that changed in `traffic_lights`, the places the fault gave)."""
    setup, places = broken("traffic_lights", fault)
    before = {name: each.detach().clone() for name, each in setup.model.named_parameters()}
    setup.epochs = epochs
    PROGRAMS["traffic_lights"].loop(setup, unwatched)
    pairs = setup.model.named_parameters()
    return {name.rpartition(".")[0] for name, each in pairs if not torch.equal(each, before[name])}, places


@pytest.mark.parametrize("fault", ["first_net_never_updated", "same_weights_in_both_optimizers", "first_net_detached"])
def test_one_of_two_nets_is_never_updated(fault):
    changed, places = after_training(fault)
    assert places == ("actor.0", "actor.2") and changed == {"critic.0", "critic.2"}


def test_faults_of_two_optimizers_need_two():
    setup, _ = broken("shopping_baskets", "first_net_too_slow")
    assert [each.param_groups[0]["lr"] for each in setup.optimizers] == pytest.approx([1 / 3000, 0.01])
    for fault in ("first_net_too_slow", "second_net_never_cleared"):
        with pytest.raises(DoesNotApply):
            broken("two_rings", fault)


# --- the verified cases -------------------------------------------------------------------------------


def test_every_verified_case_hurts_on_all_seeds_by_the_stated_margin():
    cases = verify.verified()
    assert len(cases) > 300 and {each.program for each in cases} == set(PROGRAMS)
    assert {each.fault for each in cases} == set(FAULTS)  # an operator that hurts no program is not kept
    for each in cases:
        scores = [math.nan if score is None else score for score in each.scores]
        healthy = [verify.healthy_score(each.program, seed) for seed in verify.SEEDS]
        assert all(map(verify.hurts, scores, healthy)), each


@pytest.mark.parametrize(
    ("program", "fault"),
    [
        ("concrete_strength", "broadcast_in_the_loss"),
        ("article_tags", "flipped_sign"),
        ("heart_beats", "one_missing_value"),
        ("search_results", "frozen_body"),
    ],
)
def test_a_stored_case_can_be_verified_again(program, fault):
    assert any((each.program, each.fault) == (program, fault) for each in verify.verified("development"))
    assert verify.hurts(verify.score_of(program, fault, 1), verify.score_of(program, None, 1))


def test_harm_is_a_share_of_the_healthy_score():
    assert verify.hurts(math.nan, 0.9) and verify.hurts(-1.0, 0.9) and verify.hurts(0.71, 0.9)
    assert not verify.hurts(0.73, 0.9) and not verify.hurts(0.95, 0.9)


def test_the_list_is_written_with_one_case_per_line():
    found = {"seeds": (0, 1, 2), "healthy": {"a": [1.0, 0.9, 0.8]}, "cases": {"a": {"no_step": (0.0, None, 0.1)}}}
    text = verify.as_json(found)
    assert json.loads(text)["cases"] == {"a": {"no_step": [0.0, None, 0.1]}}
    assert '   "no_step": [0.0, null, 0.1]' in text.splitlines()


def test_results_for_some_faults_are_merged_into_the_list():
    stored = {
        "healthy": {"two_rings": [0.9], "robot_arm": [0.8]},
        "cases": {"two_rings": {"no_step": [0.0], "flipped_sign": [0.1]}, "robot_arm": {"no_step": [0.2]}},
    }
    found = {"seeds": (0,), "healthy": {"two_rings": [0.9]}, "cases": {"two_rings": {"rate_times_20": [0.3]}}}
    merged = verify.merged(stored, found, ["rate_times_20", "flipped_sign"])
    assert merged["cases"] == {"robot_arm": {"no_step": [0.2]}, "two_rings": {"rate_times_20": [0.3], "no_step": [0.0]}}
    assert list(merged["cases"]["two_rings"]) == ["rate_times_20", "no_step"]  # flipped_sign no longer hurts
    assert list(merged["healthy"]) == list(merged["cases"]) == ["robot_arm", "two_rings"] and merged["seeds"] == (0,)


def test_known_scores_are_not_measured_again(monkeypatch):
    trained = []
    monkeypatch.setattr(verify, "score_of", lambda name, fault, seed: trained.append((fault, seed)) or 0.1)
    found = verify.verify(["two_rings"], ["no_step"], {"two_rings": [0.9, 0.9, 0.9]})
    assert found["cases"] == {"two_rings": {"no_step": (0.1, 0.1, 0.1)}}
    assert trained == [("no_step", 0), ("no_step", 1), ("no_step", 2)]


def test_an_unknown_name_on_the_command_line_is_refused():
    with pytest.raises(argparse.ArgumentTypeError, match="Did you mean 'two_rings'"):
        verify.names_of(PROGRAMS)("robot_arm,two_ring")
    assert verify.names_of(PROGRAMS)("robot_arm,two_rings") == ("robot_arm", "two_rings")


# --- scoring ------------------------------------------------------------------------------------------


def sick(*verdict, fault="frozen_body", place="", wanted=(), counts=True, program="wine_cultivars"):
    return Examined(Case(program, 0, fault), counts, verdict, place, wanted)


def well(*verdict, counts=True):
    return Examined(Case("wine_cultivars", 0), counts, verdict)


FOUND = Foreign(
    [
        sick(("frozen_layers", 0.95), place="entry.weight", wanted=("entry", "middle")),
        sick(("frozen_layers", 0.95), place="exit", wanted=("entry", "middle")),
        sick(("underfit", 0.9), ("frozen_layers", 0.8), place="entry", wanted=("entry",)),
        sick((UNSURE, 0.3), fault="flipped_sign", program="article_tags"),
        sick(fault="flipped_sign"),
        sick(fault="no_step", counts=False),
    ],
    [well(), well(), well(("leakage", 0.97)), well(("leakage", 0.97), counts=False)],
    "development",
)


def test_results_are_counted_as_they_are():
    rows = {row.what: (row.count, row.of) for row in report.numbers(FOUND)}
    assert rows["noticed: something is said"] == (4, 5) and rows["named first"] == (2, 5)
    assert rows["named among the first two"] == (3, 5) and rows["place correct, where there is one"] == (1, 3)
    assert rows["false alarms on healthy runs"] == (1, 3) and rows["labkit raised an error"] == (0, 10)
    unsure = [(row.count, row.of) for row in report.numbers(FOUND) if row.what == "- of these unsure"]
    assert unsure == [(1, 4), (0, 1)]


def test_calibration_counts_false_alarms_as_wrong_and_leaves_out_unsure():
    bins = {(each.low, each.high): (each.given, each.correct) for each in clinic.calibration(FOUND)}
    assert bins == {(0.9, 0.95): (1, 0), (0.95, 1.0): (3, 2)}


def test_correct_names_are_counted_for_the_confidence_of_later_verdicts():
    assert counts(FOUND.all) == {"frozen_layers": (2, 2), "leakage": (0, 1), "underfit": (0, 1)}


def test_the_tables_group_by_family_task_and_fault():
    assert report.by_family(FOUND)[1] == [("code", "5", "80%", "40%", "60%")]
    assert report.by_task(FOUND)[1][1] == ("multi-label", "1", "100%", "0%", "0%")
    assert report.by_fault(FOUND)[1][1] == ("flipped_sign", "2", "50%", "0%", "0%", "unsure 1, nothing 1")


@pytest.mark.parametrize("split", clinic.DETAILED)
def test_misses_are_shown_for_the_splits_that_may_be_looked_at(split):
    found = Foreign(FOUND.sick, FOUND.healthy, split)
    text = report.as_text(found)
    assert text.startswith(f"Foreign programs, {split} split: 6 sick and 4 healthy runs of 2 programs.")
    assert "wine_cultivars, frozen_body, seed 0: called underfit, then frozen_layers; correct: frozen_layers" in text
    assert "placed in exit, not in entry or middle" in text and "false alarm on a healthy run" in text
    page = report.in_markdown(found, "labkit clinic --foreign")
    assert "| named first | 2 of 5 | 40.0% |" in page and "## What went wrong" in page and f"The {split} split" in page
    assert len(report.as_plain(found)["sick"]) == 6


def test_of_the_held_out_split_only_counts_are_shown():
    assert "held-out" not in clinic.DETAILED
    held_out = Foreign(FOUND.sick, FOUND.healthy, "held-out")
    page = report.in_markdown(held_out, "")
    for shown in (report.as_text(held_out), page, json.dumps(report.as_plain(held_out))):
        assert "underfit" not in shown and "wine_cultivars, " not in shown and "frozen_body" not in shown
        assert "2 of 5" in shown or '"count": 2, "of": 5' in shown
    assert "The held-out split: 6 sick" in page and "307 of 481" in page  # why the one before was retired


def test_an_error_of_the_program_is_not_an_error_of_labkit():
    found = clinic.examine(Case("wine_cultivars", 0, "detached_outputs"))
    assert found.counts and found.said == "detached_loss" and not found.crash


def test_an_error_that_labkit_raises_into_the_loop_is_counted(monkeypatch):
    def failing(self, loss, batch=None):
        raise TypeError("no such loss")

    monkeypatch.setattr("labkit.diagnosis.watch.as_loss", lambda loss: failing(None, loss))
    assert clinic.raised_by_labkit(caught(lambda: PROGRAMS["two_rings"](Recording(), 0))) is True


def caught(action):
    try:
        action()
    except Exception as error:
        return error


# --- the command --------------------------------------------------------------------------------------

SHORT = ["--modes", "step_missing,frozen_layers", "--programs", "concrete_strength,wine_cultivars", "--healthy", "16"]


def test_the_command_evaluates_stores_and_reuses_runs(monkeypatch, capsys, tmp_path):
    options = ["clinic", "--foreign", "--split", "development", *SHORT, "--runs", str(tmp_path)]
    assert main([*options, "--json", "--out", str(tmp_path / "page.md")]) == 0
    first = json.loads(capsys.readouterr().out)
    assert [each["what"] for each in first["numbers"]][:1] == ["noticed: something is said"]
    assert {each["case"]["fault"] for each in first["sick"]} == {"no_step", "frozen_body"} and len(first["sick"]) == 4
    assert len(first["healthy"]) == 4
    assert "labkit clinic --foreign --split development" in (tmp_path / "page.md").read_text(encoding="utf-8")
    monkeypatch.setattr(clinic, "trained", lambda case: pytest.fail("trained again"))
    assert main([*options, "--kept", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sick"] == first["sick"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"split": "judged"}, "expected one of development, retired, held-out"),
        ({"programs": ["wall_crack"]}, "Did you mean 'wall_cracks'"),
        ({"programs": ["two_rings"]}, "not in the held-out split"),
        ({"seeds": 4}, "expected 1 to 3"),
        ({"kept_only": True}, "--runs FOLDER"),
    ],
)
def test_a_wrong_value_is_refused_before_anything_is_trained(options, words):
    with pytest.raises(RecipeError, match=words):
        clinic.hold(**{"split": "held-out"} | options)
