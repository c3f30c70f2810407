"""Who may say yes: every road × every kind of peer, over real sockets and pipes. Strangers can only take away."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from defserve import Server
from defserve.auth import Auth, StaticTokens
from defserve.auth.local_token import find_local_server_url
from tests.effort import slow
from tests.listening import Listening, listening
from tests.server.authority import roads
from tests.server.authority.served import make, make_kernel
from tests.server.authority.talking import (
    Talk,
    TurnedAway,
    http_client,
    link_in_memory,
    link_to,
    link_to_process,
)

pytestmark = pytest.mark.anyio

OWN_USER, KNOWN = "its yes counts, and its client is believed to have asked", "its yes counts"
STRANGER, SHUT_OUT = "its yes does not count", "not let in"
COUNTS: dict[str, bool | str] = {OWN_USER: True, KNOWN: True, STRANGER: False, SHUT_OUT: SHUT_OUT}
TCP = "http://127.0.0.1:0/mcp"


@dataclass(frozen=True)
class PeerKind:
    """How a peer comes, with which headers, to a server with which options; and what it may do."""

    may: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    on: str = TCP
    auth: Callable[[], Auth] | None = None
    over: str = "http"
    shows_local_token: bool = False


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def tokens(**options: Any) -> Auth:
    return Auth(StaticTokens({"good": {"principal": "ann", "scopes": ["use"]}, "weak": "bob"}), **options)


def forwarded(text: str, **more: str) -> dict[str, str]:
    return {"x-forwarded-for": text, **more}


PROXY: dict[str, Any] = {"trusted_proxy": True}
LOCAL: dict[str, Any] = {"local_token": True}
CHECKED = partial(tokens, scopes=["use"])

PEERS: dict[str, PeerKind] = {
    "loopback": PeerKind(STRANGER),
    "loopback by name": PeerKind(STRANGER, on="http://localhost:0/mcp"),
    "loopback, WebSocket": PeerKind(STRANGER, over="ws"),
    "loopback, HTTP+SSE": PeerKind(STRANGER, over="sse"),
    "loopback, a token nobody checks": PeerKind(STRANGER, bearer("good")),
    "loopback, forged address": PeerKind(STRANGER, forwarded("127.0.0.1", forwarded="for=127.0.0.1")),
    "loopback, forged names": PeerKind(
        STRANGER, {"x-forwarded-user": "local", "x-real-ip": "127.0.0.1", "via": "unix"}
    ),
    "proxy": PeerKind(STRANGER, forwarded("203.0.113.7"), PROXY),
    "proxy, forged in front": PeerKind(STRANGER, forwarded("127.0.0.1, 203.0.113.7"), PROXY),
    "proxy, forged address": PeerKind(STRANGER, forwarded("127.0.0.1"), PROXY),
    "proxy, forged name": PeerKind(STRANGER, forwarded("localhost"), PROXY),
    "proxy, forged principal": PeerKind(STRANGER, forwarded("local"), PROXY),
    "proxy, nothing": PeerKind(STRANGER, forwarded(""), PROXY),
    "proxy that forwards nothing": PeerKind(STRANGER, {}, PROXY),
    "proxy, WebSocket": PeerKind(STRANGER, forwarded("localhost"), PROXY, over="ws"),
    "proxy, HTTP+SSE": PeerKind(STRANGER, forwarded("127.0.0.1"), PROXY, over="sse"),
    "unix socket": PeerKind(STRANGER, on="unix:"),
    "unix socket, proxy": PeerKind(STRANGER, forwarded("127.0.0.1"), PROXY, on="unix:"),
    "unix socket, trusted": PeerKind(OWN_USER, options={"trust_same_user": True}, on="unix:"),
    "no local token": PeerKind(STRANGER, options=LOCAL),
    "no local token, other credentials": PeerKind(STRANGER, {"authorization": "Basic bG9jYWw6"}, LOCAL),
    "no local token, WebSocket": PeerKind(STRANGER, options=LOCAL, over="ws"),
    "wrong local token": PeerKind(SHUT_OUT, bearer("A" * 43), LOCAL),
    "wrong local token, WebSocket": PeerKind(SHUT_OUT, bearer("A" * 43), LOCAL, over="ws"),
    "wrong local token, HTTP+SSE": PeerKind(SHUT_OUT, bearer("A" * 43), LOCAL, over="sse"),
    "local token": PeerKind(OWN_USER, options=LOCAL, shows_local_token=True),
    "local token, WebSocket": PeerKind(OWN_USER, options=LOCAL, over="ws", shows_local_token=True),
    "local token, HTTP+SSE": PeerKind(OWN_USER, options=LOCAL, over="sse", shows_local_token=True),
    "local token, server with auth": PeerKind(OWN_USER, options=LOCAL, auth=CHECKED, shows_local_token=True),
    "token, server with local token": PeerKind(KNOWN, bearer("good"), LOCAL, auth=CHECKED),
    "no token, server with both": PeerKind(SHUT_OUT, options=LOCAL, auth=CHECKED),
    "no token": PeerKind(SHUT_OUT, auth=CHECKED),
    "no token, unix socket": PeerKind(SHUT_OUT, auth=CHECKED, on="unix:", options={"trust_same_user": True}),
    "bad token": PeerKind(SHUT_OUT, bearer("bad"), auth=CHECKED),
    "token without the scope": PeerKind(SHUT_OUT, bearer("weak"), auth=CHECKED),
    "token": PeerKind(KNOWN, bearer("good"), auth=CHECKED),
    "token, WebSocket": PeerKind(KNOWN, bearer("good"), auth=CHECKED, over="ws"),
    "token, HTTP+SSE": PeerKind(KNOWN, bearer("good"), auth=CHECKED, over="sse"),
    "token, proxy": PeerKind(KNOWN, {**bearer("good"), **forwarded("203.0.113.7")}, PROXY, auth=CHECKED),
}
# One of each way to come and of each reason to be known; the others differ from one of these by a detail.
SAMPLE = {
    "loopback",
    "loopback, WebSocket",
    "loopback, HTTP+SSE",
    "loopback, a token nobody checks",
    "loopback, forged address",
    "proxy, forged address",
    "proxy, WebSocket",
    "unix socket",
    "unix socket, trusted",
    "no local token",
    "wrong local token",
    "local token",
    "local token, WebSocket",
    "no token, server with both",
    "token without the scope",
    "token, HTTP+SSE",
    "token, proxy",
}
# A kernel asks the same file, so fewer of them do.
KERNEL_SAMPLE = {
    "loopback",
    "loopback, WebSocket",
    "proxy, forged address",
    "unix socket, trusted",
    "no local token",
    "local token",
    "token, proxy",
}
assert PEERS.keys() >= SAMPLE >= KERNEL_SAMPLE


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@asynccontextmanager
async def serving(
    kind: PeerKind, folder: Path, sets: str = "open", made: Server | None = None
) -> AsyncGenerator[tuple[Listening, str, dict[str, str], str]]:
    """The server, its base address, the peer's headers, and the path of its unix socket."""
    unix = str(folder / "s") if kind.on == "unix:" else ""
    server = made or make(auth=kind.auth() if kind.auth else None, feature_sets=sets)
    options = {"legacy_sse": True, "rest": True, **kind.options}
    async with listening(server, f"unix:{unix}" if unix else kind.on, **options) as where:
        base = "http://localhost" if unix else f"http://{where.authority}"
        headers = dict(kind.headers)
        if kind.shows_local_token:
            found = find_local_server_url(base)
            assert found is not None
            headers |= bearer(found.key)
        yield where, base, headers, unix


