"""Collects which tests claim which requirements and, with `--requirements-report FILE`, records how they fared.

Only a full run begins a record. Some of the tests, run again with the same files, bring it up to date: `.ci/run` does
that with those that failed.
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

import pytest

from tests.conformance.recorded_run import RecordedRun, Sources
from tests.conformance.requirements import REQUIREMENTS

# Reports carry their claims as a user property: the one road from a test to the report that xdist keeps open.
PROPERTY = "req"

# What a full run may leave out.
_EXTRA = "not (slow|soak|e2e|browser|release)"
FULL_SELECTION = re.compile(f"({_EXTRA}( and {_EXTRA})*)?")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--requirements-report",
        metavar="FILE",
        type=Path,
        help="a full run writes the outcome of each claimed requirement's tests to FILE, as JSON",
    )


def pytest_configure(config: pytest.Config) -> None:
    path: Path | None = config.getoption("--requirements-report")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(path, is_full_run(config)), "requirements-recorder")


def is_full_run(config: pytest.Config) -> bool:
    """Whether nothing on the command line leaves out tests that `make test` would run."""
    options = config.option
    if config.args_source is pytest.Config.ArgsSource.ARGS or options.collectonly:
        return False
    if options.keyword or options.deselect or options.ignore or options.ignore_glob or options.maxfail:
        return False
    if getattr(options, "lf", False):  # without the plugin of the cache there is none
        return False
    return FULL_SELECTION.fullmatch(options.markexpr.strip()) is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        ids = [id for mark in item.iter_markers("req") for id in mark.args]
        if unknown := [id for id in ids if id not in REQUIREMENTS]:
            raise pytest.UsageError(f"{item.nodeid} claims unknown requirements: {', '.join(map(repr, unknown))}")
        item.user_properties.extend((PROPERTY, id) for id in ids)


class Recorder:
    """Notes the outcome of every test that claims something; the worst phase of a test counts."""

    def __init__(self, path: Path, is_full: bool) -> None:
        self.path, self.is_full = path, is_full
        self.sources = Sources.current()
        self.outcomes: dict[str, dict[str, str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, id in report.user_properties:
            if name == PROPERTY:
                tests = self.outcomes.setdefault(str(id), {})
                if report.outcome != "passed" or report.when == "setup":
                    tests[report.nodeid] = "unfinished" if report.outcome == "passed" else report.outcome
                elif report.when == "call" and tests.get(report.nodeid) == "unfinished":
                    tests[report.nodeid] = "passed"

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return
        before = RecordedRun.load(self.path)
        if self.is_full:
            outcomes = self.outcomes
        elif before is not None and before.sources == self.sources:
            outcomes = before.merge(self.outcomes)
        else:
            return
        RecordedRun(f"{datetime.now():%Y-%m-%d %H:%M}", self.sources, outcomes).save(self.path)
