"""What was opened with a key or token ends with it: sockets, sessions, streams, calls, subscriptions, grants."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from defserve import JWT, Server
from defserve.auth import DeniedTokens, Principal, live_credentials
from defserve.client import Client
from defserve.client.links.websocket import WebSocketLink
from defserve.errors import PeerGone
from defserve.protocols.mcp.subscriptions import SubscribedUris
from tests.auth.callers import Caller, Office, asked, called, office
from tests.auth.issuer import AUDIENCE, ISSUER, claims, pem, private_key, signed
from tests.listening import listening
from tests.raw import HANDSHAKE, until

pytestmark = pytest.mark.anyio

Place = tuple[Office, dict[str, Caller]]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_credentials.LiveCredentials.__init__, "__defaults__", (0.02,))


@pytest.fixture
async def place() -> AsyncGenerator[Place]:
    async with office(rest=True, legacy_sse=True) as made:
        yield made


async def revoke(place: Place, key: str) -> None:
    await place[0].keys.revoke(place[0].ids[key])


async def expire(place: Place, key: str) -> None:
    """Put another key in the place of this one, which expires now."""
    made = await place[0].keys.create("alice", permissions=["ToolInvoke(*)"], scopes="secrets", expires_in=10)
    place[1][key] = Caller(place[1][key].where, made.token)


async def socket(who: Caller) -> ClientConnection:
    headers = {"authorization": f"Bearer {who.token}"}
    opened = await connect(f"ws://{who.where.authority}/mcp", additional_headers=headers, subprotocols=["mcp"])
    about = {"name": "c", "version": "1"}
    params = {"protocolVersion": HANDSHAKE[-1], "capabilities": {}, "clientInfo": about}
    await opened.send(json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}))
    await opened.recv()
    return opened


async def test_a_socket_is_closed_with_a_reason(place: Place):
    strong, weak = await socket(place[1]["strong"]), await socket(place[1]["weak"])
    await strong.send(json.dumps(called("work")))
    await place[0].begun.wait()
    await revoke(place, "strong")
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            await strong.recv()
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, live_credentials.CREDENTIAL_ENDED_REASON)
    await until(place[0].cancelled.is_set)
    # The other key of the same principal is as good as before.
    await weak.send(json.dumps(called("look")))
    assert json.loads(await weak.recv())["id"] == 7
    await weak.close()


async def test_a_socket_ends_when_its_key_expires(place: Place):
    await expire(place, "strong")
    opened = await socket(place[1]["strong"])
    place[0].now += 11
    with pytest.raises(ConnectionClosed):
        await opened.recv()
    assert opened.close_code == 1008


async def test_a_host_says_why_its_socket_was_closed(place: Place):
    who = place[1]["strong"]
    link = await WebSocketLink.connect(f"ws://{who.where.authority}/mcp", token=who.token)
    async with Client(link) as host:
        running = asyncio.create_task(host.call("work"))
        await place[0].begun.wait()
        await revoke(place, "strong")
        with pytest.raises(PeerGone, match="1008 the credential was revoked or has expired"):
            await running


async def test_a_session_with_its_streams_ends_and_a_weaker_key_that_used_it_does_not_keep_it(place: Place):
    made, callers = place
    session = await callers["strong"].open()
    await callers["weak"].call(session, "look")
    reading, working = await callers["strong"].stream(session), await callers["strong"].stream(session, called("work"))
    await working.next()
    await revoke(place, "strong")
    assert await reading.rest() == []
    (told,) = await working.rest()
    assert told["result"]["_meta"]["dev.defserve/error"]["error_type"] == "credential_ended"
    assert "revoked or has expired" in told["result"]["content"][0]["text"]
    await until(made.cancelled.is_set)
    assert (await callers["weak"].send(asked("ping"), session)).status == 404
    assert not made.server.composition.sessions


async def test_a_session_goes_on_with_another_key_of_the_same_rights(place: Place):
    """So does one whose client has a new token before the old one expires."""
    made, callers = place
    session = await callers["strong"].open()
    assert (await callers["twin"].send(asked("ping"), session)).status == 200
    working = await callers["strong"].stream(session, called("work"))
    await working.next()
    await revoke(place, "strong")
    assert len(await working.rest()) == 1  # the call of the old key has failed
    assert (await callers["twin"].call(session, "erase")).json["result"]["content"][0]["text"] == "erased"
    await revoke(place, "twin")
    await until(lambda: not made.server.composition.sessions)


async def test_in_a_session_of_another_key_only_what_it_did_itself_ends(place: Place):
    made, callers = place
    session = await callers["strong"].open()
    for who in ("strong", "weak"):
        await callers[who].send(asked("resources/subscribe", uri="memo://open"), session)
    reading = await callers["weak"].stream(session)
    (conversation,) = made.server.composition.sessions
    subscribed = conversation.peek(SubscribedUris)
    assert subscribed is not None and len(subscribed.list_requested_uris()) == 2
    await revoke(place, "weak")
    assert await reading.rest() == []
    await until(lambda: len(subscribed.list_requested_uris()) == 1)
    assert (await callers["strong"].call(session, "erase")).status == 200


async def test_a_call_of_its_own_ends_in_every_form(place: Place):
    made, callers = place
    alone = asyncio.create_task(callers["strong"].call_alone("work"))
    rest = asyncio.create_task(callers["strong"].send({}, path="/tools/work"))
    await until(lambda: made.server.composition.running == 2)
    await revoke(place, "strong")
    assert (await alone).json["result"]["_meta"]["dev.defserve/error"]["error_type"] == "credential_ended"
    told = await rest
    assert (told.status, told.json["error"]["type"]) == (401, "credential_ended")


async def test_a_listening_request_ends(place: Place):
    made, callers = place
    key = "io.modelcontextprotocol/"
    meta = {key + "protocolVersion": "2026-07-28", key + "clientCapabilities": {}}
    message = asked("subscriptions/listen", notifications={"toolsListChanged": True}, _meta=meta)
    headers = {"mcp_protocol_version": "2026-07-28", "mcp_method": "subscriptions/listen"}
    listening = asyncio.create_task(callers["strong"].send(message, **headers))
    await until(lambda: made.server.composition.idle == 1)
    await revoke(place, "strong")
    assert (await listening).json["error"]["data"]["error_type"] == "credential_ended"


async def test_a_legacy_stream_ends(place: Place):
    made, callers = place
    reading = await callers["strong"].stream("", path="/sse")
    await reading.text()
    await revoke(place, "strong")
    assert await reading.rest() == []
    await until(lambda: not made.server.composition.sessions)


async def test_nothing_is_verified_while_nothing_is_open(place: Place):
    callers = place[1]
    session = await callers["strong"].open()
    app = callers["strong"].where.app
    live = app.live
    assert live is not None
    assert not live.is_idle
    await callers["strong"].send(session=session, verb="DELETE")
    assert (await callers["strong"].send({}, path="/tools/look")).status == 200
    await until(lambda: live.is_idle)


# -- other verifiers -------------------------------------------------------------------------------------


class Introspection:
    """A verifier of the author's own, which names no credential and whose answer changes."""

    def __init__(self) -> None:
        self.scopes: frozenset[str] | None = frozenset({"read", "write"})
        self.failing = False

    async def verify(self, token: str) -> Principal | None:
        if self.failing:
            raise OSError("the authorization server cannot be reached")
        return Principal("alice", self.scopes) if self.scopes is not None else None


