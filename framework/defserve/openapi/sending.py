"""Sends requests to the API: bounded in time and bytes, repeated only where that does no harm. And whose credential."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote, urlsplit
from weakref import WeakKeyDictionary

from defserve.auth.oauth import encode_basic_auth
from defserve.auth.principals import LOCAL_PRINCIPAL, Principal
from defserve.base.backoff import Backoff, parse_retry_after
from defserve.base.http_connection import find_text_codec
from defserve.base.secret_references import SecretSetting, is_secret_reference
from defserve.errors import LimitExceeded, Refused, ToolError, UsageError
from defserve.limits import Limits

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.openapi.request_building import ApiRequest


RETRIED: Final = frozenset({429, 502, 503, 504})
MAX_PAUSE_SECONDS: Final = 10.0
FIRST_PAUSE: Final = 0.25
MAX_RESPONSE_BYTES: Final = Limits().response


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """A response with its whole body."""

    status: int
    reason: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)

    @property
    def media(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def text(self) -> str:
        decoded = self.body.decode(find_text_codec(self.headers.get("content-type", "")), "replace")
        return decoded.removeprefix("\ufeff")  # a byte order mark, which JSON does not take


class ApiSender:
    """The way to one API. Connections belong to an event loop, so there is a client for each.

    `is_trusted`: the author wrote the address, so it may be on a private network.
    """

    def __init__(self, base: str, timeout: float, retries: int, client: Any, *, is_trusted: bool) -> None:
        self._base, self._timeout, self._retries, self._given = base, timeout, retries, client
        self._is_trusted = is_trusted
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()

    async def send(self, request: ApiRequest, *, idempotent: bool) -> ApiResponse:
        """The response. Raises ToolError if there is none."""
        left = self._retries if idempotent else 0
        backoff = Backoff(FIRST_PAUSE, MAX_PAUSE_SECONDS, jitter=(0.5, 1.0))
        for attempt in range(left + 1):
            pause = backoff.next_wait()
            try:
                response = await self._exchange(request)
            except (Refused, LimitExceeded, ToolError):
                raise
            except Exception as error:
                if not _is_of_httpx(error):
                    raise
                if attempt == left:
                    # Not its text: that may hold the address, and in it a key.
                    raise ToolError(
                        f"The API cannot be reached ({type(error).__name__}).", data={"retry": True}
                    ) from None
            else:
                if response.status not in RETRIED or attempt == left:
                    return response
                pause = max(pause, parse_retry_after(response.headers))
                if pause > MAX_PAUSE_SECONDS:
                    return response
            await asyncio.sleep(pause)
        raise AssertionError

    async def _exchange(self, request: ApiRequest) -> ApiResponse:
        client = self._client()
        try:
            async with asyncio.timeout(self._timeout):
                async with client.stream(
                    request.method, request.address, headers=request.all_headers, **request.content
                ) as response:
                    body = await _read_body(response)
                    headers = {name.lower(): value for name, value in response.headers.items()}
                    return ApiResponse(response.status_code, response.reason_phrase, headers, body)
        except TimeoutError:
            raise ToolError(f"The API did not answer within {self._timeout:g} s.", data={"retry": True}) from None

    def _client(self) -> Any:
        if self._given is not None and hasattr(self._given, "stream"):
            return self._given
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            if self._given is not None:
                self._clients[loop] = in_process_client(self._given)
            else:
                self._clients[loop] = make_guarded_client(self._base, self._timeout, is_trusted=self._is_trusted)
        return self._clients[loop]

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Close the connections of this loop at the end."""
        try:
            yield
        finally:
            client = self._clients.pop(asyncio.get_running_loop(), None)
            if client is not None:
                await client.aclose()


def make_guarded_client(base: str, timeout: float, *, is_trusted: bool) -> Any:
    """A client that reaches this address and no other, whatever a response says."""
    from defserve.guard.http_client import GuardedClient
    from defserve.guard.network import Egress, parse_authority

    try:
        where = parse_authority(base + "/")
    except ValueError as error:
        raise UsageError(f"{base!r} is not the address of an API: {error}", fix='say base_url="https://…"') from None
    schemes = (urlsplit(base).scheme,)
    if is_trusted:
        # Only by this name and port; all else is off the list.
        egress = Egress(schemes, None, ("none.invalid",), (str(where),), MAX_RESPONSE_BYTES, timeout)
    else:
        egress = Egress(schemes, (where.port,), (where.host,), (), MAX_RESPONSE_BYTES, timeout)
    return GuardedClient(egress)


