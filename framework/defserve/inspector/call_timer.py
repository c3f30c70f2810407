"""Measures the stages of calls, in the process of the server: `with CallTimer(report):`.

How it works: while a timer runs, the methods in `PROBES` are replaced by ones that note when they begin and end. So a
server that nobody inspects has no branch for it, and does not import this module. What is measured is a `Span`, inside
the span that runs around it (`CURRENT`), which tasks and threads inherit with their context.

    arrival ── queue ── middleware ─┬─ rights, arguments, guards
                                    ├─ dependencies, the function, their tear-down
                                    └─ packing ── the reply
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from contextvars import ContextVar
from time import perf_counter
from types import TracebackType
from typing import Any, Final, TypeAlias

from defserve.binding.arguments import ArgumentsSchema
from defserve.binding.explicit_schema import ExplicitArgumentsSchema
from defserve.binding.injection import Dependency, InjectionPlan
from defserve.core.call import Call, CallQueue, QueuedCall
from defserve.core.composition import Composition, DispatchTable
from defserve.core.extension import Extension, Handler, Next, StagePipeline, Wrapper
from defserve.core.messages import Params
from defserve.core.session import Session
from defserve.inspector.waterfalls import MAX_STAGES, ServerWaterfall, WaterfallStage, make_waterfall
from defserve.protocols.mcp.function import Function
from defserve.protocols.mcp.tools import Tool, Tools
from defserve.serve.asyncio_engine import AsyncioEngine

TIMED_METHOD: Final = "tools/call"
MAX_SPANS: Final = MAX_STAGES - 10
"""The others are for what is around all of these, such as the way to the server."""
MIN_OWN_MS: Final = 0.05
"""A minor span, such as a wait, is shown if it took as long by itself."""

CURRENT: ContextVar[Span | None] = ContextVar("defserve.inspector.span", default=None)
"""The innermost span that runs. None outside of a call that is measured."""

Report: TypeAlias = Callable[[Call, ServerWaterfall], object]
Method: TypeAlias = Callable[..., Any]
Probe: TypeAlias = Callable[["CallTimer", Method], Method]


class StampedMessage(bytes):
    """A message from the peer, and when it arrived. Then it may have waited for the event loop."""

    arrived = 0.0


def stamp_message(data: bytes, arrived: float) -> StampedMessage:
    """The same message, for a session, with the `perf_counter` of its arrival."""
    message = StampedMessage(data)
    message.arrived = arrived
    return message


class CallTimer:
    """While the block runs, `report` gets the waterfall of each call of a tool, as soon as its reply is made.

    Enter it before the server is composed. One runs in a process at a time.
    """

    def __init__(self, report: Report) -> None:
        self.report = report
        self.arrived = self.fed = 0.0
        """When the newest message arrived, and when the session began to read it."""
        self._originals: list[tuple[type, str, Method]] = []

    def __enter__(self) -> CallTimer:
        for owner, name, probe in PROBES:
            original = vars(owner)[name]
            self._originals.append((owner, name, original))
            setattr(owner, name, probe(self, original))
        return self

    def __exit__(self, *_: object) -> None:
        while self._originals:
            setattr(*self._originals.pop())


class TimedCall:
    """What is known of one call of a peer so far. It is a `local` of the call."""

    def __init__(self) -> None:
        self.began = perf_counter()
        self.root = Span("function", "", self)
        self.spans: list[Span] = []
        self.left_out = 0
        self.worked = 0.0
        """When its handler had ended."""
        self.error: BaseException | None = None
        """The error whose stage is known: only the innermost of those that it passes has failed."""

    def add_span(self, kind: str, title: str, began: float, ended: float, *, is_failed: bool = False) -> None:
        """Add what was measured elsewhere."""
        span = Span(kind, title, self, self.root, is_minor=kind == "wait")
        span.began, span.ended, span.is_failed = began, ended, is_failed
        self.spans.append(span)

    def finish(self, is_suspended: bool) -> ServerWaterfall:
        """The waterfall. What still runs has failed: nobody waits for it. A call that asks something has not."""
        ended, self.error = perf_counter(), None  # its traceback would keep the arguments of the call
        for span in self.spans:
            if span.ended is None:
                span.ended, span.is_failed = ended, True
            if is_suspended:
                span.is_failed = False
        hidden = {span for span in self.spans if span.can_hide and span.get_own_ms(self.spans) < MIN_OWN_MS}
        stages = [
            WaterfallStage(
                span.kind,
                span.title,
                span.get_depth(hidden),
                (span.began - self.began) * 1000,
                ((span.ended or ended) - span.began) * 1000,
                span.is_failed,
            )
            for span in self.spans
            if span not in hidden
        ]
        return ServerWaterfall(self.began, make_waterfall((ended - self.began) * 1000, stages, left_out=self.left_out))


class Span:
    """The time of one stage, from `with` to the end of its block. The spans that begin meanwhile are inside it."""

    __slots__ = ("kind", "title", "began", "ended", "is_failed", "_call", "_parent", "_is_minor")

    def __init__(
        self, kind: str, title: str, call: TimedCall, parent: Span | None = None, *, is_minor: bool = False
    ) -> None:
        self.kind, self.title, self._call, self._parent, self._is_minor = kind, title, call, parent, is_minor
        self.began, self.is_failed = perf_counter(), False
        self.ended: float | None = None

    def __enter__(self) -> Span:
        CURRENT.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.ended = perf_counter()
        # Not by a token: a coroutine may be closed in another context.
        CURRENT.set(self._parent)
        if error is not None and error is not self._call.error:
            self._call.error, self.is_failed = error, True

    def open_child(self, kind: str, title: str, is_minor: bool) -> Span | None:
        """A span inside this one, which begins now; None if there is no room for more."""
        call = self._call
        if len(call.spans) >= MAX_SPANS:
            call.left_out += 1
            return None
        span = Span(kind, title, call, self, is_minor=is_minor)
        call.spans.append(span)
        return span

    @property
    def can_hide(self) -> bool:
        """Whether it is only worth a look if it took some time."""
        return self._is_minor and not self.is_failed

    def get_own_ms(self, spans: Sequence[Span]) -> float:
        """Its time without that of the spans inside it."""
        inside = sum((each.ended or each.began) - each.began for each in spans if each._parent is self)
        return ((self.ended or self.began) - self.began - inside) * 1000

    def get_depth(self, hidden: set[Span]) -> int:
        """How many spans are around it, without those that are not shown."""
        depth, around = 0, self._parent
        while around is not None and around._parent is not None:
            depth += around not in hidden
            around = around._parent
        return depth


def open_span(kind: str, title: str, *, is_minor: bool = False) -> Span | None:
    """A span that begins now; None if nothing is measured here."""
    return current.open_child(kind, title, is_minor) if (current := CURRENT.get()) is not None else None


async def await_as_stage(kind: str, title: str, work: Awaitable[Any], *, is_minor: bool = False) -> Any:
    """Await something, as a stage if a call is measured."""
    if (span := open_span(kind, title, is_minor=is_minor)) is None:
        return await work
    with span:
        return await work


# -- The probes. Each gets the timer and the original method, and gives what stands in for that.


def probe_arrival(timer: CallTimer, original: Method) -> Method:
    def feed_bytes(self: Session, data: bytes | None, envelope: object | None = None) -> bool:
        timer.fed = perf_counter()
        timer.arrived = data.arrived if isinstance(data, StampedMessage) else timer.fed
        return original(self, data, envelope)

    return feed_bytes


def probe_start(timer: CallTimer, original: Method) -> Method:
    """The call begins: in the turn of the loop in which its session was fed with it."""

    async def run_measured(timed: TimedCall, work: Coroutine[Any, Any, Any]) -> Any:
        CURRENT.set(timed.root)
        try:
            return await work
        finally:
            timed.worked = perf_counter()
            CURRENT.set(None)

    def start_call(self: AsyncioEngine, call: Call, work: Coroutine[Any, Any, Any]) -> None:
        if call.method == TIMED_METHOD:
            timed = call.local(TimedCall)
            timed.began = timer.arrived
            timed.add_span("wait", "wait: event loop", timer.arrived, timer.fed)
            timed.add_span("check", "reading the request", timer.fed, perf_counter())
            work = run_measured(timed, work)
        original(self, call, work)

    return start_call


def probe_queue_entry(timer: CallTimer, original: Method) -> Method:
    def enqueue_call(self: CallQueue, call: Call) -> QueuedCall:
        place, began = original(self, call), perf_counter()
        if call.method == TIMED_METHOD:
            timed = call.local(TimedCall)

            def end_wait(_: object) -> None:
                timed.add_span("wait", "wait: room in the queue", began, perf_counter())

            place.left.add_done_callback(end_wait)
        return place

    return enqueue_call


def probe_wrapping(timer: CallTimer, original: Method) -> Method:
    """Middleware: what an author or an extension runs around a method."""

    def wrap_handler(self: Composition, wrapper: Wrapper, following: Handler) -> Handler:
        owner = getattr(wrapper, "__self__", None)
        is_ours = isinstance(owner, Extension)
        title = f"middleware {owner.name if is_ours else get_name(wrapper)}"

        async def wrap(call: Call, params: Params, next: Next) -> Any:
            return await await_as_stage("around", title, wrapper(call, params, next), is_minor=is_ours)

        return original(self, wrap, following)

    return wrap_handler


def probe_tool_call(timer: CallTimer, original: Method) -> Method:
    async def call_tool(self: Tools, call: Call, params: Params) -> Any:
        if call.outer is not None:
            return await await_as_stage("function", f"tool {params.get('name')}", original(self, call, params))
        began = perf_counter()
        try:
            return await original(self, call, params)
        except Exception as error:
            if (timed := call.peek(TimedCall)) is not None and timed.error is None:
                timed.error = error
                timed.add_span("check", "finding the tool", began, perf_counter(), is_failed=True)
            raise

    return call_tool


def probe_stages(timer: CallTimer, original: Method) -> Method:
    """What extensions do around the call of a tool: their contexts are entered before, and left after it."""

    def time_context(name: str, make: Callable[..., AbstractAsyncContextManager[Any] | None]) -> Callable[..., Any]:
        def make_timed(*given: Any) -> TimedContext | None:
            context = make(*given)
            return TimedContext(context, name) if context is not None else None

        return make_timed

    def pipeline(self: DispatchTable, item: Any) -> StagePipeline:
        found: StagePipeline = original(self, item)
        if CURRENT.get() is None or not (found.audits or found.holds):
            return found
        timed = StagePipeline(())
        timed.admits, timed.judges, timed.empty = found.admits, found.judges, False
        timed.audits = tuple(time_context("audit", each) for each in found.audits)
        timed.holds = tuple(time_context(get_step_name(each), each) for each in found.holds)
        return timed

    return pipeline


def get_step_name(step: Any) -> str:
    """`hold_state` of the class that has the states is known by what it holds: state."""
    return get_name(step).strip("_").removeprefix("hold_")


class TimedContext:
    """A context whose beginning and end are stages."""

    def __init__(self, context: AbstractAsyncContextManager[Any], name: str) -> None:
        self._context, self._name = context, name

    async def __aenter__(self) -> Any:
        return await await_as_stage("around", f"before: {self._name}", self._context.__aenter__(), is_minor=True)

    async def __aexit__(self, *exception: Any) -> Any:
        return await await_as_stage(
            "around", f"after: {self._name}", self._context.__aexit__(*exception), is_minor=True
        )


def make_step_probe(kind: str, title: str) -> Probe:
    """For a method that returns an awaitable."""

    def probe(timer: CallTimer, original: Method) -> Method:
        async def run(*given: Any) -> Any:
            return await await_as_stage(kind, title, original(*given))

        return run

    return probe


def make_function_probe(kind: str, title: str) -> Probe:
    """For a method that returns a value."""

    def probe(timer: CallTimer, original: Method) -> Method:
        def run(*given: Any) -> Any:
            if (span := open_span(kind, title)) is None:
                return original(*given)
            with span:
                return original(*given)

        return run

    return probe


def probe_function(timer: CallTimer, original: Method) -> Method:
    """The author's function. One with dependencies begins when these are there: see `probe_dependencies`."""

    async def run(self: Function, call: Call, kwargs: dict[str, Any], seconds: float) -> Any:
        work = original(self, call, kwargs, seconds)
        if self.injection is not None and self.injection.dependencies:
            return await work
        return await await_as_stage("function", self.signature.name, work)

    return run


