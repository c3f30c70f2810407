"""Whatever Python is given to it: it is rewritten or left alone, never a traceback, and what compiled still does."""

from __future__ import annotations

import ast
import sysconfig
from hashlib import sha256
from pathlib import Path

import pytest

from defserve.errors import UsageError
from defserve.tooling.migrate.migration import migrate, migrate_files

# Without an import of theirs nothing would be looked at. Names of the standard library become servers and contexts.
HEAD = """from fastmcp import Context, FastMCP
from mcp import types
from mcp.server.lowlevel import Server
mcp = self = os = FastMCP("x")
def given(cls: Context, name: Context, **rest): ...
"""


def programs(count: int, most_bytes: int) -> list[Path]:
    """Files of the standard library, in an order that nobody chose."""
    root = Path(sysconfig.get_path("stdlib"))
    files = [path for path in root.rglob("*.py") if "site-packages" not in path.parts]
    small = (path for path in files if path.stat().st_size < most_bytes)
    return sorted(small, key=lambda path: sha256(path.relative_to(root).as_posix().encode()).hexdigest())[:count]


def check(path: Path) -> None:
    source = path.read_bytes().decode("utf-8", "replace")
    program = HEAD + source.replace("from __future__ import", "from future import")
    try:
        ast.parse(program)
    except SyntaxError:
        try:
            migrate(program)
        except UsageError:
            pass
        return
    ast.parse(migrate(program).text)


def test_any_program_goes_through() -> None:
    for path in programs(8, 8_000):
        check(path)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_programs_go_through() -> None:
    for path in programs(60, 40_000):
        check(path)


@pytest.mark.parametrize(
    "source",
    [
        "",
        "\x00",
        "def (",
        "from fastmcp import *",
        "from mcp.server import Server\nserver = Server()\n@server.call_tool()\ndef f(): ...",
        "from fastmcp import FastMCP\nFastMCP().tool()(lambda: 1)",
        "from fastmcp import FastMCP\nmcp = FastMCP(*a, **b)\nmcp.run(*a)\n@mcp.tool(*a)\ndef f(*a, b=1, **c): ...",
        "from fastmcp import FastMCP, Depends\n@FastMCP().tool\ndef f(a=1, b: int = Depends(g), *, c=Depends()): ...",
        "from fastmcp import Context\nasync def f(c: Context):\n    await c.report_progress(*a)\n    await c.log()",
        "from fastmcp import Context\nasync def f(c: Context):\n    await c.report_progress(1, 2, '', 4)",
        "from mcp.types import TextContent, ToolAnnotations\nTextContent()\nToolAnnotations(**a)",
        "from fastmcp.prompts import Message\nMessage(role=1)\nMessage(*a)",
        "from . import app\nfrom .. import mcp\nimport fastmcp\napp.mcp.run()",
        "x = " + "(" * 500 + ")" * 500,
    ],
)
def test_odd_programs_go_through(source: str) -> None:
    try:
        migrate(source)
    except UsageError as error:
        assert "this is not valid Python" in error.problem


def test_a_project_with_a_broken_file_is_migrated_without_it() -> None:
    app = "from fastmcp import FastMCP\nmcp = FastMCP('x')\n"
    tools = "from .app import mcp\n@mcp.tool(tags={'a'})\ndef f(): ...\n"
    files = {"p/app.py": app, "p/tools.py": tools, "p/broken.py": "def ("}
    done = migrate_files({Path(path): source for path, source in files.items()})
    assert "Server('x')" in done[Path("p/app.py")].text
    assert "tags=['a']" in done[Path("p/tools.py")].text
    assert done[Path("p/broken.py")].text == "def (" and done[Path("p/broken.py")].notes


def test_a_server_that_a_function_of_another_file_makes_is_known() -> None:
    app = "from mcp.server import MCPServer\ndef make(name) -> MCPServer[int]:\n    return MCPServer(name)\n"
    main = "import asyncio\nfrom p.app import make\napp = make('x')\nasyncio.run(app.run_stdio_async())\n"
    done = migrate_files({Path("p/app.py"): app, Path("p/main.py"): main})
    assert "def make(name) -> Server:\n    return Server(name)" in done[Path("p/app.py")].text
    assert done[Path("p/main.py")].text.endswith("app = make('x')\napp.run()\n")


def test_what_a_function_of_another_file_returns_is_known() -> None:
    main = "from fastmcp import FastMCP\nfrom p.prices import price\nmcp = FastMCP('x')\nmcp.tool(price)\n"
    done = migrate_files({Path("p/prices.py"): "def price() -> float: ...\n", Path("p/main.py"): main})
    assert done[Path("p/main.py")].text.endswith("mcp.tool(price, structured=True)\n")
    assert done[Path("p/main.py")].notes == []
