"""Evaluate `labkit.treat` on foreign programs: how many faults are cured, and are healthy programs left alone?"""

import functools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median

import torch

from labkit.diagnosis.evaluation.contract import in_columns
from labkit.diagnosis.evaluation.foreign.clinic import DETAILED, Case, check_arguments, key_of, trained
from labkit.diagnosis.evaluation.foreign.registry import FAULTS, PROGRAMS, SPLITS, healthy_variants
from labkit.diagnosis.evaluation.foreign.verify import verified
from labkit.diagnosis.evaluation.report import HEAD, Row
from labkit.diagnosis.treatment.answer import CURED, NOTHING, Treatment
from labkit.diagnosis.treatment.judgement import interval
from labkit.diagnosis.treatment.prescriptions.catalogue import PLACEBO
from labkit.diagnosis.treatment.treat import treat
from labkit.drawing.markdown import table
from labkit.recording.files import json_ready, written_whole
from labkit.recording.machine import cpu_name
from labkit.training.parallel import spread

# Faults that no intervention at the call of `watch` can reach: targets, splits, leaks, masks, augmentation, missing
# data, too narrow a layer.
BY_HAND = (
    "shuffled_labels", "partners_shuffled", "targets_one_row_late", "most_labels_wrong",
    "targets_permuted_in_each_batch",
    "flipped_without_the_mask", "inputs_all_zero", "twelve_samples", "one_class_rules", "other_class_order",
    "shuffled_columns", "bottleneck_of_one", "trained_on_validation_data", "target_as_a_column", "labels_not_shifted",
    "turned_at_random", "mirrored_at_random", "inverted_at_random", "loss_mask_inverted", "tokens_not_masked",
    "no_causal_mask",
)  # fmt: skip
BUDGET = 120  # runs: enough for training twenty times as long, on three seeds
POINTS = (
    0.02  # a cure that comes within two points of the repaired twin counts, as in the contract of the lab's own modes
)


@dataclass(frozen=True)
class Treated:
    """One program, and what the treatment did."""

    case: Case
    verdict: str
    cure: str  # in words; of the best arm where it is not proven
    diagnosed: tuple[str, ...]
    untreated: float  # means over the seeds, in the program's own measure
    treated: float
    twin: float  # of the program without the fault, on the same seeds
    twin_low: float  # the lower end of its 95 % interval
    runs: int
    seconds: float
    placebo_proven: bool  # would the placebo have passed for a cure?

    @property
    def treatable(self) -> bool:
        return self.case.fault not in BY_HAND

    @property
    def proven(self) -> bool:
        return self.verdict == CURED

    @property
    def cured(self) -> bool:
        """Proven, and not worse than the interval of the repaired twin, or at most two points below its mean."""
        return self.proven and self.treated >= min(self.twin_low, self.twin - POINTS)

    @property
    def family(self) -> str:
        return FAULTS[self.case.fault].family if self.case.fault else "healthy"


@dataclass(frozen=True)
class Treatments:
    """The results on one split."""

    sick: list[Treated]
    healthy: list[Treated]
    split: str


@functools.cache
def twin_value(program: str, seed: int) -> float:
    """What the program reaches without a fault, in its own measure."""
    run, *_ = trained(Case(program, seed))
    return float(run[f"val_{metric_of(program)}"][-1])


@functools.cache
def metric_of(program: str) -> str:
    return PROGRAMS[program].prepared(0).metric


def treated(case: Case, folder: Path | None = None) -> Treated:
    """Treat one case, or read what the folder has about it."""
    stored = folder / f"treated-{key_of(case)}.json" if folder else None
    if stored and stored.exists():
        plain = json.loads(stored.read_text(encoding="utf-8"))
        numbers = {name: math.nan if value is None else value for name, value in plain.items()}
        return Treated(case, **(numbers | {"diagnosed": tuple(plain["diagnosed"])}))
    found = of_treatment(case, treat_case(case))
    if stored:
        with written_whole(stored) as stream:
            plain = {name: value for name, value in asdict(found).items() if name != "case"}
            stream.write(json.dumps(json_ready(plain)).encode())
    return found


def treat_case(case: Case) -> Treatment:
    def program(watch: Callable, seed: int) -> None:
        PROGRAMS[case.program](watch, seed, FAULTS[case.fault] if case.fault else None, case.settings)

    seeds = tuple(range(case.seed, case.seed + 5))
    return treat(program, budget=BUDGET, seeds=seeds, measure=metric_of(case.program), progress=False)


def of_treatment(case: Case, answer: Treatment) -> Treated:
    values = {each.names: [s for s in each.scores.values() if math.isfinite(s)] for each in answer.tried}
    seeds = next((list(each.scores) for each in answer.tried if each.names == answer.names), [case.seed])
    twins = [twin_value(case.program, seed) for seed in seeds] if case.fault else [math.nan]

    def middle(names: tuple[str, ...]) -> float:
        return mean(values[names]) if values.get(names) else math.nan

    return Treated(
        case,
        answer.verdict,
        answer.words if answer.names else "",
        tuple(each.name for each in answer.diagnoses),
        middle(()),
        middle(answer.names) if answer.names else math.nan,
        mean(twins),
        interval(twins)[0],
        answer.spent,
        round(answer.seconds, 1),
        bool(answer.placebo and answer.placebo.proven),
    )


# --- all of them --------------------------------------------------------------------------------------


def sampled(cases: Sequence[Case], count: int | None) -> list[Case]:
    """About `count` cases, of every fault its share: one of each, then a second one, in another program each time."""
    if count is None or count >= len(cases):
        return list(cases)
    by_fault: dict[str | None, list[Case]] = {}
    for case in cases:
        by_fault.setdefault(case.fault, []).append(case)
    turned = [own[number % len(own) :] + own[: number % len(own)] for number, own in enumerate(by_fault.values())]
    rounds = [own[turn] for turn in range(max(map(len, turned))) for own in turned if turn < len(own)]
    return rounds[:count]


