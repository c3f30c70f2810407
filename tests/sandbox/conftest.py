"""What the sandbox's tests share: they need a kernel that can contain, and say so where it cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from defserve.sandbox import Layers, Outcome, SandboxLimits, confinement, monty, probe, run

Program = Callable[..., Outcome]


@pytest.fixture
def jailed() -> Program:
    """Runs a program with nothing but the jail around it: no rules, no restricted compiler."""
    if missing := probe().missing:
        pytest.skip(f"this kernel lacks {', '.join(missing)}")

    def program(source: str, **limits: float) -> Outcome:
        return run(source, level="unrestricted", limits=SandboxLimits(**limits))  # pyright: ignore[reportArgumentType]

    return program


@pytest.fixture
def without_monty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monty, "is_installed", lambda: False)


@pytest.fixture
def without_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that has rlimits and nothing else, as macOS is."""
    monkeypatch.setattr(confinement, "probe", lambda: Layers(rlimits=True))


@pytest.fixture
def descriptors() -> Iterator[None]:
    """Fails the test if it leaves a descriptor open or a process unreaped."""
    run("1", level="strict")  # what Monty opens once, for all its runs, is not left by a test
    before, others = _open_descriptors(), children()
    yield
    # Less than before, if a process that was warm then has been killed.
    assert _open_descriptors() <= before
    assert children() <= others


def children() -> set[str]:
    """The processes this one has started and not reaped; a test before may keep one, as a database does."""
    tasks = Path("/proc/self/task")
    if not tasks.exists():
        return set()
    found = set[str]()
    for task in tasks.iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread may end while we look
            found.update(task.joinpath("children").read_text().split())
    return found


def _open_descriptors() -> int:
    here = Path("/proc/self/fd") if Path("/proc/self/fd").exists() else Path("/dev/fd")
    return len(list(here.iterdir()))
