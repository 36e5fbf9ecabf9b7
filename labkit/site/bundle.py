"""The diagnosis for the browser: the modules of labkit that read a run and name its failure, in one archive."""

import base64
import io
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from labkit.errors import RecipeError
from labkit.failures.catalogue import FAILURES
from labkit.site import recorded
from labkit.site.browser.answer import answer
from labkit.site.page import Page
from labkit.site.sources import Sources

HERE = Path(__file__).parent
STAMP = (1980, 1, 1, 0, 0, 0)  # of every file in the archive: the same modules give the same bytes
PACKAGE = HERE.parent
PYODIDE = "314.0.7"
CDN = f"https://cdn.jsdelivr.net/pyodide/v{PYODIDE}/full/"
MEGABYTES = 13  # pyodide 9.6 and numpy 3, compressed
DATA = ("diagnosis/calibration.json",)
# In a process without torch: what an import of the answer needs, which shows that it works as well.
TRACE = """
import sys
from labkit.site.browser.torch_stub import install
install()
import labkit.site.browser.answer
print("\\n".join(name for name in sys.modules if name.split(".")[0] == "labkit"))
"""


def modules() -> list[str]:
    """The modules of labkit that the page needs."""
    done = subprocess.run(
        [sys.executable, "-c", TRACE], capture_output=True, text=True, cwd=PACKAGE.parent, check=False
    )
    if done.returncode:
        raise RecipeError(f"the diagnosis does not load without torch: {done.stderr.strip().splitlines()[-1]}")
    return sorted(done.stdout.split())


def archive() -> bytes:
    """The modules as a .zip that Python imports from; the same files give the same bytes."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as made:
        for name in modules():
            made.writestr(*_entry(_file(name)))
        for name in DATA:
            made.writestr(*_entry(PACKAGE / name))
    return stream.getvalue()


def _file(module: str) -> Path:
    place = PACKAGE.parent.joinpath(*module.split("."))
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def _entry(path: Path) -> tuple[zipfile.ZipInfo, bytes]:
    about = zipfile.ZipInfo(path.relative_to(PACKAGE.parent).as_posix(), STAMP)
    about.compress_type = zipfile.ZIP_DEFLATED
    return about, path.read_bytes()


def examples(sources: Sources) -> dict[str, tuple[str, bytes]]:
    """Files to try the page with, {name: (about, content)}: a run with all instruments, and the loss of another."""
    modes = sources.record["modes"]
    found = {}
    if file := modes[recorded.FILED].get("file"):
        found["example.npz"] = ("a run recorded with all instruments", base64.b64decode(file))
    if log := modes[recorded.LOGGED].get("log"):
        found["example.csv"] = ("the losses of another, and nothing else", log.encode())
    return found


def answer_to(name: str, content: bytes) -> str:
    """What the page says about a file: the same code, run here."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        return json.loads(answer(str(path)))["text"]


def pages(sources: Sources, pyodide: bool) -> list[Page]:
    return [
        Page(
            "diagnose/index.html",
            "Diagnose your run in the browser",
            "Drop a CSV log, a scalar export of TensorBoard or a saved run on the page. The diagnosis runs in your "
            "browser; the file never leaves it.",
            "diagnose.html",
            "diagnose",
            {
                "source": "pyodide/" if pyodide else CDN,
                "own": pyodide,
                "pyodide": PYODIDE,
                "megabytes": MEGABYTES,
                "examples": [
                    (name, about, answer_to(name, content)) for name, (about, content) in examples(sources).items()
                ],
                "titles": {name: mode.title for name, mode in FAILURES.items()},
            },
            kind="diagnose",
            words="upload csv tensorboard log my run my training diagnosis online",
            scripts=("chart.js", "diagnose.js"),
        )
    ]
