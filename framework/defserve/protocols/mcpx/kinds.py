"""What an envelope says it holds: `base[:METHOD[:CONTEXT]]`. METHOD has no colon, CONTEXT may have any number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

REQUEST: Final = "mcp/request"
RESPONSE: Final = "mcp/response"
PROPOSAL: Final = "mcp/proposal"
REJECT: Final = "mcp/reject"
WITHDRAW: Final = "mcp/withdraw"
CHAT: Final = "chat"
PRESENCE: Final = "system/presence"
WELCOME: Final = "system/welcome"
ERROR: Final = "system/error"

BARE: Final = frozenset({"presence", "system"})
"""The short names that §3 has for the gateway's kinds. We send the full names of §3.4 and §3.5."""

CONTEXT_FIELD: Final[Mapping[str, str]] = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "resources/subscribe": "uri",
    "resources/unsubscribe": "uri",
    "notifications/resources/updated": "uri",
}
"""The member of a method's params that CONTEXT repeats."""

LONGEST_CONTEXT: Final = 2_048


class MessageKind(NamedTuple):
    """A kind in its parts; `method` and `context` may be empty."""

    base: str
    method: str = ""
    context: str = ""

    def __str__(self) -> str:
        return ":".join(part for part in self if part)


def parse_kind(text: str) -> MessageKind | None:
    """The parts of a kind; None if one of them is empty."""
    parts = text.split(":", 2)
    return MessageKind(*parts) if all(parts) else None


def kind_of(base: str, method: str, params: Mapping[str, Any]) -> str:
    """The kind of a message about `method`. Its CONTEXT is in the params, if it has one; a huge one is left out."""
    context = context_of(method, params)
    return f"{base}:{method}:{context}" if 0 < len(context) <= LONGEST_CONTEXT else f"{base}:{method}"


def context_of(method: str, params: Mapping[str, Any]) -> str:
    """The operation within a method (the tool's name, the resource's URI); empty for methods that have none."""
    value = params.get(CONTEXT_FIELD.get(method, ""))
    return value if isinstance(value, str) else ""


def is_reserved(kind: str) -> bool:
    """Whether only a gateway may send it."""
    return kind.startswith("system/") or kind.partition(":")[0] in BARE


def namespaced(kind: str, payload: Mapping[str, Any]) -> str:
    """The full kind of a gateway's message. The payload of a short one says which it is."""
    if kind not in BARE:
        return kind
    if kind == "presence" or "event" in payload:
        return PRESENCE
    return WELCOME if "you" in payload else ERROR
