"""A pane as an inline SVG: what is seen before a script runs, or without one. Colours follow the theme of the page."""

import html
import math
from collections.abc import Callable
from typing import Any

WIDTH, HEIGHT = 380, 236
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 10, 38
INK = {"#000000": "var(--ink)", "#ffffff": "var(--paper)"}
Pane = dict[str, Any]
Scale = Callable[[float], float]


def picture(pane: Pane, alternative: str) -> str:
    """The pane with axes; its words are given to screen readers as one text."""
    words = html.escape(alternative, quote=True)
    if "picture" in pane:
        return f'<img class="pane-picture" src="{pane["picture"]}" alt="{words}" loading="lazy">'
    opening = f'<svg class="pane" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{words}">'
    if "x" not in pane:
        return f"{opening}{''.join(_note(note, None, None) for note in pane['notes'])}</svg>"
    across, up = scales(pane)
    parts = [_axes(pane, across, up)]
    parts += [_area(area, across, up) for area in pane.get("areas", ())]
    parts += [_shape(shape, across, up) for shape in pane.get("shapes", ())]
    parts += [_line(line, across, up) for line in pane.get("lines", ())]
    parts += [_note(note, across, up) for note in pane.get("notes", ())]
    return f"{opening}{''.join(parts)}</svg>"


def scales(pane: Pane) -> tuple[Scale, Scale]:
    across = _scale(pane["x"], LEFT, WIDTH - RIGHT)
    return across, _scale(pane["y"], HEIGHT - BOTTOM, TOP)


def _scale(axis: dict, start: float, end: float) -> Scale:
    low, high = axis["limits"]
    if axis["log"]:
        low, high = math.log10(low), math.log10(high)

    def pixel(value: float) -> float:
        if axis["log"]:
            if value <= 0:
                return start
            value = math.log10(value)
        share = (value - low) / ((high - low) or 1)
        return start + min(1.2, max(-0.2, share)) * (end - start)

    return pixel


def ticks(axis: dict, most: int) -> list[tuple[float, str]]:
    """Round places on an axis, and what is written there."""
    low, high = axis["limits"]
    if axis["log"]:
        first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
        if last - first >= 2:
            every = max(1, math.ceil((last - first) / most))
            return [(10.0**power, _power(power)) for power in range(first, last + 1, every)]
        places = [factor * 10.0**power for power in range(first - 1, last + 1) for factor in (1, 2, 5)]
        return [(place, f"{place:g}") for place in places if low <= place <= high]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    if axis.get("whole"):
        step = max(1.0, step)
    first = math.ceil(low / step - 1e-9)
    places = [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]
    return [(place, f"{100 * place:g} %" if axis.get("percent") else f"{place:.6g}") for place in places]


SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _power(power: int) -> str:
    return f"{10.0**power:g}" if -3 <= power <= 3 else "10" + str(power).translate(SUPERSCRIPTS)


