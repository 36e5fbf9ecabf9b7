"""pyproject.toml, constraints.txt, environment.yml, Makefile and .ci/run agree, and install what they say."""

import importlib.metadata
import itertools
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile

import pytest
import yaml
from helpers import ROOT
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BASE = [Requirement(line) for line in PROJECT["dependencies"]]


def wanted_by(extra):
    """The requirements of an extra; where it names labkit itself, those of the extras that it includes."""
    found = [Requirement(line) for line in PROJECT["optional-dependencies"][extra]]
    own = [need for need in found if need.name != PROJECT["name"]]
    included = {each for need in found if need.name == PROJECT["name"] for each in need.extras}
    return own + [need for each in sorted(included) for need in wanted_by(each)]


EXTRAS = {extra: wanted_by(extra) for extra in PROJECT["optional-dependencies"]}
EVERYTHING = list({str(need): need for need in [*BASE, *itertools.chain(*EXTRAS.values())]}.values())

# conda-forge's name where it is not PyPI's.
CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base"}


def constraint_lines():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


PINS = dict(line.split("==", 1) for line in constraint_lines() if "==" in line)


# pyproject.toml and constraints.txt


def test_a_constraint_is_one_exact_version_for_every_system():
    # No markers, and no "+cpu", which exists on one system only.
    exact = re.compile(r"[a-z0-9-]+==[0-9][0-9a-z.]*")
    assert [line for line in constraint_lines() if not exact.fullmatch(line)] == []


def test_no_package_is_constrained_twice():
    assert len(PINS) == len(constraint_lines())


@pytest.mark.parametrize("requirement", EVERYTHING, ids=str)
def test_a_dependency_has_a_range_and_its_pin_lies_within(requirement):
    assert requirement.specifier, f"{requirement.name} has no range in pyproject.toml"
    pin = PINS.get(canonicalize_name(requirement.name))
    assert pin, f"{requirement.name} has no pin: regenerate constraints.txt as its first lines say"
    assert pin in requirement.specifier


def test_torch_stays_at_the_tested_pair():
    # Other versions bring gigabytes of GPU libraries to machines that cannot use them.
    assert (PINS["torch"], PINS["torchvision"]) == ("2.13.0", "0.28.0")


def needed_by(names):
    """All that the named packages need in turn, as far as the pinned versions are installed here."""
    seen, todo = set(), [canonicalize_name(name) for name in names]
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if distribution.version.partition("+")[0] != PINS.get(name):
            continue
        for line in distribution.requires or []:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                todo.append(canonicalize_name(needed.name))
    return seen


def test_what_the_dependencies_need_in_turn_is_pinned_too():
    needed = needed_by(requirement.name for requirement in EVERYTHING)
    # torch says itself which GPU libraries of Linux it needs.
    gpu = {name for name in needed if name.startswith(("nvidia-", "cuda-", "triton"))}
    assert sorted(needed - gpu - set(PINS)) == []


# environment.yml


def conda_environment():
    return yaml.safe_load((ROOT / "environment.yml").read_text())


def conda_requirements():
    """conda name -> range."""
    lines = [line for line in conda_environment()["dependencies"] if isinstance(line, str)]
    matches = [re.fullmatch(r"([a-z0-9-]+)(.*)", line) for line in lines]
    assert all(matches), f"one of these is not a name and a range: {lines}"
    return {match[1]: SpecifierSet(re.sub(r"^=(?=\d)", "==", match[2])) for match in matches}  # conda's = is ==


def test_conda_uses_conda_forge_alone():
    assert set(conda_environment()["channels"]) == {"conda-forge", "nodefaults"}


def test_conda_ranges_are_those_of_pyproject():
    expected = {CONDA_NAMES.get(need.name, need.name): need.specifier for need in BASE + EXTRAS["dev"]}
    expected["pip"] = SpecifierSet()
    found = conda_requirements()
    python = found.pop("python")
    assert found == expected
    assert SpecifierSet(PROJECT["requires-python"]).contains(str(python).removeprefix("=="))


def test_conda_installs_labkit_itself_and_nothing_else_with_pip():
    [by_pip] = [line for line in conda_environment()["dependencies"] if isinstance(line, dict)]
    assert by_pip == {"pip": ["-e ."]}


