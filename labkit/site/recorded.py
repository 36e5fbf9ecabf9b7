"""The recorded runs that the pages show: curves, scores and verdicts of every mode, of the sliders and of the ward.

They are shipped with labkit, so that a site is built in seconds. What was recorded of another recipe than today's is
not shown, and `labkit site --record` records it again. To record all of it: `python -m labkit.site.recorded`. A mode
that was recorded alone is in no pair of look-alikes, and its page says so, until `--compare` compares all losses.
"""

import argparse
import base64
import functools
import hashlib
import inspect
import json
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.diagnosis.diagnose import Diagnosis, diagnose
from labkit.diagnosis.look_alikes import lead_times, look_alikes
from labkit.diagnosis.study import Study, finished, play, why_not_cured
from labkit.drawing import plots
from labkit.failures.catalogue import FAILURES
from labkit.failures.mode import FailureMode
from labkit.recording.files import written_whole
from labkit.recording.run import NoTrace, Run
from labkit.site import patients, sliders
from labkit.site.curves import Draw, line_of, pane_from
from labkit.training.parallel import spread
from labkit.training.recipe import Recipe, changes_in_words
from labkit.training.run_store import Memory, RunStore, on_disk

FILE = Path(__file__).with_name("recorded.json")
COMMAND = "python -m labkit.site.recorded"
# The sick runs that are examples of the page Diagnose: one of a dozen steps as a file, and a flat loss as a log.
FILED, LOGGED = "learning_rate_too_high", "learning_rate_too_low"
Record = dict[str, Any]


# --- one mode --------------------------------------------------------------------------------------


def digest(mode: FailureMode) -> str:
    """What a record belongs to: the recipes, the code of the mode's own parts, and its signature."""
    recipes = [mode.healthy, mode.sick, *mode.cures.values(), *mode.false_cures.values()]
    made_of = [[recipe.summary() for recipe in recipes], sorted(own_code(recipes)), inspect.getsource(mode.signature)]
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:16]


def own_code(recipes: Sequence[Recipe]) -> set[str]:
    """The source of the parts that are defined beside a failure mode."""
    parts = {part for recipe in recipes for name in recipe.summary() if callable(part := getattr(recipe, name))}
    return {inspect.getsource(part) for part in parts if part.__module__.startswith("labkit.failures.")}


def record_of(name: str, store: RunStore) -> tuple[Record, Study]:
    """Curves, scores and verdicts of a mode's runs, with seed 0 on its usual data."""
    mode = FAILURES[name]
    study = play(mode, mode.recipes(), store, progress=False)
    others = {f"cure: {words}": recipe for words, recipe in [*mode.cures.items()][1:]}
    others |= {f"no cure: {words}": recipe for words, recipe in mode.false_cures.items()}
    record = {
        "made of": digest(mode),
        "steps": study.recipes["sick"].steps,
        "runs": {role: result(run, study.verdicts[role]) for role, run in study.runs.items()},
        "cured": study.is_cured,
        "others": [other_result(words, recipe, study, store) for words, recipe in others.items()],
        "panes": [pane for draw in panes_of(mode) if (pane := pane_of(draw, study))],
        "lead": lead_of(study),
    }
    if name == FILED:
        record["file"] = filed(study.sick)
    if name == LOGGED:
        record["log"] = logged(study.sick)
    return record, study


