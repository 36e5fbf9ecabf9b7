"""JupyterLab on the course, the panels as a page without code, and the site: only on this machine by default."""

import functools
import http.server
import os
import secrets
import socket
import sys
import tempfile
import webbrowser
from pathlib import Path

from labkit.errors import ROOT as CLONE
from labkit.errors import RecipeError, clone_command, optional
from labkit.training.memory import machine_memory

LOOPBACK = "127.0.0.1"

# Every visitor of `labkit play` has a Python process with torch and labkit: 590 MB when the first panel has trained,
# and more with every tab that is opened (labkit/panels/README.md).
MEGABYTES_A_VISITOR = 600
SHARE_OF_MEMORY = 0.5  # for visitors; the rest is for the system, and for what else the machine does
FEWEST, UNKNOWN_MEMORY = 2, 8  # visitors at least, and where the system does not tell its memory
FORGOTTEN = 1800  # seconds after which the process of a page is ended that was closed or lost; an open tab keeps it

FULL = """<!doctype html><html lang="en"><meta charset="utf-8"><title>labkit: no free place</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<body style="font:16px/1.5 system-ui,sans-serif;max-width:36em;margin:4em auto;padding:0 1em;color-scheme:light dark">
<h1>No free place</h1><p>Visitors at a time on this server: {visitors}. All places are taken. Close a page of labkit
that you no longer need, or come back in a few minutes and reload this one.</p><p>Whoever runs the server can
make room: <code>labkit play --visitors N</code>. Each visitor needs about {memory} MB of memory.</p></body></html>"""

WARNING = """labkit: {ip} can be reached from other machines. Whoever has the link with its token can run code on this
machine as you. Use it only in a network that you trust, and share the link with people whom you trust."""

LAB_ALONE = ("@jupyter-notebook/lab-extension", "@jupyter/nbgrader")  # extensions that need JupyterLab around them

# Voila's own template loads an icon font from the network, which no panel needs and an offline browser waits for; and
# it has one theme, while ours follows the system's: the colours of JupyterLab's dark theme replace the light ones.
TEMPLATE = """{%- extends 'voila/templates/lab/index.html.j2' -%}
{% import "spinner.macro.html.j2" as spinner %}
{%- block notebook_css -%}
{{ resources.include_js("static/voila-style.js") }}
{{ spinner.css() }}
{{ super.super() }}
{% set dark = '<link media="(prefers-color-scheme: dark)"' | safe %}
{{ resources.include_css("static/theme-dark.css") | replace("<link" | safe, dark) }}
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root {color-scheme: light dark}
body, body.jp-Notebook {background: var(--jp-layout-color0); color: var(--jp-ui-font-color1); padding: 0; margin: 0}
</style>
{%- endblock notebook_css -%}
"""

# The code of the page. The rest is in the package, where it can be tested.
PAGE = "from labkit.panels.play_page import page\n\npage()"


def lab(folder: str | None = None, *, port: int | None = None, ip: str = LOOPBACK, browser: bool = True) -> None:
    """Open JupyterLab on the course, or on another folder, until Ctrl-C."""
    settings = [str(notebook_folder(folder)), f"--ServerApp.ip={ip}"]
    warn_beyond_loopback(ip)
    settings.append("--ServerApp.answer_yes=True")  # Ctrl-C ends it, without a question
    if port is not None:
        settings += [f"--ServerApp.port={free_port(ip, port)}", "--ServerApp.port_retries=0"]
    if not browser:
        settings.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:  # a container often has no other user
        settings.append("--allow-root")
    put_first("PYTHONPATH", CLONE)  # kernels start in another folder, and must import this labkit

    optional("jupyterlab.labapp", extra="lab", feature="labkit lab").LabApp.launch_instance(settings)


def notebook_folder(folder: str | None) -> Path:
    """The folder to open: the one named, else the course of the clone that labkit runs from."""
    if folder is not None and not Path(folder).is_dir():
        raise RecipeError(f"there is no folder {folder!r}; `labkit lab` alone opens the course of the clone")
    found = Path(folder) if folder is not None else CLONE / "notebooks"
    if not found.is_dir():
        raise RecipeError(
            "the course is in the clone, and this labkit was installed without one. In a clone, use "
            f"`{clone_command('lab')}`; or name a folder of notebooks: `labkit lab FOLDER`"
        )
    return found.resolve()


