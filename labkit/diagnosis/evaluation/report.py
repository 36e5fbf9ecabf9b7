"""The results of a blind evaluation: a table for the terminal, a figure, and a page of the documentation."""

import statistics
import textwrap

import matplotlib
import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from labkit.diagnosis.diagnose import UNSURE
from labkit.diagnosis.evaluation import healthy_runs
from labkit.diagnosis.evaluation.blind import SPLITS, Evaluation, Healthy, Patient, interval
from labkit.diagnosis.evaluation.contract import in_columns, low_to_high
from labkit.diagnosis.evaluation.nets import NETS
from labkit.drawing.markdown import sentence, table
from labkit.failures.catalogue import FAILURES
from labkit.recording.machine import cpu_name
from labkit.recording.measure import MEASURES

OTHERS = tuple(net for net in NETS if net != "own")


class Row:
    """One number of the evaluation and its goal, if it has one; `most`: lower is better."""

    def __init__(self, what: str, share: tuple[int, int], goal: float | None = None, *, most: bool = False):
        self.what, (self.count, self.of), self.goal, self.most = what, share, goal, most

    @property
    def share(self) -> str:
        return f"{self.count / self.of:.1%}" if self.of else "-"

    @property
    def between(self) -> str:
        return "{:.1%} to {:.1%}".format(*interval(self.count, self.of)) if self.of else "-"

    @property
    def wanted(self) -> str:
        return "" if self.goal is None else f"at {'most' if self.most else 'least'} {self.goal:.0%}"

    @property
    def answer(self) -> str:
        if self.goal is None or not self.of:
            return ""
        reached = self.count / self.of
        return "reached" if (reached <= self.goal if self.most else reached >= self.goal) else "MISSED"

    @property
    def cells(self) -> tuple[str, ...]:
        return self.what, f"{self.count} of {self.of}", self.share, self.between, self.wanted, self.answer


HEAD = ("what", "how often", "share", "95 % interval", "goal", "")


def numbers(found: Evaluation) -> list[Row]:
    """Every number of the evaluation, the most important first."""
    nets = [net for net in NETS if any(each.net == net for each in found.patients)]
    datasets = dict.fromkeys(each.dataset for each in found.patients)
    rows = []
    for dataset in datasets:
        here, on = found.only(dataset=dataset), f" ({dataset})" if len(datasets) > 1 else ""
        rows.append(Row(f"named first, own nets on held-out seeds{on}", here.only(net="own").named(), 0.95))
        if any(each.net in OTHERS for each in here.patients):
            rows.append(Row(f"named first, held-out nets{on}", here.only(net=OTHERS).named(), 0.90))
            rows += [Row(f"- {net}", here.only(net=net).named()) for net in nets if net in OTHERS]
    rows += [
        Row("named among the first two", found.named(within=2)),
        Row("place correct, where there is one", found.placed, 0.90),
        Row("onset correct", found.dated),
        Row("unsure", found.unsure),
    ]
    drawn_alarms, twin_alarms = (
        (len(found.false_alarms), len(found.counted)),
        (len(found.alarmed_twins), len(found.twins)),
    )
    together = tuple(map(sum, zip(drawn_alarms, twin_alarms, strict=True)))
    return [
        *rows,
        Row("false alarms on healthy runs", together, 0.01, most=True),
        *([Row("- drawn at random", drawn_alarms)] if found.healthy else []),
        Row("- twins of the patients", twin_alarms),
    ]


def lead_in_words(found: Evaluation) -> str:
    leads = found.leads
    if not leads:
        return "lead time: the loss shows none of the failures"
    low, middle, high = (f"{value:.0f}" for value in np.percentile(leads, (25, 50, 75)))
    early = sum(lead > 0 for lead in leads)
    return (
        f"lead time: the onset is {middle} steps (median; middle half {low} to {high}) before the alarm of the loss; "
        f"earlier in {early} of {len(leads)}, later in {sum(lead < 0 for lead in leads)}"
    )


def left_out(found: Evaluation) -> str:
    healthy = sum(not each.ill for each in found.patients)
    unlearned = sum(each.ill and not each.twin_learned for each in found.patients)
    drawn_unlearned = len(found.healthy) - len(found.counted)
    return (
        f"not counted: {healthy} of {len(found.patients)} patients that did not fail, "
        f"{unlearned} whose twin did not learn, {drawn_unlearned} of {len(found.healthy)} healthy runs that "
        "did not learn" + (f"; {found.skipped} cases that were not trained yet" if found.skipped else "")
    )


def evaluation_as_text(found: Evaluation) -> str:
    """For the terminal."""
    lines = in_columns([HEAD, *(row.cells for row in numbers(found))])
    lines += ["", *textwrap.wrap(lead_in_words(found), 110), *textwrap.wrap(left_out(found), 110), ""]
    return "\n".join([*lines, *(f"- {line}" for line in misses(found))])


