"""What a front is told when a backend cannot answer. Every error names the backend and says whether to try again.

What the backend wrote to standard error, its command and its address are for operators: they go to the log.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from defserve.errors import Draining, PeerError, PeerGone, PeerTimeout, ProtocolError, Refused, ToolError
from defserve.protocols.mcp.failures import is_busy_error, relayable_code
from defserve.protocols.mgp.errors import (
    ResourceExhausted,
    ServerNotReady,
    ServerRestarting,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from defserve.proxying.boundary import clean_error
from defserve.proxying.descriptions import with_asker
from defserve.proxying.states import TOLD, State
from defserve.transports.client_errors import Challenged, HttpRefusal
from defserve.wire.jsonvalue import is_array, is_object
from defserve.wire.messages import INTERNAL_ERROR

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.proxying.targets import Secrets

RETRY_MS = 1_000
OURS = ("server_id", "trace_id")
"""What our errors say themselves. A backend's word for it must not be taken for ours."""

log = logging.getLogger("defserve.proxying")


class Misbehaved(PeerError):
    """What a backend did wrong, in our own words: clients may read them. The words of links are for the log."""


class RelayedError(ProtocolError):
    """A backend answered with a protocol error. Its code and data are kept; `server_id` says whose error it is."""

    error_type = "upstream_error"


def not_connected(id: str, state: State, why: str = "") -> Exception:
    """Why a call cannot go to a backend now. It was not sent, so it is safe to send it again.

    `why` is a plain sentence of ours that anybody may read.
    """
    data: dict[str, Any] = {"server_id": id, "state": state}
    if state == "draining":
        return Draining(f"server {id!r} is shutting down", data={**data, "retry_after_ms": RETRY_MS})
    if state in ("connecting", "restarting"):
        what = "is still starting" if state == "connecting" else "is being restarted"
        return ServerRestarting(f"server {id!r} {what}; try again", data=data, retryable=True, retry_after_ms=RETRY_MS)
    text = f"server {id!r} is not connected ({state}): {why or TOLD[state]}"
    return ServerNotReady(text, data=data, retry_after_ms=RETRY_MS)


def too_busy(id: str, what: str) -> ResourceExhausted:
    """There is no room for this call. It was not sent."""
    return ResourceExhausted(f"server {id!r}: {what}; try again later", data={"server_id": id}, retry_after_ms=RETRY_MS)


def timed_out(id: str, call: Call, state: State, *, was_sent: bool) -> UpstreamTimeout:
    """The time of a call is up, and its backend has not answered; or the call has not even been sent."""
    data: dict[str, Any] = {"server_id": id, "state": state}
    words = "timed out" if call.timer is None else call.timer.error.message
    if call.timer is not None:
        data |= call.timer.error.data
    if not was_sent:
        return UpstreamTimeout(f"server {id!r} {words} before the call was sent; try again", data=data)
    return UpstreamTimeout(
        f"server {id!r} {words}; the call may have had effects", data={**data, "may_have_had_effects": True}
    )


def failed(id: str, error: PeerError, state: State, secrets: Secrets) -> Exception:
    """A call that was sent has no result: the backend left, was silent, or refused it."""
    data = {"server_id": id, "state": state, "may_have_had_effects": True}
    if isinstance(error, PeerTimeout):
        return UpstreamTimeout(f"server {id!r} did not answer in time; the call may have had effects", data=data)
    if isinstance(error, Challenged):
        return UpstreamError(f"server {id!r} does not accept the credentials it is called with", data={"server_id": id})
    if isinstance(error, HttpRefusal):
        return _refused(id, error, secrets)
    if isinstance(error, Misbehaved):
        return UpstreamError(error.message, data={"server_id": id, "may_have_had_effects": True})
    if not isinstance(error, PeerGone):
        if error.code == PeerError("").code and error.data is None:
            log.warning("server %r: a call has no usable answer: %s", id, secrets.hidden(error.message))
            return UpstreamError(f"server {id!r} gave no usable answer", data={"server_id": id})
        # Over HTTP an error may come as the refusal of the request.
        return relayed(id, {"code": error.code, "message": error.message, "data": error.data}, secrets)
    log.warning("server %r left before it answered a call: %s", id, secrets.hidden(error.message))
    return UpstreamUnavailable(
        f"server {id!r} left before it answered; the call may have had effects",
        data=data,
        retryable=True,
        retry_after_ms=RETRY_MS,
    )


def _refused(id: str, error: HttpRefusal, secrets: Secrets) -> UpstreamError:
    """An HTTP error. What it says of the address, and the page that came with it, are for the log."""
    log.warning("server %r refused a call: %s", id, secrets.hidden(error.message))
    status: int = error.data["status"]
    data: dict[str, Any] = {"server_id": id, "status": status}
    text = f"server {id!r} refused the call (HTTP {status})"
    if status in (429, 503):
        return UpstreamUnavailable(f"{text}; try again later", data=data, retry_after_ms=RETRY_MS)
    return UpstreamError(text, data=data | ({"may_have_had_effects": True} if status >= 500 else {}))


def malformed(id: str, member: str) -> UpstreamError:
    """A result lacks what every result of its kind has."""
    return UpstreamError(
        f"server {id!r} gave a result without a list as its {member!r}",
        data={"server_id": id, "may_have_had_effects": True},
    )


def relayed(id: str, error: dict[str, Any], secrets: Secrets) -> RelayedError:
    """A backend's own error, as it came, with its name.

    A code that nobody may send on becomes an internal error, and is told as `inner_code`.
    """
    given, message, data = error.get("code"), error.get("message"), clean_error(secrets.hidden_in(error.get("data")))
    code = given if isinstance(given, int) and not isinstance(given, bool) else INTERNAL_ERROR
    fields: dict[str, Any] = data if is_object(data) else {} if data is None else {"detail": data}
    if is_array(pages := fields.get("elicitations")):  # the pages that a person has to visit first
        named = [with_asker(id, "elicitation/create", page) if is_object(page) else page for page in pages]
        fields = {**fields, "elicitations": named}
    if is_busy_error(code, fields):
        fields = {"retry_after_ms": RETRY_MS, **fields}
    if (relayable := relayable_code(code)) != code:
        fields = {**fields, "inner_code": code}
    return RelayedError(
        secrets.hidden_in(message) if isinstance(message, str) else f"server {id!r} gave an error without a message",
        code=relayable,
        data=_named(fields, id),
    )


def raise_spoken(id: str, error: dict[str, Any], secrets: Secrets) -> None:
    """Raises the exception that an error of MGP means, so that a front hears it in its own protocol."""
    from defserve.host.mgp.failures import of_error

    known = relayed(id, error, secrets)
    spoken = of_error(PeerError(known.message, code=known.code, data=known.data))
    told = spoken.exception() if spoken is not None else None
    if isinstance(told, Refused | ToolError):
        told.data["server_id"] = id
        raise told


def _named(fields: dict[str, Any], id: str) -> dict[str, Any]:
    """The data of a backend's error. It may itself be a kernel, with a server and a trace of its own to tell of."""
    inner = {f"inner_{name}": fields[name] for name in OURS if name in fields}
    return {name: value for name, value in fields.items() if name not in OURS} | inner | {"server_id": id}
