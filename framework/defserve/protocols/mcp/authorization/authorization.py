"""MCP authorization (basic: authorization): what a caller's scopes let it see and use, and how often."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol

from defserve.auth.authority import is_local, stranger_at
from defserve.auth.buckets import Buckets, Rate
from defserve.auth.principals import LOCAL, Principal
from defserve.core.call import Call
from defserve.core.extension import Extension
from defserve.core.stages import Stages
from defserve.errors import LimitExceeded, Refused

DEFAULT = Rate()


class NotPermitted(Refused):
    """The caller is known and may not do this."""

    error_type = "permission_denied"


class SharedCounter(Protocol):
    """Counts calls for all processes of a server, in buckets of (key, calls a second, burst)."""

    async def take(self, buckets: Sequence[tuple[str, float, int]]) -> tuple[int, float]:
        """The place of the bucket that is empty, from 1 on, and the seconds until it is not; or 0 and 0.0.

        Raises Refused if they cannot be counted.
        """
        ...


class Authorization(Extension):
    """Items that need scopes are hidden from callers without them; calls are counted by principal and item.

    A caller with an API key sees and calls the tools that the key's permissions name, as often as the key allows.
    """

    name = "authorization"

    def __init__(self, rate: Rate) -> None:
        self._by_item = Buckets(rate)
        self._by_key = Buckets()
        self._rate, self._is_declared = rate, rate != DEFAULT
        self.counter: SharedCounter | None = None
        """Counts for all processes what was declared: the rates of keys, and a `rate` that is not the default."""

    def visible(self, call: Call, item: Any) -> bool:
        caller = identity(call)
        readable = item.kind != "tool" or caller.may_read(item.name) or item.protects_itself
        return readable and not caller.missing(item.options.scopes)

    def view(self, call: Call) -> object:
        caller = identity(call)
        return None if is_local(caller) else (type(caller), caller.scopes)

    def stages(self) -> Stages:
        return Stages(admit=self._admit)

    def _admit(self, call: Call, item: Any) -> Awaitable[None] | None:
        caller = identity(call)
        if is_local(caller):
            return None
        if item.kind == "tool" and not (caller.may_invoke(item.name) or item.protects_itself):
            raise NotPermitted(f"this key may not call {item.name}", data={"permission": f"ToolInvoke({item.name})"})
        rates = caller.rates
        if self.counter is not None and (rates or self._is_declared):
            return self._count_together(self.counter, caller, item, rates)
        if rates:
            self._count_key(rates)
        if wait := self._by_item.take((caller.id, item.name)):
            raise _too_often(item, wait)
        return None

    def _count_key(self, rates: Mapping[tuple[str, str], Rate]) -> None:
        """Count a call under all of the rates, or under none of them."""
        wait, limit = max((self._by_key.peek(key, rate), key[1]) for key, rate in rates.items())
        if wait:
            raise _used_up(limit, wait)
        for key, rate in rates.items():
            self._by_key.take(key, rate)

    async def _count_together(
        self, counter: SharedCounter, caller: Principal, item: Any, rates: Mapping[tuple[str, str], Rate]
    ) -> None:
        """Count a call for all processes. While that cannot be done, this one counts by itself."""
        limits, is_counted_here = [*rates.items()], not self._is_declared
        if self._is_declared:
            limits.append(((f"{caller.id}\n{item.name}", ""), self._rate))
        try:
            place, wait = await counter.take(
                [(f"{key}\n{limit}", rate.per_second, rate.burst) for (key, limit), rate in limits]
            )
        except Refused:
            place, wait, is_counted_here = 0, 0.0, True
            if rates:
                self._count_key(rates)
        if place:
            limit = limits[place - 1][0][1]
            raise _used_up(limit, wait) if limit else _too_often(item, wait)
        if is_counted_here and (wait := self._by_item.take((caller.id, item.name))):
            raise _too_often(item, wait)


def _too_often(item: Any, wait: float) -> LimitExceeded:
    return LimitExceeded(
        f"too many calls of {item.name}: wait {wait:.1f} s",
        data={"limit": "rate", "retry_after_ms": int(wait * 1000) + 1},
    )


def _used_up(limit: str, wait: float) -> LimitExceeded:
    return LimitExceeded(
        f"too many calls with this key: wait {wait:.1f} s",
        data={"limit": limit, "retry_after_ms": int(wait * 1000) + 1, "retry_after": int(wait) + 1},
    )


def identity(call: Call) -> Principal:
    """Who sent a request. Where nothing authenticates, that is a process of the same user, or else a stranger."""
    found = call.identity
    if isinstance(found, Principal):
        return found
    return LOCAL if call.session.is_local else stranger_at("")
