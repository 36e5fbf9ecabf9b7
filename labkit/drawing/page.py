"""A page measured in millimetres from its upper left corner, with text that wraps and stays in its box."""

from dataclasses import dataclass, field

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch
from matplotlib.text import Text

PAPERS = {"a4": (297, 210), "a3": (420, 297), "letter": (279.4, 215.9)}  # millimetres, landscape
DESIGN_WIDTH = 420  # pages are designed for A3; on other paper sizes everything scales with the width
INCH, POINTS = 25.4, 72 / 25.4  # millimetres per inch, points per millimetre
LEADING = 1.15  # distance of lines over type size, as matplotlib 3.11 draws it (3.10: a little less)
INK = "#1a1a1a"
DOTS = 300  # per inch of A3, the same number on smaller paper: with fewer, glyphs are rounded to pixels and text grows


@dataclass(frozen=True)
class Box:
    """A rectangle on the page, in design millimetres, y downwards."""

    x: float
    y: float
    width: float
    height: float

    def inset(self, left: float, top: float, right: float | None = None, bottom: float | None = None) -> "Box":
        right, bottom = left if right is None else right, top if bottom is None else bottom
        return Box(self.x + left, self.y + top, self.width - left - right, self.height - top - bottom)


@dataclass
class Sheet:
    """One page. `texts` keeps every text with the box it must stay in, so that a test can check."""

    paper: str = "a3"
    texts: list[tuple[Text, Box]] = field(default_factory=list)

    def __post_init__(self):
        width, height = PAPERS[self.paper]
        self.scale = width / DESIGN_WIDTH
        self.width, self.height = DESIGN_WIDTH, height / self.scale
        self.figure = Figure(figsize=(width / INCH, height / INCH), dpi=DOTS / self.scale)
        self.renderer = FigureCanvasAgg(self.figure).get_renderer()
        self._pixels: dict[tuple, float] = {}  # text and style -> width at size 100; shrinking asks for it again

    def axes(self, box: Box) -> Axes:
        return self.figure.add_axes(self._place(box))

    def panel(self, box: Box, color: str, edge: str = "none", radius: float = 1.2) -> None:
        """A filled rectangle with round corners."""
        left, bottom, width, height = self._place(box)
        shape = FancyBboxPatch(
            (left, bottom), width, height, boxstyle=f"round,pad=0,rounding_size={radius / self.width}", facecolor=color,
            edgecolor=edge, linewidth=0.8 * self.scale, transform=self.figure.transFigure, zorder=-2,
            mutation_aspect=self.width / self.height,
        )  # fmt: skip
        self.figure.add_artist(shape)

    def line(self, points: list[tuple[float, float]], color: str = INK, width: float = 0.8, **style) -> None:
        across, down = zip(*points, strict=True)
        line = Line2D(
            [x / self.width for x in across], [1 - y / self.height for y in down], color=color,
            linewidth=width * self.scale, transform=self.figure.transFigure, **style,
        )  # fmt: skip
        self.figure.add_artist(line)

    def write(self, box: Box, text: str, size: float, *, color: str = INK, align: str = "left", **style) -> float:
        """Wrap the text into the box, from its top; returns the height it took."""
        lines = self.wrap(text, box.width, size, **style)
        place = {"left": box.x, "center": box.x + box.width / 2, "right": box.x + box.width}[align]
        artist = self.figure.text(
            place / self.width, 1 - box.y / self.height, "\n".join(lines), fontsize=size * self.scale, color=color,
            ha=align, va="top", linespacing=LEADING, **style,
        )  # fmt: skip
        self.texts.append((artist, box))
        return len(lines) * self.line_height(size)

    def paragraphs(self, box: Box, items: list[tuple[str, str]], size: float, smallest: float = 5.5) -> None:
        """(label, text) pairs below one another, labels bold in a column; type shrinks until everything fits."""
        while size > smallest and self._paragraphs_height(box, items, size) > box.height:
            size -= 0.1
        column = self._label_column(items, size)
        y = box.y
        for label, text in items:
            rest = Box(box.x + column, y, box.width - column, box.y + box.height - y)
            self.write(Box(box.x, y, column, rest.height), label, size, fontweight="bold")
            y += self.write(rest, text, size) + 0.25 * self.line_height(size)

    def wrap(self, text: str, width: float, size: float, **style) -> list[str]:
        lines = [""]
        for word in text.split():
            longer = f"{lines[-1]} {word}".strip()
            if lines[-1] and self.text_width(longer, size, **style) > width:
                lines.append(word)
            else:
                lines[-1] = longer
        return lines

    def text_width(self, text: str, size: float, **style) -> float:
        """In millimetres; measured at a large size, because small type is rounded to whole pixels, and only once."""
        look = tuple(style.get(name) for name in ("fontweight", "fontstyle", "family"))
        if (text, look) not in self._pixels:
            weight, slant, family = look
            font = FontProperties(size=100, weight=weight, style=slant, family=family)
            self._pixels[text, look] = self.renderer.get_text_width_height_descent(text, font, ismath=False)[0]
        return self._pixels[text, look] / self.figure.dpi * INCH * size / 100 * 1.02  # some slack

    @staticmethod
    def line_height(size: float) -> float:
        return size * LEADING / POINTS

    def _label_column(self, items, size: float) -> float:
        return max(self.text_width(label, size, fontweight="bold") for label, _ in items) + 1.5

    def _paragraphs_height(self, box: Box, items, size: float) -> float:
        width = box.width - self._label_column(items, size)
        return sum((len(self.wrap(text, width, size)) + 0.25) * self.line_height(size) for _, text in items)

    def _place(self, box: Box) -> tuple[float, float, float, float]:
        """Left, bottom, width and height as fractions of the figure, as matplotlib expects."""
        bottom = 1 - (box.y + box.height) / self.height
        return box.x / self.width, bottom, box.width / self.width, box.height / self.height
