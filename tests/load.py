"""Many visitors of one `labkit play`: `python tests/load.py [visitors]`. Nothing is asserted.

Opens the page in this many browser tabs, one after the other, and waits until each has trained its first panel. Then
it releases the learning-rate slider in the first tab, alone and while another visitor trains too, measures the memory
of all kernels, and looks at what the next visitor gets.
"""

import os
import platform
import re
import statistics
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import browser
import psutil
from latency import STOPWATCH, places, release


def kernels(server: browser.Server) -> list[psutil.Process]:
    return [
        each
        for each in psutil.Process(server.process.pid).children(recursive=True)
        if "ipykernel" in str(each.cmdline())
    ]


def memory_of(processes: list[psutil.Process]) -> list[float]:
    """Megabytes of each, pages that they share counted in parts where the system says so."""
    found = [each.memory_full_info() for each in processes]
    return [getattr(each, "pss", each.rss) / 1e6 for each in found]


def measure(visitors: int) -> str:
    with (
        tempfile.TemporaryDirectory(prefix="labkit-load-") as folder,
        browser.chromium_browser() as made,
        browser.labkit_server("play", Path(folder), "--visitors", str(visitors)) as server,
    ):
        link = re.search(r"http://\S+", server.printed())[0]
        context = made.new_context(viewport={"width": 1366, "height": 768})
        context.set_default_timeout(browser.PATIENCE * 1000)
        opened, panels = [], []
        for _ in range(visitors):
            began = time.monotonic()
            page = context.new_page()
            page.goto(link, wait_until="domcontentloaded")
            panels.append(browser.Panel(page, server))
            panels[-1].wait("Diagnosis:")
            opened.append(time.monotonic() - began)
        memory = memory_of(kernels(server))
        alone, together = turned(panels)
        return as_text(opened, memory, alone, together, refused(link))


def turned(panels: list[browser.Panel], times: int = 5) -> tuple[list[float], list[float]]:
    """Milliseconds from the release of the slider to the finished chart: alone, and while another visitor trains."""
    first, last = panels[0], panels[-1]
    first.page.bring_to_front()
    first.page.evaluate(STOPWATCH)
    alone = [release(first, place)[1] for place in places(times)]
    last.paste("learning_rate_too_high/healthy: steps=100000")
    last.wait("Training: step")
    first.page.bring_to_front()
    together = [release(first, place)[1] for place in places(times)]
    return alone, together


def refused(link: str) -> str:
    try:
        with urllib.request.urlopen(link) as answer:
            return f"{answer.status}"
    except urllib.error.HTTPError as error:
        return f"{error.code} {re.search('<h1>(.*?)</h1>', error.read().decode())[1]}"


def as_text(opened, memory, alone, together, next_one: str) -> str:
    middle = statistics.median
    return "\n".join(
        [
            f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {len(opened)} visitors",
            f"page opened and first panel trained: {middle(opened):.1f} s median, {max(opened):.1f} s at most",
            f"memory of all kernels: {sum(memory) / 1e3:.1f} GB, {middle(memory):.0f} MB median",
            f"slider to finished chart: {middle(alone):.0f} ms alone, {middle(together):.0f} ms beside another run",
            f"the next visitor gets: {next_one}",
        ]
    )


if __name__ == "__main__":
    if reason := browser.missing("voila"):
        sys.exit(f"load: {reason}")
    print(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 20))
