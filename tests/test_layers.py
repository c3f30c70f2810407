"""Imports go down only, wherever they hide; and what knows no protocol names none."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.imports import PACKAGE, circle, edges, graph, knots, modules

# What everyone may import.
OPEN = {"base", "errors", "limits", "redaction", "version", "wire.base64url", "wire.jsonvalue"}

PROTOCOLS = {"protocols.mcp", "protocols.mgp", "protocols.mcpl", "protocols.mcpx"}
UNDER_PROTOCOLS = {"binding", "guard", "sandbox", "net", "search", "stores", "auth", "core", "wire"}
UNDER_SERVER = PROTOCOLS | UNDER_PROTOCOLS | {"protocols", "transports", "runner", "host", "observing"}
# Authors import from the root (""), so who stands above the server may as well.
UNDER_TOOLS = UNDER_SERVER | {"context", "server", "serving", ""}

# Floor → the floors it may import, besides itself and what is open to everyone. A dotted name is one module
# or one room of a floor.
ALLOWED: dict[str, set[str]] = {
    "base": set(),
    "wire": set(),
    "binding": set(),
    "guard": set(),
    "stores": set(),
    "search": set(),
    "core": {"wire"},
    "sandbox": {"guard"},
    "net": {"guard"},
    "auth": {"net", "stores"},
    "protocols": set(),
    "protocols.mcp": UNDER_PROTOCOLS,
    "protocols.mgp": UNDER_PROTOCOLS | {"protocols.mcp"},
    "protocols.mcpl": UNDER_PROTOCOLS | {"protocols.mcp"},
    "protocols.mcpx": UNDER_PROTOCOLS | {"protocols.mcp"},
    "transports": {"stores", "auth", "wire", "core.stepping"},
    "runner": {"transports", "core", "wire"},
    "host": {"transports", "auth.challenges", "auth.oauth", "auth.urls", "guard", "stores", "core", "wire"} | PROTOCOLS,
    "gateway": {"protocols.mcpx", "transports", "auth", "wire"},
    "live": {"protocols.mcpl"},
    "extending": {"core", "stores"},
    "observing": {"core", "protocols.mcp", "wire"},
    "proxying": UNDER_SERVER,
    "code_mode": UNDER_SERVER,
    "context": UNDER_SERVER,
    "openapi": UNDER_PROTOCOLS | {"protocols.mcp", "protocols.mgp"},
    "serving": UNDER_SERVER,
    "server": UNDER_SERVER | {"code_mode", "context", "openapi", "proxying", "serving"},
    "": UNDER_SERVER | {"code_mode", "context", "proxying", "server"},
    "tooling": UNDER_TOOLS,
    "testing": UNDER_TOOLS | {"tooling"},
    "kernel": UNDER_TOOLS | {"proxying", "tooling"},
    "inspector": UNDER_TOOLS | {"gateway", "kernel", "tooling"},
    "cli": UNDER_TOOLS | {"gateway", "inspector", "kernel", "testing", "tooling"},
    "__main__": {"cli"},
}

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


def layer(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "protocols" else parts[0]


def upward(package: Path) -> list[str]:
    """The forbidden edges, each as a line to read."""
    return [
        f"{edge.source or package.name}:{edge.line} imports {edge.target or package.name}"
        for edge in edges(package)
        if not _is_within(edge.target, ALLOWED.get(layer(edge.source), set()) | OPEN | {layer(edge.source)})
    ]


def _is_within(module: str, places: set[str]) -> bool:
    """Whether a module is one of the places, or lies on a floor that is one."""
    return any(place in places for place in (layer(module), module, module.rpartition(".")[0]))


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


def test_wire_core_and_runner_name_no_protocol() -> None:
    assert protocol_words(PACKAGE) == []


# ------------------------------------------------------------------------------------------------------------- rooms

# Files of one conversation are one aggregate: they may know each other's types.
ONE_AGGREGATE = "core."
MOST_AT_THE_ROOT = 9
MOST_FLAT = 16
REASON = "Many files:"


def knotted(package: Path) -> list[str]:
    """Circles of files that import each other when they run, inside functions or not."""
    running = graph(edge for edge in edges(package) if not edge.only_types)
    return [f"{len(knot)} files: {circle(running, knot)}" for knot in knots(running)]


def knotted_by_types(package: Path, most: int = 3) -> list[str]:
    """Circles of more than `most` files, counting what is imported for type checkers alone."""
    every = graph(edges(package))
    return [
        f"{len(knot)} files: {circle(every, knot)}, among {', '.join(sorted(knot))}"
        for knot in knots(every)
        if len(knot) > most and not all(module.startswith(ONE_AGGREGATE) for module in knot)
    ]


def knotted_rooms(package: Path) -> list[str]:
    """Circles among what lies in one folder: files, and whole folders taken as one."""
    running = [edge for edge in edges(package) if not edge.only_types]
    folders = sorted({path.parent.relative_to(package) for path in modules(package).values()})
    found: list[str] = []
    for folder in folders:
        above = folder.parts
        rooms = graph(running, lambda module, above=above: _room(module, above))
        found += [circle(rooms, knot) for knot in knots(rooms)]
    return found


def _room(module: str, above: tuple[str, ...]) -> str | None:
    """What a module belongs to, seen from the folder `above`: a file or a folder in it. None: it lies elsewhere."""
    parts = tuple(module.split("."))
    return ".".join(parts[: len(above) + 1]) if parts[: len(above)] == above and len(parts) > len(above) else None


def doors(package: Path) -> Iterator[tuple[str, str, set[str]]]:
    """Every room, what its door says, and the names that it says the room may import."""
    for module, path in modules(package).items():
        if path.name == "__init__.py" and module:
            text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            _, _, allowed = text.partition("May import:")
            yield module, text, set(re.findall(r"`([\w.]+)`", allowed))


def uninvited(package: Path) -> list[str]:
    """Imports that a room's door does not speak of."""
    allowed = {room: names | OPEN | {room} for room, _, names in doors(package)}
    found: list[str] = []
    for edge in edges(package):
        room = edge.source if edge.source in allowed else edge.source.rpartition(".")[0]
        names = allowed.get(room)
        if names is not None and not any(f"{edge.target}.".startswith(f"{name}.") for name in names):
            found.append(f"{edge.source}:{edge.line} imports {edge.target or package.name}")
    return found


