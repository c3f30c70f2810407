from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from defserve.cli import main
from tests.cli.running import Outcome, Run
from tests.loaded_modules import forget_modules_below


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
    forget_modules_below(tmp_path.parent)
    yield tmp_path
    forget_modules_below(tmp_path)
