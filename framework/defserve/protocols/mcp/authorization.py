"""MCP authorization (basic: authorization): what a caller's scopes let it see and use, and how often."""

from __future__ import annotations

from typing import Any

from defserve.auth.buckets import Buckets, Rate
from defserve.auth.principals import LOCAL, Principal
from defserve.core.call import Call
from defserve.core.extension import Extension
from defserve.core.session import Session
from defserve.core.stages import Stages
from defserve.errors import LimitExceeded


class Authorization(Extension):
    """Items that need scopes are hidden from callers without them; calls are counted by principal and item."""

    name = "authorization"

    def __init__(self, rate: Rate) -> None:
        self._buckets = Buckets(rate)

    def visible(self, call: Call, item: Any) -> bool:
        return not identity(call.session).missing(item.options.scopes)

    def view(self, call: Call) -> object:
        caller = identity(call.session)
        return None if caller.kind == "local" else caller.scopes

    def stages(self) -> Stages:
        return Stages(admit=self._admit)

    def _admit(self, call: Call, item: Any) -> None:
        caller = identity(call.session)
        if caller.kind == "local" or caller.is_crowd:
            return
        wait = self._buckets.take((caller.id, item.name))
        if wait:
            raise LimitExceeded(
                f"too many calls of {item.name}: wait {wait:.1f} s",
                data={"limit": "rate", "retry_after_ms": int(wait * 1000) + 1},
            )


def identity(session: Session) -> Principal:
    """Who a session belongs to. One that nobody has authenticated is a process of the same user."""
    found = session.identity
    return found if isinstance(found, Principal) else LOCAL
