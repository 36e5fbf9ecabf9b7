"""Studies, failure modes and runs as text for the terminal, and as plain values for programs."""

import dataclasses
import shutil
import textwrap

import numpy as np

from labkit.diagnosis.diagnose import UNSURE, diagnose
from labkit.diagnosis.study import Study
from labkit.failures.catalogue import FAILURES
from labkit.failures.mode import FailureMode
from labkit.recording.run import Run
from labkit.recording.summaries import gradient_ratio, matrix_names, typical, worst_dead
from labkit.recording.traces import TRACES
from labkit.training.recipe import Recipe, changes_in_words


def study_in_words(study: Study) -> str:
    """What was changed, the results, the diagnosis with its evidence, and whether the cure works."""
    recipes = study.recipes
    cure = next(iter(study.mode.cures))
    lines = [f"{study.mode.title}  ({recipes['sick'].data.__name__}, seed {recipes['sick'].seed})", ""]
    lines += [_row("changed", changes_in_words(recipes["sick"], recipes["healthy"])), ""]
    lines += [f"{'':10}{study.mode.measure.name:>11}{'val. loss':>12}{'steps':>7}"]
    for role, run in study.runs.items():
        ending = f"  {run.facts['stopped']}" if run.facts["stopped"] else ""
        loss = "-" if val_loss(run) is None else f"{val_loss(run):.4g}"
        lines.append(f"{role:10}{run.measure.text(run.score):>11}{loss:>12}{len(run):>7}{ending}")
    lines.append("")
    if not study.diagnoses:
        lines.append(_row("verdict", "no failure shows"))
    for number, found in enumerate(study.diagnoses):
        place = f", in {found.place}" if found.place else ""
        lines.append(_row("verdict" if number == 0 else "and", f"{found.title}, from step {found.onset}{place}"))
        lines += [_row("seen", found.seen), _row("usual", found.usual)]
        lines += [_row("what to do", found.prescription)] if number == 0 else []
    outcome = "cures" if study.is_cured else "does not cure"
    cured, healthy = (run.measure.text(run.score) for run in (study.cured, study.healthy))
    lines += ["", _row("cure", f"{cure}: {outcome} ({cured}, healthy {healthy})")]
    return "\n".join(lines)


def val_loss(run: Run) -> float | None:
    """The last validation loss, or None where an error came before the first validation."""
    return float(run["val_loss"][-1]) if "val_loss" in run else None


def heading(study: Study) -> str:
    """One line above a figure: the mode, what was changed, and the diagnosis."""
    changed = changes_in_words(study.recipes["sick"], study.recipes["healthy"])
    verdict = study.diagnoses[0].title if study.diagnoses else "no failure shows"
    return f"{study.mode.title}: {changed}   (diagnosis: {verdict}; {study.recipes['sick'].data.__name__})"


def mode_in_words(mode: FailureMode) -> str:
    """Everything about a failure mode, as text."""
    lines = [f"{mode.title}  [{mode.name}, {mode.topic}]", ""]
    lines += [_row("changed", changes_in_words(mode.sick, mode.healthy))]
    lines += [_row("looks like", mode.symptom), _row("because", mode.mechanism)]
    lines += [_row("costs", mode.costs)] if mode.costs else []
    lines += [_row("check", mode.first_check), _row("remedy", mode.remedy)]
    for cure, recipe in mode.cures.items():
        lines.append(_row("cure", f"{cure} ({changes_in_words(recipe, mode.sick)})"))
    lines += [_row("but", mode.limit)] if mode.limit else []
    for cure, recipe in mode.false_cures.items():
        lines.append(_row("no cure", f"{cure} ({changes_in_words(recipe, mode.sick)})"))
    for face, changes in mode.faces.items():
        lines.append(_row("also as", f"--face {face}: " + ", ".join(f"{k} = {v}" for k, v in changes.items())))
    if mode.not_on_cifar10:
        lines.append(_row("CIFAR-10", mode.not_on_cifar10))
    if mode.also_causes:
        lines.append(_row("brings on", ", ".join(mode.also_causes)))
    lines.append(_row("turn", ", ".join(knob.name for knob in mode.knobs)))
    lines.append(_row("reference", mode.reference))
    return "\n".join(lines)


def study_as_values(study: Study) -> dict:
    """A study as plain values, for programs."""
    return {
        "name": study.name,
        "dataset": study.recipes["sick"].data.__name__,
        "seed": study.recipes["sick"].seed,
        "changes": {
            name: list(pair) for name, pair in study.recipes["sick"].changes_from(study.recipes["healthy"]).items()
        },
        "runs": {
            role: {
                "accuracy": run.accuracy,
                "measure": run.measure.name,
                "score": run.score,
                "val_loss": val_loss(run),
                "steps": len(run),
                "stopped": run.facts["stopped"],
                "first_nonfinite": run.facts["first_nonfinite"],
                "seconds": run.facts["seconds"],
            }
            for role, run in study.runs.items()
        },
        "diagnoses": [dataclasses.asdict(found) for found in study.diagnoses],
        "named": study.named,
        "cured": study.is_cured,
    }


