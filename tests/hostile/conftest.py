"""With LABKIT_HOSTILE: a table of what was tried, at the end."""

import os


def pytest_terminal_summary(terminalreporter):
    if "LABKIT_HOSTILE" not in os.environ:
        return
    from hostility import COUNTS

    terminalreporter.section("hostile inputs")
    terminalreporter.line(f"{'tried':>8}{'clear errors':>14}{'failed':>8}  test")
    for test, found in COUNTS.items():
        terminalreporter.line(f"{found['tried']:8}{found['clear errors']:14}{found['failed']:8}  {test}")
