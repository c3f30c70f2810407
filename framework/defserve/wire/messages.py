"""JSON-RPC 2.0 messages as small objects; the codec makes them from bytes. No I/O, no protocol names."""

from __future__ import annotations

from typing import Any, TypeAlias

Id: TypeAlias = int | str
Params: TypeAlias = dict[str, Any]

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603


class Request:
    """A question that wants an answer. `raw` is the whole decoded object, for members outside JSON-RPC."""

    __slots__ = ("id", "method", "params", "raw")

    def __init__(self, id: Id, method: str, params: Params, raw: dict[str, Any]) -> None:
        self.id, self.method, self.params, self.raw = id, method, params, raw


class Notification:
    """A statement that is never answered."""

    __slots__ = ("method", "params", "raw")

    def __init__(self, method: str, params: Params, raw: dict[str, Any]) -> None:
        self.method, self.params, self.raw = method, params, raw


class Reply:
    """The answer to a request of ours: `error` is None when it went well. `id` is None when unreadable."""

    __slots__ = ("id", "result", "error")

    def __init__(self, id: Id | None, result: Any, error: dict[str, Any] | None) -> None:
        self.id, self.result, self.error = id, result, error


class Malformed:
    """Input that is not a message: the code and text of its refusal, and its id if it could be read.

    `notification` is set if it is a notification except for a null `id`. `is_reply`: it was meant as an answer, so the
    id is one of ours, and it must not be answered in turn.
    """

    __slots__ = ("code", "message", "id", "notification", "is_reply")

    def __init__(
        self,
        code: int,
        message: str,
        id: Id | None = None,
        *,
        notification: Notification | None = None,
        is_reply: bool = False,
    ) -> None:
        self.code, self.message, self.id = code, message, id
        self.notification, self.is_reply = notification, is_reply


Message: TypeAlias = Request | Notification | Reply | Malformed


class Encoded(bytes):
    """JSON that is already bytes: a result the encoder copies instead of encoding again."""
