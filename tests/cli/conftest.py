from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from defserve.cli import main
from tests.cli.running import Outcome, Run


@pytest.fixture
def defserve(capsys: pytest.CaptureFixture[str]) -> Run:
    """The command line, in this process."""

    def run(*argv: str) -> Outcome:
        code = main(argv)
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder. What other tests have imported from theirs is forgotten, and what this one does, too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    _forget_modules_below(tmp_path.parent)
    yield tmp_path
    _forget_modules_below(tmp_path)


def _forget_modules_below(folder: Path) -> None:
    # Threads of other tests may import meanwhile, and a lazy module may import when it is asked for anything.
    for name, module in sys.modules.copy().items():
        if str(getattr(module, "__dict__", {}).get("__file__") or "").startswith(str(folder)):
            sys.modules.pop(name, None)
