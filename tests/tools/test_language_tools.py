"""The tests of token models, on nets with known leaks and with none; on labkit's own and on others."""

import copy
import math

import pytest
import torch
from helpers import tiny_gpt
from token_models import CAUSAL, LEAKS, LENGTH, WORDS, Encoder, Recurrent, next_token_loss, sequences

from labkit import tools
from labkit.diagnosis.checkup import checkup
from labkit.diagnosis.watch import watch
from labkit.recording import token_tests
from labkit.recording.meters import AttentionWeights, Probe
from labkit.tools.language import LEAK
from labkit.training import gpt
from labkit.training.loop import Training

TINY = tiny_gpt(depth=2, steps=4)


def built(make) -> torch.nn.Module:
    torch.manual_seed(0)
    return make()


# --- causality ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CAUSAL)
def test_a_causal_net_does_not_look_ahead(name):
    found = tools.causality(built(CAUSAL[name]), sequences())
    assert found.is_causal and found and found.changed == 0 and found.cut < 1e-5
    assert str(found).startswith("causal")


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_is_found_before_training(name):
    found = tools.causality(built(LEAKS[name]), sequences())
    assert not found.is_causal and max(found.changed, found.cut) > 2 * LEAK, found
    assert str(found).startswith("looks ahead")


def no_mask(queries, keys, device):
    return torch.ones(queries, keys, dtype=torch.bool, device=device)


def one_ahead(queries, keys, device):
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries + 1)


def masked_after_softmax(scores, mask):
    return scores.softmax(-1) * mask


def softmax_over_queries(scores, mask):
    return scores.masked_fill(~mask, -math.inf).softmax(-2)


def split_by_view(x, heads):
    return x.reshape(len(x), heads, x.shape[1], -1)


def joined_by_view(x):
    return x.reshape(len(x), x.shape[2], -1)


FAULTS = (  # what is replaced, and whether changed tokens show it: cut off, all do
    ({"mask": no_mask}, True),
    ({"mask": one_ahead}, True),
    ({"attend": masked_after_softmax}, True),
    ({"attend": softmax_over_queries}, True),
    ({"merge_heads": joined_by_view}, True),
    ({"split_heads": split_by_view}, True),
    ({"split_heads": split_by_view, "merge_heads": joined_by_view}, False),
)


@pytest.mark.parametrize(("changes", "shows"), FAULTS)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_faults_of_attention_are_found_in_a_gpt(changes, shows, seed):
    training = Training(TINY.but(**changes, seed=seed))
    found = tools.causality(training.model, training.data.train.x[:16])
    assert not found.is_causal and found.cut > 5 * LEAK, found
    assert found.changed > 2 * LEAK if shows else found.changed == 0, found


@pytest.mark.parametrize(
    "shape",
    [{}, {"norm_order": "post"}, {"qk_norm": True}, {"dropout": 0.5}, {"depth": 6}, {"init_scale": 0.5}],
    ids=str,
)
def test_a_healthy_gpt_of_any_shape_is_causal(shape):
    training = Training(TINY.but(**shape))
    found = tools.causality(training.model, training.data.train.x[:16])
    assert found.changed == 0 and found.cut < 1e-5


def test_a_net_for_one_length_is_tested_by_changing_alone():
    class Rigid(Recurrent):
        def forward(self, tokens):
            return super().forward(tokens) + torch.zeros(1, LENGTH, 1)

    found = tools.causality(built(Rigid), sequences())
    assert found.changed == 0 and math.isnan(found.cut) and found.is_causal


def test_inputs_may_be_a_dictionary():
    found = tools.causality(built(lambda: Encoder(ahead=None)), {"input_ids": sequences()})
    assert not found.is_causal
    assert tools.causality(built(Encoder), {"input_ids": sequences()}).is_causal


@pytest.mark.parametrize("make", [*CAUSAL.values(), *LEAKS.values()])
def test_the_tests_leave_the_net_and_the_random_numbers_as_they_were(make):
    model = built(make).train()
    before, numbers = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    tools.causality(model, sequences())
    tools.shift_scan(model, sequences())
    tools.loss_by_position(model, sequences())
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())
    assert torch.equal(numbers, torch.get_rng_state()) and all(each.training for each in model.modules())
    assert all(weight.grad is None for weight in model.parameters())


@pytest.mark.parametrize(
    ("tokens", "says"),
    [
        (torch.rand(4, LENGTH), "whole numbers"),
        (torch.zeros(4, 2, dtype=torch.long), "at least 4 in a row"),
        ("words", "got str"),
    ],
)
def test_what_are_no_tokens_is_refused_in_words(tokens, says):
    with pytest.raises(ValueError, match=says):
        tools.causality(built(Recurrent), tokens)


def test_a_net_without_logits_for_every_token_is_refused():
    class Classifier(Recurrent):
        def forward(self, tokens):
            return super().forward(tokens)[:, -1]

    with pytest.raises(ValueError, match="logits for every token"):
        tools.causality(built(Classifier), sequences())


# --- which token, where, and how sure -------------------------------------------------------------


