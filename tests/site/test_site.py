"""The web edition: it is built once here, checked page by page, and used in a real browser, opened from files."""

import base64
import dataclasses
import functools
import html
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace

import browser
import numpy as np
import pytest
from helpers import ROOT

from labkit.cli.main import main
from labkit.cli.serve import LOOPBACK, SiteHandler
from labkit.course.checks import prediction_of
from labkit.course.ward.game import RIGHT
from labkit.errors import RecipeError
from labkit.failures.catalogue import FAILURES
from labkit.site import api, build, bundle, check, lessons, modes, patients, recorded, sliders, symptoms
from labkit.site.messages import MESSAGES
from labkit.site.sources import Sources
from labkit.site.text import plain, rendered
from labkit.training.run_store import Memory, RunStore

HEADINGS = [
    "Looks like", "The curves of a real run", "The instrument that gives it away", "Why", "Check first", "Cure",
    "What does not help", "Look-alikes, and what tells them apart", "In your own code", "How sure the diagnosis is",
    "References and lessons",
]  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("latex2mathml", reason="the extra `site` is not installed (make test TEST_EXTRAS=dev,site)")
    folder = tmp_path_factory.mktemp("site")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return build.build(folder / "site", root=ROOT, url="https://example.org/labkit")


def sick() -> list[str]:
    """The failures of the patients in the ward."""
    return [patient["answer"]["failure"] for patient in recorded.load()["patients"].values()]


def text(site, path: str) -> str:
    return (site.folder / path).read_text(encoding="utf-8")


# --- what was built ---


def test_nothing_is_wrong_with_it(site):
    assert site.problems == []


