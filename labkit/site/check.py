"""What must hold for a built site: every link leads somewhere, every picture is described, every page has its head."""

import posixpath
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

LIMIT = 400_000  # bytes of a mode page before its interactive part
VOID = {"img", "input", "br", "hr", "meta", "link", "source", "wbr", "col"}


class Reader(HTMLParser):
    """The links, names and pictures of a page, and whether its elements are closed."""

    def __init__(self, source: str):
        super().__init__()
        self.links: list[str] = []
        self.names: list[str] = []
        self.undescribed: list[str] = []
        self.headings: list[int] = []
        self.seen: Counter[str] = Counter()
        self.open: list[str] = []
        self.unclosed: list[str] = []
        self.feed(source)
        self.unclosed += self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.seen[tag] += 1
        if tag not in VOID and not self._svg():
            self.open.append(tag)
        for name in ("href", "src"):
            if (address := given.get(name)) is not None:
                self.links.append(address)
        if given.get("id"):
            self.names.append(given["id"] or "")
        if tag == "img" and not (given.get("alt") or "").strip():
            self.undescribed.append(f"img {given.get('src', '')[:60]}")
        if tag == "svg" and given.get("aria-hidden") != "true" and not (given.get("aria-label") or "").strip():
            self.undescribed.append("svg without a name")
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))

    def _svg(self) -> bool:
        return "svg" in self.open or "math" in self.open

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        before = len(self.open)
        self.handle_starttag(tag, attrs)
        del self.open[before:]

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            while self.open and (last := self.open.pop()) != tag:
                if last not in ("p", "li", "td", "th", "tr"):
                    self.unclosed.append(last)


def problems(folder: Path) -> list[str]:
    """What is wrong with a built site; empty for a good one."""
    pages = {
        path.relative_to(folder).as_posix(): Reader(path.read_text(encoding="utf-8"))
        for path in sorted(folder.rglob("*.html"))
    }
    found = []
    for name, page in pages.items():
        found += [f"{name}: {words}" for words in of_page(page)]
        found += [
            f"{name}: link {address!r}: {why}" for address in page.links if (why := lost(name, address, pages, folder))
        ]
    heavy = {name: weight(folder, name, page) for name, page in pages.items() if name.startswith("modes/")}
    return found + [
        f"{name}: {size:,} bytes before its interactive part" for name, size in heavy.items() if size > LIMIT
    ]


def of_page(page: Reader) -> list[str]:
    found = [f"no description of {each}" for each in page.undescribed]
    found += [f"the id {name!r} stands {count} times" for name, count in Counter(page.names).items() if count > 1]
    found += (
        []
        if page.seen["title"] and page.headings.count(1) == 1
        else [f"{page.headings.count(1)} headings of the first level"]
    )
    jumps = [
        (before, after) for before, after in zip(page.headings, page.headings[1:], strict=False) if after > before + 1
    ]
    found += [f"a heading of level {after} below one of level {before}" for before, after in jumps]
    return found + [f"<{tag}> is not closed" for tag in page.unclosed]


def lost(name: str, address: str, pages: dict[str, Reader], folder: Path) -> str:
    """Why an address leads nowhere; empty if it does not, or is elsewhere."""
    if re.match(r"[a-z]+:", address):
        return ""
    place, _, fragment = address.partition("#")
    target = (
        posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(place.partition("?")[0]))) if place else name
    )
    if target not in pages and not (folder / target).is_file():
        return "no such file"
    if fragment and target in pages and unquote(fragment) not in pages[target].names:
        return f"no {fragment!r} there" if not fragment.count("=") else ""
    return ""


def weight(folder: Path, name: str, page: Reader) -> int:
    """Bytes of a page, its styles and the scripts that it always loads."""
    parts = {
        posixpath.normpath(posixpath.join(posixpath.dirname(name), address))
        for address in page.links
        if address.endswith((".css", ".js"))
    }
    return sum((folder / part).stat().st_size for part in [name, *sorted(parts)] if (folder / part).is_file())
