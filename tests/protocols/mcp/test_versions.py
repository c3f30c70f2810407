"""What a version of the protocol does not know is not sent to its peers."""

from __future__ import annotations

import ast
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from defserve import Audio, Context, Embedded, Icon, Image, Link, Server, Text
from defserve.protocols.mcp.versions import PROTOCOL_VERSIONS, get_version_features
from tests.imports import PACKAGE
from tests.raw import PREFIX, STATELESS, VERSIONS, Json, Raw, raw
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

NAMES = {version.name for version in PROTOCOL_VERSIONS}
# MCPx fixes the version of peers that open no conversation.
ELSEWHERE = {"protocols/mcpx/envelope.py"}


def test_a_version_has_all_that_its_predecessors_had():
    known = [get_version_features(version.name) for version in PROTOCOL_VERSIONS]
    assert known[0] == frozenset()
    assert all(older < newer for older, newer in itertools.pairwise(known))


def test_versions_are_named_in_one_table():
    naming = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if any(name in (text := path.read_text(encoding="utf-8")) for name in NAMES)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and node.value in NAMES
    }
    assert naming - ELSEWHERE == {"protocols/mcp/versions.py"}


META = {"com.example/kept": True}
ABOUT: dict[str, Any] = {"title": "A title", "icons": [Icon("https://example.com/i.png")], "meta": META}
OFFER = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {}}


def everything() -> Server:
    """One of each thing that some version does not know."""
    server = Server(
        "gates", "1", title="Gates", description="All of it", website_url="https://example.com",
        icons=["https://example.com/i.png"], instructions="Use it well.",
    )  # fmt: skip

    @server.tool(**ABOUT, annotations={"readOnlyHint": True})
    def thing(ctx: Context) -> dict[str, int]:
        ctx.progress(1, 2, "half")
        return {"n": 1}

    @server.tool
    def several() -> list[int]:
        return [1]

    @server.tool
    def content() -> list[Text | Audio | Image | Link | Embedded]:
        return [
            Text("t", annotations={"priority": 1, "lastModified": "2026-01-01T00:00:00Z"}, meta=META),
            Audio(b"a", format="wav"),
            Image(b"i", format="png"),
            Link("x://r", title="R"),
            Embedded("x://r", text="e"),
        ]

    @server.tool
    def can(ctx: Context) -> str:
        return " ".join(feature for feature in ("ask", "ask_url", "sample", "roots") if ctx.can(feature))

    @server.resource("x://r", **ABOUT, annotations={"lastModified": "2026-01-01T00:00:00Z"})
    def r() -> list[Text]:
        return [Text("r", meta=META)]

    @server.resource("x://{name}", **ABOUT)
    def template(name: str) -> str:
        return name

    @server.prompt(**ABOUT)
    def ask(name: str = "") -> str:
        return name

    return server


class Seen:
    """Everything one version was shown."""

    opening: Json
    tools: dict[str, Json]
    results: dict[str, Json]
    resource: Json
    template: Json
    prompt: Json
    contents: Json
    discovered: Json
    progress: Json
    missing_code: int
    batch: Any
    broken: Json
    lists: list[Json]

    @property
    def blocks(self) -> list[Json]:
        return self.results["content"]["content"]

    @property
    def info(self) -> Json:
        return self.opening.get("serverInfo") or self.opening["_meta"][PREFIX + "serverInfo"]

    @property
    def can(self) -> str:
        return self.results["can"]["content"][0]["text"]

    @property
    def all_results(self) -> list[Json]:
        return [*self.lists, *self.results.values()]

    def items(self) -> list[Json]:
        return [self.tools["thing"], self.resource, self.template, self.prompt]