def test_every_mode_lesson_and_document_has_a_page(site):
    lessons = [f"course/{path.stem}.html" for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")]
    expected = {f"modes/{name}.html" for name in FAILURES} | set(lessons)
    expected |= {
        "index.html",
        "symptoms.html",
        "play/index.html",
        "play/ward.html",
        "diagnose/index.html",
        "changelog.html",
    }
    expected |= {f"evidence/{name}.html" for name in ("contract", "clinic", "foreign", "folklore", "benchmarks")}
    assert expected <= set(site.pages)


@pytest.mark.parametrize("name", FAILURES)
def test_every_mode_has_the_same_headings(site, name):
    page = text(site, f"modes/{name}.html")
    assert re.findall(r"<h2 id=\"[\w-]+\">(.*?)</h2>", page) == HEADINGS
    assert "<svg" in page.partition("</header>")[2] or "not recorded in this edition" in page
    assert f'href="{name}.py"' in page and (site.folder / f"modes/{name}.py").exists()


def test_every_mode_is_a_leaf_of_the_symptom_tree(site):
    page = text(site, "symptoms.html")
    assert [name for name in FAILURES if f'href="modes/{name}.html"' not in page] == []
    assert all(any(sight.shown_by(mode) for mode in FAILURES.values()) for sight in symptoms.SIGHTS)


def test_lessons_do_not_show_answers(site):
    for path in (ROOT / "solutions").glob("[0-9][0-9]_*.ipynb"):
        student = json.loads((ROOT / "notebooks" / path.name).read_text(encoding="utf-8"))["cells"]
        stubs = sum("".join(cell["source"]).count("YOUR CODE HERE") for cell in student)
        page = text(site, f"course/{path.stem}.html")
        assert stubs and page.count("YOUR CODE HERE") == stubs and "BEGIN SOLUTION" not in page
        solution = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert any("### BEGIN SOLUTION" in "".join(cell["source"]) for cell in solution)
        assert "You chose" not in page
        for id in re.findall(r'"labkit\.predict\(\\"(\d\d\.0[a-z]?)\\", ', path.read_text(encoding="utf-8")):
            asked = prediction_of(id)
            assert page.count(html.escape(asked.why)) == 1
            assert f"<summary>What the run showed</summary><p>{asked.correct}." in page


def test_figures_of_lessons_are_files_and_formulas_are_mathml(site):
    page = text(site, "course/11_the_loss_landscape.html")
    assert "data:image" not in page and page.count('<img class="output figure"') >= 15
    assert page.count("<math") >= 30
    prose = re.sub(r"<pre.*?</pre>", "", page, flags=re.DOTALL)
    assert r"\frac" not in prose and "$" not in prose


def test_dollars_in_code_and_prices_are_no_formulas():
    words = "`$x$` costs $5 or $6, ``` $y$ ``` and $a_1$ in $$\\frac{1}{2}$$"
    made = rendered(words, lambda address: address)
    assert made.count("<math") == 2 and "$x$" in made and "$y$" in made and "$5 or $6" in made
    assert "<mfrac>" in made and "\ue000" not in made


def test_words_of_a_paragraph_are_punctuated():
    assert plain("The loss reads `nan`. It was **2.3** (see [why](a.md)), and `x`!") == (
        "The loss reads nan. It was 2.3 (see why), and x!"
    )


def test_the_ward_is_sealed(site):
    page = text(site, "play/ward.html")
    for name in sick():
        choice = f'value="{name}"'  # in the list of every patient, and nowhere as an answer
        assert page.count(choice) == patients.PATIENTS and f'"{name}"' not in page.replace(choice, "")


def test_search_engines_find_a_mode_by_its_symptom(site):
    page = text(site, "modes/vanishing_gradients.html")
    assert re.search(r"<title>Vanishing gradients: loss stuck at 2\.3\d, not decreasing", page)
    found = [json.loads(each) for each in re.findall(r'<script type="application/ld\+json">(.*?)</script>', page)]
    assert {each["@type"] for each in found} == {"TechArticle", "FAQPage"}
    assert 'rel="canonical" href="https://example.org/labkit/modes/vanishing_gradients.html"' in page
    assert text(site, "sitemap.xml").count("<loc>") == len(site.pages)


@pytest.mark.parametrize("message", [each for each in MESSAGES if each.code], ids=lambda each: each.name)
def test_the_error_messages_are_those_of_pytorch(message):
    import torch

    said = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            exec(message.code, {"torch": torch})
        except Exception as error:
            said.append(str(error))
    assert any(message.message in words for words in [*said, *(str(each.message) for each in caught)])


def test_every_page_has_a_description_of_its_own(site):
    pages = {path: text(site, path) for path in site.pages}
    found = {path: re.search(r'<meta name="description" content="([^"]{30,})"', page) for path, page in pages.items()}
    assert [path for path, description in found.items() if description is None] == []
    assert len({description[1] for description in found.values()}) == len(found)


def test_titles_say_where_the_curve_ends_and_not_its_last_batch():
    record = recorded.load()["modes"]["vanishing_gradients"]
    ends = modes.ends_of(record)
    line = next(each for each in record["panes"][0]["lines"] if each["label"] == "sick")
    assert ends == [record["runs"]["sick"]["loss"][0], str(line["y"][-1])]
    assert modes.ends_of(record | {"panes": []}) == record["runs"]["sick"]["loss"]


def test_every_public_name_is_documented():
    for name, thing in api.public().items():
        assert len(api.documentation(thing)) > 20, name
        assert [each for each, member in api.members(thing) if not api.documentation(member)] == [], name


def test_lessons_open_elsewhere_where_the_address_is_set(site, tmp_path):
    sources = dataclasses.replace(Sources.of(ROOT, recorded.load()), repository="https://github.com/someone/labkit")
    page = lessons.page_of(sources.lessons[0], sources)
    build.Writer(tmp_path, "").write([page])
    made = (tmp_path / page.path).read_text(encoding="utf-8")
    assert made.count('href="https://colab.research.google.com/github/someone/labkit/') == 1
    assert made.count('href="https://mybinder.org/v2/gh/someone/labkit/') == 1


def test_a_record_shows_a_calm_loss_and_keeps_the_run():
    record, study = recorded.record_of(recorded.FILED, RunStore(memory=Memory()))
    lines = {line["label"]: line for line in record["panes"][0]["lines"]}
    assert lines["_healthy, each step"]["alpha"] < lines["healthy"]["alpha"] == 1
    raw, calm = (np.diff([float(y) for y in lines[name]["y"]]) for name in ("_healthy, each step", "healthy"))
    assert np.abs(calm).mean() < 0.5 * np.abs(raw).mean()
    [name] = bundle.examples(SimpleNamespace(record={"modes": {recorded.FILED: record, recorded.LOGGED: {}}}))
    assert name == "example.npz" and study.diagnoses[0].title in bundle.answer_to(
        name, base64.b64decode(record["file"])
    )


def test_look_alikes_are_found_without_recording_again(tmp_path, monkeypatch):
    flat = ("learning_rate_too_low", "vanishing_gradients")
    monkeypatch.setattr(recorded, "FAILURES", {name: FAILURES[name] for name in flat})
    page = tmp_path / "recorded.json"
    recorded.write({"modes": {"kept": {"steps": 1}}, "look_alikes": [], "compared": []}, page)
    recorded.compare(page)
    made = recorded.load(page)
    [pair] = made["look_alikes"]
    assert (pair["one"], pair["other"]) == flat and pair["instrument"] and pair["difference"] < 0.05
    assert made["compared"] == [*flat] and made["modes"] == {"kept": {"steps": 1}}


def test_both_examples_are_recorded(site):
    assert {"example.csv", "example.npz"} <= {path.name for path in (site.folder / "diagnose").iterdir()}
    page = text(site, "diagnose/index.html")
    assert FAILURES[recorded.FILED].title in page and "Unsure [unsure]" in page


def test_error_messages_name_modes_that_exist():
    assert {name for each in MESSAGES for name in each.modes} <= set(FAILURES)


# --- what the check finds ---

PAGE = "<html><head><title>t</title></head><body><h1 id='a'>t</h1>{}</body></html>"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('<a href="nowhere.html">x</a>', "no such file"),
        ('<a href="#b">x</a>', "no 'b' there"),
        ('<img src="page.html">', "no description"),
        ('<img src="page.html" alt=" ">', "no description"),
        ("<svg></svg>", "no description"),
        ("<p id='a'>x</p>", "stands 2 times"),
        ("<h1>x</h1>", "2 headings of the first level"),
        ("<h4>x</h4>", "a heading of level 4 below one of level 1"),
        ("<div>", "<div> is not closed"),
        (f"<p>{'x' * check.LIMIT}</p>", "before its interactive part"),
    ],
    ids=range(10),
)
def test_a_broken_page_is_noticed(tmp_path, body, words):
    page = tmp_path / "modes/page.html"
    page.parent.mkdir()
    page.write_text(PAGE.format("<a href='page.html#a'>fine</a><svg aria-hidden='true'></svg>"), encoding="utf-8")
    assert check.problems(tmp_path) == []
    page.write_text(PAGE.format(body), encoding="utf-8")
    assert any(words in problem for problem in check.problems(tmp_path))


