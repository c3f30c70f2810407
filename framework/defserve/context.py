"""What an author's function can say and ask while it runs: typed verbs that delegate to the protocols."""

from __future__ import annotations

from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from defserve.binding.results import EmittedPart
from defserve.core.call import Call
from defserve.errors import UsageError
from defserve.protocols.mcp import asking, reporting
from defserve.protocols.mcp.asking import returns_pending_verb
from defserve.protocols.mcp.errors import get_trace_id
from defserve.protocols.mcp.function import EmittedParts

if TYPE_CHECKING:
    from defserve.core.session import Session
    from defserve.guard.http_client import GuardedClient
    from defserve.protocols.mcp.asking.client_features import Message, Sample, SampleOptions
    from defserve.protocols.mcp.asking.client_requests import Root
    from defserve.protocols.mcp.tasks.run import RunningTask
    from defserve.protocols.mcpl.content import ModelInfo
    from defserve.protocols.mcpl.scopes import Scope
    from defserve.protocols.mgp.extension import MGP

T = TypeVar("T")
P = ParamSpec("P")

# Feature names of `can`, as the capability (and its detail) a client has to offer.
FEATURES: Mapping[str, tuple[str, str | None]] = {
    "ask": ("elicitation", None),
    "ask_url": ("elicitation", "url"),
    "choose": ("elicitation", None),
    "sample": ("sampling", None),
    "roots": ("roots", None),
}

# Feature names of `can` that need a live host (MCPL).
LIVE_FEATURES = ("push", "infer", "model_info", "channels")


class Log:
    """`ctx.log.info("fetched", url=url)`: a message to the client, if it wants that level. From any thread.

    `args` fill the `%s` of a message, as in `logging`.
    """

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call = call

    def debug(self, message: str, /, *args: Any, **fields: Any) -> None:
        """Details for debugging."""
        reporting.send_log_message(self._call, "debug", message, fields, args)

    def info(self, message: str, /, *args: Any, **fields: Any) -> None:
        """Something happened, as expected."""
        reporting.send_log_message(self._call, "info", message, fields, args)

    def notice(self, message: str, /, *args: Any, **fields: Any) -> None:
        """Something happened that is worth a look."""
        reporting.send_log_message(self._call, "notice", message, fields, args)

    def warning(self, message: str, /, *args: Any, **fields: Any) -> None:
        """Something may lead to a failure."""
        reporting.send_log_message(self._call, "warning", message, fields, args)

    def error(self, message: str, /, *args: Any, **fields: Any) -> None:
        """Something failed."""
        reporting.send_log_message(self._call, "error", message, fields, args)

    def critical(self, message: str, /, *args: Any, **fields: Any) -> None:
        """A part of the server no longer works."""
        reporting.send_log_message(self._call, "critical", message, fields, args)

    def alert(self, message: str, /, *args: Any, **fields: Any) -> None:
        """Somebody has to act at once."""
        reporting.send_log_message(self._call, "alert", message, fields, args)

    def emergency(self, message: str, /, *args: Any, **fields: Any) -> None:
        """Nothing works."""
        reporting.send_log_message(self._call, "emergency", message, fields, args)

    if not TYPE_CHECKING:  # checkers complain of what does not exist

        def __getattr__(self, name):
            from defserve.errors import make_attribute_error
            from defserve.protocols.mcp.asking.client_requests import LOG_METHOD_HINTS

            raise make_attribute_error("ctx.log", name, LOG_METHOD_HINTS, dir(type(self)))

        def __call__(self, *_, **__):
            from defserve.protocols.mcp.asking.client_requests import LOG_METHOD_HINTS

            raise UsageError(
                "ctx.log is not called itself: it has a method for each level", fix=LOG_METHOD_HINTS["log"]
            )


