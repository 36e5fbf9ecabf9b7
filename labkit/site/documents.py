"""Pages made from the Markdown documents of the repository: how to use labkit, and the evidence."""

import ast
import re

from labkit.site import text
from labkit.site.page import Page
from labkit.site.sources import Document, Sources


def pages(sources: Sources) -> list[Page]:
    made = [page_of(document, sources) for document in sources.documents]
    return [*made, adapters(sources), evidence_index(sources)]


def page_of(document: Document, sources: Sources) -> Page:
    markdown = sources.read(document)
    body = re.sub(r"^# .+\n", "", markdown, count=1)
    words = text.plain(body)
    page = Page(
        document.path,
        document.title,
        text.shortened(words),
        "document.html",
        document.section,
        kind={"use": "use it", "evidence": "evidence"}[document.section],
        words=words,
    )

    def link(address: str) -> str | None:
        found = sources.link(document.folder, address)
        return found if found is None or "://" in found else page.link(found)

    page.content.update(body=text.rendered(body, link), document=document, others=of_section(document.section, sources))
    return page


def of_section(section: str, sources: Sources) -> list[Document]:
    """The documents beside which one stands in the menu of its section."""
    return sorted(
        (each for each in sources.documents if each.section == section),
        key=lambda each: (each.source != "README.md", each.title),
    )


def evidence_index(sources: Sources) -> Page:
    found = of_section("evidence", sources)
    abouts = {each.path: text.shortened(text.plain(sources.read(each).partition("\n")[2]), 240) for each in found}
    return Page(
        "evidence/index.html",
        "How far to trust it: the evidence",
        "Every figure of labkit was measured: the contract of each failure mode, the diagnosis on runs and programs "
        "it had not "
        "seen, folklore tried on real runs, and what the instruments cost.",
        "evidence.html",
        "evidence",
        {"others": found, "abouts": abouts},
        kind="evidence",
    )


def adapters(sources: Sources) -> Page:
    """The callbacks for other libraries, from their source: not all of those libraries are installed here."""
    parts = []
    for path in sorted((sources.root / "labkit/adapters").glob("[a-z]*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        parts += [f"## {path.stem}", "", ast.get_docstring(tree) or "", ""]
        for each in tree.body:
            if isinstance(each, ast.ClassDef):
                parts += [
                    f"`labkit.adapters.{path.stem}.{each.name}`",
                    "",
                    ast.get_docstring(each) or "",
                    "",
                    *called(each),
                ]
    page = Page(
        "use/adapters.html",
        "Lightning, Hugging Face and skorch",
        "Callbacks that watch the training loops of Lightning, Hugging Face Transformers and skorch, without a "
        "change to them.",
        "document.html",
        "use",
        kind="use it",
        words="callback pytorch lightning huggingface transformers trainer skorch adapter",
    )
    body = text.rendered("\n".join(parts), lambda address: None)
    page.content.update(body=body, others=of_section("use", sources))
    return page


def called(made: ast.ClassDef) -> list[str]:
    """How a class is called, as a block of code."""
    start = next((each for each in made.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"), None)
    if start is None:
        return []
    arguments = ast.unparse(start.args).removeprefix("self, ").removeprefix("self")
    return ["```python", f"{made.name}({arguments})", "```", ""]