def play(*, port: int | None = None, ip: str = LOOPBACK, browser: bool = True, visitors: int | None = None) -> None:
    """Serve the panels and the ward as a page without code, until Ctrl-C."""
    voila = optional("voila.app", extra="dashboard", feature="labkit play")
    most = visitors_at_most(visitors)

    class Page(voila.Voila):
        def launch_browser(self) -> None:  # Voila's own method leaves out the token
            webbrowser.open(url)

        def start(self) -> None:
            print(f"The lab is at {url}\nVisitors at a time: {most}. Ctrl-C ends it.", flush=True)
            super().start()

        def init_handlers(self) -> list:
            shown = voila.TornadoVoilaHandler
            limited = with_a_limit(shown, most)  # one for all routes, so that they count together
            return [
                (where, limited, *more) if kind is shown else (where, kind, *more)
                for where, kind, *more in super().init_handlers()
            ]

    warn_beyond_loopback(ip)
    # Anyone who opens the page can run code as this user, and a machine may have other users: so it needs a token.
    token = secrets.token_urlsafe(16)
    port = free_port(ip, port)
    url = f"http://{shown(ip)}:{port}/?token={token}"
    put_first("PYTHONPATH", CLONE)  # kernels start in another folder, and must import this labkit
    with tempfile.TemporaryDirectory(prefix="labkit-play-") as folder:
        settings = {"ip": ip, "port": port, "port_retries": 0, "token": token, "open_browser": browser}
        words = [f"--Voila.{name}={value}" for name, value in settings.items()]
        words += [f"--VoilaConfiguration.extension_denylist={name}" for name in LAB_ALONE]
        words += ["--VoilaConfiguration.template=labkit", "--Voila.log_level=ERROR"]
        words += [f"--MappingKernelManager.cull_idle_timeout={FORGOTTEN}", "--MappingKernelManager.cull_interval=60"]
        put_first("JUPYTER_PATH", folder)  # where Voila looks for templates
        Page.launch_instance([str(write_page(Path(folder))), *words])


class SiteHandler(http.server.SimpleHTTPRequestHandler):
    """Files of a site. Modules of scripts need their type, which some systems do not know."""

    extensions_map = http.server.SimpleHTTPRequestHandler.extensions_map | {
        ".mjs": "text/javascript",
        ".js": "text/javascript",
        ".wasm": "application/wasm",
    }

    def log_message(self, format: str, *words: object) -> None:  # one line per file would hide the link
        pass


def site(folder: Path, *, port: int | None = None, browser: bool = True) -> None:
    """Serve a built site on this machine, until Ctrl-C."""
    port = free_port(LOOPBACK, port)
    handler = functools.partial(SiteHandler, directory=str(folder))
    url = f"http://{LOOPBACK}:{port}/"
    with http.server.ThreadingHTTPServer((LOOPBACK, port), handler) as server:
        print(f"The site is at {url}\nCtrl-C ends it.", flush=True)
        if browser:
            webbrowser.open(url)
        server.serve_forever()


def with_a_limit(handler: type, most: int) -> type:
    """The same page for at most this many visitors; the next one is told so."""
    entering: set[object] = set()  # requests that were admitted and whose process has not started yet

    class Limited(handler):  # type: ignore[misc, valid-type]
        async def get(self, path=None):
            here = len(self.kernel_manager.list_kernel_ids()) + len(entering)
            if self.current_user and here >= most:
                self.set_status(503)
                self.set_header("Content-Type", "text/html; charset=utf-8")
                return await self.finish(FULL.format(visitors=most, memory=MEGABYTES_A_VISITOR))
            if self.current_user:
                entering.add(self)
            try:
                await super().get(path)
            finally:
                entering.discard(self)

        def flush(self, include_footers=False):
            entering.discard(self)  # Voila sends the first part of the page when the process has started
            return super().flush(include_footers)

    return Limited


def visitors_at_most(asked: int | None) -> int:
    """How many visitors `labkit play` admits: the number asked for, or what half of the memory has room for."""
    if asked is not None:
        if asked < 1:
            raise RecipeError(f"visitors: expected a number of at least 1, got {asked}")
        return asked
    memory = machine_memory()
    if memory is None:
        return UNKNOWN_MEMORY
    return max(FEWEST, int(SHARE_OF_MEMORY * memory / (MEGABYTES_A_VISITOR * 10**6)))


def warn_beyond_loopback(ip: str) -> None:
    """Say in plain words what it means to listen on another address than this machine's own."""
    if ip not in (LOOPBACK, "::1", "localhost"):
        print(WARNING.format(ip=ip), file=sys.stderr, flush=True)


def write_page(folder: Path) -> Path:
    """Write the one-cell notebook behind the page and its template."""
    nbformat = optional("nbformat", extra="lab", feature="labkit play")
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
    """This port if it is free; without a number, any free port."""
    if port is not None and not 0 < port < 65536:
        raise RecipeError(f"port: expected a number from 1 to 65535, got {port}")
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.socket(family) as probe:
        if os.name == "posix":  # elsewhere this option would let two servers have the same port
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ip, port or 0))
        except (OSError, TypeError, UnicodeError) as error:  # the latter two where the text cannot be a host name
            where = f"port {port} of {ip}" if port else f"the address {ip}"
            advice = "leave --port out for a free one" if port else "leave --ip out to listen on this machine only"
            reason = getattr(error, "strerror", None) or error
            raise RecipeError(f"cannot listen on {where}: {reason}; {advice}") from error
        return probe.getsockname()[1]


def shown(ip: str) -> str:
    """The address for a link: the host name if the server listens on every address."""
    if ip in ("0.0.0.0", "::", ""):
        return socket.gethostname()
    return f"[{ip}]" if ":" in ip else ip


def put_first(variable: str, place: str | Path) -> None:
    """Put a folder first in a search path, for this process and the kernels that it starts."""
    os.environ[variable] = os.pathsep.join([str(place), *filter(None, [os.environ.get(variable)])])
