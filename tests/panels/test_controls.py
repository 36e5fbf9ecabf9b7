"""Controls: what they offer, and that a value nobody turned is exactly the recipe's."""

import math

import ipywidgets
import pytest

from labkit.failures.catalogue import FAILURES
from labkit.failures.mode import Knob
from labkit.panels.controls import STANDARD, Control, round_numbers
from labkit.training.recipe import Recipe


@pytest.mark.parametrize("name", FAILURES)
def test_untouched_every_control_gives_the_recipe_s_own_value_and_has_a_label(name):
    mode = FAILURES[name]
    for recipe in mode.recipes().values():
        summary = recipe.summary()
        for knob in (*mode.knobs, *STANDARD):
            control = Control(knob, summary[knob.name], type(recipe))
            assert control.value == summary[knob.name]
            assert control.widget.description
            assert control.widget.tooltip


def test_every_choice_a_control_offers_makes_a_recipe():
    for knob in STANDARD:
        control = Control(knob, Recipe().summary()[knob.name])
        for _, choice in getattr(control.widget, "options", ()):
            control.widget.value = choice
            Recipe().but(**{knob.name: control.value})


def test_off_is_a_choice_of_its_own():
    control = Control(Knob("clip", (None, 1.0)), 1.0)
    control.widget.value = "off"
    assert control.value is None
    control.value = None
    assert control.value is None


def test_a_learning_rate_slides_over_decades_and_is_rounded():
    control = Control(Knob("lr", (1e-6, 10.0), log=True), 0.1)
    assert isinstance(control.widget, ipywidgets.FloatLogSlider)
    assert (control.widget.min, control.widget.max) == (-6, 1)
    control.widget.value = 0.0354813
    assert control.value == 0.035


@pytest.mark.parametrize("lr", [0.003, 0.1, 3e-4, 2e-5])
def test_a_rate_between_two_marks_is_shown_at_a_mark_and_kept_exactly(lr):
    control = Control(Knob("lr", (1e-6, 10.0), log=True), lr)
    marks = math.log10(control.widget.value) / control.widget.step
    assert marks == pytest.approx(round(marks))
    assert f"{control.widget.value:.2g}" == f"{lr:.2g}"
    control.widget.value = control.widget.value * (1 + 1e-9)  # as the browser sends it back
    assert control.value == lr


def test_whole_numbers_over_decades_are_round_ones():
    control = Control(Knob("samples", (100, 10_000), log=True), 10_000)
    assert [value for _, value in control.widget.options] == [100, 200, 500, 1000, 2000, 5000, 10_000]
    assert isinstance(control.value, int)


def test_a_value_beyond_the_ends_makes_room_for_itself():
    for knob, value in (
        (Knob("lr", (1e-3, 1.0), log=True), 10.0),
        (Knob("depth", (2, 6)), 10),
        (Knob("samples", (100, 10_000), log=True), 30),
        (Knob("activation", ("relu", "tanh")), "sigmoid"),
        (Knob("momentum", (0.0, 0.9)), 0.95),
    ):
        control = Control(knob, Recipe().summary()[knob.name])
        control.value = value
        assert control.value == value


def test_two_numbers_are_ends_and_anything_else_is_a_list():
    assert isinstance(Control(Knob("depth", (2, 6)), 2).widget, ipywidgets.IntSlider)
    assert isinstance(Control(Knob("clip", (None, 1.0)), None).widget, ipywidgets.Dropdown)
    assert isinstance(Control(Knob("residual", ()), False).widget, ipywidgets.Checkbox)


def test_round_numbers_keep_the_ends():
    assert round_numbers(8, 300) == [8, 10, 20, 50, 100, 200, 300]


def test_a_turned_slider_stays_where_the_hand_put_it():
    control = Control(Knob("lr", (1e-6, 10.0), log=True), 0.1)
    control.widget.value = 10**-0.95  # the next step, by a key
    control.value = control.value  # as the panel does with what it was told
    assert (control.value, control.widget.value) == (0.11, 10**-0.95)
    control.widget.value = 10**-0.9
    assert control.value == 0.13
