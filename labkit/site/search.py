"""What the search looks through: one entry per page, symptom and error message, as a script that opens from a file."""

import json
import re

from labkit.site import symptoms
from labkit.site.page import Page

MOST = 1200  # characters of a page's own words: enough to be found by, little enough to load at once


def index(pages: list[Page]) -> str:
    entries = [
        {"t": page.title, "u": page.path, "k": page.kind, "d": page.description, "w": compact(page.words)}
        for page in pages
        if page.kind
    ]
    entries += [
        {"t": each["title"], "u": each["path"], "k": each["kind"], "d": each["about"], "w": compact(each["words"])}
        for each in symptoms.entries()
    ]
    return f"window.labkitSearch = {json.dumps(entries, ensure_ascii=False, separators=(',', ':'))};\n"


def compact(words: str) -> str:
    """Each word once, in order of appearance: the search counts none twice."""
    kept = " ".join(dict.fromkeys(re.findall(r"[\w.+-]+", words.lower())))
    return kept[:MOST]