class Context:
    """Injected into a parameter annotated `Context`; it is not part of the schema.

    `progress`, `track`, `log` and `emit` are synchronous, usable from any thread, and arrive before the result.
    Questions to the peer are awaited; in a thread use `ctx.wait(ctx.ask(…))`.

    Without a session, a function that asks is run again when the answers are there. So code before an ask runs again:
    put effects after the last ask, or in `ctx.once`.
    """

    __slots__ = ("call",)

    def __init__(self, call: Call) -> None:
        self.call = call

    # -- telling -----------------------------------------------------------------------------------------

    @property
    def log(self) -> Log:
        """Messages for the client, by level."""
        return Log(self.call)

    def progress(self, value: float, total: float | None = None, message: str | None = None) -> None:
        """Report how far this call has come. Each value must be larger than the one before."""
        reporting.send_progress(self.call, value, total, message)

    @overload
    def track(self, items: AsyncIterable[T], total: float | None = None) -> AsyncIterator[T]: ...
    @overload
    def track(self, items: Iterable[T], total: float | None = None) -> Iterable[T]: ...
    def track(self, items: Any, total: float | None = None) -> Any:
        """Iterate, and report progress after each item. The total is `len(items)`, if the items have a length."""
        if total is None and hasattr(items, "__len__"):
            total = len(items)
        return self._track_async(items, total) if hasattr(items, "__aiter__") else self._track(items, total)

    def _track(self, items: Iterable[T], total: float | None) -> Iterable[T]:
        for count, item in enumerate(items, 1):
            yield item
            self.progress(count, total)

    async def _track_async(self, items: AsyncIterable[T], total: float | None) -> AsyncIterator[T]:
        count = 0
        async for item in items:
            yield item
            count += 1
            self.progress(count, total)

    def emit(self, part: Any) -> None:
        """Add a part (text, image, …) to the result now. The function's return value comes after it.

        A peer that asked for a stream gets the part at once. A worker thread waits here for a slow reader. Code on the
        event loop cannot wait, so its parts are buffered, up to `Limits.response` bytes. Raises LimitExceeded when the
        result would be too large.
        """
        self.call.local(EmittedParts).add(self.call, EmittedPart(part))

    @returns_pending_verb
    async def emit_event(
        self, event: Callable[..., Any] | str, payload: Any, /, *, event_id: str | None = None, **arguments: Any
    ) -> str:
        """Tell subscribers what happened; see `Server.emit_event`. In a thread: `ctx.wait(ctx.emit_event(…))`."""
        from defserve.protocols.mcp.events.extension import Events

        found = next((e for e in self.call.session.composition.extensions if isinstance(e, Events)), None)
        if found is None:
            raise UsageError(
                "this server has no events: they are a draft, and have to be switched on",
                fix='write Server(…, experimental=["events"])',
            )
        return await found.emit(event, payload, arguments, event_id)

    def audit(self, event_type: str, /, **details: Any) -> None:
        """Put an event of your own on the audit trail: `ctx.audit("com.example.refund", amount=12)`. From any thread.

        Raises ValueError for a type that is not standard and not in reverse-domain notation.
        """
        self._mgp.audit.report_call_event(self.call, event_type, tool=self.call.subject_name, details=details)

    def drop_connection(self) -> None:
        """End the HTTP response of this call, so that its client polls for the rest. From any thread.

        Does nothing where a client cannot come back: outside a session over HTTP, and before version 2025-11-25.
        """
        self.call.hang_up()

    # -- fetching ----------------------------------------------------------------------------------------

    @property
    def http(self) -> GuardedClient:
        """An HTTP client for the public internet. It checks every address before it connects.

        `await ctx.http.get(url, token_for="billing")` sends a token of the caller for that target along; see
        `token_for`. It goes only to the URLs that the target declares, and no redirect is followed.
        """
        return self._mgp.http.with_tokens(self._find_token_for_url)

    @returns_pending_verb
    async def token_for(self, target: str, scopes: Sequence[str] | str = ()) -> str:
        """A token for another API in the name of the caller: `await ctx.token_for("billing", scopes=["read"])`.

        `target` is one of `Auth(targets=…)`. Raises ToolError if there is no token to be had, and StepUpRequired if the
        caller has to sign in again for it. Send it to that API and nowhere else.
        """
        from defserve.protocols.mcp.authorization import exchange_caller_token

        return await exchange_caller_token(self.call, target, scopes)

    async def _find_token_for_url(self, target: str, url: str) -> str:
        from defserve.protocols.mcp.authorization import exchange_caller_token, find_token_exchange_auth

        auth = find_token_exchange_auth(self.call)
        if auth is not None and auth.exchanges is not None and not auth.exchanges.find_target(target).may_send_to(url):
            raise UsageError(
                f"a token for {target!r} may not be sent to this URL",
                fix='declare where its API is: OnBehalfOf(…, urls=["https://api.example.com/"])',
            )
        return await exchange_caller_token(self.call, target)

    # -- asking ------------------------------------------------------------------------------------------

    @returns_pending_verb
    async def ask(self, message: str, kind: type[T], *, key: str | None = None) -> T:
        """Show a person a form made from a flat model, dataclass, TypedDict or primitive type; returns the value.

        Raises Declined or Dismissed (if you do not catch them, the model reads them), ToolError for an answer that
        does not fit, and NoBackChannel. Questions with the same text that are asked together need a `key` each.
        """
        return await asking.ask_form(self.call, message, kind, key=key)

    @returns_pending_verb
    async def ask_url(self, message: str, url: str, *, key: str | None = None) -> None:
        """Send a person to a web page; returns when they have agreed to open it."""
        await asking.ask_url(self.call, message, url, key=key)

    @returns_pending_verb
    async def confirm(self, message: str, *, key: str | None = None) -> bool:
        """Ask yes or no. The answer is False if the person declines or closes the question."""
        return await asking.ask_confirmation(self.call, message, key=key)

    @returns_pending_verb
    async def choose(self, message: str, options: Sequence[str] | Mapping[str, str], *, key: str | None = None) -> str:
        """Let a person pick one option; a mapping gives each value a label."""
        return await asking.ask_choice(self.call, message, options, key=key)

    @returns_pending_verb
    async def sample(
        self,
        messages: str | Sequence[Message | str | Mapping[str, Any]] | SampleOptions,
        *,
        max_tokens: int = 1024,
        system: str | None = None,
        temperature: float | None = None,
        key: str | None = None,
    ) -> Sample:
        """Let the client's model write; `SampleOptions` holds every other setting."""
        from defserve.protocols.mcp.asking.client_features import make_sample_options

        return await asking.request_sampling(
            self.call, make_sample_options(messages, max_tokens, system, temperature), key=key
        )

    @returns_pending_verb
    async def roots(self, *, key: str | None = None) -> list[Root]:
        """The places the client lets the server work in."""
        return await asking.request_roots(self.call, key=key)

    @returns_pending_verb
    async def gather(self, *questions: Awaitable[Any]) -> list[Any]:
        """Several questions in one round: `name, age = await ctx.gather(ctx.ask(…), ctx.ask(…))`."""
        return await asking.gather_answers(questions)

    @returns_pending_verb
    async def once(self, key: str, effect: Callable[[], T | Awaitable[T]]) -> T:
        """Run an effect once, even if this function runs several times for one call. Its value is kept as JSON."""
        return await asking.run_once_per_call(self.call, key, effect)

    @returns_pending_verb
    async def model_info(self, timeout: float = 5.0) -> ModelInfo:
        """The model behind an MCPL host.

        Raises NoBackChannel if the host cannot be asked, and PeerTimeout if it does not answer.
        """
        from defserve.protocols.mcpl.inference import request_model_info

        return await request_model_info(self.call, timeout)

    @returns_pending_verb
    async def chat(self, text: str, to: str | Sequence[str] | None = None, *, format: str = "plain") -> None:
        """Say something in the topic this call came from, to everyone or to some (MCPx).

        Raises NoBackChannel for a call that came from no topic. Check `can("chat")` first.
        """
        from defserve.protocols.mcpx import extension

        extension.send_chat_message(self.call, text, to, format)

    def wait(self, question: Coroutine[Any, Any, T]) -> T:
        """Wait for an awaitable of this context from a worker thread: `ctx.wait(ctx.ask(…))`."""
        return self.call.engine.wait_from_thread(self.call, question)

    @returns_pending_verb
    async def read_resource(self, uri: str) -> list[dict[str, Any]]:
        """The contents of one of this server's own resources, as the peer of this call would read them."""
        from defserve.protocols.mcp.extension import MCP

        return await self._extension(MCP).resources.read_contents_for_call(self.call, uri)

    @property
    def _mgp(self) -> MGP:
        from defserve.protocols.mgp.extension import MGP

        return self._extension(MGP)

    def _extension(self, kind: type[T]) -> T:
        return next(e for e in self.call.session.composition.extensions if isinstance(e, kind))

    # -- knowing -----------------------------------------------------------------------------------------

    if not TYPE_CHECKING:  # a type checker would take every name for an attribute

        def __getattr__(self, name):
            """Only for what does not exist: names of other frameworks are met with ours."""
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)  # a property failed; this raises its error again
            from defserve.errors import make_attribute_error
            from defserve.protocols.mcp.asking.client_requests import CONTEXT_ATTRIBUTE_HINTS

            raise make_attribute_error("Context", name, CONTEXT_ATTRIBUTE_HINTS, dir(type(self)))

    def can(self, feature: str) -> bool:
        """Whether this peer can be asked for `feature`: one of ask, ask_url, confirm, choose, sample, roots.

        `stream`: emitted and yielded parts are sent at once. `events`: the peer can be sent events.
        `push`, `infer`, `request_model_info`: an enabled feature set of this server may do this here.
        `channels`: messages of its channels can be delivered. `chat`: the call came from a topic to talk in.
        """
        call = self.call
        if feature in LIVE_FEATURES:
            return self._can_live(feature)
        if feature == "stream":
            emitted = call.peek(EmittedParts)
            return emitted is not None and emitted.sink is not None
        if feature == "confirm":
            return asking.can_ask_confirmation(call)
        if feature == "events":
            return self._mgp.can_receive_mgp_events(call)
        if feature == "chat":
            from defserve.protocols.mcpx.extension import can_chat

            return can_chat(call)
        return feature in FEATURES and asking.can_ask_client(call, *FEATURES[feature])

    def _can_live(self, feature: str) -> bool:
        if not any(extension.name == "mcpl" for extension in self.call.session.composition.extensions):
            return False
        from defserve.protocols.mcpl.extension import MCPL

        return self._extension(MCPL).can_use(self.call, feature)

    @property
    def cancelled(self) -> bool:
        """True when nobody waits for the result any more. Long synchronous code should check it and return."""
        return self.call.stopped

    @property
    def principal(self) -> str:
        """Who is calling; `local` for a process of the same user."""
        return self.call.principal

    @property
    def claims(self) -> Mapping[str, Any]:
        """What the caller's token says of it: `ctx.claims.get("email")`. Empty for keys, pipes and unknown callers.

        Claims are not remembered: a task that another process goes on with has none.
        """
        from defserve.protocols.mcp.authorization import identify_caller

        return identify_caller(self.call).claims

    @property
    def trace_id(self) -> str:
        """The id this call is known by in logs and errors."""
        return get_trace_id(self.call)

    @property
    def session(self) -> Session:
        """The conversation this call belongs to."""
        return self.call.session

    @property
    def scope(self) -> Scope | None:
        """The scope this call was granted; None for a tool without scopes (MCPL)."""
        from defserve.protocols.mcpl.scopes import GrantedScope

        granted = self.call.peek(GrantedScope)
        return granted.scope if granted is not None else None

    @property
    def task(self) -> RunningTask | None:
        """The task that this call runs as; None in a plain call, also of a tool that may run as one."""
        from defserve.protocols.mcp.tasks.run import get_current_task

        return get_current_task(self.call)

    @property
    def lifespan(self) -> Any:
        """What the lifespan of the server that declared this function yielded."""
        owner = getattr(self.call.subject, "owner", None)
        return owner.lifespan_value if owner is not None else None