# Instructions for people


def install_lines(text):
    """The `pip install ...` commands in a text, continued lines joined."""
    joined = re.sub(r"\\\n\s*", "", text)
    return [line.strip() for line in joined.splitlines() if re.search(r"\bpip3? install\s+\S", line)]


def lacks_constraints(line):
    return not re.search(r"(-c|--constraint)[ =]constraints\.txt", line)


def asks_for_a_strangers_package(text):
    """labkit's name on PyPI is failure-mode-labkit; `labkit` there is not ours."""
    return re.search(r"\bpip3? install (-\S+ )*[\"']?labkit\b", text) is not None


def test_an_install_line_without_constraints_is_noticed():
    text = "see `pip install`\npip install -e . \\\n  -c constraints.txt\npip3 install torch"
    [good, bad] = install_lines(text)
    assert not lacks_constraints(good)
    assert lacks_constraints(bad)


def test_a_strangers_package_is_noticed():
    assert asks_for_a_strangers_package("then `pip install -U labkit`.")
    assert asks_for_a_strangers_package("pip install 'labkit[dev]'")
    assert not asks_for_a_strangers_package("pip install failure-mode-labkit -c constraints.txt")


@pytest.mark.parametrize("name", ["Makefile", "README.md", "CONTRIBUTING.md", ".ci/run"])
def test_every_install_line_uses_the_constraints(name):
    if not (ROOT / name).exists():
        pytest.skip(f"no {name} yet")
    lines = install_lines((ROOT / name).read_text())
    assert [line for line in lines if lacks_constraints(line)] == []
    if name in ("Makefile", "README.md"):
        assert lines, f"{name} is expected to show how to install"


def test_no_instruction_asks_for_a_strangers_package():
    kinds = {".md", ".toml", ".txt", ".yml", ".yaml", ".cff"}
    people_read = [ROOT / "Makefile", ROOT / ".ci/run", *(path for path in ROOT.glob("*.*") if path.suffix in kinds)]
    for folder, pattern in [("labkit", "*.py"), ("notebooks", "*.ipynb"), ("solutions", "*.ipynb"), (".github", "*.*")]:
        people_read += (ROOT / folder).rglob(pattern)
    texts = {path: path.read_text() for path in people_read}
    assert ROOT / "pyproject.toml" in texts
    assert [str(path) for path, text in texts.items() if asks_for_a_strangers_package(text)] == []


# The wheel


@pytest.fixture
def small_project(tmp_path):
    """A project with our pyproject.toml and next to no content, so that building takes no time."""
    for name in ["pyproject.toml", "LICENSE", ".gitignore"]:
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "README.md").write_text("# labkit\n")
    (tmp_path / "labkit").mkdir()
    (tmp_path / "labkit/__init__.py").write_text('__version__ = "9.8.7"\n')
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets/digits.gz").write_bytes(b"digits")
    return tmp_path


