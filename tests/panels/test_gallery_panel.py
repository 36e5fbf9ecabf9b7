"""The gallery without a browser: cards are trained one by one, a click shows one large, and blind ones keep quiet."""

import base64
import gc
import io
import threading

import ipywidgets
import pytest
from helpers import tiny
from PIL import Image

import labkit
from labkit.drawing.html import WAIT
from labkit.errors import RecipeError
from labkit.failures.catalogue import FAILURES
from labkit.panels.gallery_panel import CLASSIC, HEALTHY, Exhibit, Gallery, exhibits, thumbnail, waiting
from labkit.panels.worker import Ticket
from labkit.training import run_store

SHORT = tiny(steps=12, evaluate_every=4)


@pytest.fixture(autouse=True)
def empty_memory():
    run_store.in_memory.forget()
    yield
    run_store.in_memory.forget()


def height(kept: dict) -> int:
    """Of the picture that a notebook stores."""
    return Image.open(io.BytesIO(base64.b64decode(kept["image/png"]))).height


def small(name: str, **changes) -> Exhibit:
    mode = FAILURES[name]
    return Exhibit(name, mode.title, SHORT.but(**changes), SHORT, mode)


def three() -> list[Exhibit]:
    healthy = Exhibit(HEALTHY, "Healthy", SHORT, SHORT)
    return [healthy, small("learning_rate_too_high", lr=100.0), small("learning_rate_too_low", lr=1e-6)]


@pytest.fixture
def shown():
    made = Gallery(three())
    assert made.view.worker.wait(60)
    yield made
    made.close()


@pytest.fixture
def blind():
    made = Gallery(three(), blind=True)
    assert made.view.worker.wait(60)
    yield made
    made.close()


def test_the_classic_selection_is_a_dozen_shapes_at_most():
    assert [each.name for each in exhibits()] == list(CLASSIC)
    assert 8 <= len(CLASSIC) <= 12
    assert exhibits()[0].mode is None
    classics = [each.mode.classic for each in exhibits()[1:]]
    assert [classic.place for classic in classics] == list(range(1, len(CLASSIC)))
    assert len({classic.curve for classic in classics}) == len(classics), "two cards show the same shape"
    assert {each.mode.looks for each in exhibits()[1:]} >= {"jumps", "never moves", "stops too high", "not finite"}


def test_a_topic_a_list_and_a_single_name():
    topic = exhibits("gradients")
    assert [each.name for each in topic] == [mode.name for mode in FAILURES.values() if mode.topic == "gradients"]
    assert [each.name for each in exhibits(["dead_relu", "underfit", "dead_relu"])] == ["dead_relu", "underfit"]
    assert [each.name for each in exhibits("dead_relu")] == ["dead_relu"]


def test_what_is_not_there_is_refused_with_the_nearest():
    with pytest.raises(RecipeError, match=r"no failure mode or topic 'gradient'\. Did you mean 'gradients'"):
        labkit.gallery("gradient")
    with pytest.raises(RecipeError, match="empty list"):
        labkit.gallery([])


def test_every_card_gets_a_thumbnail_of_its_own_run(shown):
    assert [card.image.value for card in shown.cards] == [thumbnail(run_store.in_memory.get(e.recipe)) for e in three()]
    assert len({card.image.value for card in shown.cards}) == 3
    assert "3 of 3 curves" in shown.count.value


def test_every_card_is_a_button_with_its_title(shown):
    assert [card.button.description for card in shown.cards] == [each.title for each in three()]
    assert all(card.button.tooltip for card in shown.cards)


def test_a_click_shows_the_curves_the_diagnosis_and_the_prescription(shown):
    shown.cards[1].button.click()
    assert shown.view.worker.wait(60)
    mode = FAILURES["learning_rate_too_high"]
    assert shown.answered.diagnoses[0].name == mode.name
    assert "Learning rate too high. This run: " in shown.view.picture.status.value
    assert "gap" in shown.view.picture.status.value
    assert all(text in shown.view.verdict.value for text in ("What to do:", "Check first:", "Proven cure:"))
    assert shown.view.picture.widget.layout.display is None
    assert shown.cards[1].layout.border_top != shown.cards[0].layout.border_top


