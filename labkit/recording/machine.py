"""The machine that a measurement was made on."""

import platform
from pathlib import Path


def cpu_name() -> str:
    """The model name of the processor, where the system provides it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(": ")[1] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