def misses(found: Evaluation) -> list[str]:
    """A line for everything that went wrong: names, places, onsets, false alarms."""
    lines = [
        f"{case(each)}: called {', then '.join(each.verdict) or 'nothing'}" for each in found.ill if each.rank != 1
    ]
    for each in found.ill:
        if each.rank == 1 and each.place_right is False:
            lines.append(f"{case(each)}: placed in {each.place or 'nothing'}, not in {' or '.join(each.wanted)}")
        if each.rank == 1 and each.onset_right is False:
            told = "never" if each.loss_alarm is None else f"at step {each.loss_alarm}"
            left = f"it differs from its twin from step {each.departure}, and the loss shows it {told}"
            lines.append(f"{case(each)}: onset given as {each.onset}; {left}")
    lines += [f"false alarm on a healthy run, {each.kind}: {', '.join(each.verdict)}" for each in found.false_alarms]
    return lines + [
        f"false alarm on the twin of {case(each)}: {', '.join(each.twin_verdict)}" for each in found.alarmed_twins
    ]


def case(each: Patient) -> str:
    return f"{each.name}, {each.net} net, {each.dataset}, seed {each.seed}"


# --- picture --------------------------------------------------------------------------------------


def confusion_picture(found: Evaluation) -> Figure:
    """The failure of each patient (rows), the first name given (columns); modes that are always correct share a row."""
    confused = found.confusions()
    wrong, said = ({pair[side] for pair in confused} for side in (0, 1))
    others = len({each.name for each in found.ill} - wrong)
    last = f"{others} other modes" if wrong else f"all {others} modes"
    rows = [*(name for name in FAILURES if name in wrong), *([last] if others else [])]
    columns = ["correct", *(name for name in (*FAILURES, UNSURE, "nothing") if name in said)]
    counts = np.zeros((len(rows), len(columns)), dtype=int)
    for each in found.ill:
        row = rows.index(each.name if each.name in wrong else last)
        counts[row, columns.index("correct" if each.rank == 1 else each.said)] += 1
    figure = Figure(figsize=(4.6 + 0.42 * len(columns), 2.4 + 0.3 * len(rows)), layout="constrained", dpi=150)
    FigureCanvasAgg(figure)
    ax = figure.add_subplot()
    ax.set_title("{} of {} named first".format(*found.named()), fontsize="medium", loc="left")
    _matrix(ax, counts, rows, columns)
    return figure


def _matrix(ax, counts: np.ndarray, rows: list[str], columns: list[str]) -> None:
    """Squares with their counts; blue where the name is correct, orange where it is not."""
    for row, column in zip(*np.nonzero(counts), strict=True):
        colour = "#56B4E9" if column == 0 else "#E69F00"
        ax.add_patch(matplotlib.patches.Rectangle((column - 0.5, row - 0.5), 1, 1, color=colour, linewidth=0))
        ax.text(column, row, str(counts[row, column]), ha="center", va="center", fontsize="small")
    ax.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5), aspect="equal")
    ax.set_xticks(range(len(columns)), columns, rotation=40, ha="right", rotation_mode="anchor", fontsize="small")
    ax.set_yticks(range(len(rows)), rows, fontsize="small")
    ax.set_xticks(np.arange(-0.5, len(columns)), minor=True)
    ax.set_yticks(np.arange(-0.5, len(rows)), minor=True)
    ax.grid(which="minor", color="0.85", linewidth=0.6)
    ax.tick_params(which="both", length=0)
    ax.spines[:].set_visible(False)
    ax.set(xlabel="named first", ylabel="failure")


# --- page -----------------------------------------------------------------------------------------


def in_markdown(found: Evaluation, command: str, picture: str = "") -> str:
    """The page beside CONTRACT.md: conditions, numbers and goals, every miss, and the kinds of healthy runs."""
    sections = [
        "# The clinic: how often is the diagnosis correct?\n",
        _conditions(found, command),
        "## Numbers\n\n" + "\n".join(table(HEAD, [row.cells for row in numbers(found)])),
        "\n".join(_wrapped(sentence(text)) for text in (lead_in_words(found), left_out(found))),
        _scored(),
        "## What went wrong\n\n" + ("\n".join(f"- {line}" for line in misses(found)) or "Nothing."),
        f"![Confusion matrix]({picture})" if picture else "",
        "## Mode by mode\n\n" + "\n".join(table(*_by_mode(found))),
        "## The healthy runs\n\n" + "\n".join(table(*_by_kind(found.healthy))) if found.healthy else "",
    ]
    return "\n\n".join(section.rstrip() for section in sections if section) + "\n"


