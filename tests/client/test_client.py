from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from defserve.client import Client
from defserve.client.eras import MAX_QUEUED_NEWS
from defserve.client.replies import RETURN_TYPE_KEY
from defserve.errors import PeerError, PeerGone, PeerTimeout, ToolError
from tests.client.pretend import SILENCE, STATELESS, Fail, PretendServer
from tests.rows import for_each_row
from tests.waiting import until

pytestmark = pytest.mark.anyio

ADD = {"name": "add", "inputSchema": {"type": "object"}, "_meta": {RETURN_TYPE_KEY: {"type": "integer"}}}


def both(replies: dict[str, Any]) -> list[PretendServer]:
    """The same server in both eras."""
    return [PretendServer({**replies, "server/discover": Fail(-32601)}), PretendServer({**STATELESS, **replies})]


def texts(*texts: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text} for text in texts]}


async def test_a_scalar_comes_back_as_what_the_tool_returned():
    for server in both({"tools/call": texts("3"), "tools/list": {"tools": [ADD]}}):
        async with Client(server) as client:
            assert await client.call("add", a=1, b=2) == 3
            assert await client.call("add", a=1, b=2) == 3
        assert [params["arguments"] for params in server.asked("tools/call")] == [{"a": 1, "b": 2}] * 2
        assert len(server.asked("tools/list")) == 1


async def test_changed_tools_are_listed_again():
    for server in both({"tools/call": texts("3"), "tools/list": {"tools": [ADD]}}):
        async with Client(server) as client:
            await client.call("add")
            server.say({"method": "notifications/tools/list_changed"})
            await client.call("add")
        assert len(server.asked("tools/list")) == 2


async def test_a_server_that_cannot_list_its_tools_still_gives_text():
    for server in both({"tools/call": texts("3")}):
        async with Client(server) as client:
            assert await client.call("add") == "3"


async def test_an_argument_may_be_called_name_or_tool():
    for server in both({"tools/call": {"structuredContent": {"ok": True}}}):
        async with Client(server) as client:
            assert await client.call("greet", name="Ann", tool="x", timeout=3) == {"ok": True}
        assert server.asked("tools/call")[0]["arguments"] == {"name": "Ann", "tool": "x", "timeout": 3}


async def test_a_failed_tool_raises_and_its_raw_result_does_not():
    for server in both({"tools/call": {**texts("too big"), "isError": True}}):
        async with Client(server) as client:
            with pytest.raises(ToolError, match="too big"):
                await client.call("add")
            assert (await client.call_raw("add"))["isError"] is True


async def test_lists_are_followed_to_their_last_page():
    def page(request: dict[str, Any]) -> dict[str, Any]:
        cursor = request["params"].get("cursor") if "params" in request else None
        # An empty string is a legal cursor.
        return {None: {"prompts": [{"name": "a"}], "nextCursor": ""}, "": {"prompts": [{"name": "b"}]}}[cursor]

    for server in both({"prompts/list": page}):
        async with Client(server) as client:
            assert [prompt["name"] for prompt in await client.prompts()] == ["a", "b"]


async def test_pages_that_never_end_are_noticed():
    for server in both({"resources/list": {"resources": [], "nextCursor": "again"}}):
        async with Client(server) as client:
            with pytest.raises(PeerError, match="never end"):
                await client.resources()


async def test_a_resource_is_read_as_contents_text_or_bytes():
    contents = [{"uri": "a:b", "text": "é"}, {"uri": "a:b", "blob": "AAE="}]
    for server in both({"resources/read": {"contents": contents}}):
        async with Client(server) as client:
            assert await client.read("a:b") == contents
            assert await client.read_bytes("a:b") == "é".encode() + b"\x00\x01"
            server.replies["resources/read"] = {"contents": contents[:1]}
            assert await client.read_text("a:b") == "é"


async def test_bytes_that_are_no_base64_are_an_error_and_never_skipped():
    for server in both({"resources/read": {"contents": [{"uri": "a:b", "blob": "AAE_"}]}}):
        async with Client(server) as client:
            with pytest.raises(PeerError, match="'a:b' is not in base64"):
                await client.read_bytes("a:b")
            server.replies["resources/read"] = {"contents": [{"uri": "a:b", "blob": "AA\r\nE=\n"}]}
            assert await client.read_bytes("a:b") == b"\x00\x01"
            server.replies["resources/read"] = {"contents": [{"uri": "a:b", "text": "x", "blob": None}]}
            assert await client.read_text("a:b") == "x"


