"""Workers of pytest-xdist get whole files, and read a file when its turn comes.

Otherwise each worker reads all files before the first test runs, which takes as long as thousands of tests. Single
tests (`file.py::test`) and `--last-failed` are collected as usual.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest


def pytest_configure(config: pytest.Config) -> None:
    option = config.option
    # The cache picks tests among all of them, and without its plugin there are no such options.
    picks = any(getattr(option, name, False) for name in ("lf", "failedfirst", "newfirst", "stepwise"))
    if picks or option.collectonly or any("::" in argument for argument in config.args):
        return
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Reader())
    elif getattr(option, "numprocesses", None):
        config.pluginmanager.register(Counter())


class UnreadFile(pytest.Item):
    """A file of tests in the place of its tests. It hangs below the session: what tests of many files share stays."""

    def __init__(self, *, folder: pytest.Collector, **given: Any) -> None:
        super().__init__(**given)
        self.folder = folder
        # Each test has a time limit of its own.
        self.add_marker(pytest.mark.timeout(0))

    def runtest(self) -> None:
        raise AssertionError("its tests are run")

    def run_tests(self, following: pytest.Item | None) -> None:
        place = self.session.items.index(self)
        tests = self.read_tests()
        try:
            for test, after in zip(tests, [*tests[1:], following], strict=False):
                # The worker says of this one that it runs.
                self.session.items[place] = test
                self.config.hook.pytest_runtest_protocol(item=test, nextitem=after)
                if self.session.shouldfail or self.session.shouldstop:
                    break
        finally:
            self.session.items[place] = self

    def read_tests(self) -> list[pytest.Item]:
        """Those that the options select."""
        module = pytest.Module.from_parent(self.folder, path=self.path)
        tests = list(self.session.genitems(module))
        try:
            self.config.hook.pytest_collection_modifyitems(session=self.session, config=self.config, items=tests)
        except pytest.UsageError as error:
            self.ihook.pytest_collectreport(report=pytest.CollectReport(self.nodeid, "failed", str(error), []))
            return []
        return tests


class Reader:
    """In a worker: collects files unread, and reads each when it is run."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> Any:
        name = module_path.relative_to(parent.config.rootpath).as_posix()
        return UnreadFile.from_parent(parent.session, name=name, nodeid=name, path=module_path, folder=parent)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        """Who selects tests sees tests only."""
        unread = [item for item in items if isinstance(item, UnreadFile)]
        items[:] = [item for item in items if not isinstance(item, UnreadFile)]
        yield
        items += unread

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if not isinstance(item, UnreadFile):
            return None
        item.run_tests(nextitem)
        return True


class Counter:
    """In the process that hands out the files: knows how many tests there were, and which ran when a worker died."""

    def __init__(self) -> None:
        self.tests = self.files = 0
        self.begun: dict[str, str] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        self.session = session
        try:
            return (yield)
        finally:
            session.testscollected = self.tests

    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self.files = len(ids)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.begun[nodeid.partition("::")[0]] = nodeid
        self.tests += 1
        # What pytest shows as a share of tests is the share of files.
        self.session.testscollected = self.tests * max(self.files, 1) // len(self.begun)

    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        report.longrepr = f"{report.longrepr}, in {self.begun.get(crashitem, 'no test yet')}"
