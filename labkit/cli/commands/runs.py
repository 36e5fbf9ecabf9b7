"""Train a failure mode, read a recorded run, treat a program, draw a landscape: run, diagnose, treat, landscape."""

import sys

from labkit.cli.commands.arguments import add_dataset, add_jobs, add_seed, command, show_json


def add(commands) -> None:
    add_run(commands)
    add_diagnose(commands)
    add_treat(commands)
    add_landscape(commands)


def add_run(commands) -> None:
    about = "train the healthy, the sick and the cured run of a failure mode, and diagnose them"
    made = command(commands, "run", run_mode, about)
    made.add_argument("name", help="of the failure mode; `labkit list` shows all")
    add_seed(made)
    made.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], help="change the sick recipe, for example lr=3"
    )
    add_dataset(made)
    made.add_argument("--face", help="another variant of the failure; `labkit explain NAME` lists them")
    made.add_argument("--out", metavar="FILE", help="plot the three runs: .png, .pdf or .svg")


def run_mode(options) -> None:
    from labkit.diagnosis import report
    from labkit.diagnosis.study import study
    from labkit.failures.catalogue import FAILURES

    parse = type(FAILURES[options.name].sick).parse  # a language model has more entries
    changes = {name: value for text in options.set for name, value in parse(text).items()}
    if options.out:
        from labkit.drawing.plots import picture_kind

        picture_kind(options.out)  # a wrong file type is an error before any training
    played = study(options.name, options.seed, options.dataset, face=options.face, changes=changes)
    show_json(report.study_as_values(played)) if options.json else print(report.study_in_words(played))
    if options.out:
        from labkit.drawing.plots import save, study_picture

        path = save(study_picture(played, report.heading(played)), options.out)
        print(f"\npicture: {path}", file=sys.stderr)


def add_diagnose(commands) -> None:
    about = "diagnose a recorded run: .npz, .csv, an exported scalar (.json) or a TensorBoard folder"
    made = command(commands, "diagnose", diagnose_file, about)
    made.add_argument(
        "file", help="a saved run, a CSV log, a scalar exported from TensorBoard, or a TensorBoard folder"
    )


def diagnose_file(options) -> None:
    import dataclasses

    from labkit.diagnosis import report
    from labkit.diagnosis.diagnose import diagnose
    from labkit.recording import logs

    run = logs.read(options.file)
    if options.json:
        return show_json([dataclasses.asdict(found) for found in diagnose(run)])
    print(report.exam(run))


def add_treat(commands) -> None:
    about = "run a training script, diagnose it, try prescriptions as experiments, and prove the cure"
    made = command(commands, "treat", treat_script, about)
    made.add_argument(
        "script",
        metavar="SCRIPT[:FUNCTION]",
        help="a script that calls labkit.watch around its loop, or has a function of `watch`",
    )
    made.add_argument("--budget", default="60", help="number of runs (default: 60), or a time such as 90s or 10min")
    made.add_argument("--measure", metavar="NAME", help="validation result to judge by; -NAME where lower is better")
    add_jobs(made)
    made.add_argument("--dask", metavar="ADDRESS", help="address of a Dask cluster to run on, where the script is too")
    made.add_argument("--out", metavar="FILE", help="plot the arms: .png, .pdf or .svg")


def treat_script(options) -> int:
    if options.out:
        from labkit.drawing.plots import picture_kind

        picture_kind(options.out)  # a wrong file type is an error before any training
    from labkit.diagnosis.treatment.treat import treat
    from labkit.training.parallel import on_cluster

    budget = int(options.budget) if options.budget.isdigit() else options.budget
    with on_cluster(options.dask):
        answer = treat(options.script, budget=budget, measure=options.measure, jobs=options.jobs)
    print(answer.to_json() if options.json else answer)
    if options.out:
        from labkit.drawing.plots import save

        print(f"\npicture: {save(answer.plot().figure, options.out)}", file=sys.stderr)
    return 0


def add_landscape(commands) -> None:
    about = "plot loss landscapes of trained nets: saddle, plateau, sharp and flat minimum"
    made = command(commands, "landscape", draw_landscape, about, json=False)
    made.add_argument("--out", metavar="FILE", default="landscape.png", help=".png (default), .pdf or .svg")
    add_seed(made)


def draw_landscape(options) -> None:
    from labkit.drawing.plots import picture_kind, save

    picture_kind(options.out)  # a wrong file type is an error before any training
    from labkit.diagnosis.landscape_examples import landscape_picture

    print(f"picture: {save(landscape_picture(options.seed), options.out)}")
