"""All prescriptions, and which to try for a diagnosis, in which order."""

from collections.abc import Sequence

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
    """The prescriptions for a diagnosis: those made for it first, then those that answer many others too."""
    names = diagnosis.candidates if diagnosis.name == UNSURE else (diagnosis.name,)
    return [each.name for name in names for each in in_order(name)]


def in_order(failure: str) -> list[Prescription]:
    """Those that answer a failure: cheap before expensive, then the most specific, then as listed."""
    found = [each for each in PRESCRIPTIONS.values() if failure in each.answers]
    return sorted(found, key=lambda each: (each.price, each.answers.index(failure) > 0, len(each.answers)))


def treatable(failure: str) -> bool:
    """Is there any prescription for it? Otherwise only whoever wrote the program can change it."""
    return any(failure in each.answers for each in PRESCRIPTIONS.values())


def candidates(diagnoses: Sequence[Diagnosis], alone: bool = True) -> list[list[str]]:
    """What to try in turn: the prescriptions for each diagnosis, then the usual ones; each name once.

    Not `alone`: beside others that have helped already, for what is left only what it calls for is tried.
    """
    waves = [answers_to(each) for each in diagnoses]
    if alone:
        waves.append(list(USUAL))
    if alone and any(waves[:-1]):  # where only the user can change what was found, few others are tried
        waves.append(list(OTHERS))
    known: set[str] = set()
    result = []
    for wave in waves:
        new = [name for name in dict.fromkeys(wave) if name not in known]
        known |= set(new)
        if new:
            result.append(new)
    return result
