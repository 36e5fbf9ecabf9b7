"""Exercises: kind feedback whatever a student writes, cases that cannot be altered, and judges that can say no."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from helpers import ROOT, tiny, trained

import labkit
from labkit.course import exercises, grading, notebooks
from labkit.course.checks import EXERCISES, lessons
from labkit.course.grading import Exercise, NotYet, Student, build, cure, diagnose, expect_close, explain
from labkit.diagnosis.study import Verdict
from labkit.errors import RecipeError
from labkit.failures.catalogue import FAILURES
from labkit.training import run_store


def judge_total(mine: Student) -> str:
    numbers = [1.0, 2.0, 4.0]
    expect_close(mine(numbers), 7.0, "1, 2 and 4")
    expect_close(mine(numbers), 7.0, "The same again")
    return "It adds."


TOTAL = build("99.1", "Add", judge_total, example="total(numbers)", hints=("Loop.", "Or sum."))


def test_a_file_of_helpers_beside_the_lessons_is_no_lesson(tmp_path, monkeypatch):
    (tmp_path / "helpers.py").touch()
    monkeypatch.setattr(exercises, "__path__", [*exercises.__path__, str(tmp_path)])
    assert lessons() == [path.name[:2] for path in notebooks.solutions(ROOT)]
    assert "helpers.1" not in EXERCISES


# --- the three answers ---


def test_a_right_answer_is_true_and_praised():
    found = TOTAL.check(sum)
    assert found and found.state == "right"
    assert "It adds." in str(found) and "labkit.hint" not in str(found)


def test_a_wrong_answer_says_what_was_tried_expected_and_seen():
    found = TOTAL.check(max)
    assert not found and found.state == "not yet"
    assert "1, 2 and 4: expected 7.0, got 4.0." in str(found)
    assert 'labkit.hint("99.1", 1)' in str(found)


def stub_that_raises(*_):
    raise NotImplementedError


def stub_of_nbgrader(*_): ...


@pytest.mark.parametrize("stub", [stub_that_raises, stub_of_nbgrader, lambda numbers: ..., None, ..., "", "  "])
def test_an_untouched_stub_is_not_attempted(stub):
    found = TOTAL.check(stub)
    assert found.state == "not attempted" and not found
    assert "It raised" not in str(found)


@pytest.mark.parametrize("id", EXERCISES)
@pytest.mark.parametrize("stub", [stub_that_raises, stub_of_nbgrader, None, ...])
def test_no_exercise_fails_on_a_stub(id, stub):
    if EXERCISES[id].kind in ("build", "loop") or not callable(stub):
        assert labkit.check(id, stub).state == "not attempted"


def strange_things():
    return [3, "nonsense", {"A": "nonsense"}, [1, 2], object(), torch.zeros(3), lambda *_, **__: object(), int, {}]


@pytest.mark.parametrize("id", EXERCISES)
def test_no_exercise_takes_nonsense_for_right_or_fails_on_it(id):
    for thing in strange_things():
        found = labkit.check(id, thing)
        assert found.state in ("not yet", "not attempted"), thing
        assert str(found) and found._repr_html_()


def test_a_function_that_answers_now_and_then_is_told_on_which_way_it_returns_nothing():
    answers = iter([7.0, None])
    found = TOTAL.check(lambda numbers: next(answers))
    assert found.state == "not yet" and "It returned None" in str(found)


# --- a student's exceptions ---


def broken(numbers):
    return numbers[0] / 0


def test_a_students_exception_names_the_call_the_error_and_the_line():
    found = TOTAL.check(broken)
    assert found.state == "not yet"
    words = str(found)
    assert "Called: broken([1.0, 2.0, 4.0])" in words
    assert "ZeroDivisionError" in words and "return numbers[0] / 0" in words


def test_an_exception_deep_in_a_library_points_at_the_students_own_line():
    def shapes(numbers):
        return torch.zeros(2, 3) @ torch.zeros(2, 3)

    words = str(TOTAL.check(shapes))
    assert "RuntimeError" in words and "return torch.zeros(2, 3) @ torch.zeros(2, 3)" in words


def test_what_a_students_object_raises_later_is_feedback_too():
    class Counter:
        def total(self):
            raise ValueError("not today")

    late = Exercise(id="99.2", title="Later", kind="build", judge=lambda mine: mine().total(), hints=("Wait.",))
    words = str(late.check(Counter))
    assert "ValueError: not today" in words and 'raise ValueError("not today")' in words


def test_an_answer_the_judge_cannot_read_is_not_called_the_students_exception():
    odd = Exercise(id="99.2", title="Odd", kind="build", judge=grading.Words.upper, hints=("Hm.",))
    assert "could not be read" in str(odd.check(3))


def test_leaving_python_does_not_leave_the_notebook():
    assert "SystemExit" in str(TOTAL.check(lambda numbers: exit(1)))


def test_an_interruption_is_the_students_own():
    def interrupted(numbers):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TOTAL.check(interrupted)


# --- cases ---


def test_a_student_cannot_alter_the_cases():
    def greedy(numbers):
        total = sum(numbers)
        numbers.clear()
        return total

    assert TOTAL.check(greedy)


def test_what_is_shared_between_arguments_stays_shared_in_their_copies():
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    seen = Student(lambda net, optimizer: optimizer.param_groups[0]["params"][0] is net.weight, "f(net, optimizer)")
    assert seen(net, optimizer) is True


def test_on_hands_over_the_thing_itself():
    numbers = [1]
    Student(lambda numbers: numbers.append(2) or 1, "f(numbers)").in_place(numbers)
    assert numbers == [1, 2]


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (1.0, 1.0 + 1e-7),
        ([1, 2], torch.tensor([1.0, 2.0])),
        (np.array([1.0]), [1.0]),
        ({"a": 1.0, "b": [2.0]}, {"b": [2.0], "a": 1.0}),
        (float("nan"), float("nan")),
        (torch.tensor(2.0, requires_grad=True), 2.0),
    ],
)
def test_close_things_are_close(seen, expected):
    expect_close(seen, expected, "it")


@pytest.mark.parametrize(
    ("seen", "expected", "words"),
    [
        (1.0, 2.0, "expected 2.0, got 1.0"),
        ([1.0], [1.0, 2.0], "shape"),
        ("one", 1.0, "got 'one'"),
        ({"a": 1.0}, {"b": 1.0}, "keys"),
        (3, {"b": 1.0}, "expected a dict"),
        ({"a": [1.0, 5.0]}, {"a": [1.0, 2.0]}, "at 'a'"),
        (float("inf"), 1.0, "got inf"),
    ],
)
def test_other_things_are_not_and_it_says_how(seen, expected, words):
    with pytest.raises(NotYet, match=words):
        expect_close(seen, expected, "it")


def test_long_values_are_shown_short():
    assert grading.short(torch.zeros(100, 3)) == "a tensor of shape (100, 3)"
    assert grading.short(np.zeros((9, 3))) == "an array of shape (9, 3)"
    assert grading.short(torch.nn.Linear(2, 2)) == "a net (Linear)"
    assert len(grading.short(list(range(1000)))) <= grading.SHORT


def test_checking_one_function_imports_its_lesson_alone():
    code = """
