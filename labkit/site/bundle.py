"""The diagnosis for the browser: the modules of labkit that read a run and name its failure, in one archive."""

import io
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from labkit.errors import RecipeError
from labkit.failures.catalogue import FAILURES, HEADLINES
from labkit.site.browser.answer import answer
from labkit.site.page import Page
from labkit.site.sources import Sources

HERE = Path(__file__).parent
STAMP = (1980, 1, 1, 0, 0, 0)  # of every file in the archive: the same modules give the same bytes
PACKAGE = HERE.parent
PYODIDE = "314.0.7"
CDN = f"https://cdn.jsdelivr.net/pyodide/v{PYODIDE}/full/"
EXAMPLE = "example.csv"
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


def example(sources: Sources) -> bytes:
    """The log of a recorded run that failed, as a CSV to try the page with."""
    panes = next(panes for name in HEADLINES if (panes := sources.record["modes"][name]["panes"]))
    line = next(each for each in panes[0]["lines"] if each["label"] == "_sick, each step")
    rows = [f"{x},{'nan' if y is None else y}" for x, y in zip(line["x"], line["y"], strict=True)]
    return "\n".join(["step,loss", *rows, ""]).encode()


def answer_to(content: bytes) -> str:
    """What the page says about a log: the same code, run here."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / EXAMPLE
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
                "example": EXAMPLE,
                "example_answer": answer_to(example(sources)),
                "titles": {name: mode.title for name, mode in FAILURES.items()},
            },
            kind="diagnose",
            words="upload csv tensorboard log my run my training diagnosis online",
            scripts=("chart.js", "diagnose.js"),
        )
    ]
