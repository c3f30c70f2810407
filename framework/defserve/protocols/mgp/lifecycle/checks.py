"""MGP §11.3: one health check. It can neither block nor crash its caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from defserve.errors import UsageError

if TYPE_CHECKING:
    import asyncio


class CheckResult(NamedTuple):
    """What a check found: what is wrong, or None."""

    problem: str | None
    critical: bool


class HealthCheck:
    """An author's function that says whether something the server needs is there; see `Server.health_check`.

    It never runs twice at the same time. A check that hangs holds one thread, and counts as failed until it returns.
    """

    def __init__(self, function: Callable[[], Any], name: str, timeout: float, critical: bool) -> None:
        if name == "<lambda>":
            raise UsageError("a health check needs a name", fix='write a def, or @server.health_check(name="…")')
        if not callable(function) or _wants_arguments(function):
            raise UsageError(
                f"health check {name!r} must be a function without parameters", fix="remove its parameters"
            )
        if not timeout > 0:
            raise UsageError(f"health check {name!r} cannot have timeout={timeout!r}", fix="give seconds, more than 0")
        self.function, self.name, self.timeout, self.critical = function, name, timeout, critical
        self._running: asyncio.Future[Any] | None = None

    async def run(self) -> CheckResult:
        """Never raises, and never takes longer than `timeout`."""
        return CheckResult(await self._problem(), self.critical)

    async def _problem(self) -> str | None:
        import asyncio

        before = self._running
        if before is not None and not before.done() and before.get_loop() is asyncio.get_running_loop():
            return "the previous check is still running"
        self._running = running = self._begin()
        await asyncio.wait((running,), timeout=self.timeout)
        if not running.done():
            if isinstance(running, asyncio.Task):
                running.cancel()
            return f"no answer within {self.timeout:g} s"
        try:
            return _problem(running.result())
        except (Exception, asyncio.CancelledError) as error:
            import logging

            # The client reads only the type: the text may hold what it should not see.
            logging.getLogger("defserve").warning("health check %s failed", self.name, exc_info=error)
            return type(error).__name__

    def _begin(self) -> asyncio.Future[Any]:
        import asyncio
        from inspect import iscoroutinefunction

        if iscoroutinefunction(self.function) or iscoroutinefunction(type(self.function).__call__):
            return asyncio.ensure_future(self.function())
        return _in_thread_of_its_own(self.function, self.name)


def _problem(result: object) -> str | None:
    """What a check's result says is wrong. None and True mean that all is well."""
    if result is None or result is True:
        return None
    return result if isinstance(result, str) else f"it returned {result!r}"[:200]


def _wants_arguments(function: Callable[..., Any]) -> bool:
    from inspect import Parameter, signature

    variable = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return any(
        parameter.default is Parameter.empty and parameter.kind not in variable
        for parameter in signature(function).parameters.values()
    )


def _in_thread_of_its_own(function: Callable[[], Any], name: str) -> asyncio.Future[Any]:
    """Run it in a new thread. Tools may hold all worker threads, and just then a check matters most."""
    import asyncio
    from contextlib import suppress
    from contextvars import copy_context
    from threading import Thread

    loop, context = asyncio.get_running_loop(), copy_context()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)
        else:
            can_pass = isinstance(error, Exception) and not isinstance(error, StopIteration)
            future.set_exception(error if can_pass else RuntimeError(repr(error)))
            future.exception()  # marks it as seen, because nobody reads an error that comes too late

    def run() -> None:
        try:
            result, error = context.run(function), None
        except BaseException as raised:
            result, error = None, raised
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, error)

    Thread(target=run, name=f"defserve-health-{name}", daemon=True).start()
    return future
