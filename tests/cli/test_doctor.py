"""The doctor says what is there and what to do, contains errors, and exits 0 only when the lab can run."""

import email.message
import importlib
import importlib.metadata
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import ROOT
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from labkit.cli import doctor
from labkit.failures.catalogue import FAILURES
from labkit.training import data, memory, torchvision_shim

INSTALL = "pip install -e . -c constraints.txt"

# `import NAME` fails as on a machine without it, whatever is installed here.
HIDE = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hide())
"""


def run_doctor(*, use_json: bool = False, hidden: tuple[str, ...] = (), **environment: str):
    """The whole doctor in a process of its own."""
    code = HIDE.format(hidden=hidden) + f"from labkit.cli.doctor import main; sys.exit(main(json={use_json}))"
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)


def examined(monkeypatch, check) -> doctor.Check:
    """One check as the doctor would report it."""
    monkeypatch.setattr(doctor, "CHECKS", {"the check": check})
    [result] = doctor.examine()
    return result


def read_lines(text: str) -> dict[str, str]:
    """Name of the check -> its state."""
    lines = [line for line in text.splitlines() if line.startswith(("ok ", "warning ", "problem "))]
    return {line[9:29].strip(): line[:9].strip() for line in lines}


# --- the whole ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def healthy():
    return run_doctor(use_json=True)


def test_a_healthy_machine_exits_0_and_json_holds_every_check(healthy):
    assert healthy.returncode == 0, healthy.stdout + healthy.stderr
    checks = json.loads(healthy.stdout)
    assert [check["name"] for check in checks] == list(doctor.CHECKS)
    assert all(list(check) == ["name", "state", "found", "advice"] for check in checks)
    assert {check["state"] for check in checks} <= {"ok", "warning"}


def test_what_is_not_ok_has_advice(healthy):
    checks = json.loads(healthy.stdout)
    assert [check["name"] for check in checks if check["state"] != "ok" and not check["advice"]] == []


def test_a_healthy_machine_is_told_its_speed_and_the_minutes(healthy):
    [speed] = [check for check in json.loads(healthy.stdout) if check["name"] == "speed"]
    assert "steps per second" in speed["found"] and "minutes here" in speed["found"]


def test_a_damaged_file_is_a_problem_that_names_it(tmp_path):
    folder = tmp_path / "datasets"
    shutil.copytree(data.embedded_folder(), folder)
    victim = folder / "cifar10-test-labels-idx1-ubyte.gz"
    victim.write_bytes(victim.read_bytes()[:-1])
    done = run_doctor(LABKIT_DATASETS=str(folder))
    states = read_lines(done.stdout)
    assert done.returncode == 1, done.stdout + done.stderr
    assert [name for name, state in states.items() if state == "problem"] == ["data: cifar10"]
    assert str(victim) in done.stdout and "git checkout -- datasets" in done.stdout
    assert "cannot run here yet: 1 problem," in done.stdout


def test_without_torch_the_doctor_still_speaks_and_says_how_to_install():
    done = run_doctor(hidden=("torch", "rich"))
    states = read_lines(done.stdout)
    assert done.returncode == 1
    assert done.stderr == ""  # no traceback
    assert list(states) == list(doctor.CHECKS)
    assert (states["torch"], states["speed"], states["Python"]) == ("problem", "problem", "ok")
    lines = done.stdout.splitlines()
    [torch_line] = [number for number, line in enumerate(lines) if line.startswith("problem  torch ")]
    assert "the module torch, which is not installed" in lines[torch_line]
    assert lines[torch_line + 1].endswith(INSTALL)
    assert "pip install labkit" not in done.stdout


def test_importing_the_doctor_imports_no_package():
    code = "import sys, labkit.cli.doctor; print([n for n in ('torch', 'numpy', 'rich') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_check_that_crashes_is_contained_and_the_others_go_on(monkeypatch, capsys):
    def crash():
        raise ZeroDivisionError("a reason\non two lines")

    monkeypatch.setattr(doctor, "CHECKS", {"first": crash, "second": lambda: doctor.ok("all well")})
    assert doctor.main() == 1
    out = capsys.readouterr().out
    assert read_lines(out) == {"first": "problem", "second": "ok"}
    assert "ZeroDivisionError: a reason on two lines" in out and INSTALL in out
    assert "Traceback" not in out


@pytest.mark.parametrize(("make", "code"), [(doctor.ok, 0), (doctor.warning, 0), (doctor.problem, 1)])
def test_only_a_problem_changes_the_exit_code(monkeypatch, capsys, make, code):
    monkeypatch.setattr(doctor, "CHECKS", {"one": lambda: make("found", "do this")})
    assert doctor.main(json=True) == code
    [check] = json.loads(capsys.readouterr().out)
    assert check == {"name": "one", "state": make.args[1], "found": "found", "advice": "do this"}


def test_rich_and_plain_text_have_the_same_words_and_break_no_command(monkeypatch, capsys):
    long = doctor.Check("torch", "warning", "[bold]old[/bold] " * 20, "pip install " + "package " * 30)
    monkeypatch.setattr(doctor, "CHECKS", {"torch": lambda: long})
    doctor.main()
    with_rich = capsys.readouterr().out
    monkeypatch.setitem(sys.modules, "rich.console", None)  # the import fails
    doctor.main()
    assert capsys.readouterr().out == with_rich
    assert long.advice in with_rich


def test_a_terminal_gets_colour_beside_the_word(monkeypatch):
    for name in ("NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    doctor.printer()(doctor.Check("memory", "problem", "none"))
    assert "\x1b[" in sys.stdout.getvalue() and "problem" in sys.stdout.getvalue()


# --- Python and packages --------------------------------------------------------------------------


def test_an_old_python_is_a_problem(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 2))
    check = doctor.check_python()
    assert check.state == "problem"
    assert "3.10.2" in check.found and "3.11 or later" in check.found
    assert "python3.11 -m venv .venv" in check.advice and INSTALL in check.advice


def test_the_doctor_and_pyproject_ask_for_the_same_python():
    wanted = SpecifierSet(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"])
    major, minor = doctor.PYTHON
    assert f"{major}.{minor}" in wanted and f"{major}.{minor - 1}" not in wanted


@pytest.fixture
def distribution(tmp_path, monkeypatch):
    """Makes labkit seem installed: by its version and where from (None: from a wheel)."""

    def make(version: str, editable_from: Path | None):
        folder = tmp_path / "labkit.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {doctor.DISTRIBUTION}\nVersion: {version}\n")
        if editable_from:
            origin = {"url": editable_from.as_uri(), "dir_info": {"editable": True}}
            (folder / "direct_url.json").write_text(json.dumps(origin))
        found = importlib.metadata.Distribution.at(folder)
        monkeypatch.setattr(importlib.metadata, "distribution", {doctor.DISTRIBUTION: found}.__getitem__)

    return make


def test_labkit_as_editable_install(distribution):
    distribution(doctor.__version__, editable_from=ROOT)
    check = doctor.check_labkit()
    assert (check.state, check.found) == ("ok", f"{doctor.__version__}, an editable install of {ROOT}")


def test_labkit_as_wheel(distribution, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "ROOT", tmp_path.resolve())
    distribution(doctor.__version__, editable_from=None)
    check = doctor.check_labkit()
    assert (check.state, check.found) == ("ok", f"{doctor.__version__}, a wheel in {tmp_path}")


def test_labkit_installed_in_another_version(distribution):
    distribution("0.0.1", editable_from=ROOT)
    check = doctor.check_labkit()
    assert check.state == "warning" and "0.0.1" in check.found and INSTALL in check.advice


def test_labkit_installed_from_elsewhere(distribution, tmp_path):
    distribution(doctor.__version__, editable_from=tmp_path)
    check = doctor.check_labkit()
    assert check.state == "warning" and str(tmp_path) in check.found and str(ROOT) in check.found


def test_labkit_not_installed(monkeypatch):
    monkeypatch.setattr(doctor, "DISTRIBUTION", "there-is-no-such-distribution")
    check = doctor.check_labkit()
    assert check.state == "warning" and "not installed" in check.found and INSTALL in check.advice


@pytest.mark.parametrize(
    ("version", "state"),
    [("2.13.0+cpu", "ok"), ("2.13.0.dev20260101", "ok"), ("2.7.1", "warning"), ("3.0", "warning")],
)
def test_torch_outside_of_the_range_is_a_warning(monkeypatch, version, state):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__=version))
    check = doctor.check_torch()
    assert check.state == state and version in check.found
    assert (INSTALL in check.advice and ">=2.8,<3" in check.found) == (state == "warning")


def test_the_shim_is_reported_where_it_is_used(healthy):
    [check] = [check for check in json.loads(healthy.stdout) if check["name"] == "torchvision"]
    assert (check["state"] == "warning") == ("shim" in check["found"]) == torchvision_shim.uses_shim()


def test_the_advice_about_the_shim_says_what_it_leaves_out(monkeypatch):
    monkeypatch.setattr(torchvision_shim, "uses_shim", lambda: True)
    check = doctor.check_torchvision()
    assert check.state == "warning" and "shim" in check.found
    assert "nothing for the course" in check.advice and "same index" in check.advice


def test_a_torchvision_that_works_is_ok(monkeypatch):
    monkeypatch.setattr(torchvision_shim, "uses_shim", lambda: False)
    check = doctor.check_torchvision()
    assert (check.state, check.found) == ("ok", torchvision_shim.torchvision().__version__)


def test_a_torchvision_that_does_not_even_import_with_the_shim_is_a_problem(monkeypatch):
    def broken():
        raise ImportError("libjpeg.so: cannot open")

    monkeypatch.setattr(torchvision_shim, "torchvision", broken)
    check = examined(monkeypatch, doctor.check_torchvision)
    assert check.state == "problem" and "libjpeg.so" in check.found and INSTALL in check.advice


@pytest.fixture
def versions(monkeypatch):
    """Every package seems installed in a right version; a test may set another, or "" for none."""
    ranges = [item for extra in doctor.project() for item in doctor.requirements(extra).items()]
    changed = {name: wanted.split(",")[0].removeprefix(">=") for name, wanted in ranges}

    def version(name: str) -> str:
        if not changed[name]:
            raise importlib.metadata.PackageNotFoundError(name)
        return changed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    return changed


def test_all_packages_there(versions):
    jupyter, others = doctor.check_jupyter(), doctor.check_packages()
    assert (jupyter.state, others.state) == ("ok", "ok")
    found = [check.found.split(", ") for check in (jupyter, others)]
    in_jupyter, in_others = ({part.split()[0] for part in parts} for parts in found)
    assert in_jupyter == set(doctor.requirements("lab")) >= {"jupyterlab", "notebook", "ipykernel", "ipywidgets"}
    assert in_others >= {"matplotlib", "tqdm", "rich"}
    assert in_others | {"torch", "torchvision"} == set(doctor.requirements())


@pytest.mark.parametrize("name", ["tqdm", "joblib"])
def test_a_missing_package_is_a_problem_that_names_it(versions, name):
    versions[name] = ""
    check = doctor.check_packages()
    assert (check.state, check.found) == ("problem", f"not installed: {name}")
    assert check.advice.endswith(INSTALL)
    assert doctor.check_jupyter().state == "ok"


@pytest.mark.parametrize("name", ["ipywidgets", "jupyterlab"])
def test_a_missing_jupyter_is_a_warning_that_names_it_and_the_extra(versions, name):
    versions[name] = ""
    check = doctor.check_jupyter()
    assert (check.state, check.found) == ("warning", f"not installed: {name}; only lessons and panels need it")
    assert check.advice.endswith('pip install -e ".[lab]" -c constraints.txt')
    assert doctor.check_packages().state == "ok"


def test_a_package_outside_of_its_range_is_a_warning(versions):
    versions["ipywidgets"] = "7.8.5"
    check = doctor.check_jupyter()
    assert check.state == "warning" and check.advice.endswith('pip install -e ".[lab]" -c constraints.txt')
    assert "ipywidgets 7.8.5 (not >=8.1,<9)" in check.found
    versions["tqdm"] = "4.65"
    check = doctor.check_packages()
    assert check.state == "warning" and "tqdm 4.65 (not >=4.66)" in check.found and INSTALL in check.advice


def test_an_extra_includes_what_the_extras_that_it_names_require():
    assert doctor.requirements("lab").items() <= doctor.requirements("dev").items()
    assert doctor.DISTRIBUTION not in doctor.requirements("dev")


def test_missing_extras_are_told_with_their_line_and_are_no_fault(versions):
    assert doctor.check_extras().advice == ""
    versions["nbgrader"] = versions["wandb"] = ""
    check = doctor.check_extras()
    assert check.state == "ok" and check.found.endswith("not needed: instructor, tracking")
    assert check.advice.endswith('pip install -e ".[instructor]" -c constraints.txt')


def test_the_lab_has_its_own_line_and_is_not_called_needless(versions):
    versions["ipywidgets"] = ""
    assert " lab" not in doctor.check_extras().found


def test_a_wheel_requires_what_pyproject_requires(monkeypatch, tmp_path):
    wanted = {extra: doctor.requirements(extra) for extra in doctor.project()}
    lines = [("Requires-Dist", str(Requirement(line))) for line in doctor.project()[""]]
    for extra in filter(None, doctor.project()):
        lines.append(("Provides-Extra", extra))
        needed = map(Requirement, doctor.project()[extra])
        lines += [("Requires-Dist", f"{requirement}; extra == '{extra}'") for requirement in needed]
    metadata = email.message.Message()
    for header in lines:
        metadata.add_header(*header)
    monkeypatch.setattr(importlib.metadata, "metadata", {doctor.DISTRIBUTION: metadata}.__getitem__)
    monkeypatch.setattr(doctor, "ROOT", tmp_path)  # no pyproject.toml here
    found = {extra: doctor.requirements(extra) for extra in doctor.project()}
    as_sets = [
        {extra: {name: SpecifierSet(text) for name, text in each.items()} for extra, each in version.items()}
        for version in (found, wanted)
    ]
    assert as_sets[0] == as_sets[1]
    assert "in a clone of labkit: pip install" in doctor.install()
    assert doctor.install("lab") == 'pip install "failure-mode-labkit[lab]"'


# --- the machine ----------------------------------------------------------------------------------


def test_the_device_is_the_one_that_auto_takes():
    from labkit.training.state import pick_device

    check = doctor.check_device()
    assert check.state == "ok" and check.found.startswith(pick_device("auto").type)


def test_a_gpu_is_told_by_its_name(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "Some GPU 9000")
    assert doctor.check_device().found == "cuda, Some GPU 9000"


@pytest.mark.parametrize(
    ("kilobytes", "limit", "state", "found"),
    [
        (8_000_000, None, "ok", "8.2 GB available"),
        (8_000_000, "max\n", "ok", "8.2 GB available"),
        (8_000_000, "1500000000\n", "warning", "1.5 GB available"),
        (1_000_000, "4000000000\n", "warning", "1.0 GB available"),
    ],
)
def test_memory_is_what_linux_and_the_container_leave(tmp_path, monkeypatch, kilobytes, limit, state, found):
    meminfo, container = tmp_path / "meminfo", tmp_path / "memory.max"
    meminfo.write_text(f"MemTotal: 24682416 kB\nMemAvailable:   {kilobytes} kB\nHugePages_Total:  0\n")
    if limit:
        container.write_text(limit)
    monkeypatch.setattr(doctor, "MEMINFO", meminfo)
    monkeypatch.setattr(memory, "CONTAINER_LIMIT", container)
    check = doctor.check_memory()
    assert check.state == state and check.found.startswith(found)
    assert bool(check.advice) == (state == "warning")


def test_memory_without_linux(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "MEMINFO", tmp_path / "none")
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 16384, "SC_PHYS_PAGES": 1_000_000}.get, raising=False)
    assert doctor.check_memory() == doctor.ok("16.4 GB in total")
    monkeypatch.delattr(os, "sysconf")
    assert doctor.check_memory() == doctor.ok("not known on this system")


def test_a_working_folder_that_can_be_written_to_is_ok_and_left_empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=5e9))
    check = doctor.check_working_folder()
    assert (check.state, check.found) == ("ok", f"{tmp_path}, writable, 5.0 GB free")
    assert list(tmp_path.iterdir()) == []


def test_little_disk_space_is_a_warning(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=2e8))
    check = doctor.check_working_folder()
    assert check.state == "warning" and "0.2 GB free" in check.found and check.advice


def test_a_working_folder_that_cannot_be_written_to_is_a_problem(monkeypatch):
    def refuse(dir):
        raise OSError(30, "Read-only file system")  # permissions would not stop a test that runs as root

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    check = doctor.check_working_folder()
    assert check.state == "problem" and "Read-only file system" in check.found and check.advice


def test_the_download_folder_need_not_exist_and_is_not_made(tmp_path, monkeypatch):
    folder = tmp_path / "not" / "yet"
    monkeypatch.setenv("LABKIT_DATA", str(folder))
    assert doctor.check_download_folder() == doctor.ok(f"{folder}, writable")
    assert list(tmp_path.iterdir()) == []


def test_a_download_folder_that_cannot_be_made_is_a_warning(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path / "file" / "data"))
    check = doctor.check_download_folder()
    assert check.state == "warning" and "LABKIT_DATA" in check.advice


# --- the data -------------------------------------------------------------------------------------


def test_missing_data_are_a_problem_with_the_data_module_s_own_advice(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_DATASETS", str(tmp_path))
    check = examined(monkeypatch, doctor.CHECKS["data: mnist"])
    assert check.state == "problem" and str(tmp_path / "SHA256SUMS") in check.found
    assert "git checkout -- datasets" in check.advice and check.advice not in check.found


def test_the_full_cifar10_is_optional(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    check = doctor.check_full_cifar10()
    assert check.state == "ok" and "not downloaded" in check.found
    assert "labkit data download cifar10" in check.advice


def test_a_damaged_download_is_a_warning_that_names_the_file(tmp_path, monkeypatch):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(b"half of it")
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    check = doctor.check_full_cifar10()
    assert check.state == "warning" and str(folder / "data_batch_1") in check.found
    assert f"remove {folder}, then labkit data download cifar10" in check.advice


def test_a_whole_download_is_ok(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    monkeypatch.setattr(data, "verify", lambda name: None)
    assert doctor.check_full_cifar10() == doctor.ok(f"downloaded to {tmp_path}, checksums match")


# --- the speed ------------------------------------------------------------------------------------


@pytest.fixture
def trained(monkeypatch):
    """Instead of training, what a run would say."""

    class FakeRun(SimpleNamespace):
        def __len__(self) -> int:
            return self.steps

    run = FakeRun(steps=400, accuracy=0.94, facts={"seconds": 2.0, "stopped": None})
    monkeypatch.setattr(importlib.import_module("labkit.training.loop"), "train", lambda recipe, **options: run)
    monkeypatch.setattr(doctor, "WORK", {"the first lesson": lambda: 24_000, "the second": lambda: 6_000})
    return run


def test_minutes_are_steps_over_speed(trained):
    check = doctor.check_speed()
    assert check.state == "ok" and check.found.startswith("200 steps per second")
    assert "the first lesson: 24,000 steps, 2.0 to 4.0 minutes here" in check.found
    assert "the second: 6,000 steps, 0.5 to 1.0 minutes here" in check.found


def test_a_slow_machine_is_a_warning_and_is_not_judged_by_a_run_cut_short(trained):
    trained.steps, trained.accuracy, trained.facts = 50, 0.6, {"seconds": 5.0, "stopped": "on request"}
    check = doctor.check_speed()
    assert check.state == "warning" and check.found.startswith("10 steps per second") and check.advice


@pytest.mark.parametrize(("accuracy", "stopped"), [(0.1, None), (0.1, "non-finite"), (float("nan"), None)])
def test_a_machine_that_computes_wrongly_is_a_problem(trained, accuracy, stopped):
    trained.accuracy, trained.facts["stopped"] = accuracy, stopped
    check = doctor.check_speed()
    assert check.state == "problem" and INSTALL in check.advice


def test_ctrl_c_ends_the_doctor(trained, monkeypatch):
    trained.facts["stopped"] = "interrupted"
    with pytest.raises(KeyboardInterrupt):
        examined(monkeypatch, doctor.check_speed)


def test_the_catalogue_is_counted_as_the_studies_train_it(monkeypatch):
    counted = doctor.catalogue_steps()
    mode = FAILURES["vanishing_gradients"]  # its cure is its healthy twin: two runs, not three
    monkeypatch.setattr(importlib.import_module("labkit.failures.catalogue"), "FAILURES", {"one": mode, "two": mode})
    assert doctor.catalogue_steps() == 4 * mode.healthy.steps < counted
