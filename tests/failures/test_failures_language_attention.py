"""Masks, heads, positions and skip connections of language models: each threshold from both sides, and nets of other
shapes before their first step."""

import numpy as np
import pytest
import torch
from helpers import hand_made, tiny_gpt
from token_models import Convolution, Encoder, Recurrent, SmoothedBySequence, sequences

from labkit.diagnosis.diagnose import evidence_of
from labkit.failures import language_signs
from labkit.failures.catalogue import FAILURES
from labkit.failures.language.positions_missing import LEARNED, NOTHING_LEARNED, SAME
from labkit.failures.language.residual_missing import OWN
from labkit.failures.language_signs import CUT, FROM_THE_FIRST, LATE, LENGTH_MATTERS, UNTOUCHED, LooksAhead
from labkit.recording import token_tests
from labkit.training.loop import Training

LEAKS = (
    "causal_mask_missing", "mask_one_ahead", "mask_after_softmax", "softmax_over_queries", "heads_not_transposed_back",
    "heads_split_by_view",
)  # fmt: skip
MODES = (*LEAKS, "positions_missing", "residual_missing")
SHAPES = ({"depth": 2}, {"depth": 4, "width": 32, "heads": 4}, {"depth": 2, "heads": 4, "norm_order": "post"})


def probed(model: torch.nn.Module, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    """The token tests of a net as it is."""
    model.eval()
    with torch.no_grad():
        outputs = model(tokens)
        found = token_tests.looks_ahead(model, tokens, outputs)
        repeated = token_tests.repeated_token(model, tokens)[1]
        return found | {"position_signal": token_tests.position_signal(repeated, outputs)}


def fresh(name: str | None, seed: int = 0, **shape) -> dict[str, torch.Tensor]:
    """Of a small GPT with a mode's fault, before its first step."""
    changes = {}
    if name:
        mode = FAILURES[name]
        changes = {entry: getattr(mode.sick, entry) for entry in mode.sick.changes_from(mode.healthy)}
    training = Training(tiny_gpt(seed=seed, **shape, **changes))
    return probed(training.model, training.data.train.x)


def kind_of(found: dict[str, torch.Tensor]) -> str | None:
    places = (found[f"{name}_by_position"].numpy() for name in ("leak_changed", "leak_cut"))
    return LooksAhead(*places, step=0).kind


def run_with(changed=(0, 0, 0, 0), cut=(0, 0, 0, 0), first: int = 0, facts: dict | None = None, **traces):
    rows = {
        "leak_changed_by_position": np.tile(np.asarray(changed, float), (5, 1)),
        "leak_cut_by_position": np.tile(np.asarray(cut, float), (5, 1)),
        "val_step": np.linspace(first, 40, 5),
    }
    return hand_made(facts=facts, **rows, **traces)


def leaks_of(run) -> list[str]:
    return [name for name in LEAKS if evidence_of(FAILURES[name], run)]


# --- nets of other shapes, before the first step --------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_has_its_own_pattern_in_nets_of_other_shapes(name, shape, seed):
    assert kind_of(fresh(name, seed, **shape)) == name


@pytest.mark.parametrize("name", [None, "positions_missing", "residual_missing"])
@pytest.mark.parametrize("shape", [*SHAPES, {"depth": 1}, {"qk_norm": True}, {"tied": True}], ids=str)
def test_a_causal_net_has_no_leak(name, shape):
    assert kind_of(fresh(name, **shape)) is None


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_positions_and_the_own_token_are_told_before_the_first_step(shape):
    usual, lost, blind = (fresh(name, **shape) for name in (None, "positions_missing", "residual_missing"))
    assert usual["own_token"] > 2 * OWN and lost["own_token"] > 2 * OWN > 4 * blind["own_token"]
    assert usual["position_signal"] > 100 * SAME > 1000 * lost["position_signal"]


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (Recurrent, None),
        (Encoder, None),
        (Convolution, None),
        (lambda: Encoder(ahead=None), "causal_mask_missing"),
        (SmoothedBySequence, "causal_mask_missing"),
        (lambda: Recurrent(both=True), "causal_mask_missing"),
        (lambda: Encoder(ahead=1), "mask_one_ahead"),
        (lambda: Convolution(centred=True), "mask_one_ahead"),
    ],
)
def test_foreign_nets_with_a_leak_and_without(make, kind):
    torch.manual_seed(0)
    assert kind_of(probed(make(), sequences(16)[:, :-1])) == kind


