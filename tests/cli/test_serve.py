"""`labkit lab` and `labkit play`: what they start, where they listen, what they refuse, and that they end."""

import re
import socket
import sys
import urllib.error
import urllib.request

import browser
import nbformat
import pytest

from labkit import __main__ as command_line
from labkit.cli import serve
from labkit.training.rules import RecipeError

needs_voila = pytest.mark.skipif("voila" in browser.missing("voila"), reason="not installed: voila")


@pytest.fixture
def launched(monkeypatch) -> list[list[str]]:
    """What JupyterLab would be started with, instead of starting it."""
    from jupyterlab.labapp import LabApp

    asked = []
    monkeypatch.setattr(LabApp, "launch_instance", asked.append)
    monkeypatch.setenv("PYTHONPATH", "")  # put back afterwards
    return asked


def test_lab_opens_the_course_on_this_machine_alone(launched):
    assert command_line.main(["lab"]) == 0
    [[folder, *settings]] = launched
    assert folder == str(browser.ROOT / "notebooks")
    assert "--ServerApp.ip=127.0.0.1" in settings
    assert not any("port" in setting or "browser" in setting for setting in settings)


def test_lab_does_as_it_is_told(launched, tmp_path):
    port = serve.free_port(serve.LOOPBACK)
    assert command_line.main(["lab", str(tmp_path), "--port", str(port), "--ip", "0.0.0.0", "--no-browser"]) == 0
    [[folder, *settings]] = launched
    assert folder == str(tmp_path.resolve())
    assert {"--ServerApp.ip=0.0.0.0", f"--ServerApp.port={port}", "--no-browser"} <= set(settings)


def test_a_folder_that_is_not_there(launched):
    with pytest.raises(RecipeError, match="there is no folder 'lessens'"):
        serve.lab("lessens")
    assert launched == []


def test_without_a_clone_there_is_no_course(launched, monkeypatch, tmp_path):
    monkeypatch.setattr(serve, "CLONE", tmp_path)
    with pytest.raises(RecipeError, match="labkit lab FOLDER"):
        serve.lab()
    assert launched == []


def test_play_without_voila_names_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "voila", None)
    monkeypatch.setitem(sys.modules, "voila.app", None)
    assert command_line.main(["play"]) == 2
    assert "Install the dashboard extra: pip install -e '.[dashboard]'" in capsys.readouterr().err


def test_a_port_in_use_is_said_and_another_one_is_found():
    with socket.socket() as taken:
        taken.bind((serve.LOOPBACK, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RecipeError, match=f"cannot listen on port {port} of 127.0.0.1.*leave --port out"):
            serve.free_port(serve.LOOPBACK, port)
        assert serve.free_port(serve.LOOPBACK) != port


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_port_that_cannot_be(port):
    with pytest.raises(RecipeError, match=f"expected a number from 1 to 65535, got {port}"):
        serve.free_port(serve.LOOPBACK, port)


def test_an_address_that_is_not_ours():
    with pytest.raises(RecipeError, match="leave --ip out"):
        serve.free_port("192.0.2.1")  # kept for documentation: nobody has it


def test_addresses_in_a_link():
    assert serve.shown("127.0.0.1") == "127.0.0.1"
    assert serve.shown("::1") == "[::1]"
    assert serve.shown("0.0.0.0") == socket.gethostname()


def test_the_page_is_one_cell(tmp_path):
    notebook = nbformat.read(serve.write_page(tmp_path), as_version=4)
    nbformat.validate(notebook)
    assert [cell.source for cell in notebook.cells] == [serve.PAGE]
    compile(serve.PAGE, "page", "exec")


@needs_voila
@pytest.mark.slow
def test_play_wants_its_token_and_ctrl_c_leaves_nothing(tmp_path):
    with browser.labkit_server("play", tmp_path) as server:
        link = re.search(r"http://\S+", server.printed())[0]
        assert link.startswith(f"{server.url}/?token=")
        page = urllib.request.urlopen(server.url)  # shown the door: a form that asks for the token
        assert "/login" in page.url
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"{server.url}/api/kernels/00000000-0000-0000-0000-000000000000/channels")
        urllib.request.urlopen(link).read()  # a kernel starts for whoever has it
        assert browser.wait_for(lambda: browser.leftovers(tmp_path / "private"), "a kernel")
        assert listening(server.process) == {serve.LOOPBACK}
        before = len(server.printed())  # what was refused above has its traces there
        assert browser.end(server.process) == 0
        assert browser.leftovers(tmp_path / "private") == []
        assert list((tmp_path / "private/tmpdir").glob("labkit-play-*")) == []
        assert "Traceback" not in server.printed()[before:]


def listening(process) -> set[str]:
    """The addresses on which a process listens."""
    import psutil

    connections = psutil.Process(process.pid).net_connections("inet")
    return {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}