import sys, labkit
print(labkit.check("06.2", None).state)
print(*sorted(name for name in sys.modules if name.startswith("labkit.course.exercises.")))
print(*(name for name in sys.modules if name.startswith(("labkit.course.poster", "labkit.cli"))))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["not attempted", "labkit.course.exercises.lesson_06", ""]


def test_all_exercises_are_listed_lesson_by_lesson():
    ids = list(EXERCISES)
    assert ids == sorted(ids) and len(EXERCISES) == len(ids) > 30 and "06.2" in EXERCISES
    assert "06.99" not in EXERCISES and "six" not in EXERCISES and EXERCISES.of("99") == []
    assert [each.id for each in EXERCISES.of("06")] == [id for id in ids if id.startswith("06.")]


# --- cures and explanations ---

ALWAYS = {"points": 1, "hints": ("Think.",)}


@pytest.fixture
def verdicts(monkeypatch):
    """Stands in for training: cured when the width is above 100; remembers what was asked."""
    asked = []

    def is_cured(mode, recipe, **_):
        asked.append((mode, recipe.seed))
        good = recipe.width > 200 or (recipe.seed != grading.HIDDEN_SEED and recipe.width > 100)
        return Verdict(good, "not yet: too narrow", None)

    monkeypatch.setattr(grading, "is_cured", is_cured)
    return asked


PATIENT = cure("99.3", "Cure", "dead_relu", keep=("lr", "model"), **ALWAYS)
SICK = FAILURES["dead_relu"].sick


def test_a_cure_is_judged_by_training_with_the_seeds_of_the_exercise(verdicts):
    assert PATIENT.check(SICK.but(width=256, seed=5))
    assert verdicts == [("dead_relu", 0), ("dead_relu", grading.HIDDEN_SEED)]


