"""What a server that speaks MGP says: of itself (§2), of the security of its tools (§4), and of its failures (§14).

Missing or invalid declarations make a host more careful, never less. It imports no guard: whoever lists tools reads
this.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from defserve.client.replies import Json, filter_strings, make_tool_error, object_or_empty, string_or_none
from defserve.core.json_values import is_array
from defserve.errors import (
    BadArguments,
    DefserveError,
    Draining,
    PeerError,
    Problem,
    Refused,
    Rejected,
    TimedOut,
    ToolError,
)
from defserve.protocols.mcp.errors import ERROR_META_KEY
from defserve.protocols.mgp import errors
from defserve.protocols.mgp.errors import ERROR_KINDS_BY_CODE, RecoveryAdvice
from defserve.protocols.mgp.terms import (
    MGP_EXTENSION_ID,
    MGP_SECTIONS_BY_NAME,
    MGP_VERSION,
    SECURITY_META_KEY,
    derive_security,
)

if TYPE_CHECKING:
    from defserve.client.eras import SessionTerms


MAX_PERMISSIONS: Final = 256
MAX_NAME_LENGTH: Final = 256


class MgpClaims(NamedTuple):
    """A server's words. `version` None: it speaks no MGP, or another one. `extensions` are those agreed on."""

    version: str | None = None
    extensions: tuple[str, ...] = ()
    sections: frozenset[str] = frozenset()
    permissions: tuple[str, ...] = ()
    server_id: str | None = None
    trust_level: str | None = None