async def _read_body(response: Any) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for chunk in response.aiter_bytes():
        size += len(chunk)
        if size > MAX_RESPONSE_BYTES:
            raise ToolError(f"The answer of the API is longer than {MAX_RESPONSE_BYTES} bytes: ask for less.")
        parts.append(chunk)
    return b"".join(parts)


def _is_of_httpx(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2")


# -- An ASGI app called in this process, without a network: a client of it, and its lifespan.


STOP_SECONDS = 10.0


class InProcessApp:
    """An ASGI app whose lifespan this server enters. Its requests have the state that the lifespan made."""

    def __init__(self, app: Callable[[Any, Any, Any], Awaitable[None]]) -> None:
        self._app = app
        self._state: dict[str, Any] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        # No address of a caller: an app may trust some, and none of them made this call.
        await self._app({**scope, "client": None, "state": dict(self._state)}, receive, send)

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Enter the app's lifespan. An app without one is served as it is. Raises UsageError if it fails to start."""
        incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        started: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        stopped = asyncio.Event()

        async def send(message: Any) -> None:
            kind = message["type"]
            if kind.startswith("lifespan.startup.") and not started.done():
                started.set_result(None if kind.endswith("complete") else str(message.get("message") or "it failed"))
            elif kind.startswith("lifespan.shutdown."):
                stopped.set()

        async def run() -> None:
            scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": self._state}
            try:
                await self._app(scope, incoming.get, send)
            except Exception:
                if started.done():
                    raise
            finally:
                if not started.done():
                    started.set_result(None)  # it has no lifespan
                stopped.set()

        self._state.clear()
        task = asyncio.create_task(run())
        try:
            incoming.put_nowait({"type": "lifespan.startup"})
            if (problem := await started) is not None:
                raise UsageError(f"the app did not start: {problem[:500]}", fix="see its log")
            yield
        finally:
            incoming.put_nowait({"type": "lifespan.shutdown"})
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await stopped.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def in_process_client(app: Any) -> Any:
    """An httpx client of an ASGI app. Raises UsageError if httpx2 is not installed."""
    from defserve.guard.http_client import load_httpx, make_shared_http_client

    return make_shared_http_client(load_httpx("calling an app").ASGITransport(app, raise_app_exceptions=False))


# -- Who the API is told is calling: one credential for all callers, or one for each. Credentials are shown to nobody.


Place = Literal["header", "query", "cookie"]


class Credentials(ABC):
    """What is added to every request. `fills` are the parameters that models need not, and cannot, fill in."""

    fills: Collection[tuple[str, str]] = ()

    @abstractmethod
    def add_to(self, request: ApiRequest) -> tuple[str, ...]:
        """Add it. Returns the texts that nobody may read, so that they can be taken out of answers."""

    async def load_secrets(self) -> None:  # noqa: B027 - most have nothing to read
        """Read what is needed from where it is, before `add_to`. Raises UsageError if that cannot be done."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"


class Bearer(Credentials):
    """`Authorization: Bearer TOKEN`. The token may be a reference: `file:…`, `command:…`."""

    def __init__(self, token: str) -> None:
        self._source, self._token = _secret(token, "Bearer")

    async def load_secrets(self) -> None:
        if self._source is not None:
            self._token = _check_secret(await self._source.load_secret(), "Bearer")

    def add_to(self, request: ApiRequest) -> tuple[str, ...]:
        request.headers["authorization"] = f"Bearer {self._token}"
        return (self._token,)


class Basic(Credentials):
    """User name and password (RFC 7617)."""

    def __init__(self, user: str, password: str) -> None:
        if ":" in user:
            raise UsageError("Basic: a user name cannot hold a colon", fix="give user and password apart")
        self._source = SecretSetting(password, "Basic") if is_secret_reference(password) else None
        self._pair = user, password

    async def load_secrets(self) -> None:
        if self._source is not None:
            self._pair = self._pair[0], await self._source.load_secret()

    def add_to(self, request: ApiRequest) -> tuple[str, ...]:
        user, password = self._pair
        shown = request.headers["authorization"] = encode_basic_auth(user, password)
        return (shown.partition(" ")[2], password)


class ApiKey(Credentials):
    """A key in a header, in the query or in a cookie: `ApiKey(key, header="X-API-Key")`, `ApiKey(key, query="key")`."""

    def __init__(
        self, value: str, *, header: str | None = None, query: str | None = None, cookie: str | None = None
    ) -> None:
        places: tuple[tuple[Place, str | None], ...] = (("header", header), ("query", query), ("cookie", cookie))
        given = [(place, name) for place, name in places if name is not None]
        if len(given) != 1:
            raise UsageError("ApiKey needs one place", fix='write ApiKey(key, header="X-API-Key") or query=, cookie=')
        self._source, self._value = _secret(value, "ApiKey")
        self._place, self._name = given[0]
        self.fills = ((self._place, self._name.lower()),)

    async def load_secrets(self) -> None:
        if self._source is not None:
            self._value = _check_secret(await self._source.load_secret(), "ApiKey")

    def add_to(self, request: ApiRequest) -> tuple[str, ...]:
        coded = quote(self._value, safe="")
        if self._place == "header":
            request.headers[self._name] = self._value
        elif self._place == "query":
            request.query.append(f"{quote(self._name, safe='')}={coded}")
        else:
            request.cookies.append(f"{self._name}={coded}")
        return (self._value, coded)


class PerCaller(Credentials):
    """Credentials of whoever calls: `PerCaller(lambda principal: Bearer(tokens[principal.id]))`.

    The function, which may be async, is given the verified `Principal` of the call and returns credentials, or None for
    a caller who has none: then the call is refused, as that of a caller without a token is. The token that a client
    showed to this server is never passed on.
    """

    def __init__(
        self,
        find: Callable[[Principal], Credentials | Awaitable[Credentials | None] | None],
        *,
        fills: Collection[tuple[str, str]] = (),
    ) -> None:
        self._find, self.fills = find, fills

    async def of(self, call: Call) -> Credentials:
        """The credentials of a call. Raises ToolError if its caller has none."""
        identity: Any = call.identity
        principal = identity if isinstance(identity, Principal) else LOCAL_PRINCIPAL
        found = self._find(principal) if principal.kind != "anonymous" else None
        chosen = await found if isawaitable(found) else found
        if chosen is None:
            raise ToolError("You have no account at this API: ask the operator of this server for one.")
        return chosen

    def add_to(self, request: ApiRequest) -> tuple[str, ...]:
        raise AssertionError("PerCaller has no credentials of its own")


class CallerToken(PerCaller):
    """A token of whoever calls, for a target of `Auth(targets=…)`: `CallerToken("billing")`.

    The caller's own token is exchanged for it at the target's issuer (`ctx.token_for`), and never sent to the API. The
    address of the API must be written by the author (`base_url=…`), not taken from the document.
    """

    def __init__(self, target: str, *, scopes: Collection[str] = ()) -> None:
        self._target, self._scopes = target, tuple(scopes)
        self.fills = (("header", "authorization"),)

    async def of(self, call: Call) -> Credentials:
        from defserve.protocols.mcp.authorization import exchange_caller_token

        return Bearer(await exchange_caller_token(call, self._target, self._scopes))


def iter_parameters_set_by_headers(headers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The parameters that the author's headers fill in, as `fills` names them: of `Cookie`, each cookie."""
    for name, value in headers.items():
        yield "header", name.lower()
        if name.lower() == "cookie":
            yield from (("cookie", pair.partition("=")[0].strip().lower()) for pair in value.split(";"))


def check_credentials(given: Any) -> Credentials | None:
    """What `auth=` was given. Raises UsageError for anything else."""
    if given is None or isinstance(given, Credentials):
        return given
    raise UsageError(
        f"auth={type(given).__name__} is not possible here: it says who calls the API",
        fix="use Bearer, Basic, ApiKey, PerCaller or CallerToken of defserve.openapi",
    )


def _secret(value: Any, kind: str) -> tuple[SecretSetting | None, str]:
    """Where the secret is, if that is elsewhere, and the secret, if it is known already."""
    if isinstance(value, str) and is_secret_reference(value):
        return SecretSetting(value, kind), ""
    return None, _check_secret(value, kind)


def _check_secret(value: Any, kind: str) -> str:
    if not isinstance(value, str) or not value or not (value.isascii() and value.isprintable()):
        raise UsageError(f"{kind}: the secret is not a text of printable ASCII", fix="read it from the environment")
    return value
