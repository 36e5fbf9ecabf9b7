"""Can the lab run on this machine, and how fast? A line per check, and what to do where something is wrong.

Only the standard library is imported above the checks: the doctor must also speak where torch is missing.
"""

import dataclasses
import importlib.metadata
import json as json_format  # `main` has a parameter of that name
import os
import re
import shutil
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from labkit import __version__

DISTRIBUTION = "failure-mode-labkit"  # `labkit` on PyPI is somebody else's
ROOT = Path(__file__).resolve().parents[2]  # the clone, or site-packages
PYTHON = (3, 11)  # as pyproject.toml has it; repeated because older Pythons cannot read that file
JUPYTER = ("jupyterlab", "notebook", "ipykernel", "ipywidgets")  # what a lesson and its sliders run in
GB = 1e9
DISK = 1 * GB  # all of CIFAR-10 takes 0.36 as it is unpacked; posters and saved runs take the rest
MEMORY = 2 * GB  # all studies in one process peak at 1.1; JupyterLab and a browser want the rest
WARM_UP = 20  # steps: torch plans and allocates in the first ones
PATIENCE = 5  # seconds: a usual machine trains the standard recipe in 1 to 4
SLOW = 40  # steps per second: below, a standard run takes over 10 seconds, and a slider no longer feels live
# Not every step costs as much as a standard one: the catalogue has taken 1.5 times its number of standard
# steps (4,700 steps, CPU time of one thread, torch 2.13), most of it for 16 bits, which a CPU only imitates.
SPREAD = 2


@dataclass(frozen=True)
class Check:
    """One line of the doctor."""

    name: str  # filled in from CHECKS
    state: str  # "ok", "warning" (the lab runs, but) or "problem" (it does not)
    found: str
    advice: str = ""  # what to do; never empty unless ok


ok, warning, problem = (partial(Check, "", state) for state in ("ok", "warning", "problem"))


def main(json: bool = False) -> int:
    """Examine the machine and print what was found; 0 only when the lab can run."""
    checks, say = [], printer()
    for check in examine():
        checks.append(check)
        if not json:
            say(check)  # at once: torch and the speed take seconds
    problems = sum(check.state == "problem" for check in checks)
    if json:
        print(json_format.dumps([dataclasses.asdict(check) for check in checks], indent=2))
    elif problems:
        print(f"\nThe lab cannot run here yet: {problems} problem{'s' * (problems > 1)}, see above.")
    else:
        print("\nThe lab can run here.")
    return 1 if problems else 0


def examine() -> Iterator[Check]:
    """Every check in turn. One that raises an error is a problem, and does not stop the others."""
    for name, check in CHECKS.items():
        try:
            result = check()
        except ModuleNotFoundError as error:
            result = problem(f"needs the module {error.name}, which is not installed", install())
        except Exception as error:
            advice = getattr(error, "advice", f"install again {install()}")  # a DataError knows better
            words = " ".join(str(error).removesuffix(advice).split())
            result = problem(f"{type(error).__name__}: {words}", advice)
        yield dataclasses.replace(result, name=name)


# --- Python and packages --------------------------------------------------------------------------


def check_python() -> Check:
    found = f"{'.'.join(map(str, sys.version_info[:3]))} at {sys.executable}"
    if sys.version_info >= PYTHON:
        return ok(found)
    newer = ".".join(map(str, PYTHON))
    commands = in_clone(f"python{newer} -m venv .venv, then .venv/bin/{install_command()}")
    return problem(f"{found}; labkit needs {newer} or later", f"get Python {newer}, then {commands}")


def check_labkit() -> Check:
    """The version, and whether the labkit that is imported here is the one that was installed."""
    try:
        distribution = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return warning(f"{__version__}, not installed: used from {ROOT}, and only found there", install())
    origin = json_format.loads(distribution.read_text("direct_url.json") or "{}")
    editable = origin.get("dir_info", {}).get("editable", False)
    home = local_path(origin["url"]) if editable else Path(distribution.locate_file(""))
    way = "an editable install of" if editable else "a wheel in"
    if home.resolve() != ROOT:
        return warning(f"{__version__} used from {ROOT}, but installed is {way} {home}", install())
    if distribution.version != __version__:
        return warning(f"{__version__}, installed when it was {distribution.version}", install())
    return ok(f"{__version__}, {way} {home}")


def check_torch() -> Check:
    import torch

    if wanted := outside_range("torch", torch.__version__):
        return warning(f"{torch.__version__}; labkit is written for {wanted}", install())
    return ok(torch.__version__)


def check_torchvision() -> Check:
    import torch

    from labkit.training import torchvision_shim as vision

    version = vision.torchvision().__version__
    if vision.uses_shim():
        found = f"{version}, with labkit's shim: its operators do not load beside torch {torch.__version__}"
        return warning(found, "nothing for the course; for detection models, install both from the same index")
    if wanted := outside_range("torchvision", version):
        return warning(f"{version}; labkit is written for {wanted}", install())
    return ok(version)


