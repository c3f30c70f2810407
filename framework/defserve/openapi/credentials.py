"""Who the API is told is calling: one credential for all callers, or one for each. Credentials are shown to nobody."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from defserve.auth.oauth import encode_basic_auth
from defserve.auth.principals import LOCAL_PRINCIPAL, Principal
from defserve.base.secret_references import SecretText, is_secret_reference
from defserve.errors import ToolError, UsageError

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.openapi.request_building import ApiRequest

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
        self._source = SecretText(password, "Basic") if is_secret_reference(password) else None
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


def iter_pinned_parameters(headers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
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


def _secret(value: Any, kind: str) -> tuple[SecretText | None, str]:
    """Where the secret is, if that is elsewhere, and the secret, if it is known already."""
    if isinstance(value, str) and is_secret_reference(value):
        return SecretText(value, kind), ""
    return None, _check_secret(value, kind)


def _check_secret(value: Any, kind: str) -> str:
    if not isinstance(value, str) or not value or not (value.isascii() and value.isprintable()):
        raise UsageError(f"{kind}: the secret is not a text of printable ASCII", fix="read it from the environment")
    return value
