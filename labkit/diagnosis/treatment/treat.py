"""`labkit.treat`: run a program, diagnose it, try prescriptions as experiments, and prove the cure."""

import math
import re
from collections.abc import Sequence
from typing import Any

from labkit.diagnosis.diagnose import Diagnosis
from labkit.diagnosis.treatment.answer import Treatment
from labkit.diagnosis.treatment.arms import Arm, in_an_arm, runner_for
from labkit.diagnosis.treatment.experiment import DEEPEST, Experiment, Listener, OutOfBudget
from labkit.errors import RecipeError
from labkit.training.parallel import check_jobs

OUT_OF_BUDGET = "the budget is used up"
RUNS = 60  # the usual budget; 51 faults of foreign programs needed 1 to 34, the median 11
SEEDS = (0, 1, 2, 3, 4)  # three for a clear effect, up to five for one that is not


def treat(
    program: Any,
    *,
    budget: int | str = RUNS,
    seeds: Sequence[int] = SEEDS,
    measure: str | None = None,
    jobs: int = 1,
    progress: bool = True,
    on_event: Listener | None = None,
) -> Treatment:
    """Find out what is wrong with a training program, and a change that is seen to cure it.

        def program(watch):                       # or program(watch, seed)
            model, optimizer = build()
            with watch(model, optimizer, probe=(x, y)) as record:
                ...                               # your own loop, with record.step(loss, batch=(x, y))
                record.validation(loss=..., accuracy=...)

        print(labkit.treat(program))

    `program` may also be the path of a script, "script.py" or "script.py:function". It is run untreated and diagnosed.
    Prescriptions for the diagnosis are then tried where it calls `watch(model, optimizer, ...)`, and the best is run on
    three to five seeds beside the untreated program and a placebo. It is a cure if it is better than both, beyond
    chance and by an amount that matters, by your own validation measure (`measure="f1"`, or "-error" where lower is
    better; without one the first that is not a loss, then the loss).

    Each run is a process of its own: your model, data and random numbers do not change, and one that crashes or
    hangs is an arm that failed. But files that the program writes, such as checkpoints, are written by every arm.
    `budget` is a number of runs, or a time such as "90s" or "10min"; `jobs` processes run at once. After Ctrl-C the
    answer has what is known by then. `on_event(arm, event)` is called with what happens.
    """
    if in_an_arm():
        raise RecipeError("treat: the program calls labkit.treat itself; put that under `if __name__ == '__main__':`")
    check_jobs(jobs)
    runs, seconds = budget_of(budget)
    checked_seeds(seeds)
    experiment = Experiment(
        runner_for(program), tuple(seeds), runs, seconds, jobs, measure, on_event or (lambda arm, event: None), progress
    )
    ending = ""
    best: tuple[str, ...] = ()
    try:
        best = find_and_prove(experiment)
    except KeyboardInterrupt:
        ending = "interrupted"
    except OutOfBudget:
        ending = OUT_OF_BUDGET
    else:
        ending = "" if experiment.searched else OUT_OF_BUDGET
    finally:
        experiment.bar.close()
    first = Arm((), experiment.seeds[0])
    if first not in experiment.results:
        raise KeyboardInterrupt
    return Treatment.of(experiment, best or experiment.leading or best_known(experiment), ending)


def find_and_prove(experiment: Experiment) -> tuple[str, ...]:
    """The names of the prescriptions that were found; empty where nothing helped or nothing is wrong."""
    first = Arm((), experiment.seeds[0])
    (untreated,) = experiment.run([first])
    if untreated.run is None:
        raise RecipeError(
            f"treat: the program ended before anything was recorded ({untreated.status}: {untreated.why}). Expected a "
            "function that calls watch(model, optimizer) and trains inside `with watch(...) as record:`"
        )
    found = experiment.diagnoses(first)
    if not found:
        return ()
    try:
        best = searched(experiment, found)
    except OutOfBudget:
        experiment.searched = False
        best = best_known(experiment)
    return experiment.prove(best) if best else ()


def searched(experiment: Experiment, found: list[Diagnosis]) -> tuple[str, ...]:
    """The best that was found, on one seed: for these diagnoses, then for those that the treated program shows."""
    best: tuple[str, ...] = ()
    for _ in range(DEEPEST):
        better = experiment.search(best, found) or (None if best else experiment.unmasked(found))
        if better is None:
            break
        best = better
        found = experiment.diagnoses(Arm(best, experiment.seeds[0]))
        if not found:
            break
    return experiment.simplest(best)


def best_known(experiment: Experiment) -> tuple[str, ...]:
    """What was best when the experiment was cut short."""
    best = experiment.best_so_far()
    return best.arm.names if best else ()


def budget_of(budget: int | str) -> tuple[float, float]:
    """(runs, seconds), one of them without a limit."""
    if isinstance(budget, int) and not isinstance(budget, bool) and budget >= 1:
        return budget, math.inf
    given = re.fullmatch(r"\s*([0-9.]+)\s*(s|min|h)\s*", budget) if isinstance(budget, str) else None
    if given:
        return math.inf, float(given[1]) * {"s": 1, "min": 60, "h": 3600}[given[2]]
    raise RecipeError(
        f"budget: expected a number of runs such as 60, or a time such as '90s' or '10min', got {budget!r}"
    )


def checked_seeds(seeds: Sequence[int]) -> None:
    if len(set(seeds)) < 3 or not all(isinstance(seed, int) for seed in seeds):
        raise RecipeError(
            f"seeds: expected at least three different whole numbers, to tell a cure from luck, got {seeds!r}"
        )
