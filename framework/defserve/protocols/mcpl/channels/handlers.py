"""MCPL §14.3: the author's functions for channels: which values each may take by name, and how it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from threading import Lock
from typing import Any

from defserve.core.call import Call
from defserve.errors import UsageError
from defserve.protocols.mcp.function import FindProvider, Function
from defserve.protocols.mcpl.current import CURRENT
from defserve.wire.messages import Params

# Verb → the parameters its function may take, besides Context and dependencies.
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "open": ("address", "metadata"),
    "close": ("channel",),
    "publish": ("channel", "content", "text", "conversation_id", "stream"),
    "observe": ("channel", "content", "text", "conversation_id", "inference_id"),
    "observe_chunks": ("channel", "delta", "index", "conversation_id", "inference_id"),
    "acknowledge": ("channel", "message_id", "intent", "value"),
    "typing": ("channel", "active", "metadata"),
    "history": ("channel", "limit", "before", "since_last_seen"),
}


class BlockingOpen:
    """What a blocking `open` returns in its thread, which nobody can stop. Given up, it goes to `orphaned` instead."""

    __slots__ = ("_lock", "_opened", "_orphaned")

    def __init__(self) -> None:
        self._lock = Lock()
        self._opened: Any = None
        self._orphaned: Callable[[Any], None] | None = None

    def returned(self, opened: Any) -> None:
        with self._lock:
            self._opened, orphaned = opened, self._orphaned
        if orphaned is not None:
            orphaned(opened)

    def give_up(self, orphaned: Callable[[Any], None]) -> None:
        """Nobody waits for it any more. `orphaned` is called in any thread, at once or when the function returns."""
        with self._lock:
            self._orphaned, opened = orphaned, self._opened
        if opened is not None:
            orphaned(opened)


def _noted(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def run(**kwargs: Any) -> Any:
        opened = function(**kwargs)
        if (call := CURRENT.get()) is not None:
            call.local(BlockingOpen).returned(opened)
        return opened

    return run


class ChannelFunction:
    """One function of a channel type. `scope` returns the label for an address, before the channel is opened."""

    __slots__ = ("function", "takes", "timeout", "scope")

    def __init__(
        self,
        verb: str,
        function: Callable[..., Any],
        find_provider: FindProvider,
        timeout: float | None,
        scope: Callable[[Any], str] | None,
    ) -> None:
        # The arguments of `open` come as JSON and are validated; the other functions get our own values.
        self.function = Function(function, find_provider, plain=verb != "open")
        self.timeout, self.scope = timeout, scope
        signature = self.function.signature
        self.takes = tuple(parameter.name for parameter in signature.parameters)
        if self.function.streams:
            raise UsageError(
                f"{signature.name}: a function for {verb} yields nothing", where=signature.where, fix="return a value"
            )
        for parameter in signature.parameters:
            if parameter.wire_name not in PARAMETERS[verb] and parameter.required:
                raise UsageError(
                    f"{signature.name}: {verb} has no value for the parameter {parameter.name!r}",
                    where=signature.where,
                    fix=f"take some of {', '.join(PARAMETERS[verb])}, Context and dependencies",
                )
        if verb == "open" and signature.flow == "sync":
            signature.function = _noted(function)

    def validated(self, params: Params) -> dict[str, Any]:
        """The arguments of a function that takes JSON. Raises BadArguments."""
        taken = [parameter.wire_name for parameter in self.function.signature.parameters]
        return self.function.arguments.validate({name: params[name] for name in taken if params.get(name) is not None})

    async def run(self, call: Call, subject: Any, values: Mapping[str, Any]) -> Any:
        """Call it within `call`, with the values that it takes."""
        kwargs = {name: values[name] for name in self.takes if name in values}
        call.subject = subject
        token = CURRENT.set(call)
        try:
            return await self.function.run(call, kwargs, self.timeout or call.session.composition.limits.tool)
        finally:
            CURRENT.reset(token)
