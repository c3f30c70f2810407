"""MCP client features (elicitation, sampling, roots): one form of asking for both eras.

With a handshake the question is a request to the client; without, it is left in an input-required result. A form
may go through another protocol that was negotiated: see `AskerProvider`.

An author's function runs again with the answers (`round_trips`). Work that must not run twice is parked while its
caller is asked: see `ParkedWorkRegistry`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, runtime_checkable

from defserve.core.call import Call, InnerCall
from defserve.core.json_values import as_list, is_array, is_object
from defserve.core.messages import Params
from defserve.errors import Declined, Dismissed, LimitExceeded, NoBackChannel, PeerError, ToolError, UsageError
from defserve.protocols.mcp.asking.client_features import (
    SINGLE_FIELD_NAME,
    ElicitationForm,
    Sample,
    build_sampling_params,
)
from defserve.protocols.mcp.asking.round_trips import METHODS_THAT_MAY_ASK, RoundTrips, digest_question
from defserve.protocols.mcp.lifecycle import Dialect, get_dialect

if TYPE_CHECKING:
    from defserve.protocols.mcp.asking.client_features import SampleOptions
    from defserve.protocols.mgp.callbacks import CallbackSection


T = TypeVar("T")


# What a protocol version must have before a capability means anything in it.
_FEATURES: Mapping[tuple[str, str | None], str] = {
    ("elicitation", None): "elicitation",
    ("elicitation", "url"): "elicitation_url",
    ("sampling", "tools"): "sampling_tools",
}


class Root:
    """A directory or file the client lets the server work in. Advisory: it grants nothing by itself."""

    __slots__ = ("uri", "name")

    def __init__(self, uri: str, name: str | None = None) -> None:
        self.uri, self.name = uri, name

    def __repr__(self) -> str:
        return f"Root({self.uri!r})"


@runtime_checkable
class AskerProvider(Protocol):
    """An extension with its own way to ask. It is preferred to elicitation."""

    def find_asker(self, call: Call) -> CallbackSection | None:
        """A way to ask the person behind this call; None if it was not negotiated, or nobody can be reached."""
        ...


async def ask_form(call: Call, message: str, kind: Any, *, key: str | None = None, strict: bool = False) -> Any:
    """Show a person a form. Raises Declined, Dismissed, or NoBackChannel if nobody can be asked."""
    _require(call, "elicitation")
    form = kind if isinstance(kind, ElicitationForm) else ElicitationForm.from_type(kind)
    if (asker := _asker(call)) is not None:
        content = await call.wait_for_answer(asker.ask_form(call, message, form))
    else:
        dialect = get_dialect(call)
        params: Params = {"message": message, "requestedSchema": form.build_schema(dialect)}
        if "elicitation_url" in dialect.has and not dialect.stateless:
            params = {"mode": "form", **params}
        content = _require_acceptance(await _question(call, "elicitation/create", params, key, strict), message)
    try:
        return form.parse_answer(content)
    except ValueError as error:
        raise ToolError(f"the answer to {message!r} does not fit the question: {_brief(error)}") from None


async def ask_url(call: Call, message: str, url: str, *, key: str | None = None) -> None:
    """Send a person to a page; returns when they agreed to go there, not when they are done."""
    dialect = _require(call, "elicitation", "url")
    if not url.startswith(("https://", "http://")):
        raise UsageError(f"ask_url cannot send a person to {url!r}", fix="give an address that begins with https://")
    params: Params = {"mode": "url", "message": message, "url": url}
    if not dialect.stateless:
        params["elicitationId"] = token_urlsafe(16)
    _require_acceptance(await _question(call, "elicitation/create", params, key), message)


async def ask_choice(
    call: Call, message: str, options: Sequence[str] | Mapping[str, str], *, key: str | None = None
) -> str:
    """Let a person pick one of `options`; a mapping gives each value a label."""
    if isinstance(options, Mapping):
        field: Params = {"type": "string", "oneOf": [{"const": v, "title": label} for v, label in options.items()]}
    else:
        field = {"type": "string", "enum": list(options)}
    picked = await ask_form(call, message, ElicitationForm.from_single_field(field), key=key)
    if picked not in options:
        raise ToolError(f"the answer to {message!r} is none of {', '.join(map(str, options))}")
    return picked


async def ask_confirmation(call: Call, message: str, *, key: str | None = None) -> bool:
    """Yes or no. Only an answer with proof that the question was asked counts.

    Raises NoBackChannel for a stranger: its yes would count for nothing, so it is not asked.
    """
    _require(call, "elicitation")
    if _is_strangers(call):
        from defserve.auth.authority import AUTHENTICATION_HINT

        raise NoBackChannel(f"this caller is not authenticated, so it cannot confirm anything: {AUTHENTICATION_HINT}")
    try:
        form = ElicitationForm.from_single_field({"type": "boolean", "title": "Confirm"})
        return await ask_form(call, message, form, key=key, strict=True) is True
    except (Declined, Dismissed):
        return False


async def request_sampling(call: Call, options: SampleOptions, *, key: str | None = None) -> Sample:
    """Let the client's model write something."""
    dialect = _require(call, "sampling", "tools" if options.tools or options.tool_choice else None)
    params = build_sampling_params(options, dialect, _find_capability(call, "sampling") or {})
    return Sample(await _question(call, "sampling/createMessage", params, key))


