"""The language model of the lab: tokens, net, loss, evaluation, samples, judge, and the recipe that holds them."""

import dataclasses
import math

import pytest
import torch
from helpers import tiny_gpt, trained, watched

from labkit.errors import RecipeError
from labkit.failures.mode import Knob
from labkit.recording.run import Run
from labkit.training import gpt, tokens, writing
from labkit.training.data import load
from labkit.training.fork import fork
from labkit.training.language import LanguageRecipe, next_token_loss
from labkit.training.loop import Training, train
from labkit.training.recipe import Recipe
from labkit.training.run_store import key_of

TINY = tiny_gpt(data="mnist_tokens", steps=4, evaluate_every=1000)


def net(seed: int = 0, **changes) -> gpt.GPT:
    """A GPT as it is before training, in eval mode."""
    return Training(TINY.but(seed=seed, **changes)).model.eval()


def words(samples: int = 3, seed: int = 0) -> torch.Tensor:
    return torch.randint(tokens.WORDS, (samples, 49), generator=torch.Generator().manual_seed(seed))


# --- tokens ---------------------------------------------------------------------------------------


def test_a_patch_is_four_bits_row_by_row():
    image = torch.zeros(1, 1, 28, 28)
    image[0, 0, 0:2, 2:4] = 1.0  # the second pixel of the first row of 14
    image[0, 0, 6:8, 4:6] = 1.0  # row 3, column 2: patch row 1, patch column 1, its lower left pixel
    found = tokens.patch_tokens(image)[0]
    assert found[0] == 4 and found[7 + 1] == 2 and found.sum() == 6


def test_a_pixel_is_black_above_the_threshold_of_its_mean():
    image = torch.zeros(1, 1, 28, 28)
    image[0, 0, 0, 0], image[0, 0, 0, 2] = 4 * (tokens.INK + 0.01), 4 * (tokens.INK - 0.01)
    assert tokens.patch_tokens(image)[0, 0] == 8


def test_a_sequence_is_the_label_and_then_the_patches():
    data = tokens.mnist_tokens(TINY)
    split = load("mnist", "train", inputs="unit", samples=64)
    assert data.classes == 26 and data.train.x.shape == data.train.y.shape == (64, 49)
    assert torch.equal(data.train.x[:, 0], split.y[:64] + 16)
    assert torch.equal(data.train.x[:, 1:], data.train.y[:, :-1])  # each place is asked for the next token
    assert torch.equal(data.train.y, tokens.patch_tokens(split.x[:64]))
    assert data.val.x.shape == (500, 49)
    assert 0.7 < (data.val.y == 0).float().mean() < 0.76  # most patches are blank


def test_pictures_undo_the_tokens():
    images = load("mnist", "val", inputs="unit").x[:20]
    black = (torch.nn.functional.avg_pool2d(images, 2)[:, 0] > tokens.INK).long()
    assert torch.equal(tokens.pictures(tokens.patch_tokens(images)), black)
    assert tokens.pictures(torch.full((1, 49), 16)).sum() == 0  # a label is no patch


def test_pieces_of_the_data_can_be_replaced():
    unshifted = tokens.token_data(TINY, pairs=lambda sequence: tokens.Split(sequence, sequence))
    assert torch.equal(unshifted.train.x, unshifted.train.y)
    other = tokens.token_data(TINY, tokenize_val=lambda images: tokens.patch_tokens(images.transpose(2, 3)))
    usual = tokens.mnist_tokens(TINY)
    assert torch.equal(other.train.x, usual.train.x) and not torch.equal(other.val.x, usual.val.x)


# --- the net --------------------------------------------------------------------------------------

