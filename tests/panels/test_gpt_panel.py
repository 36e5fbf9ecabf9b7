"""The GPT panel without a browser: what is drawn is in the net, and both nets write."""

import gc
import re
import threading

import ipywidgets
import numpy as np
import pytest
import torch
from helpers import cut_off, trained

from labkit.panels import gpt_panel, gpt_pictures
from labkit.panels.gpt_panel import HEALTHY, NO_MASK, NO_SHIFT, ONE_AHEAD, PRESETS, GPTPanel, one_of_each
from labkit.panels.live_view import YOURS
from labkit.training import tokens
from labkit.training.language import LanguageRecipe
from labkit.training.loop import Training

SMALL = LanguageRecipe(
    samples=256, batch_size=8, width=16, heads=2, depth=2, steps=8, evaluate_every=4, device="cpu"
)  # fmt: skip
SHORT = {"healthy": SMALL, "no mask": SMALL.but(mask=NO_MASK), "no shift": SMALL.but(data=NO_SHIFT)}


@pytest.fixture(scope="module")
def panel():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpt_panel, "PAUSE", 0)
        made = GPTPanel(SHORT)
        assert made.view.worker.wait(120)
        yield made
        made.close()


def alt_texts(widget: ipywidgets.HTML) -> list[str]:
    return re.findall(r"role='img' aria-label='([^']*)'", widget.value)


# --- what is drawn is in the net ------------------------------------------------------------------


