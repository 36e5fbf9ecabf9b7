"""Runs, studies and the catalogue show themselves: HTML with a picture that has words, tables in the terminal."""

import base64
import dataclasses
import io
import os
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from helpers import ROOT, tiny, trained
from played import made_of, played
from rich.console import Console

from labkit.diagnosis import report
from labkit.drawing import html
from labkit.failures.catalogue import FAILURES, Catalogue
from labkit.recording.run import Run
from labkit.training.loop import train

VOID = {"img", "br"}


class Page(HTMLParser):
    """Reads HTML and insists that every element is closed in turn."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.elements, self.words = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)

    def all(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.elements if name == tag]


def picture(page: Page) -> str:
    """The words that stand for the picture; and it is one."""
    [image] = page.all("img")
    kind, data = image["src"].split(",")
    assert kind == "data:image/png;base64"
    assert base64.b64decode(data).startswith(b"\x89PNG")
    return image["alt"]


# --- runs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["healthy", "sick"])
def test_a_run_shows_a_line_and_a_picture(role):
    run = played("learning_rate_too_high").runs[role]
    page = Page(run._repr_html_())
    assert page.text == repr(run).strip("<>") == picture(page)
    assert ("non-finite" in page.text) == (role == "sick")


@pytest.mark.parametrize("model", ["convnet", "rnn", "vit"])
def test_a_run_of_any_net_shows_itself(model):
    assert picture(Page(trained(tiny(model=model))._repr_html_()))


def test_a_run_shows_what_was_recorded_and_no_more():
    bare = train(tiny(), instruments=False, progress=False)
    assert "grad_norm" not in bare
    assert "Run of 6 steps" in picture(Page(bare._repr_html_()))
    assert Page(Run({})._repr_html_()).text == "Run of 0 steps, 0 layers"


def test_a_run_loads_and_shows_its_line_without_matplotlib_and_torch():
    code = """
import sys
import numpy as np
import labkit
run = labkit.Run({"loss": np.ones(3)})
print(repr(run), sorted({"torch", "matplotlib", "rich"} & set(sys.modules)))
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert answer.stdout.strip() == "<Run of 3 steps, 0 layers> []", answer.stderr


# --- studies --------------------------------------------------------------------------------------


def test_a_study_shows_its_picture_and_its_words():
    study = played("learning_rate_too_high")
    page = Page(study._repr_html_())
    words = report.study_in_words(study)
    assert page.text == words == picture(page)
    assert "->" in words  # which must be escaped, and is read back
    assert "lr 0.1 -&gt; 10" in study._repr_html_()


def test_words_are_escaped():
    mode = dataclasses.replace(FAILURES["dead_relu"], title='<b>"bold" & brash</b>', symptom="a < b & <script>")
    study = dataclasses.replace(made_of("dead_relu", healthy=played("dead_relu").healthy), mode=mode)
    page = Page(study._repr_html_())
    assert not page.all("b") and '<b>"bold" & brash</b>' in page.text
    assert '<b>"bold" & brash</b>' in picture(page)
    odd = dataclasses.replace(study.healthy, facts={"first_nonfinite": {"step": 3, "stage": "<i>loss</i>"}})
    page = Page(html.run_html(odd))
    assert not page.all("i") and "(<i>loss</i>)" in page.text
    catalogue = Page(Catalogue({"dead_relu": mode})._repr_html_())
    assert not catalogue.all("script") and "a < b & <script>" in catalogue.text


def test_a_study_shows_its_words_in_the_terminal():
    study = played("vanishing_gradients")
    shown = printed(study, width=120)
    for line in report.study_in_words(study).splitlines():
        assert line.rstrip() in shown


# --- the catalogue --------------------------------------------------------------------------------


def printed(thing, width: int) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(thing)
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 250])
def test_the_terminal_table_has_every_mode_under_its_topic(width):
    lines = [line.rstrip() for line in printed(FAILURES, width).splitlines()]
    firsts = [line.split()[0] for line in lines[1:] if line.strip() and not line.startswith(" " * 10)]
    topics = list(dict.fromkeys(mode.topic for mode in FAILURES.values()))
    expected = [name for topic in topics for name in [topic, *(n for n, m in FAILURES.items() if m.topic == topic)]]
    assert firsts == expected
    for mode in FAILURES.values():
        [row] = [line for line in lines if line.split()[:1] == [mode.name]]
        assert mode.title.split()[0] in row
        if width == 250:
            assert mode.title in row and report.changes_in_words(mode.sick, mode.healthy) in row


def test_the_html_table_has_a_row_for_every_mode():
    page = Page(FAILURES._repr_html_())
    assert len(page.all("tr")) == len(FAILURES) + 1
    assert len(page.all("td")) == len(page.all("th")) * len(FAILURES)
    for mode in FAILURES.values():
        for words in (mode.topic, mode.name, mode.symptom, report.changes_in_words(mode.sick, mode.healthy)):
            assert words in page.words
