"""The peer of a conversation: who it is, as far as a conversation has to know it, and how replies look to it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from defserve.base.peer_bounds import MAX_PEER_TEXT_LENGTH, truncate_text
from defserve.core.messages import INTERNAL_ERROR, Params, RequestId
from defserve.errors import ProtocolError, Refused

if TYPE_CHECKING:
    from defserve.core.call import Call


class PeerIdentity(Protocol):
    """One caller, as it has shown itself with one credential. A caller may have several, with different rights."""

    @property
    def id(self) -> str:
        """The principal. Sessions and state belong to it."""
        ...

    @property
    def kind(self) -> str: ...

    @property
    def is_shared_identity(self) -> bool:
        """Whether many callers have it, who cannot be told apart."""
        ...

    @property
    def credential(self) -> str:
        """Names the key or token that was shown, without giving it away."""
        ...

    @property
    def rights(self) -> Any:
        """What `has_rights` reads, as a JSON value: for rights that must be remembered elsewhere."""
        ...

    def has_rights(self, rights: Any) -> bool:
        """Whether it has at least the rights that another credential of the same principal had."""
        ...

    def covers(self, other: Any) -> bool:
        """Whether it is the same principal, with the same credential or with at least the rights of `other`."""
        ...


CURRENT_SENDER: ContextVar[PeerIdentity | None] = ContextVar("defserve_sender", default=None)
"""Who sent the notification whose listener is running; None stands for a local process. Tasks of it inherit this."""


def can_act_for(one: PeerIdentity | None, other: PeerIdentity | None) -> bool:
    """Whether who sent a message may answer, cancel or end what another message began.

    A local process, None, is alone at its end of the pipe.
    """
    return one is other or one is None or other is None or one.covers(other)


# -- How replies look to a peer. The base class is plain JSON-RPC 2.0; a protocol's negotiated state may refine it.


STEP_UP = 401
"""Tells a transport that its client should sign a person in again. It is never sent."""

TOO_MANY_CALLS = 429
"""Tells a transport that there was no room for the call. It is never sent: codes of our own are forbidden there."""


class Profile:
    """Plain JSON-RPC. If an extension's `negotiate` returns a Profile, that profile shapes all replies.

    `batches`: the peer may send arrays. `null_id`: an error without a readable id says `"id": null` rather
    than nothing. `calls_back`: requests may be sent to the peer.
    """

    __slots__ = ("batches", "null_id", "calls_back")

    def __init__(self, *, batches: bool = False, null_id: bool = True, calls_back: bool = True) -> None:
        self.batches, self.null_id, self.calls_back = batches, null_id, calls_back

    def result(self, call: Call, result: Any) -> Any:
        """The result as this peer wants it."""
        return result

    def failure(self, call: Call, error: BaseException) -> Params:
        """An exception as the rest of a reply: `{"error": …}`, or `{"result": …}` if the model should read it."""
        if isinstance(error, ProtocolError):
            return {"error": make_error_object(error.code, error.message, error.data)}
        if isinstance(error, Refused):
            data = {"error_type": error.error_type, **error.data}
            return {"error": make_error_object(INTERNAL_ERROR, error.message, data)}
        return {"error": make_error_object(INTERNAL_ERROR, mask_unexpected_error(call, error))}

    def withdrawal(self, id: RequestId) -> tuple[str, Params] | None:
        """The notification that takes back a request of ours, if the protocol has one."""
        return None


def make_error_object(code: int, message: str, data: Any = None) -> Params:
    error: Params = {"code": code, "message": truncate_text(message, MAX_PEER_TEXT_LENGTH)}
    if data is not None:
        error["data"] = data
    return error


def mask_unexpected_error(call: Call, error: BaseException) -> str:
    """Log an unexpected exception under a new id. The returned text, for the peer, holds only that id."""
    # Imported only on failure: `logging` alone costs several ms at start.
    import logging
    import secrets

    from defserve.base.redaction import format_redacted_traceback

    error_id = secrets.token_hex(6)
    if isinstance(error, TypeError) and (fix := _needless_await(error)):
        error.add_note(f"  fix: {fix}")
    logging.getLogger("defserve").error(
        "internal error %s in %s\n%s",
        error_id,
        call.title,
        format_redacted_traceback(error),
        extra={"error_id": error_id},
    )
    return f"internal error (id {error_id})"


def _needless_await(error: TypeError) -> str | None:
    """What to write where code awaits what gives nothing to await: elsewhere, logs and progress are awaited."""
    import re
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    if not frames or "NoneType" not in str(error) or "await" not in str(error):
        return None
    called = re.search(r"\bawait\s+([\w.]+)\(", frames[-1].line or "")
    return f"{called[1]}(…) gives nothing to await; write it without await" if called else None
