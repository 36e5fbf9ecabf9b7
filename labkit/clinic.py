"""Many seeds, many nets, blind: does every mode keep its contract, and how often is the diagnosis right?"""

import contextlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import joblib
import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from tqdm.auto import tqdm

from labkit import zoo
from labkit.bench import cpu_name
from labkit.diagnose import diagnose
from labkit.failure_mode import FailureMode
from labkit.failures import FAILURES
from labkit.knob import RecipeError
from labkit.recipe import COUNT, Recipe
from labkit.run import Run
from labkit.study import Study, play
from labkit.train import train


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


def play_with_twins(mode: FailureMode, recipes: dict[str, Recipe]) -> Study:
    """The study of these recipes; healthy runs of one seed are kept in this process: many modes share theirs."""
    known = {recipe: run for recipe, run in _twins.items() if recipe.seed == recipes["healthy"].seed}
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


# --- blind ----------------------------------------------------------------------------------------
# Thresholds were set on the seeds below FIRST_UNSEEN and on each mode's own net. Judged is on other seeds, and on nets
# that no threshold has seen: twice as wide, and five eighths as wide.

FIRST_UNSEEN = 100
NETS = {
    "own": lambda recipe: {},
    "wider": lambda recipe: {"width": 2 * recipe.width},
    "narrower": lambda recipe: {"width": max(1, 5 * recipe.width // 8)},
}


@dataclass(frozen=True)
class Patient:
    """One sick run, and what the diagnosis said of it."""

    name: str
    net: str
    dataset: str
    seed: int
    ill: bool  # did it lose at least half of what the mode says?
    verdict: tuple[str, ...]
    onset: int | None
    place: str

    @property
    def rank(self) -> int | None:
        """1 where its name came first; None where it did not come."""
        return self.verdict.index(self.name) + 1 if self.name in self.verdict else None


@dataclass(frozen=True)
class Healthy:
    """One healthy run of the zoo, and what the diagnosis said of it."""

    kind: str
    learned: bool
    accuracy: float
    verdict: tuple[str, ...]


def examine_blind(name: str, net: str, dataset: str, seed: int) -> Patient:
    mode = FAILURES[name]
    recipes = mode.recipes(dataset=dataset, seed=seed)
    pair = {role: recipes[role].but(**NETS[net](recipes[role])) for role in ("healthy", "sick")}
    study = play_with_twins(mode, pair | {"cured": pair["healthy"]})
    first = study.diagnoses[0] if study.diagnoses else None
    return Patient(
        name=name,
        net=net,
        dataset=dataset,
        seed=seed,
        ill=study.harm >= mode.harm / 2,
        verdict=tuple(found.name for found in study.diagnoses),
        onset=first.onset if first else None,
        place=first.place if first else "",
    )


def examine_healthy(kind: str, recipe: Recipe) -> Healthy:
    run = train(recipe, progress=False)
    enough = zoo.ENOUGH.get(kind, zoo.USUAL)
    verdict = tuple(found.name for found in diagnose(run))
    return Healthy(kind, run.facts["stopped"] is None and run.accuracy >= enough, run.accuracy, verdict)


@dataclass(frozen=True)
class Evaluation:
    """What a blind evaluation found."""

    patients: list[Patient]
    healthy: list[Healthy]

    @property
    def counted(self) -> list[Healthy]:
        """The runs of the zoo that really learned."""
        return [each for each in self.healthy if each.learned]

    @property
    def false_alarms(self) -> list[Healthy]:
        return [each for each in self.counted if each.verdict]

    def named(self, within: int = 1, net: str | None = None) -> tuple[int, int]:
        """(how often the right name was among the first `within`, of how many that fell ill)."""
        asked = [each for each in self.patients if each.ill and net in (None, each.net)]
        return sum(each.rank is not None and each.rank <= within for each in asked), len(asked)

    @property
    def unsure(self) -> int:
        return sum(each.verdict[:1] == ("unsure",) for each in self.patients if each.ill)

    def confusions(self) -> list[tuple[str, str, int]]:
        """(the truth, what was said first instead, how often), the most frequent first."""
        counts: dict[tuple[str, str], int] = {}
        for each in self.patients:
            if each.ill and each.rank != 1:
                pair = (each.name, each.verdict[0] if each.verdict else "nothing")
                counts[pair] = counts.get(pair, 0) + 1
        return [(*pair, count) for pair, count in sorted(counts.items(), key=lambda item: -item[1])]


def blind(*, seeds: int = 1, healthy: int = 200, dataset: str = "mnist", jobs: int = 1, names=None) -> Evaluation:
    """Every mode on unseen seeds and unseen nets, and a zoo of healthy runs."""
    if problem := COUNT.problem(jobs):
        raise RecipeError(f"jobs: {problem}")
    names = [name for name in names or FAILURES if FAILURES[name].on(dataset)]
    ill = [(name, net, dataset, FIRST_UNSEEN + seed) for seed in range(seeds) for net in NETS for name in names]
    zoo_runs = zoo.healthy_zoo(healthy, seed=FIRST_UNSEEN)
    work = [joblib.delayed(examine_blind)(*each) for each in ill]
    work += [joblib.delayed(examine_healthy)(*each) for each in zoo_runs]
    done = joblib.Parallel(n_jobs=jobs, return_as="generator")(work)
    results = list(tqdm(done, total=len(work), unit="run", leave=False, disable=None))
    return Evaluation(results[: len(ill)], results[len(ill) :])


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


def interval(count: int, of: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's 95 % interval of a share; it is right for shares near 0 too."""
    if of == 0:
        return 0.0, 1.0
    share, scale = count / of, 1 + z * z / of
    centre = (share + z * z / (2 * of)) / scale
    half = z * ((share * (1 - share) + z * z / (4 * of)) / of) ** 0.5 / scale
    return max(0.0, centre - half), min(1.0, centre + half)


def confusion_picture(found: Evaluation) -> Figure:
    """What each patient had (rows) and what was said first (columns); only the modes that were ever confused."""
    confused = [(truth, said) for truth, said, _ in found.confusions()]
    rows = sorted({truth for truth, _ in confused}) or ["none was confused"]
    columns = sorted({*rows, *(said for _, said in confused)})
    counts = np.zeros((len(rows), len(columns)))
    for each in found.patients:
        said = each.verdict[0] if each.verdict else "nothing"
        if each.ill and each.name in rows and said in columns:
            counts[rows.index(each.name), columns.index(said)] += 1
    figure = Figure(figsize=(2 + 0.35 * len(columns), 2 + 0.3 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.add_subplot()
    ax.imshow(counts, cmap="cividis", aspect="auto")
    for row, column in zip(*np.nonzero(counts), strict=True):
        ax.text(column, row, f"{counts[row, column]:.0f}", ha="center", va="center", color="white", fontsize="small")
    ax.set_xticks(range(len(columns)), columns, rotation=90, fontsize="small")
    ax.set_yticks(range(len(rows)), rows, fontsize="small")
    right, of = found.named()
    ax.set_title(f"{right} of {of} named first; the others:", fontsize="medium", loc="left")
    return figure


def evaluation_in_words(found: Evaluation) -> str:
    lines = []
    for title, within, net in [
        ("named first", 1, None),
        ("named among the first two", 2, None),
        *((f"  first, {net} net", 1, net) for net in NETS),
    ]:
        count, of = found.named(within, net)
        lines.append(f"{title:28}{count:5} of {of:5}  {count / max(1, of):6.1%}")
    alarms, of = len(found.false_alarms), len(found.counted)
    low, high = interval(alarms, of)
    lines += [
        f"{'unsure':28}{found.unsure:5}",
        f"{'false alarms':28}{alarms:5} of {of:5}  {alarms / max(1, of):6.1%}  (95 %: {low:.1%} to {high:.1%})",
        f"{'did not fall ill':28}{sum(not each.ill for each in found.patients):5}",
        f"{'zoo runs that did not learn':28}{len(found.healthy) - of:5}",
        "",
    ]
    lines += [f"{truth} was called {said} ({count})" for truth, said, count in found.confusions()]
    lines += [f"false alarm on {each.kind}: {', '.join(each.verdict)}" for each in found.false_alarms]
    return "\n".join(lines)