def filed(run: Run) -> str:
    """A run as it is saved, with all instruments."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.npz"
        run.save(path)
        return base64.b64encode(path.read_bytes()).decode()


def logged(run: Run) -> str:
    """The losses of a run as people log them: a CSV, with the validation loss at the steps where there is one."""
    held_out = dict(zip(run["val_step"].tolist(), run["val_loss"].tolist(), strict=True))
    rows = [
        f"{step},{loss:.5g},{f'{held_out[step]:.5g}' if step in held_out else ''}"
        for step, loss in zip(run["step"].tolist(), run["loss"].tolist(), strict=True)
    ]
    return "\n".join(["step,loss,val_loss", *rows, ""])


def panes_of(mode: FailureMode) -> list:
    """Loss, validation, and the instrument that shows the failure."""
    shows = [plots.instrument(mode.shows)] if mode.shows not in ("loss", mode.measure.trace) else []
    return [plots.losses, plots.validation, *([plots.gradient_ratio_line] if mode.shows == "grad_norm" else []), *shows]


def pane_of(draw: Draw, study: Study) -> Record | None:
    """What `draw` draws of the three runs."""
    pane = pane_from(draw, study, alternative(study))
    return calmed(pane, study) if pane and draw is plots.losses else pane


def calmed(pane: Record, study: Study) -> Record:
    """The loss of each step faint, and its running mean on top: three noisy lines hide each other."""
    lines = []
    for line in pane["lines"]:
        if run := study.runs.get(line["label"]):
            lines.append(line | {"label": f"_{line['label']}, each step", "width": 0.6, "dash": "-", "alpha": 0.35})
            line = line | {"alpha": 1, "width": plots.ROLES[line["label"]]["linewidth"]} | line_of(run, "loss")
        lines.append(line)
    return pane | {"title": "Loss (line: running mean, dots: validation)", "lines": lines}


def result(run: Run, found: list[Diagnosis]) -> Record:
    """A run in numbers and words."""
    error = run.facts.get("error")
    return {
        "score": run.measure.text(run.score),
        "steps": len(run),
        "loss": [ends(run["loss"][0]), ends(run["loss"][-1])] if len(run) else [],
        "stopped": run.facts["stopped"] or "",
        "error": f"{error['kind']}: {error['message']}" if error else "",
        "found": [found_as_values(each) for each in found],
    }


def ends(value: float) -> str:
    return f"{float(value):.4g}"


def found_as_values(found: Diagnosis) -> Record:
    kept = ("name", "title", "onset", "place", "seen", "usual", "rules_out")
    return {name: getattr(found, name) for name in kept} | {"confidence": round(found.confidence, 3)}


def other_result(words: str, recipe: Recipe, study: Study, store: RunStore) -> Record:
    """Another cure, or one that does not help: trained like the sick run."""
    mode = study.mode
    recipe = recipe.but(**mode.setting(), seed=0)
    run = finished(store, recipe, progress=False)
    found = diagnose(run)
    kind, _, about = words.partition(": ")
    return {
        "kind": kind,
        "words": about,
        "changed": changes_in_words(recipe, study.recipes["sick"]),
        "score": run.measure.text(run.score),
        "verdict": why_not_cured(mode, run, study.healthy, recipe, found) or "cured",
        "named": found[0].name if found else "",
    }


def alternative(study: Study) -> str:
    """What the picture of a study shows, in words."""
    text = [f"{role}: {run.measure.name} {run.measure.text(run.score)}" for role, run in study.runs.items()]
    return f"{study.mode.title}, real runs; {'; '.join(text)}"


def lead_of(study: Study) -> Record:
    """When the loss shows it, and when each instrument does."""
    try:
        [lead] = lead_times([study])
    except (NoTrace, ValueError, IndexError):  # a run that ended with an error has not all instruments
        return {}
    return {"loss": lead.loss, "instruments": lead.instruments}


# --- all -------------------------------------------------------------------------------------------


def load(path: Path = FILE) -> Record:
    """What is shipped; empty where nothing is."""
    if not path.exists():
        return {"modes": {}, "look_alikes": [], "compared": [], "sliders": {}, "patients": {}}
    return json.loads(path.read_text(encoding="utf-8"))


def outdated(record: Record) -> list[str]:
    """The modes that nothing was recorded of, or of other recipes than today's."""
    kept = record["modes"]
    return [name for name, mode in FAILURES.items() if kept.get(name, {}).get("made of") != digest(mode)]


# Of a mode whose runs are not recorded: its page has all words, and says how to record it.
EMPTY: Record = {"made of": "", "steps": 0, "runs": {}, "cured": False, "others": [], "panes": [], "lead": {}}


def shown(record: Record) -> Record:
    """What pages can show without training: of a mode whose recipes changed since it was recorded, nothing."""
    old = set(outdated(record))
    modes = {name: EMPTY if name in old else record["modes"][name] for name in FAILURES}
    chosen = {slider.name for slider in sliders.SLIDERS}
    known = {name: one for name, one in record["sliders"].items() if name in chosen}
    return without_comparison(record, old | (record["modes"].keys() - modes)) | {"modes": modes, "sliders": known}


def without_comparison(record: Record, names: Collection[str]) -> Record:
    """Without the look-alikes of these modes: they were found in other runs."""
    pairs = [each for each in record["look_alikes"] if not {each["one"], each["other"]} & set(names)]
    return record | {"look_alikes": pairs, "compared": [name for name in record["compared"] if name not in names]}


