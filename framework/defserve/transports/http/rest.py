"""Tools for callers that know only HTTP and JSON: `POST /tools/{name}`, described by `GET /openapi.json`.

Such a call passes the same gate, authentication, stages and limits as every other. Only its form differs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic_core import from_json

from defserve.base.echoes import MAX_PEER_TEXT, cut_text
from defserve.transports.asgi import HeaderList, Scope
from defserve.transports.http.exchange import Exchange
from defserve.transports.http.headers import is_json
from defserve.transports.http.shaped import ShapedReply, answer_shaped
from defserve.transports.session_provider import SessionProvider
from defserve.wire.codec import encode
from defserve.wire.jsonvalue import excess, is_object
from defserve.wire.messages import Params, Request

Challenge = Callable[[Exchange, Sequence[str]], Awaitable[None]]
Methods = Mapping[str, Callable[[Exchange, Scope], Awaitable[None]]]

TOOLS, DOCUMENT = "/tools", "/openapi.json"

# The kind of failure → its HTTP status. Any other kind is a 422.
STATUS: Final[Mapping[str, int]] = {
    "invalid_arguments": 400,
    "invalid_params": 400,
    "unknown_tool": 404,
    "refused": 403,
    "credential_ended": 401,
    "validation_blocked": 403,
    "code_safety_violation": 403,
    "permission_denied": 403,
    "access_denied": 403,
    "confirmation_required": 403,
    "tool_disabled": 403,
    "server_not_found": 404,
    "server_already_registered": 409,
    "limit_exceeded": 429,
    "rate_limited": 429,
    "quota_exceeded": 429,
    "upstream_error": 502,
    "draining": 503,
    "server_not_ready": 503,
    "server_restarting": 503,
    "resource_exhausted": 503,
    "upstream_unavailable": 503,
    "upstream_timeout": 504,
    "audit_unavailable": 503,
    "store_unavailable": 503,
    "store_busy": 503,
    "timeout": 504,
    "internal_error": 500,
}
FAILED: Final = 422


@dataclass(frozen=True, slots=True)
class RestRules:
    """What the mount must know about the protocol."""

    offer: object
    """The offer of every caller: it waits for the answer, and can do nothing else."""
    call: Callable[[str, Params], tuple[Request, ShapedReply]]
    """The request that calls a tool, and how it is answered."""
    document: Callable[[str], tuple[Request, ShapedReply]]
    """The request whose answer is the OpenAPI document, for tools served below a path."""
    scopes: Callable[[str], Sequence[str]]


class RestFailure(Exception):
    """A call that failed: the kind of failure, a message, and details."""

    def __init__(self, kind: str, message: str, detail: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.kind, self.message, self.detail = kind, cut_text(message, MAX_PEER_TEXT), dict(detail or {})

    @property
    def status(self) -> int:
        return STATUS.get(self.kind, FAILED)

    def body(self) -> bytes:
        known = {name: self.detail[name] for name in ("trace_id", "problems") if name in self.detail}
        return encode({"error": {"type": self.kind, "message": self.message, **known}})

    def headers(self) -> HeaderList:
        wait = self.detail.get("retry_after_ms")
        return [(b"retry-after", b"%d" % (wait // 1000 + 1))] if isinstance(wait, int) else []


class RestMount:
    """The paths of the mount, and how they are answered."""

    def __init__(self, provider: SessionProvider, rules: RestRules, base: str) -> None:
        self.provider, self.rules, self.base = provider, rules, base
        self.challenge: Challenge | None = None

    def route(self, path: str, root: str) -> Methods | None:
        """The methods at a path below the app's root. None if the path does not belong to the mount."""
        if path == self.base + DOCUMENT:
            return {"GET": lambda exchange, scope: self.describe(exchange, root + self.base)}
        if not (path + "/").startswith(f"{self.base}{TOOLS}/"):
            return None
        name = path.removeprefix(f"{self.base}{TOOLS}").removeprefix("/")
        return {"POST": lambda exchange, scope: self.call(exchange, name)}

    async def describe(self, exchange: Exchange, below: str) -> None:
        """The document of the tools that this caller sees."""
        await answer_shaped(self.provider, exchange, self.rules.offer, *self.rules.document(below))

    async def call(self, exchange: Exchange, name: str) -> None:
        scopes = self.rules.scopes(name)
        if self.challenge is not None and exchange.principal.missing(scopes):
            await self.challenge(exchange, scopes)
            return
        try:
            arguments = await self._arguments(exchange)
        except RestFailure as failed:
            await exchange.respond(failed.status, failed.body(), failed.headers())
            return
        if arguments is not None:
            await answer_shaped(self.provider, exchange, self.rules.offer, *self.rules.call(name, arguments))

    async def _arguments(self, exchange: Exchange) -> Params | None:
        """The body, an object. None: it was refused, or its client left. Raises RestFailure."""
        limits = self.provider.limits
        try:
            body = await exchange.body(limits.message, limits.body)
        except TimeoutError:
            await _refuse(exchange, 408, "timeout", "the body did not arrive in time")
            return None
        if body is None:
            if not exchange.gone:
                await _refuse(exchange, 413, "limit_exceeded", f"the body is larger than {limits.message} bytes")
            return None
        kind = exchange.headers.get("content-type")
        if not body and kind is None:
            return {}
        if not is_json(kind):
            await _refuse(exchange, 415, "invalid_arguments", "send application/json")
            return None
        try:
            found: Any = from_json(body, allow_inf_nan=False) if body.strip() else {}
        except ValueError as error:
            raise RestFailure("invalid_arguments", f"the body is not JSON: {error}") from None
        problem = excess(found, limits.depth, limits.keys)
        if problem is not None or not is_object(found):
            raise RestFailure("invalid_arguments", problem or "the body must be an object: the arguments by name")
        return found


async def _refuse(exchange: Exchange, status: int, kind: str, text: str) -> None:
    close = [(b"connection", b"close")] if status in (408, 413) else []
    await exchange.respond(status, RestFailure(kind, text).body(), close)