Linking = Callable[[], AbstractAsyncContextManager[Any]]


async def outcomes(linking: Linking, taken: Mapping[str, roads.Road]) -> dict[str, bool | str]:
    """What came of each road. Each has conversations of its own."""
    found: dict[str, bool | str] = {}
    for name, road in taken.items():
        async with AsyncExitStack() as stack:

            async def open(version: str, capabilities: roads.Json, stack: AsyncExitStack = stack) -> Talk:
                return await Talk(await stack.enter_async_context(linking()), version, capabilities).open()

            try:
                found[name] = await road(open)
            except TurnedAway:
                found[name] = SHUT_OUT
    return found


@pytest.mark.parametrize("name", [name if name in SAMPLE else slow(name) for name in PEERS])
async def test_the_yes_of_a_peer_counts_as_the_table_says(name: str, tmp_path: Path):
    """Also over REST. At last it tells the server to end, as only the local user and admins may."""
    kind = PEERS[name]
    async with serving(kind, tmp_path) as (where, base, headers, unix):
        async with http_client(base, headers, unix) as http:
            erased = await http.post("/tools/erase", json={})
            noted = await http.post("/tools/note", json={})
        linking = partial(link_to, kind.over, base, headers, unix)
        yes = await outcomes(linking, roads.YES)
        assumed = await outcomes(linking, roads.ASSUMED_YES)
        open_to_all = await outcomes(linking, roads.OPEN_TO_ALL)
        end = await outcomes(linking, {"end": roads.shutting_down})
        drains = where.app.provider.composition.draining
    if kind.may == SHUT_OUT:
        assert erased.status_code in (401, 403) and noted.status_code in (401, 403)
    else:
        assert erased.status_code == (200 if kind.may == OWN_USER else 403), erased.text
        assert noted.status_code == 200
    assert yes == dict.fromkeys(roads.YES, COUNTS[kind.may])
    assert assumed == dict.fromkeys(roads.ASSUMED_YES, SHUT_OUT if kind.may == SHUT_OUT else kind.may == OWN_USER)
    assert open_to_all == dict.fromkeys(roads.OPEN_TO_ALL, SHUT_OUT if kind.may == SHUT_OUT else True)
    assert end == {"end": COUNTS[kind.may]}
    assert drains is (kind.may in (OWN_USER, KNOWN))