async def test_prompt_arguments_travel_as_strings():
    for server in both({"prompts/get": {"messages": []}}):
        async with Client(server) as client:
            assert await client.prompt("p", name="Ann", count=3, flags=[True]) == {"messages": []}
        assert server.asked("prompts/get")[0]["arguments"] == {"name": "Ann", "count": "3", "flags": "[true]"}


@for_each_row(
    ("ref", "wire"),
    [
        ("greeting", {"type": "ref/prompt", "name": "greeting"}),
        ("file:///{path}", {"type": "ref/resource", "uri": "file:///{path}"}),
        ({"type": "ref/prompt", "name": "a:b"}, {"type": "ref/prompt", "name": "a:b"}),
    ],
)
async def test_a_completion_is_asked_of_a_prompt_or_a_resource(ref: Any, wire: dict[str, Any]):
    for server in both({"completion/complete": {"completion": {"values": ["Ann"]}}}):
        async with Client(server) as client:
            found = await client.complete(ref, argument="name", value="A", context={"x": "y"})
        assert found == {"values": ["Ann"]}
        params = server.asked("completion/complete")[0]
        assert params["ref"] == wire
        assert params["argument"] == {"name": "name", "value": "A"}
        assert params["context"] == {"arguments": {"x": "y"}}


async def test_a_ping_becomes_a_discovery_where_there_is_no_ping():
    handshake, stateless = both({"ping": {}})
    for server in (handshake, stateless):
        async with Client(server) as client:
            await client.ping()
    assert len(handshake.asked("ping")) == 1
    assert stateless.asked("ping") == []
    assert len(stateless.asked("server/discover")) == 2


async def test_the_log_level_is_set_once_or_carried_by_every_request():
    handshake = PretendServer({"tools/list": {"tools": []}, "logging/setLevel": {}})
    async with Client(handshake, version="2025-11-25") as client:
        await client.set_log_level("debug")
    assert handshake.asked("logging/setLevel") == [{"level": "debug"}]
    stateless = PretendServer({**STATELESS, "tools/list": {"tools": []}})
    async with Client(stateless) as client:
        await client.set_log_level("debug")
        await client.tools()
    assert stateless.asked("tools/list")[0]["_meta"]["io.modelcontextprotocol/logLevel"] == "debug"


async def test_logs_and_notifications_reach_their_handlers():
    logs: list[Any] = []
    heard: list[str] = []
    server = PretendServer({"ping": {}})
    async with Client(
        server, version="2025-11-25", on_log=logs.append, on_notification=lambda method, params: heard.append(method)
    ) as client:
        server.say({"method": "notifications/message", "params": {"level": "info", "data": "hi"}})
        server.say({"method": "acme/news", "params": {}})
        await client.ping()
    assert logs == [{"level": "info", "data": "hi"}]
    assert heard == ["notifications/message", "acme/news"]


async def test_further_methods_of_the_server_are_answered():
    async def infer(params: dict[str, Any]) -> dict[str, Any]:
        return {"text": params["prompt"].upper()}

    server = PretendServer()
    async with Client(server, version="2025-11-25", methods={"acme/infer": infer, "acme/now": lambda params: 7}):
        server.say({"id": "a", "method": "acme/infer", "params": {"prompt": "hi"}})
        server.say({"id": "b", "method": "acme/now"})
        assert (await server.told(lambda m: m.get("id") == "a"))["result"] == {"text": "HI"}
        assert (await server.told(lambda m: m.get("id") == "b"))["result"] == 7


async def test_a_result_that_is_no_object_is_the_peers_error():
    for server in both({"acme/odd": [1]}):
        async with Client(server) as client:
            with pytest.raises(PeerError, match="acme/odd is not an object"):
                await client.request("acme/odd")


@for_each_row("kind", ["task", "partial", 5])
async def test_a_result_of_a_type_that_was_not_offered_is_the_peers_error(kind: Any):
    result = {"resultType": kind, "content": [{"type": "text", "text": "x"}]}
    handshake, stateless = both({"tools/call": result})
    async with Client(handshake) as client:  # there results have no types
        assert await client.call("t") == "x"
    async with Client(stateless) as client:
        with pytest.raises(PeerError, match="the result of tools/call is of a type that this client did not offer"):
            await client.call("t")
        assert (await client.request("tools/call", {"name": "t"}, follow=False))["resultType"] == kind


async def test_extra_meta_of_a_call_is_kept_beside_the_envelope():
    for server in both({"tools/call": texts("x")}):
        async with Client(server) as client:
            await client.call_raw("t", {}, meta={"traceparent": "00-1"})
        assert server.asked("tools/call")[0]["_meta"]["traceparent"] == "00-1"


async def test_a_client_that_is_not_open_says_so():
    client = Client(PretendServer())
    with pytest.raises(PeerGone, match="async with"):
        await client.tools()


