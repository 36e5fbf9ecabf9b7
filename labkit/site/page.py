"""A page of the site: where it goes, what it says, and what it can be found by."""

import posixpath
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Page:
    """One HTML file. Links within the site are written from its top, and made relative when it is rendered."""

    path: str  # from the top of the site: modes/dead_relu.html
    title: str
    description: str  # what search engines show below the title
    template: str
    section: str = ""  # the entry of the navigation that it belongs to
    content: dict[str, Any] = field(default_factory=dict)  # what its template is filled with
    kind: str = ""  # in the results of a search: "failure mode"
    words: str = ""  # what it can be found by, beside title and description
    structured: list[dict] = field(default_factory=list)  # JSON-LD for search engines
    scripts: tuple[str, ...] = ()  # scripts of this page alone, from assets/

    def link(self, target: str) -> str:
        """A target from the top of the site, as a relative address: pages can be opened without a server."""
        place, mark, fragment = target.partition("#")
        if not place:
            return target
        return posixpath.relpath(place, posixpath.dirname(self.path) or ".") + mark + fragment
