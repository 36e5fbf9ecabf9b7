"""Pages to play with: sliders over recorded runs, curves to guess, and the ward."""

import base64
import json
from typing import Any

from labkit.course.ward.game import MOST, RIGHT
from labkit.course.ward.instruments import INSTRUMENTS
from labkit.failures.catalogue import FAILURES
from labkit.failures.mode import FailureMode
from labkit.site import modes, svg, symptoms
from labkit.site.page import Page
from labkit.site.patients import grades_of
from labkit.site.sliders import SLIDERS, Slider
from labkit.site.sources import Sources

KEY = 73  # the answers of the ward are not readable in the source of the page


def pages(sources: Sources) -> list[Page]:
    return [sliders_page(sources), gallery_page(sources), ward_page(sources)]


# --- sliders ---


def sliders_page(sources: Sources) -> Page:
    shown = [slider for slider in SLIDERS if slider.name in sources.record["sliders"]]
    return Page(
        "play/index.html",
        "Play: turn one knob and watch training break",
        f"{len(shown)} sliders over real recorded runs: learning rate, depth, samples, dropout, initialisation, "
        "batch size, "
        "clipping, warm-up, momentum, width. The verdict follows.",
        "play.html",
        "play",
        {
            "sliders": shown,
            "data": script_data({slider.name: for_script(slider, sources) for slider in shown}),
            "modes": FAILURES,
        },
        kind="play",
        words="playground slider interactive " + " ".join(slider.question for slider in shown),
        scripts=("chart.js", "play.js"),
    )


def for_script(slider: Slider, sources: Sources) -> dict[str, Any]:
    """What the page needs of one slider."""
    places = sources.record["sliders"][slider.name]["places"]
    return {"knob": slider.knob, "places": places, "start": healthy_place(places)}


def healthy_place(places: list[dict]) -> int:
    """Where a slider starts: a run without a verdict, as good as any."""
    fine = [number for number, place in enumerate(places) if not place["verdict"]] or list(range(len(places)))
    return max(fine, key=lambda number: float(places[number]["score"].rstrip("%").split()[0].replace("-", "0")))


def script_data(content: Any) -> str:
    """JSON for a <script> element."""
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).replace("</", "<\\/")


# --- guess first ---


def gallery_page(sources: Sources) -> Page:
    cards = [card(mode, sources) for mode in classic() if record_of(mode, sources)["panes"]]
    return Page(
        "play/gallery.html",
        "Guess first: name the failure from its loss curve",
        f"{len(cards)} real loss curves beside their healthy twins. Look, guess, and see the diagnosis.",
        "gallery.html",
        "play",
        {"cards": cards},
        kind="play",
        words="quiz loss curve gallery guess",
        scripts=("gallery.js",),
    )


def classic() -> list[FailureMode]:
    return sorted(
        (mode for mode in FAILURES.values() if mode.classic), key=lambda mode: mode.classic.place if mode.classic else 0
    )


def card(mode: FailureMode, sources: Sources) -> dict[str, Any]:
    """A curve, the names to choose from (the true one and three whose order says nothing), and the answer."""
    record = sources.record["modes"][mode.name]
    pool = [each for each in classic() if each is not mode and record_of(each, sources)["panes"]]
    place = pool.index(next((each for each in pool if each.name > mode.name), pool[0]))
    others = [pool[(place + 2 * number) % len(pool)] for number in range(3)]
    choices = sorted({each.name: each for each in [mode, *others]}.values(), key=lambda each: each.title)
    found = symptoms.evidence(record, mode.name)
    pane = without_the_cure(record["panes"][0])
    curves = svg.alternative(pane, "Curves").partition(": ")[2]
    words = f"Training and validation loss of an unnamed run beside its healthy twin. {curves}"
    return {"mode": mode, "choices": choices, "picture": svg.picture(pane, words), "found": found,
            "curve": mode.classic.curve if mode.classic else ""}  # fmt: skip


def without_the_cure(pane: dict) -> dict:
    """Healthy and sick alone: what cures it would say what it is."""
    return pane | {"lines": [line for line in pane["lines"] if "cured" not in line["label"]]}


def record_of(mode: FailureMode, sources: Sources) -> dict:
    return sources.record["modes"][mode.name]


# --- the ward ---


def ward_page(sources: Sources) -> Page:
    patients = sources.record["patients"]
    sealed = {number: seal(one, number) for number, one in patients.items()}
    prices = {name: INSTRUMENTS[name].price for name in INSTRUMENTS}
    names = {topic: [(mode.name, mode.title) for mode in found] for topic, found in modes.by_topic().items()}
    return Page(
        "play/ward.html",
        "The ward: six sealed patients",
        "Six nets failed to train. Order instruments, each has a price; name the failure; open the file.",
        "ward.html",
        "play",
        {
            "patients": [
                {"number": number, "complaint": one["complaint"], "net": one["net"]} for number, one in patients.items()
            ],
            "instruments": [
                (name, INSTRUMENTS[name].title, prices[name]) for name in next(iter(patients.values()))["findings"]
            ],
            "names": names,
            "right": RIGHT,
            "most": MOST,
            "data": script_data({"key": KEY, "prices": prices, "right": RIGHT, "patients": sealed}),
        },
        kind="play",
        words="game exam quiz sealed patients diagnose",
        scripts=("chart.js", "ward.js"),
    )


def seal(patient: dict[str, Any], number: str) -> str:
    """A patient's file, unreadable at a glance. Pictures of curves are drawn by the page."""
    content = {name: patient[name] for name in ("findings", "answer")} | {"grades": grades_of(patient)}
    data = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    return base64.b64encode(bytes(byte ^ KEY for byte in data)).decode()
