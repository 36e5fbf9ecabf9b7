"""The generated pages: up to date, complete, and regenerated where they are not."""

import re

import pytest
from helpers import ROOT

from labkit.cli import pages
from labkit.cli.main import main, parser
from labkit.drawing.markdown import table
from labkit.failures.catalogue import FAILURES


def test_the_pages_are_up_to_date():
    assert pages.regenerate(ROOT, check=True) == [], "regenerate it with `labkit lessons`"


def test_every_mode_has_one_row_that_links_to_its_file():
    links = re.findall(r"^\| \[`(\w+)`\]\((\S+)\)", pages.catalogue_page(), re.MULTILINE)
    assert [name for name, _ in links] == list(FAILURES)
    assert all((ROOT / pages.CATALOGUE.parent / path).is_file() for _, path in links)


def test_every_command_has_a_section_with_its_arguments(capsys):
    page = pages.commands_page()
    with pytest.raises(SystemExit):
        parser().parse_args(["--help"])
    names = re.findall(r"^    (\w+)(?: |$)", capsys.readouterr().out, re.MULTILINE)
    assert len(names) >= 15
    assert re.findall(r"^## labkit (\w+)$", page, re.MULTILINE) == names
    section = page.partition("## labkit run\n")[2].partition("## ")[0]
    assert "| `--set NAME=VALUE` |" in section and "| `name` |" in section


def test_every_argument_says_what_it_means():
    assert not re.findall(r"^\| (`.*`) \|  \|$", pages.commands_page(), re.MULTILINE)


def test_what_is_out_of_date_is_found_and_regenerated(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["lessons"]) == 2 and "at the top of a clone" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "solutions").mkdir()
    page = tmp_path / pages.CATALOGUE
    page.parent.mkdir(parents=True)
    page.write_text("outdated row\n", encoding="utf-8")
    assert main(["lessons", "--check"]) == 1
    assert "regenerate it with `labkit lessons`" in capsys.readouterr().out
    assert page.read_text(encoding="utf-8") == "outdated row\n"
    assert main(["lessons"]) == 0
    assert "dead_relu" in page.read_text(encoding="utf-8")
    assert main(["lessons", "--check"]) == 0


def test_a_bar_in_a_cell_does_not_end_it():
    assert table(("a", "b"), [("x|y", "z")]) == ["| a | b |", "|---|---|", "| x\\|y | z |"]
