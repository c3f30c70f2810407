"""MCP client features (elicitation, sampling, roots): one form of asking for both eras.

With a handshake the question is a request to the client; without, it is left in an input-required result. A form
may go through another protocol that was negotiated: see `Asker`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from defserve.core.call import Call
from defserve.errors import Declined, Dismissed, NoBackChannel, PeerError, ToolError, UsageError
from defserve.protocols.mcp.asking.elicitation import VALUE, Form
from defserve.protocols.mcp.asking.round_trips import METHODS, RoundTrips
from defserve.protocols.mcp.asking.sampling import Sample, sampling_params
from defserve.protocols.mcp.lifecycle import Dialect, dialect_of
from defserve.wire.jsonvalue import is_array, is_object
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.protocols.mcp.asking.sampling import SampleOptions

T = TypeVar("T")

Acceptable = Callable[[Any], bool]

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


class Asker(Protocol):
    """A way to have a person fill in a form, other than elicitation."""

    async def form(self, call: Call, message: str, form: Form) -> Params:
        """The fields that were filled in, and None for those left blank. The call's own timeout is paused meanwhile.

        Raises Declined, Dismissed, TimedOut, PeerGone.
        """
        ...


@runtime_checkable
class BringsAsker(Protocol):
    """An extension with its own way to ask. It is preferred to elicitation."""

    def asker(self, call: Call) -> Asker | None:
        """A way to ask the person behind this call; None if it was not negotiated, or nobody can be reached."""
        ...


async def ask(call: Call, message: str, kind: Any, *, key: str | None = None, strict: bool = False) -> Any:
    """Show a person a form. Raises Declined, Dismissed, or NoBackChannel if nobody can be asked."""
    _require(call, "elicitation")
    form = kind if isinstance(kind, Form) else Form.of(kind)
    if (asker := _asker(call)) is not None:
        content = await call.asked(asker.form(call, message, form))
    else:
        content = await _elicited(call, message, form, key, strict)
    try:
        return form.parse(content)
    except ValueError as error:
        raise ToolError(f"the answer to {message!r} does not fit the question: {_brief(error)}") from None


async def ask_url(call: Call, message: str, url: str, *, key: str | None = None) -> None:
    """Send a person to a page; returns when they agreed to go there, not when they are done."""
    dialect = _require(call, "elicitation", "url")
    if not url.startswith(("https://", "http://")):
        raise UsageError(f"ask_url cannot send a person to {url!r}", fix="give an address that begins with https://")
    params: Params = {"mode": "url", "message": message, "url": url}
    if not dialect.stateless:
        import secrets

        params["elicitationId"] = secrets.token_urlsafe(16)
    _accepted(await _question(call, "elicitation/create", params, key, _is_form_answer, strict=False), message)


async def choose(
    call: Call, message: str, options: Sequence[str] | Mapping[str, str], *, key: str | None = None
) -> str:
    """Let a person pick one of `options`; a mapping gives each value a label."""
    if isinstance(options, Mapping):
        field: Params = {"type": "string", "oneOf": [{"const": v, "title": label} for v, label in options.items()]}
    else:
        field = {"type": "string", "enum": list(options)}
    picked = await ask(call, message, Form.of_one(field), key=key)
    if picked not in options:
        raise ToolError(f"the answer to {message!r} is none of {', '.join(map(str, options))}")
    return picked


async def confirm(call: Call, message: str, *, key: str | None = None) -> bool:
    """Yes or no. Only an answer with proof that the question was asked counts.

    Raises NoBackChannel for a stranger: its yes would count for nothing, so it is not asked.
    """
    _require(call, "elicitation")
    if _is_strangers(call):
        from defserve.auth.authority import REMEDY

        raise NoBackChannel(f"nobody vouches for this caller, so it cannot confirm anything: {REMEDY}")
    try:
        form = Form.of_one({"type": "boolean", "title": "Confirm"})
        return await ask(call, message, form, key=key, strict=True) is True
    except (Declined, Dismissed):
        return False


async def sample(call: Call, options: SampleOptions, *, key: str | None = None) -> Sample:
    """Let the client's model write something."""
    dialect = _require(call, "sampling", "tools" if options.tools or options.tool_choice else None)
    params = sampling_params(options, dialect, _offered(call, "sampling") or {})
    return Sample(await _question(call, "sampling/createMessage", params, key, _is_sample, strict=False))


async def roots(call: Call, *, key: str | None = None) -> list[Root]:
    """What the client lets the server work in."""
    _require(call, "roots")
    answer = await _question(call, "roots/list", {}, key, _is_roots, strict=False)
    return [Root(root["uri"], root.get("name")) for root in answer["roots"]]


async def gather(questions: Sequence[Awaitable[Any]]) -> list[Any]:
    """Several questions in one round; the answers in the same order. When one fails the others are cancelled."""
    import asyncio

    asked = [asyncio.ensure_future(question) for question in questions]
    try:
        return list(await asyncio.gather(*asked))
    except Exception:
        for question in asked:
            question.cancel()
        await asyncio.wait(asked)
        raise


