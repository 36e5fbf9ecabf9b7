"""How far a diagnosis can be trusted, which failures look alike, and which sayings hold: clinic, atlas, folklore."""

import argparse
import sys

from labkit.cli.commands.arguments import add_dataset, add_jobs, add_seed, command, show_json

OLD_SPLITS = {"judging": "held-out", "setting": "development", "judged": "retired"}


def add(commands) -> None:
    add_clinic(commands)
    add_atlas(commands)
    add_folklore(commands)


def add_clinic(commands) -> None:
    about = "evaluate the diagnosis blind: how often is it correct, and how many false alarms are there?"
    made = command(commands, "clinic", hold_clinic, about)
    made.add_argument(
        "--contract", action="store_true", help="check instead that every mode fails, is named and is cured"
    )
    made.add_argument(
        "--foreign", action="store_true", help="evaluate on plain PyTorch programs that are not recipes of the lab"
    )
    made.add_argument(
        "--treat", action="store_true", help="with --foreign: evaluate how many faults `labkit treat` cures"
    )
    made.add_argument("--sample", type=int, metavar="N", help="with --treat: N faults, some of each (default: all)")
    made.add_argument("--programs", metavar="A,B,...", help="with --foreign: only these programs (default: all)")
    made.add_argument("--seeds", type=int, metavar="N", help="number of seeds (default: 5 with --contract, else 1)")
    made.add_argument("--first", type=int, default=0, metavar="SEED", help="first seed of the contract (default: 0)")
    made.add_argument("--healthy", type=int, default=200, metavar="N", help="number of healthy runs (default: 200)")
    made.add_argument(
        "--harder",
        type=int,
        default=0,
        metavar="N",
        help="with --foreign: so many more healthy runs under harder conditions, such as noise (default: 0)",
    )
    made.add_argument("--modes", metavar="A,B,...", help="only these modes (default: all)")
    made.add_argument(
        "--dataset", default="mnist", help="mnist (default) or cifar10; without --contract also mnist,cifar10"
    )
    made.add_argument(
        "--split",
        default="held-out",
        help="held-out (default); while signatures are changed, development or retired (held out before)",
    )
    made.add_argument(  # the name of --split in version 0.1
        "--part",
        dest="split",
        type=lambda name: OLD_SPLITS.get(name, name),
        default=argparse.SUPPRESS,
        help=argparse.SUPPRESS,
    )
    made.add_argument("--runs", metavar="FOLDER", help="store trained runs here, and reuse those that are stored")
    made.add_argument("--kept", action="store_true", help="train nothing: evaluate only the runs stored in --runs")
    add_jobs(made)
    made.add_argument("--dask", metavar="ADDRESS", help="address of a Dask cluster to train on")
    made.add_argument(
        "--out",
        metavar="FILE",
        help="write a report, .md; or, without --contract, the confusion matrix as .png, .pdf or .svg",
    )


def hold_clinic(options) -> int:
    from pathlib import Path

    from labkit.diagnosis.evaluation import contract
    from labkit.errors import RecipeError
    from labkit.training.parallel import on_cluster

    names = options.modes.split(",") if options.modes else None
    if options.treat and not options.foreign:
        raise RecipeError("--treat needs --foreign: recipes of the lab have cures of their own, see --contract")
    if options.foreign:
        with on_cluster(options.dask):
            return hold_foreign_clinic(names, options)
    if options.out and not options.contract and not options.out.endswith(".md"):
        from labkit.drawing.plots import picture_kind

        picture_kind(options.out)  # a wrong file type is an error before any training
    with on_cluster(options.dask):
        if options.contract:
            seeds = range(options.first, options.first + (options.seeds or 5))
            return show_contract(
                contract.contract(names, seeds=seeds, dataset=options.dataset, jobs=options.jobs), options
            )
        from labkit.diagnosis.evaluation import blind

        found = blind.evaluate(
            names,
            split=options.split,
            seeds=1 if options.seeds is None else options.seeds,
            healthy=options.healthy,
            datasets=options.dataset.split(","),
            jobs=options.jobs,
            folder=Path(options.runs) if options.runs else None,
            kept_only=options.kept,
        )
    return show_evaluation(found, options)


def hold_foreign_clinic(modes, options) -> int:
    from pathlib import Path

    from labkit.diagnosis.evaluation.foreign import clinic, report
    from labkit.errors import RecipeError
    from labkit.recording.files import written_whole

    if options.contract:
        raise RecipeError("--foreign and --contract: choose one; foreign programs have no contract")
    if options.out and not options.out.endswith(".md"):
        raise RecipeError(f"--out with --foreign: expected a file that ends in .md, got {options.out!r}")
    programs = options.programs.split(",") if options.programs else None
    if options.treat:
        return hold_treatments(programs, options)
    found = clinic.hold(
        options.split,
        programs=programs,
        modes=modes,
        seeds=1 if options.seeds is None else options.seeds,
        healthy=options.healthy,
        harder=options.harder,
        jobs=options.jobs,
        folder=Path(options.runs) if options.runs else None,
        kept_only=options.kept,
    )
    show_json(report.as_plain(found)) if options.json else print(report.as_text(found))
    if options.out:
        with written_whole(options.out) as stream:
            stream.write(report.in_markdown(found, clinic_command(options)).encode())
    return 0