async def look(version: str) -> Seen:
    seen = Seen()
    async with raw(everything(), version, OFFER) as peer:
        seen.opening = peer.opening
        kinds = {
            "tools": "tools",
            "resources": "resources",
            "resources/templates": "resourceTemplates",
            "prompts": "prompts",
        }
        lists = {member: (await peer.ask(f"{kind}/list"))["result"] for kind, member in kinds.items()}
        seen.lists = list(lists.values())
        seen.tools = {tool["name"]: tool for tool in lists["tools"]["tools"]}
        seen.resource, seen.template = (
            lists["resources"]["resources"][0],
            lists["resourceTemplates"]["resourceTemplates"][0],
        )
        seen.prompt = lists["prompts"]["prompts"][0]
        seen.results = {name: await peer.call(name, _meta={"progressToken": 1}) for name in seen.tools}
        seen.progress = peer.heard[0]["params"]
        read = (await peer.ask("resources/read", {"uri": "x://r"}))["result"]
        seen.lists.append(read)
        seen.contents = read["contents"][0]
        seen.missing_code = (await peer.ask("resources/read", {"uri": "y://none"}))["error"]["code"]
        seen.batch, seen.broken = await strays(peer)
    return seen


async def strays(peer: Raw) -> tuple[Any, Json]:
    """The answers to a batch and to something that is no JSON."""
    answers: list[Any] = []
    ping = {"jsonrpc": "2.0", "method": "ping", "params": peer.with_meta({})}
    for message in ([{**ping, "id": 901}, {**ping, "id": 902}], b"{"):
        await peer.send(message)
        answers.append(json.loads(await peer.link.receive()))
    return answers[0], answers[1]


def all_have(key: str) -> Callable[[Seen], bool]:
    def probe(seen: Seen) -> bool:
        having = [key in item for item in seen.items()]
        assert len(set(having)) == 1, "some items have it and some have not"
        return having[0]

    return probe


def types(seen: Seen) -> list[str]:
    return [block["type"] for block in seen.blocks]


# What is looked for, and the version that brought it.
GATES: dict[str, tuple[str, Callable[[Seen], bool]]] = {
    "the completions capability": ("2025-03-26", lambda seen: "completions" in seen.opening["capabilities"]),
    "audio": ("2025-03-26", lambda seen: "audio" in types(seen)),
    "tool annotations": ("2025-03-26", lambda seen: "annotations" in seen.tools["thing"]),
    "progress messages": ("2025-03-26", lambda seen: "message" in seen.progress),
    "titles": ("2025-06-18", all_have("title")),
    "the server's title": ("2025-06-18", lambda seen: "title" in seen.info),
    "_meta of items": ("2025-06-18", all_have("_meta")),
    "_meta of content": ("2025-06-18", lambda seen: "_meta" in seen.blocks[0]),
    "_meta of contents": ("2025-06-18", lambda seen: "_meta" in seen.contents),
    "resource links": ("2025-06-18", lambda seen: "resource_link" in types(seen)),
    "output schemas": ("2025-06-18", lambda seen: "outputSchema" in seen.tools["thing"]),
    "structured content": ("2025-06-18", lambda seen: "structuredContent" in seen.results["thing"]),
    "forms": ("2025-06-18", lambda seen: "ask" in seen.can.split()),
    "lastModified of content": ("2025-06-18", lambda seen: "lastModified" in seen.blocks[0]["annotations"]),
    "lastModified of resources": ("2025-06-18", lambda seen: "lastModified" in seen.resource.get("annotations", {})),
    "icons": ("2025-11-25", all_have("icons")),
    "the server's icons": ("2025-11-25", lambda seen: "icons" in seen.info),
    "the server's description": ("2025-11-25", lambda seen: {"description", "websiteUrl"} <= set(seen.info)),
    "questions by URL": ("2025-11-25", lambda seen: "ask_url" in seen.can.split()),
    "output schemas of lists": ("2025-06-18", lambda seen: "outputSchema" in seen.tools["several"]),
    "structured content of lists": ("2025-06-18", lambda seen: "structuredContent" in seen.results["several"]),
    "resultType": (
        "2026-07-28",
        lambda seen: all("resultType" in found for found in seen.all_results),
    ),
    "ttlMs": ("2026-07-28", lambda seen: all("ttlMs" in found for found in seen.lists)),
    "cacheScope": ("2026-07-28", lambda seen: all(found.get("cacheScope") == "private" for found in seen.lists)),
    "serverInfo in results": (
        "2026-07-28",
        lambda seen: all(PREFIX + "serverInfo" in found.get("_meta", {}) for found in seen.all_results),
    ),
    "a missing resource as -32602": ("2026-07-28", lambda seen: seen.missing_code == -32602),
}

