"""Two clients never share a child by accident; children end with their clients; nobody hears another's news."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from defserve import Command, Remote, Server, ToolError
from defserve.auth import StaticTokens
from defserve.auth.api_keys import ApiKeys
from defserve.auth.live_credentials import LiveCredentials
from defserve.protocols.mcp.lifecycle import CLIENT_CAPABILITIES_META_KEY
from defserve.proxying import conversations
from defserve.serve.session_opener import serve_on_loopback
from defserve.stores.store import MemoryStore
from tests.at_address import at_address
from tests.proxying.backends import ERA_PAIRS, ERAS, child, hearing, until_fact, until_listed
from tests.proxying.everything import everything
from tests.waiting import is_running, until

pytestmark = pytest.mark.anyio

KEYS = {"a" * 40: "ann", "b" * 40: "bo"}


def desk(backend: Command | Remote, **options: Any) -> Server:
    server = Server("desk", auth=StaticTokens(KEYS))
    server.mount(backend, prefix="e", **options)
    return server


def backend_of(server: Server) -> Any:
    return server.mounts.backends["e"]


@pytest.mark.slow
@pytest.mark.parametrize(("era", "back"), ERA_PAIRS)
async def test_two_principals_have_a_child_each(era: str, back: str) -> None:
    async with at_address(desk(child(version=back))) as url:
        ann, bo = "a" * 40, "b" * 40
        async with Remote(url, token=ann).connect(era) as one, Remote(url, token=bo).connect(era) as other:
            await one.call("e_remember", text="the door code")
            assert await other.call("e_recall") == "nothing"
            assert await one.call("e_recall") == "the door code"
            assert await one.call("e_pid") != await other.call("e_pid")


@pytest.mark.slow
async def test_two_sessions_of_one_principal_have_a_child_each() -> None:
    async with at_address(desk(child())) as url:
        one, other = (Remote(url, token="a" * 40).connect("handshake") for _ in range(2))
        async with one as first, other as second:
            assert await first.call("e_pid") != await second.call("e_pid")
            assert await first.call("e_pid") == await first.call("e_pid")


@pytest.mark.slow
async def test_requests_of_one_principal_without_a_session_share_a_child() -> None:
    async with at_address(desk(child())) as url:
        one, other = (Remote(url, token="a" * 40).connect("stateless") for _ in range(2))
        async with one as first, other as second:
            assert await first.call("e_pid") == await second.call("e_pid")


@pytest.mark.slow
async def test_a_stranger_without_a_session_gets_a_child_for_one_call_that_ends_with_it() -> None:
    server = Server("desk")
    server.mount(child(), prefix="e")
    async with at_address(server) as url, Remote(url).connect("stateless") as client:
        first, second = await client.call("e_pid"), await client.call("e_pid")
        assert first != second
        await until(lambda: not (is_running(first) or is_running(second)))


@pytest.mark.slow
async def test_strangers_that_wait_for_news_have_a_child_each() -> None:
    server = Server("desk")
    server.mount(child(), prefix="e")
    async with at_address(server) as url:
        one, other = (Remote(url).connect("stateless") for _ in range(2))
        async with one as first, other as second, first.listen(uris=["note://e/live"]):
            async with second.listen(uris=["note://e/live"]):
                assert len(backend_of(server).conversations.pool) == 2
            await until(lambda: len(backend_of(server).conversations.pool) == 1)


@pytest.mark.slow
async def test_what_the_operator_shares_is_shared() -> None:
    async with at_address(desk(child(per="shared"))) as url:
        one, other = (Remote(url, token=key).connect("stateless") for key in KEYS)
        async with one as first, other as second:
            assert await first.call("e_pid") == await second.call("e_pid")


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
async def test_with_per_call_every_call_has_its_own_child(era: str) -> None:
    server = Server("desk")
    server.mount(child(per="call"), prefix="e")
    async with server.connect(era) as client:
        pids = [await client.call("e_pid") for _ in range(2)]
        assert len(set(pids)) == 2
        await until(lambda: not any(map(is_running, pids)))


@pytest.mark.slow
async def test_a_client_that_leaves_takes_its_child_with_it() -> None:
    async with at_address(desk(child())) as url:
        async with Remote(url, token="a" * 40).connect("handshake") as client:
            pid = await client.call("e_pid")
            assert is_running(pid)
        await until(lambda: not is_running(pid))


@pytest.mark.slow
async def test_idle_children_end_and_the_next_call_has_another() -> None:
    server = Server("desk")
    server.mount(child(), prefix="e", idle=0.2)
    async with server.connect("stateless") as client:
        pid = await client.call("e_pid")
        await until(lambda: not is_running(pid))
        assert await client.call("e_pid") != pid


@pytest.mark.slow
async def test_there_are_no_more_children_than_allowed() -> None:
    async with at_address(desk(child(), children=1)) as url:
        one, other = (Remote(url, token=key).connect("stateless") for key in KEYS)
        async with one as first, other as second:
            waiting = asyncio.create_task(first.call("e_wait"))
            await until_fact(first, "waiting")
            with pytest.raises(ToolError, match="'e'.*all of its 1 conversations are in use"):
                await second.call("e_pid")
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await until_fact(first, "stopped")
            pid = await first.call("e_pid")
            assert await second.call("e_pid") != pid  # an idle one makes room
            await until(lambda: not is_running(pid))


@pytest.mark.slow
async def test_news_of_a_child_go_to_its_own_client_alone() -> None:
    async with at_address(desk(child())) as url:
        of_ann: list[Any] = []
        of_bo: list[Any] = []
        one = Remote(url, token="a" * 40).connect("handshake", on_notification=hearing(of_ann, "uri"))
        other = Remote(url, token="b" * 40).connect("handshake", on_notification=hearing(of_bo, "uri"))
        async with one as ann, other as bo:
            for client in (ann, bo):
                await client.subscribe("note://e/live")
            await ann.call("e_change", text="for ann")
            await until(lambda: "note://e/live" in of_ann)
            await bo.ping()
            assert "note://e/live" not in of_bo


@pytest.mark.slow
async def test_a_tool_that_one_clients_child_grew_is_seen_by_that_client_alone() -> None:
    async with at_address(desk(child())) as url:
        one, other = (Remote(url, token=key).connect("stateless") for key in KEYS)
        async with one as ann, other as bo:
            await bo.call("e_pid")
            await ann.call("e_grow", name="secret_project")
            await until_listed(ann, "e_secret_project")
            assert "e_secret_project" not in [tool["name"] for tool in await bo.tools()]
            with pytest.raises(Exception, match="Unknown tool"):
                await bo.call("e_secret_project")
            assert await ann.call("e_secret_project") == "grown"


async def test_an_address_without_sessions_is_reached_by_one_conversation() -> None:
    async with at_address(everything()) as back:
        server = desk(Remote(back, version="stateless"))
        async with at_address(server) as url:
            one, other = (Remote(url, token=key).connect("stateless") for key in KEYS)
            async with one as ann, other as bo:
                assert [await ann.call("e_add", a=1, b=2), await bo.call("e_add", a=3, b=4)] == [3, 7]
                conversations = backend_of(server).conversations
                assert (conversations.sharing, len(conversations.pool)) == ("shared", 0)


def offering(number: int) -> dict[str, Any]:
    """What a client may ask differs in each: a conversation is for one offer."""
    return {"_meta": {CLIENT_CAPABILITIES_META_KEY: {"roots": {"n": number}}}}


@pytest.mark.slow
async def test_one_caller_with_many_faces_neither_takes_all_children_nor_ends_those_of_others() -> None:
    server = desk(child(), children=4)
    async with at_address(server) as url:
        one, other = (Remote(url, token=key).connect("stateless") for key in KEYS)
        async with one as ann, other as bo:
            await bo.call("e_remember", text="kept")
            for number in range(6):
                await ann.request("tools/call", {"name": "e_pid", "arguments": {}, **offering(number)})
            assert len(backend_of(server).conversations.pool) <= 4
            assert await bo.call("e_recall") == "kept"


@pytest.mark.slow
async def test_children_that_are_being_opened_for_strangers_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "WAIT_SECONDS", 60.0)
    server = Server("desk")
    server.mount(child(), prefix="e", children=2)
    async with at_address(server) as url, Remote(url).connect("stateless") as client:
        calls = [client.request("tools/call", {"name": "e_pid", "arguments": {}}) for _ in range(8)]
        results = asyncio.gather(*calls)
        most = 0
        while not results.done():
            most = max(most, len(backend_of(server).conversations.pool))
            await asyncio.sleep(0.001)
        assert most == 2 and not any(result.get("isError") for result in await results)
        await until(lambda: len(backend_of(server).conversations.pool) == 0)


@pytest.mark.slow
async def test_a_stranger_that_leaves_while_its_child_is_opened_leaves_no_child_behind(tmp_path: Any) -> None:
    """The child agrees, and is silent when it is asked to tell what changes. Each writes down its process."""
    program = tmp_path / "silent.py"
    program.write_text(SILENT)
    server = Server("desk")
    server.mount(child(str(program), str(tmp_path)), prefix="e", spares=0)

    def pids() -> set[int]:
        return {int(path.stem) for path in tmp_path.glob("*.pid")}

    async with at_address(server) as url, Remote(url).connect("stateless") as client:
        await until_listed(client, "e_pid")
        [main] = pids()
        for _ in range(3):
            before = len(list(tmp_path.glob("*.asked")))
            calling = asyncio.create_task(client.call("e_pid"))
            await until(lambda: len(list(tmp_path.glob("*.asked"))) > before)  # noqa: B023
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
        await until(lambda: not any(is_running(pid) for pid in pids() - {main}))


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
async def test_a_client_is_not_shown_the_listing_of_another_that_has_a_tool_of_the_same_name(
    era: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with at_address(desk(child("guarded.py"))) as url:
        one, other = (Remote(url, token=key).connect(era) for key in KEYS)
        async with one as ann, other as bo:
            await ann.call("e_own", text="the door code is 1234")
            await until_listed(ann, "e_mine")
            await bo.call("e_own", text="nothing to see")
            await until(lambda: "left out for a client" in caplog.text)
            assert "1234" in str(await ann.tools())
            assert "1234" not in str(await bo.tools())


class OwnChannel:
    """A front's own conversation, in which its backend offers one tool, `mine`, with a description that changes."""

    terms, offers_mgp = SimpleNamespace(capabilities={"tools": {}}), False

    def __init__(self, key: str) -> None:
        self.front, self.description = SimpleNamespace(key=key), "first"

    async def request(self, method: str, params: Any, within: float) -> dict[str, Any]:
        return {"tools": [{"name": "mine", "description": self.description, "inputSchema": {"type": "object"}}]}


