"""A treatment as text for the terminal."""

import dataclasses
import math

from labkit.diagnosis.evaluation.contract import in_columns
from labkit.diagnosis.treatment.answer import CURED, NOT_CURED, NOTHING, UNPROVEN, Treatment, Tried, wrapped
from labkit.diagnosis.treatment.arms import DONE, REFUSED
from labkit.diagnosis.treatment.prescriptions.catalogue import made_for, named
from labkit.failures.catalogue import FAILURES

SHOWN = 12  # rows of the table


def in_words(treatment: Treatment) -> str:
    """Verdict, diagnosis, effect, patch, what was tried, and what to look at."""
    parts = [verdict(treatment), *diagnosed(treatment)]
    if treatment.names:
        parts += effects(treatment)
        parts += ["", "In PyTorch:", *(f"    {line}" for line in treatment.code.splitlines())]
    if len(treatment.tried) > 1:
        parts += [
            "",
            f"Tried, by {treatment.measure.words} at the end (first seed, then the mean where there are more):",
        ]
        parts += in_columns(
            [("", "first", "mean", "seeds", ""), *map(lambda each: row(treatment, each), shown(treatment))]
        )
        parts += not_shown(treatment)
    parts += by_hand(treatment)
    parts += ["", f"{treatment.spent} runs of the program, {treatment.seconds:.0f} s."]
    return "\n".join(parts)


def verdict(treatment: Treatment) -> str:
    cut = f" ({treatment.ending})" if treatment.ending else ""
    if treatment.verdict == NOTHING:
        return f"Nothing to treat{cut}: the program shows no failure.{reached(treatment)}"
    if treatment.verdict == CURED:
        return wrapped("Cured", f"with {treatment.words}{cut}.")
    if treatment.verdict == UNPROVEN:
        return wrapped("Not proven", f"best with {treatment.words}, but {doubt(treatment)}{cut}.")
    helped = "nothing that was tried helped" if len(treatment.tried) > 1 else "nothing could be tried"
    return f"Not cured{cut}: {helped}."


def reached(treatment: Treatment) -> str:
    """What the untreated program ended with."""
    score = treatment.tried[0].scores[min(treatment.tried[0].scores)]
    return f" It ends with a {treatment.measure.words} of {treatment.measure.shown(score)}."


def doubt(treatment: Treatment) -> str:
    """Why the best arm is not called a cure."""
    effect, over_placebo = treatment.effect, treatment.over_placebo
    single = treatment.one_seed and not treatment.stirred
    if not effect or not over_placebo or (min(effect.seeds, over_placebo.seeds) < 3 and not single):
        return "it was not compared with a placebo on three seeds"
    if not effect.low > 0 or not over_placebo.low > 0:
        return "the difference may be chance"
    return "the difference is too small to matter" + (" in a single run" if single else "")


def diagnosed(treatment: Treatment) -> list[str]:
    lines = []
    for number, each in enumerate(treatment.diagnoses[:3]):
        place = f" in {each.place}" if each.place else ""
        lines.append(
            wrapped("diagnosis" if number == 0 else "and", f"{each.title} [{each.name}]{place}: {each.because}")
        )
    if treatment.error:
        lines.append(wrapped("ended by", treatment.error))
    if treatment.verdict == CURED:
        lines.append(wrapped("", confirmation(treatment)))
    if treatment.remaining:
        names = ", ".join(each.title.lower() for each in treatment.remaining)
        lines.append(wrapped("still shows", names))
    return lines


def confirmation(treatment: Treatment) -> str:
    """What the cure says about the diagnosis."""
    first = treatment.diagnoses[0]
    meant = list(dict.fromkeys(name for each in treatment.names for name in made_for(each)))
    if found := [each.title.lower() for each in treatment.diagnoses if each.name in meant]:
        if treatment.confirmed:
            return f"Confirmed by what cured it: {' and '.join(found)}."
        return f"Corrected by what cured it: rather {' and '.join(found)} than {first.title.lower()}."
    if likely := [FAILURES[name].title.lower() for name in meant if name in first.candidates]:
        return f"Decided by what cured it: of the candidates, {' or '.join(likely)}."
    answered = {name for each in treatment.names for name in named(each).answers}
    many = f"what cured it helps against {len(answered)} failures"
    if first.name in answered:
        return f"It fits the diagnosis, but does not confirm it: {many}."
    if answered.intersection(first.candidates):
        return f"It does not tell which of the candidates it was: {many}."
    likely = [FAILURES[name].title.lower() for name in meant]
    return f"Not confirmed by what cured it, which is meant for {' or '.join(likely[:2])}."


def effects(treatment: Treatment) -> list[str]:
    lines = []
    if treatment.effect:
        lines.append(
            wrapped("effect", f"{treatment.measure.words} {signed(treatment, treatment.effect)} over untreated")
        )
    if treatment.over_placebo:
        lines.append(wrapped("", f"{signed(treatment, treatment.over_placebo)} over the placebo"))
    if treatment.placebo:
        lines.append(
            wrapped("placebo", f"{signed(treatment, treatment.placebo)} over untreated: what chance alone does")
        )
    if treatment.one_seed:
        runs = "all its runs are the same"
        if treatment.stirred:
            runs = "its runs begin with the same weights and data, and differ in what it draws after the call of watch"
        lines.append(wrapped("", f"The program sets its own seed: {runs}. This rests on one seed."))
    return lines


def signed(treatment: Treatment, effect) -> str:
    """The effect in the program's own numbers: of a loss, how far it falls."""
    if treatment.one_seed and not treatment.stirred:  # the same run several times
        effect = dataclasses.replace(effect, seeds=1)
    if treatment.measure.higher:
        return str(effect)
    return str(dataclasses.replace(effect, mean=-effect.mean, low=-effect.high, high=-effect.low))


def shown(treatment: Treatment) -> list[Tried]:
    ran = [each for each in treatment.tried if each.status != REFUSED]
    return ran[:SHOWN]


def not_shown(treatment: Treatment) -> list[str]:
    refused = sum(each.status == REFUSED for each in treatment.tried)
    worse = len(treatment.tried) - refused - len(shown(treatment))
    return [
        *([f"  and {worse} more that did not help more than these"] if worse else []),
        *([f"  and {refused} more that did not apply"] if refused else []),
    ]


def row(treatment: Treatment, each: Tried) -> tuple[str, str, str, str, str]:
    scores = list(each.scores.values())
    first = treatment.measure.shown(scores[0]) if each.status == DONE and scores else each.status
    several = [score for score in scores if math.isfinite(score)]
    mean = treatment.measure.shown(sum(several) / len(several)) if len(scores) > 1 and several else ""
    note = "" if each.status == DONE else each.why
    return (each.words, first, mean, str(len(scores)), note[:60])


def by_hand(treatment: Treatment) -> list[str]:
    """What only the user can change: what to look at, and samples."""
    if treatment.verdict not in (NOT_CURED, UNPROVEN) or not treatment.by_hand:
        return []
    lines = ["", "Only you can change this:"]
    lines += [f"  {FAILURES[name].title}: {FAILURES[name].first_check}" for name in treatment.by_hand[:2]]
    if treatment.samples:
        lines += [
            "",
            "Do inputs and targets belong together? Samples of the probe, with what the net predicts at the end:",
        ]
        rows = [tuple(each.get(name, "") for name in ("inputs", "target", "outputs")) for each in treatment.samples]
        lines += in_columns([("inputs", "target", "outputs"), *rows])
    return lines
