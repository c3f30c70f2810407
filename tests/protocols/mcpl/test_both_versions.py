"""A host of 0.4 and one of 0.5 with the same server program, in a process of its own, message by message."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.protocols.mcpl.hosts import MCPL, MCPL_05, Host, Json, listening
from tests.raw import HANDSHAKE, text_of

pytestmark = [pytest.mark.anyio, pytest.mark.req("MCPL-05", "MCPL-4.1")]

BEFORE = "contextHooks.beforeInference"
TURN: Json = {"inferenceId": "inf_1", "conversationId": "c", "turnIndex": 1, "userMessage": "tea"}
USAGE: Json = {"inputTokens": 5, "outputTokens": 7}
LOBBY: Json = {"id": "chat:lobby", "type": "chat", "label": "Lobby", "direction": "bidirectional"}
EVENT: Json = {
    "featureSet": "alerts.push",
    "eventId": "evt_1",
    "timestamp": "2026-01-23T14:00:00Z",
    "payload": {"content": [{"type": "text", "text": "fire"}]},
}
MESSAGE: Json = {
    "channelId": "chat:lobby",
    "messageId": "m_2",
    "author": {"id": "u1", "name": "Ann"},
    "timestamp": "2026-01-23T14:00:00Z",
    "content": [{"type": "text", "text": "hello"}],
    "metadata": {},
}


class ProcessLink:
    """Lines to and from a process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout

    async def send(self, data: bytes) -> None:
        self._stdin.write(data + b"\n")
        await self._stdin.drain()

    async def receive(self) -> bytes:
        line = await self._stdout.readline()
        if not line:
            raise asyncio.CancelledError
        return line


@asynccontextmanager
async def program(mcpl: Any, *arguments: str, opened: bool = True) -> AsyncGenerator[Host]:
    pipe = asyncio.subprocess.PIPE
    given = arguments or ("-m", "tests.protocols.mcpl.both")
    process = await asyncio.create_subprocess_exec(
        sys.executable, *given, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL
    )
    offered = {"experimental": {"mcpl": dict(mcpl)}}
    answers: Json = {
        "push/event": {"accepted": True},
        "channels/register": {"results": [{"id": "chat:lobby", "accepted": True}]},
        "channels/incoming": {"results": [{"messageId": "m_2", "accepted": True}]},
        "model/info": {"id": "opus", "vendor": "anthropic", "contextWindow": 1, "capabilities": []},
    }
    host = Host(ProcessLink(process), HANDSHAKE[0], offered, answers)

    async def infer(message: Json) -> Json:
        for index, delta in enumerate(("ab", "cd")) if message["params"]["stream"] else ():
            await host.tell("inference/chunk", {"requestId": message["id"], "index": index, "delta": delta})
        return {"content": "abcd", "model": "opus", "finishReason": "stop", "usage": USAGE}

    host.answers["inference/request"] = infer
    try:
        async with listening(host, "host" if opened else None):
            if host.is_05 and opened:
                await host.grant()
            yield host
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


async def said(host: Host, word: str) -> str:
    """What the program has heard, as soon as a word is in it."""
    async with asyncio.timeout(20):
        while True:
            heard = text_of(await host.call("listen"))
            if word in heard:
                return heard


OLD = pytest.param(MCPL, False, id="0.4")
NEW = pytest.param(MCPL_05, True, id="0.5")
BOTH = pytest.mark.parametrize(("mcpl", "is_new"), [OLD, NEW])


@pytest.mark.slow
@BOTH
async def test_what_is_advertised(mcpl: Any, is_new: bool):
    async with program(mcpl) as host:
        told = dict(host.advertised)
        assert host.opening["protocolVersion"] == HANDSHAKE[0]
    uses = {name: one["uses"] for name, one in told.pop("featureSets").items()}
    told.pop("revision", None)
    if is_new:
        assert told == {
            "version": "0.5",
            "pushEvents": True,
            "contextHooks": {"beforeInference": {"observe": True, "inject": {"beforeUser": True}}},
            "inferenceLifecycle": True,
            "inferenceRequest": {"streaming": True},
            "modelInfo": True,
            "channels": {"register": True, "publish": True, "incoming": True, "streaming": True},
        }
        assert uses == {
            "memory.retrieval": [f"{BEFORE}.observe", f"{BEFORE}.inject.beforeUser"],
            "memory.usage": ["inferenceLifecycle"],
            "alerts.push": ["pushEvents", "tools"],
            "text.write": ["inferenceRequest", "inferenceRequest.streaming", "modelInfo", "tools"],
            "chat.rooms": ["tools", "channels.register", "channels.publish", "channels.incoming", "channels.streaming"],
            "notes.keep": ["tools"],
        }
    else:
        assert told == {
            "version": "0.4",
            "pushEvents": True,
            "contextHooks": {"beforeInference": True, "afterInference": {"blocking": True}},
            "inferenceRequest": {"streaming": True},
            "modelInfo": True,
            "channels": {"register": True, "publish": True, "observe": True, "lifecycle": False, "streaming": False},
        }
        assert uses == {
            "memory.retrieval": [BEFORE],
            "memory.review": ["contextHooks.afterInference"],
            "memory.usage": ["contextHooks.afterInference"],
            "alerts.push": ["pushEvents", "tools"],
            "text.write": ["inferenceRequest", "tools"],
            "chat.rooms": ["tools", "channels.publish", "channels.observe"],
            "notes.keep": ["tools"],
        }


@pytest.mark.slow
async def test_the_receipt():
    async with program(MCPL_05) as host:
        unavailable = {"featureSet": "memory.review", "missingCapabilities": ["contextHooks.afterInference"]}
        assert await host.grant() == {
            "accepted": True,
            "mode": "degraded",
            "unavailableFeatures": [unavailable | {"effect": "disabled"}],
        }


