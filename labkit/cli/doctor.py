"""Can the lab run on this machine, and how fast? One line per check, and what to do if it fails.

Only the standard library is imported above the checks: the doctor must also work where torch is missing.
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

from labkit import __version__, errors
from labkit.errors import DISTRIBUTION, ROOT
from labkit.training import memory

PYTHON = (3, 11)  # as pyproject.toml has it; repeated because older Pythons cannot read that file
GB = 1e9
DISK = 1 * GB  # full CIFAR-10 takes 0.36 while it is unpacked; posters and saved runs take the rest
MEMORY = 2 * GB  # all studies in one process peak at 1.1; JupyterLab and a browser need the rest
WARM_UP = 20  # steps: the first ones include torch's own set-up
PATIENCE = 5  # seconds: a typical machine trains the standard recipe in 1 to 4
SLOW = 40  # steps per second: below, a standard run takes over 10 seconds, and a slider no longer feels live
# Some steps cost more than a standard one: the catalogue took 1.5 times as long as the same number of standard
# steps (4,700 steps, CPU time of one thread, torch 2.13), mostly because of 16-bit arithmetic, which a CPU emulates.
SPREAD = 2


@dataclass(frozen=True)
class Check:
    """One line of the report."""

    name: str  # filled in from CHECKS
    state: str  # "ok", "warning" (labkit runs, with a limitation) or "problem" (it does not run)
    found: str
    advice: str = ""  # what to do; never empty unless ok


ok, warning, problem = (partial(Check, "", state) for state in ("ok", "warning", "problem"))


def main(json: bool = False) -> int:
    """Check the machine and print the results; returns 0 only if labkit can run."""
    checks, say = [], printer()
    for check in examine():
        checks.append(check)
        if not json:
            say(check)  # immediately: importing torch and measuring the speed take seconds
    problems = sum(check.state == "problem" for check in checks)
    if json:
        print(json_format.dumps([dataclasses.asdict(check) for check in checks], indent=2))
    elif problems:
        print(f"\nlabkit cannot run here yet: {problems} problem{'s' * (problems > 1)}, see above.")
    else:
        print("\nlabkit can run here.")
    return 1 if problems else 0


def examine() -> Iterator[Check]:
    """Every check in turn. One that raises an error is a problem, and does not stop the others."""
    for name, check in CHECKS.items():
        try:
            result = check()
        except ModuleNotFoundError as error:
            result = problem(f"needs the module {error.name}, which is not installed", install())
        except Exception as error:
            advice = getattr(error, "advice", f"install again {install()}")  # a DataError has its own advice
            words = " ".join(str(error).removesuffix(advice).split())
            result = problem(f"{type(error).__name__}: {words}", advice)
        yield dataclasses.replace(result, name=name)


# --- Python and packages --------------------------------------------------------------------------


def check_python() -> Check:
    found = f"{'.'.join(map(str, sys.version_info[:3]))} at {sys.executable}"
    if sys.version_info >= PYTHON:
        return ok(found)
    newer = ".".join(map(str, PYTHON))
    commands = errors.in_clone(f"python{newer} -m venv .venv, then .venv/bin/{errors.clone_command()}", ROOT)
    return problem(f"{found}; labkit needs {newer} or later", f"get Python {newer}, then {commands}")


def check_labkit() -> Check:
    """The version, and whether the labkit that is imported here is the one that was installed."""
    try:
        distribution = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return warning(f"{__version__}, not installed: imported from {ROOT}, and only found there", install())
    origin = json_format.loads(distribution.read_text("direct_url.json") or "{}")
    editable = origin.get("dir_info", {}).get("editable", False)
    home = local_path(origin["url"]) if editable else Path(distribution.locate_file(""))
    way = "an editable install of" if editable else "a wheel in"
    if home.resolve() != ROOT:
        return warning(f"{__version__} imported from {ROOT}, but installed is {way} {home}", install())
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

    from labkit.training import torchvision_shim

    version = torchvision_shim.torchvision().__version__
    if torchvision_shim.uses_shim():
        found = f"{version}, with labkit's shim: its operators do not load beside torch {torch.__version__}"
        return warning(found, "nothing for the course; for detection models, install both from the same index")
    if wanted := outside_range("torchvision", version):
        return warning(f"{version}; labkit is written for {wanted}", install())
    return ok(version)


def check_packages() -> Check:
    """The other packages that labkit needs, by their metadata: importing them all would take seconds."""
    versions = {name: installed_version(name) for name in requirements() if name not in ("torch", "torchvision")}
    if missing := [name for name, version in versions.items() if not version]:
        return problem(f"not installed: {', '.join(missing)}", install())
    return compared_with_ranges(versions)


def check_jupyter() -> Check:
    """The extra `lab`, by its metadata. A warning at most: everything but lessons and panels works without it."""
    versions = {name: installed_version(name) for name in requirements("lab")}
    if missing := [name for name, version in versions.items() if not version]:
        return warning(f"not installed: {', '.join(missing)}; only lessons and panels need it", install("lab"))
    return compared_with_ranges(versions, "lab")


def compared_with_ranges(versions: dict[str, str], extra: str = "") -> Check:
    ranges = {name: outside_range(name, version, extra) for name, version in versions.items()}
    if outside := [f"{name} {versions[name]} (not {wanted})" for name, wanted in ranges.items() if wanted]:
        return warning(f"outside of what labkit is written for: {', '.join(outside)}", install(extra))
    return ok(", ".join(f"{name} {version}" for name, version in versions.items()))


def check_extras() -> Check:
    """Never a problem: extras are for those who want them. `lab` has a check of its own."""
    names = [extra for extra in project() if extra not in ("", "lab")]
    complete = {extra: all(map(installed_version, requirements(extra))) for extra in names}
    here = [extra for extra, whole in complete.items() if whole]
    absent = [extra for extra, whole in complete.items() if not whole]
    found = f"installed: {', '.join(here) or 'none'}; not installed, and not needed: {', '.join(absent) or 'none'}"
    return ok(found, f"to install one, for example: {install(absent[0])}" if absent else "")


def installed_version(name: str) -> str:
    """The version, or nothing where the package is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def outside_range(name: str, version: str, extra: str = "") -> str:
    """The range that labkit is written for, when the version is not in it; else nothing."""
    from packaging.specifiers import SpecifierSet

    wanted = requirements(extra)[name]
    return "" if SpecifierSet(wanted).contains(version, prereleases=True) else wanted


