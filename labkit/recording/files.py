"""Files that are written whole or not at all, and values that JSON can hold."""

import contextlib
import errno
import math
import os
import re
import tempfile
import time
from pathlib import Path

from labkit.errors import ROOT

PACKAGE = ROOT / "labkit"
MARK = "labkit-"  # in the name of a temporary file, so that no other file is taken for one
ABANDONED = 3600  # seconds without a change after which nobody writes a temporary file any more; writing takes seconds
ADVICE = {
    errno.ENOSPC: "free some space, or name another folder",
    errno.EDQUOT: "free some space, or name another folder",
    errno.EROFS: "name a folder that can be written to",
    errno.EACCES: "name a folder that you may write to",
    errno.EPERM: "name a folder that you may write to",
    errno.ENAMETOOLONG: "choose a shorter name",
}


class written_whole:
    """`with written_whole(path) as stream`: the file appears complete at the end, or not at all.

    A process that is killed while it writes leaves a temporary file, `.name.xxxxxxxx`; the next one that writes the
    same file deletes it, once it is ABANDONED.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)

    def __enter__(self):
        with explained(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            delete_abandoned(self.path.parent, re.escape(self.path.name))
            handle, self.temporary = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.{MARK}")
        self.stream = os.fdopen(handle, "wb")
        return self.stream

    def __exit__(self, kind, error, trace):
        try:
            with explained(self.path):
                if isinstance(error, OSError) and error.filename is None:  # of the stream, which knows no name
                    raise error
                self.stream.close()  # writes the rest, for which there may be no space
                if kind is None:
                    os.chmod(self.temporary, 0o644)  # mkstemp gives 0600; a saved file is meant to be shared
                    os.replace(self.temporary, self.path)
        finally:
            with contextlib.suppress(OSError):
                self.stream.close()
            with contextlib.suppress(FileNotFoundError):  # it has its name now
                os.unlink(self.temporary)


@contextlib.contextmanager
def explained(path: Path):
    """An error of the system names the file that was asked for, and says what to do."""
    try:
        yield
    except OSError as error:
        number, words = error.errno, error.strerror or ""
        if number not in ADVICE or words.endswith(ADVICE[number]):
            raise
        raise OSError(number, f"{words}; {ADVICE[number]}", str(path)) from None


def delete_abandoned(folder: Path, name: str) -> int:
    """Delete temporary files of `written_whole` that nobody writes any more; how many. `name`: a regular expression."""
    temporary, deleted = re.compile(rf"\.{name}\.{MARK}\w{{8}}"), 0
    with contextlib.suppress(OSError), os.scandir(folder) as found:  # no folder, or one that may not be read
        for each in found:
            if temporary.fullmatch(each.name):
                with contextlib.suppress(OSError):  # another process was quicker
                    if time.time() - each.stat().st_mtime > ABANDONED:
                        os.unlink(each.path)
                        deleted += 1
    return deleted


def updated(path: Path, text: str, check: bool = False) -> bool:
    """Write a text file where its content differs; with `check` only say whether it would."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    if not check:
        with written_whole(path) as stream:
            stream.write(text.encode())
    return True


def json_ready(value):
    """The same value with None for NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {name: json_ready(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
