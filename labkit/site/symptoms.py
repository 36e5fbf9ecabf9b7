"""What do you see? From the curve, over one question, to every failure mode; and the usual error messages."""

import re
from dataclasses import dataclass
from typing import Any

from labkit.course.poster.content import PREFLIGHT, TREE
from labkit.failures.catalogue import FAILURES
from labkit.failures.mode import FailureMode
from labkit.failures.signs import Look
from labkit.recording.traces import trace
from labkit.site import svg, text
from labkit.site.messages import MESSAGES
from labkit.site.page import Page
from labkit.site.sources import Sources


@dataclass(frozen=True)
class Sight:
    """Something that people see, in their words, and the modes that show it."""

    name: str
    title: str
    asks: str  # what to look at next
    words: str  # what people type into a search
    looks: tuple[Look, ...] = ()
    pattern: str = ""  # in the symptom of a mode, or in the name of its curve
    means: str = ""  # what one knows already, before any instrument

    def shown_by(self, mode: FailureMode) -> bool:
        said = f"{mode.symptom} {mode.classic.curve if mode.classic else ''}"
        return mode.looks in self.looks or bool(self.pattern and re.search(self.pattern, said))


SIGHTS = (
    Sight(
        "never-moves",
        "The loss never moves",
        "Does any gradient reach the weights, and does any weight change?",
        "loss stuck at 2.30 2.303 0.693 0.69 6.9 flat constant not decreasing not going down does not learn plateau "
        "accuracy stays at 10% chance model predicts one class ln(2) ln(10) 4.6 4.61 4.605 6.91 6.908",
        ("never moves",),
        means="2.30 is ln(10): the loss of a net that gives ten classes the same probability. With 2 classes it is "
        "0.69, with 100 it is 4.61, with 1,000 it is 6.91.",
    ),
    Sight(
        "nan",
        "The loss is NaN or infinite",
        "Where does the first value that is not finite appear: in inputs, weights, activations, loss or gradients?",
        "loss is nan loss inf nan after a few steps nan at first step overflow not a number",
        ("not finite",),
        means="One NaN makes every later one. What counts is the first value that is not finite, and where it is.",
    ),
    Sight(
        "jumps",
        "The loss jumps up and does not come back",
        "How large is an update, relative to the weights it changes?",
        "loss explodes diverges loss goes up increases suddenly loss spikes exploding",
        ("jumps",),
    ),
    Sight(
        "oscillates",
        "The loss oscillates or spikes",
        "Is the rhythm that of batches, of epochs, or slower?",
        "loss oscillates noisy loss zigzag sawtooth loss spikes up and down unstable training fluctuates",
        pattern=r"oscillates|swings|spikes|sawtooth",
    ),
    Sight(
        "stalls",
        "The loss falls, then stalls too high",
        "Is the net too small, are the steps too small, or does something hold it back?",
        "loss plateaus stalls slow training underfitting accuracy too low loss decreases slowly stops improving",
        ("stops too high",),
    ),
    Sight(
        "validation-worse",
        "Training looks fine, validation does not",
        "Is it the same net in the same mode on the same kind of inputs?",
        "validation loss increases overfitting val loss rises goes up while train training loss decreases goes down "
        "val accuracy low train accuracy high gap validation worse than training validation loss higher",
        ("validation worse",),
    ),
    Sight(
        "too-good",
        "Too good to be true",
        "What does the net see that it will not have in use?",
        "accuracy too good loss too low perfect validation data leakage model cheats works in training fails in "
        "production",
        pattern=r"in production|useless",
    ),
    Sight(
        "nothing",
        "Nothing looks wrong",
        "Which instrument beside the curves have you not read yet?",
        "loss looks normal but results are bad silent bug curves look fine",
        ("nothing",),
    ),
    Sight(
        "error",
        "Training stops with an error",
        "What does the message say, in which line?",
        "RuntimeError exception error message traceback pytorch",
        ("error",),
    ),
)
# The second question: what kind of thing is it? One per topic of the catalogue; a new topic is asked by its name.
QUESTIONS = {
    "learning_rate": "Is it the size or the number of the steps?",
    "gradients": "Do gradients shrink, grow or get cut on their way?",
    "weights": "Is it how the weights begin, or what becomes of them?",
    "activations": "Are units dead, saturated or all alike?",
    "numerics": "Is it the arithmetic: 16 bits, a logarithm, a root, a division?",
    "data": "Is it the data, or how they are scaled, drawn and labelled?",
    "code": "Is it a bug in the loop, the model or the loss?",
    "generalisation": "Does it learn the wrong amount: does it memorise, or learn too little?",
    "landscape": "Is it the place where the loss is flat or steep?",
    "language": "Is it a language model: masks, positions, heads?",
    "distributed": "Do several processes train together?",
}


def sights_of(mode: FailureMode) -> list[Sight]:
    return [sight for sight in SIGHTS if sight.shown_by(mode)]