@pytest.mark.parametrize("ending", ["revoked", "fewer scopes", "unreachable"])
async def test_an_author_s_verifier_is_asked_again(ending: str):
    verifier = Introspection()
    server = Server("s", "1", auth=verifier)
    async with listening(server) as where:
        opened = await socket(Caller(where, "opaque"))
        match ending:
            case "revoked":
                verifier.scopes = None
            case "fewer scopes":
                verifier.scopes = frozenset({"read"})
            case _:
                verifier.failing = True
        with pytest.raises(ConnectionClosed):
            await opened.recv()
        assert opened.close_code == 1008


async def test_a_token_with_more_scopes_than_before_goes_on():
    verifier = Introspection()
    async with listening(Server("s", "1", auth=verifier)) as where:
        opened = await socket(Caller(where, "opaque"))
        verifier.scopes = frozenset({"read", "write", "admin"})
        live = where.app.live
        assert live is not None
        await live.verify_credentials()
        await opened.send(json.dumps(asked("ping")))
        assert json.loads(await opened.recv())["result"] == {}
        await opened.close()


async def test_a_signed_token_ends_what_it_opened_at_its_expiry_and_when_it_is_denied():
    now, denied = [time.time()], DeniedTokens("memory:")
    verifier = JWT(key=pem(private_key()), audience=AUDIENCE, issuer=ISSUER, denied=denied, clock=lambda: now[0])
    tokens = [signed(claims(jti=jti, exp=int(now[0]) + 600)) for jti in ("one", "two")]
    async with listening(Server("s", "1", auth=verifier)) as where:
        one, two = [await socket(Caller(where, token)) for token in tokens]
        await denied.deny("one", until=now[0] + 600)
        with pytest.raises(ConnectionClosed):
            await one.recv()
        assert two.close_code is None
        now[0] += 601
        with pytest.raises(ConnectionClosed):
            await two.recv()
    assert (one.close_code, two.close_code) == (1008, 1008)