def mode_as_values(mode: FailureMode) -> dict:
    """A failure mode as plain values."""
    words = (
        "name",
        "topic",
        "title",
        "symptom",
        "mechanism",
        "first_check",
        "remedy",
        "reference",
        "shows",
        "harm",
        "costs",
        "close",
        "limit",
    )
    return {word: getattr(mode, word) for word in words} | {
        "changes": {name: list(pair) for name, pair in mode.sick.changes_from(mode.healthy).items()},
        "healthy": mode.healthy.summary(),
        "cures": {cure: _changed(recipe, mode.sick) for cure, recipe in mode.cures.items()},
        "false_cures": {cure: _changed(recipe, mode.sick) for cure, recipe in mode.false_cures.items()},
        "faces": mode.faces,
        "also_causes": list(mode.also_causes),
        "knobs": [dataclasses.asdict(knob) for knob in mode.knobs],
    }


def _changed(recipe: Recipe, other: Recipe) -> dict:
    return {name: new for name, (_, new) in recipe.changes_from(other).items()}


def _row(label: str, text: str) -> str:
    width = min(100, shutil.get_terminal_size((100, 24)).columns)
    indents = {"initial_indent": f"{label:12}", "subsequent_indent": " " * 12}
    return textwrap.fill(text, width, break_on_hyphens=False, **indents)


def exam(run: Run, strict: bool = True) -> str:
    """The exam sheet of a run: each instrument with its healthy range, and the diagnosis."""
    lines = [f"{name:20}{text}" for name, text in _readings(run)]
    found = diagnose(run, strict)
    lines += ["", _row("verdict", "no failure shows")] if not found else [""]
    for number, each in enumerate(found):
        lines.append(_row("verdict" if number == 0 else "and", str(each)))
        if each.name != UNSURE:
            lines.append(_row("certainty", f"{each.certainty} of such verdicts are correct"))
    if len(found) > 1:
        lines.append(_row("to tell", FAILURES[found[0].name].first_check))
    return "\n".join(lines)


def _readings(run: Run) -> list[tuple[str, str]]:
    """(instrument, reading) for every instrument that the run has."""
    if not len(run):
        return [("steps", "0: the run ended before its first step, and there is nothing to read")]
    losses = run["loss"]
    rows = [
        ("steps", f"{len(run)}{_thinned(run)}"),
        ("loss", f"{losses[0]:.4g} at the start, {losses[-1]:.4g} at the end"),
    ]
    start, end = losses[: len(run) // 10], losses[-len(run) // 10 :]
    if len(run) > 20 and not np.isnan(start).all() and not np.isnan(end).all():
        rows.append(("trend", f"{np.nanmean(end) - np.nanmean(start):+.3g}"))
    if "grad_norm_total" in run:
        rows.append(_ranged("grad_norm_total", f"median {typical(run['grad_norm_total'][:, None])[0]:.3g}"))
    if "update_ratio" in run:
        rows.append(_ranged("update_ratio", f"median {np.fmax.reduce(typical(run['update_ratio'])):.2g}"))
    if "grad_norm" in run and len(run.layers) > 1 and matrix_names(run):
        rows.append(_ranged("grad_ratio", f"gradients {typical(gradient_ratio(run)[:, None])[0]:.2g}"))
    if "dead" in run and len(run["dead"]):
        dead, place = worst_dead(run)
        rows.append(_ranged("dead", f"{dead[-1]:.0%}{f' in {place}' if place else ''}"))
    if run.score is not None:
        rows.append(("validation", f"{run.measure.name} {run.measure.text(run.score)}"))
    for off in run.facts.get("switched_off", ()):
        rows.append(("switched off", f"{off['instrument']} at step {off['step']}: {off['error']}"))
    if "note" in run.facts:
        rows.append(("note", run.facts["note"]))
    return rows


def _thinned(run: Run) -> str:
    """Of a long run not every step is recorded: which ones are."""
    thinned = run.facts.get("thinned")
    if not thinned:
        return ""
    return f" recorded of {run['step'][-1] + 1}: one in {thinned['stride']} up to {thinned['until']}, then all"


def _ranged(trace: str, reading: str) -> tuple[str, str]:
    """A reading beside the healthy range of its trace."""
    return TRACES[trace].words, f"{reading} (usual {TRACES[trace].usual})"
