"""The catalogue finds the modes, and only those."""

import sys

from labkit import failures
from labkit.failures import catalogue


def test_a_file_of_helpers_in_a_topic_folder_is_no_mode(tmp_path, monkeypatch):
    topic = tmp_path / "extra_topic"
    topic.mkdir()
    (topic / "__init__.py").touch()
    (topic / "helpers.py").write_text("TEN = 10\n")
    (topic / "a_mode.py").write_text("failure = 'a mode'\n")
    monkeypatch.setattr(failures, "__path__", [*failures.__path__, str(tmp_path)])
    try:
        assert catalogue._discover() == catalogue.FAILURES | {"a_mode": "a mode"}
    finally:
        for name in [each for each in sys.modules if each.startswith("labkit.failures.extra_topic")]:
            del sys.modules[name]
        del failures.extra_topic
