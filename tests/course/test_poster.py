"""The poster: cards from their studies, every text in its place on every paper, files that are whole and the same."""

import functools
import itertools
import os
import re
import struct
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import torch
from helpers import ROOT, hand_made
from played import MODES, astray, extent, extent_now, in_millimetres, made_of, overlap, panels, played, within

from labkit import __version__
from labkit.course.poster import poster
from labkit.course.poster.content import PREFLIGHT, TREE
from labkit.diagnosis import look_alikes
from labkit.drawing import plots
from labkit.drawing.page import PAPERS, Sheet
from labkit.errors import RecipeError
from labkit.failures.catalogue import FAILURES, UnknownFailure
from labkit.recording.summaries import typical
from labkit.recording.traces import RANGES
from labkit.training import run_store
from labkit.training.data import DataError
from labkit.training.recipe import changes_in_words

NAMES = list(MODES)
COMMAND = "labkit poster --all --seed 3"


@functools.cache
def drawn(paper: str) -> list[Sheet]:
    """The headlines on the first page, one more on the second, the tables on the third. Do not change them."""
    return poster.draw([played(name) for name in NAMES], paper=paper, remake=COMMAND, tables=True)


@functools.cache
def simple() -> Sheet:
    """A page of one card, for writing to files."""
    return poster.draw([played("learning_rate_too_high")], paper="letter")[0]


def words(sheet: Sheet) -> list[str]:
    return [" ".join(text.get_text().split()) for text, _ in sheet.texts]


def cards(sheet: Sheet) -> list:
    """The boxes of the cards, row by row; on the first page the tree and the list come last."""
    return sorted(panels(sheet, poster.CARD), key=lambda box: (round(box.y), box.x))


def in_card(sheet: Sheet, place: int) -> list[str]:
    box = cards(sheet)[place]
    return [
        text for (artist, _), text in zip(sheet.texts, words(sheet), strict=True) if within(extent(sheet, artist), box)
    ]


def axes_in_card(sheet: Sheet, place: int) -> list:
    box = cards(sheet)[place]
    middles = {ax: in_millimetres(sheet, ax.get_window_extent(sheet.renderer)) for ax in sheet.figure.axes}
    return [ax for ax, found in middles.items() if within(found, box)]


# --- the five headlines, the tree, the list -------------------------------------------------------


def test_the_headlines_are_modes_and_all_are_found_in_the_tree():
    causes = {cause for questions in TREE.values() for found in questions.values() for _, cause in found}
    assert len(set(poster.HEADLINES)) == 5
    assert causes <= FAILURES.keys()
    assert set(poster.HEADLINES) <= causes


def test_six_cards_to_a_page_the_healthy_one_first_then_the_tables():
    titles = [sheet.titles for sheet in drawn("a3")]
    expected = [FAILURES[name].title for name in NAMES]
    assert titles == [["Healthy", *expected[:5]], expected[5:], ["Look-alikes", "Lead time"]]
    for sheet in drawn("a3"):
        assert set(sheet.titles) <= set(words(sheet))


def test_the_default_is_a_single_page_without_a_number():
    assert simple().titles == ["Healthy", "Learning rate too high"]
    assert not any(text.startswith("page ") for text in words(simple()))
    assert [text for sheet in drawn("a3") for text in words(sheet) if text.startswith("page ")] == [
        "page 1 of 3", "page 2 of 3", "page 3 of 3",
    ]  # fmt: skip


def test_the_healthy_card_says_what_good_looks_like():
    sheet = drawn("a3")[0]
    text = in_card(sheet, 0)
    assert text[0] == "Healthy"
    for each in RANGES:
        assert {each.words, each.healthy, each.warning} <= set(text)
    healthy = played(NAMES[0]).healthy
    assert f"validation accuracy {healthy.accuracy:.1%}" in text
    left, right = axes_in_card(sheet, 0)
    np.testing.assert_allclose(left.lines[0].get_ydata(), healthy["loss"])
    np.testing.assert_allclose(right.lines[0].get_ydata(), healthy["update_ratio"].max(axis=1))


