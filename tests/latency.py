"""How long the knobs take in a real browser: `python tests/latency.py [times]`. Nothing is asserted.

The times are taken inside the page, by the browser's own clock: from the mouse's release of the learning-rate slider to
the first new points in the chart, and to the finished chart with the status that describes it; and from the click on
Stop to the status that says so. Each release sets a rate that was not tried before: no run comes from memory.
"""

import os
import platform
import random
import statistics
import sys
import tempfile
from pathlib import Path

import browser

NOTEBOOK = "latency.ipynb"
LAST_FRAME = 100  # milliseconds after the status in which the browser draws the chart that came with it
PANEL = "import labkit\n\nlabkit.knobs(labkit.Recipe())"  # the standard perceptron of 400 steps

# Notes when the picture and the status changed, and when the mouse was let go or a button pressed.
STOPWATCH = """
() => {
  window.noted = [];
  const note = (what, words = '') => window.noted.push({what, words, at: performance.now()});
  const panel = document.querySelector('.labkit-panel');
  new MutationObserver(changes => {
    for (const change of changes) {
      const at = change.target.nodeType === 1 ? change.target : change.target.parentElement;
      if (change.type === 'attributes') note('picture');
      else if (at && at.closest('.labkit-status')) note('status', panel.querySelector('.labkit-status').innerText);
    }
  }).observe(panel, {
    subtree: true, childList: true, characterData: true, attributes: true, attributeFilter: ['src', 'data-points']
  });
  for (const kind of ['mouseup', 'pointerup', 'click'])
    window.addEventListener(kind, () => note('hand'), {capture: true});
}
"""


def measure(times: int) -> dict[str, list[float]]:
    """Name -> milliseconds, one for each time."""
    found = {"first live picture": [], "finished picture": [], "stopped": []}
    with tempfile.TemporaryDirectory(prefix="labkit-latency-") as folder:
        notebooks = Path(folder) / "notebooks"
        notebooks.mkdir()
        browser.write_notebook(notebooks / NOTEBOOK, PANEL)
        with browser.labkit_server("lab", Path(folder), str(notebooks)) as server, browser.chromium_browser() as made:
            measure_in(made, server, times, found)
    return found


def measure_in(chromium, server: browser.Server, times: int, found: dict[str, list[float]]) -> None:
    with browser.open_page(chromium, browser.in_lab(server, NOTEBOOK), width=1600) as page:
        browser.run_all(page, server, NOTEBOOK)
        panel = browser.Panel(page, server)
        panel.wait("Diagnosis:")
        page.evaluate(STOPWATCH)
        for place in places(times):
            first, last = release(panel, place)
            found["first live picture"].append(first)
            found["finished picture"].append(last)
        for place in places(times):
            found["stopped"].append(stop(panel, place))


def places(times: int) -> list[float]:
    """Places of the slider, in no order, none near another."""
    spread = [0.15 + 0.65 * (number + 0.5 * random.random()) / times for number in range(times)]
    return random.sample(spread, times)


def release(panel: browser.Panel, place: float) -> tuple[float, float]:
    """Drag the learning rate there: milliseconds to the first new picture, and to the finished one."""
    panel.page.evaluate("() => { window.noted = [] }")
    panel.drag("lr", place)
    browser.wait_for(lambda: ended(panel, "Diagnosis:"), "the end of a run", detail=lambda: panel.status)
    browser.wait_for(lambda: pictures(panel), "a picture of the run", detail=lambda: panel.status)
    panel.page.wait_for_timeout(LAST_FRAME)
    return pictures(panel)[0], since_hand(panel)[-1]["at"]


def since_hand(panel: browser.Panel) -> list[dict]:
    """What was noted since the mouse was let go, in milliseconds since then."""
    noted = panel.page.evaluate("() => window.noted")
    hand = [note["at"] for note in noted if note["what"] == "hand"][-1]
    return [note | {"at": note["at"] - hand} for note in noted if note["at"] > hand]


def pictures(panel: browser.Panel) -> list[float]:
    """When the chart changed. On a busy machine that may be after the status that describes it."""
    return [note["at"] for note in since_hand(panel) if note["what"] == "picture"]


def stop(panel: browser.Panel, place: float) -> float:
    """Press Stop in the middle of a long run: milliseconds until the panel says that it has stopped."""
    panel.paste(f"recipe: steps=100000, lr={10 ** (-3 + 2 * place):.3g}")
    panel.wait("Training: step")
    panel.page.evaluate("() => { window.noted = [] }")
    panel.press("Stop")
    noted = browser.wait_for(lambda: ended(panel, "Stopped"), "the stop", detail=lambda: panel.status)
    hand = [note["at"] for note in noted if note["what"] == "hand"][-1]
    return noted[-1]["at"] - hand


def ended(panel: browser.Panel, words: str) -> list[dict] | None:
    """What was noted, up to the status with these words; None as long as it is not there."""
    noted = panel.page.evaluate("() => window.noted")
    for number, note in enumerate(noted):
        if note["what"] == "status" and words in note["words"]:
            return noted[: number + 1]
    return None


def times_as_text(found: dict[str, list[float]]) -> str:
    lines = [f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, JupyterLab, 400 steps"]
    for name, values in found.items():
        usual, least, most = statistics.median(values), min(values), max(values)
        lines.append(f"{name:20}{usual:7.0f} ms median of {len(values)} (from {least:.0f} to {most:.0f})")
    return "\n".join(lines)


if __name__ == "__main__":
    if reason := browser.missing():
        sys.exit(f"latency: {reason}")
    print(times_as_text(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 10)))
