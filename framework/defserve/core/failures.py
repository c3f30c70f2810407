"""An exception as the reply to a call."""

from __future__ import annotations

from collections.abc import Callable

from defserve.core.call import Call, Replied
from defserve.errors import LimitExceeded
from defserve.wire.messages import Params


def failure_reply(call: Call, error: BaseException, encode: Callable[[Call, BaseException], Replied]) -> Replied:
    """The reply, and its code if it is an error. `encode` raises ValueError for what has no form on the wire."""
    try:
        data, code = encode(call, error)
    except ValueError as unspeakable:  # the error's own data
        return encode(call, unspeakable)
    if len(data) > call.session.composition.limits.response:  # an author's message may hold anything
        return encode(call, too_large(call))
    return data, code


def failure_body(call: Call, error: BaseException) -> Params:
    """What a reply says beside its id: `error`, or `result` if the model should read it."""
    return call.terms.table.failure(call, error) or call.terms.profile.failure(call, error)


def too_large(call: Call) -> LimitExceeded:
    """Says that a result is longer than a reply may be, and whose result it is."""
    limit, data = call.session.composition.limits.response, {"limit": "response"}
    if (server := getattr(call.subject, "server_id", None)) is None:
        return LimitExceeded(f"the result is larger than {limit} bytes", data=data)
    return LimitExceeded(
        f"the result of server {server!r} is larger than {limit} bytes", data={**data, "server_id": server}
    )
