"""Imports go down only, wherever they hide; and what knows no protocol names none."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.imports import PACKAGE, circle, edges, graph, knots, modules

# What everyone may import.
OPEN = {"base", "errors", "limits", "core.json_values"}

PROTOCOLS = {"protocols.mcp", "protocols.mgp", "protocols.mcpl", "protocols.mcpx"}
UNDER_PROTOCOLS = {"binding", "guard", "sandbox", "search", "stores", "auth", "core"}
UNDER_SERVER = PROTOCOLS | UNDER_PROTOCOLS | {"protocols", "serve", "client"}
# Authors import from the root (""), so who stands above the server may as well.
UNDER_TOOLS = UNDER_SERVER | {"context", "server", ""}

# Package → the packages it may import, besides itself and what is open to everyone. A dotted name is one module
# or one package inside another.
ALLOWED: dict[str, set[str]] = {
    "base": set(),
    "core": set(),
    "binding": set(),
    "guard": set(),
    "stores": set(),
    "search": set(),
    "sandbox": {"guard"},
    "auth": {"guard", "stores"},
    "serve": {"core", "auth", "stores"},
    "protocols": set(),
    "protocols.mcp": UNDER_PROTOCOLS,
    "protocols.mgp": UNDER_PROTOCOLS | {"protocols.mcp"},
    "protocols.mcpl": UNDER_PROTOCOLS | {"protocols.mcp"},
    "protocols.mcpx": UNDER_PROTOCOLS | {"protocols.mcp"},
    "client": {"serve", "auth.oauth", "guard", "stores", "core"} | PROTOCOLS,
    "gateway": {"protocols.mcpx", "serve", "auth", "core"},
    "live": {"protocols.mcpl"},
    "state": {"protocols.mcpl", "stores"},
    "topics": {"protocols.mcpx"},
    "extending": {"core", "stores", "protocols.mcp"},
    "proxying": UNDER_SERVER,
    "code_mode": UNDER_SERVER,
    "context": UNDER_SERVER,
    "openapi": UNDER_PROTOCOLS | {"protocols.mcp", "protocols.mgp"},
    "server": UNDER_SERVER | {"code_mode", "context", "openapi", "proxying"},
    "": UNDER_SERVER | {"code_mode", "context", "proxying", "server"},
    "tooling": UNDER_TOOLS,
    "testing": UNDER_TOOLS | {"tooling"},
    "kernel": UNDER_TOOLS | {"proxying", "tooling"},
    "inspector": UNDER_TOOLS | {"gateway", "kernel", "tooling"},
    "cli": UNDER_TOOLS | {"gateway", "inspector", "kernel", "testing", "tooling"},
    "__main__": {"cli"},
}

# HTTP has headers and paths of a protocol, and an address in an error text ends in one; the rest of `serve` has none.
NAMELESS = ("core", "serve")
MAY_NAME = ("serve.http", "serve.outbound")

PROTOCOL_WORDS = re.compile(
    r"(?:(?<![A-Za-z])(?:mcp[lx]?|mgp)|M(?:cp[lx]?|gp)|M(?:CP[LX]?|GP))(?![a-z])"
    r"|(?i:\binitialized?\b"
    r"|\b(?:tools|resources|prompts)/(?:call|list|read|get|subscribe|unsubscribe|templates|validate)\b"
    r"|\b(?:completion|logging|roots|sampling|elicitation|subscriptions|notifications|context|channels|push)/[a-z]"
    r"|\bserver/discover\b"
    r"|\b(?:inputSchema|structuredContent|isError|requestState|protocolVersion)\b"
    r"|\b20\d\d-\d\d-\d\d\b)"
)


def layer(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "protocols" else parts[0]


def upward(package: Path) -> list[str]:
    """The forbidden edges, each as a line to read. What only type checkers import may look upwards."""
    return [
        f"{edge.source or package.name}:{edge.line} imports {edge.target or package.name}"
        for edge in edges(package)
        if not edge.only_types
        and not _is_within(edge.target, ALLOWED.get(layer(edge.source), set()) | OPEN | {layer(edge.source)})
    ]


def _is_within(module: str, places: set[str]) -> bool:
    """Whether a module is one of the places, or lies on a floor that is one."""
    return any(place in places for place in (layer(module), module, module.rpartition(".")[0]))


def protocol_words(package: Path, layers: tuple[str, ...] = NAMELESS) -> list[str]:
    """Where a layer that knows no protocol names one: in code, text or comment."""
    return [
        f"{path.relative_to(package)}:{number} says {found[0]!r}"
        for module, path in modules(package).items()
        if layer(module) in layers and not module.startswith(MAY_NAME)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (found := PROTOCOL_WORDS.search(line))
    ]


def test_every_module_belongs_to_a_layer() -> None:
    assert sorted({layer(module) for module in modules(PACKAGE)} - set(ALLOWED) - OPEN) == []


def test_the_table_itself_has_no_circle() -> None:
    below = {name: allowed - {name} for name, allowed in ALLOWED.items()}
    while leaves := [name for name, allowed in below.items() if not allowed & set(below)]:
        for name in leaves:
            del below[name]
    assert below == {}


def test_core_and_serve_name_no_protocol() -> None:
    assert protocol_words(PACKAGE) == []


# -- modules and packages

MAX_AT_THE_ROOT = 30
MAX_LINES = 700
MIN_MODULES = 3


def knotted(package: Path) -> list[str]:
    """Circles of files that import each other when they run, inside functions or not."""
    running = graph(edge for edge in edges(package) if not edge.only_types)
    return [f"{len(knot)} files: {circle(running, knot)}" for knot in knots(running)]


# One test, because each that ran in a process of its own would read all files again.
RULES = {
    "imports go down only": upward,
    "no files import each other in a circle": knotted,
}


def test_imports_keep_the_rules_of_the_house() -> None:
    broken = {rule: found for rule, find in RULES.items() if (found := find(PACKAGE))}
    assert broken == {}


def test_every_package_says_what_it_is_for() -> None:
    files = [path for path in modules(PACKAGE).values() if path.name == "__init__.py"]
    assert [path for path in files if ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) is None] == []


def test_a_package_has_several_modules() -> None:
    packages = {path.parent for path in modules(PACKAGE).values() if path.name == "__init__.py"}
    few = [
        package.relative_to(PACKAGE).as_posix()
        for package in packages
        if len([child for child in package.iterdir() if child.suffix == ".py" or child in packages]) <= MIN_MODULES
    ]
    assert few == []


def test_no_module_is_longer_than_a_chapter() -> None:
    lengths = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in modules(PACKAGE).items()}
    assert {module: length for module, length in lengths.items() if length > MAX_LINES} == {}


def test_few_entries_lie_at_the_root() -> None:
    assert len({module.partition(".")[0] for module in modules(PACKAGE)}) <= MAX_AT_THE_ROOT


@pytest.mark.parametrize(
    ("sources", "found"),
    [
        ({"a": "import defserve.b", "b": "def f():\n    from defserve import a"}, ["2 files: a → b → a"]),
        ({"a": "import defserve.b", "b": "if TYPE_CHECKING:\n    from defserve import a"}, []),
        ({"a": "import defserve.b", "b": "LAZY = 'defserve.a:A'"}, ["2 files: a → b → a"]),
        ({"a": "import defserve.b", "b": "import defserve.c", "c": "import defserve.a"}, ["3 files: a → b → c → a"]),
        ({"a": "import defserve.b, defserve.c", "b": "import defserve.c", "c": ""}, []),
    ],
)
def test_a_knot_is_found_and_shown(tmp_path: Path, sources: dict[str, str], found: list[str]) -> None:
    for name, source in {"__init__": "", **sources}.items():
        write(tmp_path / "defserve" / f"{name}.py", source)
    assert knotted(tmp_path / "defserve") == found


# ------------------------------------------------------------------------------------------------------ the finders


@pytest.mark.parametrize(
    ("path", "source", "found"),
    [
        ("base/codec.py", "import defserve.core.session", ["base.codec:1 imports core.session"]),
        ("base/codec.py", "from defserve.core import session", ["base.codec:1 imports core.session"]),
        ("base/codec.py", "from defserve.core.session import Session", ["base.codec:1 imports core.session"]),
        ("base/codec.py", "from ..core.session import Session", ["base.codec:1 imports core.session"]),
        ("base/__init__.py", "from ..core import session", ["base:1 imports core.session"]),
        ("base/codec.py", "def f():\n    import defserve.server.server", ["base.codec:2 imports server"]),
        ("base/codec.py", "if TYPE_CHECKING:\n    from defserve import Server", []),
        ("core/call.py", "import_module('defserve.server.server')", ["core.call:1 imports server"]),
        ("core/call.py", "LAZY = {'run': 'defserve.server.server:Server'}", ["core.call:1 imports server"]),
        ("core/call.py", "from defserve.base.codec import decode\nfrom defserve.errors import Refused", []),
        ("core/call.py", "from .session import Session\nfrom . import session", []),
        (
            "protocols/mgp/audit.py",
            "from defserve.protocols.mcpl.push.push import push",
            ["mgp.audit:1 imports mcpl.push"],
        ),
        ("protocols/mgp/audit.py", "from defserve.protocols.mcp.tools import Tool", []),
        ("protocols/mcp/tools.py", "from defserve.protocols.mgp import audit", ["mcp.tools:1 imports mgp.audit"]),
        ("server.py", "def run():\n    from defserve.core.session import Session", []),
        ("core/call.py", "# see defserve.server.server\n'''Not defserve.server.server either.'''", []),
    ],
)
def test_an_upward_import_is_found_wherever_it_hides(tmp_path: Path, path: str, source: str, found: list[str]) -> None:
    house = tmp_path / "defserve"
    for name in ("server", "errors", "base/codec", "core/call", "core/session", "protocols/mcp/tools"):
        write(house / f"{name}.py")
    for name in ("protocols/mgp/audit", "protocols/mcpl/push", "__init__", "base/__init__", "core/__init__"):
        write(house / f"{name}.py")
    write(house / path, source)
    assert [line.replace("protocols.", "") for line in upward(house)] == found


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("MCP_VERSION = 1", True),
        ("# as MCPL wants", True),
        ("mgp_grants", True),
        ("def open_mcp(): ...", True),
        ("class McpSession: ...", True),
        ("if method == 'initialize':", True),
        ("'tools/call'", True),
        ("'notifications/cancelled'", True),
        ("'2026-07-28'", True),
        ("the tools and resources an author initialises", False),
        ("JSON-RPC 2.0", False),
    ],
)
def test_a_protocol_is_recognised_by_its_words(tmp_path: Path, line: str, named: bool) -> None:
    write(tmp_path / "core" / "call.py", line)
    assert bool(protocol_words(tmp_path)) is named


def write(path: Path, source: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