def flat(package: Path) -> dict[str, list[str]]:
    """Folder → the files lying in it."""
    found: dict[str, list[str]] = {}
    for path in modules(package).values():
        found.setdefault(str(path.parent.relative_to(package)), []).append(path.stem)
    return found


# One test, because each that ran in a process of its own would read all files again.
RULES = {
    "imports go down only": upward,
    "no files import each other in a circle": knotted,
    "types tie no more than three files together": knotted_by_types,
    "no rooms import each other in a circle": knotted_rooms,
    "rooms import only what their doors say": uninvited,
}


def test_imports_keep_the_rules_of_the_house() -> None:
    broken = {rule: found for rule, find in RULES.items() if (found := find(PACKAGE))}
    assert broken == {}


def test_every_room_has_a_door_that_says_what_it_may_import() -> None:
    silent = [room for room, text, names in doors(PACKAGE) if not names and "May import: nothing else" not in text]
    assert silent == []


def test_few_modules_lie_at_the_root() -> None:
    assert len(flat(PACKAGE)["."]) <= MOST_AT_THE_ROOT


def test_a_room_of_many_files_says_why() -> None:
    told = {room.replace(".", "/") for room, text, _ in doors(PACKAGE) if REASON in text}
    assert [room for room, files in flat(PACKAGE).items() if len(files) > MOST_FLAT and room not in told] == []


def test_a_prefix_is_a_folder_that_was_not_made() -> None:
    families = [
        f"{folder}/{prefix}_*"
        for folder, files in flat(PACKAGE).items()
        for prefix in {name.partition("_")[0] for name in files if not name.startswith("_")}
        if sum(name.startswith(f"{prefix}_") for name in files) >= 3
    ]
    assert families == []


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


def test_a_knot_of_rooms_is_found_where_no_files_are_knotted(tmp_path: Path) -> None:
    house = tmp_path / "defserve"
    for name in ("__init__", "x/__init__", "x/one/__init__", "x/two/__init__", "x/one/low", "x/two/low"):
        write(house / f"{name}.py")
    write(house / "x/one/high.py", "import defserve.x.two.low")
    write(house / "x/two/high.py", "import defserve.x.one.low")
    assert knotted(house) == []
    assert knotted_rooms(house) == ["x.one → x.two → x.one"]


def test_an_import_that_the_door_does_not_name_is_found(tmp_path: Path) -> None:
    house = tmp_path / "defserve"
    for name in ("__init__", "errors", "y/__init__", "y/low", "z/__init__", "z/low"):
        write(house / f"{name}.py")
    write(house / "x/__init__.py", '"""A room.\n\nMay import: `y.low`.\n"""')
    write(house / "x/one.py", "import defserve.y.low\nimport defserve.z.low\nimport defserve.errors")
    assert [line for line in uninvited(house) if line.startswith("x")] == ["x.one:2 imports z.low"]


# ------------------------------------------------------------------------------------------------------ the finders


@pytest.mark.parametrize(
    ("path", "source", "found"),
    [
        ("wire/codec.py", "import defserve.core.session", ["wire.codec:1 imports core.session"]),
        ("wire/codec.py", "from defserve.core import session", ["wire.codec:1 imports core.session"]),
        ("wire/codec.py", "from defserve.core.session import Session", ["wire.codec:1 imports core.session"]),
        ("wire/codec.py", "from ..core.session import Session", ["wire.codec:1 imports core.session"]),
        ("wire/__init__.py", "from ..core import session", ["wire:1 imports core.session"]),
        ("wire/codec.py", "def f():\n    import defserve.server.server", ["wire.codec:2 imports server"]),
        ("wire/codec.py", "if TYPE_CHECKING:\n    from defserve import Server", ["wire.codec:2 imports defserve"]),
        ("core/call.py", "import_module('defserve.server.server')", ["core.call:1 imports server"]),
        ("core/call.py", "LAZY = {'run': 'defserve.server.server:Server'}", ["core.call:1 imports server"]),
        ("core/call.py", "from defserve.wire.codec import decode\nfrom defserve.errors import Refused", []),
        ("core/call.py", "from .session import Session\nfrom . import session", []),
        (
            "protocols/mgp/audit.py",
            "from defserve.protocols.mcpl.push.push import push",
            ["mgp.audit:1 imports mcpl.push"],
        ),
        ("protocols/mgp/audit.py", "from defserve.protocols.mcp.tools.tools import Tool", []),
        ("protocols/mcp/tools.py", "from defserve.protocols.mgp import audit", ["mcp.tools:1 imports mgp.audit"]),
        ("server.py", "def run():\n    from defserve.core.session import Session", []),
        ("core/call.py", "# see defserve.server.server\n'''Not defserve.server.server either.'''", []),
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
