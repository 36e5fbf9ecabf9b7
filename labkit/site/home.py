"""The home page."""

from labkit.course.poster.content import PREFLIGHT
from labkit.failures.catalogue import FAILURES, HEADLINES
from labkit.site import play, svg, symptoms
from labkit.site.page import Page
from labkit.site.sliders import SLIDERS
from labkit.site.sources import Sources


def pages(sources: Sources) -> list[Page]:
    first = SLIDERS[0]
    shown = symptoms.thumbnails(sources)
    sights = [(sight, shown[sight.name]) for sight in symptoms.SIGHTS]
    return [
        Page(
            "index.html",
            "How training fails, and how to tell why",
            "A field guide to failures of neural-network training: what the loss curve looks like, the instrument "
            "that tells the "
            f"cause, and the cure that was seen to work. {len(FAILURES)} failures, every curve a real run.",
            "home.html",
            "home",
            {
                "sights": sights,
                "headlines": [(FAILURES[name], symptoms.evidence(sources.record["modes"][name], name),
                               svg.sparkline(symptoms.loss_lines(sources.record["modes"][name])))
                              for name in HEADLINES],
                "preflight": PREFLIGHT,
                "count": len(FAILURES),
                "lessons": sources.lessons,
                "slider": first,
                "sliders": len(SLIDERS),
                "data": play.script_data({first.name: play.for_script(first, sources)}),
            },
            kind="home",
            words="labkit pytorch training debugging loss curve field guide",
            structured=[{"@type": "WebSite", "name": "labkit", "description": "How training fails, how to tell why"}],
            scripts=("chart.js", "play.js"),
        )
    ]  # fmt: skip