async def once(call: Call, key: str, effect: Callable[[], Any]) -> Any:
    """Run `effect` once in all rounds of this call and remember what it gave (a JSON value)."""
    owner = call.root
    if call is not owner:
        from defserve.protocols.mcp.asking.parking import parked_work

        owner = call if parked_work(call) is not None else owner  # a parked call runs once itself
    return await owner.local(RoundTrips).once(call, key, effect)


def can(call: Call, capability: str, detail: str | None = None) -> bool:
    """Whether this call may ask the client for a capability."""
    return _obstacle(call, capability, detail) is None


def can_confirm(call: Call) -> bool:
    """Whether this call may ask for a yes that counts."""
    return not _is_strangers(call) and can(call, "elicitation")


# -- ways to ask -----------------------------------------------------------------------------------------


def _asker(call: Call) -> Asker | None:
    askers = (e.asker(call) for e in call.session.composition.extensions if isinstance(e, BringsAsker))
    return next((asker for asker in askers if asker is not None), None)


async def _elicited(call: Call, message: str, form: Form, key: str | None, strict: bool) -> Params:
    dialect = dialect_of(call)
    params: Params = {"message": message, "requestedSchema": form.schema(dialect)}
    if "elicitation_url" in dialect.has and not dialect.stateless:
        params = {"mode": "form", **params}
    return _accepted(await _question(call, "elicitation/create", params, key, _is_form_answer, strict), message)


async def _question(
    call: Call, method: str, params: Params, key: str | None, acceptable: Acceptable, strict: bool
) -> Any:
    if not dialect_of(call).stateless:
        answer = await call.request(method, params, timeout=call.session.composition.limits.question)
        if not acceptable(answer):
            raise PeerError(f"the client's answer to {method} has the wrong shape")
        return answer
    if call.outer is not None:
        from defserve.protocols.mcp.asking.parking import ask_parked, parked_work

        if (work := parked_work(call)) is not None:
            return await ask_parked(call, work, method, params, acceptable, key)
    rounds = call.root.local(RoundTrips)
    name, digest = rounds.key_of(key, method, params)
    if (answer := rounds.answer(name, digest, acceptable, strict)) is None:
        answer = await rounds.ask(call, name, digest, {"method": method, "params": params})
    return answer


def _is_strangers(call: Call) -> bool:
    from defserve.auth.authority import is_stranger
    from defserve.protocols.mcp.authorization.authorization import identity

    return is_stranger(identity(call))


def _require(call: Call, capability: str, detail: str | None = None) -> Dialect:
    if (obstacle := _obstacle(call, capability, detail)) is not None:
        raise obstacle
    return dialect_of(call)


def _obstacle(call: Call, capability: str, detail: str | None) -> NoBackChannel | None:
    if (capability, detail) == ("elicitation", None) and _asker(call) is not None:
        return None
    if dialect_of(call).stateless and call.method not in METHODS:
        return NoBackChannel(f"{call.method} cannot ask the client: only {', '.join(sorted(METHODS))} can")
    if (missing := _missing(call, capability, detail)) is None:
        return None
    what = f"{capability} ({detail})" if detail else capability
    return NoBackChannel(f"this needs a client that offers {what}, and this one does not", needs=missing)


def _missing(call: Call, capability: str, detail: str | None) -> Params | None:
    settings = _offered(call, capability)
    feature = _FEATURES.get((capability, detail))
    if settings is None or (feature is not None and feature not in dialect_of(call).has):
        return {capability: {detail: {}} if detail else {}}
    if detail is not None:
        return None if detail in settings else {capability: {detail: {}}}
    # An empty elicitation capability means forms; one that names only URLs does not.
    if capability == "elicitation" and settings and "form" not in settings and "url" in settings:
        return {"elicitation": {"form": {}}}
    return None


def _offered(call: Call, capability: str) -> Params | None:
    offer = call.terms.offer
    settings: Any = offer.capabilities.get(capability) if offer is not None else None
    return settings if is_object(settings) else None


# -- answers ---------------------------------------------------------------------------------------------


def _accepted(answer: Params, message: str) -> Params:
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
    return is_object(answer) and "role" in answer and isinstance(answer.get("content"), dict | list)


def _is_roots(answer: Any) -> bool:
    found = answer.get("roots") if is_object(answer) else None
    return is_array(found) and all(is_object(root) and isinstance(root.get("uri"), str) for root in found)


ACCEPTABLE: Mapping[str, Acceptable] = {
    "elicitation/create": _is_form_answer,
    "sampling/createMessage": _is_sample,
    "roots/list": _is_roots,
}
"""Method of a question → whether a JSON value has the form of an answer to it."""


def _brief(error: ValueError) -> str:
    if (problems := getattr(error, "errors", None)) is None:
        return str(error)
    return "; ".join(f"{'.'.join(map(str, p['loc'])) or VALUE}: {p['msg']}" for p in problems())