def current(record: Record, say=lambda words: None) -> Record:
    """A record that is up to date: what is missing is trained now."""
    modes, old = dict(record["modes"]), outdated(record)
    for name in old:
        say(name)
        modes[name], _ = record_of(name, _store())
    return without_comparison(record, old) | {
        "modes": {name: modes[name] for name in FAILURES},
        "sliders": sliders.current(record["sliders"], say),
        "patients": patients.current(record["patients"], say),
    }


@functools.cache
def _store() -> RunStore:
    kept = on_disk()
    return RunStore(kept.folder, limit=kept.limit, memory=Memory(12), own=kept.own)


def _one(name: str) -> tuple[Record, Study]:
    return record_of(name, _store())


def renew(names: Sequence[str] = (), path: Path = FILE, jobs: int = 1) -> Iterator[str]:
    """Record these modes, or all of them and everything else, and write the file; yields what was done."""
    chosen = list(names) or list(FAILURES)
    kept, studies = without_comparison(load(path), chosen), []
    for name, (one, study) in zip(chosen, spread(_one, [(name,) for name in chosen], jobs, unit="mode"), strict=True):
        kept["modes"][name] = one
        studies.append(study)
        yield name
        write(kept, path)
    if not names:
        kept["look_alikes"], kept["compared"] = alike(studies), chosen
        kept["sliders"] = sliders.current({}, print)
        kept["patients"] = patients.current({}, print)
    write(kept, path)


@dataclass(frozen=True)
class Sick:
    """What a comparison of losses needs of a study."""

    name: str
    sick: Run


def _sick(name: str) -> Sick:
    return Sick(name, finished(_store(), FAILURES[name].recipes()["sick"], progress=False))


def compare(path: Path = FILE, jobs: int = 1) -> None:
    """Find the look-alikes of all modes, which takes the sick run of each alone, and write the file."""
    runs = list(spread(_sick, [(name,) for name in FAILURES], jobs, unit="mode"))
    write(load(path) | {"look_alikes": alike(runs), "compared": list(FAILURES)}, path)


def alike(studies: Sequence[Study | Sick]) -> list[Record]:
    """Pairs of failures whose losses cannot be told apart, with the instrument that can."""
    trained = [study for study in studies if "grad_norm_total" in study.sick and "val_loss" in study.sick]
    return [
        {"one": each.one, "other": each.other, "difference": round(each.difference, 4),
         "instrument": each.instrument, "readings": [float(f"{value:.3g}") for value in each.readings]}
        for each in look_alikes(trained)  # type: ignore[arg-type]  # it asks for name and sick run
    ]  # fmt: skip


def write(record: Record, path: Path = FILE) -> None:
    """One line per mode, slider and patient, so that a change shows as a changed line."""
    parts = []
    for part, content in record.items():
        rows = content.items() if isinstance(content, dict) else [("", each) for each in content]
        lines = [
            f"{json.dumps(key)}: {as_json(row)}" if isinstance(content, dict) else as_json(row) for key, row in rows
        ]
        opening, closing = "{}" if isinstance(content, dict) else "[]"
        parts.append(f"{json.dumps(part)}: {opening}\n" + ",\n".join(lines) + f"\n{closing}")
    with written_whole(path) as stream:
        stream.write(("{" + ",\n".join(parts) + "}\n").encode())


def as_json(row) -> str:
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def main(arguments: Sequence[str] | None = None) -> None:
    about = argparse.ArgumentParser(prog=COMMAND, description="Record the runs that the web edition shows.")
    about.add_argument("names", nargs="*", help="of failure modes (default: all, with the sliders and the ward)")
    about.add_argument("--jobs", type=int, default=1, help="how many processes train (default: 1)")
    about.add_argument("--outdated", action="store_true", help="only the modes that changed since they were recorded")
    about.add_argument(
        "--compare", action="store_true", help="only the look-alikes of all modes: their sick runs alone"
    )
    options = about.parse_args(arguments)
    if options.compare:
        return compare(jobs=options.jobs)
    names = outdated(load()) if options.outdated else options.names
    if options.outdated and not names:
        return print("nothing is out of date")
    for name in renew(names, jobs=options.jobs):
        print(name, file=sys.stderr, flush=True)


if __name__ == "__main__":
    from labkit.site import recorded

    recorded.main()  # other processes could not import what is defined in __main__
