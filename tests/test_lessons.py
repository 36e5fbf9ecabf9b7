"""Generated parts of the documentation: up to date, and a check that says so when they are not."""

from pathlib import Path

import pytest

from labkit import lessons
from labkit.failures import FAILURES
from labkit.knob import RecipeError

ROOT = Path(__file__).parent.parent


def test_the_readme_is_up_to_date():
    assert lessons.renew(ROOT, check=True) == [], "renew it with `labkit lessons`"


def test_every_mode_has_one_row():
    table = lessons.failure_table()
    assert all(table.count(f"| `{name}` |") == 1 for name in FAILURES)


def test_what_is_out_of_date_is_found_and_renewed(tmp_path):
    (tmp_path / "README.md").write_text(
        f"before\n{lessons.BEGIN}\noutdated row\n{lessons.END}\nafter\n", encoding="utf-8"
    )
    assert lessons.renew(tmp_path, check=True) == [tmp_path / "README.md"]
    assert "outdated row" in (tmp_path / "README.md").read_text(encoding="utf-8")
    assert lessons.renew(tmp_path) == [tmp_path / "README.md"]
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert (
        text.startswith("before\n") and text.endswith("after\n") and "dead_relu" in text and "outdated row" not in text
    )
    assert lessons.renew(tmp_path, check=True) == []


def test_a_readme_without_a_place_says_what_is_expected():
    with pytest.raises(RecipeError, match="expected the lines"):
        lessons.renewed("# nothing here\n")
