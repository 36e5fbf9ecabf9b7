"""A treatment as text for the terminal."""

import math

from labkit.diagnosis.evaluation.contract import in_columns
from labkit.diagnosis.treatment.answer import CURED, NOT_CURED, NOTHING, UNPROVEN, Treatment, Tried, wrapped
from labkit.diagnosis.treatment.arms import DONE, REFUSED
from labkit.diagnosis.treatment.prescriptions.catalogue import named
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
        return f"Nothing to treat{cut}: the program shows no failure."
    if treatment.verdict == CURED:
        return wrapped("Cured", f"with {treatment.words}{cut}.")
    if treatment.verdict == UNPROVEN:
        return wrapped("Not proven", f"best with {treatment.words}, but {doubt(treatment)}{cut}.")
    return f"Not cured{cut}: nothing that was tried helped."


def doubt(treatment: Treatment) -> str:
    """Why the best arm is not called a cure."""
    if treatment.over_placebo is None or not treatment.effect:
        return "it was not compared with a placebo on three seeds"
    if not treatment.effect.low > 0 or not treatment.over_placebo.low > 0:
        return "the difference may be chance"
    if treatment.effect.seeds < 3 and not treatment.one_seed:
        return "it was not run on three seeds"
    return "the difference is too small to matter"


def diagnosed(treatment: Treatment) -> list[str]:
    lines = []
    for number, each in enumerate(treatment.diagnoses[:3]):
        place = f" in {each.place}" if each.place else ""
        lines.append(
            wrapped("diagnosis" if number == 0 else "and", f"{each.title} [{each.name}]{place}: {each.because}")
        )
    if treatment.verdict == CURED:
        lines.append(wrapped("", confirmation(treatment)))
    if treatment.remaining:
        names = ", ".join(each.title.lower() for each in treatment.remaining)
        lines.append(wrapped("still shows", names))
    return lines


def confirmation(treatment: Treatment) -> str:
    """What the cure says about the diagnosis."""
    first = treatment.diagnoses[0]
    if treatment.confirmed:
        return f"Confirmed by what cured it: {first.title.lower()}."
    answered = {name for each in treatment.names for name in named(each).answers}
    if meant := [FAILURES[name].title.lower() for name in first.candidates if name in answered]:
        return f"Decided by what cured it: of the candidates, {' or '.join(meant[:2])}."
    also = [each.title.lower() for each in treatment.diagnoses[1:] if each.name in answered]
    if also:
        return f"Corrected by what cured it: rather {also[0]} than {first.title.lower()}."
    likely = [name for each in treatment.names for name in named(each).answers[:2]]
    return f"Corrected by what cured it: this prescription is for {', '.join(likely) or 'no failure in particular'}."


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
        lines.append(
            wrapped("", "The program sets its own seed: all its runs are the same, and this rests on one seed.")
        )
    return lines


def signed(treatment: Treatment, effect) -> str:
    """The effect in the program's own numbers: of a loss, how far it falls."""
    if treatment.measure.higher:
        return str(effect)
    import dataclasses

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
