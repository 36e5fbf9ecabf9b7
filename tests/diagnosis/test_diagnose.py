"""Which failures does a run show, in which order, and how is each said?"""

import dataclasses
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import hand_made, trained

from labkit.diagnosis.diagnose import COSTS_MEMORY, PRECEDENCE, SHOWN, THIN, diagnose, evidence_of
from labkit.failures import catalogue
from labkit.failures.catalogue import FAILURES, UnknownFailure
from labkit.failures.mode import Evidence
from labkit.failures.signs import looks
from labkit.recording.run import NoTrace, Run

module = importlib.import_module("labkit.diagnosis.diagnose")
SOME = FAILURES["learning_rate_too_low"]


def mode(name: str, topic: str, onset: int | None, also_causes: tuple[str, ...] = (), **evidence):
    """A failure mode that always sees itself from this step on, or never."""
    seen = Evidence(seen="7", usual="1", onset=onset, **evidence) if onset is not None else None
    return dataclasses.replace(
        SOME, module=f"{topic}.{name}", title=name.title(), also_causes=also_causes, signature=lambda run: seen
    )


def order(monkeypatch, *modes) -> list[str]:
    monkeypatch.setattr(module, "FAILURES", {each.name: each for each in modes})
    return [found.name for found in diagnose(hand_made())]


def test_a_healthy_run_shows_nothing(short_run):
    assert diagnose(hand_made()) == []
    assert diagnose(short_run) == []


def test_only_what_is_seen_is_listed(monkeypatch):
    assert order(monkeypatch, mode("a", "data", None), mode("b", "data", 3)) == ["b"]


def test_what_came_first_is_listed_first(monkeypatch):
    assert order(monkeypatch, mode("a", "data", 9), mode("b", "generalisation", 2), mode("c", "data", 5)) == [
        "b",
        "c",
        "a",
    ]


def test_at_the_same_step_causes_stand_before_consequences(monkeypatch):
    backwards = [mode(f"mode {index}", topic, 4) for index, topic in enumerate(reversed(PRECEDENCE))]
    assert order(monkeypatch, *backwards) == [each.name for each in reversed(backwards)]


def test_a_known_consequence_stands_behind_its_cause_even_when_it_was_seen_earlier(monkeypatch):
    early, cause = mode("early", "numerics", 0), mode("cause", "gradients", 7, also_causes=("early",))
    assert order(monkeypatch, early, cause) == ["cause", "early"]
    absent = mode("cause", "gradients", None, also_causes=("early",))
    other = mode("other", "gradients", 3)
    assert order(monkeypatch, early, absent, other) == ["early", "other"]


def test_a_diagnosis_says_what_was_seen_beside_the_usual_and_what_to_do(monkeypatch):
    seen = mode("a", "data", 3, place="layer2", confidence=0.7)
    order(monkeypatch, seen)
    (found,) = diagnose(hand_made())
    assert (found.name, found.title, found.onset, found.place, found.confidence) == ("a", "A", 3, "layer2", 0.7)
    assert found.because == "7 (usual: 1)"
    assert str(found) == f"A [a], from step 3 in layer2: 7 (usual: 1). {SOME.remedy}"


def test_the_silent_death_is_called_by_its_cause():
    """LR 10 on two layers: a jump, then dead units at chance level for the rest of the run."""
    sick = FAILURES["learning_rate_too_high"].recipes(face="two_layers")["sick"]
    run = trained(sick)
    found = [each.name for each in diagnose(run)]
    assert found[0] == "learning_rate_too_high" and "dead_relu" in found[1:]
    assert np.isfinite(run["loss"]).all()


def test_the_diagnosis_is_blind():
    """It must not read the recipe: the same run without one is called the same."""
    run = trained(FAILURES["learning_rate_too_low"].sick.but(steps=60))
    foreign = dataclasses.replace(run, recipe={})
    assert diagnose(foreign) == diagnose(run) != []


# --- the catalogue --------------------------------------------------------------------------------


def test_an_unknown_failure_suggests_the_nearest():
    with pytest.raises(UnknownFailure) as caught:
        FAILURES["learning_rate_to_high"]
    assert (
        str(caught.value) == "there is no failure mode 'learning_rate_to_high'. Did you mean 'learning_rate_too_high'?"
    )
    with pytest.raises(
        KeyError, match=r"there is no failure mode 'xyzzy'. Known: activation_on_outputs, .* and \d+ more\.$"
    ):
        FAILURES["xyzzy"]


def test_every_file_is_a_mode_of_its_own_name():
    folder = Path(catalogue.__file__).parent
    files = {path.stem: path.parent.name for path in folder.glob("*/*.py") if path.stem != "__init__"}
    assert {name: each.topic for name, each in FAILURES.items()} == files
    assert {name: each.name for name, each in FAILURES.items()} == {name: name for name in files}


def test_a_new_file_is_found_by_being_there(tmp_path, monkeypatch):
    (tmp_path / "learning_rate_forgotten.py").write_text(
        '"""A mode that a contributor dropped in."""\n'
        "import dataclasses\n"
        "from labkit.failures.learning_rate import learning_rate_too_low\n"
        "old = learning_rate_too_low.failure\n"
        "failure = dataclasses.replace(old, module=__name__, title='Learning rate forgotten')\n"
    )
    package = importlib.import_module("labkit.failures.learning_rate")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    try:
        found = catalogue._discover()
    finally:
        sys.modules.pop("labkit.failures.learning_rate.learning_rate_forgotten", None)
        vars(package).pop("learning_rate_forgotten", None)
    assert set(found) == {*FAILURES, "learning_rate_forgotten"}
    new = found["learning_rate_forgotten"]
    assert (new.name, new.topic, new.title) == ("learning_rate_forgotten", "learning_rate", "Learning rate forgotten")