async def request_roots(call: Call, *, key: str | None = None) -> list[Root]:
    """What the client lets the server work in."""
    _require(call, "roots")
    answer = await _question(call, "roots/list", {}, key)
    return [Root(root["uri"], root.get("name")) for root in answer["roots"]]


async def gather_answers(questions: Sequence[Awaitable[Any]]) -> list[Any]:
    """Several questions in one round; the answers in the same order. When one fails the others are cancelled."""
    asked = [asyncio.ensure_future(question) for question in questions]
    try:
        return list(await asyncio.gather(*asked))
    except Exception:
        for question in asked:
            question.cancel()
        await asyncio.wait(asked)
        raise


async def run_once_per_call(call: Call, key: str, effect: Callable[[], Any]) -> Any:
    """Run `effect` once in all rounds of this call and remember what it gave (a JSON value)."""
    is_parked = call is not call.root and find_parked_work(call) is not None
    owner = call if is_parked else call.root  # a parked call runs once itself
    return await owner.local(RoundTrips).run_once(call, key, effect)


def can_ask_client(call: Call, capability: str, detail: str | None = None) -> bool:
    """Whether this call may ask the client for a capability."""
    return _obstacle(call, capability, detail) is None


def can_ask_confirmation(call: Call) -> bool:
    """Whether this call may ask for a yes that counts."""
    return not _is_strangers(call) and can_ask_client(call, "elicitation")


# -- ways to ask -----------------------------------------------------------------------------------------
def _asker(call: Call) -> CallbackSection | None:
    askers = (e.find_asker(call) for e in call.session.composition.extensions if isinstance(e, AskerProvider))
    return next((asker for asker in askers if asker is not None), None)


async def _question(call: Call, method: str, params: Params, key: str | None, strict: bool = False) -> Any:
    acceptable = ANSWER_CHECKS[method]
    if not get_dialect(call).stateless:
        answer = await call.request(method, params, timeout=call.session.composition.limits.question)
        if not acceptable(answer):
            raise PeerError(f"the client's answer to {method} has the wrong shape")
        return answer
    if call.outer is not None and (work := find_parked_work(call)) is not None:
        return await ask_caller_of_parked_work(call, work, method, params, acceptable, key)
    rounds = call.root.local(RoundTrips)
    name, digest = rounds.make_question_key_and_digest(key, method, params)
    if (answer := rounds.find_answer(name, digest, acceptable, strict)) is None:
        answer = await rounds.ask_client(call, name, digest, {"method": method, "params": params})
    return answer


def _is_strangers(call: Call) -> bool:
    from defserve.auth.authority import is_stranger
    from defserve.protocols.mcp.authorization import identify_caller

    return is_stranger(identify_caller(call))


def _require(call: Call, capability: str, detail: str | None = None) -> Dialect:
    if (obstacle := _obstacle(call, capability, detail)) is not None:
        raise obstacle
    return get_dialect(call)


def _obstacle(call: Call, capability: str, detail: str | None) -> NoBackChannel | None:
    if (capability, detail) == ("elicitation", None) and _asker(call) is not None:
        return None
    if get_dialect(call).stateless and call.method not in METHODS_THAT_MAY_ASK:
        return NoBackChannel(f"{call.method} cannot ask the client: only {', '.join(sorted(METHODS_THAT_MAY_ASK))} can")
    if (missing := _missing(call, capability, detail)) is None:
        return None
    what = f"{capability} ({detail})" if detail else capability
    return NoBackChannel(f"this needs a client that offers {what}, and this one does not", needs=missing)


