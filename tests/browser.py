"""A real browser for the tests: servers of our own on loopback, notebooks for the moment, and hands to turn knobs."""

import contextlib
import ctypes
import importlib.util
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import psutil
from helpers import ROOT, hear_ctrl_c

from labkit.cli.serve import LOOPBACK, free_port

PATIENCE = 120  # seconds until something is called missing: many times what it takes, for busy machines
SANDBOX = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]  # what Chromium needs in a container

# No questions and no news in JupyterLab.
LAB_SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
}


def chromium() -> str | None:
    """The system's own browser. Playwright's download is never used."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def missing(*modules: str) -> str:
    """Why the browser tests cannot run here, or nothing."""
    lacking = [name for name in ("playwright", *modules) if importlib.util.find_spec(name) is None]
    if lacking:
        return f"not installed: {', '.join(lacking)} (make test TEST_EXTRAS=dev,browser,dashboard)"
    return "" if chromium() else "there is no chromium on this machine"


# --- servers --------------------------------------------------------------------------------------


@dataclass
class Server:
    """A running server, the folder it serves, and all that it has printed."""

    process: subprocess.Popen
    folder: Path
    log: Path
    url: str = ""
    token: str = ""

    def ask(self, path: str, method: str = "GET"):
        """What the server's own interface says."""
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(f"{self.url}{path}", headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.loads(answer.read() or "null")

    def end_kernels(self) -> None:
        """A page that is closed leaves its kernel behind, with all that it holds."""
        for session in self.ask("/api/sessions"):
            self.ask(f"/api/sessions/{session['id']}", "DELETE")

    def printed(self) -> str:
        return self.log.read_text(errors="replace")


@contextlib.contextmanager
def labkit_server(command: str, folder: Path, *arguments: str) -> Iterator[Server]:
    """`labkit lab` or `labkit play` in folders of its own; ended, with its kernels, whatever happens in between."""
    private = folder / "private"
    port, token = free_port(LOOPBACK), secrets.token_hex(16)  # every server has its own
    log = folder / f"{command}.log"
    words = [sys.executable, "-m", "labkit", command, *arguments, "--no-browser", "--port", str(port)]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            words,
            cwd=folder,
            env=private_environment(private) | {"JUPYTER_TOKEN": token},
            stdout=stream,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            preexec_fn=prepare if os.name == "posix" else None,
        )
    server = Server(process, folder, log, f"http://{LOOPBACK}:{port}", token)
    try:
        wait_for(lambda: answers(server), f"an answer of labkit {command}", detail=server.printed)
        yield server
    finally:
        end(process)
        for left in leftovers(private):
            left.kill()


def private_environment(private: Path) -> dict[str, str]:
    """Folders of our own for all that Jupyter reads and writes, so that nobody's settings matter, nor change."""
    names = ["JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTERLAB_SETTINGS_DIR"]
    names += ["JUPYTERLAB_WORKSPACES_DIR", "IPYTHONDIR", "XDG_CACHE_HOME", "TMPDIR"]
    places = {name: private / name.lower() for name in names}
    for place in places.values():
        place.mkdir(parents=True, exist_ok=True)
    overrides = places["JUPYTER_CONFIG_DIR"] / "labconfig/default_setting_overrides.json"
    overrides.parent.mkdir(exist_ok=True)
    overrides.write_text(json.dumps(LAB_SETTINGS))
    return os.environ | {name: str(place) for name, place in places.items()} | {"PYTHONPATH": str(ROOT)}


def prepare() -> None:
    """In the new process: it hears Ctrl-C, and Linux ends it when its parent is killed, so that none outlives us."""
    hear_ctrl_c()
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)


def answers(server: Server) -> bool:
    """Whether the server is there; a dead one is an error at once."""
    assert server.process.poll() is None, f"the server ended:\n{server.printed()}"
    try:
        urllib.request.urlopen(server.url, timeout=5).close()
    except urllib.error.HTTPError:  # it answers: it wants the token
        return True
    except OSError:
        return False
    return True


