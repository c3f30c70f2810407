"""An exception as the reply to a call."""

from __future__ import annotations

from defserve.core.call import Call, Replied
from defserve.core.profile import TOO_MANY_CALLS
from defserve.errors import LimitExceeded, TooManyCalls
from defserve.wire.codec import encode


def failure_reply(call: Call, error: BaseException) -> Replied:
    """The reply, shaped by the terms of the call, and its code if it is an error."""
    try:
        data, code = _encoded(call, error)
    except ValueError as unspeakable:  # the error's own data has no JSON form
        return _encoded(call, unspeakable)
    if len(data) > call.session.composition.limits.response:  # an author's message may hold anything
        return _encoded(call, too_large(call))
    return data, code


def too_large(call: Call) -> LimitExceeded:
    """Says that a result is longer than a reply may be, and whose result it is."""
    limit, data = call.session.composition.limits.response, {"limit": "response"}
    if (server := getattr(call.subject, "server_id", None)) is None:
        return LimitExceeded(f"the result is larger than {limit} bytes", data=data)
    return LimitExceeded(
        f"the result of server {server!r} is larger than {limit} bytes", data={**data, "server_id": server}
    )


def _encoded(call: Call, error: BaseException) -> Replied:
    body = call.terms.table.failure(call, error) or call.terms.profile.failure(call, error)
    code = TOO_MANY_CALLS if isinstance(error, TooManyCalls) else body.get("error", {}).get("code")
    return encode({"jsonrpc": "2.0", "id": call.id, **body}), code