SHAPES = (
    {}, {"norm_order": "post"}, {"positions": "none"}, {"qk_norm": True}, {"tied": True}, {"residual": False},
    {"depth": 3, "heads": 4}, {"dropout": 0.3},
)  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_no_token_sees_a_later_one(shape):
    model, before = net(**shape), words()
    after = before.clone()
    after[:, 25:] = words(seed=1)[:, 25:]
    with torch.no_grad():
        full, changed, cut = model(before), model(after), model(before[:, :25])
    assert torch.equal(full[:, :25], changed[:, :25])
    torch.testing.assert_close(full[:, :25], cut)
    assert not torch.allclose(full[:, 25:], changed[:, 25:])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_cache_changes_nothing(shape):
    model, given = net(**shape), words()
    cache, found = gpt.Cache(), []
    with torch.no_grad():
        for one in (given[:, :3], *given[:, 3:].split(1, dim=1)):
            found.append(model(one, cache=cache))
        torch.testing.assert_close(torch.cat(found, dim=1), model(given), rtol=1e-4, atol=1e-4)
    assert cache.length == 49


def test_attention_written_out_is_torchs_own():
    model, x = net(), torch.randn(2, 49, 16, generator=torch.Generator().manual_seed(0))
    attention = model.blocks[0].attention
    query, key, value = (gpt.heads_apart(part(x), 2) for part in (attention.query, attention.key, attention.value))
    own = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    mask = gpt.causal_mask(49, 49, torch.device("cpu"))
    torch.testing.assert_close(attention(x, mask, None), attention.out(gpt.heads_joined(own)))


def test_post_norm_without_dropout_is_torchs_own_layer():
    model, x = net(norm_order="post"), torch.randn(2, 49, 16, generator=torch.Generator().manual_seed(0))
    block = model.blocks[0]
    theirs = torch.nn.TransformerEncoderLayer(16, 2, 64, 0.0, "gelu", batch_first=True, norm_first=False)
    attention, own = theirs.self_attn, block.attention
    with torch.no_grad():
        attention.in_proj_weight.copy_(torch.cat([own.query.weight, own.key.weight, own.value.weight]))
        attention.in_proj_bias.copy_(torch.cat([own.query.bias, own.key.bias, own.value.bias]))
        for mine, other in (
            (own.out, attention.out_proj), (block.layer1, theirs.linear1), (block.layer2, theirs.linear2),
        ):  # fmt: skip
            other.load_state_dict(mine.state_dict())
    mask = gpt.causal_mask(49, 49, torch.device("cpu"))
    torch.testing.assert_close(block(x, mask, None), theirs(x, src_mask=~mask), rtol=1e-4, atol=1e-4)


def test_places_and_mask_can_be_given_where_samples_are_padded():
    """Behind pads that nobody may see, and with its own places, a sequence has the logits that it has alone."""
    model, alone = net(), words()[:, :20]
    padded = torch.cat([torch.zeros(3, 8, dtype=torch.long), alone], dim=1)
    places = (torch.arange(28) - 8).clamp_min(0)
    mask = gpt.causal_mask(28, 28, torch.device("cpu"))
    mask = mask & (torch.arange(28) >= 8) | torch.eye(28, dtype=torch.bool)
    with torch.no_grad():
        torch.testing.assert_close(model(padded, places=places, mask=mask)[:, 8:], model(alone), rtol=1e-4, atol=1e-4)
        assert not torch.allclose(model(padded)[:, 8:], model(alone), atol=1e-2)


def test_the_init_has_the_scales_of_the_recipe():
    model = Training(LanguageRecipe(samples=64, device="cpu", init_scale=0.1, embedding_scale=0.3)).model
    assert model.embed.weight.std().item() == pytest.approx(0.3, rel=0.1)
    assert model.blocks[0].layer1.weight.std().item() == pytest.approx(0.1, rel=0.05)
    assert model.blocks[0].layer2.weight.std().item() == pytest.approx(0.1 / 2, rel=0.05)  # sqrt(2 x 2 blocks)
    assert model.blocks[1].attention.out.weight.std().item() == pytest.approx(0.1 / 2, rel=0.05)
    assert model.head.weight.std().item() == pytest.approx(0.1, rel=0.1) and model.head.bias is None
    biases = [weight for name, weight in model.named_parameters() if name.endswith("bias")]
    assert len(biases) > 10 and not any(bias.any() for bias in biases)


