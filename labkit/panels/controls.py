"""The controls of panels: a slider, menu or checkbox for each knob of a recipe, and the buttons."""

import math
from collections.abc import Callable

import ipywidgets

from labkit.failures.mode import Knob
from labkit.training.recipe import Recipe
from labkit.training.rules import Flag, OneOf

# Knobs that the knob panel offers beyond the failure mode's own, with ranges in which a run of 400 steps shows
# something; an empty range offers every value that the recipe knows.
STANDARD = (
    Knob("lr", (1e-6, 10.0), log=True),
    Knob("optimizer", ()),
    Knob("schedule", ()),
    Knob("momentum", (0.0, 0.99)),
    Knob("clip", (None, 0.1, 0.5, 1.0, 5.0)),
    Knob("batch_size", (8, 512), log=True),
    Knob("steps", (50, 1000)),
    Knob("samples", (100, 10_000), log=True),
    Knob("model", ()),
    Knob("depth", (1, 16)),
    Knob("width", (8, 512), log=True),
    Knob("activation", ()),
    Knob("init", ()),
    Knob("normalisation", ()),
    Knob("residual", ()),
    Knob("dropout", (0.0, 0.9)),
    Knob("weight_decay", (0.0, 0.1)),
    Knob("label_noise", (0.0, 1.0)),
    Knob("augment", ()),
    Knob("inputs", ()),
    Knob("precision", ()),
    Knob("loss_scale", (None, 1024.0, "dynamic")),
    Knob("seed", (0, 20)),
)
WIDE = {"description_width": "7.2em"}
LAYOUT = {"width": "auto"}
OFF = "off"
FINE = 0.02  # decades between two marks of a slider: fine enough for two digits, coarse enough for arrow keys


class Control:
    """A widget for one knob. Until the user turns it, its value is exactly the recipe's, not rounded to the slider."""

    def __init__(self, knob: Knob, value, kind: type[Recipe] = Recipe):
        """`kind`: the class of the recipe, which says what the knob means and which values it can have."""
        self.name, self.exact = knob.name, value
        self.widget = _widget(knob, value, kind)
        self.widget.add_class(f"labkit-knob-{knob.name}")
        self.shown = self.widget.value  # a slider may show a value that is only near the recipe's

    @property
    def value(self):
        now = self.widget.value
        if now == self.shown or _as_shown(now, self.shown):
            return self.exact
        if now == OFF:
            return None
        return float(f"{now:.2g}") if isinstance(self.widget, ipywidgets.FloatLogSlider) else now

    @value.setter
    def value(self, value) -> None:
        if self.value != value:  # else it stays where the user put it: arrow keys could not leave a rounded value
            self.widget.value = self._nearest(value)
        self.exact, self.shown = value, self.widget.value

    def _nearest(self, value):
        """The value that this widget can show; its range is extended if necessary."""
        widget = self.widget
        if hasattr(widget, "options"):
            if _option(value) not in widget.options:
                widget.options = (*widget.options, _option(value))
            return _option(value)[1]
        if isinstance(widget, ipywidgets.FloatLogSlider):
            power = math.log10(value) if value > 0 else widget.min
            widget.min, widget.max = min(widget.min, math.floor(power)), max(widget.max, math.ceil(power))
            return on_grid(power)
        if hasattr(widget, "min") and value is not None:
            widget.min, widget.max = min(widget.min, value), max(widget.max, value)
        return value


def _as_shown(now, shown) -> bool:
    """Whether this is the shown value, up to the rounding of the browser that sends it back."""
    numbers = isinstance(now, float) and isinstance(shown, float)
    return numbers and math.isclose(now, shown, rel_tol=1e-6)


def _option(value) -> tuple:
    """A choice as (label, value). For a menu None means "nothing chosen", so that the value None is called "off"."""
    if value is None:
        return OFF, OFF
    return (value.replace("_", " ") if isinstance(value, str) else f"{value:,g}"), value


def _widget(knob: Knob, value, kind: type[Recipe]) -> ipywidgets.Widget:
    about = kind.__dataclass_fields__[knob.name].metadata
    rule = about.get("rule")
    common = {"description": knob.name.replace("_", " "), "style": WIDE, "layout": LAYOUT, "tooltip": about["meaning"]}
    if isinstance(rule, Flag):
        return ipywidgets.Checkbox(value=value, indent=True, **common)
    values = knob.values or (rule.names if isinstance(rule, OneOf) else tuple(about["known"]))
    numbers = all(isinstance(each, int | float) for each in (*values, value))
    if len(values) != 2 or not numbers:  # a list of choices; two numbers are the ends of a slider
        choices = [_option(each) for each in dict.fromkeys([*values, value])]
        return ipywidgets.Dropdown(options=choices, value=_option(value)[1], **common)
    return _slider(values, value, knob.log, rule.whole, common | {"continuous_update": False})


def _slider(ends: tuple, value, log: bool, whole: bool, common: dict) -> ipywidgets.Widget:
    low, high = min(*ends, value), max(*ends, value)
    if log and whole:
        options = [_option(each) for each in sorted({*round_numbers(low, high), value})]
        return ipywidgets.SelectionSlider(options=options, value=value, **common)
    if log:
        powers = math.floor(math.log10(low)), math.ceil(math.log10(high))
        ends = {"min": powers[0], "max": powers[1], "step": FINE, "readout_format": ".2g"}
        return ipywidgets.FloatLogSlider(value=on_grid(math.log10(value)), **ends, **common)
    if whole:
        return ipywidgets.IntSlider(value=value, min=low, max=high, step=max(1, (high - low) // 50), **common)
    return ipywidgets.FloatSlider(
        value=value, min=low, max=high, step=(high - low) / 50, readout_format=".2g", **common
    )


def on_grid(power: float) -> float:
    """The value at the nearest mark of a log slider: a browser moves any other value there and reports a change."""
    return 10.0 ** (round(power / FINE) * FINE)


def round_numbers(low: float, high: float) -> list[int]:
    """1, 2, 5, 10, 20, 50 ... between two ends, and the ends."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    between = [digit * 10**power for power in powers for digit in (1, 2, 5) if low <= digit * 10**power <= high]
    return sorted({int(low), *between, int(high)})


def button(words: str, icon: str, tooltip: str, pressed: Callable[[], None], style: str = "") -> ipywidgets.Button:
    made = ipywidgets.Button(description=words, icon=icon, tooltip=tooltip, button_style=style)
    made.layout.width = "auto"
    made.on_click(lambda _: pressed())
    return made


def run_button(pressed: Callable[[], None], tooltip: str = "train with these settings") -> ipywidgets.Button:
    made = button("Run", "play", tooltip, pressed, "primary")
    made.add_class("labkit-run")
    return made


def stop_button(pressed: Callable[[], None], tooltip: str = "stop the run that is training") -> ipywidgets.Button:
    made = button("Stop", "stop", tooltip, pressed)
    made.add_class("labkit-stop")
    return made
