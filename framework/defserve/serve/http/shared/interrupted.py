"""What a client is told of a call whose process died."""

from __future__ import annotations

from typing import Any, cast

from defserve.core.messages import INTERNAL_ERROR, encode

DIED = "the process that ran this call died; send it again"


def encode_interrupted_reply(request: Any) -> bytes:
    """The answer to a request, or to an array of them, given by id."""
    calls = cast("list[Any]", request) if isinstance(request, list) else [request]
    died = b",".join(map(_encode_error_reply, calls))
    return b"[%b]" % died if isinstance(request, list) else died


def _encode_error_reply(id: Any) -> bytes:
    error = {"code": INTERNAL_ERROR, "message": DIED, "data": {"type": "interrupted", "retry_after_ms": 0}}
    return encode({"jsonrpc": "2.0", "id": id, "error": error})
