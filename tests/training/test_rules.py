"""Rules of knobs: what is accepted, what is refused and in which words, what the command line may write."""

import math

import pytest

from labkit.errors import near
from labkit.training.rules import Flag, Number, OneOf

RATE = Number(0, above=True)
SHARE = Number(0, 1)
COUNT = Number(1, whole=True)
SCALE = Number(0, above=True, optional=True, words=("dynamic",))
COLOUR = OneOf(("red", "green", "blue"))


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        (RATE, 1e-30), (RATE, 3), (SHARE, 0), (SHARE, 1), (SHARE, 0.5), (COUNT, 1), (COUNT, 10**9),
        (SCALE, None), (SCALE, "dynamic"), (SCALE, 1024.0), (COLOUR, "green"), (Flag(), True), (Flag(), False),
    ],
)  # fmt: skip
def test_a_good_value_has_no_problem(rule, value):
    assert rule.problem(value) is None


@pytest.mark.parametrize(
    ("rule", "value", "expected"),
    [
        (RATE, 0, "expected a number above 0, got 0"),
        (RATE, -0.1, "expected a number above 0, got -0.1"),
        (RATE, math.nan, "expected a number above 0, got nan"),
        (RATE, math.inf, "expected a number above 0, got inf"),
        (RATE, "0.1", "expected a number above 0, got '0.1' of type str"),
        (RATE, True, "expected a number above 0, got True of type bool"),
        (RATE, None, "expected a number above 0, got None of type NoneType"),
        (SHARE, 1.01, "expected a number at least 0 and at most 1, got 1.01"),
        (SHARE, -0.01, "expected a number at least 0 and at most 1, got -0.01"),
        (COUNT, 0, "expected a whole number at least 1, got 0"),
        (COUNT, 2.5, "expected a whole number at least 1, got 2.5"),
        (COUNT, 2.0, "expected a whole number at least 1, got 2.0"),  # range(2.0) would fail much later
        (COUNT, math.inf, "expected a whole number at least 1, got inf"),
        (SCALE, 0, "expected a number above 0 or 'dynamic' or None, got 0"),
        (SCALE, "dynamc", "expected a number above 0 or 'dynamic' or None, got 'dynamc' of type str"),
        (COLOUR, "grean", "expected one of red, green, blue, got 'grean'. Did you mean 'green'?"),
        (COLOUR, 7, "expected one of red, green, blue, got 7. Known: blue, green, red."),
        (Flag(), 1, "expected True or False, got 1"),
        (Flag(), "yes", "expected True or False, got 'yes'"),
    ],
)
def test_a_bad_value_is_told_what_was_expected_and_what_came(rule, value, expected):
    assert rule.problem(value) == expected


@pytest.mark.parametrize(
    ("rule", "text", "value"),
    [
        (RATE, "3", 3.0), (RATE, "1e-3", 0.001), (COUNT, "12", 12), (COUNT, "1e4", 10_000),
        (COUNT, str(2**53 + 1), 2**53 + 1),  # no float has this value
        (SCALE, "None", None), (SCALE, "dynamic", "dynamic"), (SCALE, "1024", 1024.0),
        (COLOUR, "red", "red"), (Flag(), "True", True), (Flag(), "no", False), (Flag(), "1", True),
    ],
)  # fmt: skip
def test_text_is_read_as_the_rule_means_it(rule, text, value):
    parsed = rule.parse(text)
    assert (parsed, type(parsed)) == (value, type(value))
    assert rule.problem(parsed) is None


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (COUNT, "2.5"),
        (COUNT, "nan"),
        (COUNT, "inf"),
        (COUNT, "many"),
        (RATE, "none"),
        (RATE, "fast"),
        (Flag(), "maybe"),
    ],
)
def test_text_that_means_nothing_is_left_for_the_rule_to_refuse(rule, text):
    assert "expected" in rule.problem(rule.parse(text))


def test_near_suggests_one_close_name_or_else_lists_all():
    assert near("batchsize", ["lr", "batch_size", "steps"]) == "Did you mean 'batch_size'?"
    assert near("zzz", ["lr", "batch_size"]) == "Known: batch_size, lr."
