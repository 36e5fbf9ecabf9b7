"""What a language model is asked for, how it begins and how often it reads its data: each threshold from both sides."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from helpers import hand_made, tiny, tiny_gpt
from torch.nn.functional import cross_entropy

from labkit.diagnosis.diagnose import evidence_of
from labkit.diagnosis.watch import watch
from labkit.failures.catalogue import FAILURES
from labkit.failures.language import (
    attention_logit_growth,
    ignored_token_is_real,
    init_copied_from_gpt2,
    padding_counted,
    post_norm_without_warmup,
    repeated_data,
    targets_not_shifted,
    targets_shifted_twice,
    tied_embedding_too_large,
)
from labkit.failures.language_signs import ASKED, LEARNED_ANOTHER
from labkit.failures.numerics import clipped_before_unscaling
from labkit.recording import token_tests
from labkit.training.language import next_token_loss
from labkit.training.loop import Training

MODES = (
    "targets_not_shifted", "targets_shifted_twice", "ignored_token_is_real", "attention_logit_growth",
    "tied_embedding_too_large", "init_copied_from_gpt2", "repeated_data", "post_norm_without_warmup",
    "padding_counted",
)  # fmt: skip
TOKENS = {"task": "tokens", "classes": 26}


def names_of(run, modes=MODES) -> list[str]:
    return [name for name in modes if evidence_of(FAILURES[name], run)]


def language_run(facts: dict | None = None, **traces):
    """A run of a language model in which nothing is wrong; `traces` and `facts` replace some of its own."""
    usual = {
        "shift_loss": np.tile([2.1, 0.6, 1.7], (5, 1)),
        "leak_changed_by_position": np.zeros((5, 4)),
        "leak_cut_by_position": np.zeros((5, 4)),
        "attention_logit": np.full((5, 2), 20.0),
        "attention_entropy": np.linspace([2.8, 2.8], [2.0, 2.0], 5),
        "own_token": np.linspace(0.9, 0.5, 5),
        "word_loss": np.tile([0.5, 1.0, 2.0], (5, 1)),
        "probe_loss": np.linspace(3.3, 0.55, 5),
        "val_loss": np.linspace(3.3, 0.6, 5),
    }
    known = TOKENS | {"constant_loss": 1.27, "fresh_steps": 40}
    found = hand_made(facts=known | (facts or {}), **usual | traces)
    return dataclasses.replace(found, heads=("blocks.0.0", "blocks.0.1"))


def test_a_healthy_language_model_has_none_of_them():
    assert names_of(language_run()) == []


def test_a_run_without_tokens_says_nothing():
    assert names_of(hand_made()) == []


# --- which token is it asked for? -----------------------------------------------------------------


def asking(*costs: float, learned=(3.0, 3.0, 3.0)):  # as before training
    tests = {f"asks_{shift}": cost for shift, cost in enumerate(costs)}
    return language_run({"probe_tests": tests}, shift_loss=np.tile(learned, (5, 1)))


@pytest.mark.parametrize(("shift", "name"), [(0, "targets_not_shifted"), (2, "targets_shifted_twice")])
def test_the_cheapest_perfect_prediction_says_what_is_asked(shift, name):
    for factor, found in ((0.95, [name]), (1.05, [])):
        costs = [4.0, 4.0, 4.0]
        costs[shift] = 4.0 * ASKED * factor
        assert names_of(asking(*costs)) == found
    assert names_of(asking(4.0, 0.2, 4.0, learned=(0.1, 5.0, 5.0))) == []  # the loss is right: it asks for the next


@pytest.mark.parametrize(("shift", "name"), [(0, "targets_not_shifted"), (2, "targets_shifted_twice")])
def test_a_net_that_has_learned_another_token_was_asked_for_that_one(shift, name):
    """The loss of the probe is not always that of the loop: nets that take labels shift them inside."""
    costs = [4.0, 4.0, 4.0]
    costs[shift] = 0.0
    for factor, found in ((0.97, [name]), (1.03, [])):
        learned = [3.0, 3.0, 3.0]
        learned[shift] = 3.0 * LEARNED_ANOTHER * factor
        assert names_of(asking(*costs, learned=learned)) == found


def test_where_the_loss_is_not_known_the_net_itself_tells_with_less_certainty():
    run = asking(learned=(0.1, 5.0, 6.0))
    assert names_of(run) == ["targets_not_shifted"]
    known = evidence_of(FAILURES["targets_not_shifted"], asking(0.0, 4.0, 5.0))
    assert evidence_of(FAILURES["targets_not_shifted"], run).confidence < known.confidence


def test_a_net_that_looks_ahead_may_repeat_tokens_for_other_reasons():
    run = asking(0.0, 4.0, 5.0)
    run.traces["leak_changed_by_position"] = np.full((5, 4), 0.3)
    run.traces["leak_cut_by_position"] = np.full((5, 4), 0.3)
    assert names_of(run) == []


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        ({}, 1),
        ({"data": targets_not_shifted.unshifted_tokens}, 0),
        ({"loss": targets_shifted_twice.shifted_again}, 2),
        ({"loss": ignored_token_is_real.blank_ignored}, 1),
    ],
)
def test_what_a_loss_asks_for_shows_before_training(changes, asked):
    training = Training(tiny_gpt(**changes))
    x, y = training.data.train
    costs = token_tests.what_the_loss_asks(training.recipe.loss, x, y, training.model(x).detach())
    costs = [costs[f"asks_{shift}"] for shift in range(3)]
    assert np.argmin(costs) == asked and sorted(costs)[0] < ASKED / 2 * sorted(costs)[1]


# --- a word that the loss does not count ----------------------------------------------------------

WORDS = 5
SENTENCES = torch.tensor([[1, 2, 0, 3, 1, 4, 4], [2, 0, 0, 1, 3, 4, 4]])


def uncounted(targets=SENTENCES, loss=next_token_loss) -> dict[str, float]:
    found = token_tests.what_counts(loss, SENTENCES, targets, torch.zeros(2, 7, WORDS))
    return {name: value for name, value in found.items() if name.startswith("uncounted")}


def ignoring(word: int):
    return lambda outputs, targets: cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=word)


def test_a_word_between_words_that_count_is_told_from_padding():
    assert uncounted() == {"uncounted": 0.0}
    assert uncounted(loss=ignoring(0)) == {"uncounted": pytest.approx(3 / 14), "uncounted_word": 0.0}
    assert uncounted(loss=ignoring(4)) == {"uncounted": 0.0}  # at the end
    assert uncounted(SENTENCES.flip(1), loss=ignoring(4)) == {"uncounted": 0.0}  # at the beginning
    assert uncounted(SENTENCES.masked_fill(SENTENCES == 0, -100)) == {"uncounted": 0.0}  # no word
    assert uncounted(loss=lambda outputs, targets: next_token_loss(outputs[:, ::2], targets[:, ::2])) == {
        "uncounted": 0.0
    }  # places, not a word
    smoothed = lambda outputs, targets: cross_entropy(outputs.flatten(0, 1), targets.flatten(), label_smoothing=0.1)  # noqa: E731
    assert uncounted(loss=smoothed) == {"uncounted": 0.0}


def test_a_loss_that_wants_something_else_is_not_tested():
    assert uncounted(loss=lambda outputs, targets: outputs.logits) == {}
    assert uncounted(loss=lambda outputs, targets: torch.zeros(())) == {}
    assert uncounted(SENTENCES[:, 0]) == {}


def test_an_ignored_token_is_real_where_it_makes_up_a_share_of_the_targets():
    def named(share: float) -> list[str]:
        return names_of(language_run({"probe_tests": {"uncounted": share, "uncounted_word": 0.0}}))

    assert named(ignored_token_is_real.SEEN * 1.1) == ["ignored_token_is_real"]
    assert named(ignored_token_is_real.SEEN * 0.9) == []


# --- padding that the loss counts -----------------------------------------------------------------

READ = torch.tensor([[1, 2, 0, 3, 9, 9, 9], [2, 0, 0, 1, 3, 9, 9], [3, 1, 2, 0, 2, 1, 0]])
ASKED_FOR = torch.tensor([[2, 0, 3, 9, 9, 9, 9], [0, 0, 1, 3, 9, 9, 9], [1, 2, 0, 2, 1, 0, 1]])
PADS = 7 / 21


def padded(x=READ, y=ASKED_FOR, loss=next_token_loss, outputs=None) -> dict[str, float]:
    outputs = torch.zeros(len(x), x.shape[1], 10) if outputs is None else outputs
    found = token_tests.what_counts(loss, x, y, outputs)
    return {name: value for name, value in found.items() if "padding" in name}


def mirrored(sequences: torch.Tensor) -> torch.Tensor:
    return sequences.flip(1)


def test_padding_that_counts_fills_sequences_of_different_lengths():
    sure = torch.where(ASKED_FOR == 9, 50.0, 0.0)[..., None] * (torch.arange(10) == 9)
    found = padded(outputs=sure)  # certain of the padding, ignorant of the words
    assert found["padding"] == pytest.approx(PADS) and found["padding_word"] == 9
    assert found["loss_without_padding"] == pytest.approx(math.log(10))
    assert found["loss_with_padding"] == pytest.approx(math.log(10) * (1 - PADS))
    before = padded(mirrored(ASKED_FOR), mirrored(READ))  # on the left, shifted the other way round
    assert before["padding"] == pytest.approx(5 / 21) and before["padding_word"] == 9
    tags = torch.where(READ == 9, 7, READ + 3)  # one for each word that is read, and one of their own for padding
    assert padded(y=tags)["padding_word"] == 7


def test_padding_that_does_not_count_is_none():
    none = {"padding": 0.0}
    assert padded(y=ASKED_FOR.masked_fill(ASKED_FOR == 9, -100)) == none
    assert padded(loss=ignoring(9)) == none
    assert padded(loss=lambda outputs, targets: next_token_loss(outputs[:, :3], targets[:, :3])) == none  # masked


def test_a_word_is_no_padding():
    none = {"padding": 0.0}
    assert padded(READ[2:], ASKED_FOR[2:]) == none
    assert padded(READ.where(READ != 9, 0), ASKED_FOR.where(ASKED_FOR != 9, 0)) == none  # it stands elsewhere too
    assert padded(READ.where(READ != 9, torch.arange(7))) == none  # the net reads words there
    assert padded(y=torch.where(READ == 9, 7, READ + 3).index_fill(1, torch.tensor([1]), 7)) == none  # a tag of words
    prompt, asked = torch.tensor([[9, 1], [2, 9], [1, 1]]), torch.cat([torch.full((3, 2), -100), ASKED_FOR], 1)
    assert padded(torch.cat([prompt, READ], 1), asked) == none  # read as a word, though never asked for
    assert padded(torch.cat([prompt.where(prompt != 9, 4), READ], 1), asked)["padding_word"] == 9
    same = torch.tensor([[1, 2, 0, 9, 9], [2, 0, 1, 9, 9]])
    assert padded(same[:, :-1], same[:, 1:]) == none  # sequences of one length


def test_padding_counts_where_it_is_many_targets_and_flatters_the_loss():
    def named(share: float, factor: float) -> list[str]:
        found = {"padding": share, "padding_word": 9.0, "loss_with_padding": 0.5, "loss_without_padding": 0.5 * factor}
        return names_of(language_run({"probe_tests": found}))

    mode = padding_counted
    assert named(mode.SEEN * 1.1, mode.FLATTERED * 1.02) == ["padding_counted"]
    assert named(mode.SEEN * 0.9, mode.FLATTERED * 1.02) == []
    assert named(mode.SEEN * 1.1, mode.FLATTERED * 0.98) == []


def masked_loss(outputs, targets):
    """As many loops write it: the mask is theirs, and not in the targets."""
    each = cross_entropy(outputs.transpose(1, 2), targets, reduction="none")
    return each[targets != 9].mean()


@pytest.mark.parametrize(("loss", "seen"), [(next_token_loss, pytest.approx(PADS)), (masked_loss, None)])
def test_a_loop_whose_loss_is_not_known_may_ignore_padding_by_itself(loss, seen):
    x, y = READ.repeat(4, 1), ASKED_FOR.repeat(4, 1)
    model = torch.nn.Sequential(torch.nn.Embedding(10, 16), torch.nn.Linear(16, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, probe=(x, y)) as record:
        for _ in range(3):
            optimizer.zero_grad()
            value = loss(model(x), y)
            value.backward()
            optimizer.step()
            record.step(value, batch=(x, y))
    assert record.run.facts["probe_tests"].get("padding") == seen
    with watch(model, optimizer, probe=(x, y), loss_fn=masked_loss) as record:
        masked_loss(model(x), y).backward()
        optimizer.step()
        record.step(1.0, batch=(x, y))
    assert record.run.facts["probe_tests"]["padding"] == 0


# --- attention that grows -------------------------------------------------------------------------


def grown(first=4.0, last=5000.0, narrowest=0.05, left=0.7, violent=0.1):
    rows = np.linspace(0, 1, 5)[:, None] * np.ones(2)
    return language_run(
        attention_logit=first + (last - first) * rows,
        attention_entropy=2.8 + (narrowest - 1) * 2.8 * rows,
        probe_loss=np.linspace(3.3, left * 1.27, 5),
        update_ratio=np.full((40, 3), violent),
    )


def test_attention_logits_grow_from_small_ones_and_harm():
    mode, name = attention_logit_growth, ["attention_logit_growth"]
    assert names_of(grown()) == name
    for threshold, entry, inside in (
        (mode.SMALL, "first", 0.9), (mode.LARGE, "last", 1.1), (mode.NARROW, "narrowest", 0.9),
        (mode.LEFT, "left", 1.02), (mode.VIOLENT, "violent", 0.9),
    ):  # fmt: skip
        assert names_of(grown(**{entry: threshold * inside})) == name, entry
        assert names_of(grown(**{entry: threshold * (2 - inside)})) == [], entry
    late = grown(violent=0.1)
    late.traces["update_ratio"][mode.FIRST :] = 1.0  # later ones are a consequence
    assert names_of(late) == name
    assert names_of(grown(last=math.nan)) == []


# --- how it begins --------------------------------------------------------------------------------


def weights(head: str = "head", gain: float = 0.8, others: float = 0.8, words: float = 26) -> dict:
    layers = {f"layer{index}": {"units": 64.0, "gain": others} for index in range(3)}
    return {"first_weights": layers | {head: {"units": words, "gain": gain}}}


def tied(gain: float = 8.0, first: float = 4.6, head: str = "head", **changes):
    return language_run(weights(head, gain) | changes, probe_loss=np.linspace(first * math.log(26), 0.6, 5))


def test_a_tied_embedding_is_too_large_as_a_head():
    mode, name = tied_embedding_too_large, ["tied_embedding_too_large"]
    assert names_of(tied()) == name
    assert names_of(tied(gain=mode.LARGE * 1.1)) == name and names_of(tied(gain=mode.LARGE * 0.9)) == []
    assert names_of(tied(first=mode.WRONG * 1.1)) == name and names_of(tied(first=mode.WRONG * 0.9)) == []
    assert names_of(tied(head="layer3")) == []  # it is listed among the layers, so its weights are its own
    assert names_of(tied(task="classes")) == []


def small(gain: float = 0.16, left: float = 0.56, **changes):
    facts = weights(gain=gain, others=gain) | changes
    return language_run(facts, probe_loss=np.linspace(3.26, left * 1.27, 5))


def test_an_init_is_too_small_for_the_width_where_the_loss_ends_too_high():
    mode, name = init_copied_from_gpt2, ["init_copied_from_gpt2"]
    assert names_of(small()) == name
    assert names_of(small(gain=mode.SMALL * 0.9)) == name and names_of(small(gain=mode.SMALL * 1.1)) == []
    assert names_of(small(left=mode.LEFT * 1.02)) == name and names_of(small(left=mode.LEFT * 0.98)) == []
    assert names_of(small(task="classes")) == []


def test_weights_that_were_not_seen_before_the_first_step_say_nothing():
    for run in (small(), tied(), without_inputs()):
        run.traces["val_step"] = run["val_step"] + 10
        assert names_of(run) == []


def without_inputs(own=1.1, lost=0.0, left=1.0, flow=0.001, first_lr=0.006, blocks=12):
    gradients = np.geomspace(flow, 1.0, blocks)
    found = language_run(
        own_token=np.linspace(own, lost, 5),
        probe_loss=np.linspace(3.3, left * 1.27, 5),
        grad_norm=np.tile(gradients, (40, 1)),
        lr=np.concatenate([[first_lr], np.full(39, 0.006)]),
    )
    return dataclasses.replace(found, layers=tuple(f"blocks.{index}.layer2" for index in range(blocks)))


def test_a_deep_net_at_full_rate_that_stops_reading_its_inputs():
    mode, name = post_norm_without_warmup, ["post_norm_without_warmup"]
    assert names_of(without_inputs()) == name
    for threshold, entry, inside in (
        (mode.OWN, "own", 1.1), (mode.LOST, "lost", 0.9), (mode.LEFT, "left", 1.02), (mode.STARVED, "flow", 0.9),
        (mode.FULL * 0.006, "first_lr", 1.1),
    ):  # fmt: skip
        assert names_of(without_inputs(**{entry: threshold * inside})) == name, entry
        assert names_of(without_inputs(**{entry: threshold * (2 - inside)})) == [], entry
    assert names_of(without_inputs(blocks=mode.DEEP)) == name and names_of(without_inputs(blocks=mode.DEEP - 1)) == []


# --- how often it reads its data ------------------------------------------------------------------


def repeated(passes=20.0, rise=1.15, gap=0.4, **changes):
    last = 0.75 * rise
    asks = {"asks_0": 4.0, "asks_1": 0.2, "asks_2": 4.0}
    facts = {"fresh_steps": 40 / passes, "different_samples": 500, "probe_tests": asks} | changes
    return language_run(
        facts, val_loss=np.array([3.3, 0.8, 0.75, 0.75, last]), probe_loss=np.linspace(3.3, last - gap * 1.27, 5)
    )


def test_data_are_repeated_where_the_validation_loss_turns():
    mode, name = repeated_data, ["repeated_data"]
    assert names_of(repeated()) == name
    assert names_of(repeated(passes=mode.PASSES * 1.1)) == name and names_of(repeated(passes=mode.PASSES * 0.9)) == []
    assert names_of(repeated(rise=mode.RISE * 1.01)) == name and names_of(repeated(rise=mode.RISE * 0.99)) == []
    assert names_of(repeated(gap=mode.GAP * 1.1)) == name and names_of(repeated(gap=mode.GAP * 0.9)) == []
    assert names_of(repeated(different_samples=mode.FEW)) == name
    assert names_of(repeated(different_samples=mode.FEW - 1)) == []
    tags = {"asks_0": 0.2, "asks_1": 4.0, "asks_2": 4.0}
    assert "repeated_data" not in names_of(repeated(probe_tests=tags)) + names_of(repeated(probe_tests={}))


# --- clipped before unscaling ---------------------------------------------------------------------


def clipped(threshold=1.0, scale=65536.0, left=1.0, gradient=1.5):
    facts = {"constant_loss": 2.3, "probe_tests": {"gradient": gradient}}
    return hand_made(
        facts=facts,
        loss_scale=scale,
        grad_norm_total=threshold / scale,
        probe_loss=np.linspace(2.3, left * 2.3, 5),
    )


def test_gradients_of_a_round_number_over_the_loss_scale_were_clipped_before_unscaling():
    mode = clipped_before_unscaling

    def named(**changes) -> bool:
        return bool(evidence_of(FAILURES["clipped_before_unscaling"], clipped(**changes)))

    assert named() and named(threshold=0.1) and named(threshold=0.25) and named(threshold=5.0)
    assert not named(threshold=1e-4 * 65536)  # clipped to 0.0001 after unscaling
    assert named(threshold=1 + mode.ROUND / 3) and not named(threshold=1 + 3 * mode.ROUND)
    assert named(left=mode.LEFT + 0.02) and not named(left=mode.LEFT - 0.02)
    assert named(scale=mode.SCALED * 1.1, gradient=1e4) and not named(scale=mode.SCALED * 0.9, gradient=1e4)
    assert named(gradient=mode.LARGER * 1.1 / 65536) and not named(gradient=mode.LARGER * 0.9 / 65536)


def test_clipping_after_unscaling_leaves_gradients_of_many_sizes():
    assert not evidence_of(FAILURES["clipped_before_unscaling"], hand_made(loss_scale=65536.0))


def test_a_step_that_clips_first_uses_a_gradient_of_the_threshold_over_the_scale():
    changes = {"precision": "fp16", "loss_scale": "dynamic", "clip": 1.0, "steps": 3}
    right, wrong = (
        Training(tiny(**changes, **more)).run(progress=False)
        for more in ({}, {"step": clipped_before_unscaling.clip_then_unscale})
    )
    assert wrong["grad_norm_total"] == pytest.approx(1 / wrong["loss_scale"], rel=1e-3)
    assert (right["grad_norm_total"] > 0.1).all()
