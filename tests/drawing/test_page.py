"""A page in millimetres: text wraps as wide as the renderer says, stays in its box, and boxes lie where they should."""

import functools
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from played import TOLERANCE, astray, extent, in_millimetres, overlap, panels, within

from labkit.drawing.page import PAPERS, Box, Sheet

LONG = "The gradient shrinks at each of the ten sigmoid layers, and the first layers never learn. " * 4


@functools.cache
def _sheet(paper: str) -> Sheet:
    return Sheet(paper)


def blank(paper: str = "a4") -> Sheet:
    """An empty page: the same one again, because a page of 300 dots per inch takes 70 MB."""
    sheet = _sheet(paper)
    sheet.figure.clear()
    sheet.texts.clear()
    return sheet


def last(sheet: Sheet) -> Box:
    """Where the text written last really is."""
    return extent(sheet, sheet.texts[-1][0])


# --- the page -------------------------------------------------------------------------------------


@pytest.mark.parametrize("paper", PAPERS)
def test_a_page_has_the_size_of_its_paper_and_is_measured_as_an_a3_page(paper):
    sheet = Sheet(paper)
    assert sheet.figure.get_size_inches() * 25.4 == pytest.approx(PAPERS[paper])
    assert sheet.width == 420
    assert sheet.height / sheet.width == pytest.approx(PAPERS[paper][1] / PAPERS[paper][0])


def test_an_inset_box_is_smaller_on_every_side():
    assert Box(10, 20, 100, 50).inset(1, 2) == Box(11, 22, 98, 46)
    assert Box(10, 20, 100, 50).inset(1, 2, 3, 4) == Box(11, 22, 96, 44)
    assert Box(10, 20, 100, 50).inset(5, 2, 0, 0) == Box(15, 22, 95, 48)


@pytest.mark.parametrize("paper", PAPERS)
def test_axes_and_panels_lie_where_their_box_is(paper):
    sheet, box = blank(paper), Box(30, 40, 100, 60)
    ax = sheet.axes(box)
    sheet.panel(box, "#123456")
    for found in (in_millimetres(sheet, ax.get_window_extent(sheet.renderer)), *panels(sheet, "#123456")):
        assert (found.x, found.y, found.width, found.height) == pytest.approx((30, 40, 100, 60), abs=0.2)
    assert len(panels(sheet, "#123456")) == 1


def test_a_line_joins_its_points():
    sheet = blank()
    sheet.line([(0, 0), (420, sheet.height)], width=2)
    [line] = sheet.figure.artists
    np.testing.assert_allclose(line.get_xydata(), [(0, 1), (1, 0)])
    assert line.get_linewidth() == pytest.approx(2 * 297 / 420)


# --- wrapping -------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", [{}, {"fontweight": "bold"}, {"fontstyle": "italic"}, {"family": "DejaVu Sans Mono"}])
@pytest.mark.parametrize("size", [5.5, 8.4, 16])
@pytest.mark.parametrize("paper", PAPERS)
def test_no_line_is_wider_than_its_box_and_none_is_broken_too_early(paper, size, style):
    sheet, width = blank(paper), 70
    lines = sheet.wrap(LONG, width, size, **style)
    assert " ".join(lines).split() == LONG.split()
    sheet.write(Box(20, 20, width, 200), LONG, size, **style)
    assert sheet.texts[-1][0].get_text() == "\n".join(lines)
    assert last(sheet).width <= width
    for line, following in list(itertools.pairwise(lines))[:3]:
        sheet.write(Box(0, 0, 1000, 20), f"{line} {following.split()[0]}", size, **style)
        assert last(sheet).width > 0.96 * width  # one word more would not have fitted


words = some.lists(some.text("abcdefghilmnoWMx.,-", min_size=1, max_size=9), min_size=1, max_size=40)


@settings(max_examples=40, deadline=None)
@given(words, some.floats(30, 120), some.floats(5.5, 12))
def test_any_words_wrap_within_the_width(words, width, size):
    sheet = blank()
    lines = sheet.wrap(" ".join(words), width, size)
    assert [word for line in lines for word in line.split()] == words
    sheet.write(Box(0, 0, width, 100), " ".join(words), size)
    assert last(sheet).width <= width or any(" " not in line for line in lines)  # a single word cannot be broken


def test_a_word_that_is_too_wide_stands_alone():
    assert blank().wrap("a " + "m" * 80 + " b", 30, 9) == ["a", "m" * 80, "b"]


def test_no_text_is_one_empty_line():
    assert blank().wrap("", 30, 9) == [""]


@pytest.mark.parametrize("style", [{}, {"fontweight": "bold"}, {"fontstyle": "italic"}, {"family": "DejaVu Sans Mono"}])
@pytest.mark.parametrize("paper", PAPERS)
def test_the_measured_width_is_the_drawn_width(paper, style):
    sheet, text = blank(paper), "Every curve is a real run, beside its healthy twin"
    for size in (6.0, 11.0, 30.0):
        sheet.write(Box(0, 0, 400, 30), text, size, **style)
        measured = sheet.text_width(text, size, **style)
        assert last(sheet).width <= measured <= 1.05 * last(sheet).width


