"""The audit as people read it: a few lines for the terminal, and the generated page."""

import dataclasses
import statistics
from collections.abc import Sequence

from labkit.diagnosis.evaluation.folklore.audit import Result, Trial, estimate
from labkit.diagnosis.evaluation.folklore.claim import Claim
from labkit.diagnosis.evaluation.folklore.measures import Measure
from labkit.diagnosis.evaluation.folklore.results import compared, conditions
from labkit.diagnosis.evaluation.folklore.verdict import FAILS, HOLDS, ONLY_IF, UNCLEAR, VERDICTS
from labkit.drawing.markdown import table

FEW = 4  # settings of a claim that are told one by one in the table; of more only how many hold
ABOUT = {
    FAILS: "The whole interval lies outside of what the claim predicts, in every setting.",
    ONLY_IF: "It holds in one setting and not in another: the condition is the claim.",
    HOLDS: "The whole interval lies within what the claim predicts, in every setting.",
    UNCLEAR: "In some setting the interval reaches across the border; more seeds would tell.",
}


def as_text(results: Sequence[Result]) -> str:
    lines = []
    for result in results:
        lines.append(f"{result.claim.name}: {result.verdict}")
        measure = result.claim.measure
        pairs = zip(result.trials, result.verdicts, strict=True)
        lines += [f"    {trial.words}: {told(trial, measure)} {measure.unit}: {each}" for trial, each in pairs]
    return "\n".join([*lines, "", summary(results)])


def summary(results: Sequence[Result]) -> str:
    """'70 claims: 20 do not hold here, 25 hold only if, 15 hold, 10 unclear'."""
    plural = {FAILS: "do not hold here", ONLY_IF: "hold only if", HOLDS: "hold", UNCLEAR: "unclear"}
    counts = (f"{sum(result.verdict == each for result in results)} {plural[each]}" for each in VERDICTS)
    return f"{len(results)} claims: {', '.join(counts)}"


def told(trial: Trial, measure: Measure) -> str:
    """'-2.1 (-2.5 to -1.7)': the mean effect and its 95 % interval."""
    found, signed = trial.effect, trial.control is not None
    mean, low, high = (measure.words(value, sign=signed) for value in (found.mean, found.low, found.high))
    return f"{mean} ({low} to {high})"


def in_markdown(results: Sequence[Result], claims: Sequence[Claim]) -> str:
    """The page; of `claims`, those without a result are named as such."""
    lines = ["# Folklore: what people say about training, and what runs show", "", *introduction(results)]
    if missing := [f"`{claim.name}`" for claim in claims if claim not in {result.claim for result in results}]:
        lines += ["", f"Not measured yet: {', '.join(missing)}."]
    if fewer := [f"`{each.claim.name}` ({each.seeds})" for each in results if each.seeds < each.claim.seeds]:
        lines += [
            "",
            f"Measured with fewer seeds than the claim asks for, so with wider intervals: {', '.join(fewer)}.",
        ]
    for each in VERDICTS:
        own = [result for result in results if result.verdict == each]
        if own:
            lines += ["", f"## {each.capitalize()}: {len(own)}", "", ABOUT[each], ""]
            lines += table(("claim", "who says it", "effect (95 % interval)"), map(row, own))
    lines += ["", "## The experiments"]
    for result in results:
        lines += ["", *details(result)]
    return "\n".join(lines) + "\n"


def introduction(results: Sequence[Result]) -> list[str]:
    runs, _, seconds = estimate([dataclasses.replace(each.claim, seeds=each.seeds) for each in results], kept=False)
    machines = ", ".join(sorted({f"{result.machine}, torch {result.torch}" for result in results}))
    return [
        "Each claim was tried on real runs at the size of this lab: nets that train in seconds on MNIST. A claim that",
        "does not hold here may hold for larger nets, longer runs or other data; one that holds here may fail there.",
        "",
        "The effect is the treated run minus its control with the same seed, as a mean over the seeds with Student's",
        "95 % interval. The verdict follows from the interval alone: a claim holds if the whole interval lies in the",
        "range that it predicts, does not hold if no part of it does, and is unclear otherwise. Where a claim gives no",
        "number, an effect counts from half a point of accuracy or 0.02 nats per token on, and a loss of up to one",
        "point is harmless. Seeds are 0, 1, 2 and so on. Of a hundred such intervals about five miss the true effect",
        "by chance. The tolerance of one point was set after the first claims had been measured, from the width of",
        "their intervals.",
        "",
        f"Made by `labkit folklore --out labkit/failures/FOLKLORE.md` on {machines}, one thread per run:",
        f"{runs:,} runs, about {seconds / 60:.0f} minutes of one core. [FOLKLORE.json](FOLKLORE.json) has the values.",
        "",
        summary(results) + ".",
    ]


def row(result: Result) -> tuple[str, str, str]:
    link = f"[{result.claim.says}](#{result.claim.name})"
    return link, result.claim.source, told_effects(result)


def told_effects(result: Result) -> str:
    measure, verdicts = result.claim.measure, result.verdicts
    if len(result.trials) > FEW:
        held = [trial.words for trial, each in zip(result.trials, verdicts, strict=True) if each == HOLDS]
        where = ": " + ", ".join(f"`{name}`" for name in held) if held else ""
        unclear = f"; unclear in {count}" if (count := verdicts.count(UNCLEAR)) else ""
        return f"holds in {len(held)} of {len(verdicts)}{where}{unclear}"
    effects = [f"{trial.words}: {told(trial, measure)}" for trial in result.trials]
    if len(set(verdicts)) > 1:
        effects = [f"{words}, **{each}**" for words, each in zip(effects, verdicts, strict=True)]
    return "; ".join(effects) + f" {measure.unit}"


def details(result: Result) -> list[str]:
    claim, measure = result.claim, result.claim.measure
    read = measure.name if claim.control_measure is None else f"{measure.name}, against {claim.control_measure.name}"
    predicted = claim.predicts.words(measure, sign=result.trials[0].control is not None)
    about = f'"{claim.says}" ({claim.source}). Measured: {read}, {result.seeds} seeds. Predicted: {predicted}.'
    head = ("setting", "changed", "control", "control, mean", "treated, mean", "effect (95 % interval)", "verdict")
    rows = zip(claim.settings, result.trials, result.verdicts, strict=True)
    return [
        f"### {claim.name}",
        "",
        f"{about} **{result.verdict.capitalize()}.** {claim.note}".rstrip(),
        "",
        *table(head, [detail_row(*each, measure) for each in rows]),
    ]


def detail_row(setting, trial: Trial, verdict: str, measure: Measure) -> tuple[str, ...]:
    control = "-" if trial.control is None else measure.words(statistics.fmean(trial.control))
    treated = measure.words(statistics.fmean(trial.treated))
    effect = f"{told(trial, measure)} {measure.unit}"
    of_baseline = conditions(setting).replace("nothing", "the baseline")
    return setting.words, compared(setting), of_baseline, control, treated, effect, verdict
