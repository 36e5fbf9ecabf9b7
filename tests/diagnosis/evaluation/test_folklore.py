"""The folklore audit: the rule of its verdicts, its experiments, and a page that is made from results alone."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
from helpers import ROOT, hand_made, tiny, trained

from labkit.cli.main import main
from labkit.diagnosis.evaluation.folklore import audit, measures, page, results
from labkit.diagnosis.evaluation.folklore.audit import Result, Trial
from labkit.diagnosis.evaluation.folklore.claim import FEWEST_SEEDS, Claim, Range, Setting, at_least, at_most, within
from labkit.diagnosis.evaluation.folklore.claims import first_aid
from labkit.diagnosis.evaluation.folklore.collection import CLAIMS, chosen
from labkit.diagnosis.evaluation.folklore.verdict import (
    FAILS,
    HOLDS,
    MOST_SEEDS,
    ONLY_IF,
    UNCLEAR,
    effect,
    overall,
    verdict,
)  # fmt: skip
from labkit.errors import RecipeError
from labkit.failures.catalogue import FAILURES
from labkit.training import run_store
from labkit.training.recipe import Recipe

PAGE, STORED = ROOT / "labkit/failures/FOLKLORE.md", ROOT / "labkit/failures/FOLKLORE.json"
ALL = list(CLAIMS.values())
# A claim that can be trained in a moment: a learning rate of 0 learns less.
QUICK = Claim(
    "quick",
    "A high learning rate learns more than a tiny one.",
    settings=(Setting("0.2 against 1e-6", tiny(lr=0.2), tiny(lr=1e-6)),),
    predicts=at_least(5),
    seeds=3,
)

# --- the rule ---


def test_the_interval_is_students():
    found = effect([1.0, 2.0, 3.0])  # standard error 1 / sqrt 3, t = 4.303
    assert (found.mean, found.low, found.high) == pytest.approx((2, 2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5))
    assert effect([0.5] * 5) == effect([0.5] * 3)  # no noise: no width


@pytest.mark.parametrize(
    ("differences", "predicts", "expected"),
    [
        ([2.0, 2.1, 1.9], at_least(0.5), HOLDS),
        ([0.1, 0.0, 0.05], at_least(0.5), FAILS),  # negligible
        ([-2.0, -2.1, -1.9], at_least(0.5), FAILS),  # the opposite
        ([0.0, 2.0, 4.0], at_least(0.5), UNCLEAR),  # too noisy to tell
        ([-2.0, -2.1, -1.9], at_most(-0.5), HOLDS),
        ([-0.1, 0.0, -0.05], at_most(-0.5), FAILS),
        ([-0.1, 0.0, 0.1], within(0.5), HOLDS),
        ([-0.1, 0.0, 0.1], at_least(-0.5), HOLDS),  # harmless
        ([-0.9, -1.0, -1.1], at_least(-0.5), FAILS),
        ([0.6, 0.7, 0.8], within(0.5), UNCLEAR),
        ([0.49, 0.5, 0.51], Range(0.75, 1.25), FAILS),
        ([1.0, 1.01, 0.99], Range(0.75, 1.25), HOLDS),
        ([100.0] * 3, at_least(100), HOLDS),
        ([0.0] * 3, at_least(100), FAILS),
    ],
)
def test_a_verdict_follows_from_the_interval(differences, predicts, expected):
    assert verdict(effect(differences), predicts) == expected


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([HOLDS, HOLDS], HOLDS),
        ([FAILS, FAILS], FAILS),
        ([HOLDS, FAILS], ONLY_IF),
        ([UNCLEAR, HOLDS, FAILS], ONLY_IF),
        ([HOLDS, UNCLEAR], UNCLEAR),
        ([FAILS, UNCLEAR], UNCLEAR),
        ([UNCLEAR], UNCLEAR),
    ],
)
def test_settings_with_different_verdicts_are_the_condition(verdicts, expected):
    assert overall(verdicts) == expected


@pytest.mark.parametrize("differences", [[1.0], [1.0] * (MOST_SEEDS + 1), [1.0, float("nan"), 2.0]])
def test_no_interval_without_enough_finite_differences(differences):
    with pytest.raises(RecipeError):
        effect(differences)


def test_the_noise_of_real_seeds_gives_the_interval_its_coverage():
    """Of 95 % intervals of pure noise, 95 % contain 0."""
    noise = np.random.default_rng(0).normal(size=(2000, 5))
    inside = [found.low <= 0 <= found.high for found in map(effect, noise.tolist())]
    assert 0.935 < np.mean(inside) < 0.965


@pytest.mark.parametrize(
    "changes", [{"settings": ()}, {"settings": QUICK.settings * 2}, {"seeds": 2}, {"predicts": Range()}]
)
def test_a_claim_that_cannot_be_tried_is_refused(changes):
    with pytest.raises(RecipeError, match="quick: expected"):
        dataclasses.replace(QUICK, **changes)


# --- the claims ---


def test_there_are_many_claims_and_each_can_come_out_either_way():
    assert len(CLAIMS) >= 40
    for claim in ALL:
        ends = [value for value in (claim.predicts.low, claim.predicts.high) if np.isfinite(value)]
        inward = 1 if np.isfinite(claim.predicts.low) else -1
        inside, outside = np.mean(ends) + (inward if len(ends) == 1 else 0), ends[0] - inward
        assert verdict(effect([inside] * 3), claim.predicts) == HOLDS
        assert verdict(effect([outside] * 3), claim.predicts) == FAILS
        assert FEWEST_SEEDS <= claim.seeds <= MOST_SEEDS


def test_every_claim_is_a_sentence_with_a_source():
    for claim in ALL:
        assert claim.says[0].isupper() or claim.says[0].isdigit() or claim.says.startswith("k "), claim.name
        assert claim.says.endswith((".", "?")) and re.fullmatch(r"[a-z0-9_]+", claim.name)
        assert claim.source.startswith("often said") or re.search(r"\((1|2)\d{3}\)", claim.source), claim.name


def test_every_treated_recipe_differs_from_its_control_and_can_be_kept():
    for claim in ALL:
        for setting in claim.settings:
            if isinstance(setting.treated, Recipe):
                treated, control = setting.recipes(0)
                assert treated != control, (claim.name, setting.words)
                for recipe in filter(None, (treated, control)):
                    assert run_store.key_of(recipe).lasting, (claim.name, setting.words)
                    assert recipe.evaluate_every != 0


def test_first_aid_comes_from_the_catalogue_and_never_undoes_the_fault():
    clip = CLAIMS["clip_it"]
    names = {setting.words for setting in clip.settings}
    assert {"learning_rate_too_high", "corrupt_batch", "nan_in_data"} <= names <= set(FAILURES)
    for claim in first_aid.claims:
        for setting in claim.settings:
            assert setting.control == FAILURES[setting.words].healthy != setting.treated


def test_an_unknown_claim_is_refused_with_a_suggestion():
    assert chosen(None) == ALL and [each.name for each in chosen("clip_it")] == ["clip_it"]
    with pytest.raises(RecipeError, match="Did you mean 'momentum_helps'"):
        chosen("momentum_help")


# --- the measures ---


def test_measures_of_a_run_worked_out_by_hand():
    run = hand_made(
        val_accuracy=np.array([0.1, 0.6, 0.9, 0.8, 0.85]),
        val_loss=np.array([2.3, 1.0, 0.5, 0.9, 1.1]),
        val_confidence=np.array([0.1, 0.6, 0.9, 0.95, 0.95]),
    )
    assert measures.accuracy(run) == pytest.approx(85)
    assert measures.best_validation_loss(run) == 0.5 and measures.validation_loss(run) == 1.1
    assert measures.accuracy_after_lowest_loss(run) == pytest.approx(-5)
    assert measures.miscalibration(run) == pytest.approx(10)


def test_a_run_that_diverged_still_has_a_finite_accuracy_and_loss():
    run = trained(tiny(depth=4, activation="identity", lr=100.0, steps=20))
    assert run.facts["first_nonfinite"] and measures.diverged(run) == 100
    assert np.isfinite(
        [measures.accuracy(run), measures.validation_loss(run), measures.best_validation_loss(run)]
    ).all()
    assert measures.diverged(trained(tiny())) == 0


# --- from runs to the page ---


def test_a_claim_is_really_tried_each_run_once_and_resumed_from_the_store(tmp_path, monkeypatch):
    asked, train = [], run_store.train
    monkeypatch.setattr(run_store, "train", lambda recipe, **options: asked.append(recipe) or train(recipe, **options))
    control = dataclasses.replace(QUICK, name="control", settings=(Setting("none", tiny(lr=2e-6), tiny(lr=1e-6)),))
    found = list(audit.audit([QUICK, control], folder=tmp_path))
    assert [each.verdict for each in found] == [HOLDS, FAILS]
    assert len(asked) == len(set(asked)) == 9 and found[0].seeds == 3  # the control's runs were there already
    assert found[0].trials[0].control == found[1].trials[0].control
    run_store.in_memory.forget()
    assert audit.estimate([QUICK, control], folder=tmp_path)[:2] == (9, 0)
    assert list(audit.audit([QUICK, control], folder=tmp_path)) == found and len(asked) == 9


def test_bad_wishes_are_refused_before_anything_is_trained(capsys):
    for wish in ({"jobs": 0}, {"seeds": 2}, {"seeds": 1000}):
        with pytest.raises(RecipeError):
            audit.audit([QUICK], **wish)
    assert main(["folklore", "--claims", "clip"]) == 2 and main(["folklore", "--out", "page.txt"]) == 2
    assert main(["folklore", "--kept"]) == 2
    assert "expected a file that ends in .md" in capsys.readouterr().err


def made_up(claim: Claim, treated=(90.0, 91.0, 92.0), control=(80.0, 81.0, 82.0)) -> Result:
    trials = tuple(Trial(setting.words, treated, control if setting.control else None) for setting in claim.settings)
    return Result(claim, trials, "some machine", "2.13")


def test_results_survive_the_file_and_those_of_a_changed_experiment_do_not(tmp_path, monkeypatch):
    one, other = made_up(CLAIMS["momentum_helps"]), made_up(CLAIMS["update_ratio_1e_3"])
    results.save([one, other], tmp_path / "F.json")
    assert results.load(tmp_path / "F.json", ALL) == [one, other]
    settings = (dataclasses.replace(one.claim.settings[0], treated=Recipe(lr=0.07)), *one.claim.settings[1:])
    changed = dataclasses.replace(one.claim, settings=settings)
    assert results.load(tmp_path / "F.json", [changed, other.claim]) == [other]
    (tmp_path / "F.json").write_text('{"momentum_helps": 3}', encoding="utf-8")
    with pytest.raises(RecipeError, match="expected the results"):
        results.load(tmp_path / "F.json", ALL)


def test_the_page_groups_by_verdict_and_tells_effects_with_intervals():
    good, bad = made_up(CLAIMS["momentum_helps"]), made_up(CLAIMS["gelu_beats_relu"], control=(90.0, 91.0, 92.0))
    text = page.in_markdown([good, bad], [good.claim, bad.claim, CLAIMS["clip_it"]])
    assert text.index("## Does not hold here: 1") < text.index("## Holds: 1") < text.index("## The experiments")
    assert "+10.0 (+10.0 to +10.0)" in text and "Not measured yet: `clip_it`" in text
    assert "2 claims: 1 do not hold here, 0 hold only if, 1 hold, 0 unclear" in text
    assert page.in_markdown([good], [good.claim]).count("Not measured") == 0


# --- the committed page ---


def test_the_page_is_made_from_the_stored_results_alone(tmp_path, capsys):
    shutil.copy(STORED, tmp_path / STORED.name)
    assert main(["folklore", "--kept", "--out", str(tmp_path / PAGE.name)]) == 0
    assert (tmp_path / PAGE.name).read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8"), (
        "remake it with `labkit folklore --kept --out labkit/failures/FOLKLORE.md`"
    )
    assert "claims:" in capsys.readouterr().out


def test_the_stored_results_belong_to_the_claims_and_are_at_least_forty():
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    assert set(stored) <= set(CLAIMS)
    found = results.load(STORED, ALL)
    assert len(found) == len(stored) >= 40, (
        "measure again: labkit folklore --claims NAME --out labkit/failures/FOLKLORE.md"
    )
    assert {each.verdict for each in found} >= {HOLDS, FAILS, ONLY_IF}
