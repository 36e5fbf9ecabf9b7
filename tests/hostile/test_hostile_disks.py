"""A full disk and a folder that may not be written to: the file, the reason and what to do; the old file stays."""

import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest
from helpers import hand_made, tiny, trained

from labkit.cli import pages
from labkit.cli.main import main
from labkit.course.ward import cases
from labkit.course.ward.game import ward
from labkit.drawing import plots
from labkit.recording import files, logs
from labkit.recording.files import written_whole
from labkit.training.run_store import Memory, RunStore

needs_dev_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which is always full")


@pytest.fixture
def full_disk(monkeypatch):
    """Temporary files are made, and nothing fits into them."""
    real = tempfile.mkstemp

    def made(**options):
        handle, path = real(**options)
        os.close(handle)
        return os.open("/dev/full", os.O_WRONLY), path

    monkeypatch.setattr(files.tempfile, "mkstemp", made)


@pytest.fixture
def read_only(monkeypatch):
    def refused(**options):
        raise PermissionError(13, "Permission denied", f"{options['dir']}/.temporary")

    monkeypatch.setattr(files.tempfile, "mkstemp", refused)


def figure():
    return plots.losses(hand_made()).figure


WRITERS = {
    "a run": lambda folder: hand_made().save(folder / "run.npz"),
    "a CSV log": lambda folder: logs.to_csv(hand_made(), folder / "run.csv"),
    "a JSON log": lambda folder: logs.to_json(hand_made(), folder / "run.json"),
    "a picture": lambda folder: plots.save(figure(), folder / "picture.png"),
    "a drawing": lambda folder: plots.save(figure(), folder / "picture.svg"),
    "a PDF": lambda folder: plots.save(figure(), folder / "picture.pdf"),
    "a score sheet": lambda folder: ward(0, 2).score_sheet(folder / "sheet.json"),
    "a list of cases": lambda folder: cases.write([], folder / "cases.json"),
    "pages": lambda folder: pages.regenerate(folder, False),
    "a few bytes": lambda folder: few_bytes(folder / "file"),
}


def few_bytes(path: Path) -> None:
    """Fewer than the buffer of a stream: they are written when it is closed."""
    with written_whole(path) as stream:
        stream.write(b"few")


@needs_dev_full
@pytest.mark.parametrize("what", WRITERS)
def test_a_full_disk_is_named_and_nothing_is_left(what, tmp_path, full_disk):
    with pytest.raises(
        OSError, match=r"No space left on device; free some space, or name another folder: '.*'"
    ) as caught:
        WRITERS[what](tmp_path)
    assert str(tmp_path) in str(caught.value) and "/." not in caught.value.filename  # not the temporary name
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("what", WRITERS)
def test_a_folder_that_may_not_be_written_to_is_named(what, tmp_path, read_only):
    with pytest.raises(
        PermissionError, match=r"Permission denied; name a folder that you may write to: '.*'"
    ) as caught:
        WRITERS[what](tmp_path)
    assert "/." not in caught.value.filename


@needs_dev_full
def test_the_old_file_survives_a_full_disk(tmp_path, request):
    path = hand_made().save(tmp_path / "run.npz")
    content = path.read_bytes()
    request.getfixturevalue("full_disk")
    with pytest.raises(OSError, match="No space left"):
        hand_made(loss=np.ones(40)).save(path)
    assert path.read_bytes() == content


@needs_dev_full
def test_a_store_on_a_full_disk_warns_once_and_loses_no_run(tmp_path, full_disk):
    store = RunStore(tmp_path, memory=Memory())
    with pytest.warns(
        UserWarning, match=r"runs are not kept for the next time: .*free some space.*LABKIT_CACHE"
    ) as told:
        for seed in range(3):
            recipe = tiny(seed=seed)
            store.put(recipe, trained(recipe))
            assert store.get(recipe) is trained(recipe)
    assert len(told) == 1 and os.listdir(tmp_path) == []


@needs_dev_full
def test_a_command_on_a_full_disk_says_so_in_one_line(tmp_path, full_disk, monkeypatch, capsys):
    (tmp_path / "solutions").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["lessons"]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("labkit: [Errno 28] No space left on device; free some space")
    assert printed.err.count("\n") == 1


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_disk_that_really_is_full(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("this root may not mount")
    try:
        few = hand_made().save(disk / "small.npz")
        with (
            pytest.raises(OSError, match="No space left on device; free some space"),
            written_whole(disk / "large") as stream,
        ):
            stream.write(bytes(2**20))
        assert [path.name for path in disk.iterdir()] == [few.name]
    finally:
        subprocess.run(["umount", str(disk)], check=True)
