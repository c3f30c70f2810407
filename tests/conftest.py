"""What every test shares: the requirement ledger, kept bytecode, and how hard Hypothesis tries."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.effort import EXAMPLES

pytest_plugins = [
    "tests.by_file",
    "tests.code_mode.stock",
    "tests.conformance.plugin",
    "tests.protocols.mgp.messages",
    "pytester",
]

# The suite starts hundreds of processes and rewrites hundreds of files: without bytecode each would compile all again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Commands would draw what tests read.
os.environ.pop("FORCE_COLOR", None)
# httpx2 tries to import it for each request to an app in this process, and without it each try searched all paths.
if importlib.util.find_spec("sniffio") is None:
    sys.modules["sniffio"] = None  # type: ignore[assignment]
# What the runs of pytest that tests start do without: together these take as long to start as the rest of pytest.
NOT_IN_TESTS = ("schemathesis", "hypothesispytest", "anyio", "xdist", "xdist.looponfail", "timeout", "pytest_cov")

# A slow machine is not a failing test: time is pytest-timeout's business. Where the variable CI is set, Hypothesis
# tries the same examples in every run; others are for `make properties`.
ANY_TIME: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("default", max_examples=EXAMPLES, **ANY_TIME)
settings.register_profile("long", max_examples=20_000, derandomize=False, **ANY_TIME)
settings.load_profile("default")


def pytest_configure(config: pytest.Config) -> None:
    """Of the options of this run none is meant for the runs of pytest that tests start."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        # Not where workers are started from: they would take it for their own.
        os.environ["PYTEST_ADDOPTS"] = " ".join(f"-p no:{name}" for name in NOT_IN_TESTS)


def pytest_collection() -> None:
    """Thousands of tests are in memory for good: the garbage collector need not look through them again and again."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
    # A worker's heap is large and a test's garbage small: looking for it every 700 objects took 9 % of the run.
    gc.set_threshold(10_000, 20, 100)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two more than there are processors, as tests wait for processes and clocks. Slow ones wait most of the time."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return processors + 2 if "not slow" in config.option.markexpr else 2 * processors


@pytest.fixture(scope="session", autouse=True)
def _own_config_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Servers keep keys in the user's folder for settings. That of the person who runs the tests is left alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture
def anyio_backend() -> str:
    """Servers run on asyncio."""
    return "asyncio"


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each Python that a link or `subprocess` starts is forked. Not for tests of how such a process starts or ends."""
    from tests.forking.spawning import quick_python

    quick_python(monkeypatch)
