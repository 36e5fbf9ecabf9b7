"""The experiment: an untreated arm, a placebo, treated arms with the same seeds; lost arms are dropped early."""

import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

import numpy as np
from tqdm.auto import tqdm

from labkit.diagnosis.diagnose import UNSURE, Diagnosis, diagnose
from labkit.diagnosis.treatment.arms import DONE, LEAST, PATIENCE, REFUSED, Arm, Forked, Order, Result, Runner, Script
from labkit.diagnosis.treatment.intervention import LOST, Limits
from labkit.diagnosis.treatment.judgement import (
    MATERIAL,
    Effect,
    Measure,
    chosen,
    compared,
    finite,
    floor_of,
    least_of,
)
from labkit.diagnosis.treatment.prescriptions import rates
from labkit.diagnosis.treatment.prescriptions.catalogue import MOST_IN_WAVE, PLACEBO, answers_to, candidates, named
from labkit.recording.run import Run
from labkit.tools.lr_finder import with_suggestion
from labkit.training.parallel import spread

HALF_A_WAVE = MOST_IN_WAVE // 2
DEEPEST = 3  # faults that are peeled one after the other
FINALISTS = 3  # arms that go on to the second seed
CLOSE = 0.9  # a finalist has gained at least this share of what the best arm has
PROOF = 7  # runs that are kept for the proof: a placebo, then two more seeds of untreated, placebo and the best arm
ALONE = 0.25  # the least share that one run each may prove: more than healthy programs differ by between seeds
AS_GOOD = 0.05  # a simpler arm is preferred if it loses less than this share
EXPENSIVE = 4  # arms that cost more runs than this are tried where a shorter one of their kind helped, but not enough

Event = dict
Listener = Callable[[Arm, Event], object]


class OutOfBudget(Exception):
    """No run is left; what is known is reported."""