# --- unsure, and ruled out ------------------------------------------------------------------------


def log_of(losses) -> Run:
    """A log with nothing but the loss."""
    losses = np.asarray(losses, dtype=float)
    return Run({"step": np.arange(len(losses)), "loss": losses}, facts={"first_nonfinite": None})


def test_a_log_that_ends_in_nan_names_candidates_and_a_test_instead_of_guessing():
    [found] = diagnose(log_of([2.3, 2.2, np.nan, np.nan]))
    assert found.name == "unsure" and found.confidence < THIN
    assert "learning_rate_too_high" in found.candidates and "nan_in_data" in found.candidates
    assert "The cheapest test:" in found.prescription and "NaN or infinite" in found.seen


def test_a_loss_that_never_moves_is_alarming_only_after_a_while():
    assert [found.name for found in diagnose(log_of(np.full(80, 2.3)))] == ["unsure"]
    assert diagnose(log_of(np.full(20, 2.3))) == []


def test_a_loss_that_falls_alarms_nobody_however_little_is_known():
    assert diagnose(log_of(np.linspace(2.3, 0.4, 80))) == []
    assert diagnose(log_of(np.linspace(2.3, 1.9, 80))) == []  # slow, and perhaps just begun


def test_an_error_that_nobody_knows_is_unsure():
    run = hand_made(facts={"error": {"kind": "OSError", "message": "disk full", "step": 3}})
    assert [found.name for found in diagnose(run)] == ["unsure"]


def test_a_diagnosis_says_which_look_alikes_it_excluded():
    found = diagnose(trained(FAILURES["learning_rate_too_low"].recipes()["sick"]))[0]
    assert found.name == "learning_rate_too_low" and 0 < len(found.rules_out) <= SHOWN
    assert all(FAILURES[name].looks == "never moves" for name in found.rules_out)
    assert f"Not {found.rules_out[0]}" in str(found) and "<b>" in found._repr_html_()


def test_thin_evidence_is_no_diagnosis(monkeypatch):
    thin = dataclasses.replace(
        FAILURES["dead_relu"], signature=lambda run: Evidence("1", "2", 0, confidence=THIN - 0.01)
    )
    monkeypatch.setitem(FAILURES, "dead_relu", thin)
    assert diagnose(hand_made()) == []
    sure = dataclasses.replace(thin, signature=lambda run: Evidence("1", "2", 0, confidence=THIN))
    monkeypatch.setitem(FAILURES, "dead_relu", sure)
    assert [found.name for found in diagnose(hand_made())] == ["dead_relu"]


@pytest.mark.parametrize(
    ("losses", "look"),
    [
        (np.linspace(2.3, 0.2, 100), "nothing"),
        (np.linspace(2.3, 0.2, 100) * [*([1] * 99), np.nan], "not finite"),
        (np.full(100, 2.3), "never moves"),
        (np.full(100, 2.3) * [1, *([1.6] * 99)], "jumps"),
        (np.full(100, 2.3) * [1, *([1.4] * 99)], "stops too high"),
        ([2.3, 20, *([2.0] * 98)], "jumps"),
        ([2.3, 20, *([1.7] * 98)], "stops too high"),
        ([2.3, *([2.3 * 0.26] * 99)], "stops too high"),
        ([2.3, *([2.3 * 0.24] * 99)], "nothing"),
        ([0.1, *([0.2] * 99)], "jumps"),
        ([0.1, *([0.2] * 98), -0.1], "nothing"),  # a likelihood: its size says nothing
        ([0.1, np.nan, *([0.2] * 97), -0.1], "nothing"),
    ],
)
def test_what_anybody_sees_in_the_loss(losses, look):
    assert looks(log_of(losses)) == look


# --- runs of any length, of which little is known -------------------------------------------------


def stranger(steps: int, **traces) -> Run:
    """A run of which no fact is known."""
    run = hand_made(steps=steps, **traces)
    return Run(run.traces, layers=run.layers, activations=run.activations)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("steps", [1, 2, 5, 60, 300])
@pytest.mark.parametrize("name", [name for name, mode in FAILURES.items() if not mode.raises])
def test_a_signature_copes_with_whatever_it_is_given(name, steps):
    given = [
        stranger(steps),
        stranger(steps, loss=np.full(steps, 2.3)),
        stranger(steps, loss=np.full(steps, np.nan), grad_norm=np.nan, weight_norm=np.nan, val_loss=np.nan),
        stranger(steps, loss=np.linspace(2.3, 50, steps), lr=np.linspace(1e-3, 1, steps)),
        stranger(steps, grad_norm=0, update_norm=0, update_ratio=0, grad_norm_total=0),
    ]
    for run in given:
        found = evidence_of(FAILURES[name], run)
        assert found is None or isinstance(found, Evidence | NoTrace)


def test_a_healthy_run_of_which_no_fact_is_known_alarms_nobody():
    assert [diagnose(stranger(steps)) for steps in (1, 5, 60, 300)] == [[], [], [], []]


def test_what_costs_memory_alone_is_listed_behind_what_makes_training_fail(monkeypatch):
    assert all(FAILURES[name].harm == 0 and "memory" in FAILURES[name].costs.lower() for name in COSTS_MEMORY)
    early, late = mode(COSTS_MEMORY[0], "code", 1), mode("late", "landscape", 90, confidence=0.6)
    assert order(monkeypatch, early, late) == ["late", COSTS_MEMORY[0]]
    assert order(monkeypatch, early) == [COSTS_MEMORY[0]]