def _missing(call: Call, capability: str, detail: str | None) -> Params | None:
    settings = _find_capability(call, capability)
    feature = _FEATURES.get((capability, detail))
    if settings is None or (feature is not None and feature not in get_dialect(call).has):
        return {capability: {detail: {}} if detail else {}}
    if detail is not None:
        return None if detail in settings else {capability: {detail: {}}}
    # An empty elicitation capability means forms; one that names only URLs does not.
    if capability == "elicitation" and settings and "form" not in settings and "url" in settings:
        return {"elicitation": {"form": {}}}
    return None


def _find_capability(call: Call, capability: str) -> Params | None:
    offer = call.terms.offer
    settings: Any = offer.capabilities.get(capability) if offer is not None else None
    return settings if is_object(settings) else None


# -- answers ---------------------------------------------------------------------------------------------
def _require_acceptance(answer: Params, message: str) -> Params:
    action = answer["action"]
    if action == "decline":
        raise Declined(f"the user declined: {message}")
    if action == "cancel":
        raise Dismissed(f"the user dismissed the question: {message}")
    return answer.get("content") or {}


def _is_form_answer(answer: Any) -> bool:
    known = is_object(answer) and answer.get("action") in ("accept", "decline", "cancel")
    return known and isinstance(answer.get("content"), dict | None)


def _is_sample(answer: Any) -> bool:
    if not (is_object(answer) and "role" in answer and isinstance(answer.get("content"), dict | list)):
        return False
    named = all(isinstance(answer.get(name), str | None) for name in ("model", "stopReason"))
    return named and all(map(_is_content_block, as_list(answer["content"])))


def _is_content_block(block: Any) -> bool:
    return (
        is_object(block)
        and isinstance(block.get("type"), str)
        and (block["type"] != "text" or isinstance(block.get("text"), str))
    )


def _is_roots(answer: Any) -> bool:
    found = answer.get("roots") if is_object(answer) else None
    return is_array(found) and all(map(_is_root, found))


def _is_root(root: Any) -> bool:
    return is_object(root) and isinstance(root.get("uri"), str) and isinstance(root.get("name"), str | None)


ANSWER_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "elicitation/create": _is_form_answer,
    "sampling/createMessage": _is_sample,
    "roots/list": _is_roots,
}
"""Method of a question → whether a JSON value has the form of an answer to it."""


def _brief(error: ValueError) -> str:
    if (problems := getattr(error, "errors", None)) is None:
        return str(error)
    return "; ".join(f"{'.'.join(map(str, p['loc'])) or SINGLE_FIELD_NAME}: {p['msg']}" for p in problems())


# -- Work that must not run twice, parked while its caller is asked (2026-07-28: multi round-trip requests).
#
# An author's function runs again with the answers. Work that cannot (a call of another server, a program of a model) is
# kept in this process instead. The reply holds the questions and a sealed handle. The repeated request finds the work
# by its handle and goes on with it. Work that is gone is an error: it is never begun again.


MAX_PARKED, MAX_PARKED_OF_ONE, MAX_PARKED_BYTES = 64, 8, 64 * 1024 * 1024
PARKED_SECONDS = 600.0

# Of what was done so far, in the sealed handle.
MAX_NOTE_LENGTH = 1_000


class ParkedWorkLost(ToolError):
    """The work that an answer belongs to is gone."""

    error_type = "parked_work_lost"

    def __init__(self, note: str) -> None:
        super().__init__(
            "What this answer belongs to is gone: the server was restarted, another process got the answer, or it came "
            f"too late. Nothing was done again. {note}".strip()
        )


class OpenQuestion:
    """A question that waits for its answer."""

    __slots__ = ("digest", "request", "acceptable", "answer")

    def __init__(self, request: Params, acceptable: Callable[[Any], bool]) -> None:
        self.digest = digest_question(request["method"], request["params"])
        self.request, self.acceptable = request, acceptable
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()