# --- controls of the thresholds -------------------------------------------------------------------


def test_a_change_within_rounding_is_no_leak():
    assert leaks_of(run_with()) == []
    assert leaks_of(run_with(changed=[UNTOUCHED / 2] * 4)) == []
    assert leaks_of(run_with(changed=[UNTOUCHED * 2] * 4)) == ["causal_mask_missing"]


def test_a_net_that_depends_on_the_length_alone_has_its_heads_split_by_view():
    assert leaks_of(run_with(cut=[0, CUT / 2, 0, 0])) == []
    assert leaks_of(run_with(cut=[0, CUT * 1.1, 0, 0])) == ["heads_split_by_view"]


def test_cutting_tokens_off_tells_a_missing_mask_from_a_softmax_over_too_much():
    just_below, just_above = (np.full(4, 0.1 * LENGTH_MATTERS * factor) for factor in (0.95, 1.05))
    assert leaks_of(run_with([0.1] * 4, just_below)) == ["causal_mask_missing"]
    assert leaks_of(run_with([0.1] * 4, just_above)) == ["mask_after_softmax"]


def test_the_last_positions_tell_a_softmax_over_the_queries():
    changed, even = [0.01] * 9, [0.1] * 6
    assert leaks_of(run_with(changed, even + [0.095 * LATE] * 3)) == ["mask_after_softmax"]
    assert leaks_of(run_with(changed, even + [0.105 * LATE] * 3)) == ["softmax_over_queries"]


def test_a_first_position_that_sees_less_than_its_share_has_mixed_heads():
    for factor, kind in ((0.95, "heads_not_transposed_back"), (1.05, "mask_after_softmax")):
        first = 0.1 * FROM_THE_FIRST * factor / 8
        assert leaks_of(run_with([first, *[0.1] * 7], [0.5] * 8)) == [kind]


def test_where_most_positions_see_nothing_the_mask_is_a_little_off():
    assert leaks_of(run_with([0, 0, 0, 0.1], [0, 0, 0, 0.1])) == ["mask_one_ahead"]
    assert leaks_of(run_with([0, 0.1, 0.02, 0.1], [0, 0.3, 0.3, 0.3])) == ["heads_not_transposed_back"]


def test_a_net_for_one_length_only_can_be_told_to_look_ahead():
    assert leaks_of(run_with([0.1] * 4, [np.nan] * 4)) == ["causal_mask_missing"]
    assert leaks_of(run_with([0] * 4, [np.nan] * 4)) == []


def test_a_first_evaluation_in_the_midst_of_training_is_less_certain():
    early, late = (run_with([0.1] * 4, [0.1] * 4, first=first) for first in (0, 10))
    assert evidence_of(FAILURES["causal_mask_missing"], early).confidence > 0.9
    assert evidence_of(FAILURES["causal_mask_missing"], late).confidence < 0.8
    assert evidence_of(FAILURES["causal_mask_missing"], late).onset == 10


def without_positions(signal: float = SAME / 10, left: float = 0.75):
    return run_with(
        facts={"constant_loss": 1.0}, position_signal=np.full(5, signal), probe_loss=np.linspace(3.0, left, 5)
    )


def test_positions_are_missing_where_one_repeated_token_is_the_same_everywhere_and_the_loss_is_high():
    def named(**changes):
        return bool(evidence_of(FAILURES["positions_missing"], without_positions(**changes)))

    assert named() and named(signal=SAME * 0.9) and not named(signal=SAME * 1.1)
    assert named(left=LEARNED + 0.01) and not named(left=LEARNED - 0.01)  # rotary positions, and it has learned
    assert named(left=NOTHING_LEARNED - 0.01) and not named(left=NOTHING_LEARNED + 0.01)
    assert not named(left=np.nan)


def test_skip_connections_are_missing_where_the_own_token_is_lost_before_the_first_step():
    def named(own: float, first: int = 0):
        run = run_with(first=first, own_token=np.linspace(own, 1.0, 5))
        return bool(evidence_of(FAILURES["residual_missing"], run))

    assert named(OWN * 0.9) and not named(OWN * 1.1)
    assert not named(OWN * 0.9, first=10)
    assert not named(np.nan)


def test_a_run_without_tokens_says_nothing():
    assert [name for name in MODES if evidence_of(FAILURES[name], hand_made())] == []
    assert language_signs.looks_ahead(run_with([0.1] * 4)).reached == 1