def build(project, target):
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", "out"]
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    [wheel] = (project / "out").glob("failure_mode_labkit-9.8.7-*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_a_wheel_carries_the_data(small_project):
    files = build(small_project, "wheel")
    assert {"labkit/__init__.py", "labkit/_datasets/digits.gz"} <= files


def test_an_editable_install_copies_no_data(small_project):
    files = build(small_project, "wheel:editable")
    assert "_failure_mode_labkit.pth" in files
    assert not any("digits" in name for name in files)


# The Makefile

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
TEST_EXTRAS = re.search(r"^TEST_EXTRAS \?= (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
# Target -> what it installs.
TARGETS = dict.fromkeys(["poster", "bench", "contract"], " . ") | dict.fromkeys(["lab", "doctor"], "'.[lab]'")
TARGETS |= dict.fromkeys(["lessons", "test", "lint", "format"], f"'.[{TEST_EXTRAS}]'")
TARGETS |= {"play": "'.[dashboard]'", "site": "'.[site]'"}


@pytest.fixture
def workshop(tmp_path):
    """A folder with all that the Makefile looks at, long unchanged."""
    for name in ["Makefile", "pyproject.toml", "constraints.txt"]:
        shutil.copy(ROOT / name, tmp_path)
        os.utime(tmp_path / name, (1_000_000_000, 1_000_000_000))
    return tmp_path


def make(folder, *arguments, python=sys.executable):
    # These tests often run under `make test` themselves: what that make exports must not reach this one.
    ours = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PYTHON", "PYTEST_ARGS", "TEST_EXTRAS"}
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    command = ["make", f"PYTHON={python}", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def installs(folder, target):
    """The install commands that `make target` would run."""
    plan = make(folder, "-n", target)
    assert plan.returncode == 0, plan.stderr
    return install_lines(plan.stdout)


def put_stamps(folder, *names):
    (folder / ".venv").mkdir(exist_ok=True)
    for name in names:
        (folder / ".venv" / name).touch()


def put_environment(folder, pip_exit_code):
    """A .venv whose python only writes down what it was asked to do."""
    python = folder / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$@" >> asked\n[ "$2" != pip ] || exit {pip_exit_code}\n')
    python.chmod(0o755)
    shutil.copy(python, python.with_name("pip"))


def test_the_tests_are_installed_with_extras_that_exist():
    assert "dev" in TEST_EXTRAS.split(",")
    assert set(TEST_EXTRAS.split(",")) <= set(EXTRAS)


@needs_make
def test_make_alone_lists_the_targets(workshop):
    listed = make(workshop).stdout
    for target in [*TARGETS, "clean", "help"]:
        assert f"make {target} " in listed


@needs_make
@pytest.mark.parametrize("target", TARGETS)
def test_a_fresh_clone_is_installed_once(workshop, target):
    [line] = installs(workshop, target)
    assert not lacks_constraints(line)
    assert TARGETS[target] in line


@needs_make
@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_installed_again_when_nothing_changed(workshop, target):
    extras = ("lab", "dashboard", "site", TEST_EXTRAS)
    put_stamps(workshop, ".installed", *(f".installed-{extra}" for extra in extras))
    assert installs(workshop, target) == []


@needs_make
def test_the_base_install_is_not_enough_for_the_tests(workshop):
    put_stamps(workshop, ".installed")
    assert installs(workshop, "poster") == []
    assert len(installs(workshop, "test")) == 1


@needs_make
def test_the_base_install_is_not_enough_for_jupyterlab(workshop):
    put_stamps(workshop, ".installed")
    assert len(installs(workshop, "lab")) == 1


@pytest.mark.parametrize("extra", ["dev", "instructor", "dashboard", "site"])
def test_what_needs_jupyter_brings_the_extra_lab(extra):
    assert set(map(str, EXTRAS["lab"])) <= set(map(str, EXTRAS[extra]))


def test_the_base_install_brings_no_jupyter():
    brought = {need.name for need in BASE}
    assert not brought & {need.name for need in EXTRAS["lab"]}


@needs_make
def test_the_tests_can_be_given_more_extras(workshop):
    put_stamps(workshop, ".installed", f".installed-{TEST_EXTRAS}")
    [line] = install_lines(make(workshop, "-n", "test", "TEST_EXTRAS=dev,browser").stdout)
    assert "'.[dev,browser]'" in line and not lacks_constraints(line)


@needs_make
@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt"])
@pytest.mark.parametrize("target", ["poster", "test"])
def test_a_changed_dependency_is_installed(workshop, target, changed):
    put_stamps(workshop, ".installed", f".installed-{TEST_EXTRAS}")
    os.utime(workshop / changed, (4_000_000_000, 4_000_000_000))
    assert len(installs(workshop, target)) == 1


@needs_make
@pytest.mark.parametrize("target", ["doctor", "test"])
def test_a_failed_install_is_tried_again(workshop, target):
    put_environment(workshop, pip_exit_code=1)
    assert make(workshop, target).returncode != 0
    assert list((workshop / ".venv").glob(".installed*")) == []
    assert (workshop / "asked").read_text().count("\n") == 1, "it went on after the failed install"
    assert len(installs(workshop, target)) == 1


@needs_make
def test_installing_for_the_tests_also_serves_the_poster_and_the_lab(workshop):
    put_environment(workshop, pip_exit_code=0)
    for target in ["test", "poster", "lab"]:
        run = make(workshop, target)
        assert run.returncode == 0, run.stderr
    asked = (workshop / "asked").read_text().splitlines()
    assert [line.split()[:3] for line in asked] == [
        ["-m", "pip", "install"],
        ["-m", "pytest", "-n"],
        ["-m", "labkit", "poster"],
        ["-m", "labkit", "lab"],
    ]


@needs_make
def test_an_old_python_is_refused_in_words(workshop):
    old = workshop / "python3.9"
    old.write_text("#!/bin/sh\nexit 1\n")  # what the version check says in an old Python
    old.chmod(0o755)
    run = make(workshop, "poster", python="./python3.9")
    assert run.returncode != 0
    assert "needs Python 3.11 or later, and './python3.9' is not" in run.stdout
    assert not (workshop / ".venv").exists()


@needs_make
def test_a_half_made_environment_is_completed(workshop):
    (workshop / ".venv/bin").mkdir(parents=True)
    creating = [line for line in make(workshop, "-n", "poster").stdout.splitlines() if "-m venv" in line]
    assert creating == [f"test -x .venv/bin/pip || {sys.executable} -m venv .venv"]


# .ci/run

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")


def continuous_integration(folder, *, user, failing=""):
    """Run .ci/run with stand-ins for what changes a machine; return its exit code and what it asked for.

    `folder/extras` has what the tests are to be installed with.
    """
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", folder / ".ci/run")
    commands = folder / "commands"
    commands.mkdir()
    for name in ["make", "apt-get"]:
        note = f'echo {name} "$@" >> asked\necho "$TEST_EXTRAS" > extras\n'
        (commands / name).write_text(f'#!/bin/sh\n{note}[ "$1" != "{failing}" ]\n')
    (commands / "id").write_text(f"#!/bin/sh\necho {user}\n")
    for command in commands.iterdir():
        command.chmod(0o755)
    environment = {**os.environ, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("TEST_EXTRAS", None)  # these tests run under .ci/run themselves
    run = subprocess.run([folder / ".ci/run"], cwd=folder, env=environment, capture_output=True, text=True)
    return run.returncode, (folder / "asked").read_text().splitlines()


@needs_bash
def test_ci_installs_lints_tests_and_holds_the_contract(tmp_path):
    code, asked = continuous_integration(tmp_path, user=0)
    assert code == 0
    assert [line.split()[:2] for line in asked] == [
        ["apt-get", "update"],
        ["apt-get", "install"],
        ["make", "lint"],
        ["make", "test"],
        ["make", "test"],
        ["make", "contract"],
    ]
    assert {"python3-venv", "chromium", "fonts-dejavu-core"} <= set(asked[1].split())


@needs_bash
def test_ci_tests_with_every_extra(tmp_path):
    continuous_integration(tmp_path, user=1000)
    assert set((tmp_path / "extras").read_text().strip().split(",")) == set(EXTRAS)


@needs_bash
def test_ci_leaves_the_system_alone_when_not_root(tmp_path):
    code, steps = continuous_integration(tmp_path, user=1000)
    assert code == 0
    assert (steps[0], steps[-1]) == ("make lint", "make contract FIRST=1 SEEDS=1")
    assert {line.split()[0] for line in steps} == {"make"}


@needs_bash
def test_ci_measures_coverage_and_leaves_out_no_test(tmp_path):
    _, steps = continuous_integration(tmp_path, user=1000)
    measured, rest = (line for line in steps if line.startswith("make test"))
    assert "COVERAGE=--cov" in measured and "COVERAGE" not in rest
    everything = re.search(r"^TESTS \?= (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    folder, *ignoring = measured.partition("TESTS=")[2].split()
    ignored = {option.removeprefix("--ignore=") for option in ignoring}
    others = set(rest.partition("TESTS=")[2].split())
    assert {folder} | (others - ignored) == set(everything)
    assert ignored <= others and all((ROOT / path).is_file() for path in ignored)


@needs_bash
@pytest.mark.parametrize("failing", ["update", "install", "lint", "test"])
def test_ci_fails_at_once_when_a_step_fails(tmp_path, failing):
    code, asked = continuous_integration(tmp_path, user=0, failing=failing)
    assert code != 0
    assert failing in asked[-1].split()