class ParkedWork:
    """Work that may outlive the request that began it. `call` is the request that waits for it, or waited last.

    `note` says what was done so far, for the caller whose work is lost. `prepare` is awaited before the work is parked;
    it gives the bytes that are kept. `attached` is called with the request that waits for it now.
    """

    def __init__(self, call: Call, outer: ParkedWork | None = None) -> None:
        self.call, self.id, self._outer = call, token_urlsafe(16), outer
        self.note: Callable[[], str] = str
        self.prepare: Callable[[], Awaitable[int]] | None = None
        self.attached: Callable[[Call], object] = bool
        self.size = 0
        self.open: dict[str, OpenQuestion] = {}
        self.task: asyncio.Task[Any] | None = None
        self._asked = 0
        self._news, self.has_caller = asyncio.Event(), asyncio.Event()
        self.has_caller.set()

    async def ask_caller(
        self, method: str, params: Params, acceptable: Callable[[Any], bool], *, key: str | None = None
    ) -> Any:
        """Put a question to the caller, and wait for its answer. The caller may be another request by then."""
        if self._outer is not None:  # it is a part of work that is parked as a whole
            return await ask_caller_of_parked_work(self.call, self._outer, method, params, acceptable, key)
        self._asked += 1
        name = key if key and key not in self.open else f"{key or method.partition('/')[0]}-{self._asked}"
        self.open[name] = question = OpenQuestion({"method": method, "params": params}, acceptable)
        self._news.set()
        try:
            return await question.answer
        finally:
            self.open.pop(name, None)

    async def wait_for_caller(self) -> Call:
        """The request that waits for the work. While it is parked, wait for the next one."""
        await self.has_caller.wait()
        return self.call

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        self.task = asyncio.create_task(work)
        self.task.add_done_callback(lambda _: self._news.set())

    async def wait_until_done_or_asking(self) -> bool:
        """Wait until it is done, which gives True, or until it asks."""
        assert self.task is not None
        while not (self.task.done() or self.open):
            self._news.clear()
            await self._news.wait()
        if not self.task.done():
            await asyncio.sleep(0)  # what is asked at once travels together
        return self.task.done()

    def resume_with_answers(self, call: Call, rounds: RoundTrips) -> None:
        """Go on with the answers that a request brings."""
        self.call = call
        self.attached(call)
        self.has_caller.set()
        for name, question in list(self.open.items()):
            answer = rounds.find_answer(name, question.digest, question.acceptable, strict=True)
            if answer is not None and not question.answer.done():
                del self.open[name]
                question.answer.set_result(answer)

    def fail_open_questions(self, error: Exception) -> None:
        """Fail every open question."""
        for question in list(self.open.values()):
            if not question.answer.done():
                question.answer.set_exception(error)
        self.open.clear()

    async def stop(self) -> None:
        """Cancel the work, and wait until it has ended."""
        if self.task is not None and not self.task.done():
            self.task.cancel()
            await asyncio.wait([self.task])


class ParkedWorkRegistry:
    """The parked work of one server: bounded in number, for each principal, in bytes, and in time."""

    def __init__(
        self,
        *,
        most: int = MAX_PARKED,
        of_one: int = MAX_PARKED_OF_ONE,
        most_bytes: int = MAX_PARKED_BYTES,
        seconds: float = PARKED_SECONDS,
    ) -> None:
        self._most, self._of_one, self._most_bytes, self._seconds = most, of_one, most_bytes, seconds
        self._parked: dict[str, tuple[ParkedWork, asyncio.TimerHandle]] = {}

    def __len__(self) -> int:
        return len(self._parked)

    async def run_or_resume(self, call: Call, begin: Callable[[ParkedWork], Coroutine[Any, Any, T]]) -> T:
        """Begin work, or go on with the work that this request answers. Returns or raises as the work does.

        Raises ParkedWorkLost. A request that is cancelled, or runs out of time, ends its work.
        """
        rounds = call.root.local(RoundTrips)
        outer = find_parked_work(call)
        if outer is not None or rounds.parked is None:
            work = ParkedWork(call, outer)
            work.start(begin(work))
        else:
            work = self._pop_work(rounds.parked)
            work.resume_with_answers(call, rounds)
        is_parked = False
        try:
            while not await work.wait_until_done_or_asking():
                try:
                    await self._park(work)
                except LimitExceeded as full:
                    work.fail_open_questions(full)
                    continue
                is_parked = True
                questions = {name: (question.digest, question.request) for name, question in work.open.items()}
                rounds.reply_with_parked_questions(
                    call, {"id": work.id, "note": work.note()[:MAX_NOTE_LENGTH]}, questions
                )
                await call.engine.create_future()
            assert work.task is not None
            return work.task.result()
        finally:
            if not is_parked:
                await work.stop()

    async def close(self) -> None:
        """End everything that is parked."""
        parked, self._parked = self._parked, {}
        for work, timer in parked.values():
            timer.cancel()
            await work.stop()

    async def _park(self, work: ParkedWork) -> None:
        """Keep work until it is asked for, or its time is over. Raises LimitExceeded."""
        work.size = await work.prepare() if work.prepare is not None else 0
        owner, works = work.call.principal, [one for one, _ in self._parked.values()]
        if len(works) >= self._most or sum(one.call.principal == owner for one in works) >= self._of_one:
            raise LimitExceeded("too many calls wait for an answer", data={"limit": "parked"})
        if sum(one.size for one in works) + work.size > self._most_bytes:
            raise LimitExceeded("calls that wait for an answer take too much memory", data={"limit": "parked_bytes"})
        work.has_caller.clear()
        timer = asyncio.get_running_loop().call_later(self._seconds, self._expire, work.id)
        self._parked[work.id] = work, timer

    def _pop_work(self, handle: Params) -> ParkedWork:
        work, timer = self._parked.pop(handle["id"], (None, None))
        if timer is not None:
            timer.cancel()
        if work is None or work.task is None or work.task.get_loop() is not asyncio.get_running_loop():
            raise ParkedWorkLost(handle["note"])
        return work

    def _expire(self, id: str) -> None:
        work, _ = self._parked.pop(id, (None, None))
        if work is not None and work.task is not None:
            work.task.cancel()


