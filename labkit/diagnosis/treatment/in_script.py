"""Run one arm of a script, in an interpreter of its own: `python -m labkit.diagnosis.treatment.in_script`.

The arguments: a folder with the order, the script, a function of it or nothing, and the process that asked for it.
"""

import os
import sys
from pathlib import Path

from labkit.diagnosis.treatment.arms import from_json, perform, program_of, sender, silence, write
from labkit.training.parallel import end_with


def main() -> None:
    folder, path, function, parent = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    end_with(parent)
    stream = os.fdopen(os.dup(1), "w", buffering=1)  # for the reports; what the script prints goes into a file
    order = from_json((folder / "order.json").read_text(encoding="utf-8"))
    silence(folder)
    write(folder, perform(program_of(path, function or None), order, sender(stream)))


if __name__ == "__main__":
    main()
