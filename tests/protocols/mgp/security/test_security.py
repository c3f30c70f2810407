"""MGP §4: what a tool declares of itself, kept honest at registration and shown to whoever may want it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Annotated, Any

import pytest

from defserve import (
    Code,
    PublicUrl,
    Security,
    Server,
    Shell,
    ShellCommand,
    UsageError,
    dangerous,
    moderate,
    safe,
    tool,
    validator,
)
from defserve.errors import Rejected
from defserve.extending import Tool
from defserve.protocols.mcp.tools import ToolOptions
from defserve.protocols.mgp import forwarding
from defserve.protocols.mgp.security import UnguardedParameter
from defserve.protocols.mgp.vocabulary import PERMISSION_RISKS
from tests.protocols.mgp.callers import code_of, speaking
from tests.raw import ERAS, HANDSHAKE, VERSIONS, Json
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

Declare = Callable[[Server], object]

KEY = "dev.defserve/security"
SESSION = HANDSHAKE[-1]
COMPLETE = {
    "risk_level": "dangerous",
    "permissions_required": ["shell.execute", "com.example.deploying"],
    "side_effects": ["process", "network"],
    "validator": "sandbox",
    "reversible": True,
    "confirmation_required": False,
}


def deploy(target: str = "staging") -> str:
    return "deployed"


def fresh(function: Any = deploy) -> Any:
    """The function anew: a mark stays on what it marks."""
    copy = type(function)(function.__code__, globals(), function.__name__, function.__defaults__)
    copy.__annotations__ = dict(function.__annotations__)
    return copy


async def listed(server: Server, *extensions: str, version: str = SESSION) -> dict[str, Json]:
    async with speaking(server, version, extensions) as peer:
        return {tool["name"]: tool for tool in (await peer.ask("tools/list"))["result"]["tools"]}


async def block_of(declare: Declare) -> Json:
    server = Server("x", "1")
    declare(server)
    (found,) = (await listed(server, "security")).values()
    assert found["security"] == found["_meta"][KEY]
    return found["security"]


# -- marks -----------------------------------------------------------------------------------------------


FULL = Security(
    "dangerous",
    ["shell.execute", "com.example.deploying"],
    effects=["process", "network"],
    validator="sandbox",
    reversible=True,
    confirm=False,
)
MARKED = dangerous(
    "shell.execute",
    "com.example.deploying",
    effects=["process", "network"],
    validator="sandbox",
    reversible=True,
    confirm=False,
)
WAYS: dict[str, Declare] = {
    "mark": lambda server: server.tool(MARKED(fresh())),
    "keyword": lambda server: server.tool(security=FULL)(fresh()),
    "add_tool": lambda server: server.add_tool(fresh(), security=FULL),
    "Tool.of": lambda server: server.add_tool(Tool.of(fresh(), ToolOptions(security=FULL))),
    "include": lambda server: server.include(module(tool(security=FULL)(fresh()))),
}


@pytest.mark.req("MGP-4.3")
@for_each_row("way", WAYS)
async def test_every_way_to_declare_gives_the_same_block(way: str):
    assert await block_of(WAYS[way]) == COMPLETE


def module(*functions: Any) -> ModuleType:
    made = ModuleType("made")
    for function in functions:
        function.__module__ = "made"
        setattr(made, function.__name__, function)
    return made


@pytest.mark.req("MGP-4.3")
@for_each_row(
    ("mark", "block"),
    [
        (safe, ("safe", True, False)),
        (safe(), ("safe", True, False)),
        (moderate, ("moderate", False, False)),
        (moderate(reversible=True), ("moderate", True, False)),
        (dangerous, ("dangerous", False, True)),
        (dangerous(confirm=False), ("dangerous", False, False)),
        (moderate(confirm=True), ("moderate", False, True)),
    ],
)
async def test_marks_work_bare_and_called(mark: Any, block: Any):
    def work() -> str:
        return "ran"

    marked = mark(work)
    assert marked is work
    found = await block_of(lambda server: server.tool(marked))
    assert (found["risk_level"], found["reversible"], found["confirmation_required"]) == block
    assert (found["permissions_required"], found["side_effects"], found["validator"]) == ([], [], "none")


@for_each_row("above", [True, False], ids=["mark above", "mark below"])
async def test_marks_of_included_functions_count_in_either_order(above: bool):
    def work() -> str:
        return "ran"

    marked: Any = moderate("memory.write")(tool(work)) if above else tool(moderate("memory.write")(work))
    found = await block_of(lambda server: server.include(module(marked)))
    assert found["permissions_required"] == ["memory.write"]


async def test_methods_can_be_marked():
    class Desk:
        @tool
        @moderate("memory.write")
        def note(self) -> str:
            return "noted"

    found = await block_of(lambda server: server.include(Desk()))
    assert found["permissions_required"] == ["memory.write"]


def here(function: Any) -> str:
    return f"test_security.py:{function.__code__.co_firstlineno}"


@for_each_row("mark", [safe, moderate, dangerous, dangerous("shell.execute")])
def test_a_mark_above_the_decorator_that_registers_is_refused(mark: Any):
    server = Server("x", "1")

    @server.tool
    def work() -> str:
        return "ran"

    with pytest.raises(UsageError, match="comes after @server.tool has registered work") as refused:
        mark(work)
    assert refused.value.where.endswith(here(work))
    assert "swap the lines" in refused.value.fix


def test_two_marks_are_refused():
    with pytest.raises(UsageError, match="deploy is already marked safe"):
        dangerous(safe(fresh()))


def test_a_mark_and_a_keyword_that_say_different_things_are_refused():
    server = Server("x", "1")
    with pytest.raises(UsageError, match="'deploy' is marked safe and given another security=…"):
        server.tool(security=Security("dangerous"))(safe(fresh()))
    server.tool(security=Security("safe"))(safe(fresh()))


# -- contradictions --------------------------------------------------------------------------------------


CONTRADICTIONS: list[tuple[str, tuple[Any, ...], Json, str]] = [
    ("safe", (), {"effects": ["network"]}, "a safe tool with effects \\(network\\)"),
    ("safe", ("shell.execute",), {}, "a safe tool that needs 'shell.execute'"),
    ("safe", ("com.example.x",), {}, "a safe tool that needs 'com.example.x'"),
    ("moderate", ("shell.execute",), {"validator": "readonly"}, "a readonly tool with permission 'shell.execute'"),
    ("moderate", (), {"validator": "readonly", "effects": ["database"]}, "a readonly tool with effects database"),
    ("moderate", (), {"effects": ["explosions"]}, "'explosions' is not a side effect"),
    ("moderate", (), {"effects": "network"}, "'network' is a text, not a list"),
    ("moderate", (), {"validator": "strict"}, "'strict' is not a validator"),
    ("moderate", ("shell.exec",), {}, "'shell.exec' is not a permission\n  fix: did you mean 'shell.execute'\\?"),
    ("moderate", ("shell",), {}, "'shell' is not a permission"),
    ("moderate", ("example.x",), {}, "'example.x' is not a permission"),
    ("moderate", ("Com.Example.X",), {}, "'Com.Example.X' is not a permission"),
    ("moderate", (7,), {}, "7 is not a permission"),
]


@pytest.mark.req("MGP-3.2", "MGP-4.3")
@for_each_row(("risk", "permissions", "details", "problem"), CONTRADICTIONS)
def test_what_contradicts_itself_is_refused_where_it_is_written(
    risk: Any, permissions: Any, details: Json, problem: str
):
    mark: Any = {"safe": safe, "moderate": moderate}[risk]
    function = fresh()
    with pytest.raises(UsageError, match=problem) as refused:
        mark(*permissions, **details)(function)
    assert refused.value.where.endswith(here(function))
    with pytest.raises(UsageError, match=problem) as refused:
        Security(risk, permissions, **details)
    assert "test_security.py:" in refused.value.where


def test_a_mark_that_contradicts_the_type_of_an_argument_is_refused_in_the_author_s_words():
    @moderate("shell.execute")
    def look(command: Annotated[str, Shell(mode="readonly")]) -> str:
        return command

    server = Server("s", "1")
    with pytest.raises(UsageError, match="commands that only read.*marked with permission 'shell.execute'") as refused:
        server.add_tool(look)
        assert server.composition
    assert "validator" not in str(refused.value) and 'Shell(mode="sandbox")' in refused.value.fix


def test_an_option_a_mark_does_not_have_is_refused():
    with pytest.raises(UsageError, match="@moderate has no option 'effect'"):
        moderate(effect=["network"])(fresh())


def test_a_risk_level_that_does_not_exist_is_refused():
    with pytest.raises(UsageError, match="risk level 'deadly'"):
        Security("deadly")  # pyright: ignore[reportArgumentType]


def test_security_is_a_security_object():
    with pytest.raises(UsageError, match="security='safe'"):
        Server("x", "1").tool(security="safe")(fresh())  # pyright: ignore[reportArgumentType]


@for_each_row("mark", [dangerous, moderate(effects=["network"])])
def test_a_hint_that_the_mark_denies_is_refused(mark: Any):
    with pytest.raises(UsageError, match="says readOnlyHint, but it is"):
        Server("x", "1").tool(annotations={"readOnlyHint": True})(mark(fresh()))


@pytest.mark.req("MGP-3.2")
async def test_the_eleven_permissions_and_custom_ones_are_declared_with_their_risk():
    assert len(PERMISSION_RISKS) == 11
    server = Server("x", "1")
    for name, risk in PERMISSION_RISKS.items():
        mark: Any = {"safe": safe, "moderate": moderate, "dangerous": dangerous}[risk]
        server.tool(name=name.replace(".", "_"))(mark(name, validator="none")(fresh()))
    server.tool(name="custom")(moderate("com.example.billing-2", validator="none")(fresh()))
    async with speaking(server, SESSION, ["security"]) as peer:
        required = peer.opening["capabilities"]["mgp"]["permissions_required"]
    assert required == sorted([*PERMISSION_RISKS, "com.example.billing-2"])


# -- what follows from it --------------------------------------------------------------------------------


@for_each_row(
    ("mark", "hints"),
    [
        (safe, {"readOnlyHint": True, "destructiveHint": False, "openWorldHint": False}),
        (moderate("filesystem.read"), {"readOnlyHint": True, "destructiveHint": False, "openWorldHint": False}),
        (moderate("network.outbound"), {"readOnlyHint": True, "destructiveHint": False, "openWorldHint": True}),
        (moderate("memory.write"), {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": False}),
        (
            moderate("network.outbound", effects=["network"]),
            {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": True},
        ),
        (dangerous, {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": False}),
        (dangerous(reversible=True), {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": False}),
    ],
)
async def test_the_hints_of_mcp_follow_from_the_mark(mark: Any, hints: Json):
    def work() -> str:
        return "ran"

    server = Server("x", "1")
    server.tool(mark(work))
    assert (await listed(server))["work"]["annotations"] == hints


async def test_the_authors_own_hints_stand_beside_those_that_follow():
    server = Server("x", "1")
    server.tool(annotations={"idempotentHint": True, "openWorldHint": True})(safe(fresh()))
    hints = (await listed(server))["deploy"]["annotations"]
    assert hints == {"readOnlyHint": True, "destructiveHint": False, "openWorldHint": True, "idempotentHint": True}


@pytest.mark.req("MGP-4.2", "MGP-7.3")
@for_each_row("version", ERAS)
async def test_the_types_of_the_arguments_complete_the_declaration(version: str):
    server = Server("x", "1")

    @server.tool
    @dangerous("shell.execute")
    def run(command: ShellCommand) -> None: ...
    @server.tool
    @moderate("filesystem.read")
    def look(command: Annotated[ShellCommand, Shell(mode="readonly")]) -> None: ...
    @server.tool
    def fetch(url: PublicUrl) -> None: ...
    @server.tool
    @dangerous("code_execution")
    def evaluate(
        code: Annotated[str, Code(level="strict", allow=["math"], block=["re"], max_bytes=1000)],
    ) -> None: ...
    @server.tool
    @moderate("code_execution", validator="code_safety")
    def check(code: str) -> None: ...

    tools = await listed(server, "security", version=version)
    assert {name: tool["security"]["validator"] for name, tool in tools.items()} == {
        "run": "sandbox",
        "look": "readonly",
        "fetch": "network_restricted",
        "evaluate": "code_safety",
        "check": "code_safety",
    }
    assert tools["fetch"]["security"]["risk_level"] == "moderate"
    said = tools["evaluate"]["security"]["code_safety"]
    assert {"eval(", "open("} <= {*said.pop("blocked_patterns")}
    assert said == {
        "level": "strict",
        "language": "python",
        "max_code_size_bytes": 1000,
        "allowed_imports": ["math"],
        "blocked_imports": ["re"],
    }


SOURCES = (
    "import math",
    "import numpy",
    "import os",
    "from os import path",
    "from os.path import join",
    "from urllib import parse",
    "import urllib.parse",
    "from collections import abc",
    "import threading",
    "import subprocess",
    "from __future__ import annotations",
    "eval('1')",
    "open('x')",
    "x = 'eval('",
    "x = [1]\nx.append(2)",
)


@pytest.mark.req("MGP-4.5", "MGP-7.3")
@for_each_row("level", ["unrestricted", "standard", "strict", "readonly"])
@for_each_row("lists", [{}, {"allow": ["math", "os"]}, {"block": ["math", "open(", "numpy"]}])
async def test_a_client_that_applies_what_is_shown_judges_as_the_server_does(level: Any, lists: dict[str, list[str]]):
    server, guard = Server("x", "1"), Code(level=level, **lists)

    @server.tool
    def check(code: Annotated[str, guard]) -> str:  # pyright: ignore[reportInvalidTypeForm]
        return "ran"

    block = (await listed(server, "security"))["check"]["security"]

    def passes(judge: Callable[[], object]) -> bool:
        try:
            judge()
        except Rejected:
            return False
        return True

    for source in SOURCES:
        here = passes(lambda source=source: guard.source(source))
        there = passes(
            lambda source=source: forwarding.apply_standard_validator("code_safety", {"code": source}, block)
        )
        assert here == there, source


@pytest.mark.req("MGP-7.3")
@pytest.mark.parametrize("level", ["standard", "strict", "readonly"])
async def test_what_code_safety_shows_is_what_it_enforces(level: Any):
    server = Server("x", "1")

    @server.tool
    def check(code: Annotated[str, Code(level=level)]) -> str:
        return "ran"

    said = (await listed(server, "security"))["check"]["security"]["code_safety"]
    assert (said["level"], said["language"]) == (level, "python")
    async with speaking(server, SESSION, ["security"]) as peer:

        async def passes(code: str) -> bool:
            reply = await peer.ask("tools/call", {"name": "check", "arguments": {"code": code}})
            return not reply["result"].get("isError")

        size = said["max_code_size_bytes"]
        assert await passes("x = 1  #".ljust(size, "-"))
        assert not await passes("x = 1  #".ljust(size + 1, "-"))
        if "allowed_imports" in said:
            plain = [module for module in said["allowed_imports"] if module != "__future__"]  # no module to import
            assert all([await passes(f"import {module}") for module in plain])
            assert not await passes("import numpy")
        else:
            assert await passes("import numpy")
        for module in said.get("blocked_imports", ["subprocess"]):
            assert not await passes(f"import {module}"), module
        for pattern in said["blocked_patterns"]:
            assert not await passes(f"x = {pattern})"), pattern


async def test_an_authors_validator_is_none_of_the_standard_ones_on_the_wire():
    @validator
    def short(target: str) -> bool:
        return len(target) < 10

    assert (await block_of(lambda s: s.tool(dangerous(validator=[short])(fresh()))))["validator"] == "none"
    assert (await block_of(lambda s: s.tool(dangerous(validator=[short, "sandbox"])(fresh()))))[
        "validator"
    ] == "sandbox"


@pytest.mark.req("MGP-1.1", "MGP-2.4.1", "MGP-4.2", "MGP-8.1")
@for_each_row("version", VERSIONS)
@for_each_row(
    ("extensions", "shown"),
    [((), False), (("audit",), False), (("security",), True), (("tool_security",), True), (("permissions",), False)],
)
async def test_the_block_is_shown_where_it_was_negotiated_and_under_our_key_to_all(
    version: str, extensions: Any, shown: bool
):
    server = Server("x", "1")
    server.tool(moderate("memory.write")(fresh()))
    server.tool(name="unmarked")(fresh())
    tools = await listed(server, *extensions, version=version)
    assert ("security" in tools["deploy"]) is shown
    # Versions before 2025-06-18 have no _meta on tools.
    assert (KEY in tools["deploy"].get("_meta", {})) is (version >= "2025-06-18")
    # §4.1 wants one on each tool. Of a tool that declares nothing only its risk is told.
    told = {"risk_level": "moderate", "permissions_required": []}
    assert tools["unmarked"].get("security") == (told if shown else None)
    assert (KEY in tools["unmarked"].get("_meta", {})) is (shown and version >= "2025-06-18")


@pytest.mark.req("MGP-4.2", "MGP-4.3")
@for_each_row(
    ("hints", "risk"),
    [({"readOnlyHint": True}, "safe"), ({"destructiveHint": True}, "dangerous"), ({}, "moderate"), (None, "moderate")],
)
async def test_an_unmarked_tool_has_the_risk_of_its_hints(hints: Any, risk: str):
    server = Server("x", "1")
    server.tool(name="unmarked", annotations=hints)(fresh())
    assert (await listed(server, "security"))["unmarked"]["security"]["risk_level"] == risk


# -- parameters nobody looks at --------------------------------------------------------------------------


@for_each_row(
    ("mark", "annotation", "warned"),
    [
        (dangerous("shell.execute"), str, True),
        (dangerous, str, True),
        (dangerous("shell.execute"), str | None, True),
        (dangerous("shell.execute"), Annotated[str, "what to run"], True),
        (dangerous("shell.execute"), ShellCommand, False),
        (dangerous("shell.execute"), int, False),
        (dangerous("shell.execute", validator="sandbox"), str, False),
        (dangerous("shell.execute", validator="none"), str, False),
        (moderate, str, False),
        (safe, str, False),
    ],
)
@for_each_row("name", ["command", "cmd", "url", "code", "text"])
def test_a_telling_parameter_that_nobody_judges_is_warned_of(mark: Any, annotation: Any, warned: bool, name: str):
    space: Json = {}
    exec(f"def work({name}): ...", space)
    space["work"].__annotations__[name] = annotation
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Server("x", "1").tool(mark(space["work"]))
    told = [str(w.message) for w in caught if w.category is UnguardedParameter]
    assert bool(told) is (warned and name != "text")
    assert all(f"work takes {name!r} as plain text" in text for text in told)


# -- elsewhere -------------------------------------------------------------------------------------------


@for_each_row("version", ERAS)
@for_each_row("extensions", [(), ("security",)])
async def test_mounted_tools_keep_what_they_declared_and_are_protected_the_same(version: str, extensions: Any):
    inner, outer = Server("inner", "1"), Server("outer", "1", permissions="deny_all")

    @inner.tool
    @moderate("filesystem.read")
    def look(command: Annotated[ShellCommand, Shell(mode="readonly")]) -> str:
        return "looked"

    outer.mount(inner, prefix="in")
    (name,) = tools = await listed(outer, *extensions, version=version)
    assert tools[name]["_meta"][KEY]["permissions_required"] == ["filesystem.read"]
    async with speaking(outer, version, extensions) as peer:
        reply = await peer.ask("tools/call", {"name": name, "arguments": {"command": "ls"}})
        assert code_of(reply) == (1000 if extensions else "permission_denied")
    async with speaking(inner, version, extensions) as peer:
        reply = await peer.ask("tools/call", {"name": "look", "arguments": {"command": "touch x"}})
        assert code_of(reply) == (1010 if extensions else "validation_blocked")


async def test_a_tool_added_while_serving_is_protected_too():
    server = Server("x", "1", permissions="deny_all")
    async with speaking(server, SESSION, ["security"]) as peer:
        server.add_tool(fresh(), security=Security("moderate", ["memory.write"]))
        reply = await peer.ask("tools/call", {"name": "deploy", "arguments": {}})
    assert code_of(reply) == 1000
