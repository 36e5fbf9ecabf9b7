"""Language models on characters: the text, padding and packing, the loss in use, and healthy ways to train."""

import torch
from helpers import tiny_gpt, trained

from labkit.diagnosis.diagnose import diagnose
from labkit.diagnosis.evaluation import blind, characters, healthy_runs
from labkit.diagnosis.evaluation.characters import END, IGNORED, LETTERS, PAD, PREFIXES
from labkit.failures.catalogue import FAILURES
from labkit.training.loop import Training

SMALL = {"evaluate": characters.evaluate_in_use, "measure": "nats"}


def on_text(**changes):
    return tiny_gpt(**{"data": characters.english_text, **SMALL, **changes})


def data_of(part):
    return part(tiny_gpt())


def in_letters(tokens) -> str:
    return "".join(LETTERS[index] for index in tokens)


def test_the_text_is_english_and_validated_on_other_characters_than_it_is_trained_on():
    data = data_of(characters.english_text)
    text = in_letters(characters.letters())
    assert len(text) > 50_000 and " the loss " in text and data.classes == len(LETTERS) + 1
    first, last = (in_letters(each) for each in (data.train.x[0], data.val.x[-1]))
    cut = int(0.9 * len(text))
    assert first in text[:cut] and last in text[cut:]
    assert (data.train.x[:, 1:] == data.train.y[:, :-1]).all()
    assert len(data.train.x) == tiny_gpt().samples


def test_a_padded_sequence_is_asked_for_its_own_characters_only():
    data, plain = data_of(characters.padded_text), data_of(characters.english_text)
    padding = data.train.x == PAD
    assert 0.1 < padding.float().mean() < 0.6 and (padding == (data.train.y == IGNORED)).all()
    assert (data.train.x[~padding] == plain.train.x[~padding]).all()
    assert (padding[:, 1:] >= padding[:, :-1]).all()  # at the end


def test_packed_sequences_have_a_token_between_sentences():
    data = data_of(characters.packed_text)
    assert (data.train.x == END).any() and not (data.train.x == LETTERS.index(".")).any()


class Peeks(torch.nn.Module):
    """Repeats the token that comes next, where there is one."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        following = torch.cat([tokens[:, 1:], torch.zeros_like(tokens[:, :1])], dim=1)
        return 10.0 * torch.nn.functional.one_hot(following, len(LETTERS) + 1).float()


def evaluated(training: Training) -> dict[str, torch.Tensor]:
    training.recorder = training.new_recorder(instruments=False)
    return characters.evaluate_in_use(training, training.data.val)


def test_in_use_a_net_that_looks_ahead_is_worse_than_its_loss_says():
    training = Training(on_text(samples=64))
    training.model = Peeks()
    found = evaluated(training)
    assert found["loss"] < 0.5 and found["nats"] > 5


def test_in_use_padding_is_no_target():
    training = Training(on_text(data=characters.padded_text, samples=64))
    found = evaluated(training)
    logits = training.model.eval()(training.data.val.x).float()
    places = [seen - 1 for seen in PREFIXES]
    asked = training.data.val.y[:, places]
    each = torch.nn.functional.cross_entropy(logits[:, places].transpose(1, 2), asked, reduction="none")
    assert torch.isclose(found["nats"], each[asked != IGNORED].mean(), atol=1e-4)  # causal: the same


def test_parts_of_a_batch_that_are_counted_by_their_targets_are_one_batch():
    whole, parts = (
        trained(on_text(data=characters.padded_text, samples=64, **changes))
        for changes in ({}, {"step": characters.accumulating_step})
    )
    assert abs(whole["loss"] - parts["loss"]).max() < 1e-4
    assert abs(whole["grad_norm_total"] - parts["grad_norm_total"]).max() < 1e-3


def test_a_language_model_is_tried_on_characters_and_an_image_net_is_not():
    def asked(name):
        return blind.recipes_on(FAILURES[name], "characters", "mnist", 0)

    assert asked("causal_mask_missing")["sick"].data is characters.english_text
    assert asked("dead_relu") is None
    assert asked("targets_not_shifted") is None  # it brings its own data
    held_out = blind.cases(None, blind.SPLITS["held-out"], 1, ("mnist",))
    named = {name for name, net, *_ in held_out if net == "characters"}
    assert {"causal_mask_missing", "targets_shifted_twice", "init_copied_from_gpt2"} <= named
    for split in ("development", "retired"):
        assert not any(net == "characters" for _, net, *_ in blind.cases(None, blind.SPLITS[split], 1, ("mnist",)))


def test_healthy_language_models_are_drawn_as_others_are():
    one, again, other = (healthy_runs.draw_language(12, seed) for seed in (1, 1, 2))
    assert one == again != other
    assert {kind for kind, _ in one} == set(healthy_runs.LANGUAGE_KINDS)
    assert all(recipe.width % recipe.heads == 0 for _, recipe in one)
    assert "data padded_text; evaluate evaluate_in_use; step accumulating_step" in healthy_runs.choices_as_text(
        "GPT on text, accumulated"
    )


def test_a_healthy_language_model_on_characters_raises_no_alarm():
    run = trained(on_text(steps=120, lr=1e-2, width=32, samples=2000))
    assert diagnose(run) == [] and run.score < 2.6