async def test_a_timeout_of_one_call_overrides_the_clients():
    for server in both({"tools/call": SILENCE}):
        async with Client(server, timeout=30) as client:
            with pytest.raises(PeerTimeout, match="0.01 s"):
                await client.call_raw("slow", timeout=0.01)


async def test_list_changes_are_heard_in_a_session():
    server = PretendServer({"resources/subscribe": {}, "resources/unsubscribe": {}})
    async with Client(server, version="2025-11-25") as client, asyncio.timeout(20):
        async with client.listen(tools=True, uris=["a:b"]) as events:
            server.say({"method": "notifications/prompts/list_changed"})
            server.say({"method": "notifications/resources/updated", "params": {"uri": "other:x"}})
            server.say({"method": "notifications/resources/updated", "params": {"uri": "a:b"}})
            server.say({"method": "notifications/tools/list_changed"})
            heard = [(await anext(events)).method for _ in range(2)]
    assert heard == ["notifications/resources/updated", "notifications/tools/list_changed"]
    assert server.asked("resources/subscribe") == server.asked("resources/unsubscribe") == [{"uri": "a:b"}]


async def test_news_that_nobody_reads_are_kept_up_to_a_bound():
    server = PretendServer({"ping": {}})
    async with Client(server, version="2025-11-25") as client, client.listen(tools=True) as events:
        for number in range(MAX_QUEUED_NEWS + 5):
            server.say({"method": "notifications/tools/list_changed", "params": {"number": number}})
        await client.ping()
        assert (await anext(events)).params["number"] == 5


async def test_large_news_that_nobody_reads_are_kept_up_to_a_number_of_bytes():
    server = PretendServer({"ping": {}})
    async with Client(server, version="2025-11-25") as client, client.listen(tools=True) as events:
        for number in range(24):
            params = {"number": number, "more": "x" * 1_000_000}
            server.say({"method": "notifications/tools/list_changed", "params": params})
        await client.ping()
        assert (await anext(events)).params["number"] > 4


async def test_for_a_subscription_whose_news_nobody_can_read_nothing_is_kept():
    def listen(request: dict[str, Any]) -> Any:
        listening(server, request)
        tag = {"io.modelcontextprotocol/subscriptionId": request["id"]}
        for number in range(5):
            params = {"_meta": tag, "uri": "a://b", "number": number}
            server.say({"method": "notifications/resources/updated", "params": params})
        return SILENCE

    heard: list[Any] = []
    server = PretendServer({**STATELESS, "subscriptions/listen": listen})
    async with Client(server, on_notification=lambda method, params: heard.append(params.get("number"))) as client:
        await client.subscribe("a://b")
        await until(lambda: heard[-1:] == [4])
        (news,) = client._watched.values()  # pyright: ignore[reportPrivateUsage]
        assert news._unread.is_empty  # pyright: ignore[reportPrivateUsage]
    assert [number for number in heard if number is not None] == [0, 1, 2, 3, 4]


def listening(server: PretendServer, request: dict[str, Any]) -> None:
    tag = {"io.modelcontextprotocol/subscriptionId": request["id"]}
    honoured = {"toolsListChanged": True}
    acknowledged = {"notifications": honoured, "_meta": tag}
    server.say({"method": "notifications/subscriptions/acknowledged", "params": acknowledged})


async def test_news_are_heard_on_a_stateless_subscription_until_the_server_ends_it():
    def listen(request: dict[str, Any]) -> Any:
        listening(server, request)
        return SILENCE

    server = PretendServer({**STATELESS, "subscriptions/listen": listen})
    async with Client(server) as client, asyncio.timeout(20):
        async with client.listen(tools=True, prompts=True) as events:
            assert events.honoured == {"toolsListChanged": True}
            request = await server.told(lambda m: m["method"] == "subscriptions/listen")
            assert request["params"]["notifications"] == {"toolsListChanged": True, "promptsListChanged": True}
            for tag in (request["id"] + 1000, request["id"]):
                meta = {"io.modelcontextprotocol/subscriptionId": tag}
                server.say({"method": "notifications/tools/list_changed", "params": {"_meta": meta, "tag": tag}})
            server.say({"id": request["id"], "result": {"resultType": "complete"}})
            assert [news.params["tag"] async for news in events] == [request["id"]]


async def test_a_stream_of_news_that_the_server_ends_with_an_error_raises_it():
    def listen(request: dict[str, Any]) -> Any:
        listening(server, request)
        return Fail(-32603, "too slow")

    server = PretendServer({**STATELESS, "subscriptions/listen": listen})
    async with Client(server) as client, asyncio.timeout(20):
        async with client.listen(tools=True) as events:
            with pytest.raises(PeerError, match="too slow"):
                await anext(events)