def probe_dependencies(timer: CallTimer, original: Method) -> Method:
    async def resolve(
        self: InjectionPlan, call: Any, stack: AsyncExitStack, kwargs: dict[str, Any], known: dict[Any, Any]
    ) -> None:
        await original(self, call, stack, kwargs, known)
        if (span := open_span("function", getattr(call, "subject_name", None) or "function")) is not None:
            # It ends before the dependencies, whose tear-down is on the stack already.
            stack.enter_context(span)

    return resolve


def probe_dependency(timer: CallTimer, original: Method) -> Method:
    async def resolve_value(
        self: Dependency, call: Any, stack: AsyncExitStack | TimedStack, known: dict[Any, Any]
    ) -> Any:
        if self.use_cache and self.function in known:
            return known[self.function]
        name = get_name(self.function)
        bare = stack.bare if isinstance(stack, TimedStack) else stack
        title = f"set-up: {name}" if "generator" in self.flow else name
        return await await_as_stage("dependency", title, original(self, call, TimedStack(bare, name), known))

    return resolve_value


class TimedStack:
    """The stack of a call, for one dependency: its tear-down becomes a stage."""

    def __init__(self, bare: AsyncExitStack, name: str) -> None:
        self.bare, self._name = bare, name

    def push_async_exit(self, close: Callable[..., Awaitable[Any]]) -> None:
        async def close_timed(*exception: Any) -> Any:
            return await await_as_stage("dependency", f"tear-down: {self._name}", close(*exception))

        self.bare.push_async_exit(close_timed)


