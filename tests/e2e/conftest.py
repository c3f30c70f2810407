"""What the end-to-end tests share: made once, by whichever worker comes first."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conformance.suite_install import FOLDER, install, node
from tests.tooling.scaffold.packages import ROOT, Environment, build_wheel, run

# The newest that is published; its command line is `mcpb`.
MCPB = ("@anthropic-ai/mcpb", "2.1.2")

Mcpb = Callable[..., str]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that all workers of this run have in common."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def made(shared: Path) -> Path:
    """The folder with our wheel and the two environments, which take most of their time to install."""
    with alone(shared / "making.lock"):
        if not (shared / "made").exists():
            ours = build_wheel(ROOT, shared / "wheels")
            with ThreadPoolExecutor() as both:
                for done in [both.submit(_make_author, shared, ours), both.submit(_make_runtime, shared, ours)]:
                    done.result()
            (shared / "made").touch()
    return shared


@pytest.fixture(scope="session")
def author(made: Path) -> Environment:
    """Where projects are worked on: what one of them needs for that serves all. Its types are checked once."""
    return _author(made)


@pytest.fixture
def user(made: Path, tmp_path: Path) -> Environment:
    """A fresh environment in which defserve and its `http` extra are all there is."""
    lender = Environment(made / "runtime")
    return Environment(tmp_path / "user", borrows=lender.site, PIP_FIND_LINKS=str(made / "wheels"))


@pytest.fixture(scope="session")
def mcpb() -> Mcpb:
    """The `mcpb` command of npm."""
    FOLDER.mkdir(exist_ok=True)
    try:
        with alone(FOLDER / "mcpb.lock"):
            home = install(*MCPB, FOLDER / "mcpb")
    except SystemExit as failed:
        pytest.skip(f"npm cannot install {MCPB[0]}: {str(failed).strip().splitlines()[-1]}")
    return lambda *arguments: run(node(), home / "dist" / "cli" / "cli.js", *arguments)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """One worker at a time."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make_author(shared: Path, ours: Path) -> None:
    environment = _author(shared)
    # As workflows call it.
    pip = environment.bin / "pip"
    pip.write_text(f'#!/bin/sh\nexec {" ".join(map(str, environment.pip))} "$@"\n', encoding="utf-8")
    pip.chmod(0o755)
    # The last is what the second asks for to build an editable wheel.
    environment.install(ours, "hatchling", "editables")
    environment.run("defserve", "new", "first-mcp", "--yes", cwd=shared)
    environment.install("-e", f"{shared / 'first-mcp'}[dev]")


def _author(shared: Path) -> Environment:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    return Environment(
        shared / "author",
        PIP_FIND_LINKS=str(shared / "wheels"),
        # With what is installed: a build environment for each project would take longer than all the rest. 0 is how pip
        # spells it: it reads the value as that of the isolation.
        PIP_NO_BUILD_ISOLATION="0",
        PIP_NO_COMPILE="1",
        PIP_QUIET="1",
        MYPY_CACHE_DIR=str(shared / f"mypy{worker}"),
    )


def _make_runtime(shared: Path, ours: Path) -> None:
    Environment(shared / "runtime", PIP_NO_COMPILE="1").install(f"{ours}[http]")
