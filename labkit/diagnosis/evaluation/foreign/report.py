"""The results on foreign programs: tables for the terminal, JSON, and a page of the documentation."""

import textwrap
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict

import torch

from labkit.diagnosis.evaluation.blind import interval
from labkit.diagnosis.evaluation.contract import in_columns
from labkit.diagnosis.evaluation.foreign.clinic import (
    DETAILED,
    Examined,
    Foreign,
    calibration,
    named_among_two,
    named_first,
    noticed,
    share,
    unsure,
)
from labkit.diagnosis.evaluation.foreign.registry import PROGRAMS, PURPOSES, SPLITS
from labkit.diagnosis.evaluation.foreign.verify import MARGIN, SEEDS
from labkit.diagnosis.evaluation.report import HEAD, Row
from labkit.drawing.markdown import table
from labkit.recording.machine import cpu_name

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


def numbers(found: Foreign) -> list[Row]:
    """Every number of the evaluation, the most important first."""
    ill, well = found.ill, found.counted
    harder = [each for each in well if each.case.conditions]
    twins = [each for each in well if each.case.settings is None and each not in harder]
    variants = [each for each in well if each.case.settings is not None]
    return [
        Row("noticed: something is said", share(ill, noticed), 0.95),
        Row("- of these unsure", (share(ill, unsure)[0], share(ill, noticed)[0])),
        Row("named first", share(ill, named_first), 0.80),
        Row("named among the first two", share(ill, named_among_two)),
        Row("place correct, where there is one", share(ill, lambda each: each.place_right), 0.85),
        Row("false alarms on healthy runs", share(well, noticed), 0.01, most=True),
        Row("- of these unsure", (share(well, unsure)[0], share(well, noticed)[0])),
        Row("- the programs themselves", share(twins, noticed)),
        Row("- with other settings", share(variants, noticed)),
        *([Row("- under harder conditions", share(harder, noticed))] if harder else []),
        Row("labkit raised an error", share(found.all, lambda each: bool(each.crash)), 0.0, most=True),
        Row("an instrument was switched off", share(found.all, lambda each: bool(each.switched_off))),
    ]


def grouped(found: Foreign, title: str, group: Callable[[Examined], str]) -> Table:
    """Noticed and named for each group of cases, in order of their first appearance."""
    rows = []
    for name in dict.fromkeys(map(group, found.ill)):
        own = [each for each in found.ill if group(each) == name]
        cells = [percent(*share(own, question)) for question in (noticed, named_first, named_among_two)]
        rows.append((name, str(len(own)), *cells))
    return (title, "cases", "noticed", "named first", "among two"), rows


def percent(count: int, of: int) -> str:
    return f"{count / of:.0%}" if of else "-"


def by_family(found: Foreign) -> Table:
    return grouped(found, "family", lambda each: each.fault.family)


def by_task(found: Foreign) -> Table:
    return grouped(found, "task", lambda each: each.task)


def by_fault(found: Foreign) -> Table:
    """Each operator with the names that came first instead; not for the held-out split."""
    head, rows = grouped(found, "fault", lambda each: each.fault.name)
    more = []
    for row in rows:
        wrong = Counter(each.said for each in found.ill if each.fault.name == row[0] and each.rank != 1)
        more.append((*row, ", ".join(f"{name} {count}" for name, count in wrong.most_common(3))))
    return (*head, "named first instead"), more


def by_confidence(found: Foreign) -> Table:
    rows = []
    for each in calibration(found):
        low, high = interval(each.correct, each.given)
        between = f"{low:.0%} to {high:.0%}"
        ends = f"{each.low:.2f} to {each.high:.2f}"
        rows.append((ends, str(each.given), f"{each.mean:.2f}", percent(each.correct, each.given), between))
    return ("confidence", "diagnoses", "mean confidence", "correct", "95 % interval"), rows


def tables(found: Foreign) -> dict[str, Table]:
    shown = {"By family": by_family(found), "By task": by_task(found), "Calibration": by_confidence(found)}
    return shown | ({"By fault": by_fault(found)} if found.split in DETAILED else {})


def misses(found: Foreign) -> list[str]:
    """A line for everything that went wrong; none for the held-out split, which is counted and not looked at."""
    if found.split not in DETAILED:
        return []
    lines = [
        f"{each.case}: called {', then '.join(name for name, _ in each.verdict) or 'nothing'}; "
        f"correct: {' or '.join(each.fault.accepted)}"
        for each in found.ill
        if each.rank != 1
    ]
    lines += [
        f"{each.case}: placed in {each.place or 'nothing'}, not in {' or '.join(each.wanted)}"
        for each in found.ill
        if each.rank == 1 and each.place_right is False
    ]
    lines += [
        f"false alarm on a healthy run, {each.case}: {', '.join(name for name, _ in each.verdict)}"
        for each in found.false_alarms
    ]
    lines += [f"{each.case}: labkit raised {each.crash}" for each in found.all if each.crash]
    return lines + [
        f"{each.case}: switched off: {', '.join(each.switched_off)}" for each in found.all if each.switched_off
    ]