def test_a_look_has_the_attention_losses_and_guesses_of_the_net():
    training, digit = Training(SMALL), one_of_each(SMALL)[7]
    found = gpt_pictures.look(training.model, digit)
    assert training.model.training and digit[0] == tokens.KINDS + 7
    assert found.attention.shape == (4, 49, 49) and len(found.names) == 4
    np.testing.assert_allclose(found.attention.sum(-1), 1, rtol=1e-5)
    assert found.ahead.max() == 0
    with torch.no_grad():
        outputs = training.model.eval()(digit[None, :-1])[0]
    expected = torch.nn.functional.cross_entropy(outputs, digit[1:], reduction="none")
    np.testing.assert_allclose(found.losses, expected.numpy(), rtol=1e-5)
    np.testing.assert_allclose(found.guesses.sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize(("mask", "later"), [(NO_MASK, 30), (ONE_AHEAD, 1)])
def test_attention_on_later_tokens_is_seen(mask, later):
    found = gpt_pictures.look(Training(SMALL.but(mask=mask)).model, one_of_each(SMALL)[3])
    reached = np.flatnonzero(found.attention[0, 10] > 0)
    assert found.ahead[10] > 0.03 and reached.max() == (10 + later if later == 1 else 48)
    assert "<b>On later tokens" in gpt_pictures.net("x", found, 10)


def test_ink_is_that_of_the_tokens():
    digit = one_of_each(SMALL)[5]
    path = gpt_pictures.ink(digit[1:])
    pixels = {(int(x), int(y)) for x, y in re.findall(r"M(\d+) (\d+)h1v1h-1z", path)}
    rows, columns = np.nonzero(tokens.pictures(digit[None, 1:])[0].numpy())
    assert pixels == set(zip(columns.tolist(), rows.tolist(), strict=True)) and len(pixels) > 15
    assert gpt_pictures.ink(torch.zeros(49, dtype=torch.long)) == ""


def test_the_right_patch_is_always_among_those_that_are_shown():
    found = gpt_pictures.look(Training(SMALL).model, one_of_each(SMALL)[3])
    for patch in range(49):
        shown = gpt_pictures.guessed(found, patch)
        assert shown.count("labkit-gpt-right") == 1 and shown.count("labkit-gpt-guess'") + 1 == gpt_pictures.GUESSES
        assert f"{found.guesses[patch][int(found.tokens[patch + 1])]:.0%}" in shown


def test_names_are_escaped():
    assert "<b>" not in gpt_pictures.samples(torch.zeros(1, 2, dtype=torch.long), "<b>'")


# --- training and looking -------------------------------------------------------------------------


def test_a_broken_net_is_shown_beside_the_healthy_one(panel):
    answer = panel.respond("no mask", digit=3, patch=24)
    assert list(answer.runs) == list(answer.looks) == list(answer.written) == ["healthy", YOURS]
    assert answer.looks["healthy"].ahead.max() == 0 < answer.looks[YOURS].ahead.max()
    assert {rows.shape for rows in answer.written.values()} == {(10, 49)}
    assert answer.diagnoses[0].name == "causal_mask_missing"
    assert answer.words == panel.view.picture.words and "Diagnosis: Causal mask missing." in answer.words
    assert panel.knobs["mask"].widget.value == "no_mask" and panel.presets.value == "no mask"
    said = alt_texts(panel.board)
    assert "The digit 3 in 49 patches, 23 of them read" in said and len([each for each in said if "head" in each]) == 8
    assert len(alt_texts(panel.samples)) == 20 and "49 of 49 patches" in panel.samples.value


def test_the_healthy_net_is_shown_alone(panel):
    answer = panel.respond("healthy")
    assert list(answer.looks) == list(answer.written) == ["healthy"] and YOURS not in panel.board.value


def test_menus_change_parts_of_the_recipe(panel):
    answer = panel.respond("healthy", mask=ONE_AHEAD)
    assert panel.presets.value is None and panel.knobs["mask"].widget.value == "one_ahead"
    assert answer.diagnoses[0].name == "mask_one_ahead"
    panel.knobs["data"].widget.value = NO_SHIFT.__name__
    assert panel.view.worker.wait(60)
    assert panel.recipe.data is NO_SHIFT and panel.recipe.mask is ONE_AHEAD


def test_another_patch_or_digit_is_looked_at_without_training(panel, monkeypatch):
    answer = panel.respond("no mask", digit=3, patch=24)
    monkeypatch.setattr(panel.view.store, "run_of", lambda *_, **__: pytest.fail("trained again"))
    panel.patch.value = 1
    assert "The digit 3 in 49 patches, 0 of them read" in alt_texts(panel.board)
    panel.digit.value = 8
    assert "The digit 8 in 49 patches, 0 of them read" in alt_texts(panel.board)
    assert panel.looks[YOURS].losses.mean() != answer.looks[YOURS].losses.mean()
    before = panel.samples.value
    panel.write_button.click()
    assert panel.view.worker.wait(60) and panel.samples.value != before


def test_a_cancelled_job_neither_writes_nor_answers(panel):
    panel.respond("no mask")
    before = panel.samples.value

    class Cancelled:
        cancelled = True

    assert panel.write(Cancelled()) is None and panel.samples.value == before


def test_looking_at_a_net_while_it_trains_changes_nothing(panel, monkeypatch):
    glances = []
    monkeypatch.setattr("labkit.panels.live_view.FIRST_FRAME", 0)
    monkeypatch.setattr("labkit.panels.live_view.NEXT_FRAME", 0)
    monkeypatch.setattr("labkit.panels.live_view.SHARE", 1e9)
    monkeypatch.setattr(panel.view, "glance", lambda model: glances.append(model) or panel.glance(model))
    recipe = SMALL.but(seed=5, dropout=0.2)
    panel.turn(recipe)
    answer = panel.answer_now()
    assert len(glances) > recipe.steps  # of both nets
    assert answer.run.facts["weights_sha256"] == trained(recipe).facts["weights_sha256"]
    assert answer.run.facts.get("val_changed") == trained(recipe).facts.get("val_changed")


def test_each_digit_is_read():
    digits = one_of_each(SMALL)
    assert digits.shape == (10, 50) and digits[:, 0].tolist() == list(range(16, 26))
    assert gpt_panel.writing.read(tokens.pictures(digits[:, 1:])).tolist() == list(range(10))


def test_a_live_run_has_the_measure_of_its_recipe(panel, monkeypatch):
    """Else the accuracy of a language model would be drawn on an axis in nats."""
    monkeypatch.setattr("labkit.panels.live_view.FIRST_FRAME", 0)
    seen = []
    monkeypatch.setattr(panel.view.picture, "grow", lambda run: seen.append(run.measure.name))
    panel.respond("healthy", seed=7)
    assert set(seen) == {"nats"}


def test_targets_that_are_shifted_twice():
    data = gpt_panel.second_next_tokens(SMALL)
    assert torch.equal(data.train.y[:, :-2], data.train.x[:, 2:]) and (data.train.y[:, -1] == tokens.IGNORED).all()


def test_each_preset_is_another_recipe():
    assert len(set(PRESETS.values())) == len(PRESETS) and PRESETS["healthy"] == HEALTHY


def test_ten_panels_leave_no_threads_and_no_widgets(monkeypatch):
    monkeypatch.setattr(GPTPanel, "start", lambda self: None)
    registry = ipywidgets.widgets.widget._instances
    GPTPanel(SHORT).close()
    gc.collect()
    threads, widgets = threading.active_count(), len(registry)
    for _ in range(10):
        GPTPanel(SHORT).close()
    gc.collect()
    assert threading.active_count() == threads
    assert len(registry) <= widgets


def test_every_word_of_the_picture_is_in_it(panel):
    assert cut_off(panel.view.picture.finished.figure) == []
