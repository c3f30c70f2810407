"""The example of the page on evals, gone through as the page says it: a matrix, a gate, a suggestion."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from defserve.cli import main
from tests.examples.conftest import EXAMPLES

SUITE = ("shelf.py", "shelf.eval.yaml", "--model", "chat:scripted")


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The scripted model, run as a person runs it, in a copy of the folder."""
    folder = tmp_path / "evals"
    shutil.copytree(EXAMPLES / "evals", folder)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    model = subprocess.Popen([sys.executable, "scripted_model.py", "0"], stdout=subprocess.PIPE, text=True)
    assert model.stdout is not None
    yield model.stdout.readline().split()[-1]
    model.kill()
    model.wait()
    model.stdout.close()


def evaluate(*words: str) -> int:
    # Each command is a process of its own for a person, so it loads the server again.
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(Path.cwd())):
            del sys.modules[name]
    return main(["eval", *SUITE, *words])


def test_a_first_matrix_a_gate_and_a_suggestion(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate("--url", url) == 1
    assert "lost: return_book to lend (60)" in capsys.readouterr().out

    assert evaluate("--url", url, "--suggest") == 1
    assert "+Take a book back from a person. For requests with: finished" in capsys.readouterr().out

    server = Path("shelf.py")
    old, new = "back from a person.", "back from a person who finished reading it."
    server.write_text(server.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    assert evaluate("--replay") == 3
    assert "stale: 26 cases" in capsys.readouterr().err

    assert evaluate("--url", url) == 0
    monkeypatch.setenv("CI", "true")
    assert evaluate() == 0
