"""This machine: data, doctor, bench."""

from labkit.cli.commands.arguments import command, show_json


def add(commands) -> None:
    add_data(commands)
    add_doctor(commands)
    add_bench(commands)


def add_data(commands) -> None:
    made = command(
        commands, "data", show_data, "list the installed data sets and stored runs, or download a full data set"
    )
    made.add_argument("action", nargs="?", choices=["download"], help="fetch a full data set")
    made.add_argument("name", nargs="?", help="data set to download: mnist or cifar10")
    made.add_argument("--empty-runs", action="store_true", help="delete the trained runs that labkit keeps on disk")


def show_data(options) -> None:
    from labkit.errors import RecipeError
    from labkit.training import data, run_store

    if options.empty_runs:
        words = run_store.emptied(run_store.on_disk())
        return show_json({"done": words}) if options.json else print(words)
    if options.action == "download":
        if not options.name:
            raise RecipeError("say which data set to download: labkit data download cifar10")
        return print(f"downloaded to {data.download(options.name)}")
    records = [*data.available(), run_store.as_record(run_store.on_disk())]
    if options.json:
        return show_json([vars(record) for record in records])
    for record in records:
        print(f"{record.name:18}{record.state:16}{record.bytes / 1e6:7.1f} MB  {record.what}")
        print(f"{'':18}{record.where}" + (f"\n{'':18}{record.advice}" if record.advice else ""))


def add_doctor(commands) -> None:
    command(commands, "doctor", check_machine, "check this machine: can the lab run here, and how fast?")


def check_machine(options) -> int:
    from labkit.cli.doctor import main as doctor

    return doctor(json=options.json)


def add_bench(commands) -> None:
    about = "compare labkit's speed with plain PyTorch and with tutorial code, as ratios"
    made = command(commands, "bench", measure_speed, about)
    made.add_argument("--out", metavar="FILE", help="also write the table as a page, .md")


def measure_speed(options) -> None:
    from labkit.cli import bench
    from labkit.errors import RecipeError
    from labkit.recording.files import written_whole

    if options.out and not options.out.endswith(".md"):
        raise RecipeError(f"--out: expected a file that ends in .md, got {options.out}")
    found = bench.measure()
    show_json(found) if options.json else print(bench.ratios_as_text(found))
    if options.out:
        with written_whole(options.out) as stream:
            stream.write(bench.ratios_as_page(found).encode())
