"""Builds the site: gathers the pages, fills the templates, writes the files, and checks what was written."""

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from labkit import __version__
from labkit.errors import RecipeError, optional
from labkit.failures.catalogue import FAILURES
from labkit.recording.files import written_whole
from labkit.site import api, bundle, check, documents, home, lessons, modes, play, recorded, search, symptoms, text
from labkit.site.page import Page
from labkit.site.sources import Sources

HERE = Path(__file__).parent
TEMPLATES, ASSETS = HERE / "templates", HERE / "assets"
CHART = HERE.parent / "panels"  # the chart of the panels is that of the site
MARK = ".labkit-site"  # a file in a folder that a site was built in, which may be emptied for the next
NAVIGATION = (
    ("symptoms", "What do you see?", "symptoms.html"),
    ("modes", "Failures", "modes/index.html"),
    ("play", "Play", "play/index.html"),
    ("diagnose", "Diagnose your run", "diagnose/index.html"),
    ("course", "Course", "course/index.html"),
    ("use", "Use it", "use/index.html"),
    ("evidence", "Evidence", "evidence/index.html"),
)


@dataclass(frozen=True)
class Built:
    """A site that was built: where, how many pages, how large, how long it took, and what is wrong with it."""

    folder: Path
    pages: list[str]
    bytes: int
    seconds: float
    trained: list[str]  # what was recorded again, because its record was out of date
    problems: list[str]

    def __str__(self) -> str:
        trained = f"; recorded again: {', '.join(self.trained)}" if self.trained else ""
        return f"{len(self.pages)} pages, {self.bytes / 1e6:.1f} MB, in {self.seconds:.0f} s: {self.folder}{trained}"


def build(
    out: str | Path = "site",
    *,
    root: Path = Path(),
    url: str = "",
    pyodide: str | Path | None = None,
    record: bool = False,
    say: Callable[[str], None] = lambda words: None,
) -> Built:
    """Build the site of the clone `root` in the folder `out`.

    `url` is where it will be published: it makes addresses for search engines. `pyodide` is a folder with Pyodide and
    numpy, copied into the site; without it, the page Diagnose takes them from the public CDN. With `record`, runs that
    are not recorded yet are trained now; without it, their pages have no curves and say so.
    """
    begun = time.monotonic()
    for name in ("jinja2", "markdown_it", "pygments", "latex2mathml"):
        optional(name, **text.NEEDS)
    if pyodide and not (Path(pyodide) / "pyodide.mjs").exists():
        raise RecipeError(f"{pyodide}: expected a folder with pyodide.mjs and a wheel of numpy")
    folder = usable(Path(out))
    trained: list[str] = []
    kept = recorded.load()
    if record:
        kept = recorded.current(kept, say=lambda words: (trained.append(words), say(f"recording {words}")))
    sources = Sources.of(root, recorded.shown(kept))
    pages = all_pages(sources, bool(pyodide))
    twice = {page.path for page in pages if sum(page.path == other.path for other in pages) > 1}
    if twice:
        raise RecipeError(f"two pages go to {sorted(twice)[0]}; give one of their sources another name")
    empty(folder)  # only now: until here, a site that was built before stands
    Writer(folder, url.rstrip("/") + "/" if url else "").write(pages)
    write_files(folder, sources, pages, url, pyodide)
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    found = check.problems(folder)
    return Built(folder, [page.path for page in pages], size, time.monotonic() - begun, trained, found)


def usable(folder: Path) -> Path:
    """The folder, if it may be emptied: one that holds other things than a site built before is refused."""
    if folder.exists() and not folder.is_dir():
        raise RecipeError(f"{folder} is a file; expected a folder (--out)")
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise RecipeError(f"{folder} is not empty, and no site was built there; expected a new folder (--out)")
    return folder