def trained_on(shift: int, steps: int = 60) -> torch.nn.Module:
    """An LSTM that was asked for the token `shift` places later."""
    model = built(Recurrent)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    tokens = sequences(64)
    for _ in range(steps):
        optimizer.zero_grad()
        length = LENGTH - shift
        next_token_loss(model(tokens)[:, :length], tokens[:, shift:]).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize(("shift", "name"), [(0, "same"), (1, "next"), (2, "second_next")])
def test_the_shift_scan_names_the_token_that_is_predicted(shift, name):
    found = tools.shift_scan(trained_on(shift), sequences(16, seed=1))
    others = [getattr(found, each) for each in ("same", "next", "second_next") if each != name]
    assert found.predicts == name and getattr(found, name) < 1.0 < 2.0 < min(others)


def test_loss_by_position_and_by_token_worked_out_by_hand():
    model, tokens = built(Recurrent).eval(), sequences(4)
    with torch.no_grad():
        each = -model(tokens)[:, :-1].log_softmax(-1).gather(2, tokens[:, 1:, None])[..., 0]
    torch.testing.assert_close(tools.loss_by_position(model, tokens), each.mean(0))
    by_token = tools.loss_by_token(model, tokens)
    torch.testing.assert_close(by_token[3], each[tokens[:, 1:] == 3].mean())
    few = tokens.clamp_max(4)
    assert by_token.shape == (WORDS,) and tools.loss_by_token(model, few)[7].isnan()


def test_ignored_targets_are_left_out():
    outputs, targets = torch.randn(3, 5, WORDS), torch.randint(WORDS, (3, 5))
    targets[:, 2] = -100
    found = token_tests.losses_by_place(outputs, targets)
    assert found["position_loss"].isnan().tolist() == [False, False, True, False, False]
    assert not found["word_loss"][targets[targets >= 0].unique()].isnan().any()


def test_the_cache_of_another_net_is_compared_step_by_step():
    model = built(Recurrent).eval()
    assert tools.cache_difference(model, sequences(), model.step) < 1e-5
    assert tools.cache_difference(model, sequences(), lambda token, _: model.step(token, None)) > 0.01
    with pytest.raises(ValueError, match="step"):
        tools.cache_difference(model, sequences())


def stuck(seen, tokens, device):
    return torch.zeros(tokens, dtype=torch.long, device=device) if seen else torch.arange(tokens, device=device)


def one_too_many(seen, tokens, device):
    return torch.arange(seen, seen + tokens, device=device).add(1 if seen else 0).clamp_max(48)


@pytest.mark.parametrize(
    ("places", "low", "high"), [(gpt.counted_on, 0, 1e-4), (stuck, 0.1, 99), (one_too_many, 0.1, 99)]
)
def test_positions_that_are_wrong_with_a_cache_are_found(places, low, high):
    training = Training(TINY.but(places=places))
    assert low <= tools.cache_difference(training.model, training.data.train.x[:4]) <= high


def test_samples_are_counted():
    written = torch.tensor([[1, 2, 3, 3], [1, 1, 1, 1]])
    found = tools.samples(written, 5, end=3)
    assert found.stopped == 0.5 and found.shares == pytest.approx((0, 5 / 8, 1 / 8, 2 / 8, 0))
    assert found.surprise is None and tools.samples(written, 5).stopped is None


def test_a_nets_own_samples_surprise_it_less_than_others():
    model, prompts = trained_on(1), sequences(32)[:, :1]
    good, bad = sequences(32)[:, 1:], torch.randint(WORDS, (32, LENGTH - 1))
    own = tools.samples(good, WORDS, model=model, prompts=prompts).surprise
    assert own < 1.0 < 2.5 < tools.samples(bad, WORDS, model=model, prompts=prompts).surprise


# --- in the probe, in `watch` and in `checkup` ----------------------------------------------------


def test_the_probe_reads_logits_and_entropy_of_each_head():
    training = Training(TINY)
    x, y = (part[:16] for part in training.data.train)
    probe = Probe(training.model, TINY.loss, x, y)
    found = probe.examine()
    assert probe.heads == tuple(f"blocks.{block}.attention.weights.{head}" for block in (0, 1) for head in (0, 1))
    module, calls = training.model.blocks[0].attention.weights, []
    hook = module.register_forward_hook(lambda _, inputs, weights: calls.append((inputs, weights)))
    with torch.no_grad():
        training.model.eval()(x)
    hook.remove()
    (query, key, mask), weights = calls[0]
    scores = (query @ key.transpose(-2, -1) / math.sqrt(8)).masked_fill(~mask, -math.inf)
    torch.testing.assert_close(found["attention_logit"][:2], scores.amax((0, 2, 3)))
    entropy = -(weights * weights.clamp_min(1e-30).log()).sum(-1).mean((0, 2))
    torch.testing.assert_close(found["attention_entropy"][:2], entropy)


def test_attention_that_is_not_masked_is_read_too():
    module = AttentionWeights()
    query, key = torch.randn(2, 1, 4, 8), torch.randn(2, 1, 4, 8)
    torch.testing.assert_close(module(query, key), module.scores(query, key).softmax(-1))


