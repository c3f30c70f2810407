"""What a backend may say in a result, an error or a listing that is passed on.

Clients take some members for this server's own word: a tool to call instead, what a conversation has loaded, whose an
item is. A backend's word for them must not reach a client. Whatever passes is named here; the rest is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from defserve.host.fields import Json
from defserve.protocols.mcp.failures import ERROR_KEY, VENDOR
from defserve.protocols.mcp.tools.tools import WRAPPED_KEY
from defserve.protocols.mgp.agreed import EXTENSION_ID
from defserve.wire.jsonvalue import is_object

MGP_BLOCK: Final = "_mgp"
RESERVED: Final = (VENDOR, EXTENSION_ID)
"""How those members of `_meta` begin that clients take for our own."""
PASSED: Final = frozenset({ERROR_KEY, WRAPPED_KEY, VENDOR + "next"})
"""Those of them that only describe the backend's own result: why it failed, how it is wrapped, what comes next."""
OWN_MEMBERS: Final = frozenset({"state", "checkpoint"})
"""Members of a result in which a server moves its own state at a host (MCPL). That of a backend is not ours."""
PROMISES: Final[Mapping[str, bool]] = {
    "readOnlyHint": True,
    "destructiveHint": False,
    "idempotentHint": True,
    "openWorldHint": False,
}
"""A hint of a tool, and the value that promises less harm."""
STEERING: Final = frozenset({"fallback_tool"})
"""Members of an error that make a client call another tool. A backend does not know the names of tools here."""


def clean_result(result: Json) -> Json:
    """The result, changed in place: without members that only this server may say to its clients."""
    # Most results have none of these, and this is done for every call.
    if not OWN_MEMBERS.isdisjoint(result):
        for member in OWN_MEMBERS.intersection(result):
            del result[member]
    if MGP_BLOCK in result:
        result[MGP_BLOCK] = _without_steering(result[MGP_BLOCK])
    if "_meta" in result:
        meta = result["_meta"]
        if not is_object(meta):
            del result["_meta"]
            return result
        for name in [name for name in meta if name.startswith(RESERVED) and name not in PASSED]:
            del meta[name]
        if ERROR_KEY in meta:
            meta[ERROR_KEY] = clean_error(meta[ERROR_KEY])
        if not meta:
            del result["_meta"]
    return result


def keep_warnings(hints: Mapping[str, Any]) -> dict[str, Any]:
    """The hints of a server that nobody vouches for: its warnings, and nothing that only looks like a hint."""
    kept = {name: value for name, value in hints.items() if name in PROMISES and value is (not PROMISES[name])}
    return {"title": hints["title"], **kept} if isinstance(hints.get("title"), str) else kept


def clean_error(data: Any) -> Any:
    """The `data` of an error, or what a failed result says of it, without what would steer a client."""
    if not is_object(data):
        return data
    kept = _without_steering(data)
    return {**kept, MGP_BLOCK: _without_steering(kept[MGP_BLOCK])} if MGP_BLOCK in kept else kept


def _without_steering(block: Any) -> Any:
    return {name: value for name, value in block.items() if name not in STEERING} if is_object(block) else block