def requirements(extra: str = "") -> dict[str, str]:
    """Package -> range, of labkit itself or of one of its extras, with the extras that this one includes."""
    found = {}
    for line in project()[extra]:
        name, included, wanted = re.match(r"([\w.-]+)(?:\[(.*?)\])?\s*([^;]*)", line).groups()
        if name == DISTRIBUTION:
            found |= {package: text for each in included.split(",") for package, text in requirements(each).items()}
        else:
            found[name] = wanted.strip()
    return found


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


def install(extra: str = "") -> str:
    return errors.install(extra, ROOT)


# --- the machine ----------------------------------------------------------------------------------


def check_device() -> Check:
    """The device that `device="auto"` selects."""
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
    elif hasattr(os, "sysconf"):  # macOS: only the total is easy to get
        available, found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "{:.1f} GB in total"
    else:
        return ok("not known on this system")
    found = found.format(available / GB)
    if available < MEMORY:
        advice = "close other programs, then check again: labkit doctor"
        return warning(f"{found}; {MEMORY / GB:.0f} GB are recommended", advice)
    return ok(found)


MEMINFO = Path("/proc/meminfo")


def available_memory() -> int:
    """Available bytes on Linux, limited to what the container may use."""
    lines = dict(line.split(":") for line in MEMINFO.read_text().splitlines())
    available = int(lines["MemAvailable"].split()[0]) * 1024  # "23753584 kB"
    return min(available, memory.container_limit() or available)


def check_working_folder() -> Check:
    """Pictures, runs and notebooks are written to the working folder."""
    folder = Path.cwd()
    if reason := why_not_writable(folder):
        return problem(f"cannot write to {folder}: {reason}", "start in a folder of your own: cd ~")
    free = shutil.disk_usage(folder).free
    found = f"{folder}, writable, {free / GB:.1f} GB free"
    if free < DISK:
        return warning(
            f"{found}; {DISK / GB:.0f} GB are recommended",
            f"free some space; this shows what is large: du -sh {folder}/*",
        )
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
    """By writing a file: permissions do not show a full or read-only disk."""
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
    return ok(f"{len(files)} files in {data.embedded_folder()}, checksums match")


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
    return ok(f"downloaded to {data.download_folder()}, checksums match")


# --- the speed ------------------------------------------------------------------------------------


def catalogue_steps() -> int:
    """The training steps of all studies: healthy, sick and cured; identical recipes count once."""
    from labkit.failures.catalogue import FAILURES

    return sum(recipe.steps for mode in FAILURES.values() for recipe in set(mode.recipes().values()))


WORK = {"the failure catalogue, once each": catalogue_steps}  # task -> its number of steps


def check_speed() -> Check:
    """Train the whole standard recipe: its first steps alone have unusually many validations."""
    from labkit.recording.measure import ACCURACY, MEASURES
    from labkit.training.loop import train
    from labkit.training.recipe import Recipe

    train(Recipe(steps=WARM_UP), progress=False)
    deadline = time.monotonic() + PATIENCE
    run = train(Recipe(), each_step=lambda recorder: time.monotonic() > deadline, progress=False)
    if run.facts["stopped"] == "interrupted":  # `train` keeps what it has; here Ctrl-C means stop
        raise KeyboardInterrupt
    if run.facts["stopped"] != "on request" and not run.accuracy >= MEASURES[ACCURACY].learned["mnist"]:
        found = f"the standard recipe reached {run.accuracy:.1%}; 92 to 93 % are expected"
        return problem(found, f"torch gives wrong results here; reinstall it: {install()}")
    speed = len(run) / run.facts["seconds"]
    work = "; ".join(f"{name}: {in_minutes(count(), speed)}" for name, count in WORK.items())
    found = f"{speed:.0f} steps per second with all instruments; {work}"
    if speed < SLOW:
        advice = "close other programs and try again: labkit doctor"
        return warning(f"{found}; too slow for live sliders", advice)
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
    "Jupyter": check_jupyter,
    "packages": check_packages,
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

COLOURS = {"ok": "green", "warning": "yellow", "problem": "bold red"}  # in addition to the word, never instead of it


def printer() -> Callable[[Check], None]:
    """A function that prints one check: in colour with rich and a terminal, else as plain text."""
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        return lambda check: print(line(check), flush=True)
    console = Console(highlight=False)

    def say(check: Check) -> None:
        text = Text(line(check))
        text.stylize(COLOURS[check.state], 0, len(check.state))
        console.print(text, soft_wrap=True)  # a wrapped command could not be copied

    return say


def line(check: Check) -> str:
    """State, name and result; on the next line, the advice if there is any."""
    indent = "\n" + " " * 29
    advice = f"{indent}-> {check.advice}" if check.advice else ""
    return f"{check.state:9}{check.name:20}{check.found}{advice}"
