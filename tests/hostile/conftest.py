"""With LABKIT_HOSTILE: a table of what was tried, at the end."""

import os


def pytest_terminal_summary(terminalreporter):
    if "LABKIT_HOSTILE" not in os.environ:
        return
    from hostility import COUNTS

    terminalreporter.section("hostile inputs")
    terminalreporter.line(f"{'tried':>8}{'clear errors':>14}{'failed':>8}  test")
    for test, counts in COUNTS.items():
        terminalreporter.line(f"{counts['tried']:8}{counts['clear errors']:14}{counts['failed']:8}  {test}")
