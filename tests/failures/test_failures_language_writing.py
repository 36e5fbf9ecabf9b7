"""Faults that show only when a language model writes, or is validated: each threshold from both sides, the instruments
on nets of other shapes before their first step, and tokens that are not digits."""

import numpy as np
import pytest
import torch
from helpers import ROOT, hand_made, tiny_gpt

from labkit.diagnosis.diagnose import evidence_of
from labkit.failures.catalogue import FAILURES
from labkit.failures.language import left_padding, stale_cache
from labkit.failures.language.end_masked_as_padding import END, PAD, STOPS, ended
from labkit.failures.language.tokenizer_mismatch import EXPLAINED, RENAMED
from labkit.failures.language_signs import AGREES, CACHE_DIFFERS, NO_PROGRESS
from labkit.recording import token_tests
from labkit.training import writing
from labkit.training.loop import Training

MODES = (
    "cache_position_stuck", "cache_position_one_ahead", "stale_cache", "left_padding", "end_masked_as_padding",
    "tokenizer_mismatch",
)  # fmt: skip
SHAPES = ({"depth": 2}, {"depth": 4, "width": 32, "heads": 4}, {"depth": 2, "norm_order": "post"}, {"qk_norm": True})
PLACES = {name: FAILURES[f"cache_position_{name}"].sick.places for name in ("stuck", "one_ahead")}


def named(facts: dict | None = None, **traces) -> list[str]:
    """Which of these modes a run shows; without changes it is that of a healthy language model."""
    usual = {"cache_difference": 4e-6, "cached_position_signal": 0.3, "cached_ahead": 0, "position_signal": 0.3}
    rows = {name: np.full(5, float(value)) for name, value in (usual | traces).items() if np.ndim(value) == 0}
    rows |= {name: value for name, value in traces.items() if np.ndim(value)}
    changed = {f"leak_{kind}_by_position": np.zeros((5, 4)) for kind in ("changed", "cut")}
    run = hand_made(facts=facts, **(changed | rows))
    return [name for name in MODES if evidence_of(FAILURES[name], run)]


def net(**shape) -> tuple[torch.nn.Module, torch.Tensor]:
    """A GPT before its first step, in eval mode, and its data."""
    training = Training(tiny_gpt(**shape))
    return training.model.eval(), training.data.train.x


# --- the instruments ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("fault", "ahead"), [(None, 0), ("one_ahead", 1), ("stuck", None)])
def test_positions_of_cached_tokens_are_told_in_nets_of_other_shapes(fault, ahead, shape):
    model, x = net(**shape, **({"places": PLACES[fault]} if fault else {}))
    with torch.no_grad():
        found = token_tests.token_tests(model, x, x, model(x))
    assert found["position_signal"] > 100 * NO_PROGRESS
    if fault == "stuck":
        assert found["cached_position_signal"] < NO_PROGRESS / 100
    else:
        assert found["cached_position_signal"] > 100 * NO_PROGRESS and found["cached_ahead"] == ahead
    assert (found["cache_difference"] > 1e-3) == bool(fault)


def test_a_net_without_positions_has_none_that_could_be_stuck():
    model, x = net(positions="none", places=PLACES["stuck"])
    with torch.no_grad():
        found = token_tests.token_tests(model, x, x, model(x))
    assert found["cache_difference"] < 1e-4 and found["position_signal"] < NO_PROGRESS


@pytest.mark.parametrize("write", writing.WRITERS)
def test_a_sample_depends_on_its_prompt_alone(write):
    assert writing.agreements(net()[0], write) == {"rereading_agrees": 1.0, "alone_agrees": 1.0}


def test_a_stale_cache_spares_the_first_request():
    model, count = net(depth=2, width=32)[0], stale_cache.REQUEST
    usual, stale = (
        writing.write_digits(model, write, samples=2 * count, temperature=0)
        for write in (writing.written_with_cache, stale_cache.written_with_one_cache)
    )
    assert torch.equal(usual[:count], stale[:count]) and not torch.equal(usual[count:], stale[count:])
    found = writing.agreements(model, stale_cache.written_with_one_cache)
    assert found["rereading_agrees"] == 1 > found["alone_agrees"]


def test_padding_must_be_masked_and_not_counted():
    model = net(model=left_padding.gpt_with_room, depth=2, width=32)[0]
    usual = writing.write_digits(model, samples=10)
    same = {
        write.__name__: torch.equal(usual, writing.write_digits(model, write, samples=10))
        for write in (
            left_padding.written_behind_padding,
            left_padding.written_behind_masked_padding,
            left_padding.written_behind_uncounted_padding,
            left_padding.written_behind_ignored_padding,
        )
    }
    assert [name for name, equal in same.items() if equal] == ["written_behind_ignored_padding"]


def test_the_first_reading_of_a_writer_has_the_prompt_and_what_was_added():
    model = net(model=left_padding.gpt_with_room)[0]
    for write, first in ((writing.written_with_cache, 1), (left_padding.written_behind_padding, 9)):
        with token_tests.lengths_read(model) as lengths:
            writing.write_digits(model, write, samples=2, tokens=3)
        assert lengths == [first, 1, 1]
    assert not model._forward_pre_hooks


def test_after_the_end_nothing_counts():
    written = torch.tensor([[1, 9, 3, 9], [1, 2, 3, 4]])
    assert token_tests.until(written, 9).tolist() == [[1, 9, 9, 9], [1, 2, 3, 4]]
    assert token_tests.until(written, None) is written
    model, prompts = net()[0], torch.tensor([[16], [17]])
    rest = token_tests.surprise(model, prompts[:1], written[:1, :2])
    assert token_tests.surprise(model, prompts[:1], written[:1], end=9) == pytest.approx(rest, rel=1e-5)
    assert token_tests.surprise(model, prompts[:1], written[:1]) != pytest.approx(rest, rel=1e-3)


