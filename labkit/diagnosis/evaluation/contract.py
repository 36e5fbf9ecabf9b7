"""Many seeds: does every mode keep its contract?"""

import contextlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import joblib
import torch
from tqdm.auto import tqdm

from labkit.cli.bench import cpu_name
from labkit.failures.mode import FailureMode
from labkit.failures import FAILURES
from labkit.training.rules import RecipeError
from labkit.training.recipe import COUNT, Recipe
from labkit.recording.run import Run
from labkit.diagnosis.study import Study, play


@dataclass(frozen=True)
class Outcome:
    """One mode, played with one seed."""

    name: str
    seed: int
    fails: bool  # the sick run shows its signature and loses what the mode says
    named: bool  # and the diagnosis names it first
    cured: bool  # the cured run is clean, has learned, and is as good as the healthy one
    clean: bool  # the healthy run shows nothing and has learned
    accuracy: dict[str, float]  # of the healthy, sick and cured run
    verdict: tuple[str, ...]  # what the diagnosis said of the sick run, the first cause first
    seconds: float

    @property
    def kept(self) -> bool:
        """Is the whole contract kept?"""
        return self.fails and self.named and self.cured and self.clean


def contract(
    names: Sequence[str] | None = None, *, seeds: Sequence[int] = range(5), dataset: str = "mnist", jobs: int = 1
) -> list[Outcome]:
    """Every mode that this data set has, with every seed; spread over so many processes."""
    if problem := COUNT.problem(jobs):
        raise RecipeError(f"jobs: {problem}")
    names = [name for name in names or FAILURES if FAILURES[name].on(dataset)]
    # Seed by seed, so that the modes that share a healthy twin find it trained already.
    work = [joblib.delayed(examine)(name, seed, dataset) for seed in seeds for name in names]
    done = joblib.Parallel(n_jobs=jobs, return_as="generator")(work)
    return list(tqdm(done, total=len(work), unit="study", leave=False, disable=None))


def examine(name: str, seed: int, dataset: str) -> Outcome:
    """Play one mode with one seed, and judge it."""
    mode = FAILURES[name]
    return judge(play_with_twins(mode, mode.recipes(dataset=dataset, seed=seed)))


def play_with_twins(mode: FailureMode, recipes: dict[str, Recipe], known: dict[Recipe, Run] | None = None) -> Study:
    """The study of these recipes; healthy runs of one seed are kept in this process: many modes share theirs."""
    known = {recipe: run for recipe, run in _twins.items() if recipe.seed == recipes["healthy"].seed} | (known or {})
    study = play(mode, recipes, known, progress=False)
    _twins.clear()
    _twins.update({recipe: run for recipe, run in known.items() if recipe not in (recipes["sick"], recipes["cured"])})
    _twins[recipes["healthy"]] = study.healthy
    return study


_twins: dict[Recipe, Run] = {}


def judge(study: Study) -> Outcome:
    return Outcome(
        name=study.name,
        seed=study.recipes["sick"].seed,
        fails=study.fails,
        named=study.named,
        cured=study.is_cured,
        clean=study.is_clean,
        accuracy={role: run.accuracy for role, run in study.runs.items()},
        verdict=tuple(found.name for found in study.diagnoses),
        seconds=sum(run.facts["seconds"] for run in {id(run): run for run in study.runs.values()}.values()),
    )


def table(outcomes: list[Outcome]) -> list[tuple[str, ...]]:
    """One row per mode: how often it failed, was named, was cured and had a clean twin; accuracies; seconds."""
    rows = [("mode", "fails", "named", "cured", "twin clean", "healthy", "sick", "cured to", "seconds")]
    for name in dict.fromkeys(each.name for each in outcomes):
        own = [each for each in outcomes if each.name == name]
        counts = (f"{sum(getattr(each, test) for each in own)}/{len(own)}" for test in CHECKS)
        levels = (spread([each.accuracy[role] for each in own]) for role in ("healthy", "sick", "cured"))
        rows.append((name, *counts, *levels, f"{statistics.median(each.seconds for each in own):.1f}"))
    return rows


CHECKS = ("fails", "named", "cured", "clean")


def spread(values: list[float]) -> str:
    """'93-95 %', or one number where all are the same."""
    low, high = (f"{100 * value:.0f}" for value in (min(values), max(values)))
    return f"{low} %" if low == high else f"{low}-{high} %"


def in_words(outcomes: list[Outcome]) -> str:
    """The table for the terminal, and what was broken."""
    rows = table(outcomes)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, "", summary(outcomes), *broken(outcomes)])


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
            levels = ", ".join(f"{role} {value:.1%}" for role, value in each.accuracy.items())
            lines.append(f"{each.name}, seed {each.seed}: {wrong}; diagnosed: {found}; {levels}")
    return lines


def in_markdown(outcomes: list[Outcome], dataset: str) -> str:
    """The same as a page of the documentation, with its conditions."""
    head, *rows = table(outcomes)
    seeds = sorted({each.seed for each in outcomes})
    lines = [
        "# The contract, kept",
        "",
        "Every mode, played with several seeds: does the sick run fail, is it named first by the blind diagnosis, does",
        "the cure cure, and does the healthy twin show nothing? Accuracies are of the validation set, lowest and",
        "highest over the seeds; seconds are the median for the healthy, the sick and the cured run together.",
        "",
        "The thresholds were set on these very seeds, so this says that the modes are reproducible, not how well the",
        "diagnosis does on runs it has not seen: that is what `labkit clinic` without `--contract` is for. In most",
        "modes the proven cure undoes the fault, and its run is then the healthy twin's own.",
        "",
        f"Made by `labkit clinic --contract --seeds {len(seeds)}"
        + (f" --first {seeds[0]}" if seeds[0] else "")
        + (f" --dataset {dataset}" if dataset != "mnist" else "")
        + f"` on {cpu_name()}, torch {torch.__version__}, one thread per run.",
        "",
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| `" + row[0] + "` | " + " | ".join(row[1:]) + " |" for row in rows),
        "",
        summary(outcomes) + ".",
        *(f"- {line}" for line in broken(outcomes)),
    ]
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def on_cluster(address: str | None):
    """Spread the work over a Dask cluster inside, where an address is given; else over processes of this machine."""
    if address is None:
        yield
        return
    try:
        from dask.distributed import Client
    except ModuleNotFoundError:
        raise RecipeError("--dask needs the extra 'cluster' (pip install \"dask[distributed]\")") from None
    with Client(address), joblib.parallel_config(backend="dask"):
        yield
