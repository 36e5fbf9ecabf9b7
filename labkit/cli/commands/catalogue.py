"""The failure modes: list, explain, new."""

from labkit.cli.commands.arguments import command, show_json


def add(commands) -> None:
    add_list(commands)
    add_explain(commands)
    add_new(commands)


def add_list(commands) -> None:
    command(commands, "list", list_modes, "list the failure modes")


def list_modes(options) -> None:
    from rich.console import Console

    from labkit.failures.catalogue import FAILURES

    if options.json:
        names = ("name", "topic", "title", "symptom")
        return show_json([{name: getattr(mode, name) for name in names} for mode in FAILURES.values()])
    Console().print(FAILURES)


def add_explain(commands) -> None:
    made = command(commands, "explain", explain_mode, "explain one failure mode")
    made.add_argument("name", help="of the failure mode; `labkit list` shows all")
    made.add_argument(
        "--script", action="store_true", help="print a standalone PyTorch script that trains sick and cured"
    )


def explain_mode(options) -> None:
    from labkit.diagnosis import report
    from labkit.failures.catalogue import FAILURES

    mode = FAILURES[options.name]
    if options.script:
        from labkit.course.standalone.gather import script

        return print(script(mode))
    show_json(report.mode_as_values(mode)) if options.json else print(report.mode_in_words(mode))


def add_new(commands) -> None:
    about = "write a failure file to fill in, with its test (in a clone)"
    made = command(commands, "new", new_mode, about, json=False)
    made.add_argument("mode", metavar="TOPIC/FAULT", help="such as learning_rate/learning_rate_forgotten")


def new_mode(options) -> None:
    from labkit.cli import new

    print(new.next_steps(new.write(options.mode)))