def make_mgp_offer(extensions: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Era → the client capabilities that offer MGP."""
    block = {"version": MGP_VERSION, "extensions": list(extensions)}
    return {
        "handshake": {"mgp": block, "experimental": {"mgp": block}},
        "stateless": {"extensions": {MGP_EXTENSION_ID: block}},
    }


def parse_mgp_claims(terms: SessionTerms, offered: Collection[str]) -> MgpClaims:
    """What the server answered to an offer of these extensions."""
    block = _block(terms)
    version, id = string_or_none(block.get("version")), string_or_none(block.get("server_id"))
    if version is None or version.partition(".")[0] != MGP_VERSION.partition(".")[0]:
        return MgpClaims(server_id=id)
    extensions = tuple(name for name in filter_strings(block.get("extensions")) if name in offered)
    return MgpClaims(
        version,
        extensions,
        frozenset[str]().union(*(MGP_SECTIONS_BY_NAME.get(name, frozenset()) for name in extensions)),
        tuple(name[:MAX_NAME_LENGTH] for name in filter_strings(block.get("permissions_required"))[:MAX_PERMISSIONS]),
        id,
        string_or_none(block.get("trust_level")),
    )


def _block(terms: SessionTerms) -> Json:
    found = terms.capabilities
    if terms.stateless:
        return object_or_empty(object_or_empty(found.get("extensions")).get(MGP_EXTENSION_ID))
    return object_or_empty(found.get("mgp")) or object_or_empty(object_or_empty(found.get("experimental")).get("mgp"))


# -- MGP §4: what a listed tool declares about its security. A host is more careful if that is missing or invalid.


RISKS: Final = ("safe", "moderate", "dangerous")


class ListedToolSecurity(NamedTuple):
    """One tool. `security` is its block as the server sent it (empty if there is none); `risk` follows from it.

    A tool that is not listed says nothing of itself: it is dangerous.
    """

    name: str
    risk: str
    security: Json
    schema: Json
    is_listed: bool = True

    @property
    def properties(self) -> Json:
        """Its arguments, as its schema declares them."""
        return object_or_empty(self.schema.get("properties"))

    @property
    def is_marked(self) -> bool:
        """Whether the author marked it. A block without any of the optional fields was made up by the server."""
        return bool(self.permissions) or not self.security.keys() <= {"risk_level", "permissions_required"}

    @property
    def permissions(self) -> list[str] | None:
        """The permissions that it needs; None if it does not say so."""
        found = self.security.get("permissions_required")
        return filter_strings(found) if is_array(found) else None

    @property
    def validator(self) -> str | None:
        """The validator that it declares, if any."""
        return string_or_none(self.security.get("validator"))

    @property
    def confirmation_required(self) -> bool | None:
        found = self.security.get("confirmation_required")
        return found if isinstance(found, bool) else None


def parse_tool_security(name: str, tool: Json) -> ListedToolSecurity:
    """Read a listed tool; `tool` is empty if the server does not list it."""
    security = object_or_empty(tool.get("security")) or object_or_empty(
        object_or_empty(tool.get("_meta")).get(SECURITY_META_KEY)
    )
    schema = object_or_empty(tool.get("inputSchema"))
    risk = _risk(security, object_or_empty(tool.get("annotations"))) if tool else "dangerous"
    return ListedToolSecurity(name, risk, security, schema, bool(tool))


def _risk(security: Json, hints: Json) -> str:
    if security:
        found = security.get("risk_level")
        return found if found in RISKS else "dangerous"
    return derive_security(hints)["risk_level"]


# -- MGP §14: an error of a server that speaks MGP: the exception for its code, and whether to try again (§14.6).
#
# The server's fields are checked before they are used. It cannot make the host wait or retry beyond fixed limits.


MAX_RETRIES: Final = 10
MAX_WAIT_SECONDS: Final = 60.0
"""Seconds. If the server wants a longer pause, the host does not retry: the caller decides."""
USUAL_DELAY: Final = 1.0
USUAL_RETRIES: Final = 3


class MgpFailure(NamedTuple):
    """A reply that failed. `block` is its `_mgp` object, `body` the other data of the error."""

    code: int
    message: str
    block: Mapping[str, Any]
    body: Mapping[str, Any]

    def exception(self) -> DefserveError | None:
        """The exception for its code; None if the code has none."""
        make = _MAKERS.get(self.code)
        return make(self) if make is not None else None

    @property
    def data(self) -> dict[str, Any]:
        recovery = {name: self.block[name] for name in RecoveryAdvice.__annotations__ if name in self.block}
        return {**object_or_empty(self.block.get("details")), **recovery}

    def delay(self, retried: int) -> float | None:
        """Seconds to wait before the next attempt, after `retried` attempts; None if there is none."""
        retries = min(self._number("max_retries", USUAL_RETRIES), MAX_RETRIES)
        if self.block.get("retryable") is not True or retried >= retries:
            return None
        strategy, least = self.block.get("retry_strategy"), self._number("retry_after_ms", 0) / 1000
        if strategy == "immediate":
            wait = least
        elif strategy == "fixed_delay":
            wait = least or USUAL_DELAY
        else:
            # Doubling stops at the longest wait, so only the server's own minimum can be too long.
            wait = max(least, min((least or USUAL_DELAY) * 2**retried, MAX_WAIT_SECONDS))
        return wait if wait <= MAX_WAIT_SECONDS else None

    @property
    def fallback(self) -> str | None:
        """The tool to try when no retries are left. An error that is not `retryable` has none."""
        return string_or_none(self.block.get("fallback_tool")) if self.block.get("retryable") is True else None

    def _number(self, name: str, usual: float) -> float:
        found = self.block.get(name)
        return max(float(found), 0.0) if isinstance(found, int | float) and not isinstance(found, bool) else usual


def parse_mgp_failure(outcome: PeerError | Mapping[str, Any]) -> MgpFailure | None:
    """The failure in a JSON-RPC error or an `isError` result; None if there is none, or it is not an error of MGP."""
    if isinstance(outcome, PeerError):
        code, message, body = outcome.code, outcome.message, object_or_empty(outcome.data)
        block = object_or_empty(body.get("_mgp"))
    elif outcome.get("isError") is True:
        code, message = None, make_tool_error(outcome).message
        body = object_or_empty(object_or_empty(outcome.get("_meta")).get(ERROR_META_KEY))
        block = object_or_empty(outcome.get("_mgp") or body.get("_mgp"))
    else:
        return None
    # §14.4 has no code in the block. Ours has one, for errors that carry a JSON-RPC number.
    found = code if code in ERROR_KINDS_BY_CODE else block.get("code")
    return MgpFailure(found, message, block, body) if isinstance(found, int) and found in ERROR_KINDS_BY_CODE else None


def _make_error_factory(kind: type[Refused] | type[ToolError]) -> Callable[[MgpFailure], DefserveError]:
    return lambda failure: kind(failure.message, data=failure.data)


def _to_rejected(failure: MgpFailure) -> DefserveError:
    body, validator = failure.body, object_or_empty(failure.block.get("details")).get("validator")
    return Rejected(
        str(body.get("reason") or failure.message),
        body["violations"] if is_array(body.get("violations")) else [],
        object_or_empty(body.get("hints")),
        guard="code_safety"
        if failure.code == errors.ERROR_CODES_BY_TYPE["code_safety_violation"]
        else str(validator or "none"),
    )


def _bad_arguments(failure: MgpFailure) -> DefserveError:
    found = object_or_empty(failure.block.get("details")).get("problems")
    entries = [object_or_empty(each) for each in found] if is_array(found) else []
    problems = tuple(Problem(str(each.get("field", "")), str(each.get("reason", ""))) for each in entries)
    return BadArguments(problems or (Problem("", failure.message),))


_CODED: Final = (
    errors.PermissionDenied,
    errors.AccessDenied,
    errors.AuthRequired,
    errors.AuthExpired,
    errors.ServerNotReady,
    errors.ServerRestarting,
    errors.RateLimited,
    errors.ResourceExhausted,
    errors.QuotaExceeded,
    errors.ToolDisabled,
    errors.ServerNotFound,
    errors.ServerExists,
    errors.UpstreamError,
    errors.UpstreamTimeout,
    errors.UpstreamUnavailable,
)

# 4001 (unknown tool) is missing on purpose: it stays a JSON-RPC error, as without MGP.
_MAKERS: Final[Mapping[int, Callable[[MgpFailure], DefserveError]]] = {
    **{kind.code: _make_error_factory(kind) for kind in _CODED},
    errors.ERROR_CODES_BY_TYPE["validation_blocked"]: _to_rejected,
    errors.ERROR_CODES_BY_TYPE["code_safety_violation"]: _to_rejected,
    errors.ERROR_CODES_BY_TYPE["draining"]: _make_error_factory(Draining),
    errors.ERROR_CODES_BY_TYPE["timeout"]: _make_error_factory(TimedOut),
    errors.ERROR_CODES_BY_TYPE["invalid_arguments"]: _bad_arguments,
}
