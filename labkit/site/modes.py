"""One page per failure mode, all with the same headings; and the list of all of them."""

import functools
import json
import re
from typing import Any

from labkit.course.standalone import gather
from labkit.diagnosis import calibration
from labkit.failures.catalogue import FAILURES
from labkit.failures.mode import FailureMode
from labkit.failures.signs import LOOKS
from labkit.recording.traces import TRACES
from labkit.site import recorded, sliders, svg, symptoms, text
from labkit.site.page import Page
from labkit.site.sources import Sources
from labkit.training.recipe import changes_in_words

MOST_ALIKE = 8  # look-alikes on a page, the closest first: a flat loss has more than anyone reads
ROLES = {"healthy": "healthy twin", "sick": "sick run", "cured": "cured run"}
ENOUGH = 40  # characters of a check that say something
# What people call the curve, in the title of a page. {loss} is where the recorded run ended.
IN_TITLES = {
    "never moves": "loss stuck at {loss}, not decreasing",
    "not finite": "loss is NaN",
    "jumps": "loss explodes",
    "stops too high": "loss stops falling at {loss}",
    "validation worse": "validation worse than training",
    "nothing": "a silent bug",
    "error": "an error in training",
}
# Of a run that is not recorded.
UNKNOWN: dict[str, Any] = {"loss": [], "error": "", "found": []}


def pages(sources: Sources) -> list[Page]:
    contract = contract_rows(sources)
    ordered = [mode for modes in by_topic().values() for mode in modes]
    made = [index(sources)]
    for place, mode in enumerate(ordered):
        page = page_of(mode, sources, contract.get(mode.name, {}))
        page.content.update(
            before=ordered[place - 1] if place else None, after=ordered[place + 1] if place + 1 < len(ordered) else None
        )
        made.append(page)
    return made


def index(sources: Sources) -> Page:
    sparks = {name: svg.sparkline(symptoms.loss_lines(record)) for name, record in sources.record["modes"].items()
              if any(line["role"] == "sick" for line in symptoms.loss_lines(record))}  # fmt: skip
    return Page(
        "modes/index.html",
        f"All {len(FAILURES)} ways in which training fails",
        "The catalogue of failure modes of neural-network training, by topic: each with a real run beside its "
        "healthy twin, the sign that gives it away, and a proven cure.",
        "modes.html",
        "modes",
        {"topics": by_topic(), "sparks": sparks, "question": symptoms.question, "changed": changed},
        kind="catalogue",
    )


@functools.cache
def script(name: str) -> str:
    """The standalone script of a mode."""
    return gather.script(FAILURES[name])


def by_topic() -> dict[str, list[FailureMode]]:
    """Topic -> its modes, the topics in the order of the questions about them."""
    found: dict[str, list[FailureMode]] = {topic: [] for topic in symptoms.QUESTIONS}
    for mode in FAILURES.values():
        found.setdefault(mode.topic, []).append(mode)
    return {topic: modes for topic, modes in found.items() if modes}


def changed(mode: FailureMode) -> str:
    return changes_in_words(mode.sick, mode.healthy)


def page_of(mode: FailureMode, sources: Sources, contract: dict[str, str]) -> Page:
    record = sources.record["modes"][mode.name]
    runs, others = record["runs"], record["others"]
    sick = runs.get("sick", UNKNOWN)
    found = symptoms.evidence(record, mode.name)
    panes = [figure_of(pane, mode) for pane in record["panes"]]
    seen = symptoms.sights_of(mode)
    ends = ends_of(record)
    alike = look_alikes(mode, sources)
    same_loss = {each["mode"].name for each in alike}
    page = Page(
        f"modes/{mode.name}.html",
        f"{mode.title}: {in_title(mode, ends)}",
        description(mode),
        "mode.html",
        "modes",
        kind="failure mode",
        words=" ".join([typed(ends), sick["error"], *(each.words for each in seen), mode.name.replace("_", " "),
                        mode.mechanism, mode.first_check, mode.remedy]),
        structured=structured(mode, seen),
        scripts=("chart.js",),
    )  # fmt: skip
    page.content.update(
        mode=mode,
        record=record,
        runs={ROLES[role]: run for role, run in runs.items()},
        results=[runs[role]["score"] if role in runs else "not recorded" for role in ("healthy", "cured")],
        command=f"{recorded.COMMAND} {mode.name}",
        panes=panes,
        data=json.dumps(
            [pane["spec"] for pane in panes if pane["spec"]], separators=(",", ":"), ensure_ascii=False
        ).replace("</", "<\\/"),
        sights=seen,
        look=LOOKS[mode.looks],
        changed=changed(mode),
        instrument=symptoms.instrument(mode),
        usual=TRACES[mode.shows].usual if mode.shows in TRACES and TRACES[mode.shows].healthy else "",
        found=found,
        also=[each for each in sick["found"] if each["name"] != mode.name],
        lead=lead(record),
        formula=text.formula(mode.formula) if mode.formula else "",
        cures=[other for other in others if other["kind"] == "cure"],
        false_cures=[other for other in others if other["kind"] == "no cure"],
        why_not=why_not,
        first_cure=next(iter(mode.cures)),
        first_cure_changes=changes_in_words(next(iter(mode.cures.values())), mode.sick),
        alike=alike,
        compared=mode.name in sources.record["compared"],
        confused=[FAILURES[name] for name in found.get("rules_out", ()) if name in FAILURES.keys() - same_loss],
        effects=[FAILURES[name] for name in mode.also_causes if name in FAILURES],
        script=f"{mode.name}.py",
        script_html=text.highlighted(script(mode.name)),
        script_lines=len(script(mode.name).splitlines()),
        measured=calibration.measured().get(mode.name),
        certainty=round(100 * calibration.confidence(mode.name, found.get("confidence", 0.9))),
        prior=round(100 * calibration.PRIOR),
        contract=contract,
        lessons=[lesson for lesson in sources.lessons if mode.name in lesson.modes],
        sliders=[slider for slider in sliders.SLIDERS if slider.mode == mode.name],
        modes=FAILURES,
    )
    return page


