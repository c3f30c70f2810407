"""An unchanged server in a topic, over real sockets: what it answers, what it refuses, and what it survives."""

from __future__ import annotations

import asyncio

import pytest

from defserve import Context, Server
from defserve.errors import PeerError, ToolError, UsageError
from defserve.protocols.mcpx.participant import Participant
from defserve.protocols.mcpx.topic import Chat
from tests.protocols.mcpx.gateways import FULL, Json, gateway, stranger
from tests.protocols.mcpx.servers import calculator, call, joined
from tests.raw import until
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

RESPONSES = ("mcp/response:*", "chat")


def more() -> None:
    """One more tool."""


@pytest.mark.req("MCPX-3.1.2", "MCPX-3.0c", "MCPX-8.2")
async def test_a_tool_call_is_answered_to_its_sender_with_its_id_method_and_context():
    async with gateway(worker=RESPONSES, ann=FULL) as there, joined(calculator(), there), stranger(there, "ann") as ann:
        id = await ann.ask("worker", "tools/call", call("add", a=1, b=2), id=42, kind="mcp/request:tools/call:add")
        answer = await ann.answer(id)
        assert (answer["from"], answer["to"], answer["kind"]) == ("worker", ["ann"], "mcp/response:tools/call:add")
        assert answer["payload"]["id"] == 42 and answer["payload"]["result"]["content"][0]["text"] == "3"
        assert answer["protocol"] == "mcpx/v0.1" and answer["ts"] and answer["id"] != id


@pytest.mark.req("MCPX-3.1.1")
async def test_no_handshake_is_needed_and_one_is_answered_once():
    async with gateway(worker=RESPONSES, ann=FULL) as there, joined(calculator(), there), stranger(there, "ann") as ann:
        listed = await ann.answer(await ann.ask("worker", "tools/list", id="x"))
        assert {tool["name"] for tool in listed["payload"]["result"]["tools"]} == {"add", "announce"}
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "ann", "version": "1"}}
        opened = await ann.answer(await ann.ask("worker", "initialize", hello))
        assert opened["payload"]["result"]["protocolVersion"] == "2025-06-18"
        await ann.send(
            "mcp/request:notifications/initialized",
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            to=["worker"],
        )
        again = await ann.answer(await ann.ask("worker", "initialize", hello, id=2))
        assert again["payload"]["error"]["code"] == -32600
        read = await ann.answer(await ann.ask("worker", "resources/read", {"uri": "note://one"}, id=3))
        assert read["payload"]["result"]["contents"][0]["text"] == "a note"


async def test_a_handshake_that_fails_leaves_the_conversation_open():
    async with gateway(worker=RESPONSES, ann=FULL) as there, joined(calculator(), there), stranger(there, "ann") as ann:
        broken = await ann.answer(await ann.ask("worker", "initialize", {"capabilities": 3}))
        assert broken["payload"]["error"]["code"] == -32602
        assert "result" in (await ann.answer(await ann.ask("worker", "tools/list", id=2)))["payload"]


@pytest.mark.req("MCPX-4.3", "MCPX-4.3r", "MCPX-7.1", "MCPX-8.2")
@for_each_row(
    ("kind", "payload"),
    [
        ("mcp/request:tools/call:safe", {"method": "tools/call", "params": {"name": "add"}}),
        ("mcp/request:tools/list", {"method": "tools/call", "params": {"name": "add"}}),
        ("mcp/request:tools/list:add", {"method": "tools/list", "params": {}}),
        ("mcp/request:resources/read:a://b", {"method": "resources/read", "params": {"uri": "a://b:c"}}),
        ("mcp/request:tools/call", {"method": "tools/call", "params": []}),
        ("mcp/request", {"method": "tools/call", "params": {}}),
    ],
)
async def test_a_kind_that_lies_about_its_payload_is_refused_and_counted(kind: str, payload: Json):
    ran: list[int] = []
    server = Server("s", "1")

    @server.tool
    def add() -> None:
        ran.append(1)

    async with gateway(worker=FULL, mallory=FULL) as there, joined(server, there) as carrier:
        async with stranger(there, "mallory") as mallory:
            id = await mallory.send(kind, {"jsonrpc": "2.0", "id": 7, **payload}, to=["worker"])
            refusal = await mallory.answer(id)
            assert refusal["payload"]["error"]["code"] == -32600 and refusal["payload"]["id"] == 7
            assert carrier.topic.misbehaviour == {"mallory": 1} and ran == []


