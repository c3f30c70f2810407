"""A scripted MCPL host in memory: answers the server's requests as it was told to and keeps all it hears."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from defserve import Server
from defserve.client import connect_url
from defserve.serve.lifespans import connect_in_memory
from tests.at_address import at_address
from tests.protocols.mcpl.draft_05 import PATHS, check_answered, check_sent
from tests.raw import HANDSHAKE, PREFIX, STATELESS, turns, until

Json = dict[str, Any]

MCPL: Mapping[str, Any] = {
    "version": "0.4",
    "pushEvents": True,
    "contextHooks": {"beforeInference": True, "afterInference": {"blocking": True}},
    "inferenceRequest": {"streaming": True},
    "modelInfo": True,
    "channels": {"register": True, "publish": True, "observe": True, "lifecycle": True, "streaming": True},
    "featureSets": True,
}

# The same from a host of 0.5.
MCPL_05: Mapping[str, Any] = {
    "version": "0.5",
    "pushEvents": True,
    "contextHooks": {"beforeInference": True},
    "inferenceRequest": {"streaming": True},
    "inferenceLifecycle": True,
    "modelInfo": True,
    "channels": True,
    "featureSets": True,
}

# An answer that never comes.
SILENCE = object()


class HostError(Exception):
    """What a script raises to answer with an error."""

    def __init__(self, code: int, message: str = "no", data: Any = None) -> None:
        super().__init__(message)
        self.body: Json = {"code": code, "message": message} | ({"data": data} if data is not None else {})


class Host:
    """The other end of one session.

    `answers` maps a method to a result, or to a function of the request's message that gives or raises one; what it
    has no answer for is answered with *method not found*. `asked` and `heard` are the server's requests and
    notifications, in order; `frames` has the methods of both, and "reply" for a reply.
    """

    def __init__(self, link: Any, version: str, capabilities: Mapping[str, Any], answers: Mapping[str, Any]) -> None:
        self.link, self.version, self.capabilities = link, version, dict(capabilities)
        self.answers: dict[str, Any] = {"push/event": {"accepted": True}, **answers}
        self.asked: list[Json] = []
        self.heard: list[Json] = []
        self.frames: list[str] = []
        self.opening: Json = {}
        self._replies: dict[int, asyncio.Future[Json]] = {}
        self._last_id = 0
        offered: Any = self.capabilities.get("experimental")
        # Every message of a conversation by the 0.5 draft is held against its schemas.
        self.is_05 = version != STATELESS and "'version': '0.5'" in str(offered)

    async def open(self, name: str = "host") -> None:
        """Shake hands, or ask for a description where there is no handshake."""
        if self.version == STATELESS:
            self.opening = (await self.ask("server/discover"))["result"]
            return
        about = {"name": name, "version": "1"}
        params = {"protocolVersion": self.version, "capabilities": self.capabilities, "clientInfo": about}
        self.opening = (await self.ask("initialize", params))["result"]
        await self.tell("notifications/initialized")

    @property
    def advertised(self) -> Json:
        """What the server says of MCPL."""
        return self.opening["capabilities"]["experimental"]["mcpl"]

    # -- in ----------------------------------------------------------------------------------------------

    async def listen(self) -> None:
        while True:
            message = json.loads(await self.link.receive())
            self.frames.append(message.get("method", "reply"))
            if self.is_05 and "method" in message:
                check_sent(message["method"], message["params"])
            if "method" not in message:
                self._replies.pop(message["id"]).set_result(message)
            elif "id" in message:
                self.asked.append(message)
                await self._answer(message)
            else:
                self.heard.append(message)

    async def _answer(self, message: Json) -> None:
        answer: Any = self.answers.get(message["method"], HostError(-32601, "Method not found"))
        try:
            if callable(answer):
                answer = answer(message)
            if asyncio.iscoroutine(answer):
                answer = await answer
            if isinstance(answer, HostError):
                raise answer
        except HostError as error:
            await self.send({"jsonrpc": "2.0", "id": message["id"], "error": error.body})
        else:
            if answer is not SILENCE:
                await self.send({"jsonrpc": "2.0", "id": message["id"], "result": answer})

    def list_requested_uris(self, method: str) -> list[Json]:
        """The params of the server's requests of one method."""
        return [message["params"] for message in self.asked if message["method"] == method]

    def heard_of(self, method: str) -> list[Json]:
        """The params of the server's notifications of one method."""
        return [message["params"] for message in self.heard if message["method"] == method]

    async def until_asked(self, method: str, count: int = 1) -> list[Json]:
        await until(lambda: len(self.list_requested_uris(method)) >= count)
        return self.list_requested_uris(method)

    # -- out ---------------------------------------------------------------------------------------------

    async def send(self, message: Json) -> None:
        await self.link.send(json.dumps(message).encode())

    def with_meta(self, params: Mapping[str, Any] | None) -> Json:
        """The params with what this version wants in every request."""
        given = dict(params or {})
        if self.version != STATELESS:
            return given
        envelope = {PREFIX + "protocolVersion": STATELESS, PREFIX + "clientCapabilities": self.capabilities}
        return {**given, "_meta": {**envelope, **given.get("_meta", {})}}

    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> Json:
        """The whole reply to a request."""
        self._last_id += 1
        reply = self._replies[self._last_id] = asyncio.get_running_loop().create_future()
        await self.send({"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": self.with_meta(params)})
        async with asyncio.timeout(10):
            answered = await reply
        if self.is_05:
            check_answered(method, answered)
        return answered

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None, **more: Any) -> Json:
        """The result of a tool call; an error reply is an assertion failure."""
        reply = await self.ask("tools/call", {"name": tool, "arguments": dict(arguments or {}), **more})
        assert "result" in reply, reply
        return reply["result"]

    async def tell(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        await self.send({"jsonrpc": "2.0", "method": method, "params": dict(params or {})})
        await turns()

    async def grant(self, *paths: str, **policy: Any) -> Json:
        """The receipt for a policy of 0.5, sent as a request, that grants these paths; all of them if none is given."""
        granted = {"effectiveCapabilities": list(paths or PATHS)}
        reply = await self.ask("featureSets/update", {**granted, **policy})
        assert "result" in reply, reply
        await turns()
        return reply["result"]

    async def update(self, **policy: Any) -> None:
        """`featureSets/update`, as a notification: `update(enabled=[…], disabled=[…], scopes={…})`."""
        await self.tell("featureSets/update", policy)


@asynccontextmanager
async def reached(server: Server, road: str) -> AsyncGenerator[Any]:
    """A link to the server: in `memory`, over `http` or `ws`."""
    if road == "memory":
        async with connect_in_memory(server.composition) as link:
            yield link
        return
    async with at_address(server, road) as url:
        link = await connect_url(url)
        try:
            yield link
        finally:
            await link.aclose()


@asynccontextmanager
async def hosting(
    server: Server,
    version: str = HANDSHAKE[-1],
    *,
    mcpl: Mapping[str, Any] | None = MCPL,
    capabilities: Mapping[str, Any] | None = None,
    answers: Mapping[str, Any] | None = None,
    name: str = "host",
    opened: bool = True,
    road: str = "memory",
) -> AsyncGenerator[Host]:
    """A host of this server; a plain MCP client where `mcpl` is None."""
    offered: Json = dict(capabilities or {})
    if mcpl is not None:
        offered["experimental"] = {**offered.get("experimental", {}), "mcpl": dict(mcpl)}
    async with (
        reached(server, road) as link,
        listening(Host(link, version, offered, answers or {}), name if opened else None) as host,
    ):
        yield host


@asynccontextmanager
async def hosting_at(
    url: str, *, token: str, version: str = HANDSHAKE[-1], answers: Mapping[str, Any] | None = None
) -> AsyncGenerator[Host]:
    """A host that shows a token to the server at an address."""
    link = await connect_url(url, token=token)
    try:
        async with listening(
            Host(link, version, {"experimental": {"mcpl": dict(MCPL)}}, answers or {}), "host"
        ) as host:
            yield host
    finally:
        await link.aclose()


@asynccontextmanager
async def listening(host: Host, name: str | None) -> AsyncGenerator[Host]:
    """Let a host hear and answer; opened under a name, if it has one."""
    hearing = asyncio.create_task(host.listen())
    try:
        if name is not None:
            await host.open(name)
            await turns()
        yield host
    finally:
        hearing.cancel()
        with suppress(asyncio.CancelledError):
            await hearing


def session_of(server: Server) -> Any:
    """The only session there is."""
    (session,) = server.composition.sessions
    return session