def test_a_folder_with_other_things_is_not_emptied(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(RecipeError, match="is not empty"):
        build.build(tmp_path, root=ROOT)
    assert (tmp_path / "thesis.txt").exists()


def test_a_file_is_not_replaced_by_a_folder(tmp_path):
    (tmp_path / "site").write_text("a letter", encoding="utf-8")
    with pytest.raises(RecipeError, match="is a file"):
        build.build(tmp_path / "site", root=ROOT)


def test_a_site_stands_until_the_next_can_be_built(tmp_path):
    old = tmp_path / "site" / build.MARK
    old.parent.mkdir()
    old.touch()
    with pytest.raises(RecipeError, match="at the top of a clone"):
        build.build(tmp_path / "site", root=tmp_path)
    assert old.exists()


def test_outside_of_a_clone_it_says_so(tmp_path):
    with pytest.raises(RecipeError, match="at the top of a clone"):
        Sources.of(tmp_path, {})


# --- in a browser, from files ---

in_browser = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(browser.missing()), reason=browser.missing() or "-"),
]


@pytest.fixture
def opened(chromium, site):
    """Open a page of the site from its file; whatever it complains of is an error."""
    pages = []

    def open_page(path: str, **options):
        context = chromium.new_context(**options)
        page = context.new_page()
        complaints = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.goto(
            (site.folder / path.partition("?")[0].partition("#")[0]).as_uri() + path[len(re.split(r"[?#]", path)[0]) :]
        )
        pages.append((context, complaints))
        return page

    yield open_page
    for context, complaints in pages:
        context.close()
        assert complaints == []


