"""Errors repeat little of what a caller sent: a long text in any position of a message makes no long reply."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

import defserve
from defserve import PublicUrl, Server, ShellCommand
from defserve.base.peer_bounds import MAX_ECHO, truncate_error_data, truncate_text
from defserve.errors import InvalidParams, PeerError, Refused, Rejected
from defserve.guard.argument_types import Code, Within
from tests.asgi import BOTH, Web, living
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

LONG = "x" * 40_000
MAX_REPLY = 6_000
PROTOCOLS = Path(defserve.__file__).parent / "protocols"
READS = re.compile(r"\b(?:params|given|raw|request)(?:\.get\(|\[|, )\"(\w+)\"")
FORMS: list[Any] = [LONG, [LONG], {LONG: LONG}, {"name": LONG, "type": LONG, "uri": LONG, LONG: [LONG]}]


def fields() -> list[str]:
    """The members of messages that the protocols read."""
    found = {m[1] for path in PROTOCOLS.rglob("*.py") for m in READS.finditer(path.read_text(encoding="utf-8"))}
    return sorted(found | {"name", "uri", "arguments", "cursor", "level", "taskId", "ref", "argument"})


def shop() -> Server:
    server = Server("shop", search="auto")

    @server.tool
    def buy(
        count: int = 1,
        each: dict[str, int] | None = None,
        kind: Literal["a", "b"] = "a",
        lines: list[int] | None = None,
    ) -> str:
        """Buy something."""
        return "bought"

    @server.tool
    def guarded(
        url: PublicUrl | None = None,
        command: ShellCommand | None = None,
        path: Annotated[Path, Within("/srv")] | None = None,
        code: Annotated[str, Code()] | None = None,
    ) -> str:
        """Take what is judged."""
        return "judged"

    @server.tool(schema={"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False})
    def own(**rest: Any) -> str:
        """Take what a schema says."""
        return ""

    @server.resource("shelf://{name}")
    def shelf(name: int) -> str:
        """A shelf."""
        return ""

    @server.prompt
    def ask(topic: int) -> str:
        """Ask."""
        return ""

    return server


def calls() -> Iterator[tuple[str, dict[str, Any]]]:
    """Long texts in each place of a call of something that exists."""
    names = ["count", "each", "kind", "lines", "url", "command", "path", "code", "a", LONG]
    for tool in ("buy", "guarded", "own"):
        for name in names:
            for form in (*FORMS, f"http://127.0.0.1/{LONG}", f"curl {LONG}; {LONG}", f"/{LONG}", f"import {LONG}\n"):
                yield "tools/call", {"name": tool, "arguments": {name: form}}
        yield "tools/call", {"name": tool, "arguments": {f"{number}{LONG[:500]}": 1 for number in range(300)}}
        yield "tools/call", {"name": tool, "arguments": {"each": {f"{n}{LONG[:500]}": "z" for n in range(300)}}}
        yield "tools/call", {"name": tool, "arguments": LONG}
    for uri in (LONG, f"shelf://{LONG}", f"shelf://a/{LONG}", f"ui://{LONG}", f"file:///{LONG}"):
        yield "resources/read", {"uri": uri}
        yield "resources/subscribe", {"uri": uri}
    yield "prompts/get", {"name": "ask", "arguments": {"topic": LONG}}
    yield "prompts/get", {"name": "ask", "arguments": {LONG: "1"}}
    for ref in ({"type": LONG}, {"type": "ref/prompt", "name": LONG}, {"type": "ref/resource", "uri": LONG}):
        yield "completion/complete", {"ref": ref, "argument": {"name": LONG, "value": LONG}}
    yield "completion/complete", {"ref": {"type": "ref/prompt", "name": "ask"}, "argument": {"name": LONG, "value": ""}}
    yield LONG, {}


async def replied(client: Any, method: str, params: dict[str, Any]) -> int:
    try:
        return len(json.dumps(await client.request(method, params), ensure_ascii=False))
    except PeerError as error:
        return len(error.message) + len(json.dumps(error.data, ensure_ascii=False, default=str))


async def too_long(requests: Iterator[tuple[str, dict[str, Any]]], version: str | None = None) -> list[str]:
    found: list[str] = []
    async with shop().connect(version) as client:
        for method, params in requests:
            if (length := await replied(client, method, params)) > MAX_REPLY:
                found.append(f"{method[:40]} {repr(params)[:120]}: {length}")
    return found


@for_each_row("version", [None, "2025-11-25"])
async def test_a_long_text_in_any_place_of_a_call_makes_no_long_reply(version: str | None):
    assert await too_long(calls(), version) == []


@pytest.mark.slow
@pytest.mark.hostile
async def test_a_long_text_in_any_member_of_any_request_makes_no_long_reply():
    # One ends the server, the other is answered when its stream ends.
    methods = sorted(
        {*shop().composition.known_methods, "tasks/get"} - {"mgp/lifecycle/shutdown", "subscriptions/listen"}
    )
    names = fields()
    assert len(methods) > 20 and len(names) > 40
    # Together they stay below the limit of a message, which is no error but the end.
    together = [(method, dict.fromkeys(names, LONG[:10_000])) for method in methods]
    alone = [(method, {name: LONG[:10_000]}) for method in methods for name in names]
    assert await too_long(iter([*together, *alone])) == []


HEADERS = [
    *("mcp-protocol-version", "mcp-session-id", "mcp-method", "mcp-name", "accept", "content-type", "host", "origin"),
    *("authorization", "last-event-id", "content-encoding", "traceparent", "x-unknown", "sec-fetch-site"),
]


@for_each_row("header", HEADERS)
async def test_a_long_header_makes_no_long_reply(header: str):
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}).encode()
    async with living(shop().asgi()) as app:
        for accept in (BOTH, "text/html"):
            headers = {"accept": accept, "content-type": "application/json", header: LONG[:7_000]}
            answer = await Web(app).begin("POST", body, headers).ended()
            assert answer.status >= 200 and len(answer.body) <= MAX_REPLY, header
        missing = await Web(app, path=f"/{LONG}").begin("POST", body, {"accept": BOTH}).ended()
        assert len(missing.body) <= MAX_REPLY


def test_what_an_error_repeats_is_cut_where_the_error_is_made():
    assert len(str(InvalidParams(f"Unknown: {LONG}", data={"uri": LONG, "in": [{"deep": LONG}]}))) < MAX_ECHO + 50
    assert len(json.dumps(InvalidParams("a", data={"uri": LONG, "in": [{LONG: LONG}]}).data)) < 4 * MAX_ECHO
    assert len(str(Rejected("no", [LONG] * 100, guard="g"))) < MAX_REPLY
    assert len(str(Refused(LONG))) < MAX_REPLY and len(PeerError(LONG).message) < MAX_REPLY
    assert truncate_text("short") == "short" and truncate_text(LONG, 3) == "xxx… (40000 characters)"
    assert truncate_error_data({"url": LONG})["url"] == LONG, "an address that somebody has to open"
