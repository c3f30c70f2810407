"""The tools that a conversation has loaded: kept by its session or, without sessions, in a handle that travels along.

A handle lists digests of tool names. It grants nothing: it says which of the tools that its sender may see anyway are
listed. So it needs no seal, and no memory here.
"""

from __future__ import annotations

from defserve.core.call import Call
from defserve.errors import InvalidParams
from defserve.protocols.mcp.failures import VENDOR
from defserve.protocols.mcp.lifecycle import dialect_of
from defserve.protocols.mcp.params import meta
from defserve.protocols.mgp.tool_discovery.catalogue import DIGEST_BYTES, Catalogue, digest
from defserve.search.budget import LoadedTools
from defserve.wire import base64url
from defserve.wire.messages import Params

HANDLE_KEY = VENDOR + "tools"
FORMAT = b"\x01"
MOST_IN_HANDLE = 64
LIST_CHANGED = "notifications/tools/list_changed"


class LastList:
    """The level of the list that a session saw last; empty if it saw none."""

    level = ""


def note_level(call: Call, level: str) -> None:
    """Note which level a list has. Without a session nobody is told of changes, so nothing is noted."""
    if not dialect_of(call).stateless:
        call.session.local(LastList).level = level


def remembers(call: Call) -> bool:
    """Whether what is loaded is still known at the next call: without a session, only if a handle was sent."""
    return not dialect_of(call).stateless or HANDLE_KEY in meta(call.params)


def loaded_by(call: Call, catalogue: Catalogue, limit: int) -> LoadedTools:
    """The tools that this call's conversation has loaded. Raises InvalidParams for a handle that is none."""
    if not dialect_of(call).stateless:
        return call.session.local(LoadedTools)
    if (known := call.peek(LoadedTools)) is None:
        known = call.local(LoadedTools)
        for each in _digests(meta(call.params).get(HANDLE_KEY)):
            if (entry := catalogue.by_digest(each)) is not None:
                known.load(entry.name, entry.tokens, limit)
    return known


def told(call: Call, loaded: LoadedTools, before: frozenset[str]) -> Params:
    """Tell the caller what is loaded now, if that has changed: a notification, or the `_meta` of the result."""
    if dialect_of(call).stateless:
        if not loaded and HANDLE_KEY not in meta(call.params):
            return {}
        names = loaded.names[-MOST_IN_HANDLE:]
        return {HANDLE_KEY: base64url.encode(FORMAT + b"".join(map(digest, names)))}
    if call.session.ready and call.session.local(LastList).level == "L3" and before != frozenset(loaded.names):
        call.session.notify(LIST_CHANGED, {}, audience=())
    return {}


def _digests(handle: object) -> list[bytes]:
    if handle is None:
        return []
    most = len(FORMAT) + MOST_IN_HANDLE * DIGEST_BYTES
    try:
        if not isinstance(handle, str) or len(handle) > 2 * most:
            raise ValueError
        raw = base64url.decode(handle)
        if not raw.startswith(FORMAT) or len(raw) > most or (len(raw) - len(FORMAT)) % DIGEST_BYTES:
            raise ValueError
    except ValueError:
        raise InvalidParams(
            f"Invalid params: _meta[{HANDLE_KEY!r}] must be what the last result had there, or be left out"
        ) from None
    return [raw[at : at + DIGEST_BYTES] for at in range(len(FORMAT), len(raw), DIGEST_BYTES)]