class TestInTheBrowser:
    pytestmark = in_browser

    def test_the_search_finds_a_flat_loss(self, opened):
        page = opened("search.html?q=stuck at 2.30")
        first = [each.inner_text() for each in page.locator(".results a").all()[:6]]
        assert any("never moves" in title for title in first), first
        assert any("stuck at 2.3" in title for title in first), first
        page.locator("#q").fill("qwertz")
        assert "Nothing for" in page.locator(".state").inner_text()

    @pytest.mark.parametrize(
        ("query", "first"),
        [
            ("loss stuck at 2.30", "The loss never moves"),
            ("loss 4.605", "The loss never moves"),
            ("loss is nan after a few steps", "The loss is NaN or infinite"),
            ("train loss decreases but val loss increases", "Training looks fine, validation does not"),
            ("CUDA out of memory", "CUDA out of memory"),
            ("vanishing gradient", "Vanishing gradients"),
        ],
    )
    def test_the_search_puts_first_what_was_meant(self, opened, query, first):
        page = opened(f"search.html?q={query}")
        assert page.locator(".results a").first.inner_text().startswith(first)

    def test_the_search_says_how_many_it_shows(self, opened):
        page = opened("search.html?q=loss")
        assert re.match(r"The best 40 of \d{2,3} pages", page.locator(".state").inner_text())
        assert page.locator(".results li").count() == 40

    def test_the_search_on_the_home_page_leads_to_the_results(self, opened):
        page = opened("index.html")
        page.locator("#see").fill("modified by an inplace operation")
        page.locator("#see").press("Enter")
        page.locator(".results a").first.wait_for()
        assert "inplace" in page.locator(".results a").first.inner_text()

    def test_a_slider_changes_the_verdict_and_the_address(self, opened):
        page = opened("play/index.html")
        name = sliders.SLIDERS[0].name
        section = page.locator(f"#{name}")
        assert "No failure shows" in section.locator(".verdict").inner_text()
        section.locator("input").focus()
        section.locator("input").press("End")
        assert "Learning rate too high" in section.locator(".verdict").inner_text()
        assert section.locator("output").inner_text() == "10"
        assert page.url.endswith(f"#{name}=10")
        again = opened(f"play/index.html#{name}=10").locator(f"#{name}")
        assert "Learning rate too high" in again.locator(".verdict").inner_text()

    def test_the_ward_can_be_finished(self, opened):
        page = opened("play/ward.html")
        for number, name in enumerate(sick(), start=1):
            patient = page.locator(f"[data-patient='{number}']")
            if number == 1:
                patient.locator("[data-order='updates']").click()
                patient.locator(".finding canvas").first.wait_for()
                patient.locator("select").select_option("leakage" if name != "leakage" else "dead_relu")
                patient.get_by_role("button", name="Name it").click()
            patient.locator("select").select_option(name)
            patient.get_by_role("button", name="Name it").click()
            assert FAILURES[name].title in patient.locator(".feedback").inner_text()
        # One wrong name and an instrument at two points cost two each.
        assert f"{6 * RIGHT - 4} of {6 * RIGHT} points, 6 of 6 files open" in page.locator(".score").inner_text()

    def test_the_gallery_counts_the_first_guess(self, opened):
        page = opened("play/gallery.html")
        card = page.locator(".guess").first
        answer = card.get_attribute("data-answer")
        assert not card.locator(".reveal").is_visible()
        card.locator(f"[data-name='{answer}']").click()
        assert card.locator(".reveal").is_visible()
        assert page.locator(".score").inner_text().startswith("1 of 1 right")

    def test_a_mode_is_drawn_with_and_without_scripts(self, opened):
        page = opened("modes/vanishing_gradients.html")
        page.locator("canvas[data-points]").first.wait_for()
        assert page.locator("svg.pane").count() == 0
        plain = opened("modes/vanishing_gradients.html", java_script_enabled=False)
        assert plain.locator("svg.pane").count() >= 3
        assert "sick from" in plain.locator("svg.pane").first.get_attribute("aria-label")

    def test_the_theme_follows_the_system_until_it_is_chosen(self, opened):
        page = opened("index.html", color_scheme="dark")
        assert page.locator("html.dark").count() == 1
        page.get_by_role("button", name="Change between light and dark").click()
        assert page.locator("html.dark").count() == 0

    @pytest.mark.parametrize(
        "path", ["index.html", "symptoms.html", "modes/dead_relu.html", "play/index.html", "diagnose/index.html"]
    )
    def test_it_fits_a_phone(self, opened, path):
        page = opened(path, viewport={"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.get_by_role("button", name="Menu").click()
        assert page.get_by_role("link", name="Course", exact=True).is_visible()

    def test_the_keyboard_reaches_the_content_first(self, opened):
        page = opened("symptoms.html")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"

    def test_opened_from_a_file_diagnose_says_what_to_do(self, opened):
        page = opened("diagnose/index.html")
        page.locator("#file").set_input_files(
            {"name": "log.csv", "mimeType": "text/csv", "buffer": b"step,loss\n0,1\n"}
        )
        page.get_by_text("labkit site --serve", exact=False).first.wait_for()
        assert "opened from a file" in page.locator(".state").inner_text()

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    @pytest.mark.parametrize(
        "path",
        [
            "index.html",
            "modes/vanishing_gradients.html",
            "lesson",
            "play/index.html",
            "diagnose/index.html",
            "symptoms.html",
            "play/ward.html",
            "play/gallery.html",
            "search.html?q=loss",
            "evidence/index.html",
            "api/watch.html",
        ],
    )
    def test_axe_finds_nothing(self, opened, site, path, scheme):
        axe = pytest.importorskip("axe_playwright_python")
        if path == "lesson":
            path = next(each for each in site.pages if each.startswith("course/0"))
        page = opened(path, color_scheme=scheme)
        page.evaluate(Path(axe.__file__).with_name("axe.min.js").read_text(encoding="utf-8"))
        tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
        found = page.evaluate("tags => axe.run({preload: false, runOnly: {type: 'tag', values: tags}})", tags)
        assert len(found["passes"]) > 10  # it did run
        said = [
            f"{each['id']}: {node['html'][:120]} {node['failureSummary'][:160]}"
            for each in found["violations"]
            for node in each["nodes"]
        ]
        assert said == []


# --- the diagnosis in the page ---

# Stands in for Pyodide, which is 13 MB from a network that tests do not have: the same Python files, read from the
# archive of the site without torch, in a process beside the server. `loadPyodide` has what the page uses of it.
STAND_IN = """
export async function loadPyodide() {
  const files = {}, values = {};
  const ask = async (code) => {
    const answer = await fetch("/python", { method: "POST", body: JSON.stringify({ code, files, values }) });
    return answer.text();
  };
  return {
    loadPackage: async () => {},
    unpackArchive: () => {},
    FS: { writeFile: (name, bytes) => { files[name] = [...bytes]; }, unlink: (name) => { delete files[name]; } },
    globals: { set: (name, value) => { values[name] = value; } },
    runPythonAsync: ask,
  };
}
"""


class WithPython(SiteHandler):
    """Serves the site, and runs what the page asks Python for with the archive of the site."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with tempfile.TemporaryDirectory() as folder:
            for name, content in asked["files"].items():
                (Path(folder) / name).write_bytes(bytes(content))
            package = Path(folder) / "unpacked"
            shutil.unpack_archive(Path(self.directory) / "diagnose/labkit.zip", package)
            lines = [f"import sys\nsys.path.insert(0, {str(package)!r})"]
            lines += ["from labkit.site.browser import torch_stub\ntorch_stub.install()"]
            lines += ["from labkit.site.browser.answer import answer"]
            lines += [f"{name} = {value!r}" for name, value in asked["values"].items()]
            lines += [f"print({asked['code']})" if asked["code"].startswith("answer") else asked["code"]]
            done = subprocess.run(
                [sys.executable, "-c", "\n".join(lines)], cwd=folder, capture_output=True, text=True, check=True,
                env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            )  # fmt: skip
        self.send_response(200)
        self.end_headers()
        self.wfile.write(done.stdout.encode())


@pytest.fixture
def served(site, tmp_path):
    """The site over HTTP, with Pyodide or its stand-in in the folder that the page loads it from."""
    folder = tmp_path / "site"
    shutil.copytree(site.folder, folder)
    page = folder / "diagnose/index.html"
    assert page.read_text(encoding="utf-8").count(bundle.CDN) == 2  # where it loads from, and where it says so
    page.write_text(page.read_text(encoding="utf-8").replace(bundle.CDN, "pyodide/"), encoding="utf-8")
    if real := os.environ.get("LABKIT_PYODIDE"):
        shutil.copytree(real, folder / "diagnose/pyodide")
    else:
        (folder / "diagnose/pyodide").mkdir()
        (folder / "diagnose/pyodide/pyodide.mjs").write_text(STAND_IN, encoding="utf-8")
    handler = functools.partial(WithPython, directory=str(folder))
    with http.server.ThreadingHTTPServer((LOOPBACK, 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{LOOPBACK}:{server.server_port}/diagnose/index.html"
        server.shutdown()


FLAT = "step,loss,val_loss\n" + "".join(f"{step},{2.303 + 0.001 * (step % 3)},2.303\n" for step in range(120))
EXPORTED = [[1.7e9 + step, step, 2.303 + 0.001 * (step % 3)] for step in range(120)]
LOGS = {
    "flat.csv": lambda: FLAT.encode(),
    "broken.csv": lambda: b"a,b\n1,2\n",
    "train_loss.csv": lambda: "\n".join(
        ["Wall time,Step,Value", *(",".join(map(str, row)) for row in EXPORTED)]
    ).encode(),
    "train_loss.json": lambda: json.dumps(EXPORTED).encode(),
    "run.npz": lambda: base64.b64decode(recorded.load()["modes"][recorded.FILED]["file"]),
}


@pytest.mark.browser
@pytest.mark.skipif(bool(browser.missing()), reason=browser.missing() or "-")
@pytest.mark.parametrize("name", LOGS)
def test_a_log_is_diagnosed_in_the_page_as_on_the_command_line(chromium, served, tmp_path, monkeypatch, capsys, name):
    content = LOGS[name]()
    with browser.open_page(chromium, served) as page:
        page.locator("#file").set_input_files({"name": name, "mimeType": "", "buffer": content})
        monkeypatch.chdir(tmp_path)
        Path(name).write_bytes(content)
        code = main(["diagnose", name])
        said = capsys.readouterr()
        if code:
            page.get_by_text(said.err.strip(), exact=True).wait_for()
        else:
            page.locator(".answer pre").wait_for()
            assert page.locator(".answer pre").text_content() == said.out.rstrip("\n")
            assert page.locator(".answer canvas").count() == 1
            assert page.locator(".names a").count() > 0
