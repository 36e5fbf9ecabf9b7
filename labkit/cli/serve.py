"""JupyterLab on the course, and the panels as a page without code: on this machine alone, unless told otherwise."""

import os
import secrets
import socket
import tempfile
import webbrowser
from pathlib import Path

from labkit.training.rules import RecipeError

LOOPBACK = "127.0.0.1"
CLONE = Path(__file__).resolve().parents[2]

LAB_ALONE = ("@jupyter-notebook/lab-extension", "@jupyter/nbgrader")  # extensions that need JupyterLab around them

# Voila's own template fetches an icon font from the net, which no panel needs, and keeps an offline browser waiting.
TEMPLATE = """{%- extends 'voila/templates/lab/index.html.j2' -%}
{% import "spinner.macro.html.j2" as spinner %}
{%- block notebook_css -%}
{{ resources.include_js("static/voila-style.js") }}
{{ spinner.css() }}
{{ super.super() }}
{%- endblock notebook_css -%}
"""

# What the page runs. All else is in the package, where it can be tested.
PAGE = "from labkit.panels.play_page import page\n\npage()"


def lab(folder: str | None = None, *, port: int | None = None, ip: str = LOOPBACK, browser: bool = True) -> None:
    """Open JupyterLab on the course, or on another folder, until Ctrl-C."""
    settings = [str(notebook_folder(folder)), f"--ServerApp.ip={ip}"]
    settings.append("--ServerApp.answer_yes=True")  # Ctrl-C ends it, without a question
    if port is not None:
        settings += [f"--ServerApp.port={free_port(ip, port)}", "--ServerApp.port_retries=0"]
    if not browser:
        settings.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:  # a container often has no other user
        settings.append("--allow-root")
    put_first("PYTHONPATH", CLONE)  # kernels start elsewhere, and import the labkit that serves them

    from jupyterlab.labapp import LabApp

    LabApp.launch_instance(settings)


def notebook_folder(folder: str | None) -> Path:
    """The folder to open: the one named, else the course of the clone that labkit runs from."""
    if folder is not None and not Path(folder).is_dir():
        raise RecipeError(f"there is no folder {folder!r}; `labkit lab` alone opens the course of the clone")
    found = Path(folder) if folder is not None else CLONE / "notebooks"
    if not found.is_dir():
        raise RecipeError(
            "the course is in the clone, and this labkit was installed without one. In a clone, use "
            "`pip install -e . -c constraints.txt`; or name a folder of notebooks: `labkit lab FOLDER`"
        )
    return found.resolve()


def play(*, port: int | None = None, ip: str = LOOPBACK, browser: bool = True) -> None:
    """Serve the panels and the ward as a page without code, until Ctrl-C."""
    try:
        from voila.app import Voila
    except ModuleNotFoundError as missing:
        raise RecipeError(
            f"the page is served by Voila, and the module {missing.name!r} is missing. Install the dashboard extra: "
            "pip install -e '.[dashboard]' -c constraints.txt"
        ) from missing

    class Page(Voila):
        def launch_browser(self) -> None:  # Voila's own way into the browser forgets the token
            webbrowser.open(url)

        def start(self) -> None:
            print(f"The lab is at {url}\nCtrl-C ends it.", flush=True)
            super().start()

    # Whoever opens the page could run code as this user, and a machine may have other users: hence a token.
    token = secrets.token_urlsafe(16)
    port = free_port(ip, port)
    url = f"http://{shown(ip)}:{port}/?token={token}"
    put_first("PYTHONPATH", CLONE)  # kernels start elsewhere, and import the labkit that serves them
    with tempfile.TemporaryDirectory(prefix="labkit-play-") as folder:
        settings = {"ip": ip, "port": port, "port_retries": 0, "token": token, "open_browser": browser}
        words = [f"--Voila.{name}={value}" for name, value in settings.items()]
        words += [f"--VoilaConfiguration.extension_denylist={name}" for name in LAB_ALONE]
        words += ["--VoilaConfiguration.template=labkit", "--Voila.log_level=ERROR"]
        put_first("JUPYTER_PATH", folder)  # where templates are looked for
        Page.launch_instance([str(write_page(Path(folder))), *words])


def write_page(folder: Path) -> Path:
    """The notebook behind the page, of one cell, and the template that it is shown with."""
    import nbformat

    template = folder / "voila/templates/labkit"
    template.mkdir(parents=True)
    (template / "conf.json").write_text('{"base_template": "lab"}')
    (template / "index.html.j2").write_text(TEMPLATE)

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(PAGE)])
    notebook.metadata |= {"title": "labkit", "kernelspec": {"name": "python3", "display_name": "Python 3"}}
    path = folder / "labkit.ipynb"
    nbformat.write(notebook, path)
    return path


def free_port(ip: str, port: int | None = None) -> int:
    """This port if it is free, or any that is."""
    if port is not None and not 0 < port < 65536:
        raise RecipeError(f"port: expected a number from 1 to 65535, got {port}")
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.socket(family) as probe:
        if os.name == "posix":  # elsewhere this option would let two servers have the same port
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ip, port or 0))
        except OSError as error:
            where = f"port {port} of {ip}" if port else f"the address {ip}"
            advice = "leave --port out for a free one" if port else "leave --ip out for this machine alone"
            raise RecipeError(f"cannot listen on {where}: {error.strerror or error}; {advice}") from error
        return probe.getsockname()[1]


def shown(ip: str) -> str:
    """The address as it stands in a link: a name where the server listens on every address."""
    if ip in ("0.0.0.0", "::", ""):
        return socket.gethostname()
    return f"[{ip}]" if ":" in ip else ip


def put_first(variable: str, place: str | Path) -> None:
    """Put a folder at the head of a search path, for this process and for the kernels that it starts."""
    os.environ[variable] = os.pathsep.join([str(place), *filter(None, [os.environ.get(variable)])])