def test_a_tied_head_is_the_embedding():
    model = net(tied=True)
    assert model.head.weight is model.embed.weight
    untied, tied = (sum(each.numel() for each in one.parameters()) for one in (net(), model))
    assert untied - tied == 26 * 16


def test_weight_decay_is_for_matrices_alone():
    training = Training(TINY)
    decayed, not_decayed = training.optimizer.param_groups
    assert decayed["weight_decay"] == 0.1 and not_decayed["weight_decay"] == 0
    assert {each.ndim for each in decayed["params"]} == {2} and {each.ndim for each in not_decayed["params"]} == {1}
    assert len(decayed["params"]) + len(not_decayed["params"]) == len(list(training.model.parameters()))
    assert decayed["betas"] == (0.9, 0.95)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Training(Recipe(model=gpt.gpt)), "LanguageRecipe"),
        (lambda: Training(TINY.but(width=15)), "multiple of heads"),
        (lambda: Training(LanguageRecipe(data=lambda recipe: Recipe().data(recipe))), "use data='mnist_tokens'"),
        (lambda: LanguageRecipe(qk_normm=True), "Did you mean 'qk_norm'"),
        (lambda: LanguageRecipe(positions="rotary"), "positions"),
        (lambda: LanguageRecipe(measure="perplexity"), "measure"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(make, says):
    with pytest.raises(RecipeError, match=says):
        make()


# --- loss and evaluation --------------------------------------------------------------------------


def test_the_loss_leaves_out_what_is_ignored():
    outputs, targets = torch.randn(2, 3, 26), torch.tensor([[1, 2, -100], [-100, -100, 5]])
    each = [-outputs[place].log_softmax(-1)[targets[place]] for place in ((0, 0), (0, 1), (1, 2))]
    torch.testing.assert_close(next_token_loss(outputs, targets), torch.stack(each).mean())


def blind_to_blank(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=0)


def test_nats_count_every_token_whatever_the_loss_leaves_out():
    usual, blind = trained(TINY), trained(TINY.but(loss=blind_to_blank, lr=1e-9))
    assert usual["val_nats"] == pytest.approx(usual["val_loss"], rel=1e-5)
    assert blind["val_nats"][0] == pytest.approx(usual["val_nats"][0], rel=1e-5)
    assert abs(blind["val_loss"][0] - blind["val_nats"][0]) > 0.01


def test_a_run_of_a_language_model_is_measured_in_nats():
    run = trained(TINY)
    assert run.measure.name == "nats" and run.score == pytest.approx(run["val_nats"][-1])
    assert 2.5 < run["loss"][0] < 4.5 and run.facts["classes"] == 26 and run.facts["task"] == "tokens"
    assert "nats" in repr(run) and run.facts["error"] is None and "switched_off" not in run.facts
    assert math.isnan(run["val_legible"][0]) and 0 <= run["val_legible"][-1] <= 1
    assert len(run.facts["written"]) == 40 and len(run.facts["written"][0]) == 49


def test_it_is_saved_and_read_back(tmp_path):
    run = trained(TINY)
    again = Run.load(run.save(tmp_path / "run.npz"))
    assert again.facts["written"] == run.facts["written"] and again.score == pytest.approx(run.score)


def test_instruments_and_samples_leave_the_run_as_it_is():
    recipe = TINY.but(dropout=0.1, evaluate_every=1)
    plain = train(recipe.but(evaluate_every=0), instruments=False, progress=False)
    assert plain.facts["weights_sha256"] == trained(recipe).facts["weights_sha256"]


def test_samples_are_not_taken_for_validation_data():
    assert trained(TINY.but(evaluate_every=2)).facts["val_changed"] == 0


def test_the_same_recipe_gives_the_same_run():
    one, two = trained(TINY), train(TINY, progress=False)
    assert one.facts["weights_sha256"] == two.facts["weights_sha256"] and one.facts["written"] == two.facts["written"]


def test_it_learns():
    _, training = watched(TINY.but(steps=60, width=32, lr=0.01, samples=2000), lambda _: False)
    run = trained(TINY.but(steps=60, width=32, lr=0.01, samples=2000))
    assert run.score < 1.15 < run.facts["constant_loss"]  # better than the frequencies of the tokens
    assert training.model.training


# --- samples and the judge ------------------------------------------------------------------------


def test_samples_are_the_same_with_and_without_a_cache():
    model = net()
    one, other = (writing.write_digits(model, write, samples=10) for write in writing.WRITERS)
    assert torch.equal(one, other) and one.shape == (10, 49)
    assert not torch.equal(one, writing.write_digits(model, samples=10, seed=1))


def test_draws_follow_the_probabilities_and_the_temperature():
    logits = torch.tensor([0.0, math.log(3.0), -math.inf]).expand(20_000, 3)
    generator = torch.Generator().manual_seed(0)
    assert (writing.draw(logits, 1.0, generator) == 1).float().mean().item() == pytest.approx(0.75, abs=0.02)
    assert (writing.draw(logits, 0.5, generator) == 1).float().mean().item() == pytest.approx(0.9, abs=0.02)
    assert (writing.draw(logits, 0.0, generator) == 1).all()
    assert not (writing.draw(logits, 2.0, generator) == 2).any()


def test_the_judge_reads_real_images_and_not_blots():
    split = load("mnist", "val", inputs="unit")
    right = writing.read(tokens.pictures(tokens.patch_tokens(split.x))) == split.y
    assert right.float().mean() > 0.92
    chosen = torch.stack([tokens.patch_tokens(split.x[split.y == digit][:10]) for digit in range(10)], dim=1)
    assert writing.legible(chosen.flatten(0, 1)) > 0.9
    assert writing.legible(torch.randint(16, (100, 49), generator=torch.Generator().manual_seed(0))) < 0.3
    assert writing.legible(torch.zeros(100, 49, dtype=torch.long)) == pytest.approx(0.1)


def test_the_judge_disturbs_no_random_numbers():
    writing.judge.cache_clear()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    writing.judge()
    assert torch.equal(torch.rand(3), expected)


# --- the recipe -----------------------------------------------------------------------------------


def no_mask(queries: int, keys: int, device: torch.device) -> torch.Tensor:
    return torch.ones(queries, keys, dtype=torch.bool, device=device)


def test_a_fault_is_a_replaced_part():
    sick = TINY.but(mask=no_mask)
    assert sick.changes_from(TINY) == {"mask": ("causal_mask", "no_mask")}
    model, before = Training(sick).model.eval(), words()
    after = before.clone()
    after[:, 25:] = 3
    assert not torch.allclose(model(before)[:, :25], model(after)[:, :25])
    assert key_of(sick).digest != key_of(TINY).digest


def test_the_command_line_knows_its_entries():
    assert LanguageRecipe.parse("qk_norm=true") == {"qk_norm": True}
    assert LanguageRecipe.parse("write=written_without_cache") == {"write": "written_without_cache"}
    assert LanguageRecipe(write="written_without_cache").write is writing.written_without_cache


def test_it_can_be_forked():
    run = fork(TINY, at=2, lr=1e-9, progress=False)
    assert run["loss"][:3].tolist() == trained(TINY)["loss"][:3].tolist() and run.facts["fork"]["at"] == 2
    assert run.measure.name == "nats"


def test_a_control_offers_what_the_recipe_knows():
    pytest.importorskip("ipywidgets")
    from labkit.panels.controls import Control

    assert Control(Knob("positions", ()), "learned", LanguageRecipe).widget.options
    assert dataclasses.fields(LanguageRecipe)