def hold_treatments(programs, options) -> int:
    from pathlib import Path

    from labkit.diagnosis.evaluation.foreign import treatments
    from labkit.recording.files import written_whole

    found = treatments.hold(
        options.split,
        programs=programs,
        healthy=options.healthy,
        sample=options.sample,
        jobs=options.jobs,
        folder=Path(options.runs) if options.runs else None,
    )
    show_json(treatments.as_plain(found)) if options.json else print(treatments.as_text(found))
    if options.out:
        with written_whole(options.out) as stream:
            stream.write(treatments.in_markdown(found, clinic_command(options)).encode())
    return 0


def show_contract(outcomes, options) -> int:
    import dataclasses

    from labkit.diagnosis.evaluation import contract
    from labkit.recording.files import written_whole

    if options.json:
        show_json([dataclasses.asdict(each) for each in outcomes])
    else:
        print(contract.outcomes_as_text(outcomes))
    if options.out:
        with written_whole(options.out) as stream:
            stream.write(contract.in_markdown(outcomes, options.dataset).encode())
    return 0 if all(each.kept for each in outcomes) else 1


def show_evaluation(found, options) -> int:
    import dataclasses
    from pathlib import Path

    from labkit.diagnosis.evaluation import report
    from labkit.drawing.plots import save
    from labkit.recording.files import written_whole

    show_json(dataclasses.asdict(found)) if options.json else print(report.evaluation_as_text(found))
    if not options.out:
        return 0
    picture = Path(options.out).with_suffix(".png") if options.out.endswith(".md") else options.out
    print(f"picture: {save(report.confusion_picture(found), picture)}", file=sys.stderr)
    if options.out.endswith(".md"):
        with written_whole(options.out) as stream:
            stream.write(report.in_markdown(found, clinic_command(options), Path(picture).name).encode())
    return 0


def clinic_command(options) -> str:
    """The command that repeats this evaluation; defaults are left out."""
    usual = {"split": "held-out", "seeds": None, "healthy": 200, "modes": None, "dataset": "mnist", "programs": None}
    usual |= {"sample": None} | ({"harder": 0} if options.foreign else {})
    asked = ((name, getattr(options, name)) for name in usual)
    start = "labkit clinic" + " --foreign" * options.foreign + " --treat" * options.treat
    return " ".join([start, *(f"--{name} {value}" for name, value in asked if value != usual[name])])


def add_atlas(commands) -> None:
    about = "which failures look alike in the loss, and which instrument shows each first"
    made = command(commands, "atlas", show_atlas, about)
    add_dataset(made)
    add_seed(made)
    add_jobs(made)


def show_atlas(options) -> None:
    import dataclasses

    from labkit.diagnosis import look_alikes
    from labkit.diagnosis.study import run_studies
    from labkit.failures.catalogue import FAILURES

    names = [name for name, mode in FAILURES.items() if mode.on(options.dataset)]
    studies = run_studies(names, seed=options.seed, dataset=options.dataset, jobs=options.jobs)
    if not options.json:
        return print(look_alikes.tables_as_text(studies))
    tables = {"look_alikes": look_alikes.look_alikes(studies), "lead_times": look_alikes.lead_times(studies)}
    show_json({name: [dataclasses.asdict(row) for row in rows] for name, rows in tables.items()})


def add_folklore(commands) -> None:
    about = "try what people say about training on real runs: which claims hold, by how much, and where?"
    made = command(commands, "folklore", audit_folklore, about)
    made.add_argument("--claims", metavar="A,B,...", help="only these claims (default: all)")
    made.add_argument("--seeds", type=int, metavar="N", help="number of seeds (default: 5, or 3 where runs are slow)")
    add_jobs(made)
    made.add_argument("--runs", metavar="FOLDER", help="store trained runs here, and reuse those that are stored")
    made.add_argument("--kept", action="store_true", help="train nothing: use the results that are stored beside --out")
    made.add_argument(
        "--out",
        metavar="FILE",
        help="write the page, .md, and the results beside it, .json; those of other claims are kept",
    )


def audit_folklore(options) -> int:
    from pathlib import Path

    from labkit.diagnosis.evaluation.folklore import page, results
    from labkit.diagnosis.evaluation.folklore.collection import CLAIMS, chosen
    from labkit.errors import RecipeError
    from labkit.recording.files import written_whole

    asked, all_claims = chosen(options.claims), list(CLAIMS.values())
    if options.out and not options.out.endswith(".md"):
        raise RecipeError(f"--out: expected a file that ends in .md, got {options.out!r}")
    if options.kept and not options.out:
        raise RecipeError("--kept: name the page with --out FILE.md; the results are read from FILE.json")
    stored = Path(options.out).with_suffix(".json") if options.out else None
    known = results.load(stored, all_claims) if stored else []
    if not options.kept:
        known = measured_claims(asked, known, stored, options)
    shown = [each for each in known if each.claim in asked]
    show_json([results.as_plain(each) for each in shown]) if options.json else print(page.as_text(shown))
    if options.out:
        with written_whole(options.out) as stream:
            stream.write(page.in_markdown(known, all_claims).encode())
    return 0


def measured_claims(asked, known, stored, options) -> list:
    """Train and measure; after each claim all results are stored, so that Ctrl-C loses those of one claim at most."""
    from pathlib import Path

    from labkit.diagnosis.evaluation.folklore import audit, results

    folder = Path(options.runs) if options.runs else None
    new = audit.audit(asked, seeds=options.seeds, jobs=options.jobs, folder=folder)
    runs, missing, seconds = audit.estimate(asked, options.seeds, folder=folder)
    words = f"{len(asked)} claims, {runs} runs, {missing} of them to train"
    print(f"{words}: about {seconds / 60:.0f} minutes of one core", file=sys.stderr)
    for result in new:
        known = results.merged(known, result)
        if stored:
            results.save(known, stored)
    return known
