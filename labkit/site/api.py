"""The reference of the public names, from their docstrings."""

import html
import importlib
import inspect
import re
import textwrap
from typing import Any

import labkit
from labkit.site import text
from labkit.site.page import Page
from labkit.site.sources import Sources

ROOMS = {
    "training": "Recipes and training",
    "recording": "Runs and recording",
    "failures": "The catalogue",
    "diagnosis": "Diagnosis and treatment",
    "tools": "Tools for any model",
    "drawing": "Drawing",
    "course": "Course",
    "panels": "Panels",
    "adapters": "Other libraries",
}


def pages(sources: Sources) -> list[Page]:
    known = public()
    return [index(known), *(page_of(name, thing, known) for name, thing in known.items())]


def public() -> dict[str, Any]:
    """Every public name of labkit and what it is, with the tools that are called by their full name."""
    found = {name: getattr(labkit, name) for name in labkit.__all__ if not name.startswith("__")}
    return found | {f"tools.{name}": thing for name, thing in tools().items() if name not in found}


def tools() -> dict[str, Any]:
    """The tools that are called by their full name, such as labkit.tools.causality."""
    module = importlib.import_module("labkit.tools")
    names = getattr(module, "__all__", ())
    return {name: getattr(module, name) for name in names}


def room_of(thing: Any, name: str) -> str:
    module = thing.__name__ if inspect.ismodule(thing) else getattr(thing, "__module__", "") or ""
    if not module.startswith("labkit."):
        module = "labkit." + labkit._HOME.get(name, "")
    return module.split(".")[1]


def index(known: dict[str, Any]) -> Page:
    rooms: dict[str, list] = {title: [] for title in ROOMS.values()}
    for name, thing in known.items():
        title = ROOMS.get(room_of(thing, name), "More")
        rooms.setdefault(title, []).append((name, signature(name, thing), sentence(thing)))
    return Page(
        "api/index.html",
        "API reference",
        "Every public name of labkit with its signature: watch, diagnose, treat, checkup, find_lr, recipes, runs "
        "and the catalogue.",
        "api.html",
        "use",
        {"rooms": {title: rows for title, rows in rooms.items() if rows}},
        kind="reference",
    )


def page_of(name: str, thing: Any, known: dict[str, Any]) -> Page:
    about = documentation(thing)
    page = Page(
        f"api/{name}.html",
        f"labkit.{name}",
        text.shortened(text.plain(about)) or f"labkit.{name}",
        "name.html",
        "use",
        kind="reference",
        words=f"{name} {text.plain(about)}",
    )
    page.content.update(
        name=name,
        signature=text.highlighted(signature(name, thing)),
        body=docstring_html(about, known, page),
        parameters=parameters(thing),
        members=[(each, *member_html(each, member, known, page)) for each, member in members(thing)],
    )
    return page


def member_html(name: str, member: Any, known: dict[str, Any], page: Page) -> tuple[str, str]:
    """How a member is called, and its docstring."""
    return text.highlighted(signature(name, member, own=True)), docstring_html(documentation(member), known, page)


def documentation(thing: Any) -> str:
    """Its docstring; of a value, that of its type, and of a dictionary its entries say enough."""
    found = (
        inspect.getdoc(thing)
        if callable(thing) or inspect.ismodule(thing) or isinstance(thing, property)
        else inspect.getdoc(type(thing))
    )
    return found or ""


def sentence(thing: Any) -> str:
    """The first sentence of its docstring."""
    return re.split(r"(?<=\.)\s", " ".join(documentation(thing).split("\n\n")[0].split()), maxsplit=1)[0]


LONG = 88


def signature(name: str, thing: Any, own: bool = False) -> str:
    """How it is called, one argument per line where it is long."""
    title = name if own else f"labkit.{name}"
    if isinstance(thing, property) or not callable(thing):
        return title
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return title
    entries = [each for each in found.parameters.values() if each.name not in ("self", "cls")]
    found = found.replace(parameters=[_readable(each) for each in entries], return_annotation=found.return_annotation)
    words = re.sub(r"labkit\.[\w.]*\.(\w+)|'([\w.\[\], |]+)'", lambda one: one[1] or one[2], str(found))
    words = words.replace("collections.abc.", "").replace("typing.", "").replace("torch.nn.modules.module.", "nn.")
    if len(title + words) <= LONG:
        return title + words
    return f"{title}({_one_per_line(words)}"


def _readable(entry: inspect.Parameter) -> inspect.Parameter:
    """With a function as its default by name: its address says nothing and differs between builds."""
    default = entry.default
    if default is not inspect.Parameter.empty and (callable(default) or " at 0x" in repr(default)):
        return entry.replace(default=_Named(getattr(default, "__name__", type(default).__name__)))
    return entry


class _Named:
    def __init__(self, words: str):
        self.words = words

    def __repr__(self) -> str:
        return self.words


def _one_per_line(words: str) -> str:
    inside, depth, parts, start = words[1:], 0, [], 0
    for place, letter in enumerate(inside):
        depth += letter in "([{"
        if letter in ")]}" and depth == 0:
            parts.append(inside[start:place].strip())
            return "\n    " + ",\n    ".join(filter(None, parts)) + ",\n" + inside[place:]
        depth -= letter in ")]}"
        if letter == "," and depth == 0:
            parts.append(inside[start:place].strip())
            start = place + 1
    return words


def parameters(thing: Any) -> list[tuple[str, str, str]]:
    """(name, default, meaning) of the entries of a recipe, which know what they are."""
    fields = getattr(thing, "__dataclass_fields__", {}) if inspect.isclass(thing) else {}
    return [
        (name, _default(each.default), each.metadata["meaning"])
        for name, each in fields.items()
        if "meaning" in each.metadata
    ]


def _default(value: Any) -> str:
    return getattr(value, "__name__", repr(value))


def members(thing: Any) -> list[tuple[str, Any]]:
    """Public methods and properties of a class, and functions of a module, that are labkit's own."""
    if not inspect.isclass(thing) and not inspect.ismodule(thing):
        return []
    found = []
    for name, member in vars(thing).items():
        plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        known = isinstance(plain, property) or inspect.isfunction(plain)
        here = not inspect.ismodule(thing) or getattr(plain, "__module__", "") == thing.__name__
        if known and here and not name.startswith("_"):
            found.append((name, plain))
    return found


def docstring_html(about: str, known: dict[str, Any], page: Page) -> str:
    """Paragraphs; what is indented is code; names of the reference become links."""
    parts = []
    for block in re.split(r"\n\s*\n", about):
        if not block.strip():
            continue
        if all(line.startswith("    ") for line in block.splitlines() if line.strip()):
            parts.append(text.highlighted(textwrap.dedent(block)))
        elif re.match(r"\s*>>> ", block):
            parts.append(text.highlighted(block, "pycon"))
        else:
            parts.append(f"<p>{_inline(block, known, page)}</p>")
    return "".join(parts)


def _inline(words: str, known: dict[str, Any], page: Page) -> str:
    made = html.escape(" ".join(words.split()))

    def code(found: re.Match) -> str:
        name = found[1].removeprefix("labkit.").split("(")[0]
        if name in known and f"api/{name}.html" != page.path:
            return f'<a href="{page.link(f"api/{name}.html")}"><code>{found[1]}</code></a>'
        return f"<code>{found[1]}</code>"

    return re.sub(r"`([^`]+)`", code, made)