def end(process: subprocess.Popen) -> int:
    """Ctrl-C, as a person would; force only when that is not heard."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()


def leftovers(private: Path) -> list[psutil.Process]:
    """Processes that use our private folders: kernels name their connection file."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(str(private) in word for word in process.cmdline()):
                found.append(process)
    return found


def wait_for(condition, what: str, *, detail=lambda: "", patience: float = PATIENCE):
    """The first true answer of a condition."""
    start = time.monotonic()
    while time.monotonic() - start < patience:
        if answer := condition():
            return answer
        time.sleep(0.05)
    raise AssertionError(f"waited {patience} s in vain for {what}\n{detail()}")


# --- pages ----------------------------------------------------------------------------------------


@dataclass
class Complaints:
    """What a page complained of: errors of its scripts, in its console, and of its requests; and whom it asked."""

    heard: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def listen(self, page) -> None:
        page.on("pageerror", lambda error: self.heard.append(f"script: {error}"))
        page.on("console", self.console)
        page.on("response", self.response)
        page.on("request", lambda request: self.asked.append(request.url))

    def console(self, message) -> None:
        if message.type == "error":
            self.heard.append(f"console: {message.text} ({message.location.get('url', '')})")

    def response(self, response) -> None:
        if response.status >= 400:
            self.heard.append(f"{response.status}: {response.request.method} {response.url}")


@contextlib.contextmanager
def chromium_browser() -> Iterator:
    """Chromium, under Playwright's hands."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=SANDBOX)
        yield browser
        browser.close()


@contextlib.contextmanager
def open_page(browser, url: str, *, width: int = 1280, height: int = 1400, **options) -> Iterator:
    """A fresh page, without memory of others, and what it complains of (`page.complaints`)."""
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    context.set_default_timeout(PATIENCE * 1000)
    page = context.new_page()
    page.complaints = Complaints()
    page.complaints.listen(page)
    try:
        page.goto(url, wait_until="domcontentloaded")
        yield page
    finally:
        context.close()


# --- notebooks ------------------------------------------------------------------------------------


TRACEBACK = ".jp-OutputArea-output[data-mime-type*='error']"
STDERR = ".jp-OutputArea-output[data-mime-type*='stderr']"


def write_notebook(path: Path, *cells: str) -> Path:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, path)
    return path


def in_lab(server: Server, name: str) -> str:
    """A notebook in JupyterLab, in a workspace of its own, so that nothing else is open."""
    return f"{server.url}/lab/workspaces/{Path(name).stem}/tree/{name}?token={server.token}&reset"


def in_notebook_7(server: Server, name: str) -> str:
    return f"{server.url}/notebooks/{name}?token={server.token}"


def run_all(page, server: Server, name: str, *, patience: float = PATIENCE) -> None:
    """Run > Run All Cells, once the kernel is really there, and again if the click was lost; until all have run,
    or one of them has failed."""

    def state() -> str:
        sessions = [each for each in server.ask("/api/sessions") if each["path"].endswith(name)]
        return sessions[0]["kernel"]["execution_state"] if sessions else "no kernel"

    def prompts() -> list[str]:
        return [text.strip() for text in page.locator(".jp-CodeCell .jp-InputPrompt").all_text_contents()]

    def started() -> bool:
        return any(prompt not in ("", "[ ]:") for prompt in prompts())

    def ended() -> bool:
        # The kernel is idle between two cells as well, so that its state alone does not say it.
        return all(re.fullmatch(r"\[\d+\]:", prompt) for prompt in prompts()) or page.locator(TRACEBACK).count() > 0

    def press() -> bool:
        if state() == "idle" and not started():
            page.locator(".lm-MenuBar-itemLabel", has_text="Run").first.click()
            page.locator(".lm-Menu-itemLabel", has_text="Run All Cells").first.click()
            with contextlib.suppress(AssertionError):
                wait_for(started, "a prompt", patience=5)
        return started()

    page.locator(".jp-CodeCell").first.wait_for()
    wait_for(press, "the cells to start", detail=server.printed)
    wait_for(ended, "the cells to end", detail=server.printed, patience=patience)


# --- panels ---------------------------------------------------------------------------------------

# Controls without a name that a screen reader could say, in a panel: what axe-core calls button-name, label and
# aria-input-field-name.
NAMELESS = """
panel => [...panel.querySelectorAll('button, input, select, textarea, img, canvas, [role=slider], [role=textbox]')]
  .filter(control => {
    if (control.tagName === 'CANVAS' && !control.checkVisibility()) return false;
    if (control.tagName === 'IMG') return control.naturalWidth > 0 && !control.alt;
    const labels = control.labels ? [...control.labels].map(label => label.textContent) : [];
    const own = control.tagName === 'BUTTON' ? control.textContent : '';
    const said = [control.getAttribute('aria-label'), own, ...labels, control.placeholder];
    return !said.some(words => words && words.trim());
  })
  .map(control => control.outerHTML.slice(0, 200))
