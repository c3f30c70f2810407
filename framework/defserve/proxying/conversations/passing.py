"""What of a request and of its result is passed on between a front and a backend: each leg has members of its own."""

from __future__ import annotations

from typing import Any, Final

from defserve.host.fields import Json
from defserve.protocols.mcp.failures import VENDOR
from defserve.protocols.mcp.lifecycle import (
    CAPABILITIES_KEY,
    CLIENT_KEY,
    LOG_LEVEL_KEY,
    SERVER_KEY,
    VERSION_KEY,
    Dialect,
)
from defserve.protocols.mgp.agreed import EXTENSION_ID
from defserve.proxying.boundary import clean_result

OURS: Final = frozenset({VERSION_KEY, CAPABILITIES_KEY, CLIENT_KEY, LOG_LEVEL_KEY})
"""Members of `_meta` that concern the front's leg alone."""
DECISIONS: Final = (VENDOR, EXTENSION_ID)
"""How those members begin in which a front grants something, or says what it keeps of ours. They are meant for us."""
ROUNDS: Final = ("resultType", "inputRequests", "requestState")
STATELESS_ONLY: Final = frozenset({*ROUNDS, "ttlMs", "cacheScope"})


def passed_meta(meta: Any) -> Json:
    """The `_meta` of a front's request, without what is meant for us."""
    if not isinstance(meta, dict):
        return {}
    passed: Json = meta  # pyright: ignore[reportUnknownVariableType]
    return {name: value for name, value in passed.items() if name not in OURS and not name.startswith(DECISIONS)}


def shaped(result: Json, dialect: Dialect) -> Json:
    """A result without what concerns the backend's leg, what only we may say, or what the front's version does not
    know.
    """
    clean_result(result)
    if "_meta" in result:
        meta = result["_meta"]
        if meta.pop(SERVER_KEY, None) and not meta:
            del result["_meta"]
    if not dialect.stateless:
        if not STATELESS_ONLY.isdisjoint(result):
            for member in STATELESS_ONLY.intersection(result):
                del result[member]
        if "structured" not in dialect.has:
            result.pop("structuredContent", None)
    return result