def probe_thread(timer: CallTimer, original: Method) -> Method:
    """A worker thread may be free, or not."""

    def in_thread(self: AsyncioEngine, function: Callable[[], Any]) -> Awaitable[Any]:
        if (span := open_span("wait", "wait: thread", is_minor=True)) is None:
            return original(self, function)

        def begin() -> Any:
            span.ended = perf_counter()
            return function()

        return original(self, begin)

    return in_thread


def probe_reply(timer: CallTimer, original: Method) -> Method:
    """The end of a call: `Session.settle` with its result, `Session.fail` with its error."""

    def end_call(self: Session, call: Call, outcome: Any) -> None:
        timed = call.peek(TimedCall) if not (call.settled or call.cancelled) else None
        began = perf_counter()
        if timed is not None and timed.worked:
            timed.add_span("wait", "wait: notifications go first", timed.worked, began)
        original(self, call, outcome)
        if timed is not None:
            timed.add_span("pack", "writing the reply", began, perf_counter())
            with suppress(Exception):  # the call is answered, whatever becomes of its figures
                timer.report(call, timed.finish(call.suspension is not None))

    return end_call


def get_name(function: Any) -> str:
    """The name of an author's function, or of the class of what is called like one."""
    return getattr(function, "__name__", "") or type(function).__name__


PROBES: Final[Sequence[tuple[type, str, Probe]]] = (
    (Session, "feed_bytes", probe_arrival),
    (AsyncioEngine, "start_call", probe_start),
    (CallQueue, "enqueue_call", probe_queue_entry),
    (Composition, "wrap_handler", probe_wrapping),
    (Tools, "call", probe_tool_call),
    (DispatchTable, "pipeline", probe_stages),
    (StagePipeline, "run_admit_steps", make_step_probe("check", "rights")),
    (ArgumentsSchema, "validate", make_function_probe("check", "arguments")),
    (ExplicitArgumentsSchema, "validate", make_function_probe("check", "arguments")),
    (StagePipeline, "run_judge_steps", make_step_probe("check", "guards")),
    (InjectionPlan, "resolve", probe_dependencies),
    (Dependency, "resolve_value", probe_dependency),
    (Function, "run", probe_function),
    (AsyncioEngine, "in_thread", probe_thread),
    (Call, "wait_for_answer", make_step_probe("wait", "wait: answer of the client")),
    (Tool, "result", make_function_probe("pack", "packing the result")),
    (Session, "settle", probe_reply),
    (Session, "fail", probe_reply),
)
