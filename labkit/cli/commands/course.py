"""The course: poster, lessons, ward."""

from labkit.cli.commands.arguments import add_dataset, add_jobs, add_seed, command, show_json


def add(commands) -> None:
    add_poster(commands)
    add_lessons(commands)
    add_ward(commands)


def add_poster(commands) -> None:
    made = command(commands, "poster", make_poster, "train the headline failures and draw them on one page", json=False)
    made.add_argument("--out", metavar="FILE", action="append", help=".pdf, .png or .svg; can be repeated")
    made.add_argument("--modes", metavar="A,B,...", help="these failure modes instead of the five headline ones")
    made.add_argument("--all", action="store_true", help="all failure modes, on several pages, with the atlas tables")
    made.add_argument("--paper", default="a3", help="a4, a3 (default) or letter, all landscape")
    made.add_argument("--width", type=int, metavar="PIXELS", help="width of the .png (default: A3 at 300 dpi)")
    add_dataset(made)
    add_seed(made)
    add_jobs(made)


def make_poster(options) -> None:
    from labkit.course.poster import poster

    written = poster.make(
        options.out or poster.DEFAULT,
        modes=options.modes.split(",") if options.modes else None,
        everything=options.all,
        dataset=options.dataset,
        paper=options.paper,
        seed=options.seed,
        jobs=options.jobs,
        width=options.width,
        remake=remake_command(options),
    )
    for path in written:
        print(f"poster: {path}")


def remake_command(options) -> str:
    """The command that makes the same poster again; defaults are left out."""
    words = ["labkit poster"] + (["--all"] if options.all else [])
    words += [f"--modes {options.modes}"] if options.modes else []
    usual = {"dataset": "mnist", "paper": "a3", "seed": 0}
    words += [f"--{name} {getattr(options, name)}" for name, value in usual.items() if getattr(options, name) != value]
    return " ".join(words)


def add_lessons(commands) -> None:
    about = "generate the student notebooks, the syllabus, the catalogue page and the commands page"
    made = command(commands, "lessons", make_lessons, about, json=False).add_mutually_exclusive_group()
    made.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a file is out of date")
    made.add_argument(
        "--run", nargs="*", metavar="LESSON", help="first execute these solutions (default: all) and save their outputs"
    )
    made.add_argument("--nbgrader", metavar="DIR", help="write a course directory for nbgrader instead")


def make_lessons(options) -> int:
    from pathlib import Path

    from labkit.cli import pages
    from labkit.course import notebooks
    from labkit.errors import RecipeError

    if not Path("solutions").is_dir():
        raise RecipeError("run `labkit lessons` at the top of a clone: there is no folder solutions/ here")
    if options.nbgrader:
        for path in notebooks.course(Path(), Path(options.nbgrader)):
            print(f"written: {path}")
        return 0
    if options.run is not None:
        for path in notebooks.run(Path(), options.run):
            print(f"executed: {path}")
    changed = [*pages.regenerate(Path(), options.check), *notebooks.regenerate(Path(), options.check)]
    for path in changed:
        outdated = f"{path} is out of date; regenerate it with `labkit lessons`"
        print(outdated if options.check else f"regenerated: {path}")
    return 1 if options.check and changed else 0


def add_ward(commands) -> None:
    about = "list the patients of a ward: failing runs to examine, diagnose and cure"
    made = command(commands, "ward", hold_ward, about)
    made.add_argument("--seed", type=int, default=0, help="the same seed admits the same patients")
    made.add_argument("--patients", type=int, default=6, metavar="N", help="number of patients (default: 6)")
    made.add_argument("--check", action="store_true", help="for instructors: print each failure and its cure")
    made.add_argument(
        "--try",
        dest="let_try",
        action="store_true",
        help="for instructors: let `labkit treat` find and prove the cures",
    )
    made.add_argument(
        "--renew", action="store_true", help="train all failures on all nets, and regenerate the list of verified cases"
    )
    add_jobs(made, " with --renew and --try")


def hold_ward(options) -> None:
    from labkit.course.ward.cases import regenerate
    from labkit.course.ward.game import truth, ward

    if options.renew:
        return print(f"{regenerate(jobs=options.jobs)} verified cases")
    if options.let_try:
        from labkit.course.ward.tried import in_words, tried

        rows = tried(options.seed, options.patients, jobs=options.jobs)
        return show_json(rows) if options.json else print(in_words(rows))
    admitted = ward(options.seed, options.patients)
    if options.check:
        rows = truth(options.seed, options.patients)
        return show_json(rows) if options.json else print(truth_in_words(rows))
    if options.json:
        return show_json([{"patient": one.number, "complaint": one.complaint, "net": one.net} for one in admitted])
    print(f"{admitted}\n\nTo examine them: labkit.ward(seed={options.seed}, patients={options.patients}) in Python,")
    print(f"or labkit.ward_panel(seed={options.seed}, patients={options.patients}) in a notebook.")


def truth_in_words(rows: list[dict]) -> str:
    """The instructor's list: three lines per patient."""
    return "\n".join(
        f"{row['patient']:>3}  {row['failure']}: {row['title']} ({row['net']}, seed {row['seed']})\n"
        f"{'':5}cure: {row['cure']}\n{'':5}{row['prescribe']}"
        for row in rows
    )