def test_the_same_cure_is_not_trained_twice(monkeypatch):
    asked = []
    monkeypatch.setattr(run_store, "train", lambda recipe, **_: asked.append(recipe) or trained(tiny()))
    first, again = (str(PATIENT.check(SICK.but(width=256))) for _ in range(2))
    assert first == again and "Trained again with width 128 -> 256" in first
    assert asked == [SICK.but(width=256), FAILURES["dead_relu"].healthy]  # and the healthy twin; six steps cure nothing


def test_a_cure_that_fails_with_the_hidden_seed_says_so(verdicts):
    found = PATIENT.check(SICK.but(width=150))
    assert not found and f"seed {grading.HIDDEN_SEED}" in str(found) and "width 128 -> 150" in str(found)


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (SICK, "nothing in it was changed"),
        (SICK.but(seed=4), "nothing in it was changed"),
        (SICK.but(lr=0.5, width=300), "You changed lr, which this patient has to keep"),
        ("batch norm", "Expected a recipe"),
    ],
)
def test_what_is_no_cure_is_not_trained(verdicts, recipe, words):
    assert words in str(PATIENT.check(recipe))
    assert verdicts == []


def test_a_recipe_that_cannot_be_trained_is_feedback():
    def no_net(recipe, data):
        raise ValueError("no net today")

    tried = cure("99.4", "Cure", "dead_relu", **ALWAYS).check(tiny(model=no_net))
    assert tried.state == "not yet" and "no net today" in str(tried)


WHICH = explain(
    "99.5",
    "Which?",
    right={"A": "up", "B": "down"},
    wrong={"A": {"down": "A climbs."}, "B": {"up": "B falls."}},
    because="They cross.",
    **ALWAYS,
)


def test_explanations_are_judged_one_by_one():
    words = str(WHICH.check({"A": "up", "B": "up"}))
    assert "Correct: A." in words and "B: B falls." in words and "A climbs" not in words
    found = WHICH.check({"A": "up", "B": " down "})
    assert found and "They cross." in str(found)


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"A": "up"}, "B: not answered yet"),
        ({"A": "upp", "B": ...}, "'upp' is not a choice. Did you mean 'up'?"),
        ("up", "Expected a dict with the keys A, B"),
    ],
)
def test_half_an_explanation_says_what_is_missing(answers, words):
    found = WHICH.check(answers)
    assert found.state == "not yet" and words in str(found)


def test_an_explanation_of_dots_is_not_attempted():
    assert WHICH.check({"A": ..., "B": None}).state == "not attempted"


def test_one_question_takes_a_string():
    one = explain("99.6", "Which?", right="up", wrong={"down": "It climbs."}, **ALWAYS)
    assert one.check("up")
    assert "It climbs." in str(one.check("down"))
    assert one.check(...).state == "not attempted"


@pytest.mark.parametrize("id", [id for id, each in EXERCISES.items() if each.kind == "cure"])
def test_doing_nothing_cures_nobody(id):
    [mode] = EXERCISES[id].modes
    assert labkit.check(id, FAILURES[mode].sick).state == "not yet"


# --- shown and found ---


def test_feedback_shows_itself_everywhere():
    from rich.console import Console

    found = TOTAL.check(lambda numbers: "<b>[red]</b>")
    assert repr(found) == str(found)
    page = found._repr_html_()
    assert "&lt;b&gt;" in page and "<b>[red]" not in page and "not yet" in page
    console = Console(record=True, width=200, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(found)
    assert "<b>[red]</b>" in console.export_text()


def test_hints_are_given_one_at_a_time_and_without_quotes():
    assert repr(TOTAL.hint(1)).startswith("Loop.")
    assert TOTAL.check(max).hint(2).startswith("Or sum.")
    assert "hints 1 to 2" in TOTAL.hint(3) and "hints 1 to 2" in TOTAL.hint(0)
    assert labkit.hint("06.1", 1)


@pytest.mark.parametrize("ask", [labkit.hint, lambda id: labkit.check(id, 1)])
def test_an_unknown_exercise_suggests_the_nearest(ask):
    with pytest.raises(RecipeError, match=r"no exercise '06\.11'. Did you mean '06\.1'"):
        ask("06.11")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"id": "6.1"}, "expected an id such as"),
        ({"kind": "quiz"}, "expected a kind among build, cure, loop, explain, diagnose"),
        ({"hints": ()}, "at least one hint"),
        ({"points": -1}, "points of 0 \\(optional\\) or more"),
    ],
)
def test_a_bad_exercise_says_what_is_expected(changes, words):
    good = {"id": "99.1", "title": "Add", "kind": "build", "judge": judge_total, "hints": ("Loop.",)}
    with pytest.raises(RecipeError, match=words):
        Exercise(**good | changes)


