"""The web edition: site."""

from labkit.cli.commands.arguments import command


def add(commands) -> None:
    about = "build the web edition: field guide, course, play, diagnosis in the browser (needs the extra `site`)"
    made = command(commands, "site", build_site, about, json=False)
    made.add_argument("--out", default="site", metavar="DIR", help="folder of the site (default: site)")
    made.add_argument("--url", default="", help="where it will be published; makes addresses for search engines")
    made.add_argument(
        "--pyodide",
        metavar="DIR",
        help="folder with Pyodide and numpy to copy (default: the page loads the public CDN)",
    )
    made.add_argument("--record", action="store_true", help="train the runs that are not recorded yet (minutes)")
    made.add_argument("--serve", action="store_true", help="serve it on this machine afterwards, until Ctrl-C")
    made.add_argument("--port", type=int, metavar="N", help="port of the server (default: a free one)")
    made.add_argument("--no-browser", dest="browser", action="store_false", help="only print the link")


def build_site(options) -> int:
    import sys

    from labkit.site.build import build

    options_of_build = {"url": options.url, "pyodide": options.pyodide, "record": options.record}
    built = build(options.out, **options_of_build, say=lambda words: print(words, file=sys.stderr))
    for problem in built.problems:
        print(f"problem: {problem}", file=sys.stderr)
    print(f"site: {built}")
    if options.serve:
        from labkit.cli import serve

        serve.site(built.folder, port=options.port, browser=options.browser)
    return 1 if built.problems else 0