# --- writing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("paper", PAPERS)
@pytest.mark.parametrize("size", [6, 9, 14])
def test_write_returns_the_height_that_the_text_takes(paper, size):
    sheet, box = blank(paper), Box(50, 50, 80, 200)
    height = sheet.write(box, LONG, size)
    place = last(sheet)
    assert place.height <= height + TOLERANCE
    assert place.height > 0.9 * height  # lines are drawn as far apart as the page reckons
    below = Box(50, 50 + height, 80, 150)
    sheet.write(below, LONG, size)
    assert not overlap(place, last(sheet))
    assert astray(sheet) == []


def test_more_lines_are_higher():
    sheet = blank()
    one, two = (sheet.write(Box(0, 0, width, 50), "two words", 9) for width in (100, 1))
    assert two == pytest.approx(2 * one)


def test_text_stands_left_right_or_in_the_middle():
    sheet, box = blank(), Box(100, 100, 60, 20)
    edges = {}
    for align in ("left", "center", "right"):
        sheet.write(box, "short", 9, align=align)
        edges[align] = last(sheet)
    assert edges["left"].x == pytest.approx(100, abs=0.5)
    assert edges["right"].x + edges["right"].width == pytest.approx(160, abs=0.5)
    assert edges["center"].x + edges["center"].width / 2 == pytest.approx(130, abs=0.5)
    assert all(place.y == pytest.approx(100, abs=1) for place in edges.values())


def test_type_has_the_same_share_of_every_paper():
    shares = []
    for paper in PAPERS:
        sheet = blank(paper)
        sheet.write(Box(0, 0, 400, 20), "The same words", 12, color="#112233")
        shares.append(last(sheet).width)
        assert sheet.texts[-1][0].get_color() == "#112233"
    assert shares == pytest.approx([shares[0]] * len(PAPERS), rel=0.02)


# --- the check itself: a text that leaves its box is seen -----------------------------------------


@pytest.mark.parametrize("paper", PAPERS)
def test_a_text_that_leaves_its_box_or_the_page_is_seen(paper):
    sheet = blank(paper)
    sheet.write(Box(20, 20, 60, 40), "This is in order.", 9)
    assert astray(sheet) == []
    sheet.write(Box(20, 60, 60, 8), LONG, 9)  # too many lines
    sheet.write(Box(20, 90, 10, 8), "Unbreakableunbreakable", 9)  # too wide
    sheet.write(Box(400, 20, 60, 8), "Beyond the edge of the page", 9)
    assert [text[:5] for text in astray(sheet)] == ["The g", "Unbre", "Beyon"]


def test_the_check_knows_inside_from_outside():
    outer = Box(0, 0, 10, 10)
    assert within(Box(0, 0, 10.2, 10), outer) and not within(Box(0, 0, 10.4, 10), outer)
    assert not within(Box(0, -0.4, 5, 5), outer) and not within(Box(-0.4, 0, 5, 5), outer)
    assert not within(Box(0, 6, 5, 5), outer)
    assert overlap(outer, Box(9, 9, 5, 5)) and not overlap(outer, Box(9.8, 0, 5, 5))
    assert not overlap(outer, Box(0, 10, 5, 5))


# --- paragraphs -----------------------------------------------------------------------------------

ITEMS = [("Looks like", LONG[:180]), ("Because", LONG[:130]), ("Cure", "a learning rate of 0.1")]


@pytest.mark.parametrize("paper", PAPERS)
@pytest.mark.parametrize("height", [18, 22, 80])
def test_paragraphs_shrink_until_they_fit(paper, height):
    sheet, box = blank(paper), Box(30, 30, 120, height)
    sheet.paragraphs(box, ITEMS, 9)
    assert astray(sheet) == []
    assert all(within(extent(sheet, text), box) for text, _ in sheet.texts)
    sizes = {round(text.get_fontsize() / sheet.scale, 3) for text, _ in sheet.texts}
    assert len(sizes) == 1  # labels and texts alike
    assert (sizes == {9}) == (height == 80)


def test_paragraphs_keep_labels_in_a_column_and_do_not_overlap():
    sheet, box = blank(), Box(30, 30, 120, 60)
    sheet.paragraphs(box, ITEMS, 9)
    places = [extent(sheet, text) for text, _ in sheet.texts]
    written = [text.get_text().replace("\n", " ") for text, _ in sheet.texts]
    assert written == [part for label, text in ITEMS for part in (label, " ".join(text.split()))]
    labels, texts = places[::2], places[1::2]
    assert max(place.x + place.width for place in labels) < min(place.x for place in texts)
    assert [text.get_fontweight() for text, _ in sheet.texts] == ["bold", "normal"] * 3
    assert not any(overlap(one, other) for one in places for other in places if one is not other)


def test_paragraphs_that_cannot_fit_stay_readable_and_are_seen_by_the_check():
    sheet = blank()
    sheet.paragraphs(Box(30, 30, 60, 10), ITEMS, 9, smallest=7)
    assert min(text.get_fontsize() for text, _ in sheet.texts) / sheet.scale >= 6.9
    assert astray(sheet)