async def test_a_resource_whose_stream_the_server_has_ended_can_be_subscribed_to_again():
    def listen(request: dict[str, Any]) -> Any:
        listening(server, request)
        return SILENCE

    server = PretendServer({**STATELESS, "subscriptions/listen": listen})
    async with Client(server) as client:
        for number in (1, 2, 3):
            await client.subscribe("a:b")
            assert len(client._listeners) == 1  # pyright: ignore[reportPrivateUsage]
            await client.subscribe("a:b")
            assert len(server.asked("subscriptions/listen")) == number
            id = server.sent[-1]["id"]
            server.say({"id": id, "result": {"resultType": "complete"}})
            await client.ping()


async def test_leaving_a_stateless_subscription_calls_it_off_before_anything_else_is_sent():
    def listen(request: dict[str, Any]) -> Any:
        listening(server, request)
        return SILENCE

    server = PretendServer({**STATELESS, "subscriptions/listen": listen})
    async with Client(server) as client:
        await client.subscribe("a:b")
        await client.unsubscribe("a:b")
        cancelled = server.sent[-1]
    request = await server.told(lambda m: m["method"] == "subscriptions/listen")
    assert request["params"]["notifications"] == {"resourceSubscriptions": ["a:b"]}
    assert cancelled["method"] == "notifications/cancelled"
    assert cancelled["params"]["requestId"] == request["id"]


async def test_a_refused_subscription_raises():
    server = PretendServer({**STATELESS, "subscriptions/listen": Fail(-32602, "too many")})
    async with Client(server) as client:
        with pytest.raises(PeerError, match="too many"):
            async with client.listen(tools=True):
                pass


async def test_a_subscription_that_was_refused_can_be_tried_again():
    server = PretendServer({**STATELESS, "subscriptions/listen": Fail(-32602, "too many")})
    async with Client(server) as client:
        for _ in range(2):
            with pytest.raises(PeerError, match="too many"):
                await client.subscribe("a:b")


async def test_who_gives_up_waiting_for_a_subscription_calls_it_off():
    server = PretendServer({**STATELESS, "subscriptions/listen": SILENCE})
    async with Client(server) as client:
        opening = asyncio.create_task(client.listen(tools=True).open())
        request = await server.told(lambda m: m["method"] == "subscriptions/listen")
        opening.cancel()
        cancelled = await server.told(lambda m: m["method"] == "notifications/cancelled")
        assert cancelled["params"]["requestId"] == request["id"]


async def test_listeners_learn_that_the_server_left():
    for version in ("2025-11-25", "2026-07-28"):

        def listen(request: dict[str, Any]) -> Any:
            listening(server, request)  # noqa: B023
            return SILENCE

        server = PretendServer({"server/discover": STATELESS["server/discover"], "subscriptions/listen": listen})
        async with Client(server, version=version) as client, asyncio.timeout(20):
            async with client.listen(tools=True) as events:
                server.leave(PeerGone("it crashed"))
                with pytest.raises(PeerGone, match="it crashed"):
                    await anext(events)


@pytest.mark.parametrize(
    ("most", "value"), [("MAX_PAGES", 5), ("MAX_ITEMS", 50), ("MAX_LIST_BYTES", 5_000)], ids=["pages", "items", "bytes"]
)
async def test_pages_that_never_end_are_bounded(most: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"defserve.client.server_requests.{most}", value)
    turned = itertools.count()

    def listed(request: dict[str, Any]) -> dict[str, Any]:
        return {"tools": [{"name": "x" * 90}] * 10, "nextCursor": f"c{next(turned)}"}

    server = PretendServer({"tools/list": listed})
    async with Client(server, version="2025-11-25") as client:
        with pytest.raises(PeerError, match="the pages of tools/list do not end: they are more than"):
            await client.tools()
    assert next(turned) < 10


@for_each_row("cursor", [5, 0, False, [], {"a": 1}, ["c"]], ids=repr)
async def test_a_cursor_of_a_wrong_type_is_a_clear_error(cursor: Any) -> None:
    server = PretendServer({"tools/list": {"tools": [], "nextCursor": cursor}})
    async with Client(server, version="2025-11-25") as client:
        with pytest.raises(PeerError, match="tools/list has a nextCursor that is not a string"):
            await client.tools()