class ParkedWorkMarker:
    """Says of a call that its questions park the work it belongs to."""

    work: ParkedWork | None = None


def find_parked_work(call: Call) -> ParkedWork | None:
    """The work that a question of this call would park; None if it suspends the call, or can be asked in place."""
    if not get_dialect(call).stateless:
        return None
    inner: Call | None = call
    while inner is not None:
        if (found := inner.peek(ParkedWorkMarker)) is not None:
            return found.work
        inner = inner.outer
    return None


async def ask_caller_of_parked_work(
    call: Call, work: ParkedWork, method: str, params: Params, acceptable: Callable[[Any], bool], key: str | None
) -> Any:
    """Ask for a call that belongs to parked work. Its time stands still meanwhile."""
    asking = work.ask_caller(method, params, acceptable, key=key)
    return await (call.wait_with_paused_timeout(asking) if isinstance(call, InnerCall) else asking)


# -- What other frameworks call the verbs of `Context`, and what to write here. Read only when a name does not exist.
#
# Whoever comes from FastMCP or the official SDK meets these errors first. The whole table is in docs/migration.md.


_KEEP: Final = "Depends(…) for one call, or a parameter State[Model] for what is kept"

CONTEXT_ATTRIBUTE_HINTS: Final = {
    **{level: f'ctx.log.{level}("…", key=value), without await' for level in ("debug", "info", "warning", "error")},
    "report_progress": "ctx.progress(1, 3), without await; or for item in ctx.track(items)",
    "elicit": 'await ctx.ask("Who?", Guest); for one of several, await ctx.choose("Which?", ["a", "b"])',
    "elicit_url": "await ctx.ask_url(message, url)",
    "list_roots": "await ctx.roots()",
    "create_message": 'await ctx.sample("…")',
    "lifespan_context": "ctx.lifespan",
    "request_context": "ctx.lifespan for the lifespan, ctx.session for the conversation, ctx.call for the call",
    "set_state": _KEEP,
    "get_state": _KEEP,
    "delete_state": _KEEP,
    "request_id": "ctx.trace_id, the id of this call in logs and errors",
    "session_id": "ctx.session, the conversation; ctx.principal is who is calling",
    "client_id": "ctx.principal",
    "access_token": "ctx.principal",
    "fastmcp": "the server object itself",
    "get_http_request": "ctx.principal for who is calling; a call does not depend on how it came",
    "send_notification": "ctx.log for messages, ctx.progress for progress; changed lists are announced by themselves",
    **{
        f"send_{kind}_list_changed": "nothing: a changed list is announced by itself"
        for kind in ("tool", "resource", "prompt")
    },
}
"""An attribute of their `Context` → what to write."""

LOG_METHOD_HINTS: Final = {
    "warn": 'ctx.log.warning("…", key=value)',
    "fatal": 'ctx.log.critical("…", key=value)',
    "exception": 'ctx.log.error("…", key=value)',
    "log": 'ctx.log.info("…", key=value), without await',
    "setLevel": "nothing: clients choose the level themselves",
}
"""An attribute of the loggers that people know → what to write."""
