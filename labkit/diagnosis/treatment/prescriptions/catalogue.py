"""All prescriptions, and which to try for a diagnosis, in which order."""

from collections.abc import Collection, Sequence
from itertools import zip_longest

import torch

from labkit.diagnosis.diagnose import UNSURE, Diagnosis
from labkit.diagnosis.treatment.patient import Patient
from labkit.diagnosis.treatment.prescriptions import inputs, layers, losses, rates, updates
from labkit.diagnosis.treatment.prescriptions.prescription import Prescription
from labkit.errors import RecipeError, near


def advance(patient: Patient) -> None:
    """Change nothing that matters: the next random numbers, and the weights in their sixth digit."""
    torch.rand(1)
    with torch.no_grad():
        for weight in patient.weights():
            weight.mul_(1 + 1e-6)


MOST_IN_WAVE = 8  # arms that are tried at once
MOST_IF_UNSURE = 12  # one for each of many candidates: some do not apply, and cost nothing
PLACEBO = Prescription("placebo", "a change that should not matter", (), advance, "")

PRESCRIPTIONS: dict[str, Prescription] = {
    each.name: each for home in (updates, layers, losses, inputs, rates) for each in home.PRESCRIPTIONS
}
# Where no diagnosis helps: what most often helped programs of others, in this order; then what helped some.
USUAL = (
    "adam",
    "standard_inputs",
    "default_init",
    "usual_loss",
    "raw_outputs",
    "rate_times_0.1",
    "handed_over",
    "cleared",
)
OTHERS = (
    "constant_rate", "unfrozen", "no_weight_decay", "clipped", "standard_targets", "sign_changed", "stepped",
    "4_times_as_long",
)  # fmt: skip


def named(name: str) -> Prescription:
    """The prescription of this name; `rate_times_0.03` with any factor."""
    if name in (PLACEBO.name, rates.RANGE_TEST.name):
        return PLACEBO if name == PLACEBO.name else rates.RANGE_TEST
    if name in PRESCRIPTIONS:
        return PRESCRIPTIONS[name]
    if name.startswith(rates.TIMES):
        return rates.rate_times(float(name.removeprefix(rates.TIMES)))
    raise RecipeError(f"there is no prescription {name!r}. {near(name, PRESCRIPTIONS)}")


def answers_to(diagnosis: Diagnosis) -> list[str]:
    """The prescriptions for a diagnosis: those made for it first, then those that answer many others too.

    Of an unsure one each candidate's first, then each one's second: the last candidate is as likely as the first.
    """
    names = diagnosis.candidates if diagnosis.name == UNSURE else (diagnosis.name,)
    rounds = zip_longest(*map(in_order, names))
    return list(dict.fromkeys(each.name for turn in rounds for each in turn if each))


def in_order(failure: str) -> list[Prescription]:
    """Those that answer a failure: cheap before expensive, then the most specific, then as listed."""
    found = [each for each in PRESCRIPTIONS.values() if failure in each.answers]
    return sorted(found, key=lambda each: (each.price, each.answers.index(failure) > 0, len(each.answers)))


MEANT = 3  # failures, the first of those that a prescription answers: against the others it may help


def made_for(name: str) -> tuple[str, ...]:
    """The failures that a prescription tells of when it cures."""
    return named(name).answers[:MEANT]


def treatable(failure: str) -> bool:
    """Is there any prescription for it? Otherwise only whoever wrote the program can change it."""
    return any(failure in each.answers for each in PRESCRIPTIONS.values())


def candidates(diagnoses: Sequence[Diagnosis], base: Collection[str] = ()) -> list[list[str]]:
    """What to try in turn: prescriptions for each diagnosis, the usual ones, then what was too much at first.

    Each name once. Beside a `base` of others that have helped already, only what is called for is tried.
    """
    waves = [answers_to(each) for each in diagnoses]
    if not base:
        waves.append(list(USUAL))
    if not base and any(waves[:-1]):  # where only the user can change what was found, few others are tried
        waves.append(list(OTHERS))
    known, left, result = set(base), [], []
    for number, wave in enumerate(waves):
        most = MOST_IF_UNSURE if number < len(diagnoses) and diagnoses[number].name == UNSURE else MOST_IN_WAVE
        new = [name for name in dict.fromkeys(wave) if name not in known]
        known |= set(new[:most])
        left += new[most:]
        result.append(new[:most])
    if not base:
        named_first = {name for each in diagnoses for name in (*each.candidates, each.name)}
        rest = [name for name in dict.fromkeys(left) if name not in known]
        rest.sort(key=lambda name: (named(name).price, named(name).answers[0] not in named_first))
        result.append(rest[:MOST_IN_WAVE])
    return [wave for wave in result if wave]
