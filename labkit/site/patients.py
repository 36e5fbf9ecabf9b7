"""The ward of the web edition: sealed patients, what each instrument finds, and the points of every name."""

import json
from collections.abc import Callable
from typing import Any

from labkit.course.ward.cases import Case, draw, play_case
from labkit.course.ward.game import Patient, Ward, grade, truth
from labkit.course.ward.instruments import INSTRUMENTS, Finding
from labkit.failures.catalogue import FAILURES
from labkit.site.curves import pane_from

SEED, PATIENTS = 2026, 6
NOT_HERE = ("checkup", "colleague")  # one lists tests, the other draws names: both give away too much when recorded


def current(kept: dict[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
    """The recorded patients; those that are missing, or others than today's, are examined now."""
    cases = draw(SEED, PATIENTS)
    found = {}
    admitted = None
    for number, case in enumerate(cases, start=1):
        name = str(number)
        if kept.get(name, {}).get("made of") != made_of(case):
            say(f"patient {number}")
            admitted = admitted or Ward(SEED, PATIENTS)
            found[name] = {"made of": made_of(case)} | record_of(admitted[number], case)
        else:
            found[name] = kept[name]
    return found


def made_of(case: Case) -> list:
    recipes = {role: recipe.summary() for role, recipe in case.recipes.items()}
    return json.loads(json.dumps([case.name, case.net, case.seed, recipes]))


def record_of(patient: Patient, case: Case) -> dict[str, Any]:
    """What one can know of a patient: its findings, which failures it shows, and the answer."""
    answer = truth(SEED, PATIENTS)[patient.number - 1]
    return {
        "complaint": patient.complaint,
        "net": patient.net,
        "findings": {name: finding_of(patient.order(name)) for name in INSTRUMENTS if name not in NOT_HERE},
        "shows": [found.name for found in play_case(case).diagnoses],
        "answer": {name: answer[name] for name in ("failure", "title", "cure")},
    }


def finding_of(found: Finding) -> dict[str, Any]:
    """The readings of an instrument, and its curves."""
    panes = [pane_from(draw, found.run, found.words) for draw in found.panes]
    return {"rows": [list(row) for row in found.rows], "panes": [pane for pane in panes if pane]}


def grades_of(record: dict[str, Any]) -> dict[str, Any]:
    """Points and feedback for the name of every failure: {words: [points, names]}."""
    truth, shows = FAILURES[record["answer"]["failure"]], set(record["shows"])
    found: dict[str, Any] = {}
    for name in FAILURES:
        answer = grade(truth, name, lambda: shows)
        found.setdefault(answer.words, [answer.points, []])[1].append(name)
    return found
