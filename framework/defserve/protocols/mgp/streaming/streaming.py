"""MGP §12: streaming. Parts of a result are sent as they come; the final response holds all of them again.

§12.8 (pace) and §12.9 (gap) are notifications from the client. Both are hints, and their effect is bounded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

from defserve.auth.authority import is_stranger
from defserve.core.call import Call
from defserve.core.extension import Next
from defserve.core.identity import SENDER, may_act_for
from defserve.core.session import Session
from defserve.errors import InvalidParams
from defserve.protocols.mcp.authorization.authorization import identity
from defserve.protocols.mcp.failures import VENDOR
from defserve.protocols.mcp.function import Emitted
from defserve.protocols.mcp.lifecycle import dialect_of
from defserve.protocols.mcp.reporting import Reported
from defserve.protocols.mcp.tools.tools import content_so_far
from defserve.protocols.mgp.streaming.chunks import StreamChunks
from defserve.wire.codec import is_id
from defserve.wire.jsonvalue import is_array, is_object
from defserve.wire.messages import Id, Params

PROGRESS = "notifications/mgp.stream.progress"
STREAM_KEY = VENDOR + "stream"
CALL = "tools/call"

# Chunks a second; more than this is no limit at all.
FASTEST = 1e6

# Strangers at one address cannot be told apart. Only an id of this length proves whose call it is: nobody can guess it.
UNGUESSABLE = 16


class StreamSection:
    """The serving side of streams. Keeps nothing: what is known of a stream belongs to its call."""

    # -- calls -------------------------------------------------------------------------------------------

    def around(self, call: Call, params: Params, following: Next) -> Awaitable[Any]:
        """`tools/call` where streaming is negotiated: progress always, chunks for a call that wants them."""
        call.local(Reported).also = _progress_of(call)
        asked = params.get("_mgp")
        if is_object(asked) and asked.get("stream") is True:
            return _streamed(call, params, following)
        return following(call, params)

    # -- what the client says of a stream ----------------------------------------------------------------

    def cancel(self, call: Call, params: Params) -> Params:
        """`mgp/stream/cancel`: end a call with its result so far. The call's own request is answered with that too.

        Runs at once, without a turn of the event loop: the calls to cancel may take up every slot.
        """
        id = params.get("request_id")
        if not is_id(id):
            raise InvalidParams("Invalid params: request_id must be the id of a request")
        found = _find(call, id)
        if found is None or found.method != CALL or found.settled or found.stopped:
            return {"cancelled": False}
        chunks, content = _chunks(found), content_so_far(found)
        found.cut(lambda: _with_figures(found, {"content": content, "isError": True}, chunks, cancelled=True))
        return {"cancelled": True, "partial_result": {"content": content}}

    def pace(self, session: Session, params: Params) -> None:
        """`notifications/mgp.stream.pace`: at most so many chunks a second from here on; 0 pauses."""
        chunks, rate = _chunks_in(session, params), params.get("max_chunks_per_second")
        if chunks is not None and isinstance(rate, int | float) and not isinstance(rate, bool) and rate >= 0:
            chunks.pace(min(rate, FASTEST))

    def gap(self, session: Session, params: Params) -> None:
        """`notifications/mgp.stream.gap`: send these chunks again, if they are still kept."""
        chunks, missing = _chunks_in(session, params), params.get("missing_indices")
        if chunks is not None and is_array(missing):
            chunks.resend({index for index in missing if type(index) is int})


async def _streamed(call: Call, params: Params, following: Next) -> Any:
    call.local(Emitted).sink = chunks = StreamChunks(call)
    try:
        result = await following(call, params)
        await chunks.drained()
    finally:
        chunks.close()
    return _with_figures(call, result, chunks)


def _with_figures(call: Call, result: Any, chunks: StreamChunks | None, **more: Any) -> Any:
    if chunks is None or not is_object(result):
        return result
    duration = round((monotonic() - chunks.began) * 1000)
    figures = {"streamed": chunks.sent > 0, "chunks_sent": chunks.sent, "duration_ms": duration, **more}
    found = {**result, "_mgp": {**figures, **result.get("_mgp", {})}}
    if "meta" in dialect_of(call).has:
        # Strict clients drop fields they do not know, but not this one.
        found["_meta"] = {**result.get("_meta", {}), STREAM_KEY: figures}
    return found


def _progress_of(call: Call) -> Callable[[float, float | None, str | None], None]:
    began = monotonic()

    def progress(value: float, total: float | None, message: str | None) -> None:
        # Without a total, only a value between 0 and 1 can be a share.
        share = value / total if total else value
        if not 0 <= share <= 1:
            return
        params: Params = {"request_id": call.id, "progress": share}
        if message:
            params["message"] = message
        if share:
            params["estimated_remaining_ms"] = round((monotonic() - began) * 1000 * (1 - share) / share)
        call.notify(PROGRESS, params, replaces=(PROGRESS, call.id))

    return progress


def _find(call: Call, id: Id) -> Call | None:
    """The caller's request with this id, in its session. Without sessions, the only one that is certainly its own."""
    mine = call.session.in_flight.get(id)
    if mine is not None and not may_act_for(call.identity, mine.identity):
        return None
    if mine is not None or call.terms.offer is None or not call.terms.offer.stateless:
        return mine
    if is_stranger(identity(call)) and not (isinstance(id, str) and len(id) >= UNGUESSABLE):
        return None
    short = [session for session in call.session.composition.short_sessions if session.principal == call.principal]
    found = [session.in_flight[id] for session in short if id in session.in_flight]
    return found[0] if len(found) == 1 and may_act_for(call.identity, found[0].identity) else None


def _chunks_in(session: Session, params: Params) -> StreamChunks | None:
    id = params.get("request_id")
    call = session.in_flight.get(id) if is_id(id) else None
    return _chunks(call) if call is not None and may_act_for(SENDER.get(), call.identity) else None


def _chunks(call: Call) -> StreamChunks | None:
    emitted = call.peek(Emitted)
    return emitted.sink if emitted is not None and isinstance(emitted.sink, StreamChunks) else None