def test_a_card_that_was_seen_comes_back_without_training(shown, monkeypatch):
    first = shown.respond("learning_rate_too_low")
    monkeypatch.setattr(run_store, "train", lambda *_, **__: pytest.fail("trained again"))
    again = shown.respond("learning_rate_too_low")
    assert again.run is first.run
    assert again.healthy is first.healthy
    assert set(again.runs) == {"healthy", "sick"}
    assert set(shown.respond(HEALTHY).runs) == {"healthy"}


def test_a_card_is_shown_before_its_twin_is_trained(shown, monkeypatch):
    told = []
    monkeypatch.setattr(shown.view, "show", lambda runs, words: told.append((list(runs), words)))
    twin = SHORT.but(seed=3)
    mode = FAILURES["underfit"]
    shown.cards[2].exhibit = Exhibit("underfit", mode.title, SHORT.but(lr=1e-6), twin, mode)
    shown.respond("underfit")
    assert [runs for runs, _ in told] == [["sick"], ["healthy", "sick"]]
    assert "Its healthy twin is training" in told[0][1]
    assert "Healthy twin: 12 steps" in told[1][1]


def test_a_card_that_is_not_there(shown):
    with pytest.raises(RecipeError, match=r"no card 'learning_rate_to_low'\. Did you mean"):
        shown.respond("learning_rate_to_low")


def test_blind_cards_say_nothing_until_they_are_revealed(blind):
    title = FAILURES["learning_rate_too_high"].title
    blind.respond("learning_rate_too_high")
    said = [card.button.description for card in blind.cards]
    said += [blind.view.picture.status.value, blind.view.verdict.value, blind.count.value]
    assert not any(title.lower() in text.lower() for text in said)
    assert "What is this?" in blind.view.verdict.value
    hidden = blind.view.picture.png()
    blind.reveal_button.click()
    assert title in blind.view.verdict.value
    assert blind.view.picture.png() != hidden  # now with what gives it away
    assert [card.revealed for card in blind.cards] == [False, True, False]


def test_names_are_hidden_and_come_back_with_the_tick_box(shown):
    shown.respond("learning_rate_too_high")
    shown.blind.value = True
    assert "What is this?" in shown.view.verdict.value
    assert shown.reveal_button.layout.display is None
    shown.blind.value = False
    assert shown.cards[1].button.description in shown.view.verdict.value
    assert shown.reveal_button.layout.display == "none"


def test_reveal_without_a_choice_asks_for_one(blind):
    blind.reveal()
    assert "Choose a card first" in blind.view.picture.status.value


def test_a_gallery_that_is_stopped_leaves_the_rest_untrained(shown):
    for card in shown.cards:
        card.image.value = waiting()
    run_store.in_memory.forget()
    ticket = Ticket()
    ticket.cancel()
    shown.train_thumbnails(ticket)
    assert all(card.image.value == waiting() for card in shown.cards)
    assert "0 of 3 curves (stopped)" in shown.count.value
    shown.run_button.click()
    assert shown.view.worker.wait(60)
    assert "3 of 3 curves" in shown.count.value


def test_ten_galleries_leave_no_threads_and_no_widgets():
    registry = ipywidgets.widgets.widget._instances
    Gallery(three()).close()
    gc.collect()
    threads, widgets = threading.active_count(), len(registry)
    for _ in range(10):
        Gallery(three()).close()
    gc.collect()
    assert threading.active_count() == threads
    assert len(registry) <= widgets


def test_a_notebook_stores_all_cards_and_below_them_the_chosen_one(shown):
    cards = shown.stored()
    shown.respond(shown.cards[0].exhibit.name)
    assert height(shown.stored()) > height(cards) + 100


def test_a_stored_panel_waits_for_its_run(monkeypatch):
    monkeypatch.setenv(WAIT, "1")
    made = Gallery(three())
    assert "image/png" in made._repr_mimebundle_()
    assert not made.view.worker.busy and all(card.image.value != waiting() for card in made.cards)
    made.close()
