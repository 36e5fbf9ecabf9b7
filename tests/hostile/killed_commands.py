"""What test_hostile_kills.py starts and kills: python killed_commands.py COMMAND FOLDER

Training is shortened, so that a kill hits writing as often as training; the code that writes is the real one. Processes
that joblib starts train at full length.
"""

import sys
from pathlib import Path


def poster(folder: Path) -> None:
    """The page of one failure, as a picture and as a PDF, in two processes every other time."""
    jobs = "2" if (folder / "in two processes").exists() else "1"
    files = [word for name in ("poster.png", "poster.pdf") for word in ("--out", str(folder / name))]
    command("poster", "--modes", "dead_relu", "--width", "600", "--jobs", jobs, *files)


def clinic(folder: Path) -> None:
    """A blind evaluation with runs kept in a folder, in two processes."""
    options = ["--modes", "dead_relu", "--healthy", "2", "--split", "development", "--jobs", "2"]
    command("clinic", *options, "--runs", str(folder / "runs"), "--out", str(folder / "clinic.md"))


def store(folder: Path) -> None:
    """Trains and keeps runs, one of them in two processes, and reports each that is kept."""
    from helpers import tiny

    from labkit.failures.catalogue import FAILURES
    from labkit.training.run_store import Memory, RunStore

    kept = RunStore(folder / "runs", memory=Memory())
    together = FAILURES["sampler_missing"].healthy.but(steps=8, samples=256, batch_size=32)
    for recipe in [*(tiny(seed=seed, steps=60) for seed in range(30)), together]:
        kept.run_of(recipe, progress=False)
        print(f"kept: {kept.path(recipe)}", flush=True)


def lessons(folder: Path) -> None:
    """Generates all notebooks and pages from the solutions, again and again."""
    import os
    import shutil

    os.chdir(folder)
    for _ in range(3):
        print("deleted: notebooks", flush=True)  # what was reported before may be missing from now on
        shutil.rmtree("notebooks", ignore_errors=True)
        command("lessons")


def ward(folder: Path) -> None:
    """Score sheets of a ward, and the list of its cases."""
    from labkit.course.ward import cases
    from labkit.course.ward.game import ward

    everything = [case for group in cases.verified_cases().values() for case in group]
    for seed in range(800):  # two seconds: 40 were written before a kill could come
        admitted = ward(seed, 6, student="Ünal")
        for name in ("sheet.json", "sheet.csv"):
            print(f"written: {admitted.score_sheet(folder / name)}", flush=True)
        cases.write(everything, folder / "cases.json")


def command(*words: str) -> None:
    from labkit.cli.main import main

    if code := main(list(words)):
        sys.exit(code)


def train_shortly() -> None:
    from played import short

    from labkit.training import run_store

    real = run_store.train
    run_store.train = lambda recipe, **options: real(short(recipe) if recipe.steps > 60 else recipe, **options)


if __name__ == "__main__":
    if sys.argv[1] in ("poster", "clinic"):
        train_shortly()
    globals()[sys.argv[1]](Path(sys.argv[2]))