@dataclass
class Experiment:
    """All arms that were run, and how they compare."""

    runner: Runner
    seeds: Sequence[int]
    runs: float = math.inf  # how many are allowed
    seconds: float = math.inf
    jobs: int = 1
    asked: str | None = None  # the measure that the user named
    listener: Listener = lambda arm, event: None
    progress: bool = True
    results: dict[Arm, Result] = field(default_factory=dict)
    order: list[Arm] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.began = time.monotonic()
        self.spent = 0
        self.proving = False  # or still searching, with runs kept for the proof
        self.leading: tuple[str, ...] = ()  # the arm that is being proven
        self.searched = True  # to the end, or until the budget was used up
        self.stirred = False  # the program seeds itself, and is given other random numbers after the call of watch
        self.bar = tqdm(unit="run", leave=False, disable=None if self.progress else True)

    # --- running ---

    def run(self, arms: Sequence[Arm]) -> list[Result]:
        """The results of these arms; those that were run before are not run again."""
        new = [arm for arm in dict.fromkeys(arms) if arm not in self.results]
        affordable: list[Arm] = []
        for arm in new:
            if self.spent + sum(each.repeats for each in affordable) + arm.repeats > self.runs - self._kept(self.runs):
                break
            affordable.append(arm)
        for result in self._performed([self._order(arm) for arm in affordable]):
            self.results[result.arm] = result
            self.order.append(result.arm)
            if result.status != REFUSED:
                self.spent += result.arm.repeats
                self.bar.update(result.arm.repeats)
            self.listener(result.arm, {"kind": "end", "status": result.status, "why": result.why})
            if time.monotonic() - self.began > self.seconds - self._kept(self.seconds, self._one_run() / self.jobs):
                raise OutOfBudget
        if len(affordable) < len(new):
            raise OutOfBudget
        return [self.results[arm] for arm in arms]

    def _kept(self, budget: float, price: float = 1) -> float:
        """What the search leaves of a budget for the proof: at most half of it."""
        return 0 if self.proving or math.isinf(budget) else min(PROOF * price, budget // 2)

    def _one_run(self) -> float:
        """Seconds that the untreated program takes."""
        first = self.results.get(Arm((), self.seeds[0]))
        return first.seconds if first else 0.0

    def _performed(self, orders: list[Order]):
        if isinstance(self.runner, Script) and self.jobs > 1:  # plain data: also to processes of a Dask cluster
            yield from spread(self.runner, [(each,) for each in orders], self.jobs, in_order=False)
            return

        def one(order: Order) -> Result:
            self.listener(order.arm, {"kind": "start"})
            return self.runner(order, lambda event: self.listener(order.arm, event))

        if self.jobs == 1 or not isinstance(self.runner, Forked):  # in this process random numbers are shared
            yield from map(one, orders)
            return
        # Threads: each waits for a process of its own, and nothing has to be pickled.
        self.runner.stop = threading.Event()
        with ThreadPoolExecutor(self.jobs) as pool:
            under_way = [pool.submit(one, order) for order in orders]
            try:
                for done in as_completed(under_way):
                    yield done.result()
            except BaseException:  # Ctrl-C, or the budget is used up: arms that are under way end with it
                self.runner.stop.set()
                pool.shutdown(cancel_futures=True)
                raise

    def _order(self, arm: Arm) -> Order:
        first = self.results.get(Arm((), self.seeds[0]))
        if first is None:
            return Order(arm, seconds=self.seconds if math.isfinite(self.seconds) else None)
        limits = Limits()
        if arm.names and arm.repeats == 1 and not arm.is_placebo and arm.seed == self.seeds[0]:
            best = self.best_so_far()
            measure = self.measure
            limits = Limits(
                measure.name, measure.sign, measure.curve(first.run), measure.curve(best.run) if best else None
            )
        steps = len(first.run) * first.run.facts.get("every", 1) if first.run else 0
        limit = max(LEAST, PATIENCE * first.seconds * arm.repeats)
        left = self.seconds - (time.monotonic() - self.began)
        stirred = self.stirred and arm.seed != self.seeds[0]
        return Order(arm, steps, limits, min(limit, max(1.0, left)), stirred)

    # --- reading ---

    @property
    def measure(self) -> Measure:
        return chosen(self.results.values(), self.asked)

    @property
    def floor(self) -> float:
        return floor_of(self.measure, list(self.results.values()))

    def score(self, arm: Arm) -> float:
        return self.measure.score(self.results[arm])

    def scores(self, names: tuple[str, ...]) -> dict[int, float]:
        """By seed."""
        arms = [arm for arm in self.order if arm.names == names]
        return {arm.seed: self.score(arm) for arm in arms if self.results[arm].why != LOST}

    def gain(self, names: tuple[str, ...], over: tuple[str, ...] = ()) -> float:
        """On the first seed, as a share of what the better arm has learned; worse than nothing counts as nothing."""
        seed, floor = self.seeds[0], self.floor
        one, other = finite(self.score(Arm(names, seed)), floor), finite(self.score(Arm(over, seed)), floor)
        learned = one - floor
        least = least_of(self.measure, floor)
        return (one - max(other, floor)) / max(learned, least) if learned > 0 else 0.0

    def effect(self, names: tuple[str, ...], over: tuple[str, ...] = ()) -> Effect:
        floor = self.floor
        return compared(self.scores(names), self.scores(over), floor, least_of(self.measure, floor))

    def best_so_far(self) -> Result | None:
        """Of the treated arms on the first seed that gained something."""
        done = [
            each
            for each in self.results.values()
            if each.counts and is_treated(each.arm) and each.arm.seed == self.seeds[0]
        ]
        done = [each for each in done if self.gain(each.arm.names) >= MATERIAL]
        return max(done, key=self.measure.score, default=None)

    def diagnoses(self, arm: Arm) -> list[Diagnosis]:
        run = self.results[arm].run
        return diagnose(run, strict=False) if run is not None else []

    @property
    def repeats_itself(self) -> bool:
        """Is the run the same for every seed? Treated arms tell: untreated, a program may not move at all."""
        groups: dict[tuple[str, ...], list[Run | None]] = {}
        for arm in self.order:
            if is_treated(arm) and self.results[arm].counts:
                groups.setdefault(arm.names, []).append(self.results[arm].run)
        several = [runs for runs in groups.values() if len(runs) > 1]
        return bool(several) and all(same(runs[0], each) for runs in several for each in runs[1:])

    # --- searching ---

    def search(self, base: tuple[str, ...], found: Sequence[Diagnosis]) -> tuple[str, ...] | None:
        """The best arm with one prescription more than the base, for these diagnoses; None where none helps."""
        for wave in candidates(found, base):
            tried = self._try(base, self._with_found_rate(base, wave), {each.name for each in found})
            if best := self._best(base, tried):
                return best
        return None

    def unmasked(self, found: Sequence[Diagnosis]) -> tuple[str, ...] | None:
        """Where nothing helps alone: an arm may show a fault that the first one hid, and both treated may help."""
        known = {each.name for each in found}
        for arm in [
            arm for arm in self.order if is_treated(arm) and len(arm.names) == 1 and named(arm.names[0]).price == 1
        ]:
            new = [each for each in self.diagnoses(arm)[:1] if each.name not in known and each.name != UNSURE]
            if not new or not (names := answers_to(new[0])):
                continue
            known.add(new[0].name)
            tried = self._try(arm.names, [name for name in names if name not in arm.names][:HALF_A_WAVE])
            if best := self._best((), tried):
                return best
        return None

    def _try(self, base: tuple[str, ...], names: Sequence[str], found: Collection[str] = ()) -> list[tuple[str, ...]]:
        """Run one arm for each name, cheap ones first; longer ones where these do not cure or where they are meant.

        Longer training makes most programs better. Beside what has helped it is no second cure, unless the diagnosis
        is that training ended too early.
        """
        arms, seed = [(*base, name) for name in names], self.seeds[0]
        single = [each for each in arms if named(each[-1]).price == 1]
        self.run([Arm(each, seed) for each in single])
        best = self._best(base, single)
        meant = any(named(each[-1]).price > 1 and named(each[-1]).answers[0] in found for each in arms)
        if meant or (not base and (best is None or self.diagnoses(Arm(best, seed)))):
            longer = [each for each in arms if 1 < named(each[-1]).price <= EXPENSIVE]
            self.run([Arm(each, seed) for each in longer])
            if any(self.gain(each, base) > MATERIAL / 2 and self.diagnoses(Arm(each, seed)) for each in longer):
                self.run([Arm(each, seed) for each in arms if named(each[-1]).price > EXPENSIVE])
        return [each for each in arms if Arm(each, seed) in self.results]

    def _best(self, base: tuple[str, ...], tried: Sequence[tuple[str, ...]]) -> tuple[str, ...] | None:
        seed = self.seeds[0]
        done = [each for each in tried if self.results[Arm(each, seed)].status == DONE]
        better = [each for each in done if self.gain(each, base) >= MATERIAL]
        return max(better, key=lambda each: (self.score(Arm(each, seed)), -len(each)), default=None)

    def _with_found_rate(self, base: tuple[str, ...], names: list[str]) -> list[str]:
        """Before learning rates are tried, a range test finds one: the program itself with a rising learning rate."""
        if not any(name.startswith(rates.TIMES) for name in names):
            return names
        arm = Arm((*base, rates.RANGE_TEST.name), self.seeds[0])
        (result,) = self.run([arm])
        factor = found_factor(result.run, self._order(arm).steps)
        return names if factor is None else [rates.rate_times(factor).name, *names]

    # --- proving ---

    def finalists(self, best: tuple[str, ...]) -> list[tuple[str, ...]]:
        """The best arm, and others on the first seed that are about as good, if the budget has room for them."""
        seed, floor = self.seeds[0], self.floor
        if self.runs - self.spent < PROOF + FINALISTS - 1:
            return [best]
        start = max(finite(self.score(Arm((), seed)), floor), floor)
        enough = start + CLOSE * (self.score(Arm(best, seed)) - start)
        arms = [arm.names for arm in self.order if arm.seed == seed and is_treated(arm) and self.results[arm].counts]
        arms = [each for each in arms if each != best and len(each) <= len(best)]
        arms = [each for each in arms if self.score(Arm(each, seed)) >= enough and self.gain(each) >= MATERIAL]
        return [best, *sorted(arms, key=lambda each: -self.score(Arm(each, seed)))[: FINALISTS - 1]]

    def prove(self, best: tuple[str, ...]) -> tuple[str, ...]:
        """Run the finalists on more seeds beside untreated and placebo; each seed drops half. Returns the winner."""
        self.proving = True
        remaining = self.finalists(best)
        self.leading = remaining[0]
        placebo = (PLACEBO.name,)
        self.run([Arm(placebo, self.seeds[0])])
        for number, seed in enumerate(self.seeds[1:], start=1):
            if number >= 3 and self.proven(remaining[0]):
                break
            pair = [Arm((), seed), Arm(remaining[0], seed)]
            self.run(pair)
            if self.repeats_itself and not self.stirred:
                self.stirred = True
                for arm in pair:
                    self.order.remove(arm)
                    del self.results[arm]
                self.run(pair)
            if self.repeats_itself:
                break
            self.run([Arm(placebo, seed), *(Arm(each, seed) for each in remaining)])
            remaining = self._ranked(remaining)[: max(1, len(remaining) // 2)]
            self.leading = remaining[0]
        return remaining[0]

    def _ranked(self, arms: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
        """The best mean first; of those about as good the one with the fewest changes, then the first tried."""
        most, floor = max(map(self._mean, arms)), self.floor
        tried = [arm.names for arm in self.order]

        def key(names: tuple[str, ...]) -> tuple[bool, int, int, float]:
            close = most - self._mean(names) <= AS_GOOD / 2 * abs(most - floor)
            return not close, len(names) if close else 0, tried.index(names) if close else 0, -self._mean(names)

        return sorted(arms, key=key)

    def _mean(self, names: tuple[str, ...]) -> float:
        floor = self.floor
        return float(np.mean([finite(score, floor) for score in self.scores(names).values()]))

    def proven(self, names: tuple[str, ...]) -> bool:
        """Better than the untreated arm and than the placebo, beyond chance and by an amount that matters."""
        if not names or names == (PLACEBO.name,) or not self.scores((PLACEBO.name,)):
            return False
        effects = self.effect(names), self.effect(names, (PLACEBO.name,))
        enough = ALONE if self.repeats_itself else MATERIAL
        return all(each.proven and each.share >= enough for each in effects)

    def simplest(self, best: tuple[str, ...]) -> tuple[str, ...]:
        """Without prescriptions that are not needed: of two found one after the other the first may not be."""
        shorter = [tuple(each for each in best if each != name) for name in best[:-1]]
        shorter += [
            tuple(part if each == name else each for each in best) for name in best for part in named(name).parts
        ]
        for each in shorter:
            self.run([Arm(each, self.seeds[0])])
            if self.results[Arm(each, self.seeds[0])].counts and self.gain(best, each) < AS_GOOD:
                return self.simplest(each)
        return best


def is_treated(arm: Arm) -> bool:
    return bool(arm.names) and not arm.is_placebo and rates.RANGE_TEST.name not in arm.names


def same(one: Run | None, other: Run | None) -> bool:
    if one is None or other is None:
        return one is other
    return len(one) == len(other) and np.array_equal(one["loss"], other["loss"], equal_nan=True)


# A factor that a range test may find; nearer to 1 than this it says that the learning rate is fine.
NEAR = 2.0


def found_factor(run: Run | None, steps: int) -> float | None:
    """The factor for the learning rate that a range test suggests; None where it finds none or about 1."""
    if run is None or len(run) < rates.FEWEST / 2 or not steps:
        return None
    side = rates.range_of(steps)
    factors = 10 ** (2 * side * np.minimum(1, run["step"] / steps) - side)
    suggestion = with_suggestion(factors, np.asarray(run["loss"], dtype=float)).suggestion
    if suggestion is None or 1 / NEAR < suggestion < NEAR:
        return None
    return float(f"{suggestion:.2g}")