def check_packages(jupyter: bool) -> Check:
    """The other packages that labkit needs, by their metadata: importing them all would take seconds."""
    own_checks = ("torch", "torchvision")
    names = [name for name in requirements() if name not in own_checks and (name in JUPYTER) == jupyter]
    versions = {name: installed_version(name) for name in names}
    if missing := [name for name, version in versions.items() if not version]:
        return problem(f"not installed: {', '.join(missing)}", install())
    ranges = {name: outside_range(name, version) for name, version in versions.items()}
    if outside := [f"{name} {versions[name]} (not {wanted})" for name, wanted in ranges.items() if wanted]:
        return warning(f"outside of what labkit is written for: {', '.join(outside)}", install())
    return ok(", ".join(f"{name} {version}" for name, version in versions.items()))


def check_extras() -> Check:
    """Never wrong: extras are for those who want them."""
    complete = {extra: all(map(installed_version, requirements(extra))) for extra in extras()}
    here = [extra for extra, whole in complete.items() if whole]
    absent = [extra for extra, whole in complete.items() if not whole]
    found = f"here: {', '.join(here) or 'none'}; not here, and not needed: {', '.join(absent) or 'none'}"
    return ok(found, f"each by its name, for example {install(absent[0])}" if absent else "")


def installed_version(name: str) -> str:
    """The version, or nothing where the package is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def outside_range(name: str, version: str) -> str:
    """The range that labkit is written for, when the version is not in it; else nothing."""
    from packaging.specifiers import SpecifierSet  # comes with matplotlib and with jupyterlab

    wanted = requirements()[name]
    return "" if SpecifierSet(wanted).contains(version, prereleases=True) else wanted


def requirements(extra: str = "") -> dict[str, str]:
    """Package -> range, of labkit itself or of one of its extras."""
    lines = [re.match(r"([\w.-]+)(?:\[.*?\])?\s*([^;]*)", line) for line in project()[extra]]
    return {match[1]: match[2].strip() for match in lines}


def extras() -> list[str]:
    return [extra for extra in project() if extra]


def project() -> dict[str, list[str]]:
    """What labkit requires, by extra ("" is itself): from a clone's pyproject.toml or a wheel's metadata."""
    pyproject = ROOT / "pyproject.toml"
    if pyproject.is_file():
        import tomllib

        table = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
        return {"": table["dependencies"], **table["optional-dependencies"]}
    metadata = importlib.metadata.metadata(DISTRIBUTION)
    found = {"": [], **{extra: [] for extra in metadata.get_all("Provides-Extra", [])}}
    for line in metadata.get_all("Requires-Dist", []):
        extra = re.search(r"""extra\s*==\s*["']([\w.-]+)["']""", line)
        found[extra[1] if extra else ""].append(line)
    return found


def local_path(url: str) -> Path:
    return Path(urllib.request.url2pathname(urllib.parse.urlparse(url).path))


def install_command(extra: str = "") -> str:
    return "pip install -c constraints.txt -e " + (f'".[{extra}]"' if extra else ".")


def install(extra: str = "") -> str:
    return in_clone(install_command(extra))


def in_clone(command: str) -> str:
    """The command, with the folder it is meant for; a wheel does not know of any clone."""
    folder = ROOT if (ROOT / "constraints.txt").is_file() else "a clone of labkit"
    return f"in {folder}: {command}"


# --- the machine ----------------------------------------------------------------------------------


def check_device() -> Check:
    """What `device="auto"` takes."""
    import torch

    from labkit.training.state import pick_device

    device = pick_device("auto").type
    if device == "cuda":
        return ok(f"cuda, {torch.cuda.get_device_name()}")
    if device == "mps":
        return ok("mps, the GPU of this Mac")
    return ok(f"cpu, threads: {torch.get_num_threads()} (cores: {os.cpu_count()})")


def check_memory() -> Check:
    if MEMINFO.is_file():
        available, found = available_memory(), "{:.1f} GB available"
    elif hasattr(os, "sysconf"):  # macOS does not simply say what is available
        available, found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "{:.1f} GB in all"
    else:
        return ok("not known on this system")
    found = found.format(available / GB)
    if available < MEMORY:
        advice = "close other programs, then look again: labkit doctor"
        return warning(f"{found}; the lab is at ease with {MEMORY / GB:.0f}", advice)
    return ok(found)


MEMINFO = Path("/proc/meminfo")
CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")  # of a container, such as JupyterHub's


def available_memory() -> int:
    """Bytes that Linux can still give to programs, and not more than the container may have."""
    lines = dict(line.split(":") for line in MEMINFO.read_text().splitlines())
    available = int(lines["MemAvailable"].split()[0]) * 1024  # "23753584 kB"
    limit = CONTAINER_LIMIT.read_text().strip() if CONTAINER_LIMIT.is_file() else "max"
    return available if limit == "max" else min(available, int(limit))


def check_working_folder() -> Check:
    """Pictures, runs and notebooks are written to where the lab was started."""
    folder = Path.cwd()
    if reason := why_not_writable(folder):
        return problem(f"cannot write to {folder}: {reason}", "start in a folder of your own: cd ~")
    free = shutil.disk_usage(folder).free
    found = f"{folder}, writable, {free / GB:.1f} GB free"
    if free < DISK:
        return warning(f"{found}; the lab is at ease with {DISK / GB:.0f}", f"make room: du -sh {folder}/*")
    return ok(found)


def check_download_folder() -> Check:
    from labkit.training.data import download_folder

    folder = download_folder()
    existing = next(place for place in (folder, *folder.resolve().parents) if place.exists())
    if reason := why_not_writable(existing):
        advice = "nothing for the course; to keep full data sets: export LABKIT_DATA=~/labkit-data"
        return warning(f"cannot write to {folder}: {reason}", advice)
    return ok(f"{folder}, writable")


def why_not_writable(folder: Path) -> str:
    """Tried, not asked for: permissions do not tell of a full disk or a read-only one."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"labkit doctor")
    except OSError as error:
        return error.strerror or str(error)
    return ""


# --- the data -------------------------------------------------------------------------------------


def check_embedded(name: str) -> Check:
    from labkit.training import data

    data.verify(name)  # its error names the file and says what to do
    files = [file for owner, file, _ in data.EMBEDDED if owner == name]
    return ok(f"{len(files)} files in {data.embedded_folder()}, checksums right")


def check_full_cifar10() -> Check:
    """Optional: no lesson needs it."""
    from labkit.training import data

    download = "labkit data download cifar10"
    try:
        data.verify("cifar10_full")
    except data.DataError as error:
        if error.state == "not downloaded":
            return ok("not downloaded, and not needed", f"to have it: {download}")
        place = data.download_folder() / data.DOWNLOADS["cifar10"][0]
        return warning(str(error).removesuffix(error.advice).strip(), f"remove {place}, then {download}")
    return ok(f"downloaded to {data.download_folder()}, checksums right")


# --- the speed ------------------------------------------------------------------------------------


def catalogue_steps() -> int:
    """The training steps of all studies: healthy, sick and cured, where two are the same only one."""
    from labkit.failures import FAILURES

    return sum(recipe.steps for mode in FAILURES.values() for recipe in set(mode.recipes().values()))


WORK = {"the failure catalogue, once each": catalogue_steps}  # what there is to do -> its number of steps


def check_speed() -> Check:
    """The standard recipe, trained whole: a part of it would be mostly its dense first validations."""
    from labkit.failures.mode import LEARNED
    from labkit.training.recipe import Recipe
    from labkit.training.loop import train

    train(Recipe(steps=WARM_UP), progress=False)
    deadline = time.monotonic() + PATIENCE
    run = train(Recipe(), each_step=lambda recorder: time.monotonic() > deadline, progress=False)
    if run.facts["stopped"] == "interrupted":  # `train` keeps what it has; here Ctrl-C means stop
        raise KeyboardInterrupt
    if run.facts["stopped"] != "on request" and not run.accuracy >= LEARNED["mnist"]:
        found = f"the standard recipe reached {run.accuracy:.1%}; 94 % is usual"
        return problem(found, f"torch computes wrongly here; install it again: {install()}")
    speed = len(run) / run.facts["seconds"]
    work = "; ".join(f"{name}: {in_minutes(count(), speed)}" for name, count in WORK.items())
    found = f"{speed:.0f} steps per second with all instruments; {work}"
    if speed < SLOW:
        advice = "close other programs and try again: labkit doctor"
        return warning(f"{found}; slow for sliders", advice)
    return ok(found)


def in_minutes(steps: int, speed: float) -> str:
    least = steps / speed / 60
    return f"{steps:,} steps, {least:.1f} to {least * SPREAD:.1f} minutes here"


CHECKS: dict[str, Callable[[], Check]] = {
    "Python": check_python,
    "labkit": check_labkit,
    "torch": check_torch,
    "torchvision": check_torchvision,
    "device": check_device,
    "Jupyter": partial(check_packages, jupyter=True),
    "packages": partial(check_packages, jupyter=False),
    "extras": check_extras,
    "data: mnist": partial(check_embedded, "mnist"),
    "data: cifar10": partial(check_embedded, "cifar10"),
    "data: cifar10_full": check_full_cifar10,
    "working folder": check_working_folder,
    "download folder": check_download_folder,
    "memory": check_memory,
    "speed": check_speed,
}


# --- printing -------------------------------------------------------------------------------------

COLOURS = {"ok": "green", "warning": "yellow", "problem": "bold red"}  # beside the word, never instead of it


def printer() -> Callable[[Check], None]:
    """Says one check: its state in colour where rich and a terminal are there; elsewhere the same words."""
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        return lambda check: print(line(check), flush=True)
    console = Console(highlight=False)

    def say(check: Check) -> None:
        text = Text(line(check))
        text.stylize(COLOURS[check.state], 0, len(check.state))
        console.print(text, soft_wrap=True)  # a broken command could not be copied

    return say


def line(check: Check) -> str:
    """The state, the name and what was found; below them, where there is something to do, what."""
    indent = "\n" + " " * 29
    advice = f"{indent}-> {check.advice}" if check.advice else ""
    return f"{check.state:9}{check.name:20}{check.found}{advice}"