EARLY = """
from defserve import Server

server = Server("early", "1")


def t() -> str:
    return "t"


server.feature_set("a.b", "B").tool(t)
server.run("stdio:")
"""


async def test_a_policy_may_come_before_an_event_loop_runs():
    """The first messages are answered before that, if nothing must be started first."""
    async with program(MCPL_05, "-c", EARLY, opened=False) as host:
        about = {"name": "host", "version": "1"}
        opening = {"protocolVersion": host.version, "capabilities": host.capabilities, "clientInfo": about}
        await host.ask("initialize", opening)
        assert (await host.ask("featureSets/update", {"effectiveCapabilities": ["tools"]}))["result"]["accepted"]
        assert (await host.ask("tools/list"))["result"]["tools"][0]["name"] == "t"


@pytest.mark.slow
async def test_a_policy_may_come_before_the_host_is_ready():
    async with program(MCPL_05, opened=False) as host:
        about = {"name": "host", "version": "1"}
        opening = {"protocolVersion": host.version, "capabilities": host.capabilities, "clientInfo": about}
        await host.ask("initialize", opening)
        assert (await host.ask("featureSets/update", {"effectiveCapabilities": ["tools"]}))["result"]["accepted"]
        assert (await host.ask("featureSets/update", {"effectiveCapabilities": "x"}))["error"]["code"] == -32602
        await host.tell("notifications/initialized")
        await host.grant()
        assert await host.until_asked("channels/register") == [{"channels": [LOBBY]}]


@pytest.mark.slow
@BOTH
async def test_hooks(mcpl: Any, is_new: bool):
    async with program(mcpl) as host:
        assert (await host.ask("context/beforeInference", TURN))["result"] == {
            "featureSet": "memory.retrieval",
            "contextInjections": [
                {"namespace": "memory", "position": "beforeUser", "content": [{"type": "text", "text": "about tea"}]}
            ],
        }
        after = await host.ask("context/afterInference", {**TURN, "assistantMessage": "yes", "usage": USAGE})
        if is_new:
            assert after["error"]["code"] == -32601
            for phase in ("started", "completed", "completed"):
                about = {name: TURN[name] for name in ("inferenceId", "conversationId", "turnIndex")}
                usage = {"usage": USAGE} if phase == "completed" else {}
                await host.tell("inference/lifecycle", {**about, "phase": phase, **usage})
        else:
            assert after["result"] == {"featureSet": "memory.review", "modifiedResponse": "YES"}
        assert await said(host, "completed") == "inf_1 completed 7"


@pytest.mark.slow
@BOTH
async def test_push(mcpl: Any, is_new: bool):
    async with program(mcpl) as host:
        assert text_of(await host.call("alert", {"text": "fire"})) == "True"
        tags = {"tags": ["acme:alert", "chat:mention", "chat:addressed"]} if is_new else {}
        assert host.list_requested_uris("push/event") == [{**EVENT, **tags}]


@pytest.mark.slow
@BOTH
async def test_inference(mcpl: Any, is_new: bool):
    async with program(mcpl) as host:
        assert text_of(await host.call("write", {"prompt": "hi"})) == "ab|cd|abcd"
        assert host.list_requested_uris("inference/request") == [
            {"featureSet": "text.write", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        ]
        assert text_of(await host.call("model")) == "opus"
        assert host.list_requested_uris("model/info") == [{}]


@pytest.mark.slow
@BOTH
async def test_channels(mcpl: Any, is_new: bool):
    async with program(mcpl) as host:
        assert await host.until_asked("channels/register") == [{"channels": [LOBBY]}]
        assert (await host.ask("channels/list"))["result"] == {"channels": [LOBBY]}
        assert text_of(await host.call("say", {"text": "hello"})) == "True"
        tags = {"tags": ["chat:dm", "chat:addressed", "chat:private"]} if is_new else {}
        assert host.list_requested_uris("channels/incoming") == [{"messages": [{**MESSAGE, **tags}]}]
        hello = {"conversationId": "c", "channelId": "chat:lobby", "stream": False, "content": "hi"}
        published = await host.ask("channels/publish", hello)
        assert published["result"] == {"delivered": True, "messageId": "m_1"}
        await host.tell("channels/outgoing/complete", {**hello, "inferenceId": "i", "content": "bye"})
        assert await said(host, "saw") == "chat:lobby hi|chat:lobby saw bye"


@pytest.mark.slow
@BOTH
async def test_state(mcpl: Any, is_new: bool):
    async with program(mcpl) as host:
        assert host.advertised["featureSets"]["notes.keep"].get("rollback") is True
        first, second = [(await host.call("note", {"line": line}))["state"] for line in ("a", "b")]
        assert (second["parent"], second["data"], second["featureSet"]) == (
            first["checkpoint"],
            {"lines": ["a", "b"]},
            "notes.keep",
        )
        asked = {"featureSet": "notes.keep", "checkpoint": first["checkpoint"]}
        assert (await host.ask("state/rollback", asked))["result"] == {
            "checkpoint": first["checkpoint"],
            "success": True,
        }
        assert text_of(await host.call("note", {"line": "c"})) == "2"
        assert (await host.ask("state/rollback", asked | {"checkpoint": "nowhere"}))["error"]["code"] == -32005


@pytest.mark.slow
@BOTH
async def test_switching_a_set_off(mcpl: Any, is_new: bool):
    async with program(mcpl) as host:
        await host.tell("featureSets/update", {"disabled": ["notes.keep"]})
        error = (await host.ask("tools/call", {"name": "note", "arguments": {"line": "a"}}))["error"]
        assert error["code"] == -32001 and error["data"]["featureSet"] == "notes.keep"
        assert ("canEnable" in error["data"]) is not is_new