"""

# Words in a panel whose contrast with what is behind them is below 4.5 to 1, which WCAG asks for.
PALE = """
panel => {
  const numbers = colour => (colour.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    for (let each = element; each; each = each.parentElement) {
      const colour = numbers(getComputedStyle(each).backgroundColor);
      if (colour.length && (colour.length < 4 || colour[3] === 1)) return colour;
    }
    return [255, 255, 255];
  };
  const pale = [];
  for (const element of panel.querySelectorAll('*')) {
    const words = [...element.childNodes].filter(node => node.nodeType === 3).map(node => node.data).join('').trim();
    if (!words || !element.checkVisibility() || element.matches('option, style')) continue;
    const [one, other] = [light(numbers(getComputedStyle(element).color)), light(behind(element))];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (contrast < 4.5) pale.push(`${words.slice(0, 40)}: ${contrast.toFixed(1)}`);
  }
  return pale;
}
"""

# Buttons whose words do not fit, and panels wider than their place.
CUT_OFF = """
panel => [panel, ...panel.querySelectorAll('button, .widget-label')]
  .filter(part => part.checkVisibility() && part.scrollWidth > part.clientWidth + 1)
  .map(part => part === panel ? 'the panel itself' : part.textContent)
"""

# What the charts show: their pixels, the number of points, and the limits of the axes.
CHARTS = """
async charts => {
  const canvases = [...charts.querySelectorAll('canvas')].filter(canvas => canvas.checkVisibility());
  const pixels = new TextEncoder().encode(canvases.map(canvas => canvas.toDataURL()).join());
  const hash = [...new Uint8Array(await crypto.subtle.digest('SHA-256', pixels))].join();
  const points = canvases.map(canvas => Number(canvas.dataset.points));
  const limits = canvases.map(canvas => (canvas.dataset.limits || '').split(' ').map(Number));
  return {hash, points, limits, width: charts.clientWidth, density: canvases[0].width / canvases[0].clientWidth};
}
"""

# The lightness of the y axis of a chart, from 0 to 1; NaN, which no comparison holds for, if there is none.
AXIS = """
canvas => {
  const dense = canvas.width / canvas.clientWidth;
  const shades = [...canvas.getContext('2d').getImageData(40 * dense, 60 * dense, 40 * dense, 1).data];
  const opaque = shades.map((_, i) => i).filter(i => i % 4 === 3 && shades[i] > 100);
  if (!opaque.length) return NaN;
  return Math.max(...opaque.map(i => (shades[i - 1] + shades[i - 2] + shades[i - 3]) / 765));
}
"""


class Panel:
    """A panel in a page, as a person sees and handles it."""

    def __init__(self, page, server: Server):
        self.page, self.server = page, server
        self.root = page.locator(".labkit-panel").first
        self.root.wait_for()

    @property
    def status(self) -> str:
        """What the status says; nothing in the moment in which it is replaced."""
        return " ".join(self.root.locator("[role=status]").all_inner_texts())

    @property
    def verdict(self) -> str:
        return self.root.locator(".labkit-verdict").inner_text()

    @property
    def progress(self) -> float:
        """The bar's length, in percent."""
        style = self.root.locator(".labkit-progress .progress-bar").get_attribute("style")
        return float(style.split("width:")[1].split("%")[0])

    def charts(self) -> dict:
        """What the charts show now."""
        shown = self.root.locator(".labkit-picture").first
        shown.locator("canvas[data-points]").first.wait_for()
        return shown.evaluate(CHARTS)

    @property
    def canvas(self):
        """The first chart."""
        return self.root.locator(".labkit-picture canvas").first

    @property
    def tip(self):
        """What is said about the place under the pointer."""
        return self.root.locator(".labkit-chart-tip:visible").first

    def point(self, across: float, down: float = 0.5) -> None:
        """Move the pointer to a place in the first chart, as fractions of its axes."""
        self.canvas.scroll_into_view_if_needed()
        box = self.canvas.bounding_box()
        left, right, top, bottom = 58, 14, 8, 36  # the margins of chart.js
        x = box["x"] + left + across * (box["width"] - left - right)
        self.page.mouse.move(x, box["y"] + top + down * (box["height"] - top - bottom), steps=3)

    def drag_over(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Drag from one place in the first chart to another."""
        self.point(*start)
        self.page.mouse.down()
        self.point(*end)
        self.page.mouse.up()

    def wait(self, *words: str, without: str = "\0") -> str:
        """Until the status has all these words; the status."""

        def there() -> str | None:
            status = self.status
            return status if all(word in status for word in words) and without not in status else None

        return wait_for(there, f"a status with {words}", detail=lambda: f"it says: {self.status}")

    def button(self, name: str):
        """A button by its words, which an icon may precede."""
        return self.root.get_by_role("button", name=re.compile(rf"{name}$"))

    def press(self, name: str) -> None:
        self.button(name).click()

    def press_by_keyboard(self, name: str) -> None:
        self.button(name).focus()
        self.button(name).press("Enter")

    def handle(self, knob: str):
        return self.root.locator(f".labkit-knob-{knob} .noUi-handle")

    def readout(self, knob: str) -> str:
        return self.root.locator(f".labkit-knob-{knob} .widget-readout").inner_text()

    def trained_value(self, knob: str) -> float | None:
        """The value that the panel in the kernel has, as its state tells."""
        found = re.search(rf"\b{knob}=([\d.e-]+)", self.root.locator(".labkit-state input").input_value())
        return float(found[1]) if found else None

    def drag(self, knob: str, *fractions: float) -> None:
        """Drag the handle of a slider with the mouse over these places of its track, and let go at the last."""
        track = self.root.locator(f".labkit-knob-{knob} .noUi-base")
        track.scroll_into_view_if_needed()
        box, start = track.bounding_box(), self.handle(knob).bounding_box()
        self.page.mouse.move(start["x"] + start["width"] / 2, start["y"] + start["height"] / 2)
        self.page.mouse.down()
        for fraction in fractions:
            self.page.mouse.move(box["x"] + fraction * box["width"], box["y"] + box["height"] / 2, steps=3)
        self.page.mouse.up()

    def paste(self, state: str) -> None:
        """Open "Copy as code" if it is folded, and put a state in its field."""
        field = self.root.locator(".labkit-state input")
        if not field.is_visible():
            self.root.get_by_text("Copy as code").click()
        field.fill(state)
        field.press("Enter")

    def complain(self, script: str) -> list[str]:
        """What one of the checks above has to say."""
        return self.root.evaluate(script)
