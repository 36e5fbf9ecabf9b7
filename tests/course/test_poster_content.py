"""What hangs above the desk is true: healthy runs keep the ranges, and the tree says what the signatures say."""

import importlib
import re

import pytest
from played import MODES, played

from labkit.diagnosis import look_alikes as atlas
from labkit.failures import FAILURES
from labkit.course.poster.content import BANDS, PREFLIGHT, RANGES, TREE

LEAVES = [
    (symptom, question, reading, cause)
    for symptom, questions in TREE.items()
    for question, found in questions.items()
    for reading, cause in found
]


@pytest.mark.parametrize("each", RANGES, ids=lambda each: each.name)
def test_a_range_has_two_ends_and_words(each):
    assert each.low < each.high
    assert each.healthy and each.warning
    assert BANDS[each.trace] == (each.low, each.high)


def test_ranges_are_told_apart_by_name_and_trace():
    assert len({each.name for each in RANGES}) == len({each.trace for each in RANGES}) == len(RANGES) == len(BANDS)


@pytest.mark.parametrize("each", [each for each in RANGES if each.trace in atlas.SERIES], ids=lambda each: each.name)
@pytest.mark.parametrize("name", MODES)
def test_healthy_runs_keep_their_ranges(name, each):
    assert atlas.first_outside(played(name).healthy, each) is None


def test_some_sick_run_leaves_each_range():
    left = {each for row in atlas.lead_times([played(name) for name in MODES]) for each in row.instruments}
    assert left == {each.name for each in RANGES if each.trace in atlas.SERIES}


def test_ten_points_before_every_run():
    assert len(set(PREFLIGHT)) == len(PREFLIGHT) == 10
    assert all(point.endswith(".") for point in PREFLIGHT)


@pytest.mark.parametrize(("symptom", "question", "reading", "cause"), LEAVES)
def test_the_tree_goes_from_a_symptom_over_a_question_to_a_mode(symptom, question, reading, cause):
    assert question.endswith("?")
    assert symptom and reading
    assert cause in FAILURES


def test_no_question_has_the_same_answer_twice():
    assert len({(symptom, question, reading) for symptom, question, reading, _ in LEAVES}) == len(LEAVES)


@pytest.mark.parametrize(
    ("cause", "threshold", "words"),
    [
        ("learning_rate_too_high", "VIOLENT", "over half of the weights"),
        ("learning_rate_too_low", "TINY", "below 0.0001, gradients alive"),
        ("vanishing_gradients", "RATIO", "first layer below 0.001 of the last"),
        ("dead_relu", "DEAD", "over half of a layer"),
    ],
)
def test_the_numbers_in_the_tree_are_those_of_the_signatures(cause, threshold, words):
    mode = importlib.import_module(f"labkit.failures.{FAILURES[cause].topic}.{cause}")
    number = re.search(r"[\d.]+\d", words)
    assert getattr(mode, threshold) == (float(number[0]) if number else 0.5)
    assert words in [reading for _, _, reading, leads_to in LEAVES if leads_to == cause]
