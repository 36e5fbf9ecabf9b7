"""What a blind evaluation found: as a table for the terminal, a picture, and a page of the documentation."""

import statistics
import textwrap

import matplotlib
import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from labkit.diagnosis.evaluation import healthy_runs as zoo
from labkit.cli.bench import cpu_name
from labkit.diagnosis.evaluation.blind import NETS, PARTS, Evaluation, Healthy, Patient, interval
from labkit.diagnosis.evaluation.contract import spread
from labkit.diagnosis.diagnose import UNSURE
from labkit.failures import FAILURES

UNSEEN = tuple(net for net in NETS if net != "own")


class Row:
    """One number of the evaluation beside its goal, where it has one; `most` says that less is better."""

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
    """Every number of the evaluation, in the order of importance."""
    nets = [net for net in NETS if any(each.net == net for each in found.patients)]
    datasets = dict.fromkeys(each.dataset for each in found.patients)
    rows = []
    for dataset in datasets:
        here, on = found.only(dataset=dataset), f" ({dataset})" if len(datasets) > 1 else ""
        rows.append(Row(f"named first, own nets on unseen seeds{on}", here.only(net="own").named(), 0.95))
        if any(each.net in UNSEEN for each in here.patients):
            rows.append(Row(f"named first, unseen nets{on}", here.only(net=UNSEEN).named(), 0.90))
            rows += [Row(f"- {net}", here.only(net=net).named()) for net in nets if net in UNSEEN]
    rows += [
        Row("named among the first two", found.named(within=2)),
        Row("place right, where there is one", found.placed, 0.90),
        Row("onset right", found.dated),
        Row("unsure", found.unsure),
    ]
    zoo_alarms, twin_alarms = (
        (len(found.false_alarms), len(found.counted)),
        (len(found.alarmed_twins), len(found.twins)),
    )
    together = tuple(map(sum, zip(zoo_alarms, twin_alarms, strict=True)))
    return [
        *rows,
        Row("false alarms on healthy runs", together, 0.01, most=True),
        *([Row("- of the zoo", zoo_alarms)] if found.healthy else []),
        Row("- twins of the patients", twin_alarms),
    ]


def lead_in_words(found: Evaluation) -> str:
    leads = found.leads
    if not leads:
        return "lead time: the loss told of none"
    low, middle, high = (f"{value:.0f}" for value in np.percentile(leads, (25, 50, 75)))
    early = sum(lead > 0 for lead in leads)
    return (
        f"lead time: the onset lies {middle} steps (median; middle half {low} to {high}) before the loss beside the "
        f"twin's tells; earlier in {early} of {len(leads)}, later in {sum(lead < 0 for lead in leads)}"
    )


def left_out(found: Evaluation) -> str:
    healthy = sum(not each.ill for each in found.patients)
    unlearned = sum(each.ill and not each.twin_learned for each in found.patients)
    zoo_unlearned = len(found.healthy) - len(found.counted)
    return (
        f"not counted: {healthy} of {len(found.patients)} patients that did not fall ill, "
        f"{unlearned} whose twin did not learn, {zoo_unlearned} of {len(found.healthy)} runs of the zoo that "
        "did not learn" + (f"; {found.skipped} cases that were not trained yet" if found.skipped else "")
    )