async def test_what_is_no_list_is_an_error_and_what_is_no_object_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    server = PretendServer({"tools/list": {"tools": [None, 1, "x", [], {"name": "a"}]}, "prompts/list": {"prompts": 5}})
    async with Client(server, version="2025-11-25") as client:
        assert await client.tools() == [{"name": "a"}]
        assert "skipped 4 items of tools/list" in caplog.text
        with pytest.raises(PeerError, match="prompts/list has 'prompts', which is not a list"):
            await client.prompts()


async def test_a_server_that_refuses_the_log_level_can_be_used() -> None:
    opening: dict[str, Any] = {
        "protocolVersion": "2025-11-25",
        "capabilities": {"logging": {}},
        "serverInfo": {"name": "p", "version": "1"},
    }
    server = PretendServer({"initialize": opening, "logging/setLevel": Fail(-32601), "ping": {}})
    async with Client(server, version="2025-11-25", on_log=print) as client:
        await client.ping()
        with pytest.raises(PeerError):
            await client.set_log_level("debug")
    assert server.asked("logging/setLevel") == [{"level": "info"}, {"level": "debug"}]


@for_each_row(
    ("contents", "said"),
    [
        (5, "no list of objects"),
        (["text"], "no list of objects"),
        ([{"blob": 5}], "not in base64"),
        ([{"blob": "AAE"}], "not in base64"),
        ([{"blob": "/w=="}], "no text in UTF-8"),
    ],
    ids=repr,
)
async def test_contents_that_cannot_be_read_are_an_error_of_the_peer(contents: Any, said: str) -> None:
    server = PretendServer({"resources/read": {"contents": contents}})
    async with Client(server, version="2025-11-25") as client:
        with pytest.raises(PeerError, match=f"'a:b'.* {said}"):
            await client.read_text("a:b")


async def test_what_is_not_of_its_type_is_left_out() -> None:
    opening: dict[str, Any] = {"protocolVersion": "2025-11-25", "capabilities": {}, "instructions": {"a": 1}}
    server = PretendServer({"initialize": opening, "completion/complete": {"completion": 5}})
    async with Client(server, version="2025-11-25") as client:
        assert client.instructions is None
        assert await client.complete("greet", argument="name") == {}


async def test_in_a_session_a_resource_is_subscribed_to_for_as_long_as_somebody_listens() -> None:
    server = PretendServer({"resources/subscribe": {}, "resources/unsubscribe": {}})
    async with Client(server, version="2025-11-25") as client:
        async with client.listen(uris=["a:b"]):
            async with client.listen(uris=["a:b", "a:c"]):
                pass
            assert server.asked("resources/unsubscribe") == [{"uri": "a:c"}]
        assert server.asked("resources/unsubscribe") == [{"uri": "a:c"}, {"uri": "a:b"}]


async def test_a_stream_that_begins_while_another_one_closes_keeps_its_subscription() -> None:
    held: list[Any] = []

    def unsubscribe(request: dict[str, Any]) -> Any:
        held.append(request["id"])
        return SILENCE

    server = PretendServer({"resources/subscribe": {}, "resources/unsubscribe": unsubscribe})
    async with Client(server, version="2025-11-25") as client:
        first = client.listen(uris=["a:b", "a:c"])
        await first.open()
        closing = asyncio.create_task(first.close())
        await server.told(lambda message: message["method"] == "resources/unsubscribe")
        await client.listen(uris=["a:c"]).open()
        server.say({"id": held[0], "result": {}})
        await closing
    assert server.asked("resources/unsubscribe") == [{"uri": "a:b"}]


async def test_in_a_session_a_stream_and_a_subscription_of_the_same_resource_do_not_end_each_other() -> None:
    server = PretendServer({"resources/subscribe": {}, "resources/unsubscribe": {}})
    async with Client(server, version="2025-11-25") as client:
        await client.subscribe("a:b")
        async with client.listen(uris=["a:b"]):
            pass
        assert server.asked("resources/unsubscribe") == []
        async with client.listen(uris=["a:b"]):
            await client.unsubscribe("a:b")
            assert server.asked("resources/unsubscribe") == []
        assert server.asked("resources/unsubscribe") == [{"uri": "a:b"}]


async def test_of_several_resources_none_stays_subscribed_to_if_one_is_refused() -> None:
    def subscribe(request: dict[str, Any]) -> dict[str, Any]:
        if request["params"]["uri"] == "a:c":
            raise Fail(-32002, "no such resource")
        return {}

    server = PretendServer({"resources/subscribe": subscribe, "resources/unsubscribe": {}})
    async with Client(server, version="2025-11-25") as client:
        with pytest.raises(PeerError, match="no such resource"):
            await client.listen(uris=["a:b", "a:c"]).open()
    assert server.asked("resources/unsubscribe") == [{"uri": "a:b"}]
