"""The command line. Heavy imports wait until a command needs them, so that --help is instant."""

import argparse
import json
import math
import os
import sys

from labkit import __version__


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        code = options.command(options) or 0
        sys.stdout.flush()  # a closed pipe shows here, and not after the last line of this program
        return code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `labkit list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads what is left
        return 0
    except ModuleNotFoundError as error:
        print(f"labkit: the module {error.name!r} is missing; `labkit doctor` says what to do", file=sys.stderr)
        return 1
    except expected_errors() as error:
        print(f"labkit: {error}", file=sys.stderr)
        return 2


def expected_errors() -> tuple[type[Exception], ...]:
    """What a user can cause and mend: shown as one message. Anything else is our bug, and keeps its traceback."""
    from labkit.training.data import DataError
    from labkit.failures import UnknownFailure
    from labkit.training.rules import RecipeError
    from labkit.recording.run import RunError

    return DataError, UnknownFailure, RecipeError, RunError, OSError


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="labkit", description="Break neural-network training on purpose, and learn why.")
    top.add_argument("--version", action="version", version=f"labkit {__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, function, about: str, *, json: bool = True) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=about, description=about)
        made.set_defaults(command=function)
        if json:
            made.add_argument("--json", action="store_true", help="print for a program to read")
        return made

    command("list", list_modes, "list the failure modes")
    explain = command("explain", explain_mode, "explain one failure mode")
    explain.add_argument("name")
    explain.add_argument("--script", action="store_true", help="a standalone PyTorch script of the sick and cured loop")
    run = command("run", run_mode, "train the healthy, the sick and the cured net of a mode, and say what is seen")
    run.add_argument("name")
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="change the sick recipe: lr=3")
    run.add_argument("--dataset", default="mnist", help="mnist or cifar10")
    run.add_argument("--face", help="another appearance of the same failure; `labkit explain NAME` lists them")
    run.add_argument("--out", metavar="FILE", help="draw the three runs: .png, .pdf or .svg")
    diagnose = command(
        "diagnose", diagnose_file, "what is wrong with a recorded run? .npz, .csv or a TensorBoard folder"
    )
    diagnose.add_argument("file")
    data = command("data", show_data, "list the data sets that are here, or download a full one")
    data.add_argument("action", nargs="?", choices=["download"])
    data.add_argument("name", nargs="?", help="mnist or cifar10")
    command("doctor", check_machine, "check this machine: can the lab run here, and how fast?")
    command("bench", measure_speed, "measure our speed against plain PyTorch and the tutorial way, as ratios")
    poster = command("poster", make_poster, "train the headline failures and draw them on one page", json=False)
    poster.add_argument("--out", metavar="FILE", action="append", help=".pdf, .png or .svg; may be given several times")
    poster.add_argument("--modes", metavar="A,B,...", help="these failures instead of the five headline ones")
    poster.add_argument(
        "--all", action="store_true", help="the whole catalogue, on several pages, with the atlas tables"
    )
    poster.add_argument("--paper", default="a3", help="a4, a3 (default) or letter, all landscape")
    poster.add_argument("--width", type=int, metavar="PIXELS", help="of a .png (default: 300 dots per inch of A3)")
    clinic = command(
        "clinic", hold_clinic, "blind: how often is the diagnosis right, and how often is a healthy run alarmed?"
    )
    clinic.add_argument(
        "--contract", action="store_true", help="instead: does every mode fail, is it named, is it cured?"
    )
    clinic.add_argument("--seeds", type=int, metavar="N", help="how many (default: 5 for the contract, else 1)")
    clinic.add_argument("--first", type=int, default=0, metavar="SEED", help="of the contract's seeds (default: 0)")
    clinic.add_argument("--healthy", type=int, default=200, metavar="N", help="runs of the healthy zoo (default: 200)")
    clinic.add_argument("--modes", metavar="A,B,...", help="these modes instead of all")
    clinic.add_argument("--dataset", default="mnist", help="mnist or cifar10; without --contract also mnist,cifar10")
    clinic.add_argument(
        "--part",
        default="judging",
        help="judging (default), or, to look at while signatures are changed, setting or judged (judging of before)",
    )
    clinic.add_argument(
        "--runs", metavar="FOLDER", help="keep the trained runs here, and train none that is here already"
    )
    clinic.add_argument("--kept", action="store_true", help="train nothing: judge what is in --runs alone")
    clinic.add_argument("--jobs", type=int, default=1, metavar="N", help="processes to train in")
    clinic.add_argument("--dask", metavar="ADDRESS", help="spread the work over this Dask cluster")
    clinic.add_argument(
        "--out",
        metavar="FILE",
        help="as a page, .md; or, without --contract, the confusion matrix as .png, .pdf or .svg",
    )
    landscape = command(
        "landscape", draw_landscape, "saddle, plateau, sharp and flat minimum of trained nets", json=False
    )
    landscape.add_argument("--out", metavar="FILE", default="landscape.png", help=".png (default), .pdf or .svg")
    landscape.add_argument("--seed", type=int, default=0)
    lessons = command(
        "lessons", make_lessons, "derive the student notebooks, the syllabus and the README's table", json=False
    )
    lessons = lessons.add_mutually_exclusive_group()
    lessons.add_argument("--check", action="store_true", help="change nothing; fail where something is out of date")
    lessons.add_argument(
        "--run", nargs="*", metavar="LESSON", help="first execute these solutions (all: none named), and keep outputs"
    )
    lessons.add_argument("--nbgrader", metavar="DIR", help="instead: write a course directory for nbgrader")
    ward = command("ward", hold_ward, "the waiting room of a ward: sealed patients to examine, name and cure")
    ward.add_argument("--seed", type=int, default=0, help="the same seed admits the same patients")
    ward.add_argument("--patients", type=int, default=6, metavar="N")
    ward.add_argument("--check", action="store_true", help="for instructors: the truth, and what cures")
    ward.add_argument(
        "--renew", action="store_true", help="play all failures on all nets, and list anew who may be drawn"
    )
    ward.add_argument("--jobs", type=int, default=1, metavar="N", help="processes to train in (with --renew)")
    lab = command("lab", open_lab, "open JupyterLab on the course", json=False)
    lab.add_argument("folder", nargs="?", help="of notebooks; left out: the course of the clone")
    play = command("play", serve_page, "the panels and the ward as a page without code (needs Voila)", json=False)
    for made in (lab, play):
        made.add_argument("--port", type=int, metavar="N", help="of the server (default: a free one)")
        made.add_argument("--ip", metavar="ADDRESS", help="to listen on (default: 127.0.0.1, this machine alone)")
        made.add_argument("--no-browser", dest="browser", action="store_false", help="only print the link")
    atlas = command("atlas", show_atlas, "which failures look alike in the loss, and which instrument sees them first?")
    for made in (poster, atlas):
        made.add_argument("--dataset", default="mnist", help="mnist or cifar10")
        made.add_argument("--seed", type=int, default=0)
        made.add_argument("--jobs", type=int, default=1, metavar="N", help="processes to train in")
    return top


def list_modes(options) -> None:
    from rich.console import Console

    from labkit.failures import FAILURES

    if options.json:
        names = ("name", "topic", "title", "symptom")
        return show_json([{name: getattr(mode, name) for name in names} for mode in FAILURES.values()])
    Console().print(FAILURES)


def explain_mode(options) -> None:
    from labkit.diagnosis import report
    from labkit.failures import FAILURES

    mode = FAILURES[options.name]
    if options.script:
        from labkit.cli.standalone.gather import script

        return print(script(mode))
    show_json(report.mode_as_values(mode)) if options.json else print(report.mode_in_words(mode))


def run_mode(options) -> None:
    from labkit.diagnosis import report
    from labkit.training.rules import RecipeError
    from labkit.training.recipe import Recipe
    from labkit.diagnosis.study import study

    changes = {name: value for text in options.set for name, value in Recipe.parse(text).items()}
    if changes.get("evaluate_every") == 0:
        raise RecipeError("evaluate_every: a study compares validations, so it must be above 0 or None")
    if options.out:
        from labkit.drawing.plots import picture_kind

        picture_kind(options.out)  # a wrong name is an error before anything is trained
    played = study(options.name, options.seed, options.dataset, face=options.face, changes=changes)
    show_json(report.study_as_values(played)) if options.json else print(report.study_in_words(played))
    if options.out:
        from labkit.drawing.plots import save, study_picture

        path = save(study_picture(played, report.heading(played)), options.out)
        print(f"\npicture: {path}", file=sys.stderr)


def diagnose_file(options) -> None:
    import dataclasses

    from labkit.diagnosis import report
    from labkit.recording import logs as export
    from labkit.diagnosis.diagnose import diagnose

    run = export.read(options.file)
    if options.json:
        return show_json([dataclasses.asdict(found) for found in diagnose(run)])
    print(report.exam(run))


def show_data(options) -> None:
    from labkit.training import data
    from labkit.training.rules import RecipeError

    if options.action == "download":
        if not options.name:
            raise RecipeError("say which data set to download: labkit data download cifar10")
        return print(f"downloaded to {data.download(options.name)}")
    records = data.available()
    if options.json:
        return show_json([vars(record) for record in records])
    for record in records:
        print(f"{record.name:18}{record.state:16}{record.bytes / 1e6:7.1f} MB  {record.what}")
        print(f"{'':18}{record.where}" + (f"\n{'':18}{record.advice}" if record.advice else ""))


def check_machine(options) -> int:
    from labkit.cli.doctor import main as doctor

    return doctor(json=options.json)


def measure_speed(options) -> None:
    from labkit.cli import bench

    found = bench.measure()
    show_json(found) if options.json else print(bench.in_words(found))


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
    """The command that makes the same poster again, without what is the default anyway."""
    words = ["labkit poster"] + (["--all"] if options.all else [])
    words += [f"--modes {options.modes}"] if options.modes else []
    usual = {"dataset": "mnist", "paper": "a3", "seed": 0}
    words += [f"--{name} {getattr(options, name)}" for name, value in usual.items() if getattr(options, name) != value]
    return " ".join(words)


def hold_clinic(options) -> int:
    from pathlib import Path

    from labkit.diagnosis.evaluation import contract as clinic

    names = options.modes.split(",") if options.modes else None
    if options.out and not options.contract and not options.out.endswith(".md"):
        from labkit.drawing.plots import picture_kind

        picture_kind(options.out)  # a wrong name is an error before anything is trained
    with clinic.on_cluster(options.dask):
        if options.contract:
            seeds = range(options.first, options.first + (options.seeds or 5))
            return show_contract(
                clinic.contract(names, seeds=seeds, dataset=options.dataset, jobs=options.jobs), options
            )
        from labkit.diagnosis.evaluation import blind

        found = blind.hold(
            names,
            part=options.part,
            seeds=1 if options.seeds is None else options.seeds,
            healthy=options.healthy,
            datasets=options.dataset.split(","),
            jobs=options.jobs,
            folder=Path(options.runs) if options.runs else None,
            kept_only=options.kept,
        )
    return show_evaluation(found, options)


def show_contract(outcomes, options) -> int:
    import dataclasses

    from labkit.diagnosis.evaluation import contract as clinic
    from labkit.recording.run import written_whole

    if options.json:
        show_json([dataclasses.asdict(each) for each in outcomes])
    else:
        print(clinic.in_words(outcomes))
    if options.out:
        with written_whole(options.out) as stream:
            stream.write(clinic.in_markdown(outcomes, options.dataset).encode())
    return 0 if all(each.kept for each in outcomes) else 1


def show_evaluation(found, options) -> int:
    import dataclasses
    from pathlib import Path

    from labkit.diagnosis.evaluation import report as blind_report
    from labkit.drawing.plots import save
    from labkit.recording.run import written_whole

    show_json(dataclasses.asdict(found)) if options.json else print(blind_report.in_words(found))
    if not options.out:
        return 0
    picture = Path(options.out).with_suffix(".png") if options.out.endswith(".md") else options.out
    print(f"picture: {save(blind_report.confusion_picture(found), picture)}", file=sys.stderr)
    if options.out.endswith(".md"):
        with written_whole(options.out) as stream:
            stream.write(blind_report.in_markdown(found, clinic_command(options), Path(picture).name).encode())
    return 0


def clinic_command(options) -> str:
    """The command that holds the same clinic again, without what is the default anyway."""
    usual = {"part": "judging", "seeds": None, "healthy": 200, "modes": None, "dataset": "mnist"}
    asked = ((name, getattr(options, name)) for name in usual)
    return " ".join(["labkit clinic", *(f"--{name} {value}" for name, value in asked if value != usual[name])])


def draw_landscape(options) -> None:
    from labkit.drawing.plots import picture_kind, save

    picture_kind(options.out)  # a wrong name is an error before anything is trained
    from labkit.diagnosis.landscape_examples import landscape_picture

    print(f"picture: {save(landscape_picture(options.seed), options.out)}")


def make_lessons(options) -> int:
    from pathlib import Path

    from labkit.course import notebooks as lessons

    if options.nbgrader:
        for path in lessons.course(Path(), Path(options.nbgrader)):
            print(f"written: {path}")
        return 0
    if options.run is not None:
        for path in lessons.run(Path(), options.run):
            print(f"executed: {path}")
    changed = lessons.renew(Path(), check=options.check)
    for path in changed:
        print(f"{path} is out of date; renew it with `labkit lessons`" if options.check else f"renewed: {path}")
    return 1 if options.check and changed else 0


def hold_ward(options) -> None:
    from labkit.course.ward.game import truth, ward
    from labkit.course.ward.cases import renew

    if options.renew:
        return print(f"{renew(jobs=options.jobs)} cases hold")
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


def open_lab(options) -> None:
    from labkit.cli import serve

    serve.lab(options.folder, port=options.port, ip=options.ip or serve.LOOPBACK, browser=options.browser)


def serve_page(options) -> None:
    from labkit.cli import serve

    serve.play(port=options.port, ip=options.ip or serve.LOOPBACK, browser=options.browser)


def show_atlas(options) -> None:
    import dataclasses

    from labkit.diagnosis import look_alikes as atlas
    from labkit.failures import FAILURES
    from labkit.course.poster.poster import run_studies

    names = [name for name, mode in FAILURES.items() if mode.on(options.dataset)]
    studies = run_studies(names, seed=options.seed, dataset=options.dataset, jobs=options.jobs)
    if not options.json:
        return print(atlas.in_words(studies))
    tables = {"look_alikes": atlas.look_alikes(studies), "lead_times": atlas.lead_times(studies)}
    show_json({name: [dataclasses.asdict(row) for row in rows] for name, rows in tables.items()})


def show_json(values) -> None:
    print(json.dumps(finite(values), indent=2, default=str))


def finite(values):
    """The same with None for NaN and infinity, which JSON does not have."""
    if isinstance(values, dict):
        return {name: finite(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [finite(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


if __name__ == "__main__":
    sys.exit(main())
