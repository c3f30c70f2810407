"""MCPL §14.3: authors' functions for channels: which values each is given by name, and how it runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Hashable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from defserve.core.call import Call
from defserve.errors import UsageError
from defserve.protocols.mcp.function import FindProvider, Function
from defserve.protocols.mcpl.extension import CURRENT
from defserve.wire.messages import Notification, Params

if TYPE_CHECKING:
    import asyncio

    from defserve.core.session import Session

# Verb → the parameters its function may take, besides Context and dependencies.
GIVES: Mapping[str, tuple[str, ...]] = {
    "open": ("address", "metadata"),
    "close": ("channel",),
    "publish": ("channel", "content", "text", "conversation_id", "stream"),
    "observe": ("channel", "content", "text", "conversation_id", "inference_id"),
    "observe_chunks": ("channel", "delta", "index", "conversation_id", "inference_id"),
}

# Of one session: notifications that wait for those before them.
MOST_WAITING = 1_000


class ChannelFunction:
    """One function of a channel type's. `scope` gives the label of what is to be opened, from its address."""

    __slots__ = ("function", "takes", "timeout", "scope")

    def __init__(
        self,
        verb: str,
        function: Callable[..., Any],
        find_provider: FindProvider,
        timeout: float | None,
        scope: Callable[[Any], str] | None,
    ) -> None:
        # What is opened comes as JSON and is validated; all else is given as it is.
        self.function = Function(function, find_provider, plain=verb != "open")
        self.timeout, self.scope = timeout, scope
        signature = self.function.signature
        self.takes = tuple(parameter.name for parameter in signature.parameters)
        if self.function.streams:
            raise UsageError(f"{signature.name} yields", where=signature.where, fix="return instead")
        for parameter in signature.parameters:
            if parameter.wire_name not in GIVES[verb] and parameter.required:
                raise UsageError(
                    f"{signature.name}: nobody gives {parameter.name!r} to a function for {verb}",
                    where=signature.where,
                    fix=f"take some of {', '.join(GIVES[verb])}, Context and dependencies",
                )

    def validated(self, params: Params) -> dict[str, Any]:
        """The arguments of a function that takes JSON. Raises BadArguments."""
        taken = [parameter.wire_name for parameter in self.function.signature.parameters]
        return self.function.arguments.validate({name: params[name] for name in taken if params.get(name) is not None})

    async def run(self, call: Call, subject: Any, values: Mapping[str, Any]) -> Any:
        """Call it within `call`, with those of the values that it takes."""
        kwargs = {name: values[name] for name in self.takes if name in values}
        call.subject = subject
        token = CURRENT.set(call)
        try:
            return await self.function.run(call, kwargs, self.timeout or call.session.composition.limits.tool)
        finally:
            CURRENT.reset(token)


def unanswered(session: Session, method: str, params: Params) -> Call | None:
    """A call for what came as a notification: nobody waits for its outcome. None where MCPL was not negotiated."""
    import asyncio

    composition = session.composition
    offer = composition.offer_in(Notification(method, params, {}))
    terms = composition.agree(offer) if offer is not None else session.terms
    if terms is None or "mcpl" not in terms.states:
        return None
    call = Call(session, "", method, params, {}, terms)
    call.settled, call.task = True, asyncio.current_task()
    return call


class Lanes:
    """Of one session: what concerns one channel is done one at a time, in the order in which it came."""

    __slots__ = ("waiting", "_tails")

    def __init__(self) -> None:
        self.waiting = 0
        self._tails: dict[Hashable, asyncio.Future[None]] = {}

    @property
    def full(self) -> bool:
        return self.waiting >= MOST_WAITING

    @asynccontextmanager
    async def turn(self, lane: Hashable) -> AsyncGenerator[None]:
        import asyncio

        before, mine = self._tails.get(lane), asyncio.get_running_loop().create_future()
        self._tails[lane] = mine
        self.waiting += 1
        try:
            if before is not None:
                await asyncio.wait((before,))
            yield
        finally:
            self.waiting -= 1
            if before is None or before.done():
                mine.set_result(None)
            else:  # cancelled while it waited: those behind go on waiting for the one before
                before.add_done_callback(lambda _: mine.set_result(None))
            if mine.done() and self._tails[lane] is mine:
                del self._tails[lane]