# In every version.
ALWAYS: dict[str, Callable[[Seen], bool]] = {
    "text, images and embedded resources": lambda seen: {"text", "image", "resource"} <= set(types(seen)),
    "as many blocks as parts": lambda seen: len(seen.blocks) == 5,
    "text beside structured content": lambda seen: seen.results["thing"]["content"][0]["text"] == '{"n":1}',
    "instructions": lambda seen: seen.opening["instructions"] == "Use it well.",
    "name and version": lambda seen: (seen.info["name"], seen.info["version"]) == ("gates", "1"),
    "roots and sampling": lambda seen: {"roots", "sample"} <= set(seen.can.split()),
    "priority": lambda seen: seen.blocks[0]["annotations"]["priority"] == 1,
    "no execution": lambda seen: "execution" not in seen.tools["thing"],
    "no tasks": lambda seen: "tasks" not in seen.opening["capabilities"],
}

_looked: dict[str, Seen] = {}


@pytest.fixture
async def seen(version: str) -> Seen:
    if version not in _looked:
        _looked[version] = await look(version)
    return _looked[version]


@pytest.mark.parametrize("version", VERSIONS)
@for_each_row("gate", GATES)
async def test_a_peer_sees_what_its_version_has_and_nothing_newer(version: str, gate: str, seen: Seen):
    since, probe = GATES[gate]
    assert probe(seen) is (version >= since)


@pytest.mark.req("MCP-4.1n")
@pytest.mark.parametrize("version", VERSIONS)
@for_each_row("what", ALWAYS)
async def test_every_peer_sees(version: str, what: str, seen: Seen):
    assert ALWAYS[what](seen)


@pytest.mark.parametrize("version", VERSIONS)
async def test_batches_are_answered_in_one_version_only(version: str, seen: Seen):
    if version == "2025-03-26":
        assert {reply["id"] for reply in seen.batch} == {901, 902}
        assert all(reply["result"] == {} for reply in seen.batch)
    else:
        assert seen.batch["error"]["code"] == -32600


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_error_about_nothing_readable_has_no_id_where_the_schema_lets_it_be_left_out(version: str, seen: Seen):
    # Without a handshake there is no telling the version of a broken line: then it is JSON-RPC's null.
    assert seen.broken["error"]["code"] == -32700
    assert seen.broken.get("id", "absent") == ("absent" if version == "2025-11-25" else None)


@pytest.mark.parametrize("version", VERSIONS[:-1])
@pytest.mark.req("MCP-4.1v")
async def test_a_known_version_is_confirmed(version: str, seen: Seen):
    assert seen.opening["protocolVersion"] == version


@for_each_row("asked", ["2023-01-01", "2099-01-01", STATELESS, "nonsense"])
@pytest.mark.req("MCP-4.1v")
async def test_an_unknown_version_is_answered_with_ours(asked: str):
    async with raw(everything(), "2025-11-25", opened=False) as peer:
        params = {"protocolVersion": asked, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        assert (await peer.ask("initialize", params))["result"]["protocolVersion"] == "2025-11-25"


@for_each_row("asked", ["2025-11-25", "2027-01-01"])
async def test_without_a_handshake_an_unknown_version_is_refused_with_those_we_speak(asked: str):
    async with raw(everything(), opened=False) as peer:
        meta = {PREFIX + "protocolVersion": asked, PREFIX + "clientCapabilities": {}}
        error = (await peer.ask("tools/list", {"_meta": meta}))["error"]
        assert (error["code"], error["data"]["supported"], error["data"]["requested"]) == (-32022, [STATELESS], asked)
