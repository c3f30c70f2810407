"""An exception as the reply to a call."""

from __future__ import annotations

from defserve.core.call import Call, Replied
from defserve.errors import LimitExceeded
from defserve.wire.messages import Params


def failure_reply(call: Call, error: BaseException) -> Replied:
    """The reply, and its code if it is an error."""
    session = call.session
    try:
        data, code = session.encode_failure(call, error)
    except ValueError as unspeakable:  # the error's own data has no JSON form
        return session.encode_failure(call, unspeakable)
    if len(data) > session.composition.limits.response:  # an author's message may hold anything
        return session.encode_failure(call, too_large(call))
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
