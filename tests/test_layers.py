"""Imports go down only, wherever they hide; and what knows no protocol names none."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parents[1] / "framework" / "defserve"

OPEN = {"errors", "jsonvalue", "limits", "redaction", "stepping", "version"}

PROTOCOLS = {"protocols.mcp", "protocols.mgp", "protocols.mcpl", "protocols.mcpx"}
UNDER_PROTOCOLS = {"binding", "guard", "sandbox", "net", "stores", "auth", "core", "wire"}
UNDER_SERVER = PROTOCOLS | UNDER_PROTOCOLS | {"protocols", "transports", "runner", "host"}
# Authors import from the root (""), so who stands above the server may as well.
UNDER_TOOLS = UNDER_SERVER | {"context", "server", ""}

# Layer → the layers it may import, besides itself and the open modules.
ALLOWED: dict[str, set[str]] = {
    "wire": set(),
    "binding": set(),
    "guard": set(),
    "stores": set(),
    "core": {"wire"},
    "sandbox": {"guard"},
    "net": {"guard"},
    "auth": {"stores"},
    "protocols": set(),
    "protocols.mcp": UNDER_PROTOCOLS,
    "protocols.mgp": UNDER_PROTOCOLS | {"protocols.mcp"},
    "protocols.mcpl": UNDER_PROTOCOLS | {"protocols.mcp"},
    "protocols.mcpx": UNDER_PROTOCOLS | {"protocols.mcp"},
    "transports": {"stores", "auth", "wire"},
    "runner": {"transports", "core", "wire"},
    "host": {"transports", "stores", "core", "wire"} | PROTOCOLS,
    "gateway": {"protocols.mcpx", "transports", "auth", "wire"},
    "options": {"protocols.mcp", "protocols.mgp"},
    "marks": {"options"},
    "live": {"protocols.mcpl"},
    "mounting": {"core", "protocols.mcp"},
    "export": set(),
    "rest": UNDER_SERVER | {"export"},
    "observing": {"core", "protocols.mcp", "wire"},
    "telemetry": {"core", "observing", "protocols.mcp"},
    "web": UNDER_SERVER | {"observing", "options", "rest"},
    "topics": UNDER_SERVER | {"web"},
    "context": UNDER_SERVER,
    "listed": {"protocols.mcp", "protocols.mgp", "core", "wire"},
    "serving": UNDER_SERVER | {"observing", "options", "topics", "web"},
    "server": UNDER_SERVER | {"context", "marks", "mounting", "options", "serving", "web"},
    "": UNDER_SERVER | {"context", "marks", "server"},
    "scaffold": set(),
    "devserver": UNDER_TOOLS | {"options", "web"},
    "clients": {"host"},
    "packaging": {"host"},
    "cli": UNDER_TOOLS
    | {"export", "gateway", "lint", "listed", "scaffold", "clients", "packaging", "devserver", "testing"},
    "testing": UNDER_TOOLS,
    "lint": UNDER_TOOLS | {"listed"},
    "inspector": UNDER_TOOLS,
    "kernel": UNDER_TOOLS,
    "__main__": {"cli"},
}

# Groups of entry points look like modules, and are none.
GROUPS = ("defserve.servers",)

NAMELESS = ("wire", "core", "runner")

PROTOCOL_WORDS = re.compile(
    r"(?:(?<![A-Za-z])(?:mcp[lx]?|mgp)|M(?:cp[lx]?|gp)|M(?:CP[LX]?|GP))(?![a-z])"
    r"|(?i:\binitialized?\b"
    r"|\b(?:tools|resources|prompts)/(?:call|list|read|get|subscribe|unsubscribe|templates|validate)\b"
    r"|\b(?:completion|logging|roots|sampling|elicitation|subscriptions|notifications|context|channels|push)/[a-z]"
    r"|\bserver/discover\b"
    r"|\b(?:inputSchema|structuredContent|isError|requestState|protocolVersion)\b"
    r"|\b20\d\d-\d\d-\d\d\b)"
)


class Edge(NamedTuple):
    """`source` imports `target`, both as dotted names below the package."""

    source: str
    target: str
    line: int


def modules(package: Path) -> dict[str, Path]:
    """Dotted name below the package → file. The package itself is the empty name."""
    return {
        ".".join(path.relative_to(package).with_suffix("").parts).removesuffix("__init__").rstrip("."): path
        for path in sorted(package.rglob("*.py"))
    }


def layer(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "protocols" else parts[0]


def edges(package: Path) -> Iterator[Edge]:
    """Every import of one of our modules by another: statements at any depth, and module names in strings."""
    known = modules(package)
    for source, path in known.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for name in _imported(node, source, path.name == "__init__.py", package.name):
                if (target := _module(name, known, package.name)) is not None:
                    yield Edge(source, target, getattr(node, "lineno", 0))


def _imported(node: ast.AST, source: str, is_package: bool, root: str) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            here = [root, *source.split(".")] if source else [root]
            above = here[: len(here) - level + is_package] if level else []
            base = ".".join([*above, *([module] if module else [])])
            return [f"{base}.{alias.name}" for alias in names]
        case ast.Constant(value=str(text)) if re.fullmatch(rf"{root}(\.\w+)+(:\w+)?", text) and text not in GROUPS:
            # Also a lazy import: `import_module("defserve.x")`, or a table of such names.
            return [text.partition(":")[0]]
        case _:
            return []


def _module(name: str, known: dict[str, Path], root: str) -> str | None:
    """The module of ours that `name` (a module, or something inside one) comes from."""
    first, _, below = name.partition(".")
    if first != root:
        return None
    while below not in known:
        below = below.rpartition(".")[0]
    return below


def upward(package: Path) -> list[str]:
    """The forbidden edges, each as a line to read."""
    return [
        f"{edge.source or package.name}:{edge.line} imports {edge.target or package.name}"
        for edge in edges(package)
        if layer(edge.target) not in ALLOWED.get(layer(edge.source), set()) | OPEN | {layer(edge.source)}
    ]


def protocol_words(package: Path, layers: tuple[str, ...] = NAMELESS) -> list[str]:
    """Where a layer that knows no protocol names one: in code, text or comment."""
    return [
        f"{path.relative_to(package)}:{number} says {found[0]!r}"
        for module, path in modules(package).items()
        if layer(module) in layers
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


def test_imports_go_down_only() -> None:
    assert upward(PACKAGE) == []


def test_wire_core_and_runner_name_no_protocol() -> None:
    assert protocol_words(PACKAGE) == []


@pytest.mark.parametrize(
    ("path", "source", "found"),
    [
        ("wire/codec.py", "import defserve.core.session", ["wire.codec:1 imports core.session"]),
        ("wire/codec.py", "from defserve.core import session", ["wire.codec:1 imports core.session"]),
        ("wire/codec.py", "from defserve.core.session import Session", ["wire.codec:1 imports core.session"]),
        ("wire/codec.py", "from ..core.session import Session", ["wire.codec:1 imports core.session"]),
        ("wire/__init__.py", "from ..core import session", ["wire:1 imports core.session"]),
        ("wire/codec.py", "def f():\n    import defserve.server", ["wire.codec:2 imports server"]),
        ("wire/codec.py", "if TYPE_CHECKING:\n    from defserve import Server", ["wire.codec:2 imports defserve"]),
        ("core/call.py", "import_module('defserve.server')", ["core.call:1 imports server"]),
        ("core/call.py", "LAZY = {'run': 'defserve.server:Server'}", ["core.call:1 imports server"]),
        ("core/call.py", "from defserve.wire.codec import decode\nfrom defserve.errors import Refused", []),
        ("core/call.py", "from .session import Session\nfrom . import session", []),
        ("protocols/mgp/audit.py", "from defserve.protocols.mcpl.push import push", ["mgp.audit:1 imports mcpl.push"]),
        ("protocols/mgp/audit.py", "from defserve.protocols.mcp.tools import Tool", []),
        ("protocols/mcp/tools.py", "from defserve.protocols.mgp import audit", ["mcp.tools:1 imports mgp.audit"]),
        ("server.py", "def run():\n    from defserve.core.session import Session", []),
        ("core/call.py", "# see defserve.server\n'''Not defserve.server either.'''", []),
    ],
)
def test_an_upward_import_is_found_wherever_it_hides(tmp_path: Path, path: str, source: str, found: list[str]) -> None:
    house = tmp_path / "defserve"
    for name in ("server", "errors", "wire/codec", "core/call", "core/session", "protocols/mcp/tools"):
        write(house / f"{name}.py")
    for name in ("protocols/mgp/audit", "protocols/mcpl/push", "__init__", "wire/__init__", "core/__init__"):
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