def in_words(found: Evaluation) -> str:
    """For the terminal."""
    rows = [HEAD, *(row.cells for row in numbers(found))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
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
            left = f"it leaves its twin's path at step {each.departure}, and the loss tells {told}"
            lines.append(f"{case(each)}: onset said to be {each.onset}; {left}")
    lines += [f"false alarm in the zoo, {each.kind}: {', '.join(each.verdict)}" for each in found.false_alarms]
    return lines + [
        f"false alarm on the twin of {case(each)}: {', '.join(each.twin_verdict)}" for each in found.alarmed_twins
    ]


def case(each: Patient) -> str:
    return f"{each.name}, {each.net} net, {each.dataset}, seed {each.seed}"


# --- picture --------------------------------------------------------------------------------------


def confusion_picture(found: Evaluation) -> Figure:
    """What each patient had (rows) and what was said first (columns); modes that were always right share a row."""
    confused = found.confusions()
    wrong, said = ({pair[side] for pair in confused} for side in (0, 1))
    others = len({each.name for each in found.ill} - wrong)
    last = f"{others} other modes" if wrong else f"all {others} modes"
    rows = [*(name for name in FAILURES if name in wrong), *([last] if others else [])]
    columns = ["right", *(name for name in (*FAILURES, UNSURE, "nothing") if name in said)]
    counts = np.zeros((len(rows), len(columns)), dtype=int)
    for each in found.ill:
        row = rows.index(each.name if each.name in wrong else last)
        counts[row, columns.index("right" if each.rank == 1 else each.said)] += 1
    figure = Figure(figsize=(4.6 + 0.42 * len(columns), 2.4 + 0.3 * len(rows)), layout="constrained", dpi=150)
    FigureCanvasAgg(figure)
    ax = figure.add_subplot()
    ax.set_title("{} of {} named first".format(*found.named()), fontsize="medium", loc="left")
    _matrix(ax, counts, rows, columns)
    return figure


def _matrix(ax, counts: np.ndarray, rows: list[str], columns: list[str]) -> None:
    """Squares with their numbers in them; blue where the name was right, orange where it was not."""
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
    ax.set(xlabel="said first", ylabel="what it was")


# --- page -----------------------------------------------------------------------------------------


def in_markdown(found: Evaluation, command: str, picture: str = "") -> str:
    """The page beside CONTRACT.md: conditions, numbers against goals, every miss, what the zoo was made of."""
    sections = [
        "# The clinic: how often is the diagnosis right?\n",
        _conditions(found, command),
        "## Numbers\n\n" + _table(HEAD, [row.cells for row in numbers(found)]),
        "\n".join(_wrapped(_sentence(text)) for text in (lead_in_words(found), left_out(found))),
        _judged(),
        "## What went wrong\n\n" + ("\n".join(f"- {line}" for line in misses(found)) or "Nothing."),
        f"![Confusion matrix]({picture})" if picture else "",
        "## Mode by mode\n\n" + _table(*_by_mode(found)),
        "## The healthy zoo\n\n" + _table(*_by_kind(found.healthy)) if found.healthy else "",
    ]
    return "\n\n".join(section.rstrip() for section in sections if section) + "\n"


def _conditions(found: Evaluation, command: str) -> str:
    seeds = sorted({each.seed for each in found.patients})
    played = len({each.name for each in found.patients})
    modes = "every mode" if played == len(FAILURES) else f"{played} of {len(FAILURES)} modes"
    zoo_runs = f", and {len(found.healthy)} healthy runs drawn with seed {PARTS[found.part].first_seed}"
    lines = [
        f"Made by `{command}` on {cpu_name()}, torch {torch.__version__}, one thread per run: {modes}, sick and "
        f"healthy, with seed {', '.join(map(str, seeds))}{zoo_runs if found.healthy else ''}. "
        "The diagnosis sees the instruments alone, never the recipe."
        + (f" **Not complete: {found.skipped} cases of this part were not trained yet.**" if found.skipped else ""),
        "Which runs set thresholds, and which judge them:",
    ]
    parts = [
        "- seeds 0 to 4, own nets: the thresholds were set on them; [CONTRACT.md](CONTRACT.md) is about these runs"
    ]
    for name, part in PARTS.items():
        nets = "; ".join(f"{dataset}: {', '.join(nets)}" for dataset, nets in part.nets.items())
        nets += " (its own and one other in turn)" if part.in_turn else ""
        here = " **This page.**" if name == found.part else ""
        parts.append(f"- `--part {name}`, seeds from {part.first_seed}, nets {nets}: {part.purpose}.{here}")
    return "\n\n".join(map(_wrapped, lines)) + "\n\n" + "\n".join(_wrapped(each, "  ") for each in parts)


JUDGED = (
    "A patient counts where its sick run lost at least half of what the mode says, and its healthy twin learned on the "
    "same net. A net is not asked of a mode whose fault or cure is about the entry that would change.",
    "- **named first**: the first name of the diagnosis is the mode that was played.",
    "- **place right**: the name is right, and the place is where the recipe put the fault (the field `where` of the "
    "mode's file). Only modes whose fault is in one place, and whose signature has to find it, are asked: {placed}.",
    "- **onset right**: the name is right, and the onset is not before the step at which the sick run leaves its "
    "twin's path (both have the same seed, and agree to the bit until then; one step early is allowed) and not after "
    "the step at which the loss beside the twin's tells (three times the first loss, twice the twin's, or a validation "
    "loss at 1.5 times its lowest). Not asked where the fault is there from the start and the loss never tells.",
    "- **lead time**: from the onset to that alarm of the loss. The diagnosis reads the whole run: this is the step it "
    "dates the failure to, and not when a watcher would have called.",
    "- **false alarm**: any name, or unsure, on a run that learned.",
)


def _judged() -> str:
    placed = ", ".join(f"`{mode.name}`" for mode in FAILURES.values() if mode.where)
    first, *rest = (text.format(placed=placed) for text in JUDGED)
    return "## How it is judged\n\n" + _wrapped(first) + "\n\n" + "\n".join(_wrapped(each, "  ") for each in rest)


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
    """What was said of these: 'first', or the name that came instead; empty where the net was not asked."""
    words = []
    for each in patients:
        if not each.counts:
            words.append("not ill" if not each.ill else "twin did not learn")
        else:
            words.append("first" if each.rank == 1 else f"**{each.said}**" + (", then right" if each.rank == 2 else ""))
    return "; ".join(dict.fromkeys(words))


def _by_kind(runs: list[Healthy]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    rows = []
    for kind in dict.fromkeys(each.kind for each in runs):
        own = [each for each in runs if each.kind == kind]
        learned = [each for each in own if each.learned]
        alarms = sum(bool(each.verdict) for each in learned)
        reached = spread([each.accuracy for each in learned]) if learned else ""
        rows.append((kind, str(len(own)), str(len(learned)), reached, str(alarms), zoo.in_words(kind)))
    return ("kind", "runs", "learned", "accuracy", "false alarms", "drawn from"), rows


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def _wrapped(text: str, indent: str = "") -> str:
    return "\n".join(textwrap.wrap(text, 118, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False))
