"""The checklist and the symptom tree of the poster: complete, in order, and in agreement with the signatures."""

import importlib
import re
from typing import get_args

import pytest

from labkit.course.poster.content import PREFLIGHT, SYMPTOMS, TREE
from labkit.failures.catalogue import FAILURES, HEADLINES
from labkit.failures.mode import Symptom

LEAVES = [
    (symptom, question, reading, cause)
    for symptom, questions in TREE.items()
    for question, found in questions.items()
    for reading, cause in found
]


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
        ("learning_rate_too_low", "TINY", "below 0.0001, healthy gradients"),
        ("vanishing_gradients", "RATIO", "first layer below 0.001 of the last"),
        ("dead_relu", "DEAD", "over 0.8 of a layer"),
    ],
)
def test_the_numbers_in_the_tree_are_those_of_the_signatures(cause, threshold, words):
    mode = importlib.import_module(f"labkit.failures.{FAILURES[cause].topic}.{cause}")
    number = re.search(r"[\d.]+\d", words)
    assert getattr(mode, threshold) == (float(number[0]) if number else 0.5)
    assert words in [reading for _, _, reading, leads_to in LEAVES if leads_to == cause]


def test_every_symptom_that_a_branch_may_have_is_on_the_poster():
    assert set(SYMPTOMS) == set(get_args(Symptom))


def test_every_branch_of_every_mode_is_on_the_tree():
    branches = {
        (SYMPTOMS[branch.symptom], branch.question, branch.reading, name)
        for name, mode in FAILURES.items()
        for branch in mode.symptom_tree
    }
    assert branches == set(LEAVES)
    assert all(TREE.values()), "a symptom that leads nowhere"


def test_the_tree_asks_in_the_order_that_its_modes_say():
    assert list(TREE) == list(SYMPTOMS.values())
    assert [cause for _, _, _, cause in LEAVES] == [
        "fp16_overflow",
        "learning_rate_too_high",
        "learning_rate_too_high",
        "learning_rate_too_low",
        "vanishing_gradients",
        "dead_relu",
        "too_few_samples",
    ]
    places = [(branch.symptom, branch.place) for mode in FAILURES.values() for branch in mode.symptom_tree]
    assert len(set(places)) == len(places), "two branches of one symptom have the same place"


def test_headlines_are_in_the_order_of_their_numbers():
    assert [FAILURES[name].headline for name in HEADLINES] == [1, 2, 3, 4, 5]
    assert HEADLINES[0] == "learning_rate_too_high" and HEADLINES[-1] == "fp16_overflow"
