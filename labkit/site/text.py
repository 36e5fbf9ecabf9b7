"""Markdown, code and formulas as HTML, with the links of the repository turned into those of the site."""

import html
import posixpath
import re
from collections.abc import Callable
from urllib.parse import unquote

from labkit.errors import optional

NEEDS = {"extra": "site", "feature": "labkit site"}
Link = Callable[[str], str | None]  # an address of the source -> that of the site; None drops the link


def slug(words: str) -> str:
    """The name of a heading in a link, as GitHub makes it."""
    kept = re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", words).strip().lower())
    return kept.replace(" ", "-")


def plain(markdown: str) -> str:
    """Markdown as words, for descriptions and for the search."""
    text = re.sub(r"```.*?```", " ", markdown, flags=re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"<[^>]+>|[`*#|>]|^\s*[-:| ]+$", " ", text, flags=re.MULTILINE)
    return re.sub(r"(?<=\w) ([.,;:?!)])(?=\s|$)", r"\1", " ".join(text.split()))


def shortened(words: str, most: int = 158) -> str:
    """The beginning of a text, ending with a whole word."""
    return words if len(words) <= most else words[: most - 1].rsplit(" ", 1)[0].rstrip(",;:") + "…"


def highlighted(code: str, language: str = "python") -> str:
    """Code in colours; as plain text where the language is unknown."""
    pygments = optional("pygments", **NEEDS)
    lexers, formatters = optional("pygments.lexers", **NEEDS), optional("pygments.formatters", **NEEDS)
    try:
        lexer = lexers.get_lexer_by_name(language or "text")
    except pygments.util.ClassNotFound:
        lexer = lexers.get_lexer_by_name("text")
    body = pygments.highlight(code, lexer, formatters.HtmlFormatter(nowrap=True))
    return f'<div class="code"><pre tabindex="0"><code>{body.rstrip()}</code></pre></div>'


# Formulas as in a notebook, $$on lines of their own$$ and $within a line$; a dollar in code is none of them.
MATH = re.compile(
    r"(?P<code>```.*?```|`[^`\n]*`)|\$\$(?P<block>.+?)\$\$"
    r"|(?<![\\\w$])\$(?P<inline>[^\s$](?:[^$\n]*[^\s$])?)\$(?![\w$])",
    re.DOTALL,
)
HELD = "\ue000{}\ue001"  # stands for a formula while Markdown is read, which would take its backslashes and underscores


def formula(latex: str, display: str = "block") -> str:
    """A formula as MathML, which browsers draw and screen readers read; a block scrolls where it is too wide."""
    made = optional("latex2mathml.converter", **NEEDS).convert(latex, display=display)
    return f'<span class="formula">{made}</span>' if display == "block" else made


def headings(page: str) -> list[tuple[str, str]]:
    """(name, words) of the second-level headings of a piece of HTML, for a list of contents."""
    return re.findall(r'<h2 id="([^"]+)">(.*?)</h2>', page)


def arrows(changes: str) -> str:
    """lr 0.1 -> 10 as it is printed: lr 0.1 → 10."""
    return changes.replace(" -> ", " → ")


def without_formulas(markdown: str) -> tuple[str, list[str]]:
    """(The text with a place holder for each formula, the formulas as MathML)."""
    made: list[str] = []

    def held(found: re.Match) -> str:
        if found["code"]:
            return found[0]
        made.append(formula(found["block"]) if found["block"] else formula(found["inline"], "inline"))
        return HELD.format(len(made) - 1)

    return MATH.sub(held, markdown), made


def rendered(markdown: str, link: Link, lowest: int = 1, names: set[str] | None = None) -> str:
    """Markdown as HTML. Headings get names; the first level becomes `lowest`.

    `names`: those taken on the page already, where it is made of several pieces.
    """
    parser = (
        optional("markdown_it", **NEEDS).MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    )
    markdown, formulas = without_formulas(markdown)
    tokens, names = parser.parse(markdown), set() if names is None else names
    for number, token in enumerate(tokens):
        if token.type == "heading_open":
            name = unused(slug(tokens[number + 1].content), names)
            token.attrSet("id", name)
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + lowest - 1)}"
        for child in token.children or ():
            relink(child, link)
    made = parser.renderer.render(without_lost_links(tokens), parser.options, {})
    made = re.sub(r'<pre><code(?: class="language-(\w+)")?>(.*?)</code></pre>', _code, made, flags=re.DOTALL)
    for number, each in enumerate(formulas):
        made = made.replace(HELD.format(number), each)
    return made.replace("<table>", '<div class="table" tabindex="0"><table>').replace("</table>", "</table></div>")


def _code(found: re.Match) -> str:
    return highlighted(html.unescape(found[2]), found[1] or "text")


def unused(name: str, names: set[str]) -> str:
    """The name, with a number where it was taken."""
    made, count = name, 0
    while made in names:
        count += 1
        made = f"{name}-{count}"
    names.add(made)
    return made


LOST = "labkit-lost"


def relink(token, link: Link) -> None:
    """The address of a link or picture, as the site has it."""
    name = {"link_open": "href", "image": "src"}.get(token.type)
    if name is None:
        return
    address = unquote(token.attrGet(name) or "")
    if re.match(r"[a-z]+:", address) or address.startswith("#"):
        return
    found = link(address)
    token.attrSet(name, LOST if found is None else found)


def without_lost_links(tokens: list) -> list:
    """A link to what the site does not have becomes its words."""
    for token in tokens:
        kept, open_links = [], []
        for child in token.children or ():
            if child.type == "link_open":
                open_links.append(child.attrGet("href") == LOST)
                lost = open_links[-1]
            elif child.type == "link_close":
                lost = open_links.pop()
            else:
                lost = False
            kept += [] if lost else [child]
        if token.children is not None:
            token.children = kept
    return tokens


def joined(folder: str, address: str) -> tuple[str, str]:
    """(path from the top of the repository, fragment) of an address in a file of this folder."""
    place, mark, fragment = address.partition("#")
    return posixpath.normpath(posixpath.join(folder, place)), mark + fragment
