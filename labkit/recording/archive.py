"""Read the arrays of an .npz file from anybody: nothing is unpickled, and no more is unpacked than a run can hold."""

import io
import math
import os
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

# An archive may not unpack to more than this many bytes, or this many times its own size, whichever is more.
# A run of 400 steps takes one megabyte and shrinks to half; zeros alone shrink to a thousandth, which is how a
# file of one megabyte can fill the memory of a laptop.
ALWAYS_FINE = 256 * 2**20
RATIO = 100
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}  # the versions that numpy.savez writes


class ArchiveError(ValueError):
    """An archive that is damaged, or is not one of arrays of numbers."""


def read_arrays(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Name -> array, as `numpy.savez` wrote them. Members are read into memory; no file is ever extracted."""
    if Path(path).exists() and not Path(path).is_file():
        raise ArchiveError("not a file")  # a folder, or a pipe, which would never end
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        _check_members(members, os.path.getsize(path))
        return {member.filename.removesuffix(".npy"): _array(archive, member) for member in members}


def _check_members(members: list[zipfile.ZipInfo], size: int) -> None:
    names = [member.filename for member in members]
    if twice := next((name for name, count in Counter(names).items() if count > 1), None):
        raise ArchiveError(f"{twice!r} twice")
    for member in members:
        if not member.filename.endswith(".npy") or member.compress_type not in (
            zipfile.ZIP_STORED,
            zipfile.ZIP_DEFLATED,
        ):
            raise ArchiveError(f"a member {member.filename!r} that numpy did not write")
    most, unpacked = max(ALWAYS_FINE, RATIO * size), sum(member.file_size for member in members)
    if unpacked > most:
        raise ArchiveError(f"{unpacked:,} bytes packed into {size:,}; of such a file at most {most:,} are unpacked")


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as packed:
        content = packed.read(member.file_size)  # no more is inflated, whatever is inside
    stream = io.BytesIO(content)
    version = npy.read_magic(stream)
    if version not in HEADERS:
        raise ArchiveError(f"{member.filename} in version {version} of numpy's format, expected 1.0 or 2.0")
    shape, _, dtype = HEADERS[version](stream)
    if dtype.hasobject:
        raise ArchiveError(f"Python objects in {member.filename}, which would have to be unpickled")
    promised, there = math.prod(shape) * dtype.itemsize, len(content) - stream.tell()
    if promised != there:
        raise ArchiveError(f"{there} bytes in {member.filename}, whose shape {shape} needs {promised}")
    stream.seek(0)
    return npy.read_array(stream, allow_pickle=False)
