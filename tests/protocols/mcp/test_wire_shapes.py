"""All that a server sends, held against the official models of the version it is sent in.

The models ignore what they do not know, so a message has to come out of them as it went in: a field that is not in
the schema is lost on the way, and the comparison shows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module, reload
from typing import Any, cast

import mcp_types.methods as official
import pytest
from mcp_types.jsonrpc import JSONRPCNotification, JSONRPCRequest, JSONRPCResponse
from pydantic import TypeAdapter

from defserve import Server
from tests.protocols.mcp.recorder import Recorder, recording
from tests.raw import PREFIX, STATELESS, VERSIONS
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

TOOLS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "everything": [
        ("motto", {}),
        ("add", {"a": 1, "b": 2}),
        ("roll", {}),
        ("bill", {"order": [{"item": "tea", "price": 2}]}),
        ("midpoint", {"a": {"x": 0, "y": 0}, "b": {"x": 1, "y": 1}}),
        ("weather", {"city": "Oslo", "unit": "fahrenheit"}),
        ("withdraw", {"amount": 500}),
        ("withdraw", {"amount": "much"}),
        ("stumble", {}),
        ("count_to", {"last": 2}),
        ("recite", {}),
        ("spell", {"word": "hello"}),
        ("swim", {}),
        ("check_in", {}),
        ("summarize", {"text": "long"}),
        ("workplaces", {}),
        ("learn", {"word": "moin"}),
        ("write_note", {"name": "milk", "text": "two"}),
    ],
    "content": [(name, {}) for name in ("picture", "sound", "signpost", "enclosure", "report")],
    "asking": [("paint", {}), ("order", {"item": "tea"}), ("introduce", {}), ("sign_in", {}), ("abilities", {})],
}
GREET = {"type": "ref/prompt", "name": "greet"}
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("tools/list", {}),
    ("resources/list", {}),
    ("resources/templates/list", {}),
    ("resources/read", {"uri": "text://welcome"}),
    ("resources/read", {"uri": "image://dot"}),
    ("resources/read", {"uri": "config://settings"}),
    ("resources/read", {"uri": "note://milk"}),
    ("prompts/list", {}),
    ("prompts/get", {"name": "greet", "arguments": {"name": "Ada"}}),
    ("prompts/get", {"name": "debate", "arguments": {"topic": "tabs"}}),
    ("prompts/get", {"name": "look"}),
    ("completion/complete", {"ref": GREET, "argument": {"name": "name", "value": "A"}}),
]
SESSION: list[tuple[str, dict[str, Any]]] = [
    ("ping", {}),
    ("logging/setLevel", {"level": "debug"}),
    ("resources/subscribe", {"uri": "note://milk"}),
]
BROKEN: list[tuple[str, dict[str, Any]]] = [
    ("tools/call", {"name": "nothing"}),
    ("tools/call", {"name": "add", "arguments": []}),
    ("tools/list", {"cursor": "nowhere"}),
    ("resources/read", {"uri": "text://nowhere"}),
    ("prompts/get", {"name": "greet"}),
    ("completion/complete", {"ref": GREET, "argument": {"name": "nothing", "value": ""}}),
    ("no/such/method", {}),
]


async def tour(version: str, example: str) -> Recorder:
    """Everything that `version` has, asked of one example; what came back."""
    server = reload(import_module(f"examples.{example}")).server
    async with recording(server, version) as client:
        listening = await begin_hearing(client)
        for name, arguments in TOOLS[example]:
            await client.request("tools/call", {"name": name, "arguments": arguments, "_meta": {"progressToken": name}})
        server.add_prompt(extra)
        server.add_resource(extra, "text://extra")
        for method, params in REQUESTS if example == "everything" else REQUESTS[:1]:
            await client.request(method, params)
        for method, params in BROKEN if example == "everything" else ():
            await client.request(method, params)
        if listening:
            end_calls(server)
            await client.reply_to(listening)
        elif example == "everything":
            await client.request("resources/unsubscribe", {"uri": "note://milk"})
    return client


def extra() -> str:
    return "more"


async def begin_hearing(client: Recorder) -> int | None:
    if client.version == STATELESS:
        kinds = ("toolsListChanged", "promptsListChanged", "resourcesListChanged")
        wanted = {**dict.fromkeys(kinds, True), "resourceSubscriptions": ["note://milk"]}
        return await client.begin("subscriptions/listen", {"notifications": wanted})
    for method, params in SESSION:
        await client.request(method, params)
    return None


def end_calls(server: Server) -> None:
    """What draining does with requests that stay open."""
    server.composition.draining = True
    for session in server.composition.sessions:
        for call in session.in_flight.values():
            call.stop()


# -- the official models ---------------------------------------------------------------------------------


@for_each_row("example", TOOLS)
@for_each_row("version", VERSIONS)
async def test_every_message_is_one_of_its_version_with_no_field_to_spare(version: str, example: str):
    client = await tour(version, example)
    for reply in client.replies:
        if "result" in reply.message:
            same(JSONRPCResponse, reply.message)
            same(official.SERVER_RESULTS[reply.method, version], reply.message["result"])
        else:
            same(error_model(version, reply.message["error"]["code"]), reply.message)
    for request in client.requests:
        same(JSONRPCRequest, request)
        same(official.SERVER_REQUESTS[request["method"], version], request)
    for notification in client.notifications:
        same(JSONRPCNotification, notification)
        same(official.SERVER_NOTIFICATIONS[notification["method"], version], notification)


@for_each_row("version", VERSIONS)
async def test_every_method_of_a_version_is_answered_and_every_notification_was_seen(version: str):
    seen = [await tour(version, example) for example in TOOLS]
    answered = {reply.method for client in seen for reply in client.replies if "result" in reply.message}
    assert answered == {method for method, of in official.SERVER_RESULTS if of == version}
    told = {message["method"] for client in seen for message in client.notifications}
    # Sent only when a question of ours is called off, and when a visit to a URL has ended.
    unseen = {"notifications/cancelled", "notifications/elicitation/complete"}
    assert told == {method for method, of in official.SERVER_NOTIFICATIONS if of == version} - unseen
    asked = {message["method"] for client in seen for message in client.requests}
    assert asked == {method for method, of in official.SERVER_REQUESTS if of == version} - {"ping"}


@for_each_row("capability", ["elicitation", "sampling", "roots"])
async def test_the_errors_of_2026_07_28_have_the_shapes_it_gives_them(capability: str):
    server = reload(import_module("examples.everything")).server
    tool = {"elicitation": "check_in", "sampling": "summarize", "roots": "workplaces"}[capability]
    arguments = {"text": "long"} if tool == "summarize" else {}
    async with recording(server, STATELESS, {}) as client:
        reply = await client.request("tools/call", {"name": tool, "arguments": arguments})
        STATELESS_ERRORS[-32021].model_validate(reply)
        assert reply["error"]["data"]["requiredCapabilities"] == {capability: {}}
        unsupported = await client.ask("tools/list", {"_meta": {PREFIX + "protocolVersion": "2027-01-01"}})
        STATELESS_ERRORS[-32022].model_validate(unsupported)
        assert unsupported["error"]["data"]["supported"] == [STATELESS]


def same(model: Any, message: dict[str, Any]) -> None:
    """`message` is valid, and made of nothing but what the model knows."""
    adapter = TypeAdapter[Any](model)
    known = adapter.dump_python(
        adapter.validate_python(message, by_name=False), by_alias=True, mode="json", exclude_unset=True
    )
    assert known == message


HANDSHAKE_MODELS, STATELESS_MODELS = (import_module(f"mcp_types._v{v}") for v in ("2025_11_25", "2026_07_28"))
STATELESS_ERRORS = {
    -32021: STATELESS_MODELS.MissingRequiredClientCapabilityError,
    -32022: STATELESS_MODELS.UnsupportedProtocolVersionError,
}


def error_model(version: str, code: int) -> Any:
    if version != STATELESS:
        return HANDSHAKE_MODELS.JSONRPCErrorResponse
    assert code in (-32600, -32601, -32602, -32603)
    return STATELESS_MODELS.JSONRPCErrorResponse


# -- version gates ---------------------------------------------------------------------------------------

# Where something stands in a message (`#` any position in a list), and the version that brought it.
GATES = {
    "initialize result.capabilities.completions": "2025-03-26",
    "tools/list result.tools.#.annotations": "2025-03-26",
    "tools/call result.content.#.type=audio": "2025-03-26",
    "notifications/progress params.message": "2025-03-26",
    "initialize result.serverInfo.title": "2025-06-18",
    "tools/list result.tools.#.title": "2025-06-18",
    "tools/list result.tools.#._meta": "2025-06-18",
    "tools/list result.tools.#.outputSchema": "2025-06-18",
    "tools/call result.structuredContent": "2025-06-18",
    "tools/call result.structuredContent.result": "2025-06-18",
    "tools/call result.content.#.type=resource_link": "2025-06-18",
    "resources/list result.resources.#.title": "2025-06-18",
    "resources/list result.resources.#._meta": "2025-06-18",
    "resources/list result.resources.#.annotations.lastModified": "2025-06-18",
    "prompts/list result.prompts.#.title": "2025-06-18",
    "elicitation/create params.message": "2025-06-18",
    "initialize result.serverInfo.icons": "2025-11-25",
    "initialize result.serverInfo.description": "2025-11-25",
    "initialize result.serverInfo.websiteUrl": "2025-11-25",
    "tools/list result.tools.#.icons": "2025-11-25",
    "resources/list result.resources.#.icons": "2025-11-25",
    "elicitation/create params.mode=form": "2025-11-25",
    "elicitation/create params.mode=url": "2025-11-25",
    "elicitation/create params.requestedSchema.properties.value.oneOf": "2025-11-25",
    "elicitation/create params.requestedSchema.properties.nights.default": "2025-11-25",
    "tools/list result.resultType": "2026-07-28",
    "tools/list result.ttlMs": "2026-07-28",
    "resources/read result.cacheScope": "2026-07-28",
    "tools/list result._meta.io.modelcontextprotocol/serverInfo": "2026-07-28",
    "tools/call result.inputRequests": "2026-07-28",
}


@for_each_row("version", VERSIONS)
async def test_a_version_is_sent_what_it_knows_and_nothing_newer(version: str):
    seen = {place for example in TOOLS for place in places(await tour(version, example))}
    newer = {gate for gate, first in GATES.items() if first > version}
    assert not newer & seen
    assert {gate for gate, first in GATES.items() if first == version} <= seen
    assert not [place for place in seen if place.endswith(".elicitationId") and version == STATELESS]


def places(client: Recorder) -> Iterator[str]:
    """Every place in every message: `tools/list result.tools.#.name`, and with its value for text."""
    for reply in client.replies:
        yield from _places(reply.method, "result", reply.message.get("result", {}))
    for message in (*client.requests, *client.notifications):
        yield from _places(message["method"], "params", message.get("params", {}))


def _places(method: str, path: str, value: Any) -> Iterator[str]:
    yield f"{method} {path}"
    if isinstance(value, dict):
        for key, member in cast("dict[str, Any]", value).items():
            yield from _places(method, f"{path}.{key}", member)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _places(method, f"{path}.#", item)
    elif isinstance(value, str):
        yield f"{method} {path}={value}"
