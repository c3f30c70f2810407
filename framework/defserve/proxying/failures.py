"""What a front is told when a backend cannot answer. Every error names the backend and says whether to try again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from defserve.errors import Draining, PeerError, PeerGone, PeerTimeout, ProtocolError
from defserve.protocols.mgp.errors import (
    ResourceExhausted,
    ServerNotReady,
    ServerRestarting,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from defserve.transports.client_errors import Challenged
from defserve.wire.jsonvalue import is_object

if TYPE_CHECKING:
    from defserve.proxying.states import State
    from defserve.proxying.targets import Secrets

RETRY_MS = 1_000


class RelayedError(ProtocolError):
    """A backend answered with a protocol error. Its code and data are kept; `server_id` says whose error it is."""

    error_type = "upstream_error"


def not_connected(id: str, state: State, note: str, retry_ms: int = RETRY_MS) -> Exception:
    """Why a call cannot go to a backend now. It was not sent, so it is safe to send it again."""
    data: dict[str, Any] = {"server_id": id, "state": state}
    if state == "draining":
        return Draining(f"server {id!r} is shutting down", data={**data, "retry_after_ms": retry_ms})
    if state in ("connecting", "restarting"):
        what = "is still starting" if state == "connecting" else "is being restarted"
        return ServerRestarting(f"server {id!r} {what}; try again", data=data, retryable=True, retry_after_ms=retry_ms)
    why = f": {note}" if note else ""
    return ServerNotReady(f"server {id!r} is not connected ({state}){why}", data=data, retry_after_ms=retry_ms)


def too_busy(id: str, what: str) -> ResourceExhausted:
    """There is no room for this call. It was not sent."""
    return ResourceExhausted(f"server {id!r}: {what}; try again later", data={"server_id": id}, retry_after_ms=RETRY_MS)


def failed(id: str, error: PeerError, state: State, secrets: Secrets) -> Exception:
    """A call that was sent has no result: the backend left, was silent, or refused it."""
    text, data = secrets.hidden(error.message), {"server_id": id, "state": state, "may_have_had_effects": True}
    if isinstance(error, PeerTimeout):
        return UpstreamTimeout(f"server {id!r} did not answer in time; the call may have had effects", data=data)
    if isinstance(error, Challenged):
        return UpstreamError(f"server {id!r} does not accept the credentials it is called with", data={"server_id": id})
    if not isinstance(error, PeerGone):
        if error.code == PeerError("").code and error.data is None:
            return UpstreamError(f"server {id!r}: {text}", data={"server_id": id})
        # Over HTTP an error may come as the refusal of the request.
        return relayed(id, {"code": error.code, "message": error.message, "data": error.data}, secrets)
    return UpstreamUnavailable(
        f"server {id!r} left before it answered; the call may have had effects: {text}",
        data=data,
        retryable=True,
        retry_after_ms=RETRY_MS,
    )


def relayed(id: str, error: dict[str, Any], secrets: Secrets) -> RelayedError:
    """A backend's own error, as it came, with its name."""
    code, message, data = error.get("code"), error.get("message"), secrets.hidden_in(error.get("data"))
    fields: dict[str, Any] = data if is_object(data) else {} if data is None else {"detail": data}
    return RelayedError(
        secrets.hidden_in(message) if isinstance(message, str) else f"server {id!r} gave an error without a message",
        code=code if isinstance(code, int) and not isinstance(code, bool) else -32603,
        data={"server_id": id, **fields},
    )
