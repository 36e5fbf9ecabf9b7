"""kill -9 at random moments: no half file, no lost run, no orphan, no leftover that grows; the next start works."""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers import ROOT
from hostility import SEED

from labkit.recording.files import ABANDONED, delete_abandoned, written_whole
from labkit.recording.run import Run

KILLS = int(os.environ.get("LABKIT_KILLS", 0))  # of each command; `make hostile` sets 20
COMMANDS = ("poster", "clinic", "store", "lessons", "ward")
# Without LABKIT_KILLS these are killed once, at most this many seconds after the first file: while they write.
QUICK = {"poster": 0.5, "store": 0.5, "ward": 0.5}
# These say which files they have written while they go on. The poster and the clinic report nothing before their last
# moments: for them the test checks that their files are whole, and that the next start works.
REPORTING = ("store", "lessons", "ward")
KINDS = (".npz", ".json", ".ipynb", ".png", ".pdf", ".md", ".csv")
TWO = "in two processes"  # a file with this name in the folder lets the poster train so
MARK = "LABKIT_KILLED"  # in the environment of a command and of every process that it starts
PATIENCE = 30  # seconds for the processes of a killed one to notice; against hanging, not a demand on speed
STARTED: set[int] = set()  # the processes that were started here
LONGEST = 300  # seconds for a whole command on a busy machine, against hanging

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc to find orphans")


@dataclass
class Row:
    """One line of the kill table."""

    command: str
    kills: int = 0
    reported: int = 0
    half_files: int = 0
    lost_runs: int = 0
    orphans: int = 0
    leftovers: int = 0
    next_start: str = "not tried"

    def __str__(self) -> str:
        counts = (self.kills, self.reported, self.half_files, self.lost_runs, self.orphans, self.leftovers)
        return f"{self.command:10}" + "".join(f"{count:>12}" for count in counts) + f"  {self.next_start}"


HEADER = f"{'command':10}" + "".join(
    f"{word:>12}" for word in ("kills", "reported", "half files", "lost runs", "orphans", "leftovers")
)


@pytest.fixture(scope="module")
def table(request):
    """Printed at the end, also where output is captured."""
    rows: list[Row] = []
    yield rows
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("\n\n" + "\n".join([f"{HEADER}  next start", *map(str, rows)]))


# --- starting, killing, looking for what is left --------------------------------------------------


def started(command: str, folder: Path, mark: str) -> subprocess.Popen:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]), "OMP_NUM_THREADS": "1", MARK: mark,
        "LABKIT_CACHE": str(folder / "cache"), "MPLBACKEND": "agg", "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    words = [sys.executable, str(Path(__file__).with_name("killed_commands.py")), command, str(folder)]
    output = open(folder / "output.txt", "w", encoding="utf-8")  # noqa: SIM115  # a pipe would stay open in orphans
    process = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT, env=environment)
    STARTED.add(process.pid)
    return process


