"""Who is calling: a principal proved by a token, the local user, or an unproved network address.

Also the permissions of an API key, six words that are scopes, and principals as JSON for another process.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Literal, cast

from defserve.auth.oauth import is_loopback
from defserve.auth.rates import Rate
from defserve.base.hidden_characters import is_printable_line
from defserve.core.json_values import is_array
from defserve.errors import UsageError, did_you_mean

PrincipalKind = Literal["token", "participant", "local", "anonymous"]

LOCAL_PRINCIPAL_ID = "local"
ANONYMOUS_PREFIX = "anonymous:"
PARTICIPANT_PREFIX = "mcpx:"
"""Of a participant of a topic: a gateway vouches for it, and no token may have its name."""
UNKNOWN_ADDRESS = "unknown"
MAX_PRINCIPAL_ID_LENGTH = 256

# RFC 6749 §3.3: scope-token = 1*( %x21 / %x23-5B / %x5D-7E )
_SCOPE = re.compile(r"[!#-\[\]-~]+")


@dataclass(frozen=True, slots=True)
class Principal:
    """One caller. Sessions, streams, state and rates belong to its `id`.

    `claims` are those of its token, read-only, and left out of the `repr` so that they do not get into logs. Raises
    UsageError for an id that is not valid (`is_token_principal_id`).
    """

    id: str
    scopes: frozenset[str] = frozenset()
    claims: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False, hash=False)
    kind: PrincipalKind = "token"
    credential: str = field(default="", kw_only=True, compare=False)
    """Names the key or token that was shown, without giving it away. `Auth` fills it in if a verifier does not."""
    is_shared_identity: bool = field(default=False, init=False)
    """Whether many callers have this identity: everybody on this machine, or everybody without an address.

    Then the mistakes of one must not shut out the others, and what is for one must not reach the others.
    """

    def __post_init__(self) -> None:
        if self.kind == "token" and not is_token_principal_id(self.id):
            raise UsageError(
                f"a token's principal cannot be called {self.id[:MAX_PRINCIPAL_ID_LENGTH]!r}",
                fix=f"use 1 to {MAX_PRINCIPAL_ID_LENGTH} printable characters; {LOCAL_PRINCIPAL_ID!r}, "
                f"{ANONYMOUS_PREFIX!r}… and {PARTICIPANT_PREFIX!r}… are reserved",
            )
        object.__setattr__(self, "scopes", frozenset(parse_scopes(self.scopes)))
        object.__setattr__(self, "claims", MappingProxyType(dict(self.claims)))
        if self.kind == "anonymous":
            address = self.id.removeprefix(ANONYMOUS_PREFIX)
            object.__setattr__(self, "is_shared_identity", address == UNKNOWN_ADDRESS or is_loopback(address))
        if self.kind != "token":
            object.__setattr__(self, "credential", self.id)

    def covers(self, other: Principal) -> bool:
        """Whether it is the same principal, with the same credential or with at least the rights of `other`."""
        return self.id == other.id and (self.credential == other.credential or self._has_rights_of(other))

    @property
    def rights(self) -> list[Any]:
        """What `has_rights` reads, as a JSON value."""
        return [self.credential, sorted(self.scopes)]

    def has_rights(self, rights: Any) -> bool:
        """Whether it covers a principal of the same id and kind, of which only the `rights` are left."""
        credential, scopes = rights
        return self.covers(replace(self, credential=credential, scopes=frozenset(scopes)))

    @property
    def rights_class(self) -> tuple[type[Principal], Hashable]:
        """Two credentials of one principal have the same one only if each covers the other."""
        return type(self), self.scopes if type(self) is Principal else self.credential

    def _has_rights_of(self, other: Principal) -> bool:
        # What another kind of principal may do is its own affair, so nothing is known to be at least as much.
        return type(self) is type(other) is Principal and other.scopes <= self.scopes

    def missing(self, required: Iterable[str]) -> frozenset[str]:
        """The scopes of `required` that it does not have. A local principal has all scopes: it started the server."""
        return frozenset() if self.kind == "local" else frozenset(required) - self.scopes

    def may_read(self, tool: str) -> bool:
        """Whether it may see a tool, apart from the scopes that the tool requires."""
        return True

    def may_invoke(self, tool: str) -> bool:
        """Whether it may call a tool that it may see."""
        return True

    @property
    def rates(self) -> Mapping[tuple[str, str], Rate]:
        """How often it may call anything: (what is counted, the name of the limit) → the rate."""
        return {}


def is_token_principal_id(text: str) -> bool:
    """Whether this may be the id of a token's principal.

    A token must not pass for the local user, for an address or for a participant of a topic, nor bring line breaks or
    lone surrogates into logs.
    """
    reserved = text == LOCAL_PRINCIPAL_ID or text.startswith((ANONYMOUS_PREFIX, PARTICIPANT_PREFIX))
    return 0 < len(text) <= MAX_PRINCIPAL_ID_LENGTH and is_printable_line(text) and not text.isspace() and not reserved


def parse_scopes(value: str | Iterable[str]) -> tuple[str, ...]:
    """Scopes as authors write them: a list, or a string with spaces. Raises UsageError for an invalid scope."""
    found = tuple(value.split()) if isinstance(value, str) else tuple(value)
    for scope in found:
        if not is_scope(scope):
            raise UsageError(
                f"{scope!r} is not a scope",
                fix='use printable ASCII without spaces, quotes or backslashes: "files:read"',
            )
    return found


def is_scope(value: object) -> bool:
    return isinstance(value, str) and _SCOPE.fullmatch(value) is not None


def parse_scope_claim(value: object) -> frozenset[str]:
    """The scopes that a token's claim holds: a text with spaces, or a list. What is not a scope is left out."""
    listed = value.split(" ") if isinstance(value, str) else value if is_array(value) else ()
    return frozenset(scope for scope in listed if isinstance(scope, str) and is_scope(scope))


