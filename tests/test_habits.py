"""Changelog, citation, pre-commit hooks, the CI workflow and the issue forms: complete, and true to the project."""

import re
import shlex
import subprocess

import pytest
import yaml
from helpers import ROOT

import labkit

TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))

# The top of the repository: whatever is added there is seen first by everybody.
TOP_LEVEL = {
    ".ci", ".github", ".gitignore", ".pre-commit-config.yaml", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md",
    "LICENSE", "Makefile", "README.md", "constraints.txt", "datasets", "environment.yml", "labkit", "notebooks",
    "pyproject.toml", "solutions", "tests",
}  # fmt: skip


def read(name: str):
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


@pytest.mark.skipif(not TRACKED, reason="not a git checkout")
def test_the_top_level_holds_only_what_belongs_there():
    assert {name.split("/")[0] for name in TRACKED} <= TOP_LEVEL


# --- changelog, citation ---


def test_the_citation_has_the_required_keys_and_the_version():
    citation = read("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= set(citation)  # the keys that CFF 1.2.0 requires
    assert citation["cff-version"] == "1.2.0"
    assert citation["authors"] == [{"name": "labkit contributors"}]
    assert str(citation["version"]) == labkit.__version__


def test_the_changelog_has_this_version_and_a_place_for_the_next():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[(.+?)\]", text, re.MULTILINE)
    assert versions[:2] == ["Unreleased", labkit.__version__]
    groups = set(re.findall(r"^### (.+)$", text, re.MULTILINE))
    assert groups <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


# --- pre-commit ---


def hooks() -> dict[str, list[str]]:
    """Hook -> its command."""
    return {
        hook["id"]: shlex.split(hook["entry"])
        for part in read(".pre-commit-config.yaml")["repos"]
        for hook in part["hooks"]
    }


def test_the_hooks_use_the_tools_of_this_environment_and_download_nothing():
    parts = read(".pre-commit-config.yaml")["repos"]
    assert {part["repo"] for part in parts} == {"local"}
    assert {hook["language"] for part in parts for hook in part["hooks"]} == {"system"}


def test_the_hooks_check_what_make_lint_checks():
    assert {"ruff-check", "ruff-format", "import-linter", "mypy"} == set(hooks())
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for words in ("ruff check", "ruff format", "lint-imports", "mypy"):
        assert words in makefile and any(words in " ".join(command) for command in hooks().values())


def test_pre_commit_accepts_the_configuration():
    clientlib = pytest.importorskip("pre_commit.clientlib", reason="pre-commit is not installed")
    clientlib.load_config(ROOT / ".pre-commit-config.yaml")


# --- GitHub ---


def test_the_workflow_does_what_ci_run_does_and_nothing_else():
    workflow = read(".github/workflows/ci.yml")
    [job] = workflow["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert workflow["permissions"] == {"contents": "read"}


def test_there_is_a_form_for_each_kind_of_issue():
    assert [path.stem for path in FORMS] == ["bug_report", "new_failure_mode", "wrong_diagnosis"]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_an_issue_form_is_one_that_github_accepts(path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= set(form)
    ids = [item["id"] for item in form["body"]]
    assert len(set(ids)) == len(ids)
    for item in form["body"]:
        assert item["type"] in {"input", "textarea", "dropdown", "checkboxes"}
        assert item["attributes"]["label"]
    assert any(item.get("validations", {}).get("required") for item in form["body"])


def test_every_command_that_the_forms_name_exists():
    from labkit.cli.main import parser

    texts = [path.read_text(encoding="utf-8") for path in [*FORMS, ROOT / ".github/pull_request_template.md"]]
    commands = [found for text in texts for found in re.findall(r"`labkit ([a-z][^`]*)`", text)]
    assert "doctor" in commands
    for command in commands:
        assert parser().parse_args(shlex.split(command)).command