async def test_who_goes_on_lying_is_no_longer_told():
    async with gateway(worker=FULL, mallory=FULL) as there, joined(calculator(), there) as carrier:
        async with stranger(there, "mallory") as mallory:
            for number in range(20):
                await mallory.ask("worker", "ping", id=number, kind="mcp/request:tools/list")
            await mallory.answer(await mallory.ask("worker", "ping", id=99))
            told = [heard for heard in there.heard if heard["from"] == "worker" and "error" in heard["payload"]]
            assert len(told) == 16 and carrier.topic.misbehaviour["mallory"] == 20


@pytest.mark.req("MCPX-8.2")
async def test_what_is_broken_is_dropped_and_the_rest_goes_on():
    async with gateway(worker=FULL, mallory=FULL) as there, joined(calculator(), there) as carrier:
        async with stranger(there, "mallory") as mallory:
            worker = there.members["worker"]
            for frame in ("no json", "[]", '{"protocol": "mcpx/v0.2"}', '{"error": "x", "details": {}}'):
                await worker.send(frame)
            await mallory.send("chat", {"text": 3})
            await mallory.send("chat", {"text": "x", "format": "html"})
            await mallory.send("mcp/response:ping", {"jsonrpc": "2.0", "id": 1, "result": {}})
            await mallory.send("mcp/proposal:ping", {"method": "ping"}, correlation_id="gw-1")
            await mallory.send("acme/unheard:of", {})
            assert "result" in (await mallory.answer(await mallory.ask("worker", "ping")))["payload"]
            assert carrier.topic.misbehaviour == {"?": 3, "mallory": 4}


async def test_only_the_gateway_is_believed_about_the_topic():
    async with gateway(worker=FULL, mallory=["*"]) as there, joined(calculator(), there) as carrier:
        async with stranger(there, "mallory") as mallory:
            await mallory.send("system/welcome", {"you": {"id": "nobody", "capabilities": []}})
            await mallory.answer(await mallory.ask("worker", "ping"))
            assert carrier.topic.me == "worker" and carrier.topic.misbehaviour == {"mallory": 1}


async def test_requests_to_others_are_not_ours_and_only_lists_are_answered_to_all():
    async with gateway(worker=FULL, other=FULL, ann=FULL) as there, joined(calculator(), there):
        async with stranger(there, "ann") as ann:
            await ann.ask("other", "tools/call", call("add", a=1, b=1), id=1)
            payload = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call("add", a=1, b=1)}
            await ann.send("mcp/request:tools/call", payload)
            await ann.send("mcp/request:tools/list", {"jsonrpc": "2.0", "id": 3, "method": "tools/list"})
            answer = await ann.until(lambda envelope: envelope["from"] == "worker")
            assert answer["payload"]["id"] == 3 and answer["to"] == ["ann"]


@pytest.mark.req("MCPX-8.2", "MCPX-3.4")
async def test_a_participant_that_leaves_takes_its_calls_along_and_starts_anew():
    server, stopped = calculator(), asyncio.Event()

    @server.tool
    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    async with gateway(worker=FULL, ann=FULL) as there, joined(server, there) as carrier:
        async with stranger(there, "ann") as ann:
            await ann.ask("worker", "tools/call", call("wait"))
            await ann.answer(await ann.ask("worker", "ping", id=2))
            assert list(carrier.topic.participants) == ["ann"]
            assert [session.principal for session in server.composition.sessions] == [
                f"mcpx:ann@127.0.0.1:{there.port}/ws#demo"
            ]
        async with asyncio.timeout(20):
            await stopped.wait()
        assert carrier.topic.participants == {} and not server.composition.sessions
        async with stranger(there, "ann") as ann:
            assert "result" in (await ann.answer(await ann.ask("worker", "tools/list")))["payload"]


@pytest.mark.req("MCPX-6.2r", "MCPX-8.2")
async def test_what_the_welcome_does_not_allow_is_not_sent():
    server = calculator()
    async with gateway(worker=RESPONSES, ann=FULL) as there, joined(server, there):
        async with stranger(there, "ann") as ann:
            await ann.answer(await ann.ask("worker", "tools/list"))
            server.add_tool(more)
            await ann.answer(await ann.ask("worker", "ping", id=2))
            assert all(heard["kind"].startswith("mcp/response:") for heard in there.heard if heard["from"] == "worker")


