"""A folder full of files that are called like libraries: commands work, and authors still import their own."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

import defserve
from defserve.base.search_path import LIBRARIES
from tests.imports import import_statements

ROOT = Path(defserve.__file__).parent
SERVER = """
from defserve import Server
import helper

server = Server("plain")

@server.tool
def add(a: int, b: int) -> int:
    return helper.add(a, b)
"""
TEST = "def test_it(client):\n    assert client.call('add', a=1, b=2) == 3\n"
PROJECT = '[project]\nname = "plain"\nversion = "1"\n[tool.pytest.ini_options]\npythonpath = []\n'


def imported_names() -> set[str]:
    """The top-level names of everything that the package imports, wherever the import hides."""
    found: set[str] = set()
    for path in ROOT.rglob("*.py"):
        for node in import_statements(path.read_text()):
            if isinstance(node, ast.Import):
                found.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found.add(str(node.module).partition(".")[0])
    return found - {"defserve"}


def library_names() -> set[str]:
    """Every module that Python or an installed distribution has, and those that we would import."""
    installed = {name for name in importlib.metadata.packages_distributions() if name.isidentifier()}
    # `requests`, which a pytest plugin here needs, imports these by name, as one imports a module of an author.
    others = {"defserve", "__main__", "chardet", "charset_normalizer"}
    return (set(sys.stdlib_module_names) | installed | LIBRARIES | {"httpx", "orjson"}) - others


def hostile_folder(folder: Path, names: set[str]) -> Path:
    for name in names:
        (folder / f"{name}.py").write_text(f"raise RuntimeError('{name}.py of the author was imported')\n")
    (folder / "helper.py").write_text("def add(a, b):\n    return a + b\n")
    (folder / "server.py").write_text(SERVER)
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "tests").mkdir()
    (folder / "tests" / "test_plain.py").write_text(TEST)
    (folder / "tests" / "conftest.py").write_text(
        "import pytest\n\n\n@pytest.fixture\ndef server():\n    from server import server\n    return server\n"
    )
    return folder


def run(folder: Path, *words: str, program: tuple[str, ...] = ("-P", "-m", "defserve")) -> str:
    # With colours, so that rich is imported.
    env = {
        **os.environ,
        "COLUMNS": "100",
        "FORCE_COLOR": "1",
        "HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder / "config"),
    }
    env.pop("PYTHONPATH", None)
    done = subprocess.run(
        [sys.executable, *program, *words],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "of the author was imported" not in done.stdout + done.stderr, done.stdout + done.stderr
    return done.stdout + done.stderr


def adding(target: str) -> tuple[str, ...]:
    """A call of the tool of `SERVER`, which imports its neighbour. No other command starts as fast."""
    return "call", target, "add", "a=100", "b=23"


def test_the_table_lists_what_the_package_imports() -> None:
    assert {name for name in imported_names() if name not in sys.stdlib_module_names} <= LIBRARIES


OPENING = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
    }
)

COMMANDS = {
    "list": (("list", "server.py"), "add"),
    "call": (("call", "server.py", "add", "a=1", "b=2"), "3"),
    "inspect": (("inspect", "server.py"), "plain"),
    "check": (("check", "server.py"), ""),
    "doctor": (("doctor",), "Python"),
    "test": (("test", ".", "--", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"), "2 passed"),
    "module": (("list", "server:server"), "add"),
}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_work_beside_files_with_the_names_of_all_libraries(command: str, tmp_path: Path) -> None:
    folder = hostile_folder(tmp_path, library_names())
    words, shown = COMMANDS[command]
    said = run(folder, *words)
    assert shown in said, said


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "dev"])
def test_servers_start_beside_files_with_the_names_of_all_libraries(command: str, tmp_path: Path) -> None:
    folder, error = hostile_folder(tmp_path, library_names()), tmp_path / "stderr"
    with (
        error.open("w") as said,
        subprocess.Popen(
            [sys.executable, "-P", "-m", "defserve", command, "server.py"],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(f"{OPENING}\n")
            process.stdin.flush()
            assert '"protocolVersion"' in process.stdout.readline(), error.read_text()
        finally:
            process.terminate()  # not killed: it removes its temporary folder


def test_a_command_works_beside_a_file_with_the_name_of_a_library_of_ours(tmp_path: Path) -> None:
    folder = hostile_folder(tmp_path, {"rich", "redis", "yaml", "uvicorn", "httpx2", "statistics", "calendar"})
    assert "add" in run(folder, "list", "server.py", program=("-m", "defserve"))


AUTHORS = """
import calendar, code_names
from defserve import Server
server = Server("own")
@server.tool
def which() -> list[str]:
    return [calendar.__file__, code_names.__file__]