def figure_of(pane: dict, mode: FailureMode) -> dict[str, Any]:
    """A pane as a picture, and what the script draws in its place."""
    words = svg.alternative(pane, mode.title)
    return {"title": pane["title"], "picture": svg.picture(pane, words), "spec": None if "picture" in pane else pane}


def description(mode: FailureMode) -> str:
    """The symptom, and what to check first where enough of it can be read."""
    symptom = text.shortened(mode.symptom.replace("`", ""))
    whole = text.shortened(f"{symptom} Check first: {mode.first_check}".replace("`", ""))
    return whole if len(whole.partition("Check first: ")[2]) > ENOUGH else symptom


def ends_of(record: dict) -> list[str]:
    """The loss of the sick run at its first step, and where its curve ends: one batch more or less does not count."""
    first_and_last = record["runs"].get("sick", UNKNOWN)["loss"]
    lines = record["panes"][0].get("lines", ()) if record["panes"] else ()
    curve = next((line["y"] for line in lines if line["label"] == "sick"), [])
    if not first_and_last or not curve or curve[-1] is None:
        return first_and_last
    return [first_and_last[0], str(curve[-1])]


def in_title(mode: FailureMode, ends: list[str]) -> str:
    return IN_TITLES[mode.looks].format(loss=short(ends[-1])) if ends else LOOKS[mode.looks]


def short(number: str) -> str:
    """2.302 as it stands in titles and searches: 2.30."""
    value = float(number)
    return f"{value:.2f}" if 0.01 <= abs(value) < 1000 else f"{value:.2g}"


def typed(ends: list[str]) -> str:
    """The numbers of the sick run as people type them."""
    return f"stuck at {short(ends[-1])} loss {short(ends[-1])} starts at {short(ends[0])}" if ends else ""


def structured(mode: FailureMode, seen: list[symptoms.Sight]) -> list[dict]:
    """For search engines: an article, and the symptom as a question."""
    answer = f"{mode.mechanism} Check first: {mode.first_check} Cure: {mode.remedy}"
    about = [sight.title for sight in seen]
    questions = [
        {"@type": "Question", "name": f"{mode.symptom} Why?", "acceptedAnswer": {"@type": "Answer", "text": answer}},
    ]
    return [
        {"@type": "TechArticle", "headline": mode.title, "description": mode.symptom, "about": about,
         "articleSection": mode.topic.replace("_", " ")},
        {"@type": "FAQPage", "mainEntity": questions},
    ]  # fmt: skip


def lead(record: dict) -> list[tuple[str, int]]:
    """Instruments that left their healthy range before the loss showed anything, and by how many steps."""
    about = record.get("lead") or {}
    shown = about.get("loss")
    if shown is None:
        return []
    return sorted(
        ((words, shown - step) for words, step in about["instruments"].items() if step < shown), key=lambda one: -one[1]
    )


def why_not(verdict: str) -> str:
    """Why a false cure does not cure, as a cell of a table."""
    return verdict.removeprefix("not yet: ").replace("the run still shows unsure: ", "the run still fails: ")


def look_alikes(mode: FailureMode, sources: Sources) -> list[dict[str, Any]]:
    """Failures whose training loss cannot be told apart from this one's, and what tells them apart."""
    found = []
    for pair in sources.record["look_alikes"]:
        names = [pair["one"], pair["other"]]
        if mode.name in names and set(names) <= set(FAILURES):
            mine = names.index(mode.name)
            readings = [f"{pair['readings'][each]:g}" for each in (mine, 1 - mine)] if pair["readings"] else []
            found.append({"mode": FAILURES[names[1 - mine]], "difference": pair["difference"],
                          "instrument": pair["instrument"], "readings": readings})  # fmt: skip
    return sorted(found, key=lambda each: each["difference"])[:MOST_ALIKE]


def contract_rows(sources: Sources) -> dict[str, dict[str, str]]:
    """Mode -> its row of CONTRACT.md."""
    page = sources.root / "labkit/failures/CONTRACT.md"
    lines = page.read_text(encoding="utf-8").splitlines() if page.exists() else []
    header: list[str] = []
    found = {}
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells and cells[0] == "mode":
            header = cells
        elif header and len(cells) == len(header) and (name := re.fullmatch(r"`(\w+)`", cells[0])):
            found[name[1]] = dict(zip(header, cells, strict=True))
    return found
