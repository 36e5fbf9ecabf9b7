"""Pages in a browser: lab, play."""

from labkit.cli.commands.arguments import command


def add(commands) -> None:
    add_lab(commands)
    add_play(commands)


def add_lab(commands) -> None:
    made = command(commands, "lab", open_lab, "open JupyterLab on the course", json=False)
    made.add_argument("folder", nargs="?", help="folder of notebooks (default: the course of the clone)")
    add_server(made)


def open_lab(options) -> None:
    from labkit.cli import serve

    serve.lab(options.folder, port=options.port, ip=options.ip or serve.LOOPBACK, browser=options.browser)


def add_play(commands) -> None:
    about = "serve the panels and the ward as a web page without code (needs the extra `dashboard`)"
    made = command(commands, "play", serve_page, about, json=False)
    add_server(made)
    words = "visitors at a time (default: 600 MB each, in half of the memory); the next one is asked to wait"
    made.add_argument("--visitors", type=int, metavar="N", help=words)


def serve_page(options) -> None:
    from labkit.cli import serve

    ip = options.ip or serve.LOOPBACK
    serve.play(port=options.port, ip=ip, browser=options.browser, visitors=options.visitors)


def add_server(made) -> None:
    """Where the server listens."""
    made.add_argument("--port", type=int, metavar="N", help="port of the server (default: a free one)")
    made.add_argument("--ip", metavar="ADDRESS", help="address to listen on (default: 127.0.0.1, only this machine)")
    made.add_argument("--no-browser", dest="browser", action="store_false", help="only print the link")