async def test_a_notification_of_ours_travels_as_a_request_kind_where_it_may():
    server = calculator()
    async with gateway(worker=FULL, ann=FULL) as there, joined(server, there), stranger(there, "ann") as ann:
        await ann.answer(await ann.ask("worker", "tools/list"))
        server.add_tool(more)
        note = await ann.until(lambda envelope: "list_changed" in envelope["kind"])
        assert note["kind"] == "mcp/request:notifications/tools/list_changed" and note["to"] == ["ann"]
        assert "correlation_id" not in note and "id" not in note["payload"]


def asking() -> Server:
    server = Server("asking", "1")

    @server.tool
    async def greet(ctx: Context) -> str:
        return f"hello {await ctx.ask('Name?', str)}"

    return server


HELLO: Json = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"elicitation": {}},
    "clientInfo": {"name": "a", "version": ""},
}


@pytest.mark.req("MCPX-3.0c")
async def test_a_question_of_ours_is_answered_by_whom_it_was_asked_and_by_nobody_else():
    async with gateway(worker=FULL, ann=FULL, mallory=FULL) as there, joined(asking(), there) as carrier:
        async with stranger(there, "ann") as ann, stranger(there, "mallory") as mallory:
            await ann.answer(await ann.ask("worker", "initialize", HELLO))
            id = await ann.ask("worker", "tools/call", call("greet"), id=2)
            question = await ann.until(lambda envelope: "elicitation" in envelope["kind"])
            reply = {"jsonrpc": "2.0", "id": question["payload"]["id"]}
            about = {"to": ["worker"], "correlation_id": question["id"]}
            kind = "mcp/response:elicitation/create"
            forged = {"action": "accept", "content": {"value": "Mallory"}}
            await mallory.send(kind, reply | {"result": forged}, **about)
            await ann.send("mcp/response:sampling/createMessage", reply | {"result": forged}, **about)
            right = {"action": "accept", "content": {"value": "Ann"}}
            await ann.send(kind, {**reply, "id": 99, "result": right}, **about)
            answer = await ann.answer(id)
            assert answer["payload"]["result"]["content"][0]["text"] == "hello Ann"
            assert carrier.topic.misbehaviour == {"mallory": 1, "ann": 1}


async def test_a_question_we_may_not_ask_fails_at_once():
    async with gateway(worker=RESPONSES, ann=FULL) as there, joined(asking(), there), stranger(there, "ann") as ann:
        await ann.answer(await ann.ask("worker", "initialize", HELLO))
        answer = await ann.answer(await ann.ask("worker", "tools/call", call("greet"), id=2))
        assert "error" in answer["payload"] or answer["payload"]["result"]["isError"]


# -- chat


@pytest.mark.req("MCPX-3.3")
async def test_a_tool_chats_in_the_thread_of_its_call():
    async with gateway(worker=RESPONSES, ann=FULL) as there, joined(calculator(), there), stranger(there, "ann") as ann:
        id = await ann.ask("worker", "tools/call", call("announce", text="hi all"))
        said = await ann.until(lambda envelope: envelope["kind"] == "chat")
        assert said["payload"] == {"text": "hi all"} and said["correlation_id"] == id and "to" not in said


async def test_chat_needs_a_topic():
    async with calculator().connect() as client:
        with pytest.raises(ToolError, match="topic"):
            await client.call("announce", text="x")


@pytest.mark.req("MCPX-3.3")
async def test_a_server_hears_what_is_said_to_it_or_to_all_and_answers():
    server, heard = calculator(), list[tuple[str, str, str]]()

    @server.on_chat
    async def listen(chat: Chat, participant: Participant) -> None:
        heard.append((chat.sender, chat.text, chat.format))
        participant.chat("*welcome*", to=chat.sender, format="markdown", about=chat.id)

    @server.on_chat
    def listen_in_a_thread(chat: Chat, participant: Participant) -> None:
        participant.chat(f"from a thread: {chat.text}")

    async with gateway(worker=FULL, other=FULL, ann=FULL) as there, joined(server, there):
        async with stranger(there, "ann") as ann:
            await ann.send("chat", {"text": "not for you"}, to=["other"])
            id = await ann.send("chat", {"text": "hello"})
            reply = await ann.answer(id)
            assert reply["payload"] == {"text": "*welcome*", "format": "markdown"} and reply["to"] == ["ann"]
            await ann.until(lambda envelope: envelope["payload"].get("text") == "from a thread: hello")
            assert heard == [("ann", "hello", "plain")]


