"""One server as an MGP host treats it: what was negotiated (§2), and the steps of each request to the server.

Before a tool call is sent it is validated, permitted and confirmed; then it is retried as the server says, and audited.
The same applies to a server without MGP, but that one gets no MGP messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from uuid import uuid4

from pydantic_core import from_json

from defserve.errors import DefserveError, MethodNotFound, PeerError, PeerGone, Refused
from defserve.host.caller import Caller, SendParams
from defserve.host.conversation import ClientConversation, RequestObserver
from defserve.host.eras import SessionTerms
from defserve.host.fields import Json, object_of, text_of
from defserve.host.mgp import callbacks, failures
from defserve.host.mgp.audit.trail import AUDIT, FELL_BACK, RETRIED, MgpAuditTrail
from defserve.host.mgp.failures import Failure
from defserve.host.mgp.mgp import Mgp
from defserve.host.mgp.permissions.approval import Grant
from defserve.host.mgp.permissions.grants import ServerGrants
from defserve.host.mgp.said import said_mgp
from defserve.host.mgp.security.confirmation import CallConfirmation
from defserve.host.mgp.security.tool_security import tool_security
from defserve.protocols.mcp.failures import SERVER_KEY
from defserve.protocols.mgp.agreed import CONFIRMED_KEY
from defserve.wire.codec import encode
from defserve.wire.messages import Id

if TYPE_CHECKING:
    from defserve.protocols.mgp.permissions.grants import PermissionDecision

CHUNK: Final = "notifications/mgp.stream.chunk"

Outcome: TypeAlias = tuple[Json | PeerError, Failure | None]
"""A result or an error, and what MGP says about it."""


class ChunkReader(Protocol):
    """A call that reads its chunks."""

    def heard(self, params: Mapping[str, Any]) -> None: ...


class MgpPeer:
    """`client.mgp`. `version` is None until the conversation is open, and with a server that does not speak MGP."""

    def __init__(self, options: Mgp, conversation: ClientConversation, client: Caller, actor: str) -> None:
        self.version: str | None = None
        self.extensions: tuple[str, ...] = ()
        self.sections: frozenset[str] = frozenset()
        self.permissions_required: tuple[str, ...] = ()
        self.server_id = ""
        self.trust_level: str | None = None
        self.streams: dict[Id, ChunkReader] = {}
        """The calls that read chunks, by the ids of their requests."""
        self._options, self._conversation, self._client = options, conversation, client
        self._agreement: SessionTerms | None = None
        self._audit = MgpAuditTrail(options.sinks, actor)
        self._grants = ServerGrants(options.approval, client.answers, self._audit)
        self._confirmation = CallConfirmation(options.confirm, client.answers, moderate=options.confirm_moderate)

    @property
    def grants(self) -> dict[str, PermissionDecision]:
        """The current decision about each permission."""
        return self._grants.grants

    async def decide(self, permission: str, decision: PermissionDecision) -> None:
        """Change the decision about a permission while the conversation runs, and tell the server.

        "deferred" takes a decision back: it is asked for again when a call needs it.
        """
        await self._grants.change({permission: Grant(decision)})

    async def request(self, section: str, method: str, params: Mapping[str, Any]) -> Json:
        """A request that belongs to a section of MGP. Raises PeerError if the server does not offer the section."""
        if section not in self.sections:
            raise PeerError(f"this server offers no {section.replace('_', ' ')} to this client")
        try:
            result = await self._client.request(method, params)
        except PeerError as error:
            self._audit.requested(method, params, error)
            raise
        self._audit.requested(method, params, None)
        return result

    # -- the conversation begins and ends ----------------------------------------------------------------

    async def prepare(self, agreement: SessionTerms) -> None:
        """Read what the server says about MGP, and decide about its permissions before the first call (§3.4)."""
        self._agreement = agreement
        self._read(agreement)
        details = {"protocol_version": agreement.version, "mgp": self.version, "extensions": list(self.extensions)}
        self._audit.report("SERVER_CONNECTED", details=details)
        if "permissions" in self.sections and not agreement.stateless:
            self._grants.send = self._send
        await self._grants.settle(self.permissions_required, self.server_id)
        try:
            self._grants.admit(self.server_id, self.permissions_required)
        except Refused:
            self.closed("its permissions were denied")
            raise

    def closed(self, reason: str) -> None:
        """Note in the audit trail, once, that the server is gone."""
        if self._agreement is not None:
            self._agreement = None
            details: Json = {"reason": reason}
            if "audit" in self.sections:
                # A server that reports less than this host saw does not keep what it agreed to.
                details |= {"calls_seen": self._audit.calls, "events_reported": self._audit.reports}
            self._audit.report("SERVER_DISCONNECTED", details=details)

    def _read(self, agreement: SessionTerms) -> None:
        said = said_mgp(agreement, self._options.offered(self._client.answers))
        self.server_id = self._audit.server_id = said.server_id or str(agreement.server_info.get("name", "unknown"))
        if said.version is not None:
            self.version, self.extensions, self.sections = said.version, said.extensions, said.sections
            self.permissions_required, self.trust_level = said.permissions, said.trust_level

    async def _send(self, method: str, params: Mapping[str, Any]) -> Any:
        if self._agreement is None:
            raise PeerGone("the conversation is over")
        return await self._conversation.request(
            method, self._agreement.with_envelope(params, None), within=self._client.timeout
        )

    # -- notifications of the server ---------------------------------------------------------------------

    def heard(self, method: str, params: Json) -> None:
        """Take a chunk, an audit event or a callback, if that was negotiated."""
        if method == CHUNK:
            id = params.get("request_id")
            if isinstance(id, int | str) and (stream := self.streams.get(id)) is not None:
                stream.heard(params)
        elif method == AUDIT and "audit" in self.sections:
            self._audit.received(params)
        elif method == callbacks.REQUEST and "callbacks" in self.sections and callbacks.wants_answer(params):
            self._conversation.start_answer(callbacks.respond(params, self._client.answers, self._send))

    # -- requests ----------------------------------------------------------------------------------------

    async def around(
        self, method: str, params: Mapping[str, Any], send: SendParams, observer: RequestObserver | None = None
    ) -> Json:
        """Make a request with the checks and retries of MGP.

        An error of MGP raises the exception for its code. A tool call that must not be sent raises Rejected,
        PermissionDenied or NotConfirmed.
        """
        try:
            if method == "tools/call":
                # A copy, decoded as the server will decode it, so that exactly the checked arguments are sent.
                return await self._call(from_json(encode(dict(params))), send, observer, frozenset())
            return _given((await self._attempts(params, send, observer))[0])
        except PeerError as error:
            if (typed := self._typed(error)) is None:
                raise
            raise typed from error

    def check(self, result: Json) -> None:
        """Raises the exception for its code if a result is an error of MGP."""
        if (error := self._typed(result)) is not None:
            raise error

    async def _call(
        self,
        params: Json,
        send: SendParams,
        observer: RequestObserver | None,
        tried: frozenset[str],
        trace_id: str = "",
        instead_of: str | None = None,
    ) -> Json:
        name, trace_id = str(params.get("name")), trace_id or text_of(params.get("trace_id")) or str(uuid4())
        try:
            is_confirmed = await self._admit(name, object_of(params.get("arguments")), instead_of)
        except Refused as refusal:
            self._audit.blocked(name, refusal, trace_id)
            raise
        if self.version is not None:
            params["trace_id"] = trace_id  # §6.5
        if "permissions" in self.sections and self._agreement is not None and self._agreement.stateless:
            params["_meta"] = {**self._grants.meta(), **object_of(params.get("_meta"))}
        if is_confirmed:
            params["_meta"] = {**object_of(params.get("_meta")), CONFIRMED_KEY: True}
        try:
            outcome, failure = await self._attempts(params, send, observer, name, trace_id)
        except BaseException as error:
            self._audit.executed(name, trace_id, error)
            raise
        self._audit.executed(name, trace_id, outcome)
        tried |= {name}
        other = failure.fallback if failure is not None and self._may_repeat(observer) else None
        if other is not None and other not in tried and await self._is_of_same_server(name, other):
            self._audit.report(FELL_BACK, trace_id=trace_id, tool=name, details={"fallback_tool": other})
            again: Json = {**params, "name": other}
            if is_confirmed:  # a yes to one tool is no yes to another
                again["_meta"] = {**object_of(params["_meta"])}
                del again["_meta"][CONFIRMED_KEY]
            return await self._call(again, send, observer, tried, trace_id, name)
        return _given(outcome)

    async def _is_of_same_server(self, name: str, other: str) -> bool:
        """Whether a tool that an error names is listed, and by the server whose error it is: of the servers behind
        one, each may only name its own.
        """
        failed, named = await self._listed(name), await self._listed(other)
        return bool(named) and _server_of(failed) == _server_of(named)

    async def _admit(self, name: str, arguments: Json, instead_of: str | None) -> bool:
        """Whether a person has confirmed a tool whose risk the server may not know that we know."""
        tool = tool_security(name, await self._listed(name))
        await self._options.validation.check(tool, arguments, enforced="tool_security" in self.sections)
        # A tool that does not say what it needs may need whatever its server does.
        needed = self.permissions_required if tool.permissions is None else tool.permissions
        if needed:
            await self._grants.settle(needed, self.server_id)
            self._grants.require(name, needed)
        is_confirmed = await self._confirmation.check(tool, arguments, instead_of)
        # The server knows that the listed ones are confirmed here.
        return is_confirmed and not tool.is_listed and "tool_security" in self.sections

    async def _listed(self, name: str) -> Json:
        try:
            return await self._client.listed(name, again=True)
        except PeerError as error:
            if error.code != MethodNotFound.code:
                raise  # a tool whose declaration is unknown does not count as harmless
            return {}

    async def _attempts(
        self,
        params: Mapping[str, Any],
        send: SendParams,
        observer: RequestObserver | None,
        tool: str | None = None,
        trace_id: str | None = None,
    ) -> Outcome:
        """Send the request, and again as long as the server says that a retry may help (§14.6)."""
        retried = 0
        while True:
            try:
                outcome = await send(params)
            except PeerError as error:
                outcome = error
            failure = self._failure(outcome)
            wait = failure.delay(retried) if failure is not None and self._may_repeat(observer) else None
            if failure is None or wait is None:
                return outcome, failure
            retried += 1
            details = {"attempt": retried, "wait_ms": round(wait * 1000), "code": failure.code}
            self._audit.report(RETRIED, trace_id=trace_id, tool=tool, result="RETRY", details=details)
            await asyncio.sleep(wait)

    def _may_repeat(self, observer: RequestObserver | None) -> bool:
        return self._options.retry and (observer is None or observer.repeatable)

    def _typed(self, outcome: PeerError | Json) -> DefserveError | None:
        failure = self._failure(outcome)
        return failure.exception() if failure is not None else None

    def _failure(self, outcome: PeerError | Json) -> Failure | None:
        if self.version is None:
            return None  # without MGP, `_mgp` may mean anything
        return failures.of_error(outcome) if isinstance(outcome, PeerError) else failures.of_result(outcome)


def _server_of(tool: Json) -> str | None:
    return text_of(object_of(tool.get("_meta")).get(SERVER_KEY))


def _given(outcome: Json | PeerError) -> Json:
    if isinstance(outcome, PeerError):
        raise outcome
    return outcome
