"""A command loads a file without serving it, and blames the author's own line if that fails."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from defserve.errors import UsageError
from defserve.server.server import Server
from defserve.tooling.loading import load_without_serving
from tests.loaded_modules import forget_modules_below

HEAD = 'from defserve import Server\nserver = Server("a")\n'


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """`mine.py` in an empty current folder, which nobody has imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path / "mine.py"
    forget_modules_below(tmp_path)


def failure(file: Path, code: str) -> UsageError:
    file.write_text(code)
    with pytest.raises(UsageError) as raised:
        load_without_serving(file.name)
    return raised.value


@pytest.mark.parametrize("line", ["server.main()", "server.run()", "server.run('http://127.0.0.1:1/mcp')"])
def test_a_file_that_serves_without_a_guard_is_loaded_and_not_served(
    file: Path, monkeypatch: pytest.MonkeyPatch, line: str
):
    monkeypatch.setattr(sys, "argv", ["defserve", "list", "mine.py"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    file.write_text(f"{HEAD}{line}\nafter = 1\n")
    run, main = Server.run, Server.main
    assert load_without_serving("mine.py").name == "a"
    assert sys.modules["mine"].after == 1
    assert (Server.run, Server.main) == (run, main)


def test_a_file_that_fails_leaves_servers_able_to_serve(file: Path):
    run = Server.run
    failure(file, f"{HEAD}1 / 0\n")
    assert Server.run is run


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("import json\n\nx = json.loads('{nope')\n", 3),
        ("import pytest\npytest.mark._x\n", 2),
        ("import json\ndef read():\n    json.loads('{')\nread()\n", 3),
        ("\n1 / 0\n", 2),
    ],
    ids=["Python", "a package", "a helper of the author", "no library"],
)
def test_the_authors_own_line_is_blamed(file: Path, code: str, line: int):
    assert failure(file, code).where == f"mine.py:{line}"


def test_a_file_with_a_syntax_error_is_named_with_its_line(file: Path):
    assert failure(file, "\n\nx = (\n").where == "mine.py:3"


def test_text_that_is_compiled_is_blamed_on_who_compiles_it(file: Path):
    assert failure(file, "\ncompile('x = (', '<text>', 'exec')\n").where == "mine.py:2"


def test_a_declaration_that_cannot_work_keeps_its_own_place(file: Path):
    error = failure(file, f"{HEAD}\n\n@server.tool(nme='x')\ndef f(): ...\n")
    assert (error.where, error.fix) == ("mine.py:5", "did you mean 'name'?")


def test_the_exception_itself_is_kept_for_whoever_wants_its_traceback(file: Path):
    assert isinstance(failure(file, "1 / 0\n").__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("code", "where", "told"),
    [
        ("import sys\nsys.exit(3)\n", "mine.py:2", "(exit 3)"),
        ("raise SystemExit\n", "mine.py:1", "(exit 0)"),
        ("import sys\n\nsys.exit('no key')\n", "mine.py:3", "(exit 1: no key)"),
        ("import argparse\nargparse.ArgumentParser().parse_args(['--x'])\n", "mine.py:2", "(exit 2)"),
    ],
)
def test_a_file_that_ends_the_program_is_named(file: Path, code: str, where: str, told: str):
    error = failure(file, code)
    assert (error.where, error.problem) == (where, f"mine.py ended the program while it was loaded {told}")
    assert '`if __name__ == "__main__":`' in error.fix


@pytest.mark.parametrize("given", ["pkg/inner/mine.py", "mine.py"])
def test_a_relative_import_in_a_file_is_met_with_the_module(file: Path, monkeypatch: pytest.MonkeyPatch, given: str):
    folder = file.parent / "pkg" / "inner"
    folder.mkdir(parents=True)
    for each in (folder, folder.parent):
        (each / "__init__.py").write_text("")
    (folder / "mine.py").write_text(f"from . import other\n{HEAD}")
    if given == "mine.py":
        monkeypatch.chdir(folder)
    with pytest.raises(UsageError) as raised:
        load_without_serving(given)
    assert raised.value.where == f"{given}:1"
    place = f"in {file.parent}, " if given == "mine.py" else ""
    assert raised.value.fix == f"{place}name the module instead of the file: defserve list pkg.inner.mine"


def test_a_server_that_is_not_ours_is_loaded(file: Path):
    file.write_text(
        "class Other:\n    def connect(self): ...\n    def run(self): ...\nserver = Other()\nserver.run()\n"
    )
    found: Any = load_without_serving("mine.py")
    assert type(found).__name__ == "Other"
