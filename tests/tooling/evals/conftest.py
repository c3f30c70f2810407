"""A shelf of books, a suite for it, and the command, run in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from defserve.cli import main
from tests.loaded_modules import forget_modules_below

SERVER = '''
from defserve import Server, dangerous, safe

server = Server("shelf", instructions="A small library.")
RAN = []

@server.tool
@safe
def find_books(text: str, limit: int = 10) -> list[str]:
    """Find books by title or author.

    Args:
        text: a part of the title or the author
        limit: the most books to return
    """
    RAN.append("find_books")
    return ["Solaris"]

@server.tool
def lend(title: str) -> str:
    """Lend a book to a person.

    Args:
        title: the title of the book
    """
    RAN.append("lend")
    return f"lent {title}"

@server.tool
def give_back(title: str) -> str:
    """Take a book back from a person.

    Args:
        title: the title of the book
    """
    RAN.append("give_back")
    return f"took {title}"

@server.tool
@dangerous("memory.write")
def forget(title: str) -> str:
    """Forget a book for good.

    Args:
        title: the title of the book
    """
    RAN.append("forget")
    return f"forgot {title}"
'''
SUITE = """
runs: 5
cases:
  - name: by author
    prompt: Which books by Lem do we have?
    expect: {find_books: {text: {contains: lem}, limit: {absent: true}}}
    forbid: [forget]
    tags: [search]
    weight: 2
  - {name: small talk, prompt: Good morning!, expect: none}
  - name: return it
    prompt: I have read Solaris, here it is.
    expect: {give_back: {title: {like: solaris}}}
"""


class Ran(NamedTuple):
    code: int
    out: str
    err: str


class Shelf(NamedTuple):
    """A folder with a server and a suite."""

    folder: Path
    evaluate: Callable[..., Ran]

    @property
    def suite(self) -> Path:
        return self.folder / "shelf.eval.yaml"

    @property
    def server(self) -> Path:
        return self.folder / "shelf_server.py"

    def write_suite(self, text: str) -> None:
        self.suite.write_text(text, encoding="utf-8")

    def edit_server(self, old: str, new: str) -> None:
        text = self.server.read_text(encoding="utf-8")
        assert old in text
        self.server.write_text(text.replace(old, new), encoding="utf-8")

    @property
    def recordings(self) -> list[Path]:
        return sorted(self.folder.glob("*.jsonl"))


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shelf:
    """The command is run in the folder, as a person would, outside of CI."""
    (tmp_path / "shelf_server.py").write_text(SERVER, encoding="utf-8")
    (tmp_path / "shelf.eval.yaml").write_text(SUITE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    # An edit within one second would not be seen.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("CI", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)

    def evaluate(*words: Any) -> Ran:
        capsys.readouterr()
        # Each command is a process of its own for a person, so it loads the server again.
        forget_modules_below(tmp_path)
        code = main(["eval", "shelf_server.py", *map(str, words)])
        shown = capsys.readouterr()
        return Ran(code, shown.out, shown.err)

    return Shelf(tmp_path, evaluate)