def test_an_exercise_about_an_unknown_failure_is_noticed():
    with pytest.raises(KeyError, match="Did you mean 'dead_relu'"):
        cure("99.3", "Cure", "dead_rely", **ALWAYS)


# --- lesson 06: the usual mistakes ---


def test_counting_zeros_is_not_counting_dead_units():
    assert "at most 1e-6" in str(labkit.check("06.1", lambda outputs: (outputs == 0).all(0).float().mean().item()))
    assert "share of zeros" in str(labkit.check("06.1", lambda outputs: (outputs == 0).float().mean().item()))


def test_negative_is_not_silent():
    found = labkit.check("06.1", lambda outputs: (outputs <= 0).all(0).float().mean().item())
    assert "are not dead" in str(found)


def detector(*, images=None, evaluate=True, restore=True, remove=True, always_train=False):
    def find_dead(net, x):
        outputs, was = {}, net.training
        hooks = [
            module.register_forward_hook(lambda _, __, output, name=name: outputs.update({name: output}))
            for name, module in net.named_modules()
            if isinstance(module, torch.nn.ReLU)
        ]
        with torch.no_grad():
            (net.eval() if evaluate else net)(x[:images])
        if restore:
            net.train(was or always_train)
        for hook in hooks if remove else []:
            hook.remove()
        return {name: (each.abs().amax(0) <= 1e-6).nonzero().flatten().tolist() for name, each in outputs.items()}

    return find_dead


def test_a_detector_is_right():
    assert labkit.check("06.2", detector())


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"images": 64}, "Look at all of them"),
        ({"evaluate": False}, "your detector changed"),
        ({"restore": False}, "is left in eval mode"),
        ({"remove": False}, "hooks are still on 1, 5"),
        ({"always_train": True}, "in eval mode is left in train mode"),
    ],
)
def test_a_detector_that_disturbs_or_overlooks_is_told_what(fault, words):
    assert words in str(labkit.check("06.2", detector(**fault)))


def test_an_update_ratio_is_a_ratio():
    assert labkit.check("00.1", lambda before, after: ((after - before).norm() / before.norm()).item())
    assert "moved by 0.5" in str(labkit.check("00.1", lambda before, after: (after - before).norm().item()))


# --- free-form diagnosis ---

SEALED = diagnose(
    "99.3",
    "What does the run have?",
    failure=("vanishing_gradients", "plateau"),
    place="layer1",
    evidence={"grad_norm": (1e-9, 1e-5), "grad_ratio": None},
    wrong={"dead_relu": "its units are active."},
    because="The gradient shrinks tenfold per layer.",
    hints=("Look.",),
)


def found_in(**changes) -> str:
    answer = {"failure": "vanishing_gradients", "place": "layer1", "evidence": "grad_norm", "value": 1e-6}
    return str(SEALED.check(answer | changes))


def test_a_right_diagnosis_is_right_by_any_evidence_that_shows_it():
    assert "right" in found_in() and "shrinks tenfold" in found_in()
    assert "right" in found_in(evidence="grad_ratio", value="any") and "right" in found_in(failure="plateau")
    assert "right" in found_in(value=torch.tensor(1e-7))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"place": "layer9"}, "Correct: failure, evidence, value.\n  place: it does not begin at 'layer9'"),
        ({"failure": "dead_relu"}, "Correct: place, evidence, value.\n  failure: its units are active."),
        ({"failure": "vanishing_gradient"}, "Did you mean 'vanishing_gradients'?"),
        ({"failure": "exploding_gradients"}, "does not show exploding gradients"),
        ({"evidence": "loss"}, "loss does not tell this failure from its look-alikes"),
        ({"evidence": "grad_nrm"}, "Did you mean 'grad_norm'?"),
        ({"value": 0.5}, "Correct: failure, place, evidence.\n  value: 0.5 is not what grad_norm shows there"),
        ({"value": "small"}, "Expected one number as value"),
        ({"place": None}, "place: not answered yet."),
    ],
)
def test_a_diagnosis_that_is_partly_right_is_told_which_part(changes, words):
    found = found_in(**changes)
    assert "not yet" in found and words in found


def test_an_empty_diagnosis_is_not_attempted_and_a_wrong_exercise_is_refused():
    assert SEALED.check({"failure": "", "place": ...}).state == "not attempted"
    assert "Expected a dict with the keys failure, place, evidence, value" in str(SEALED.check("vanishing"))
    with pytest.raises(RecipeError, match="no trace 'grad'"):
        diagnose("99.3", "X", failure="dead_relu", evidence={"grad": None}, hints=("Look.",))
