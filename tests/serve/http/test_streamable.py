"""Streamable HTTP in both eras on one endpoint: which rules a request is under, and what it is answered."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.asgi import Peer, Web, request, text
from tests.raw import HANDSHAKE, PREFIX, STATELESS, turns
from tests.rows import for_each_row
from tests.serve.web_tools import Tools, is_json, is_stream

pytestmark = pytest.mark.anyio

LATEST = HANDSHAKE[-1]


# Sessions of the handshake era.


@pytest.mark.req("MCP-3.2")
@pytest.mark.parametrize("version", HANDSHAKE)
async def test_a_session_opens_answers_and_ends(app: Any, version: str):
    client = Peer(app, version)
    opening = await client.post(
        request("initialize", {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t"}}),
        {"mcp-protocol-version": "ignored here"},
    ).ended()
    assert (opening.status, opening.json["result"]["protocolVersion"]) == (200, version)
    client.session = opening.headers["mcp-session-id"]
    assert len(client.session) >= 22 and all(0x21 <= ord(c) <= 0x7E for c in client.session)
    told = await client.tell("notifications/initialized")
    assert (told.status, told.body) == (202, b"")
    answer = await client.begin_call("add", {"a": 1, "b": 2}).ended()
    assert (answer.status, is_json(answer), text(answer.json)) == (200, True, "3")
    assert (await client.delete().ended()).status == 204
    for gone in (client.begin_call("add"), client.listen(), client.delete()):
        assert (await gone.ended()).status == 404


async def test_ids_of_sessions_are_never_the_same(app: Any):
    assert len({(await Peer(app).open()).session for _ in range(50)}) == 50


@pytest.mark.parametrize("verb", ["POST", "GET", "DELETE"])
async def test_what_needs_a_session_says_whether_it_is_missing_or_unknown(app: Any, verb: str):
    headers = {"content-type": "application/json", "accept": "*/*"}
    body = json.dumps(request("ping", {})).encode()
    missing = await Web(app).begin(verb, body, headers).ended()
    unknown = await Web(app).begin(verb, body, {**headers, "mcp-session-id": "guess"}).ended()
    assert (missing.status, unknown.status) == (400, 404)
    assert missing.json["error"]["code"] == unknown.json["error"]["code"] == -32600


@pytest.mark.parametrize("act", ["call", "listen", "delete", "tell"])
async def test_somebody_elses_session_is_no_session(app: Any, act: str):
    mine = await Peer(app).open()
    thief = Peer(app)
    thief.session, thief.address = mine.session, "203.0.113.7"
    acts = {
        "call": lambda: thief.begin_call("add", {"a": 1, "b": 2}),
        "listen": thief.listen,
        "delete": thief.delete,
        "tell": lambda: thief.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, thief.its_headers),
    }
    assert (await acts[act]().ended()).status == 404
    assert await mine.call("add", {"a": 1, "b": 2}) == "3"


VERSION_HEADERS = [
    (None, 200),
    *((version, 200) for version in HANDSHAKE),
    ("2020-01-01", 400),
    ("nonsense", 400),
    (STATELESS, 400),
]


@pytest.mark.parametrize(("version", "status"), VERSION_HEADERS)
async def test_the_version_header_of_a_session_is_one_we_speak(app: Any, version: str | None, status: int):
    client = await Peer(app).open()
    response = await client.begin_request("ping", headers={"mcp-protocol-version": version}).ended()
    assert response.status == status


@pytest.mark.parametrize(("version", "status"), [("nonsense", 400), (STATELESS, 405)])
@pytest.mark.parametrize("verb", ["GET", "DELETE"])
async def test_get_and_delete_are_for_sessions_only(app: Any, verb: str, version: str, status: int):
    client = await Peer(app).open()
    headers = {**client.its_headers, "mcp-protocol-version": version, "accept": "*/*"}
    response = await client.begin(verb, b"", headers).ended()
    assert (response.status, response.headers.get("allow")) == (status, "POST" if status == 405 else None)


async def test_a_notification_under_an_unknown_version_is_refused(app: Any):
    client = await Peer(app).open()
    client.version = "nonsense"
    assert (await client.tell("notifications/initialized")).status == 400


async def test_a_session_is_opened_once(app: Any):
    client = await Peer(app).open()
    other = await Peer(app).open()
    assert client.session != other.session
    bad = await Web(app).post(request("initialize", {"capabilities": {}})).ended()
    assert (bad.status, bad.json["error"]["code"], "mcp-session-id" in bad.headers) == (400, -32602, False)


async def test_a_refused_opening_leaves_no_session_behind(tools: Tools, app: Any):
    for _ in range(3):
        await Web(app).post(request("initialize", {})).ended()
    assert not tools.server.composition.sessions


async def test_an_unknown_method_is_an_error_inside_an_ok(app: Any):
    client = await Peer(app).open()
    response = await client.begin_request("no/such").ended()
    assert (response.status, response.json["error"]["code"]) == (200, -32601)


@pytest.mark.parametrize("result", [{"result": {}}, {"error": {"code": 1, "message": "no"}}], ids=["result", "error"])
async def test_an_answer_to_nothing_is_taken_without_a_word(app: Any, result: dict[str, Any]):
    client = await Peer(app).open()
    response = await client.post({"jsonrpc": "2.0", "id": 99, **result}, client.its_headers).ended()
    assert (response.status, response.body) == (202, b"")


async def test_a_notification_with_a_null_id_is_still_one(app: Any):
    client = await Peer(app).open()
    body = {"jsonrpc": "2.0", "id": None, "method": "notifications/initialized"}
    assert (await client.post(body, client.its_headers).ended()).status == 202


# Batches.


async def test_a_batch_is_answered_by_one_array(app: Any):
    client = await Peer(app, "2025-03-26").open()
    batch = [
        request("ping", {}, 1),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        request("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}, "two"),
        {"jsonrpc": "2.0", "id": 50, "result": {}},
        {"nonsense": 1},
        request("initialize", {}, 3),
    ]
    response = await client.post(batch, client.its_headers).ended()
    assert (response.status, is_json(response)) == (200, True)
    by_id = {reply.get("id"): reply for reply in response.json}
    assert set(by_id) == {1, "two", None, 3}
    assert text(by_id["two"]) == "3"
    assert by_id[None]["error"]["code"] == by_id[3]["error"]["code"] == -32600


async def test_a_batch_that_says_something_first_is_a_stream(tools: Tools, app: Any):
    client = await Peer(app, "2025-03-26").open()
    tools.go.set()
    batch = [request("tools/call", {"name": "chat"}, 1), request("ping", {}, 2)]
    response = await client.post(batch, client.its_headers).ended()
    assert is_stream(response)
    log, replies = response.messages
    assert log["method"] == "notifications/message"
    assert {reply["id"] for reply in replies} == {1, 2}


@pytest.mark.parametrize("accept", ["application/json, text/event-stream", "text/event-stream, application/json"])
async def test_a_batch_of_notifications_and_answers_wants_no_answer(app: Any, accept: str):
    client = await Peer(app, "2025-03-26").open()
    batch = [{"jsonrpc": "2.0", "method": "notifications/initialized"}, {"jsonrpc": "2.0", "id": 5, "result": {}}]
    response = await client.post(batch, {**client.its_headers, "accept": accept}).ended()
    assert (response.status, response.body) == (202, b"")


@pytest.mark.parametrize("version", [v for v in HANDSHAKE if v != "2025-03-26"])
@pytest.mark.parametrize("times", [1, 20])
async def test_other_versions_take_no_batches_however_often_they_are_sent(app: Any, version: str, times: int):
    client = await Peer(app, version).open()
    for _ in range(times):
        response = await client.post([request("ping", {})], client.its_headers).ended()
        assert (response.status, response.json["error"]["code"]) == (400, -32600)


async def test_opening_cannot_be_in_a_batch(app: Any):
    response = await Web(app).post([request("initialize", {"protocolVersion": "2025-03-26"})]).ended()
    assert response.status == 400


# The stateless era.


ENVELOPE = {PREFIX + "protocolVersion": STATELESS, PREFIX + "clientCapabilities": {}}
CALL = {"name": "add", "arguments": {"a": 1, "b": 2}, "_meta": ENVELOPE}
CALL_HEADERS = {"mcp-protocol-version": STATELESS, "mcp-method": "tools/call", "mcp-name": "add"}


def enveloped(version: str) -> dict[str, Any]:
    return {**CALL, "_meta": {**ENVELOPE, PREFIX + "protocolVersion": version}}


@pytest.mark.req("MCP-3.2")
async def test_a_request_stands_alone(app: Any):
    response = await Web(app).post(request("tools/call", CALL), CALL_HEADERS).ended()
    assert (response.status, is_json(response), text(response.json)) == (200, True, "3")
    assert "mcp-session-id" not in response.headers


# Changed headers and params, and what becomes of the request: its HTTP status and its error code.
LADDER: dict[str, tuple[dict[str, Any], dict[str, Any], int, int | None]] = {
    "as it should be": ({}, {}, 200, None),
    "headers of sessions are ignored": ({"mcp-session-id": "x", "last-event-id": "y"}, {}, 200, None),
    "blanks around values": ({"mcp-name": " add \t", "mcp-method": "tools/call "}, {}, 200, None),
    "a wrapped name": ({"mcp-name": f"=?base64?{base64.b64encode(b'add').decode()}?="}, {}, 200, None),
    "a badly wrapped name": ({"mcp-name": "=?base64?YWRk!?="}, {}, 400, -32020),
    "no _meta": ({}, {"name": "add", "arguments": {}}, 400, -32602),
    "_meta of another kind": ({}, {**CALL, "_meta": 5}, 400, -32602),
    "no capabilities": ({}, {**CALL, "_meta": {PREFIX + "protocolVersion": STATELESS}}, 400, -32602),
    "no version": ({}, {**CALL, "_meta": {PREFIX + "clientCapabilities": {}}}, 400, -32602),
    "a version of another kind": ({}, {**CALL, "_meta": {**ENVELOPE, PREFIX + "protocolVersion": 7}}, 400, -32602),
    "unknown version header, no _meta": ({"mcp-protocol-version": "v999"}, {"name": "add"}, 400, -32602),
    "no version header": ({"mcp-protocol-version": None}, {}, 400, -32020),
    "version header of the other era": ({"mcp-protocol-version": LATEST}, {}, 400, -32020),
    "header and body of two versions": ({}, enveloped("v999"), 400, -32020),
    "a version nobody speaks": ({"mcp-protocol-version": "v999"}, enveloped("v999"), 400, -32022),
    "a version of sessions": ({"mcp-protocol-version": LATEST}, enveloped(LATEST), 400, -32022),
    "no method header": ({"mcp-method": None}, {}, 400, -32020),
    "another method header": ({"mcp-method": "tools/list"}, {}, 400, -32020),
    "a method header in another case": ({"mcp-method": "Tools/Call"}, {}, 400, -32020),
    "no name header": ({"mcp-name": None}, {}, 400, -32020),
    "another name header": ({"mcp-name": "wait"}, {}, 400, -32020),
    "an unknown tool": ({"mcp-name": "none"}, {**CALL, "name": "none"}, 400, -32602),
    "arguments that do not fit": ({}, {**CALL, "arguments": {"a": "x"}}, 200, None),
    "an unknown Mcp-Param header": ({"mcp-param-other": "x"}, {}, 200, None),
}


@for_each_row("case", LADDER)
async def test_a_stateless_request_is_judged_in_order(app: Any, case: str):
    headers, params, status, code = LADDER[case]
    sent = request("tools/call", params or CALL, "my id")
    response = await Web(app).post(sent, {**CALL_HEADERS, **headers}).ended()
    assert response.status == status, response.body
    assert response.json.get("error", {}).get("code") == code
    assert response.json["id"] == "my id"
    if code == -32022:
        asked = (params or CALL)["_meta"][PREFIX + "protocolVersion"]
        data = response.json["error"]["data"]
        assert (data["supported"], data["requested"]) == ([STATELESS], asked)


REGION = {"name": "region", "arguments": {"region": "eu"}, "_meta": ENVELOPE}
PARAM_HEADERS = {
    "equal": ("eu", 200),
    "wrapped": (f"=?base64?{base64.b64encode(b'eu').decode()}?=", 200),
    "different": ("us", 400),
    "missing": (None, 400),
    "unpadded": ("=?base64?ZXU?=", 400),
}


@pytest.mark.parametrize("case", PARAM_HEADERS)
async def test_a_marked_argument_has_to_be_in_its_header(app: Any, case: str):
    value, status = PARAM_HEADERS[case]
    headers = {**CALL_HEADERS, "mcp-name": "region", "mcp-param-region": value}
    response = await Web(app).post(request("tools/call", REGION), headers).ended()
    assert response.status == status
    assert status == 200 or response.json["error"]["code"] == -32020


async def test_arguments_under_a_version_nobody_speaks_are_not_looked_at(app: Any):
    params = {**REGION, "_meta": enveloped("v999")["_meta"]}
    headers = {**CALL_HEADERS, "mcp-name": "region", "mcp-protocol-version": "v999"}
    response = await Web(app).post(request("tools/call", params), headers).ended()
    assert response.json["error"]["code"] == -32022


REMOVED = [
    "initialize",
    "ping",
    "logging/setLevel",
    "resources/subscribe",
    "resources/unsubscribe",
    "tasks/list",
    "x/y",
]


@pytest.mark.parametrize("method", REMOVED)
async def test_what_this_era_does_not_have_is_not_found(app: Any, method: str):
    response = await Peer(app, STATELESS).begin_request(method).ended()
    assert (response.status, response.json["error"]["code"]) == (404, -32601)


NOT_REQUESTS = [
    ({"jsonrpc": "2.0", "method": "notifications/initialized"}, 202),
    ({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1, "_meta": ENVELOPE}}, 202),
    ({"jsonrpc": "2.0", "id": 1, "result": {}}, 400),
    ([request("tools/call", CALL)], 400),
]


@pytest.mark.parametrize(("body", "status"), NOT_REQUESTS)
async def test_only_requests_are_taken_and_notifications_dropped(app: Any, body: Any, status: int):
    response = await Web(app).post(body, {"mcp-protocol-version": STATELESS}).ended()
    assert response.status == status
    assert response.body == b"" if status == 202 else response.json["error"]["code"] == -32600


async def test_a_missing_capability_is_a_bad_request(app: Any):
    response = await Peer(app, STATELESS).begin_call("ask").ended()
    assert (response.status, response.json["error"]["code"]) == (400, -32021)
    assert response.json["error"]["data"]["requiredCapabilities"] == {"elicitation": {}}


async def test_both_eras_share_the_endpoint_at_the_same_time(tools: Tools, app: Any):
    old, new = await Peer(app).open(), Peer(app, STATELESS)
    waiting = [old.begin_call("wait", id=50), new.begin_call("wait", id=1), new.begin_call("wait", id=1)]
    await turns()
    assert await old.call("add", {"a": 1, "b": 2}) == await new.call("add", {"a": 1, "b": 2}) == "3"
    tools.go.set()
    for exchange in waiting:
        assert text((await exchange.ended()).json) == "waited"


async def test_the_probe_of_a_new_client_is_answered_without_a_session(app: Any):
    response = await Peer(app, STATELESS).begin_request("server/discover").ended()
    assert (response.status, response.json["result"]["supportedVersions"]) == (200, [STATELESS])
