"""Predictions: the first choice counts, the answer comes afterwards, and nothing is given away before."""

import pytest

import labkit
from labkit.course import checks, predictions
from labkit.course.grading import MARKS
from labkit.course.predictions import STATES, prediction
from labkit.errors import RecipeError

ASKED = prediction("99.0", correct=3, why="It overflows.", wrong={1: "A larger step is no better step."})


@pytest.fixture(autouse=True)
def lesson_99(monkeypatch):
    """A session in which nothing was chosen, and a lesson with one prediction."""
    monkeypatch.setattr(predictions, "CHOSEN", {})
    monkeypatch.setattr(checks, "lessons", lambda: ["99"])
    monkeypatch.setattr(checks, "lesson_predictions", lambda lesson: {"99.0": ASKED})


def test_a_right_choice_is_recorded_without_a_word_about_it_and_confirmed_afterwards():
    recorded = labkit.predict("99.0", 3)
    assert recorded.state == "recorded" and not recorded and "overflows" not in str(recorded)
    found = labkit.predict("99.0")
    assert found and found.state == "right" and "You chose 3. It overflows." in str(found)


def test_a_wrong_choice_learns_the_right_one_and_why_its_own_is_wrong():
    labkit.predict("99.0", 1)
    found = labkit.predict("99.0")
    assert not found and "A larger step is no better step. The answer is 3. It overflows." in str(found)


def test_what_is_said_at_the_choice_does_not_depend_on_whether_it_is_right():
    words = []
    for choice in (1, 2, 3):
        predictions.CHOSEN.clear()
        words.append(str(labkit.predict("99.0", choice)).replace(str(choice), "N"))
    assert len(set(words)) == 1


def test_the_first_choice_counts():
    labkit.predict("99.0", 2)
    assert "You chose 2 before. The first choice counts." in str(labkit.predict("99.0", 3))
    assert not labkit.predict("99.0")


@pytest.mark.parametrize("ask", [lambda: labkit.predict("99.0"), lambda: labkit.predict("99.0", ...)])
def test_without_a_choice_nothing_is_given_away_and_nothing_raises(ask):
    found = ask()
    assert found.state == "not chosen yet" and not found
    assert "overflows" not in f"{found}{found._repr_html_()}" and "answer is 3" not in str(found)


@pytest.mark.parametrize("choice", [0, 4, -1, "3", 2.0, True, [3]])
def test_what_is_no_option_is_refused_with_the_options(choice):
    with pytest.raises(RecipeError, match=r"expected the number of an option, 1 to 3, got"):
        labkit.predict("99.0", choice)
    assert predictions.CHOSEN == {}


def test_an_unknown_prediction_suggests_the_nearest():
    with pytest.raises(RecipeError, match=r"no prediction '99.1'. Did you mean '99.0'"):
        labkit.predict("99.1", 1)
    with pytest.raises(RecipeError, match=r"no prediction '42.0'"):
        labkit.predict("42.0")


@pytest.mark.parametrize(
    "fields",
    [
        {"id": "99.1"},
        {"correct": 4},
        {"wrong": {5: "no"}},
        {"wrong": {3: "this is the right one"}},
        {"why": ""},
        {"choices": 1, "correct": 1},
    ],
)
def test_a_prediction_that_cannot_be_right_is_refused(fields):
    with pytest.raises(RecipeError, match=r"prediction '?99"):
        prediction(**{"id": "99.0", "correct": 3, "why": "so"} | fields)


def luminance(colour: str) -> float:
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [each / 12.92 if each <= 0.03928 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    return sum(weight * each for weight, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize(("mark", "colour"), sorted({*MARKS.values(), *STATES.values()}))
def test_coloured_words_of_feedback_can_be_read_on_white(mark, colour):
    assert 1.05 / (luminance(colour) + 0.05) >= 4.5


def test_a_reply_is_announced_by_screen_readers_and_is_safe_html():
    shown = prediction("99.0", correct=1, why="a < b & c").record(1)
    assert 'role="status"' in shown._repr_html_()
    assert "a &lt; b &amp; c" in prediction("99.0", correct=1, why="a < b & c").answer()._repr_html_()