async def test_a_handler_that_fails_harms_nobody_and_no_password_in_its_error_is_logged(
    caplog: pytest.LogCaptureFixture,
):
    server = calculator()

    @server.on_chat
    async def fail(chat: Chat, participant: Participant) -> None:
        raise RuntimeError("no answer from postgres://app:s3cret@db/books")

    async with gateway(worker=FULL, ann=FULL) as there, joined(server, there), stranger(there, "ann") as ann:
        await ann.send("chat", {"text": "hello"})
        assert "result" in (await ann.answer(await ann.ask("worker", "ping")))["payload"]
    assert "@db/books" in caplog.text and "s3cret" not in caplog.text


# -- coming and going


@pytest.mark.req("MCPX-3.5.1")
async def test_capabilities_change_with_a_second_welcome():
    async with gateway(worker=RESPONSES, ann=FULL) as there, joined(calculator(), there) as carrier:
        async with stranger(there, "ann") as ann:
            await ann.answer(await ann.ask("worker", "tools/list"))
            there.capabilities["worker"] = ["mcp/*"]
            await there.welcome("worker")
            await ann.answer(await ann.ask("worker", "ping", id=2))
            assert carrier.participant.may("mcp/request:ping") and not carrier.participant.may("chat")
            assert list(carrier.topic.participants) == ["ann"]


async def test_a_bare_welcome_is_taken_too():
    async with gateway(worker=RESPONSES, ann=FULL) as there, joined(calculator(), there) as carrier:
        await there.tell("system", {"you": {"id": "worker", "capabilities": ["chat"]}, "participants": []}, to="worker")
        await there.tell("presence", {"event": "join", "participant": {"id": "bob", "capabilities": "?"}})
        async with stranger(there, "ann"):
            await until(lambda: "ann" in carrier.topic.participants)
            assert carrier.participant.capabilities.patterns == ("chat",)
            assert "bob" in carrier.topic.participants


async def test_a_server_comes_back_when_the_gateway_does(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("defserve.base.backoff.Backoff.next_wait", lambda self: 0.01)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    async with gateway(worker=FULL, ann=FULL) as there, joined(calculator(), there) as carrier:
        async with stranger(there, "ann") as ann:
            await ann.answer(await ann.ask("worker", "ping"))
        await there.stop()
        await until(lambda: not carrier.admitted.is_set())
        assert carrier.topic.me == ""
        await there.start()
        async with asyncio.timeout(20):
            await carrier.admitted.wait()
        async with stranger(there, "ann") as ann:
            assert "result" in (await ann.answer(await ann.ask("worker", "tools/list")))["payload"]


async def test_a_token_that_is_refused_is_an_error_not_a_wait():
    async with gateway(worker=FULL) as there:
        with pytest.raises(PeerError, match="bad token"):
            async with calculator().join(f"mcpx+{there.url}", token="wrong"):
                pass


@pytest.mark.parametrize(
    "address", ["mcpx+ws://127.0.0.1:1/ws", "mcpx+http://127.0.0.1/ws?topic=x", "mcpx+ws:///?topic=x"]
)
def test_an_address_that_names_no_topic_is_refused(address: str):
    with pytest.raises(UsageError, match="topic"):
        calculator().run(address)


def test_a_token_is_for_topics_only():
    with pytest.raises(UsageError, match="token"):
        calculator().run("stdio:", token="x")


async def test_the_same_server_is_served_in_memory_beside_its_topic():
    server = calculator()
    async with gateway(worker=FULL) as there, joined(server, there), server.connect() as client:
        assert await client.call("add", a=2, b=3) == 5


async def test_peers_of_a_topic_are_not_local():
    server = Server("s", "1")

    @server.tool
    def who(ctx: Context) -> str:
        return f"{ctx.principal} {ctx.session.is_local} {ctx.can('chat')}"

    async with gateway(worker=FULL, ann=FULL) as there, joined(server, there), stranger(there, "ann") as ann:
        answer = await ann.answer(await ann.ask("worker", "tools/call", call("who")))
        assert answer["payload"]["result"]["content"][0]["text"].endswith("/ws#demo False True")