def _conditions(found: Evaluation, command: str) -> str:
    seeds = sorted({each.seed for each in found.patients})
    played = len({each.name for each in found.patients})
    modes = "every mode" if played == len(FAILURES) else f"{played} of {len(FAILURES)} modes"
    drawn = f", and {len(found.healthy)} healthy runs drawn with seed {SPLITS[found.split].first_seed}"
    lines = [
        f"Made by `{command}` on {cpu_name()}, torch {torch.__version__}, one thread per run: {modes}, sick and "
        f"healthy, with seed {', '.join(map(str, seeds))}{drawn if found.healthy else ''}. "
        "The diagnosis sees only the instruments, never the recipe."
        + (f" **Not complete: {found.skipped} cases of this split were not trained yet.**" if found.skipped else ""),
        "Which runs the thresholds are set on, and which are held out:",
    ]
    splits = [
        "- seeds 0 to 4, own nets: the thresholds were set on them; [CONTRACT.md](CONTRACT.md) is about these runs"
    ]
    for name, split in SPLITS.items():
        nets = "; ".join(f"{dataset}: {', '.join(nets)}" for dataset, nets in split.nets.items())
        nets += " (its own and one other in turn)" if split.in_turn else ""
        nets += "".join(f"; language models on {each} too" for each in split.also)
        here = " **This page.**" if name == found.split else ""
        splits.append(f"- `--split {name}`, seeds from {split.first_seed}, nets {nets}: {split.purpose}.{here}")
    return "\n\n".join(map(_wrapped, lines)) + "\n\n" + "\n".join(_wrapped(each, "  ") for each in splits)


SCORED = (
    "A patient counts if its sick run lost at least half the accuracy that the mode says, and its healthy twin learned "
    "on the same net. A mode is not trained on a net that changes the entry its fault or cure is about.",
    "- **named first**: the first name of the diagnosis is the mode that was trained.",
    "- **place correct**: the name is correct, and the place is where the recipe put the fault (the field `where` of "
    "the mode's file). Counted are only modes whose fault is in one place that the signature has to find: {placed}.",
    "- **onset correct**: the name is correct, and the onset is not before the step at which the sick run first "
    "differs from its twin (with the same seed they are bit-identical until then; one step early is allowed) and not "
    "after the alarm of the loss (three times the first loss, twice the twin's, or a validation loss at 1.5 times its "
    "lowest). Not counted where the fault is there from the start and the loss never raises an alarm.",
    "- **lead time**: from the onset to that alarm of the loss. The diagnosis reads the whole run: this is the step it "
    "dates the failure to, not the step at which `labkit.watch` would have raised an alarm.",
    "- **false alarm**: any name, or unsure, on a run that learned.",
)


def _scored() -> str:
    placed = ", ".join(f"`{mode.name}`" for mode in FAILURES.values() if mode.where)
    first, *rest = (text.format(placed=placed) for text in SCORED)
    return "## How it is scored\n\n" + _wrapped(first) + "\n\n" + "\n".join(_wrapped(each, "  ") for each in rest)


def _by_mode(found: Evaluation) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    columns = list(dict.fromkeys((each.dataset, each.net) for each in found.patients))
    several = len({dataset for dataset, _ in columns}) > 1
    titles = tuple(f"{net} ({dataset})" if several else net for dataset, net in columns)
    rows = []
    for name in dict.fromkeys(each.name for each in found.patients):
        own = [each for each in found.patients if each.name == name]
        cells = [_cell([each for each in own if (each.dataset, each.net) == column]) for column in columns]
        leads = [each.lead for each in own if each.counts and each.lead is not None]
        rows.append((f"`{name}`", *cells, f"{statistics.median(leads):+.0f}" if leads else ""))
    return ("mode", *titles, "lead"), rows


def _cell(patients: list[Patient]) -> str:
    """'first', or the name that came first instead; empty where the mode was not trained on this net."""
    words = []
    for each in patients:
        if not each.counts:
            words.append("did not fail" if not each.ill else "twin did not learn")
        else:
            words.append(
                "first" if each.rank == 1 else f"**{each.said}**" + (", then correct" if each.rank == 2 else "")
            )
    return "; ".join(dict.fromkeys(words))


def _by_kind(runs: list[Healthy]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    rows = []
    for kind in dict.fromkeys(each.kind for each in runs):
        own = [each for each in runs if each.kind == kind]
        learned = [each for each in own if each.learned]
        alarms = sum(bool(each.verdict) for each in learned)
        reached = low_to_high([each.accuracy for each in learned], MEASURES[learned[0].measure]) if learned else ""
        rows.append((kind, str(len(own)), str(len(learned)), reached, str(alarms), healthy_runs.choices_as_text(kind)))
    return ("kind", "runs", "learned", "reached", "false alarms", "drawn from"), rows


def _wrapped(text: str, indent: str = "") -> str:
    return "\n".join(textwrap.wrap(text, 118, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False))