def processes(mark: str) -> list[int]:
    """The processes that carry this mark and are not zombies."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={mark}".encode() in path.read_bytes() and " Z " not in path.with_name("stat").read_text():
                found.append(int(path.parent.name))
        except (OSError, UnicodeDecodeError):
            continue  # gone, or not ours
    return found


def orphans(mark: str) -> int:
    """How many processes are left after PATIENCE; they are ended then."""
    deadline = time.monotonic() + PATIENCE
    while (left := processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for process in left:
        os.kill(process, signal.SIGKILL)
    return len(left)


def is_whole(path: Path) -> bool:
    content = path.read_bytes()
    if path.suffix == ".npz":
        return len(Run.load(path)) > 0
    if path.suffix in (".json", ".ipynb"):
        return bool(json.loads(content))
    if path.suffix == ".png":
        return content.endswith(b"IEND\xaeB`\x82")
    if path.suffix == ".pdf":
        return content.rstrip().endswith(b"%%EOF")
    return content.endswith(b"\n")  # .md, .csv


def written(folder: Path) -> list[Path]:
    """The files with a name of their own that a command has written: neither temporary nor put there before."""
    files = [path for path in folder.rglob("*") if path.suffix in KINDS and not path.name.startswith(".")]
    return [path for path in files if path.relative_to(folder).parts[0] != "solutions"]


def half_files(folder: Path) -> list[Path]:
    """The written files that cannot be read whole."""
    bad = []
    for path in written(folder):
        try:
            bad += [] if is_whole(path) else [path]
        except ValueError:  # RunError and JSONDecodeError are
            bad.append(path)
    return bad


def reported(folder: Path) -> list[Path]:
    """The files that the command said it had written, and has not deleted since. Its last line may be cut."""
    found: list[Path] = []
    for line in (folder / "output.txt").read_text(encoding="utf-8").split("\n")[:-1]:
        what, _, name = line.partition(": ")
        if what == "deleted":
            found = []
        elif what in ("kept", "written", "regenerated", "poster"):
            found.append(folder / name)
    return found


def temporary_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob(".*") if path.is_file()]


def shared_memory(owners: set[int]) -> list[str]:
    """Memory maps of joblib and semaphores of loky that these processes made; their names say so."""
    made = re.compile(r"(?:sem\.)?(?:loky-|joblib_memmapping_folder_)(\d+)")
    found = {name: made.match(name) for name in os.listdir("/dev/shm")}
    return [name for name, owner in found.items() if owner and int(owner[1]) in owners]


# --- the tests ------------------------------------------------------------------------------------


def prepared(command: str, folder: Path) -> None:
    if command == "lessons":
        shutil.copytree(ROOT / "solutions", folder / "solutions", ignore=shutil.ignore_patterns(".*"))


def emptied(folder: Path) -> None:
    """Without the files of earlier starts: there is something to train, and what is missing later can be seen."""
    for path in written(folder):
        path.unlink()


def wait_for_first_file(process: subprocess.Popen, folder: Path) -> float:
    """Wait until it has written a file, or has ended; how many seconds that takes."""
    began = time.monotonic()
    while process.poll() is None and not written(folder):
        time.sleep(0.01)
    return time.monotonic() - began


def killed(command: str, folder: Path, moment: float, *, early: bool, row: Row) -> bool:
    """Start it, kill it at this moment, and count what is wrong. Was it still running?

    The moment counts from the first file that it writes, or, with `early`, from its start.
    """
    emptied(folder)
    mark = uuid.uuid4().hex
    process = started(command, folder, mark)
    if not early:
        wait_for_first_file(process, folder)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(moment)
    process.kill()
    was_running = process.wait() == -signal.SIGKILL
    row.kills += was_running
    row.orphans += orphans(mark)
    row.half_files += len(half_files(folder))
    row.reported += len(reported(folder)) if was_running else 0
    row.lost_runs += sum(not path.exists() for path in reported(folder))
    return was_running


def whole_start(command: str, folder: Path) -> tuple[float, float]:
    """A whole run of the command: how many seconds it takes to the first file, and from there to the end."""
    emptied(folder)
    process = started(command, folder, uuid.uuid4().hex)
    before, began = wait_for_first_file(process, folder), time.monotonic()
    assert process.wait(LONGEST) == 0, (folder / "output.txt").read_text(encoding="utf-8")
    return before, time.monotonic() - began


@pytest.mark.parametrize("command", COMMANDS)
def test_a_killed_command_leaves_nothing_half_and_starts_again(command, tmp_path, table):
    if not KILLS and command not in QUICK:
        pytest.skip("`make hostile` kills this command")
    prepared(command, tmp_path)
    row = Row(command)
    table.append(row)
    chance = random.Random(f"{command} {SEED}")
    took = {}
    for number in range(KILLS or 1):
        two = number % 2 == 0
        (tmp_path / TWO).touch() if two else (tmp_path / TWO).unlink()
        if two not in took:
            took[two] = whole_start(command, tmp_path) if KILLS else (0.0, QUICK[command])
        before, after = took[two]
        early = number % 5 == 4  # importing torch comes first, and nothing is written: few kills are needed there
        moment = chance.uniform(0.2, 0.9) * (before if early else after)
        while not killed(command, tmp_path, moment, early=early, row=row):
            moment /= 2  # it was faster than expected, and had ended
            assert moment > 0.01, f"{command} ends too soon to be killed"
    for path in temporary_files(tmp_path):  # as if an hour had passed
        os.utime(path, (time.time() - 2 * ABANDONED,) * 2)
    whole_start(command, tmp_path)
    row.next_start = "works"
    row.leftovers = len(temporary_files(tmp_path)) + len(shared_memory(STARTED))
    assert row.kills == (KILLS or 1)
    assert row.reported > 0 or command not in REPORTING, f"\n{HEADER}\n{row}"
    assert (row.half_files, row.lost_runs, row.orphans, row.leftovers) == (0, 0, 0, 0), f"\n{HEADER}\n{row}"


def test_what_was_reported_counts_unless_it_was_deleted_since_or_its_line_is_cut(tmp_path):
    lines = (
        "kept: a.npz",
        "deleted: notebooks",
        f"written: {tmp_path}/b.json",
        "regenerated: notebooks/c.ipynb",
        "kept: d",
    )
    (tmp_path / "output.txt").write_text("\n".join(lines), encoding="utf-8")
    assert reported(tmp_path) == [tmp_path / "b.json", tmp_path / "notebooks/c.ipynb"]


def test_a_writer_that_was_killed_is_tidied_up_after_an_hour_and_not_before(tmp_path):
    code = (
        "import os, signal, sys; from labkit.recording.files import written_whole\n"
        "with written_whole(sys.argv[1]) as stream:\n"
        "    stream.write(b'half'); stream.flush(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    path = tmp_path / "page.md"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code, str(path)], env=environment)
    assert done.returncode == -signal.SIGKILL
    [left] = os.listdir(tmp_path)
    theirs = (".another.md.labkit-12345678", ".page.md.labkit-12345678.bak", ".page.md.original")
    for name in theirs:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    with written_whole(path) as stream:
        stream.write(b"whole")
    assert (tmp_path / left).exists()  # another process might still be writing it
    os.utime(tmp_path / left, (time.time() - 2 * ABANDONED,) * 2)
    with written_whole(path) as stream:
        stream.write(b"whole")
    assert sorted(os.listdir(tmp_path)) == [*theirs, "page.md"]


def test_a_folder_that_does_not_exist_has_nothing_abandoned(tmp_path):
    assert delete_abandoned(tmp_path / "nowhere", "name") == 0