async def test_a_tool_that_only_one_client_has_may_change() -> None:
    server = desk(Command("never-started"))
    catalogue = backend_of(server).catalogue
    tools: Any = server.mcp.tools.registry
    ann, bo = OwnChannel("ann"), OwnChannel("bo")
    await catalogue.refresh_lists(ann, ("tools",))
    ann.description = "second"
    await catalogue.refresh_lists(ann, ("tools",))
    assert (tools.get("e_mine").raw["description"], tools.get("e_mine").fronts) == ("second", {"ann"})
    await catalogue.refresh_lists(bo, ("tools",))
    assert tools.get("e_mine").fronts == {"ann"}
    catalogue.drop_private_items("ann")
    assert tools.get("e_mine") is None


async def test_a_tool_that_only_one_client_has_is_declared_again_like_the_others() -> None:
    server = desk(Command("never-started"))
    catalogue = backend_of(server).catalogue
    tools: Any = server.mcp.tools.registry
    await catalogue.refresh_lists(OwnChannel("ann"), ("tools",))
    before = tools.get("e_mine")
    catalogue.declare_again()
    assert tools.get("e_mine") is not before
    assert tools.get("e_mine").fronts == {"ann"}


SILENT = """
import json, os, pathlib, sys
place = pathlib.Path(sys.argv[1])
is_first = not list(place.glob("*.pid"))
(place / f"{os.getpid()}.pid").touch()
for line in sys.stdin:
    asked = json.loads(line)
    method, found = asked.get("method"), {"resultType": "complete"}
    if method == "server/discover":
        found |= {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {"listChanged": True}},
                  "serverInfo": {"name": "silent", "version": "1"}}
    elif method == "tools/list":
        found |= {"tools": [{"name": "pid", "inputSchema": {"type": "object"}}]}
    elif method == "subscriptions/listen" and not is_first:
        (place / f"{os.getpid()}.asked").touch()
        continue
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": found}), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
async def test_the_child_of_a_key_that_is_revoked_ends(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LiveCredentials.__init__, "__defaults__", (0.02,))
    keys = ApiKeys(MemoryStore(), pepper="0123456789abcdef0123456789abcdef")
    revoked, other = [await keys.create(who, permissions=["ToolInvoke(*)"]) for who in ("ann", "bo")]
    server = Server("desk", auth=keys)
    server.mount(child(), prefix="e")
    async with at_address(server) as url:
        first, second = (Remote(url, token=key.token).connect(era) for key in (revoked, other))
        async with first as ann, second as bo:
            ended, kept = await ann.call("e_pid"), await bo.call("e_pid")
            call = asyncio.create_task(ann.call("e_wait"))
            await until_fact(ann, "waiting")
            await keys.revoke(revoked.key.id)
            await until(lambda: not is_running(ended))
            await asyncio.gather(call, return_exceptions=True)
            assert await bo.call("e_pid") == kept


@pytest.mark.slow
async def test_the_idle_child_of_a_client_without_a_session_ends_with_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LiveCredentials.__init__, "__defaults__", (0.02,))
    keys = ApiKeys(MemoryStore(), pepper="0123456789abcdef0123456789abcdef")
    revoked, other = [await keys.create(who, permissions=["ToolInvoke(*)"]) for who in ("ann", "bo")]
    server = Server("desk", auth=keys)
    server.mount(child(), prefix="e")
    app = server.asgi()
    async with serve_on_loopback(app, server.limits) as url:
        assert app.live is not None
        first, second = (Remote(url, token=key.token).connect("stateless") for key in (revoked, other))
        async with first as ann, second as bo:
            ended, kept = await ann.call("e_pid"), await bo.call("e_pid")
            assert await ann.call("e_pid") == ended
        await keys.revoke(revoked.key.id)
        await until(lambda: not is_running(ended))
        assert is_running(kept)
        # Nothing is verified any more when nothing is left of it.
        await server.mounts.backends["e"].conversations.pool.aclose()
        live = app.live
        await until(lambda: live.is_idle)
        await app.provider.stop()
