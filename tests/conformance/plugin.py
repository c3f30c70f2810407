"""Collects which tests claim which requirements and, with `--requirements-report FILE`, how they fared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conformance.requirements import REQUIREMENTS

# Reports carry their claims as a user property: the one road from a test to the report that xdist keeps open.
PROPERTY = "req"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--requirements-report",
        metavar="FILE",
        type=Path,
        help="write the outcome of each claimed requirement's tests to FILE, as JSON",
    )


def pytest_configure(config: pytest.Config) -> None:
    path: Path | None = config.getoption("--requirements-report")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(path), "requirements-recorder")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        ids = [id for mark in item.iter_markers("req") for id in mark.args]
        if unknown := [id for id in ids if id not in REQUIREMENTS]:
            raise pytest.UsageError(f"{item.nodeid} claims unknown requirements: {', '.join(map(repr, unknown))}")
        item.user_properties.extend((PROPERTY, id) for id in ids)


class Recorder:
    """Notes the outcome of every test that claims something; the worst phase of a test counts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outcomes: dict[str, dict[str, str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, id in report.user_properties:
            if name == PROPERTY:
                tests = self.outcomes.setdefault(str(id), {})
                if report.outcome != "passed" or report.when == "setup":
                    tests[report.nodeid] = "unfinished" if report.outcome == "passed" else report.outcome
                elif report.when == "call" and tests.get(report.nodeid) == "unfinished":
                    tests[report.nodeid] = "passed"

    def pytest_sessionfinish(self) -> None:
        self.path.write_text(json.dumps(self.outcomes, indent=2, sort_keys=True) + "\n", encoding="utf-8")