def _axes(pane: Pane, across: Scale, up: Scale) -> str:
    parts = []
    for value, words in ticks(pane["y"], 5):
        y = f"{up(value):.1f}"
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y}" dy=".35em" text-anchor="end">{words}</text>')
    for value, words in ticks(pane["x"], 6):
        x = f"{across(value):.1f}"
        parts.append(f'<text class="tick" x="{x}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{words}</text>')
    bottom, label = HEIGHT - BOTTOM, html.escape(pane["x"]["label"])
    parts.append(f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{WIDTH - RIGHT}"/>')
    parts.append(f'<text class="tick" x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{label}</text>')
    middle, words = (TOP + bottom) / 2, html.escape(pane["y"]["label"].replace("\n", " "))
    turned = f'transform="rotate(-90 11 {middle})"'
    parts.append(f'<text class="tick" x="11" y="{middle}" dy=".3em" text-anchor="middle" {turned}>{words}</text>')
    return "".join(parts)


def colour(name: str) -> str:
    return INK.get(name, name)


def _place(thing: dict, x: float, y: float, across: Scale | None, up: Scale | None) -> tuple[float, float]:
    """A place in pixels; fractions of the axes where it says so."""
    if across is None or thing.get("xin"):
        px = LEFT + x * (WIDTH - LEFT - RIGHT) if across else 12 + x * (WIDTH - 24)
    else:
        px = across(x)
    if up is None or thing.get("yin"):
        py = HEIGHT - BOTTOM - y * (HEIGHT - BOTTOM - TOP) if up else HEIGHT - 12 - y * (HEIGHT - 24)
    else:
        py = up(y)
    return px, py


def _line(line: dict, across: Scale, up: Scale) -> str:
    places = [
        None if x is None or y is None else _place(line, x, y, across, up)
        for x, y in zip(line["x"], line["y"], strict=True)
    ]
    style = f'stroke="{colour(line["color"])}" opacity="{line.get("alpha", 1)}"'
    made = ""
    if "dash" in line:
        dash = "" if line["dash"] == "-" else ' stroke-dasharray="4 3"'
        made += f'<path class="curve" d="{_path(places)}" {style} stroke-width="{line["width"]:g}"{dash}/>'
    if "marker" in line:
        made += "".join(_mark(line, place) for place in places if place)
    return made


def _path(places: list[tuple[float, float] | None]) -> str:
    parts, pen = [], "M"
    for place in places:
        if place is None:
            pen = "M"
            continue
        parts.append(f"{pen}{place[0]:.1f} {place[1]:.1f}")
        pen = "L"
    return "".join(parts)


def _mark(line: dict, place: tuple[float, float]) -> str:
    x, y, size = place[0], place[1], line.get("size", 6) * 0.6
    if line["marker"] == "X":
        left, right, high, low = (f"{value:.1f}" for value in (x - size, x + size, y - size, y + size))
        cross = f"M{left} {high}L{right} {low}M{left} {low}L{right} {high}"
        return f'<path d="{cross}" stroke="{colour(line["color"])}" stroke-width="3"/>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size:.1f}" fill="{colour(line["color"])}"/>'


def _area(area: dict, across: Scale, up: Scale) -> str:
    pairs = zip(area["x"], area["y"], strict=True)
    places = [(across(x), up(y)) for x, y in pairs if x is not None and y is not None]
    return f'<path d="{_path([*places])}Z" fill="{colour(area["color"])}" opacity="{area["alpha"]:g}"/>'


def _shape(shape: dict, across: Scale, up: Scale) -> str:
    if shape["height"] is None:
        return ""
    left, low = _place(shape, shape["x"], shape["y"], across, up)
    right, high = _place(shape, shape["x"] + shape["width"], shape["y"] + shape["height"], across, up)
    bottom = HEIGHT - BOTTOM
    low, high = min(max(low, TOP), bottom), min(max(high, TOP), bottom)
    size = f'width="{abs(right - left):.1f}" height="{abs(low - high):.1f}"'
    edge = f' stroke="{colour(shape["edge"])}"' if "edge" in shape else ""
    size += f' x="{min(left, right):.1f}" y="{min(low, high):.1f}"'
    return f'<rect {size} fill="{colour(shape["color"])}" opacity="{shape["alpha"]:g}"{edge}/>'


def _note(note: dict, across: Scale | None, up: Scale | None) -> str:
    x, y = _place(note, note["x"], note["y"], across, up)
    anchor = {"left": "start", "center": "middle", "right": "end"}[note["align"]]
    weight = ' font-weight="700"' if note.get("bold") else ""
    fill = "var(--ink)" if note.get("box") else colour(note["color"])
    x, y = x + note.get("dx", 0), y - note.get("dy", 0)
    lines = note["text"].split("\n")
    spans = "".join(
        f'<tspan x="{x:.1f}" dy="{"0" if number == 0 else "1.25em"}">{html.escape(words)}</tspan>'
        for number, words in enumerate(lines)
    )
    return f'<text x="{x:.1f}" y="{y:.1f}" dy=".3em" text-anchor="{anchor}" fill="{fill}"{weight}>{spans}</text>'


def sparkline(lines: list[dict], alternative: str = "") -> str:
    """A thumbnail without axes: the loss on a log scale, from 0.03 to 4 at least, so that flat looks flat."""
    values = [value for line in lines for value in line["y"] if value is not None and value > 0]
    low, high = min([*values, 0.03]), min(max([*values, 4.0]), 1e6)
    steps = [value for line in lines for value in line["x"] if value is not None]
    axis = {"x": {"log": False, "limits": [min(steps), max(steps)]}, "y": {"log": True, "limits": [low, high]}}
    across, up = _scale(axis["x"], 3, 157), _scale(axis["y"], 67, 5)
    paths = "".join(f'<path class="curve {line["role"]}" d="{_thumbnail(line, across, up)}"/>' for line in lines)
    name = f'role="img" aria-label="{html.escape(alternative, quote=True)}"' if alternative else 'aria-hidden="true"'
    return f'<svg class="spark" viewBox="0 0 160 72" {name}>{paths}</svg>'


def _thumbnail(line: dict, across: Scale, up: Scale) -> str:
    """A curve; or a cross at the top, where the run ends without a finite loss."""
    if line["role"] != "end":
        return _path(_positive(line, across, up))
    x = max(8.0, across(line["x"][0]))
    return f"M{x - 4:.1f} 5L{x + 4:.1f} 13M{x - 4:.1f} 13L{x + 4:.1f} 5"


def _positive(line: dict, across: Scale, up: Scale) -> list:
    pairs = zip(line["x"], line["y"], strict=True)
    return [(across(x), up(y)) if x is not None and y is not None and y > 0 else None for x, y in pairs]


def alternative(pane: Pane, subject: str) -> str:
    """The pane in words: what it shows, and from where to where each line goes."""
    if "alt" in pane:
        return f"{pane['title']}: {pane['alt']}"
    named = [line for line in pane.get("lines", ()) if line["label"] and not line["label"].startswith("_")]
    parts = []
    for line in named:
        values = [value for value in line["y"] if value is not None]
        if values:
            end = line["y"][-1]
            last = "a value that is not finite" if end is None else f"{end:g}"
            parts.append(f"{line['label']} from {values[0]:g} to {last}")
    bars = dict.fromkeys(shape["label"] for shape in pane.get("shapes", ()) if shape.get("label"))
    parts += [f"bars of the {label} run" for label in bars]
    parts += [note["text"].replace("\n", " ") for note in pane.get("notes", ())]
    return f"{subject}. {pane['title']}: {'; '.join(parts)}."