"""


def test_an_author_imports_the_files_beside_the_server(tmp_path: Path) -> None:
    for name in ("calendar", "code_names"):
        (tmp_path / f"{name}.py").write_text("")
    (tmp_path / "server.py").write_text(AUTHORS)
    said = run(tmp_path, "call", "server.py", "which")
    assert str(tmp_path / "code_names.py") in said and str(tmp_path / "calendar.py") in said


def test_who_means_a_file_that_a_library_hides_is_told_to_rename_it(tmp_path: Path) -> None:
    (tmp_path / "anyio.py").write_text("mine = 1\n")
    (tmp_path / "server.py").write_text("from anyio import mine\n")
    assert "rename anyio.py" in run(tmp_path, "call", "server.py", "add")
    (tmp_path / "server.py").write_text("import anyio\nanyio.mine\n")
    assert "rename anyio.py" in run(tmp_path, "call", "server.py", "add")


@pytest.mark.parametrize("name", ["rich", "calendar"])
def test_the_server_itself_may_have_the_name_of_a_library(name: str, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("def add(a, b):\n    return a + b\n")
    (tmp_path / f"{name}.py").write_text(SERVER)
    assert "123" in run(tmp_path, *adding(f"{name}.py"))


def test_a_server_named_by_its_file_imports_its_neighbours_and_nothing_of_the_current_folder(tmp_path: Path) -> None:
    (server := tmp_path / "server").mkdir()
    (here := tmp_path / "here").mkdir()
    hostile_folder(server, set())
    for name in ("docstring_parser", "helper", "click", "fallback"):
        (here / f"{name}.py").write_text(f"raise RuntimeError('{name}.py of the author was imported')\n")
    source = SERVER + "\ntry:\n    import fallback\nexcept ModuleNotFoundError:\n    pass\n"
    (server / "server.py").write_text(source)
    for target in (str(server / "server.py"), "../server/server.py:server"):
        assert "123" in run(here, *adding(target))
    (here / "plain.py").write_text(SERVER.replace("helper.add(a, b)", "a + b").replace("import helper", ""))
    assert "123" in run(here, *adding("plain:server"))


@pytest.mark.parametrize("suffix", [".py", ".pyc", ".so"])
def test_no_kind_of_file_in_an_authors_folder_takes_the_place_of_a_library(suffix: str, tmp_path: Path) -> None:
    from importlib.machinery import EXTENSION_SUFFIXES

    if suffix == ".so":
        (tmp_path / f"rich{EXTENSION_SUFFIXES[0]}").write_bytes(b"not a library")
    else:
        (tmp_path / "rich.py").write_text("raise RuntimeError('rich of the author was imported')\n")
    if suffix == ".pyc":
        py_compile.compile(str(tmp_path / "rich.py"), str(tmp_path / "rich.pyc"))
        (tmp_path / "rich.py").unlink()
    code = (
        "import sys; from defserve.base.search_path import add_author_import_folder; add_author_import_folder('.'); "
        "import rich; print(rich.print)"
    )
    assert "<function print" in run(tmp_path, "-c", code, program=("-P",))


@pytest.mark.parametrize("suffix", [".py", ".pyc"])
def test_a_library_gets_no_module_that_only_an_authors_folder_has(suffix: str, tmp_path: Path) -> None:
    (folder := tmp_path / "author").mkdir()
    (installed := tmp_path / "installed").mkdir()
    (installed / "alibrary.py").write_text(
        "try:\n    import optional\nexcept ModuleNotFoundError:\n    print('absent')\n"
    )
    (folder / "optional.py").write_text("raise RuntimeError('optional of the author was imported')\n")
    if suffix == ".pyc":
        py_compile.compile(str(folder / "optional.py"), str(folder / "optional.pyc"))
        (folder / "optional.py").unlink()
    code = (
        f"import sys; sys.path.append({str(installed)!r})\n"
        "from defserve.base.search_path import add_author_import_folder; add_author_import_folder('.'); import alibrary"
    )
    assert "absent" in run(folder, "-c", code, program=("-P",))