LOCAL_PRINCIPAL = Principal(LOCAL_PRINCIPAL_ID, kind="local")


def make_anonymous_principal(address: str) -> Principal:
    """The caller at a network address, without a token."""
    return Principal(f"{ANONYMOUS_PREFIX}{address}", kind="anonymous")


# -- The permissions of an API key: six words. Each is a scope, so that tools and policies can require it.


# A permission as people write it → its scope. `{}` is the name of a tool, `*` any tool.
PERMISSION_SCOPES: Final = {
    "ToolInvoke({})": "tool:invoke:{}",
    "ToolRead({})": "tool:read:{}",
    "ToolsListAll": "tools:list",
    "MetricsRead": "metrics:read",
    "AdminRead": "admin:read",
    "AdminWrite": "admin:write",
}
SCOPE_WILDCARD: Final = "*"
SEES_ALL: Final = frozenset({PERMISSION_SCOPES["ToolsListAll"], PERMISSION_SCOPES["AdminRead"]})

METRICS_SCOPES: Final = frozenset({PERMISSION_SCOPES["MetricsRead"], PERMISSION_SCOPES["AdminRead"]})
"""One of these is needed for metrics: they name every tool, also those that a caller may not see."""

_WRITTEN: Final = re.compile(r"(\w+)(?:\(([A-Za-z0-9_.*-]{1,128})\))?")


def scope_of(permission: str) -> str:
    """The scope of `ToolInvoke(add)`, `ToolsListAll`, …. Raises UsageError for an unknown permission."""
    if found := _WRITTEN.fullmatch(permission.strip()):
        word, name = found.groups()
        if (scope := PERMISSION_SCOPES.get(f"{word}({{}})" if name else word)) is not None:
            return scope.format(name)
    known = [name.replace("{}", "TOOL") for name in PERMISSION_SCOPES]
    is_scope_like = ":" in permission and is_scope(permission.strip())
    near = permission.partition("(")[0].strip() + ("(TOOL)" if "(" in permission else "")
    raise UsageError(
        f"{permission!r} is not a permission",
        fix=f"a scope is given with --scope {permission.strip()}"
        if is_scope_like
        else did_you_mean(near, known, f"use one of {', '.join(known)}; ToolInvoke(*) is every tool"),
    )


def format_invoke_scope(tool: str) -> str:
    """The scope that names a tool: whoever has it may call that tool."""
    return PERMISSION_SCOPES["ToolInvoke({})"].format(tool)


def convert_permissions_to_scopes(permissions: Iterable[str]) -> frozenset[str]:
    return frozenset(map(scope_of, permissions))


@dataclass(frozen=True, slots=True)
class ApiKeyPrincipal(Principal):
    """A caller with an API key. It may use only the tools that its scopes allow.

    Permissions are about tools: it may use resources and prompts unless they require scopes.
    """

    key: str = ""
    per_minute: int | None = None
    per_hour: int | None = None

    def may_invoke(self, tool: str) -> bool:
        return self._may("ToolInvoke({})", tool)

    def may_read(self, tool: str) -> bool:
        """Whether it may see a tool. A caller that may invoke a tool may see it."""
        return not self.scopes.isdisjoint(SEES_ALL) or self._may("ToolRead({})", tool) or self.may_invoke(tool)

    @property
    def rates(self) -> Mapping[tuple[str, str], Rate]:
        counts = (("per_minute", self.per_minute, 60), ("per_hour", self.per_hour, 3600))
        return {(self.key, limit): Rate(count / seconds, count) for limit, count, seconds in counts if count}

    @property
    def rights_class(self) -> tuple[type[Principal], Hashable]:
        return type(self), self.scopes

    def _has_rights_of(self, other: Principal) -> bool:
        return isinstance(other, ApiKeyPrincipal) and all(map(self._has_right, other.scopes - self.scopes))

    def _has_right(self, scope: str) -> bool:
        """Whether what a scope allows is allowed by another scope: `tool:invoke:*` includes `tool:invoke:add`."""
        kind, _, tool = scope.rpartition(":")
        return (kind == "tool:invoke" and self.may_invoke(tool)) or (kind == "tool:read" and self.may_read(tool))

    def _may(self, permission: str, tool: str) -> bool:
        scope = PERMISSION_SCOPES[permission]
        return not self.scopes.isdisjoint((scope.format(tool), scope.format(SCOPE_WILDCARD)))


# -- Principals as JSON: who opened a session or made a call, for another process. Never a credential, nor its claims.


class RememberedPrincipal(Principal):
    """A principal of a kind of its own, of which only its name is left: nobody but its own credential covers it, and
    what it may use is not known."""

    __slots__ = ()

    def may_read(self, tool: str) -> bool:
        return False

    def may_invoke(self, tool: str) -> bool:
        return False


# Those of which `covers` needs nothing else than what is written.
_CLASSES: Final[dict[str, type[Principal]]] = {"plain": Principal, "key": ApiKeyPrincipal}


def encode_principal(principal: Principal) -> list[Any]:
    """What is needed to judge `covers`, as a JSON value."""
    made = next((name for name, each in _CLASSES.items() if type(principal) is each), "")
    return [principal.id, principal.kind, principal.credential, sorted(principal.scopes), made]


def decode_principal(value: Any) -> Principal:
    """The principal that was `written`."""
    id, kind, credential, scopes, made = value
    return _CLASSES.get(made, RememberedPrincipal)(
        id, frozenset(scopes), kind=cast(PrincipalKind, kind), credential=credential
    )
