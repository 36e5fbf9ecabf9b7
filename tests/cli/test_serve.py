"""`labkit lab` and `labkit play`: what they start, where they listen, what they refuse, and that they end."""

import asyncio
import re
import socket
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import ClassVar

import browser
import nbformat
import pytest

from labkit.cli import main as command_line
from labkit.cli import serve
from labkit.errors import RecipeError
from labkit.training import memory

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
    err = capsys.readouterr().err
    assert err.startswith("labkit: labkit play needs voila") and err.count("\n") == 1
    assert "Install the extra 'dashboard': in " in err and 'pip install -e ".[dashboard]" -c constraints.txt' in err


def test_lab_without_jupyterlab_names_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "jupyterlab.labapp", None)
    monkeypatch.setenv("PYTHONPATH", "")  # put back afterwards
    assert command_line.main(["lab"]) == 2
    err = capsys.readouterr().err
    assert 'pip install -e ".[lab]" -c constraints.txt' in err and err.count("\n") == 1


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


def status_of(url: str, **headers: str) -> tuple[int, str, str]:
    """Status, final address and text of a plain request, without a browser."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status, answer.url, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as refused:
        return refused.code, refused.url, refused.read().decode(errors="replace")


def kernels(folder) -> int:
    return len([each for each in browser.leftovers(folder / "private") if "ipykernel" in " ".join(each.cmdline())])


@needs_voila
@pytest.mark.slow
def test_play_gives_neither_page_nor_kernel_without_its_own_token(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    with browser.labkit_server("play", one) as first, browser.labkit_server("play", other) as second:
        links = [re.search(r"http://\S+", server.printed())[0] for server in (first, second)]
        foreign = links[1].split("token=")[1]
        for token in ("", "?token=", "?token=wrong", f"?token={foreign}"):
            status, address, text = status_of(f"{first.url}/{token}")
            assert (status in (401, 403) or "/login" in address) and "labkit-panel" not in text and "kernel" not in text
        for headers in ({}, {"Authorization": f"token {foreign}"}):
            assert status_of(f"{first.url}/api/kernels/{'0' * 8}-0000-0000-0000-{'0' * 12}", **headers)[0] == 403
        assert kernels(one) == kernels(other) == 0
        assert status_of(links[0])[0] == 200 and kernels(one) == 1 and kernels(other) == 0


@pytest.mark.slow
def test_lab_gives_nothing_without_its_own_token(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    with (
        browser.labkit_server("lab", one, str(one)) as server,
        browser.labkit_server("lab", other, str(other)) as second,
    ):
        for token in (None, "wrong", second.token):  # a second user's token is valid, but not here
            headers = {"Authorization": f"token {token}"} if token else {}
            for path in ("/api/kernels", "/api/sessions", "/api/contents", "/api/terminals"):
                assert status_of(server.url + path, **headers)[0] == 403
            for address in ("/lab", f"/lab?token={token or ''}"):
                assert "/login" in status_of(server.url + address, **headers)[1]
        for each in (server, second):
            assert status_of(f"{each.url}/api/kernels", Authorization=f"token {each.token}")[::2] == (200, "[]")
            assert listening(each.process) == {serve.LOOPBACK}


@needs_voila
@pytest.mark.slow
def test_the_visitor_for_whom_there_is_no_room_is_told_so(tmp_path):
    with browser.labkit_server("play", tmp_path, "--visitors", "1") as server:
        link = re.search(r"http://\S+", server.printed())[0]
        assert "Visitors at a time: 1." in server.printed()
        with ThreadPoolExecutor(3) as visitors:  # at the same moment, while no process is listed yet
            assert sorted(status for status, *_ in visitors.map(status_of, 3 * [link])) == [200, 503, 503]
        status, _, text = status_of(link)
        assert status == 503 and "No free place" in text and "--visitors" in text and kernels(tmp_path) == 1
        assert "/login" in status_of(server.url)[1]  # who has no token learns nothing about it


class SlowPage:
    """Voila's handler in short: the process is listed only when it has started, and then the page is sent."""

    running: ClassVar[list[str]] = []
    current_user = "somebody"

    def __init__(self, error: Exception | None = None):
        self.status, self.error, self.started, self.sent = 200, error, asyncio.Event(), asyncio.Event()
        self.kernel_manager = SimpleNamespace(list_kernel_ids=lambda: self.running)

    async def get(self, path=None):
        await self.started.wait()
        if self.error:
            raise self.error
        self.running.append("kernel")
        self.flush()
        await self.sent.wait()

    def flush(self, include_footers=False):
        pass

    def set_status(self, status):
        self.status = status

    def set_header(self, *_):
        pass

    async def finish(self, words):
        self.words = words


def test_visitors_who_come_at_the_same_moment_are_counted(monkeypatch):
    monkeypatch.setattr(SlowPage, "running", [])
    page = serve.with_a_limit(SlowPage, 2)

    async def come(*visitors):
        tasks = [asyncio.ensure_future(each.get()) for each in visitors]
        await asyncio.sleep(0)
        return tasks

    async def burst() -> list[int]:
        one, fails, late, again, full = page(), page(RuntimeError("no kernel")), page(), page(), page()
        tasks = await come(one, fails, late)
        fails.started.set()
        with pytest.raises(RuntimeError):
            await tasks[1]
        one.started.set()  # listed now, and no longer counted as entering, though its page is still being sent
        await asyncio.sleep(0.01)
        tasks += await come(again, full)
        for each in (one, late, again, full):
            each.started.set()
            each.sent.set()
        await asyncio.gather(tasks[0], *tasks[2:])
        return [each.status for each in (one, fails, late, again, full)]

    assert asyncio.run(burst()) == [200, 200, 503, 200, 503]
    assert len(SlowPage.running) == 2


def test_visitors_are_limited_by_the_memory(monkeypatch, tmp_path):
    container = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "CONTAINER_LIMIT", container)
    monkeypatch.setattr(memory.os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 16 * 10**9 // 4096}.get)
    assert serve.visitors_at_most(None) == 13  # half of 16 GB, 600 MB each
    container.write_text("6000000000\n")
    assert serve.visitors_at_most(None) == 5
    container.write_text("max\n")
    assert serve.visitors_at_most(None) == 13
    assert serve.visitors_at_most(3) == 3
    with pytest.raises(RecipeError, match="visitors: expected a number of at least 1, got 0"):
        serve.visitors_at_most(0)


@pytest.mark.parametrize(("ip", "warned"), [("0.0.0.0", True), ("::", True), ("127.0.0.1", False), ("::1", False)])
def test_an_address_beyond_this_machine_warns_in_plain_words(launched, capsys, ip, warned):
    serve.lab(str(browser.ROOT), ip=ip)
    said = capsys.readouterr().err
    assert ("can run code on this" in said and ip in said) == warned


def listening(process) -> set[str]:
    """The addresses on which a process listens."""
    import psutil

    connections = psutil.Process(process.pid).net_connections("inet")
    return {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}