def empty(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    mark = "A site built by `labkit site`. It is emptied before it is built again.\n"
    (folder / MARK).write_text(mark, encoding="utf-8")


def all_pages(sources: Sources, pyodide: bool) -> list[Page]:
    return [
        *home.pages(sources),
        symptoms.page(sources),
        *modes.pages(sources),
        *play.pages(sources),
        *bundle.pages(sources, pyodide),
        *lessons.pages(sources),
        *documents.pages(sources),
        *api.pages(sources),
        Page(
            "search.html",
            "Search",
            "Search the field guide by what you see.",
            "search.html",
            scripts=("search-index.js", "search.js"),
        ),
    ]


class Writer:
    """Fills the templates."""

    def __init__(self, folder: Path, url: str):
        jinja2 = optional("jinja2", **text.NEEDS)
        loader = jinja2.FileSystemLoader(TEMPLATES)
        self.folder, self.url = folder, url
        self.templates = jinja2.Environment(
            loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        self.templates.filters |= {"code": code_words, "headings": text.headings, "arrows": text.arrows}

    def write(self, pages: list[Page]) -> None:
        for page in pages:
            content = page.content | self.shared(page)
            made = self.templates.get_template(page.template).render(content)
            with written_whole(self.folder / page.path) as stream:
                stream.write(made.encode())
            for name, picture in page.content.get("pictures", {}).items():
                with written_whole(self.folder / name) as stream:
                    stream.write(picture)

    def shared(self, page: Page) -> dict[str, Any]:
        """What every template may use."""
        return {
            "page": page,
            "link": page.link,
            "navigation": NAVIGATION,
            "version": __version__,
            "url": self.url,
            "structured": [self.structured(page, each) for each in page.structured],
        }

    def structured(self, page: Page, each: dict) -> str:
        content = {"@context": "https://schema.org", **each} | ({"url": self.url + page.path} if self.url else {})
        return json.dumps(content, ensure_ascii=False).replace("</", "<\\/")


def code_words(words: str) -> Any:
    """`names` between backticks as code; the rest escaped."""
    markup = optional("markupsafe", **text.NEEDS).Markup
    parts = escape(words).split("`")
    return markup("".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts)))


def write_files(folder: Path, sources: Sources, pages: list[Page], url: str, pyodide: str | Path | None) -> None:
    """Everything beside the pages: styles, scripts, the search index, standalone scripts, the diagnosis."""
    made = {f"modes/{name}.py": modes.script(name).encode() for name in FAILURES}
    made["assets/search-index.js"] = search.index(pages).encode()
    made["assets/chart.js"] = chart_script().encode()
    made["assets/site.css"] = b"\n".join(
        path.read_bytes() for path in [*sorted(ASSETS.glob("*.css")), CHART / "chart.css"]
    )
    made |= {f"assets/{path.name}": path.read_bytes() for path in ASSETS.glob("*") if path.suffix not in (".css",)}
    made["diagnose/labkit.zip"] = bundle.archive()
    made |= {f"diagnose/{name}": content for name, (_, content) in bundle.examples(sources).items()}
    made[".nojekyll"] = b""
    if url:
        base = url.rstrip("/") + "/"
        made["sitemap.xml"] = sitemap([base + page.path for page in pages]).encode()
        made["robots.txt"] = f"User-agent: *\nAllow: /\nSitemap: {base}sitemap.xml\n".encode()
    made |= {name: path.read_bytes() for name, path in sources.copied.items()}
    for name, content in made.items():
        with written_whole(folder / name) as stream:
            stream.write(content)
    if pyodide:
        shutil.copytree(pyodide, folder / "diagnose/pyodide")


def chart_script() -> str:
    """chart.js of the panels as a script that a page opened from a file can load, and what draws the site's curves."""
    chart = (CHART / "chart.js").read_text(encoding="utf-8")
    exported = "export default {"
    if chart.count(exported) != 1:
        raise RecipeError(f"chart.js: expected one {exported!r}")
    curves = (ASSETS / "curves.js").read_text(encoding="utf-8")
    return f"(() => {{\n{chart.replace(exported, 'const labkitChart = {')}\n{curves}\n}})();\n"


def sitemap(addresses: list[str]) -> str:
    today = datetime.now(UTC).date().isoformat()
    rows = "".join(f"<url><loc>{escape(each)}</loc><lastmod>{today}</lastmod></url>\n" for each in addresses)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{rows}</urlset>\n'