@pytest.mark.parametrize("name", [name if name in SAMPLE else slow(name) for name in PEERS])
async def test_only_a_known_peer_switches_on_what_the_operator_switched_off(name: str, tmp_path: Path):
    kind = PEERS[name]
    async with serving(kind, tmp_path, "strict") as (_, base, headers, unix):
        yes = await outcomes(partial(link_to, kind.over, base, headers, unix), roads.YES_IF_STRICT)
    assert yes == dict.fromkeys(roads.YES_IF_STRICT, COUNTS[kind.may])


@pytest.mark.parametrize("name", [name if name in KERNEL_SAMPLE else slow(name) for name in PEERS])
async def test_only_operators_operate_a_kernel(name: str, tmp_path: Path):
    kind = PEERS[name]
    kernel = make_kernel(tmp_path, auth=kind.auth() if kind.auth else None)
    async with serving(kind, tmp_path, made=kernel) as (_, base, headers, unix):
        found = await outcomes(partial(link_to, kind.over, base, headers, unix), roads.YES_AT_A_KERNEL)
    kernel.mgp.audit.close()
    assert found == dict.fromkeys(roads.YES_AT_A_KERNEL, COUNTS[kind.may])


async def test_a_peer_in_memory_is_known():
    server = make()
    taken = {**roads.YES, **roads.ASSUMED_YES}
    assert await outcomes(partial(link_in_memory, server), taken) == dict.fromkeys(taken, True)
    assert all((await outcomes(partial(link_in_memory, server), roads.OPEN_TO_ALL)).values())
    strict = make(feature_sets="strict")
    assert all((await outcomes(partial(link_in_memory, strict), roads.YES_IF_STRICT)).values())


async def test_a_peer_on_a_pipe_is_known():
    # A process for each road is slow, so only one of each kind is taken.
    known = {**roads.YES, **roads.ASSUMED_YES}
    chosen = ("skip the question by being mute, 2025-11-25", "grant", "grant along with the call", "approve a scope")
    yes = await outcomes(link_to_process, {name: known[name] for name in chosen})
    assert yes == dict.fromkeys(chosen, True)


@pytest.mark.parametrize("confirm", ["auto", "always", "never"])
@pytest.mark.parametrize("version", roads.BOTH_ERAS)
async def test_only_the_operators_never_lets_a_stranger_pass(confirm: str, version: str):
    async with listening(make(confirm=confirm)) as where:
        for capabilities in (roads.ASKS, roads.LIVE, {}, roads.offer(version, "security")):
            async with link_to("http", f"http://{where.authority}", {}) as link:
                talk = await Talk(link, version, capabilities).open()
                assert await roads.ran(talk, "erase") is (confirm == "never")


async def test_a_stranger_cannot_use_the_question_that_a_known_peer_was_asked():
    call = {"name": "erase", "arguments": {}}
    answer = {"action": "accept", "content": {"value": True}}
    async with listening(make(), local_token=True) as where:
        base = f"http://{where.authority}"
        found = find_local_server_url(base)
        assert found is not None
        stateless = roads.STATELESS
        async with link_to("http", base, bearer(found.key)) as ours, link_to("http", base, {}) as theirs:
            known, stranger = Talk(ours, stateless, roads.ASKS), Talk(theirs, stateless, roads.ASKS)
            await known.send({"id": 1, "method": "tools/call", "params": known._dressed(call)})
            question = roads.json_of(await ours.receive())["result"]
            assert question["resultType"] == "input_required"
            state = {"inputResponses": dict.fromkeys(question["inputRequests"], answer)}
            state["requestState"] = question["requestState"]
            assert not await roads.ran(stranger, "erase", **state)
            assert await roads.ran(known, "erase", **state)


async def test_a_stranger_cannot_use_the_session_of_a_known_peer():
    async with listening(make(), local_token=True) as where:
        base = f"http://{where.authority}"
        found = find_local_server_url(base)
        assert found is not None
        async with link_to("http", base, bearer(found.key)) as ours, http_client(base, {}) as http:
            await Talk(ours, roads.SESSION, {}).open()
            body = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "erase", "arguments": {}}}
            headers = {**ours._headers, "accept": "application/json, text/event-stream"}
            assert (await http.post("/mcp", json=body, headers=headers)).status_code == 404
            assert (await http.delete("/mcp", headers=headers)).status_code == 404


async def test_a_user_of_another_number_is_a_stranger_on_a_trusted_unix_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # The kernel reports our own user, so the server is made to believe that it is somebody else.
    monkeypatch.setattr("defserve.auth.authority.os.getuid", lambda: os.geteuid() + 1)
    async with serving(PEERS["unix socket, trusted"], tmp_path) as (_, base, headers, unix):
        taken = {**roads.YES, **roads.ASSUMED_YES}
        yes = await outcomes(partial(link_to, "http", base, headers, unix), taken)
    assert yes == dict.fromkeys(taken, False)
