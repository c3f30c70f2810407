"""One call of a front on its way to a backend and back: its questions, its notices, its result. All four pairs of eras.

| front | backend | a question |
|---|---|---|
| handshake | handshake | is passed on as a request, within the call |
| handshake | stateless | is asked by a request; then the call is repeated with the answers |
| stateless | stateless | is left in the result, with the backend's state sealed in ours |
| stateless | handshake | is left in the result, while the call is parked |
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any, Final

from defserve.core.call import Call
from defserve.errors import PeerError, ProtocolError
from defserve.host.answers import MOST_ROUNDS
from defserve.host.fields import Json, object_of
from defserve.protocols.mcp.asking.round_trips import RoundTrips
from defserve.protocols.mcp.lifecycle import (
    CAPABILITIES_KEY,
    CLIENT_KEY,
    LOG_LEVEL_KEY,
    SERVER_KEY,
    VERSION_KEY,
    Dialect,
    dialect_of,
)
from defserve.protocols.mcp.reporting import log_threshold, pass_on_log, progress_token
from defserve.proxying import failures
from defserve.proxying.conversations.channel import QUESTIONS, Channel
from defserve.proxying.relaying.parking import ParkedCall, ParkingLot

if TYPE_CHECKING:
    from defserve.host.raw_reply import RawReply
    from defserve.proxying.conversations.fronts import Front
    from defserve.proxying.targets import Secrets

OURS: Final = frozenset({VERSION_KEY, CAPABILITIES_KEY, CLIENT_KEY, LOG_LEVEL_KEY})
"""Members of `_meta` that concern the front's leg alone."""
STATE, ASKED, PARKED = "state", "asked", "parked"


