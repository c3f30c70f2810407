"""Plain JSON-RPC 2.0 replies: the profile before anything was agreed, and the errors every profile shares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from defserve.errors import ProtocolError, Refused
from defserve.wire.messages import Id, Params

if TYPE_CHECKING:
    from defserve.core.call import Call

INTERNAL_ERROR = -32603


def error_object(code: int, message: str, data: Any = None) -> Params:
    error: Params = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return error


def mask(call: Call, error: BaseException) -> str:
    """Log an exception nobody expected under a fresh id; the text for the peer holds only that id."""
    # Both imports are for the unlucky path only; `logging` alone costs several ms at start.
    import logging
    import secrets

    error_id = secrets.token_hex(6)
    logging.getLogger("defserve").error(
        "internal error %s in %s: %s", error_id, call.title, error, exc_info=(type(error), error, error.__traceback__)
    )
    return f"internal error (id {error_id})"


class PlainProfile:
    """JSON-RPC and nothing more."""

    batches = False
    null_id = True
    calls_back = True

    def result(self, call: Call, result: Any) -> Any:
        return result

    def withdrawal(self, id: Id) -> tuple[str, Params] | None:
        return None

    def failure(self, call: Call, error: BaseException) -> Params:
        if isinstance(error, ProtocolError):
            return {"error": error_object(error.code, error.message, error.data)}
        if isinstance(error, Refused):
            data = {"error_type": error.error_type, **error.data}
            return {"error": error_object(INTERNAL_ERROR, error.message, data)}
        return {"error": error_object(INTERNAL_ERROR, mask(call, error))}


PLAIN = PlainProfile()
