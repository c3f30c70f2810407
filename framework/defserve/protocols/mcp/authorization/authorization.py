"""MCP authorization (basic: authorization): what a caller's scopes let it see and use, and how often."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from defserve.auth.authority import is_local, stranger_at
from defserve.auth.buckets import Buckets, Rate
from defserve.auth.principals import LOCAL, Principal
from defserve.core.call import Call
from defserve.core.extension import Extension
from defserve.core.stages import Stages
from defserve.errors import LimitExceeded, Refused


class NotPermitted(Refused):
    """The caller is known and may not do this."""

    error_type = "permission_denied"


class Authorization(Extension):
    """Items that need scopes are hidden from callers without them; calls are counted by principal and item.

    A caller with an API key sees and calls the tools that the key's permissions name, as often as the key allows.
    """

    name = "authorization"

    def __init__(self, rate: Rate) -> None:
        self._by_item = Buckets(rate)
        self._by_key = Buckets()

    def visible(self, call: Call, item: Any) -> bool:
        caller = identity(call)
        readable = item.kind != "tool" or caller.may_read(item.name) or item.protects_itself
        return readable and not caller.missing(item.options.scopes)

    def view(self, call: Call) -> object:
        caller = identity(call)
        return None if is_local(caller) else (type(caller), caller.scopes)

    def stages(self) -> Stages:
        return Stages(admit=self._admit)

    def _admit(self, call: Call, item: Any) -> None:
        caller = identity(call)
        if is_local(caller):
            return
        if item.kind == "tool" and not (caller.may_invoke(item.name) or item.protects_itself):
            raise NotPermitted(f"this key may not call {item.name}", data={"permission": f"ToolInvoke({item.name})"})
        if rates := caller.rates:
            self._count(rates)
        if wait := self._by_item.take((caller.id, item.name)):
            raise LimitExceeded(
                f"too many calls of {item.name}: wait {wait:.1f} s",
                data={"limit": "rate", "retry_after_ms": int(wait * 1000) + 1},
            )

    def _count(self, rates: Mapping[tuple[str, str], Rate]) -> None:
        """Count a call under all of the rates, or under none of them."""
        wait, limit = max((self._by_key.peek(key, rate), key[1]) for key, rate in rates.items())
        if wait:
            raise LimitExceeded(
                f"too many calls with this key: wait {wait:.1f} s",
                data={"limit": limit, "retry_after_ms": int(wait * 1000) + 1, "retry_after": int(wait) + 1},
            )
        for key, rate in rates.items():
            self._by_key.take(key, rate)


def identity(call: Call) -> Principal:
    """Who sent a request. Where nothing authenticates, that is a process of the same user, or else a stranger."""
    found = call.identity
    if isinstance(found, Principal):
        return found
    return LOCAL if call.session.is_local else stranger_at("")
