"""One server as an MGP host deals with it: what was negotiated (§2), and what every request to it goes through.

A tool call is validated, permitted and confirmed before it leaves, tried again as the server says, and told of. That
holds for a server without MGP as well; then nothing of it shows on the wire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import uuid4

from pydantic_core import from_json

from defserve.errors import DefserveError, MethodNotFound, PeerError, PeerGone, Refused
from defserve.host.conversation import Attendant, Conversation, object_of
from defserve.host.mgp import callbacks, failures, retrying
from defserve.host.mgp.auditing import AUDIT, FELL_BACK, RETRIED, Auditing
from defserve.host.mgp.confirming import Confirming
from defserve.host.mgp.declared import declared
from defserve.host.mgp.failures import Failure
from defserve.host.mgp.granting import Granting
from defserve.protocols.mgp.agreed import EXTENSION_ID, SECTIONS, VERSION
from defserve.wire.codec import encode
from defserve.wire.jsonvalue import is_array
from defserve.wire.messages import Id

if TYPE_CHECKING:
    from defserve.host.client import Client
    from defserve.host.eras import Opening
    from defserve.host.mgp.mgp import Mgp
    from defserve.host.mgp.streaming.streaming import Stream
    from defserve.protocols.mgp.permissions.grants import PermissionDecision

CHUNK: Final = "notifications/mgp.stream.chunk"

Json: TypeAlias = dict[str, Any]
Outcome: TypeAlias = tuple[Json, PeerError | None, Failure | None]
"""A result, or the error there was instead; and what MGP has to say of either."""


class Ask:
    """How a request leaves, and whether it may leave again."""

    __slots__ = ("_send", "_attendant")

    def __init__(self, send: Callable[[Mapping[str, Any]], Awaitable[Json]], attendant: Attendant | None) -> None:
        self._send, self._attendant = send, attendant

    def __call__(self, params: Mapping[str, Any]) -> Awaitable[Json]:
        return self._send(params)

    @property
    def repeatable(self) -> bool:
        return self._attendant is None or self._attendant.repeatable


class MgpPeer:
    """`client.mgp`. Until the conversation is open, and with a server that speaks no MGP, `version` is None."""

    def __init__(self, options: Mgp, conversation: Conversation, client: Client, actor: str) -> None:
        self.version: str | None = None
        self.extensions: tuple[str, ...] = ()
        self.sections: frozenset[str] = frozenset()
        self.permissions_required: tuple[str, ...] = ()
        self.server_id = ""
        self.trust_level: str | None = None
        self.streams: dict[Id, Stream] = {}
        """The calls that are given their chunks, by the ids of their requests."""
        self._options, self._conversation, self._client = options, conversation, client
        self._opening: Opening | None = None
        self._audit = Auditing(options.sinks, actor)
        self._granting = Granting(options.approval, client.answers, self._audit)
        self._confirming = Confirming(options.confirm, client.answers, moderate=options.confirm_moderate)

    @property
    def grants(self) -> dict[str, PermissionDecision]:
        """How it stands with the permissions that were decided."""
        return self._granting.grants

    # -- the conversation begins and ends ----------------------------------------------------------------

    async def prepare(self, opening: Opening) -> None:
        """Read what the server said of MGP, and decide about its permissions before the first call (§3.4)."""
        self._opening = opening
        self._read(opening)
        details = {"protocol_version": opening.version, "mgp": self.version, "extensions": list(self.extensions)}
        self._audit.report("SERVER_CONNECTED", details=details)
        if "permissions" in self.sections:
            if not opening.stateless:
                self._granting.send = self._send
            await self._granting.settle(self.permissions_required, self.server_id)

    def closed(self, reason: str) -> None:
        """Note in the audit log that the server is gone, once."""
        if self._opening is not None:
            self._opening = None
            self._audit.report("SERVER_DISCONNECTED", details={"reason": reason})

    def _read(self, opening: Opening) -> None:
        said = opening.capabilities
        if opening.stateless:
            block = object_of(object_of(said.get("extensions")).get(EXTENSION_ID))
        else:
            block = object_of(said.get("mgp")) or object_of(object_of(said.get("experimental")).get("mgp"))
        self.server_id = _text(block.get("server_id")) or str(opening.server_info.get("name", "unknown"))
        self._audit.server_id = self.server_id
        version = _text(block.get("version"))
        if version is None or version.partition(".")[0] != VERSION.partition(".")[0]:
            return
        offered = self._options.offered(self._client.answers)
        self.version = version
        self.extensions = tuple(name for name in _texts(block.get("extensions")) if name in offered)
        self.sections = frozenset[str]().union(*(SECTIONS.get(name, frozenset()) for name in self.extensions))
        self.permissions_required = tuple(_texts(block.get("permissions_required")))
        self.trust_level = _text(block.get("trust_level"))

    async def _send(self, method: str, params: Mapping[str, Any]) -> Any:
        if self._opening is None:
            raise PeerGone("the conversation is over")
        dressed = self._opening.dress(params, None)
        return await self._conversation.request(method, dressed, within=self._client.timeout)

    # -- what the server says unasked --------------------------------------------------------------------

    def heard(self, method: str, params: Json) -> None:
        """Take a notification of the server's: a chunk, an audit event or a callback, where that was negotiated."""
        if method == CHUNK:
            id = params.get("request_id")
            if isinstance(id, int | str) and (stream := self.streams.get(id)) is not None:
                stream.heard(params)
        elif method == AUDIT and "audit" in self.sections:
            self._audit.received(params)
        elif method == callbacks.REQUEST and "callbacks" in self.sections and callbacks.wants_answer(params):
            answer = callbacks.respond(params, self._client.answers, self._send)
            self._conversation.occupy(answer)

    # -- requests ----------------------------------------------------------------------------------------

    async def around(
        self,
        method: str,
        params: Mapping[str, Any],
        send: Callable[[Mapping[str, Any]], Awaitable[Json]],
        attendant: Attendant | None = None,
    ) -> Json:
        """Make a request as MGP wants it made.

        Raises the exception of the code for an error of MGP's; Rejected, PermissionDenied and NotConfirmed also for a
        tool call that may not leave.
        """
        ask = Ask(send, attendant)
        try:
            if method == "tools/call":
                # A copy, as the server will read it: what is judged is what is sent.
                return await self._call(from_json(encode(dict(params))), ask, frozenset())
            result, error, _ = await self._attempts(params, ask, None, None)
            return _given(result, error)
        except PeerError as error:
            if (typed := self._typed(error)) is None:
                raise
            raise typed from error

    def check(self, result: Json) -> None:
        """Raises the exception of its code for a result that is an error of MGP's."""
        if (error := self._typed(result)) is not None:
            raise error

    async def _call(self, params: Json, ask: Ask, tried: frozenset[str], trace_id: str = "") -> Json:
        name, trace_id = str(params.get("name")), trace_id or _text(params.get("trace_id")) or str(uuid4())
        try:
            await self._admit(name, object_of(params.get("arguments")))
        except Refused as refusal:
            self._audit.blocked(name, refusal, trace_id)
            raise
        if self.version is not None:
            params["trace_id"] = trace_id  # §6.5
        if "permissions" in self.sections and self._opening is not None and self._opening.stateless:
            params["_meta"] = {**self._granting.meta(), **object_of(params.get("_meta"))}
        return await self._or_fallback(params, ask, tried | {name}, trace_id)

    async def _admit(self, name: str, arguments: Json) -> None:
        tool = declared(name, await self._listed(name))
        await self._options.validating.check(tool, arguments, enforced="tool_security" in self.sections)
        if tool.permissions:
            await self._granting.settle(tool.permissions, self.server_id)
            self._granting.require(name, tool.permissions)
        await self._confirming.check(tool, arguments)

    async def _listed(self, name: str) -> Json:
        try:
            return await self._client.listed(name, again=True)
        except PeerError as error:
            if error.code != MethodNotFound.code:
                raise  # a tool of which nothing could be learned is not taken for a harmless one
            return {}

    async def _or_fallback(self, params: Json, ask: Ask, tried: frozenset[str], trace_id: str) -> Json:
        name = str(params["name"])
        result, error, failure = await self._attempts(params, ask, name, trace_id)
        other = retrying.fallback(failure.block) if failure is not None and self._repeats(ask) else None
        if other is not None and other not in tried:
            self._audit.report(FELL_BACK, trace_id=trace_id, tool=name, details={"fallback_tool": other})
            return await self._call({**params, "name": other}, ask, tried, trace_id)
        if "audit" not in self.sections:  # else the server tells, and knows more
            ended = "FAILURE" if error is not None or result.get("isError") else "SUCCESS"
            self._audit.report("TOOL_EXECUTED", trace_id=trace_id, tool=name, result=ended)
        return _given(result, error)

    async def _attempts(self, params: Mapping[str, Any], ask: Ask, tool: str | None, trace_id: str | None) -> Outcome:
        """Ask, and again while the server says that it may help (§14.6)."""
        retried = 0
        while True:
            result, error = await _outcome(ask(params))
            failure = self._failure(result if error is None else error)
            wait = retrying.delay(failure.block, retried) if failure is not None and self._repeats(ask) else None
            if failure is None or wait is None:
                return result, error, failure
            retried += 1
            details = {"attempt": retried, "wait_ms": round(wait * 1000), "code": failure.code}
            self._audit.report(RETRIED, trace_id=trace_id, tool=tool, result="RETRY", details=details)
            await asyncio.sleep(wait)

    def _repeats(self, ask: Ask) -> bool:
        return self._options.retry and ask.repeatable

    def _typed(self, outcome: PeerError | Json) -> DefserveError | None:
        failure = self._failure(outcome)
        return failure.exception() if failure is not None else None

    def _failure(self, outcome: PeerError | Json) -> Failure | None:
        if self.version is None:
            return None  # `_mgp` that was not negotiated is anybody's
        return failures.of_error(outcome) if isinstance(outcome, PeerError) else failures.of_result(outcome)


async def _outcome(asked: Awaitable[Json]) -> tuple[Json, PeerError | None]:
    try:
        return await asked, None
    except PeerError as error:
        return {}, error


def _given(result: Json, error: PeerError | None) -> Json:
    if error is not None:
        raise error
    return result


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _texts(value: Any) -> list[str]:
    return [each for each in value if isinstance(each, str)] if is_array(value) else []