def test_a_digit_ends_after_its_last_ink():
    digit = torch.zeros(2, 50, dtype=torch.long)
    digit[:, 0], digit[0, 3], digit[1, 49] = 16, 5, 5
    first, last = ended(digit, PAD)
    assert first.tolist() == [16, 0, 0, 5, END, *[PAD] * 46]
    assert last.tolist() == [*digit[1].tolist(), END]


@pytest.mark.parametrize(("name", "asked"), [("digits_that_end", 1.0), ("padded_with_the_end", 0.0)])
def test_the_end_is_asked_for_once_in_each_sequence_or_never(name, asked):
    mode = FAILURES["end_masked_as_padding"]
    data = (mode.healthy if name == "digits_that_end" else mode.sick).data(tiny_gpt(samples=64))
    assert (data.train.y == END).sum(1).float().mean() == asked and data.classes == 28
    assert ((data.train.x == END).sum(1) > 0).float().mean() > 0.9
    assert not (data.train.y == PAD).any()


# --- tokens that are not digits -------------------------------------------------------------------

LETTERS = 27  # and a space


def text() -> torch.Tensor:
    """Prose of the repository in rows of 50 letters."""
    prose = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "labkit" / "failures").glob("*/a*.py")))
    ids = torch.tensor([max(0, ord(letter) - 96) if "a" <= letter <= "z" else 0 for letter in prose.lower()])
    return ids[: len(ids) // 50 * 50].reshape(-1, 50)


def swapped(ids: torch.Tensor, *pairs: tuple[int, int]) -> torch.Tensor:
    names = torch.arange(LETTERS)
    for one, other in pairs:
        names[[one, other]] = torch.tensor([other, one])
    return names[ids]


def test_swapped_letters_are_found_in_prose():
    rows = text()
    assert len(rows) > 200
    half = len(rows) // 2
    train, val = rows[:half], rows[half:]
    same, renamed = (
        token_tests.relabelled(train, each, LETTERS) for each in (val, swapped(val, (1, 2), (5, 20), (9, 14)))
    )
    assert named({"val_relabelled": same}) == []
    assert named({"val_relabelled": renamed}) == ["tokenizer_mismatch"]
    assert renamed["swapped"] == pytest.approx(same["swapped"], abs=0.02)
    assert token_tests.relabelled(train, val, 65) == {}


# --- controls of the thresholds -------------------------------------------------------------------


def test_positions_in_the_cache():
    assert named() == []
    stuck = {"cached_position_signal": 1e-7}
    assert named(cache_difference=CACHE_DIFFERS * 1.1, **stuck) == ["cache_position_stuck"]
    assert named(cache_difference=CACHE_DIFFERS * 0.9, **stuck) == []
    assert named(cache_difference=9, cached_position_signal=NO_PROGRESS * 0.9) == ["cache_position_stuck"]
    assert named(cache_difference=9, cached_position_signal=NO_PROGRESS * 1.1) == []
    assert named(cache_difference=9, **stuck, position_signal=NO_PROGRESS * 0.9) == []
    assert named(cache_difference=9, cached_ahead=1) == ["cache_position_one_ahead"]
    assert named(cache_difference=9, cached_ahead=2) == [] == named(cache_difference=1e-5, cached_ahead=1)


def test_in_a_net_that_looks_ahead_the_cache_says_nothing():
    ahead = {"leak_changed_by_position": np.full((5, 4), 0.1), "leak_cut_by_position": np.full((5, 4), 0.1)}
    assert named(cache_difference=9, cached_ahead=1, **ahead) == []
    assert named(cache_difference=9, cached_position_signal=0, **ahead) == []


def test_samples_that_depend_on_earlier_ones():
    assert named({"alone_agrees": AGREES - 0.01}) == ["stale_cache"]
    assert named({"alone_agrees": AGREES + 0.01}) == []


def test_samples_that_depend_on_padding():
    padded = {"prompt_length": 1, "length_read_first": 9}
    assert named(padded | {"rereading_agrees": AGREES - 0.01}) == ["left_padding"]
    assert named(padded | {"rereading_agrees": AGREES + 0.01}) == []
    assert named({"prompt_length": 1, "length_read_first": 1, "rereading_agrees": 0.5}) == []


def test_samples_that_do_not_stop():
    def stops(share: float, asked: float, end: int | None = 2) -> list[str]:
        losses = np.tile([1.0, 1.0, asked], (5, 1))
        facts = {} if end is None else {"end_token": end}
        return named(facts, val_stopped=np.full(5, share), word_loss=losses)

    assert stops(STOPS - 0.01, np.nan) == ["end_masked_as_padding"]
    assert stops(STOPS + 0.01, np.nan) == [] == stops(0.0, 12.0) == stops(0.0, np.nan, end=None)


def test_validation_tokens_with_other_names():
    def renamed(gain: float, trained: float = 1.0) -> list[str]:
        return named({"val_relabelled": {"trained": trained, "as_is": 2.0, "swapped": 2.0 - gain, "swaps": [[1, 2]]}})

    assert renamed(RENAMED * 1.1, trained=1.9) == ["tokenizer_mismatch"]
    assert renamed(RENAMED * 0.9, trained=1.9) == []
    assert renamed(EXPLAINED * 1.02) == ["tokenizer_mismatch"]
    assert renamed(EXPLAINED * 0.98) == []
    assert named({"val_relabelled": {}}) == []