class RelayedCall:
    """What one call needs in a backend. `call` is replaced when the front repeats the request with its answers."""

    __slots__ = ("id", "call", "channel", "front", "parked", "_secrets", "_lot")

    def __init__(self, id: str, call: Call, channel: Channel, front: Front, lot: ParkingLot, secrets: Secrets) -> None:
        self.id, self.call, self.channel, self.front, self._lot = id, call, channel, front, lot
        self._secrets = secrets
        self.parked: ParkedCall | None = None

    async def run(self, method: str, params: Json) -> Json:
        """The result of the request. Raises what the front is told if there is none."""
        channel, call = self.channel, self.call
        level = log_threshold(call)
        await channel.want_level(level)
        complete = channel.dressed(params, _passed_meta(call), self.front.offers, level)
        is_stateless = dialect_of(call).stateless
        if channel.stateless:
            return await self._in_rounds(method, complete, is_stateless)
        if is_stateless and channel.offers:
            return await self._parkable(method, complete)
        return self._result(await self.channel.forward(method, complete, self))

    # -- a backend that asks in its result ---------------------------------------------------------------

    async def _in_rounds(self, method: str, params: Json, is_stateless: bool) -> Json:
        answers = self._brought() if is_stateless else {}
        for _ in range(MOST_ROUNDS):
            result = self._result(await self.channel.forward(method, {**params, **answers}, self))
            if result.get("resultType") != "input_required":
                return result
            requests = self._checked(object_of(result.get("inputRequests")))
            state: Json = {"requestState": result["requestState"]} if "requestState" in result else {}
            if is_stateless:
                kept = {STATE: state, ASKED: list(requests), "server": self.id}
                await self.call.local(RoundTrips).relay(self.call, requests, kept)
            responses = {key: await self._ask_front(one["method"], one["params"]) for key, one in requests.items()}
            answers = {"inputResponses": responses, **state}
        raise PeerError(f"server {self.id!r} still asks for input after {MOST_ROUNDS} rounds")

    def _brought(self) -> Json:
        """The answers that the front's request brings, and the backend's own state."""
        rounds = self.call.peek(RoundTrips)
        if rounds is None:
            return {}
        kept = object_of(rounds.relayed)
        if not kept or kept.get("server") != self.id:
            return {"inputResponses": rounds.unproven} if rounds.unproven else {}
        given = {key: rounds.answers.pop(key)[1] for key in kept[ASKED] if key in rounds.answers}
        return {"inputResponses": given, **kept[STATE]}

    def _checked(self, requests: Json) -> dict[str, Json]:
        """The questions, if this front has offered to answer all of them."""
        found: dict[str, Json] = {}
        for key, asked in requests.items():
            request = object_of(asked)
            method = str(request.get("method"))
            if QUESTIONS.get(method) not in self.front.offers:
                raise PeerError(f"server {self.id!r} asks for {method}, which its client did not offer")
            found[key] = {**request, "method": method, "params": object_of(request.get("params"))}
        return found

    # -- a backend that asks while the call runs ---------------------------------------------------------

    async def ask(self, method: str, params: Json) -> Any:
        """See `channel.Exchange`."""
        if self.parked is None:
            return await self._ask_front(method, params)
        if not self._lot.has_room(self.call.principal):
            raise ProtocolError("too many calls wait for answers", code=failures.ResourceExhausted.code)
        try:
            return await self.parked.ask(method, params)
        except ValueError as error:
            raise ProtocolError(str(error)) from None

    async def _ask_front(self, method: str, params: Json) -> Any:
        call = self.call
        if params.get("mode") == "url" and "elicitationId" not in params:
            params = {**params, "elicitationId": secrets.token_urlsafe(16)}
        try:
            return await call.request(method, params, timeout=call.session.composition.limits.question)
        except PeerError as error:
            raise ProtocolError(error.message, code=error.code, data=error.data) from None

    async def _parkable(self, method: str, params: Json) -> Json:
        work = asyncio.create_task(self.channel.forward(method, params, self))
        work.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.parked = ParkedCall(work, self.call.principal, self)
        return await self._wait(self.parked)

    async def resume(self, call: Call, parked: ParkedCall) -> Json:
        """Go on with a parked call: the front has repeated its request."""
        self.call = call
        rounds = call.local(RoundTrips)
        parked.take_answers({key: answer for key, (_, answer) in rounds.answers.items()})
        return await self._wait(parked)

    async def _wait(self, parked: ParkedCall) -> Json:
        """The result; or the questions of the backend become the result of this round."""
        asked, handle = asyncio.ensure_future(parked.asked.wait()), None
        try:
            await asyncio.wait((parked.work, asked), return_when=asyncio.FIRST_COMPLETED)
            if parked.work.done():
                return self._result(parked.work.result())
            await asyncio.sleep(0)  # questions that are asked at once travel together
            handle = self._lot.put(parked)
            requests = {key: question.request for key, question in parked.questions.items()}
            rounds = self.call.local(RoundTrips)
            for key in requests:
                rounds.answers.pop(key, None)
            await rounds.relay(self.call, requests, {PARKED: handle, "server": self.id})
            raise AssertionError("a suspended call ends")
        except BaseException:
            if handle is None or self.call.suspension is None:
                parked.work.cancel()
                self._lot.take(handle)
            raise
        finally:
            asked.cancel()

    # -- what comes back ---------------------------------------------------------------------------------

    def hear(self, method: str, params: Json) -> None:
        """See `channel.Exchange`."""
        call = self.call
        if method == "notifications/message":
            pass_on_log(call, self._secrets.hidden_in(params))
        elif method == "notifications/progress" and (token := progress_token(call)) is not None:
            told = {**params, "progressToken": token}
            if "progress_message" not in dialect_of(call).has:
                told.pop("message", None)
            call.notify(method, told, replaces=("progress", token))

    def _result(self, reply: RawReply) -> Json:
        if reply.error is not None:
            raise failures.relayed(self.id, reply.error, self._secrets)
        result = reply.result
        if not isinstance(result, dict):
            raise PeerError(f"server {self.id!r} gave a result that is not an object")
        return result  # pyright: ignore[reportUnknownVariableType]


def shaped(result: Json, dialect: Dialect) -> Json:
    """A result without what concerns the backend's leg, or what the front's version does not know."""
    meta = result.get("_meta")
    if isinstance(meta, dict) and SERVER_KEY in meta:
        del meta[SERVER_KEY]
        if not meta:
            del result["_meta"]
    if not dialect.stateless:
        for member in ("resultType", "ttlMs", "cacheScope"):
            result.pop(member, None)
        if "structured" not in dialect.has:
            result.pop("structuredContent", None)
    return result


def parked_handle(call: Call, id: str) -> tuple[bool, Any]:
    """Whether a request brings answers for a parked call of this backend, and its handle."""
    rounds = call.peek(RoundTrips)
    kept = object_of(rounds.relayed) if rounds is not None else {}
    is_parked = PARKED in kept and kept.get("server") == id
    return is_parked, kept.get(PARKED)


def _passed_meta(call: Call) -> Json:
    meta = call.params.get("_meta")
    if not isinstance(meta, dict):
        return {}
    return {name: value for name, value in meta.items() if name not in OURS}  # pyright: ignore