def hold(
    split: str = "held-out",
    *,
    programs: Sequence[str] | None = None,
    healthy: int = 200,
    sample: int | None = None,
    jobs: int = 1,
    folder: Path | None = None,
) -> Treatments:
    """Treat the verified cases of a split, or a sample of them, and `healthy` healthy variants."""
    check_arguments(split, programs, healthy=healthy, jobs=jobs)
    names = [name for name in SPLITS[split] if programs is None or name in programs]
    ill = sampled([Case(each.program, 0, each.fault) for each in verified(split) if each.program in names], sample)
    drawn = healthy_variants(split, healthy) if SPLITS[split] else []
    well = [Case(name, seed, None, settings) for name, seed, settings in drawn if name in names]
    results = list(spread(treated, [(case, folder) for case in (*ill, *well)], jobs, unit="program"))
    return Treatments(results[: len(ill)], results[len(ill) :], split)


def share(cases: Sequence[Treated], true: Callable[[Treated], bool]) -> tuple[int, int]:
    return sum(map(true, cases)), len(cases)


def numbers(found: Treatments) -> list[Row]:
    treatable = [each for each in found.sick if each.treatable]
    by_hand = [each for each in found.sick if not each.treatable]
    everyone = [*found.sick, *found.healthy]
    return [
        Row("treatable faults cured", share(treatable, lambda each: each.cured), 0.70),
        Row("- proven better, but below the twin", share(treatable, lambda each: each.proven and not each.cured)),
        Row("- nothing to treat: no diagnosis", share(treatable, lambda each: each.verdict == NOTHING)),
        Row("faults that only the user can change: proven better", share(by_hand, lambda each: each.proven)),
        Row("healthy programs changed", share(found.healthy, lambda each: each.proven), 0.01, most=True),
        Row("placebo reported as a cure", share(everyone, lambda each: each.cure == PLACEBO.words), 0.0, most=True),
        Row("- the placebo alone would have passed the test", share(everyone, lambda each: each.placebo_proven)),
    ]  # fmt: skip


Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


def by_family(found: Treatments) -> Table:
    """Share cured, and what it took."""
    rows = []
    for family in dict.fromkeys(each.family for each in found.sick):
        own = [each for each in found.sick if each.family == family]
        can = [each for each in own if each.treatable]
        share = f"{sum(each.cured for each in can)} of {len(can)}" if can else "-"
        proven = f"{sum(each.proven for each in can)} of {len(can)}" if can else "-"
        cost = (f"{median(each.runs for each in own):.0f}", f"{median(each.seconds for each in own):.0f}")
        rows.append((family, str(len(own)), share, proven, *cost))
    return ("family", "cases", "cured", "proven better", "runs (median)", "seconds (median)"), rows


def misses(found: Treatments) -> list[str]:
    """A line for everything that was not cured; none for the held-out split."""
    if found.split not in DETAILED:
        return []
    lines = [
        f"{each.case}: {each.verdict}{f' with {each.cure}' if each.cure else ''}; untreated {each.untreated:.3g}, "
        f"treated {each.treated:.3g}, repaired {each.twin:.3g} (from {each.twin_low:.3g}); "
        f"called {', '.join(each.diagnosed) or 'nothing'}"
        for each in found.sick
        if each.treatable and not each.cured
    ]
    return lines + [f"healthy, {each.case}: {each.verdict} with {each.cure}" for each in found.healthy if each.proven]


def as_text(found: Treatments) -> str:
    head, rows = by_family(found)
    lines = [
        f"Treatments of foreign programs, {found.split} split: {len(found.sick)} faults, {len(found.healthy)} healthy.",
        "",
    ]
    lines += in_columns([HEAD, *(row.cells for row in numbers(found))])
    lines += ["", *in_columns([head, *rows]), "", *(f"- {line}" for line in misses(found))]
    return "\n".join(lines)


def as_plain(found: Treatments) -> dict:
    rows = [{"what": row.what, "count": row.count, "of": row.of, "goal": row.goal} for row in numbers(found)]
    head, body = by_family(found)
    cases = {"sick": [asdict(each) for each in found.sick], "healthy": [asdict(each) for each in found.healthy]}
    families = [dict(zip(head, row, strict=True)) for row in body]
    return {"split": found.split, "numbers": rows, "families": families} | (cases if found.split in DETAILED else {})


def in_markdown(found: Treatments, command: str) -> str:
    """A page for the repository, such as labkit/failures/TREATMENTS.md."""
    head, rows = by_family(found)
    words = (
        f"How often does `labkit.treat` cure? {len(found.sick)} faults and {len(found.healthy)} healthy variants of "
        f"the {found.split} programs of [FOREIGN.md](FOREIGN.md). Made by `{command}` on {cpu_name()}, torch "
        f"{torch.__version__}.\n\n"
        "Cured: proven better than untreated and placebo on three to five seeds, and within the 95 % interval of the "
        f"same program without the fault on the same seeds, or within {POINTS:.0%} of its mean. Not treatable are "
        "faults in targets, splits, leaks, masks, augmentation and missing data "
        f"({len(BY_HAND)} of {len(FAULTS)} operators). Seconds depend on how busy the machine is."
    )
    parts = ["# Treatments of foreign programs", words, "\n".join(table(HEAD, [row.cells for row in numbers(found)]))]
    parts += ["\n".join(table(head, rows))]
    if lines := misses(found):
        parts.append("## Not cured\n\n" + "\n".join(f"- {line}" for line in lines))
    return "\n\n".join(parts) + "\n"
