from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.cli.goldens import Terminal


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal of 40 columns that takes stdout and stderr of the room. pytest puts its own in place of sys.stdout."""
    made = Terminal()
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("defserve.cli.screen.sys", SimpleNamespace(stdout=made, stderr=made))
    return made