def question(topic: str) -> str:
    return QUESTIONS.get(topic, f"Is it {topic.replace('_', ' ')}?")


def tree(sources: Sources) -> list[tuple[Sight, list[tuple[str, list[dict]]]]]:
    """Sight -> question -> leaves; every mode is at least one leaf."""
    found = []
    for sight in SIGHTS:
        modes = [mode for mode in FAILURES.values() if sight.shown_by(mode)]
        topics = sorted({mode.topic for mode in modes}, key=lambda topic: [*QUESTIONS, topic].index(topic))
        branches = [
            (question(topic), [leaf(mode, sources) for mode in modes if mode.topic == topic]) for topic in topics
        ]
        found.append((sight, branches))
    return found


def chain(branches: list[tuple[str, list[dict]]]) -> list[dict]:
    """The leaves of all questions."""
    return [leaf for _, leaves in branches for leaf in leaves]


def leaf(mode: FailureMode, sources: Sources) -> dict[str, Any]:
    """A mode at the end of the tree: the instrument, and what it read in a real run."""
    first = evidence(sources.record["modes"].get(mode.name, {}), mode.name)
    return {
        "mode": mode,
        "instrument": instrument(mode),
        "seen": first.get("seen", ""),
        "usual": first.get("usual", ""),
    }


def evidence(record: dict, name: str) -> dict:
    """What the diagnosis of the recorded sick run says of this mode."""
    found = record.get("runs", {}).get("sick", {}).get("found", [])
    return next((each for each in found if each["name"] == name), {})


SHOWN = {"origin": "the first value that is not finite", "gap": "the gap between training and validation"}


def instrument(mode: FailureMode) -> str:
    """The instrument that shows a mode, in words."""
    return SHOWN.get(mode.shows) or trace(mode.shows).words


NO_CURVE = '<span class="spark words" aria-hidden="true">Error: …</span>'


def thumbnails(sources: Sources) -> dict[str, str]:
    """Sight -> the loss of a real run that shows it, beside its healthy twin; another run for each."""
    found: dict[str, str] = {}
    used: set[str] = set()
    for sight in SIGHTS:
        modes = [mode for mode in FAILURES.values() if sight.shown_by(mode) and mode.name not in used]
        modes.sort(key=lambda mode: (not (mode.classic and sight.pattern), mode.headline or 99, mode.classic is None))
        for mode in modes:
            lines = loss_lines(sources.record["modes"].get(mode.name, {}))
            if any(line["role"] == "sick" for line in lines):
                found[sight.name] = svg.sparkline(lines)
                used.add(mode.name)
                break
    return {sight.name: found.get(sight.name, NO_CURVE) for sight in SIGHTS}


def loss_lines(record: dict) -> list[dict]:
    """Training loss of the healthy and the sick run, smoothed; the dots of its validation loss; where it became NaN."""
    panes = record.get("panes", [])
    lines = panes[0].get("lines", ()) if panes else ()
    found = []
    for line in lines:
        role = {"healthy": "healthy", "sick": "sick", "_sick, validation": "dots"}.get(line["label"])
        if line.get("marker") == "X":
            found.append({"role": "end", "x": line["x"], "y": [None]})
        elif role and len(line["x"]) > 1:
            found.append({"role": role, "x": line["x"], "y": line["y"]})
    return found


def page(sources: Sources) -> Page:
    found = tree(sources)
    answers = [
        {
            "@type": "Question",
            "name": f"{sight.title}: what can it be?",
            "acceptedAnswer": {
                "@type": "Answer",
                "text": f"{sight.means} {', '.join(leaf['mode'].title for leaf in chain(branches))}.".strip(),
            },
        }
        for sight, branches in found
    ]
    return Page(
        "symptoms.html",
        "What do you see? From symptom to cause",
        "Loss stuck at 2.30, NaN, jumps, oscillates, plateaus, validation worse, too good: one question each leads to "
        f"one of {len(FAILURES)} causes, with the reading that identifies it.",
        "symptoms.html",
        "symptoms",
        {"tree": found, "quick": TREE, "preflight": PREFLIGHT, "messages": MESSAGES, "modes": FAILURES,
         "thumbnails": thumbnails(sources)},
        kind="symptom index",
        words=" ".join([sight.words for sight in SIGHTS] + [each.message for each in MESSAGES]),
        structured=[{"@type": "FAQPage", "mainEntity": answers}],
    )  # fmt: skip


def entries() -> list[dict[str, str]]:
    """What the search knows beside pages: sights and error messages, each with its place on the symptom page."""
    found = [
        {
            "title": sight.title,
            "path": f"symptoms.html#{sight.name}",
            "kind": "symptom",
            "about": f"{sight.means} {sight.asks}".strip(),
            "words": sight.words,
        }
        for sight in SIGHTS
    ]
    for each in MESSAGES:
        path = f"symptoms.html#{each.name}"
        about = text.shortened(text.plain(each.means))
        found.append({"title": each.message, "path": path, "kind": "error message", "about": about, "words": each.todo})
    return found
