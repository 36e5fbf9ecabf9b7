"""The contract of every mode, over several seeds."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from labkit.diagnosis.study import Study, play
from labkit.drawing import markdown
from labkit.failures.catalogue import FAILURES
from labkit.recording.machine import cpu_name
from labkit.recording.measure import ACCURACY, MEASURES, Measure
from labkit.training import run_store
from labkit.training.parallel import check_jobs, spread


@dataclass(frozen=True)
class Outcome:
    """One mode, trained with one seed."""

    name: str
    seed: int
    fails: bool  # the sick run shows its signature and loses what the mode says
    named: bool  # and the diagnosis names it first
    cured: bool  # the cured run is clean, has learned, and is as good as the healthy one
    clean: bool  # the healthy run shows nothing and has learned
    score: dict[str, float | None]  # of the healthy, sick and cured run
    verdict: tuple[str, ...]  # what the diagnosis said of the sick run, the first cause first
    seconds: float

    @property
    def kept(self) -> bool:
        """Is the whole contract kept?"""
        return self.fails and self.named and self.cured and self.clean


def contract(
    names: Sequence[str] | None = None, *, seeds: Sequence[int] = range(5), dataset: str = "mnist", jobs: int = 1
) -> list[Outcome]:
    """Train every mode that this data set has with every seed, in `jobs` processes."""
    check_jobs(jobs)
    names = [name for name in names or FAILURES if FAILURES[name].on(dataset)]
    # Seed by seed, so that modes that share a healthy twin find it in the memory of their process.
    cases = [(name, seed, dataset) for seed in seeds for name in names]
    return list(spread(examine, cases, jobs, unit="study"))


def examine(name: str, seed: int, dataset: str) -> Outcome:
    """Train one mode with one seed, and check its contract."""
    mode = FAILURES[name]
    return judge(play(mode, mode.recipes(dataset=dataset, seed=seed), run_store.in_memory, progress=False))


def judge(study: Study) -> Outcome:
    return Outcome(
        name=study.name,
        seed=study.recipes["sick"].seed,
        fails=study.fails,
        named=study.named,
        cured=study.is_cured,
        clean=study.is_clean,
        score={role: run.score for role, run in study.runs.items()},
        verdict=tuple(found.name for found in study.diagnoses),
        seconds=sum(run.facts["seconds"] for run in {id(run): run for run in study.runs.values()}.values()),
    )


def table(outcomes: list[Outcome]) -> list[tuple[str, ...]]:
    """One row per mode: how often it failed, was named, was cured and had a clean twin; accuracies; seconds."""
    rows = [("mode", "fails", "named", "cured", "twin clean", "healthy", "sick", "cured to", "seconds")]
    for name in dict.fromkeys(each.name for each in outcomes):
        own = [each for each in outcomes if each.name == name]
        counts = (f"{sum(getattr(each, test) for each in own)}/{len(own)}" for test in CHECKS)
        measure = FAILURES[name].measure
        levels = (low_to_high([each.score[role] for each in own], measure) for role in ("healthy", "sick", "cured"))
        rows.append((name, *counts, *levels, f"{statistics.median(each.seconds for each in own):.1f}"))
    return rows


CHECKS = ("fails", "named", "cured", "clean")


def low_to_high(values: list[float | None], measure: Measure = MEASURES[ACCURACY]) -> str:
    """'93-95 %', '0.59-0.62 nats', or one number where both are the same; '-' where nothing was validated."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    low, high = (f"{value:.2f}" if measure.nats else f"{100 * value:.0f}" for value in (min(known), max(known)))
    return f"{low if low == high else f'{low}-{high}'} {'nats' if measure.nats else '%'}"


def outcomes_as_text(outcomes: list[Outcome]) -> str:
    """The table for the terminal, and the contracts that were broken."""
    return "\n".join([*in_columns(table(outcomes)), "", summary(outcomes), *broken(outcomes)])


def in_columns(rows: list[tuple[str, ...]]) -> list[str]:
    """Rows of cells as lines, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def summary(outcomes: list[Outcome]) -> str:
    modes, kept = len({each.name for each in outcomes}), sum(each.kept for each in outcomes)
    return f"{modes} modes, {len(outcomes)} studies, {kept} kept the whole contract"


def broken(outcomes: list[Outcome]) -> list[str]:
    """A line for each study that did not keep the contract."""
    lines = []
    for each in outcomes:
        if not each.kept:
            wrong = ", ".join(f"not {test}" for test in CHECKS if not getattr(each, test))
            found = ", ".join(each.verdict) or "nothing"
            text = FAILURES[each.name].measure.text
            levels = ", ".join(f"{role} {text(value)}" for role, value in each.score.items())
            lines.append(f"{each.name}, seed {each.seed}: {wrong}; diagnosed: {found}; {levels}")
    return lines


def in_markdown(outcomes: list[Outcome], dataset: str) -> str:
    """The same as a page of the documentation, with the conditions."""
    head, *rows = table(outcomes)
    seeds = sorted({each.seed for each in outcomes})
    lines = [
        "# The contract: results",
        "",
        "Every mode, trained with several seeds: does the sick run fail, is it named first by the diagnosis, does",
        "the cure work, and does the healthy twin show nothing? Scores are of the validation set (accuracy, loss per",
        "token in nats, or the share of legible samples), lowest and highest over the seeds; seconds are the median",
        "for the healthy, the sick and the cured run together.",
        "",
        "The thresholds were set on these same seeds, so this says that the modes are reproducible, not how well the",
        "diagnosis does on runs it has not seen: that is what `labkit clinic` without `--contract` is for. In most",
        "modes the proven cure undoes the fault, and its run is then the healthy twin's own.",
        "",
        f"Made by `labkit clinic --contract --seeds {len(seeds)}"
        + (f" --first {seeds[0]}" if seeds[0] else "")
        + (f" --dataset {dataset}" if dataset != "mnist" else "")
        + f"` on {cpu_name()}, torch {torch.__version__}, one thread per run.",
        "",
        *markdown.table(head, [(f"`{row[0]}`", *row[1:]) for row in rows]),
        "",
        summary(outcomes) + ".",
        *(f"- {line}" for line in broken(outcomes)),
    ]
    return "\n".join(lines) + "\n"