@pytest.mark.parametrize("make", [Recurrent, Encoder, lambda: Encoder(ahead=None)])
def test_watch_measures_a_foreign_language_model(make):
    model, tokens = built(make), sequences(32)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x, y = tokens[:, :-1], tokens[:, 1:]
    with watch(model, optimizer, probe=(x, y), strict=True) as record:
        record.validation(loss=1.0)
        for _ in range(3):
            optimizer.zero_grad()
            loss = next_token_loss(model(x), y)
            loss.backward()
            optimizer.step()
            record.step(loss, batch=(x, y))
        record.validation(loss=1.0)
    run = record.run
    leaks = isinstance(model, Encoder) and model.ahead is None
    assert (run["leak_changed"] > LEAK).tolist() == [leaks, leaks]
    assert run["shift_loss"].shape == (2, 3) and run["position_loss"].shape == (2, LENGTH - 1)
    assert run["word_loss"].shape == (2, WORDS) and np_finite(run["log_z"])
    asks = [run.facts["probe_tests"][f"asks_{shift}"] for shift in range(3)]
    assert min(asks) == asks[1] and run.facts["task"] == "tokens"


def np_finite(values) -> bool:
    return all(map(math.isfinite, values))


def test_a_watched_net_trains_as_it_would_alone():
    weights = []
    for watched in (False, True):
        model, tokens = built(Encoder), sequences(32)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        x, y = tokens[:, :-1], tokens[:, 1:]
        record = watch(model, optimizer, probe=(x, y), strict=True) if watched else None
        if record:
            record.__enter__()
        for _ in range(3):
            if record:
                record.validation(loss=1.0)
            optimizer.zero_grad()
            loss = next_token_loss(model(x), y)
            loss.backward()
            optimizer.step()
            if record:
                record.step(loss, batch=(x, y))
        if record:
            record.__exit__(None, None, None)
        weights.append([weight.detach().clone() for weight in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))


def checked(model, shift: int = 1):
    tokens = sequences(64)
    length = LENGTH - max(shift, 1)
    return checkup(model, next_token_loss, (tokens[:, :length], tokens[:, shift : shift + length]))


def test_checkup_finds_a_net_that_looks_ahead():
    name = "does not look ahead"
    assert checked(built(Recurrent))[name].state == "ok"
    assert checked(built(lambda: Encoder(ahead=None)))[name].state == "fault"


@pytest.mark.parametrize(("shift", "state"), [(0, "fault"), (1, "ok"), (2, "fault")])
def test_checkup_finds_targets_that_are_not_the_next_token(shift, state):
    assert checked(built(Recurrent), shift)["asks for the next token"].state == state


def test_checkup_leaves_taggers_alone():
    """The targets are classes of the tokens, not tokens: such a net may look ahead."""
    tokens = sequences(64)
    found = checkup(built(lambda: Recurrent(both=True)), next_token_loss, (tokens, (tokens * 7 + 3) % 5))
    assert found["asks for the next token"].state == "skipped" and found["does not look ahead"].state == "skipped"


class OwnLoss(torch.nn.Module):
    """A net that is called with the targets too, and returns logits and loss, as minGPT and nanoGPT do."""

    def __init__(self, ahead: int | None):
        super().__init__()
        self.net = Encoder(ahead)

    def forward(self, input_ids, targets=None):
        logits = self.net(input_ids)
        words = logits.shape[-1]
        return logits, torch.nn.functional.cross_entropy(logits.view(-1, words), targets.view(-1), ignore_index=-100)


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("ahead", [0, None])
def test_two_lines_around_a_net_with_its_own_loss_find_a_leak_without_any_validation(ahead, named, batch):
    model, tokens = built(lambda: OwnLoss(ahead)), sequences(32)
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with watch(model, optimizer, strict=True) as record:
        for _ in range(3):
            optimizer.zero_grad()
            loss = (model(targets=y, input_ids=x) if named else model(x, y))[1]
            loss.backward()
            optimizer.step()
            record.step(loss, batch=(x, y) if batch else None)
    run = record.run
    assert (run["leak_changed"] > LEAK).tolist() == (run["leak_cut"] > LEAK).tolist() == [ahead is None]
    assert run["val_step"].tolist() == [3] and "probe_loss" not in run  # one value is no curve
    assert [each.name for each in record.diagnose()] == ["causal_mask_missing"] * (ahead is None)


def test_a_net_that_fills_gaps_may_look_ahead():
    """A masked language model, trained to name the words that were hidden from it."""
    model, tokens = built(lambda: Encoder(ahead=None)), sequences(32)
    hidden = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(0)) < 0.3
    x, y = tokens.masked_fill(hidden, 0), tokens.masked_fill(~hidden, -100)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with watch(model, optimizer, probe=(x, y), strict=True) as record:
        for _ in range(3):
            optimizer.zero_grad()
            loss = next_token_loss(model(x), y)
            loss.backward()
            optimizer.step()
            record.step(loss, batch=(x, y))
    assert record.run["leak_changed"][-1] > LEAK
    assert [each.name for each in record.diagnose()] == []