@pytest.mark.parametrize("name", NAMES)
def test_a_card_has_its_name_its_change_the_verdict_and_the_words(name):
    study, place = played(name), NAMES.index(name) + 1
    sheet = drawn("a3")[place // 6]
    text = in_card(sheet, place % 6)
    mode, diagnosis = study.mode, study.diagnoses[0]
    assert text[0] == mode.title
    assert mode.topic.replace("_", " ") in text
    assert changes_in_words(study.recipes["sick"], study.recipes["healthy"]) in text
    whole = " ".join(text)
    assert f"Diagnosis: {diagnosis.title}, step {diagnosis.onset}" in whole
    assert f"Seen: {diagnosis.seen}. Usual: {diagnosis.usual}." in whole
    for label in ("Looks like", "Because", "Check first", "Cure"):
        assert label in text
    for sentence in (mode.symptom, mode.mechanism, mode.first_check):
        assert poster.first_sentence(sentence) in text
    assert f"{study.cured.accuracy:.1%} correct, healthy twin {study.healthy.accuracy:.1%}." in whole


@pytest.mark.parametrize("name", NAMES)
def test_where_the_cure_undoes_the_change_the_card_says_what_to_do_in_practice(name):
    mode, place = FAILURES[name], NAMES.index(name) + 1
    text = in_card(drawn("a3")[place // 6], place % 6)
    undone = next(iter(mode.cures.values())) == mode.healthy
    assert ("In practice" in text) == undone
    assert not undone or poster.first_sentence(mode.remedy) in " ".join(text)


@pytest.mark.parametrize("name", NAMES)
def test_the_curves_of_a_card_are_those_of_its_runs(name):
    study, place = played(name), NAMES.index(name) + 1
    left, right = axes_in_card(drawn("a3")[place // 6], place % 6)
    curves = {line.get_label(): line.get_ydata() for line in left.lines}
    for role, run in study.runs.items():
        losses = np.where(np.isfinite(run["loss"]), run["loss"], np.nan)
        np.testing.assert_allclose(curves[role], losses, err_msg=role)
    expected = plots.INSTRUMENTS[study.mode.shows](study)
    assert right.get_title(loc="left") == expected.get_title(loc="left")
    assert len(right.lines) == len(expected.lines) and len(right.patches) == len(expected.patches)
    for one, other in zip(right.lines, expected.lines, strict=True):
        np.testing.assert_array_equal(one.get_ydata(), other.get_ydata())


def test_the_bars_of_a_card_are_those_of_its_runs():
    study, place = played("vanishing_gradients"), NAMES.index("vanishing_gradients") + 1
    _, right = axes_in_card(drawn("a3")[0], place)
    heights = {bars.get_label(): [bar.get_height() for bar in bars] for bars in right.containers}
    for role, run in study.runs.items():
        np.testing.assert_allclose(heights[role], typical(run["grad_norm"]), err_msg=role)


def test_a_card_of_a_run_that_shows_nothing_says_so():
    calm = made_of("learning_rate_too_low", healthy=played("learning_rate_too_low").healthy)
    assert calm.diagnoses == []
    [sheet] = poster.draw([calm], paper="a4")
    assert "Diagnosis: no failure shows" in in_card(sheet, 1)
    assert astray(sheet) == []


def test_many_changes_stay_on_one_line_in_smaller_type():
    study = played("learning_rate_too_low")
    sick = study.recipes["healthy"].but(
        lr=1e-6, momentum=0.0, weight_decay=0.01, activation="leaky_relu", init="xavier"
    )
    many = made_of(study.name, study.recipes | {"sick": sick}, **study.runs)
    [sheet] = poster.draw([many], paper="a4")
    [note] = [text for text, _ in sheet.texts if text.get_text() == changes_in_words(sick, study.recipes["healthy"])]
    assert note.get_fontsize() < 9 * sheet.scale
    assert astray(sheet) == []


def test_the_tree_leads_to_causes_and_the_list_has_ten_points():
    sheet = drawn("a3")[0]
    tree, points = in_card(sheet, 6), in_card(sheet, 7)
    for symptom, questions in TREE.items():
        assert symptom in tree
        for question, found in questions.items():
            assert question in tree
            for reading, cause in found:
                assert reading in tree and FAILURES[cause].title in tree
    assert len(PREFLIGHT) == 10
    assert points == ["Before every run", *PREFLIGHT]


def test_one_sentence_must_do():
    assert poster.first_sentence("One. Two. Three.") == "One."
    assert poster.first_sentence("Only this, at 0.5 of it") == "Only this, at 0.5 of it."


# --- everything in its place ----------------------------------------------------------------------


@pytest.mark.parametrize("page", [0, 1, 2])
@pytest.mark.parametrize("paper", PAPERS)
def test_every_text_stays_in_its_box_and_no_two_overlap(paper, page):
    sheet = drawn(paper)[page]
    assert len(sheet.texts) > 15
    assert astray(sheet) == []
    places = [(text, extent(sheet, artist)) for (artist, _), text in zip(sheet.texts, words(sheet), strict=True)]
    assert [(a, b) for (a, one), (b, other) in itertools.combinations(places, 2) if overlap(one, other)] == []


@pytest.mark.parametrize("page", [0, 1])
@pytest.mark.parametrize("paper", PAPERS)
def test_panels_with_their_labels_stay_in_their_card_and_cover_nothing(paper, page):
    sheet = drawn(paper)[page]
    whole = {ax: in_millimetres(sheet, ax.get_tightbbox(sheet.renderer)) for ax in sheet.figure.axes}
    assert len(whole) == 2 * len(sheet.titles)
    for ax, place in whole.items():
        assert sum(within(place, card) for card in cards(sheet)) == 1, ax.get_title(loc="left")
        drawn_area = in_millimetres(sheet, ax.get_window_extent(sheet.renderer))
        assert place.width > drawn_area.width + 3 and place.height > drawn_area.height + 6  # labels are counted
        covered = [
            text
            for (artist, _), text in zip(sheet.texts, words(sheet), strict=True)
            if overlap(place, extent(sheet, artist))
        ]
        assert covered == []
    assert not any(overlap(one, other) for one, other in itertools.combinations(whole.values(), 2))


@pytest.mark.parametrize("paper", PAPERS)
def test_words_on_a_coloured_ground_stay_on_it(paper):
    sheet = drawn(paper)[0]
    grounds = [*panels(sheet, poster.GOOD), *panels(sheet, poster.BAD)]
    on_colour = [extent(sheet, text) for text, _ in sheet.texts if text.get_color() == "white"]
    leaves = sum(len(found) for questions in TREE.values() for found in questions.values())
    assert len(on_colour) == len(TREE) + leaves
    assert all(any(within(place, ground) for ground in grounds) for place in on_colour)
    verdicts = [extent(sheet, text) for text, _ in sheet.texts if text.get_text().startswith("Diagnosis: ")]
    assert len(verdicts) == 5
    assert all(any(within(place, bar) for bar in panels(sheet, poster.CHIP)) for place in verdicts)


@pytest.mark.parametrize("paper", PAPERS)
def test_cards_lie_side_by_side_on_the_page(paper):
    boxes = cards(drawn(paper)[0])
    assert len(boxes) == 8  # six cards, the tree, the list
    assert not any(overlap(one, other, 0) for one, other in itertools.combinations(boxes, 2))
    assert all(box.x > 5 and box.x + box.width < 415 for box in boxes)


def test_the_type_is_large_enough_to_be_read():
    for sheet in drawn("a3"):
        assert min(text.get_fontsize() for text, _ in sheet.texts) >= 5.5  # points, on A3


@pytest.mark.parametrize("width", [1200, 1600])
def test_small_pictures_keep_the_texts_in_their_boxes(width, tmp_path, monkeypatch):
    [sheet] = poster.draw([played("learning_rate_too_high")], paper="a3")
    strays = []

    def look_instead(stream, dpi, **_):
        """As it would be drawn: with the settings of this moment, at this resolution."""
        before = sheet.figure.dpi, sheet.renderer
        sheet.figure.dpi = dpi
        sheet.renderer = sheet.figure.canvas.get_renderer()
        strays.append(astray(sheet, extent_now))
        sheet.figure.dpi, sheet.renderer = before

    monkeypatch.setattr(sheet.figure, "savefig", look_instead)
    poster.write([sheet], tmp_path / "small.png", width)
    assert strays == [[]]


# --- where it comes from --------------------------------------------------------------------------


def test_every_page_says_where_it_comes_from():
    for sheet in drawn("a3"):
        [footer] = [text for text in words(sheet) if text.startswith("labkit ")]
        assert f"labkit {__version__} with torch {torch.__version__}" in footer
        assert "data mnist, seed 0, 20 or 60 steps of batch 128" in footer
        assert footer.endswith(f"Reproduce: {COMMAND}")


def test_the_footer_speaks_of_the_recipes_and_not_of_defaults():
    recipes = {role: recipe.but(steps=77, batch_size=32) for role, recipe in
               FAILURES["dead_relu"].recipes(dataset="cifar10", seed=5).items()}  # fmt: skip
    study = made_of("dead_relu", recipes, healthy=played("dead_relu").healthy)
    [sheet] = poster.draw([study], paper="a4")
    [footer] = [text for text in words(sheet) if text.startswith("labkit ")]
    assert "data cifar10, seed 5, 77 steps of batch 32" in footer


# --- the tables page ------------------------------------------------------------------------------


def test_the_tables_are_those_of_the_atlas():
    studies, text = [played(name) for name in NAMES], words(drawn("a3")[2])
    pairs = look_alikes.look_alikes(studies)
    assert pairs
    for pair in pairs:
        assert {FAILURES[pair.one].title, FAILURES[pair.other].title, pair.instrument} <= set(text)
        assert f"{pair.difference:.1%}" in text
    for row in look_alikes.lead_times(studies):
        assert f"step {row.loss}" in text
        assert {f"{row.lead(name):+d}" for name in row.instruments} <= set(text)


def test_what_no_loss_tells_and_no_instrument_separates_is_said():
    calm = [made_of(name, healthy=played("dead_relu").healthy) for name in NAMES[:2]]
    tables = poster.draw(calm, paper="a4", tables=True)[-1]
    assert "never" in words(tables) and "no instrument" in words(tables)
    assert astray(tables) == []


# --- files ----------------------------------------------------------------------------------------


def objects(pdf: bytes) -> list[bytes]:
    return re.findall(rb"\d+ 0 obj\n(.*?)\nendobj", pdf, re.DOTALL)


def pages_of(pdf: bytes) -> int:
    return len(re.findall(rb"/Type /Page\b", pdf))


def test_a_pdf_has_a_page_per_sheet_of_the_size_of_the_paper_and_brings_its_fonts(tmp_path):
    [path] = poster.write(drawn("a4"), tmp_path / "poster.pdf")
    pdf = path.read_bytes()
    assert pages_of(pdf) == 3
    sizes = [[float(edge) for edge in box.split()] for box in re.findall(rb"/MediaBox \[ ([^\]]*) \]", pdf)]
    paper = [side / 25.4 * 72 for side in PAPERS["a4"]]
    assert sizes == [pytest.approx([0, 0, *paper], abs=0.1)] * 3
    fonts = [each for each in objects(pdf) if b"/Type /Font " in each]
    descriptors = [each for each in objects(pdf) if b"/Type /FontDescriptor" in each]
    assert fonts and {re.search(rb"/Subtype /(\w+)", font)[1] for font in fonts} == {b"Type0", b"CIDFontType2"}
    assert len(descriptors) == sum(b"CIDFontType2" in font for font in fonts)
    assert all(b"/FontFile2" in each for each in descriptors)
    assert b"/Title (How training fails" in pdf and b"CreationDate" not in pdf


def test_pictures_of_several_pages_are_numbered(tmp_path):
    sheets = [_empty_page(), _empty_page()]
    assert [path.name for path in poster.write(sheets, tmp_path / "p.svg")] == ["p-1.svg", "p-2.svg"]
    assert [path.name for path in poster.write(sheets[:1], tmp_path / "p.svg")] == ["p.svg"]
    assert [path.name for path in poster.write(sheets, tmp_path / "p.pdf")] == ["p.pdf"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p-1.svg", "p-2.svg", "p.pdf", "p.svg"]


def _empty_page() -> Sheet:
    sheet = Sheet("letter")
    sheet.titles = []
    return sheet


def test_an_svg_carries_title_and_description(tmp_path):
    [path] = poster.write([simple()], tmp_path / "poster.svg")
    tree = ElementTree.parse(path)  # it is well-formed, too
    assert tree.find("{http://www.w3.org/2000/svg}title").text.startswith("How training fails")
    [described] = tree.iter("{http://purl.org/dc/elements/1.1/}description")
    assert described.text == "Cards: Healthy; Learning rate too high"


def test_each_svg_page_describes_its_own_cards(tmp_path):
    sheets = [_empty_page(), _empty_page()]
    sheets[0].titles, sheets[1].titles = ["Healthy", "Dead ReLUs"], ["Lead time"]
    described = []
    for path in poster.write(sheets, tmp_path / "p.svg"):
        [one] = ElementTree.parse(path).iter("{http://purl.org/dc/elements/1.1/}description")
        described.append(one.text)
    assert described == ["Cards: Healthy; Dead ReLUs", "Cards: Lead time"]


def test_a_picture_has_the_width_that_is_asked_for(tmp_path):
    [path] = poster.write([_empty_page()], tmp_path / "small.png", 640)
    assert struct.unpack(">I", path.read_bytes()[16:20]) == (640,)


@pytest.mark.parametrize("suffix", ["pdf", "png", "svg"])
def test_drawn_twice_the_bytes_are_the_same(suffix, tmp_path):
    width = 1600 if suffix == "png" else None
    one, two = tmp_path / f"1.{suffix}", tmp_path / f"2.{suffix}"
    poster.write([simple()], one, width)
    poster.write(poster.draw([played("learning_rate_too_high")], paper="letter"), two, width)
    assert one.read_bytes() == two.read_bytes()
    assert one.stat().st_size > 10_000


REDRAW = """
import sys
from pathlib import Path
from labkit.course.poster import poster
from labkit.recording.run import Run
from played import made_of
study = made_of("learning_rate_too_low", healthy=Run.load(sys.argv[1]))
pages = poster.draw([study], paper="letter")
for path in sys.argv[2:]:
    poster.write(pages, Path(path))
assert "matplotlib.pyplot" not in sys.modules, "figures must belong to nobody else"
"""


def test_another_process_gives_the_same_bytes(tmp_path):
    """Where the order of a set decides, two processes differ."""
    hand_made(histogram_range=np.ones((5, 4, 2))).save(tmp_path / "run.npz")
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    written = []
    for seed in ("5", "6"):
        names = [tmp_path / f"{seed}.{suffix}" for suffix in ("pdf", "svg")]
        environment = os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", REDRAW, tmp_path / "run.npz", *names], env=environment, check=True)
        written.append([name.read_bytes() for name in names])
    assert written[0] == written[1]


@pytest.mark.parametrize("suffix", ["pdf", "png", "svg"])
def test_an_interrupted_write_leaves_what_was_there(suffix, tmp_path, monkeypatch):
    old = tmp_path / f"old.{suffix}"
    old.write_bytes(b"what was there")

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    sheet = _empty_page()
    monkeypatch.setattr(sheet.figure, "savefig", interrupted)  # PdfPages asks the figure, too
    for path in (old, tmp_path / f"new.{suffix}"):
        with pytest.raises(KeyboardInterrupt):
            poster.write([sheet], path)
    assert [path.name for path in tmp_path.iterdir()] == [f"old.{suffix}"]
    assert old.read_bytes() == b"what was there"


# --- from names to files --------------------------------------------------------------------------


@pytest.fixture
def no_training(monkeypatch):
    def trained(*_, **__):
        raise AssertionError("a net was trained before the mistake was seen")

    monkeypatch.setattr(run_store, "train", trained)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"modes": ["dead_relu", "dead_rely"]}, UnknownFailure, "Did you mean 'dead_relu'"),
        ({"paper": "a5"}, RecipeError, "paper: expected one of a4, a3, letter, got 'a5'"),
        ({"paths": ["p.pdf", "p.jpeg"]}, RecipeError, r"end in \.pdf, \.png or \.svg, got p\.pdf, p\.jpeg"),
        ({"dataset": "mnits"}, (RecipeError, DataError), "Did you mean 'mnist'"),
        ({"jobs": 0}, RecipeError, "jobs: expected a whole number at least 1, got 0"),
        ({"jobs": -1}, RecipeError, "jobs: .* got -1"),
        ({"seed": -1}, RecipeError, "seed: .* got -1"),
        ({"width": 0}, RecipeError, "width: expected a whole number at least 1, got 0"),
        ({"width": -5}, RecipeError, "width: .* got -5"),
    ],
)  # fmt: skip
def test_a_wrong_wish_is_refused_before_any_training(options, error, message, no_training, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        poster.make(**{"paths": ["p.pdf"]} | options)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def rehearsed(monkeypatch) -> list[dict]:
    """`run_studies` gives the remembered studies and notes what was asked of it."""
    asked = []

    def remembered(names, **options):
        asked.append({"names": list(names)} | options)
        return [played(name) for name in names]

    monkeypatch.setattr(poster, "run_studies", remembered)
    return asked


def test_one_study_per_mode_and_one_file_per_path(rehearsed, tmp_path):
    paths = (tmp_path / name for name in ("a.pdf", "b.svg"))  # may be gone through only once
    written = poster.make(paths, modes=["dead_relu"], seed=7, dataset="mnist", jobs=2, paper="letter")
    assert rehearsed == [{"names": ["dead_relu"], "seed": 7, "dataset": "mnist", "jobs": 2}]
    assert written == [tmp_path / "a.pdf", tmp_path / "b.svg"]
    assert sorted(tmp_path.iterdir()) == written
    assert pages_of(written[0].read_bytes()) == 1 and b"Dead ReLUs" in written[1].read_bytes()


def test_by_default_the_headlines_and_with_all_the_whole_catalogue_and_the_tables(rehearsed, tmp_path, monkeypatch):
    drawings = []

    def draw(studies, **options):
        drawings.append(([study.name for study in studies], options))
        return [_empty_page()]

    some = {name: FAILURES[name] for name in (*poster.HEADLINES, "dead_relu")}  # all of them would train for minutes
    monkeypatch.setattr(poster, "FAILURES", some)
    monkeypatch.setattr(poster, "draw", draw)
    poster.make([tmp_path / "a.svg"])
    poster.make([tmp_path / "a.svg"], everything=True, paper="a4", remake="labkit poster --all")
    assert [each["names"] for each in rehearsed] == [list(poster.HEADLINES), list(some)]
    assert drawings[0] == (list(poster.HEADLINES), {"paper": "a3", "remake": "labkit poster", "tables": False})
    assert drawings[1] == (list(some), {"paper": "a4", "remake": "labkit poster --all", "tables": True})