def left_out(found: Foreign) -> str:
    words = (
        f"not counted: {len(found.sick) - len(found.ill)} of {len(found.sick)} faults that did no harm this time, "
        f"{len(found.healthy) - len(found.counted)} of {len(found.healthy)} healthy runs that did not learn"
    )
    return words + (f"; {found.skipped} cases that were not trained yet" if found.skipped else "")


def as_text(found: Foreign) -> str:
    """For the terminal."""
    lines = [f"Foreign programs, {runs_of(found)}.", "", *in_columns([HEAD, *(row.cells for row in numbers(found))])]
    for title, (head, rows) in tables(found).items():
        lines += ["", f"{title}:", *in_columns([head, *rows])]
    lines += ["", *textwrap.wrap(left_out(found), 110), *(f"- {line}" for line in misses(found))]
    return "\n".join(lines)


def runs_of(found: Foreign) -> str:
    """Of which split these results are, and how many runs there were."""
    programs = len({each.case.program for each in found.all})
    return f"{found.split} split: {len(found.sick)} sick and {len(found.healthy)} healthy runs of {programs} programs"


def as_plain(found: Foreign) -> dict:
    """For JSON. Single cases are not listed for the held-out split."""
    rows = [{"what": row.what, "count": row.count, "of": row.of, "goal": row.goal} for row in numbers(found)]
    shown = {
        title: [dict(zip(head, row, strict=True)) for row in body] for title, (head, body) in tables(found).items()
    }
    cases = {"sick": [asdict(each) for each in found.sick], "healthy": [asdict(each) for each in found.healthy]}
    return {
        "split": found.split,
        "numbers": rows,
        "tables": shown,
        "skipped": found.skipped,
        **(cases if found.split in DETAILED else {}),
    }


# --- page ---------------------------------------------------------------------------------------------


SCORED = (
    "The programs are plain PyTorch loops on generated data: none is a recipe of the lab, and nets, data and style "
    "differ from it. A fault operator changes the pieces of a program before its loop starts, as a bug in its code "
    "would. A case counts if the fault costs at least {margin:.0%} of the healthy program's score on each of {seeds} "
    "seeds; the score is 0 for the best constant prediction and 1 for perfect ones. The programs, not the cases, are "
    "divided into splits:",
    *(f"- **{split}**: {purpose}." for split, purpose in PURPOSES.items()),
    "- **named first**: the first name is one that the operator lists as correct. Some of these modes are not in the "
    "catalogue yet, and count as not named.",
    "- **place correct**: the name is correct, and the place is a layer that the operator changed.",
    "- **false alarm**: any name, or unsure, on a healthy program that learned.",
    "- **calibration**: of the diagnoses that were given with this confidence, how many were correct; a diagnosis on a "
    "healthy run is wrong.",
)


def in_markdown(found: Foreign, command: str) -> str:
    """The page: conditions, numbers and goals, tables, and every miss if the split is not the held-out one."""
    made = f"Made by `{command}` on {cpu_name()}, torch {torch.__version__}. The {runs_of(found)}."
    first, *rest = (text.format(margin=MARGIN, seeds=len(SEEDS)) for text in SCORED)
    sections = [
        "# Foreign programs: how often is the diagnosis correct on code that is not the lab's?",
        wrapped(made),
        "## Numbers\n\n" + "\n".join(table(HEAD, [row.cells for row in numbers(found)])),
        wrapped(left_out(found).capitalize() + "."),
        "## How it is scored\n\n" + wrapped(first) + "\n\n" + "\n".join(wrapped(each, "  ") for each in rest),
        *(f"## {title}\n\n" + "\n".join(table(head, rows)) for title, (head, rows) in tables(found).items()),
        "## The programs\n\n" + "\n".join(table(("program", "task", "split"), program_rows())),
    ]
    if found.split in DETAILED:
        sections.append("## What went wrong\n\n" + ("\n".join(f"- {line}" for line in misses(found)) or "Nothing."))
    return "\n\n".join(sections) + "\n"


def program_rows() -> list[tuple[str, str, str]]:
    return [(f"`{name}`", PROGRAMS[name].task, split) for split, names in SPLITS.items() for name in names]


def wrapped(text: str, indent: str = "") -> str:
    return "\n".join(textwrap.wrap(text, 118, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False))
