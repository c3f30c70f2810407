"""What a server that speaks MGP says: of itself (§2), of the security of its tools (§4), and of its failures (§14).

Below: the permissions that it asks for (§3), who approves them, and what was granted.

Missing or invalid declarations make a host more careful, never less. It imports no guard: whoever lists tools reads
this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, get_args
from uuid import uuid4

from defserve.base.redaction import escape_unprintable, get_logger
from defserve.client.answers import Answers, ask_yes_or_no, maybe_await
from defserve.client.replies import (
    Json,
    filter_strings,
    make_tool_error,
    number_or_none,
    object_or_empty,
    string_or_none,
)
from defserve.core.json_values import is_array
from defserve.errors import (
    BadArguments,
    DefserveError,
    Draining,
    MethodNotFound,
    PeerError,
    Problem,
    Refused,
    Rejected,
    TimedOut,
    ToolError,
    UsageError,
)
from defserve.protocols.mcp.errors import ERROR_META_KEY
from defserve.protocols.mgp import errors, vocabulary
from defserve.protocols.mgp.errors import ERROR_KINDS_BY_CODE, PermissionDenied, RecoveryAdvice
from defserve.protocols.mgp.terms import (
    MGP_EXTENSION_ID,
    MGP_SECTIONS_BY_NAME,
    MGP_VERSION,
    SECURITY_META_KEY,
    derive_security,
)
from defserve.protocols.mgp.vocabulary import (
    GRANT_META_KEYS,
    PERMISSION_FAMILIES,
    PERMISSION_RISKS,
    PermissionDecision,
    PermissionRequest,
    require_permission_name,
)

if TYPE_CHECKING:
    from defserve.client.audit import MgpAuditTrail
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
    version, id = (_read_short_text(block, name) for name in ("version", "server_id"))
    if version is None or version.partition(".")[0] != MGP_VERSION.partition(".")[0]:
        return MgpClaims(server_id=id)
    extensions = tuple(name for name in filter_strings(block.get("extensions")) if name in offered)
    return MgpClaims(
        version,
        extensions,
        frozenset[str]().union(*(MGP_SECTIONS_BY_NAME.get(name, frozenset()) for name in extensions)),
        tuple(_read_permissions(block.get("permissions_required"))),
        id,
        _read_short_text(block, "trust_level"),
    )


def _read_permissions(found: Any) -> list[str]:
    return [name[:MAX_NAME_LENGTH] for name in filter_strings(found)[:MAX_PERMISSIONS]]


def _read_short_text(block: Json, name: str) -> str | None:
    """A member of the block, cut: it is kept, shown to people, and in each record of the audit trail."""
    text = string_or_none(block.get(name))
    return text if text is None else text[:MAX_NAME_LENGTH]


def _block(terms: SessionTerms) -> Json:
    found = terms.capabilities
    if terms.stateless:
        return object_or_empty(object_or_empty(found.get("extensions")).get(MGP_EXTENSION_ID))
    return object_or_empty(found.get("mgp")) or object_or_empty(object_or_empty(found.get("experimental")).get("mgp"))


# -- MGP §4: what a listed tool declares about its security. A host is more careful if that is missing or invalid.


RISKS_FROM_LOWEST: Final = ("safe", "moderate", "dangerous")


class ListedToolClaims(NamedTuple):
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
    def is_marked_by_author(self) -> bool:
        """Whether the author marked it. A block without any of the optional fields was made up by the server."""
        return bool(self.permissions) or not self.security.keys() <= {"risk_level", "permissions_required"}

    @property
    def permissions(self) -> list[str] | None:
        """The permissions that it needs; None if it does not say so."""
        found = self.security.get("permissions_required")
        return _read_permissions(found) if is_array(found) else None

    @property
    def validator(self) -> str | None:
        """The validator that it declares, if any."""
        return string_or_none(self.security.get("validator"))

    @property
    def confirmation_required(self) -> bool | None:
        found = self.security.get("confirmation_required")
        return found if isinstance(found, bool) else None


def parse_tool_security(name: str, tool: Json) -> ListedToolClaims:
    """Read a listed tool; `tool` is empty if the server does not list it."""
    security = object_or_empty(tool.get("security")) or object_or_empty(
        object_or_empty(tool.get("_meta")).get(SECURITY_META_KEY)
    )
    schema = object_or_empty(tool.get("inputSchema"))
    risk = _risk(security, object_or_empty(tool.get("annotations"))) if tool else "dangerous"
    return ListedToolClaims(name, risk, security, schema, bool(tool))


def _risk(security: Json, hints: Json) -> str:
    if security:
        found = security.get("risk_level")
        return found if found in RISKS_FROM_LOWEST else "dangerous"
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
        found = number_or_none(self.block.get(name))
        return usual if found is None else max(float(found), 0.0)


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


# -- Permissions of a server (MGP §3): who approves them, and what was granted.


PermissionPolicy = Literal["interactive", "auto_approve", "deny_all", "config_only"]


class Grant(NamedTuple):
    """A decision, and when it expires."""

    decision: PermissionDecision
    expires_at: datetime | None = None

    def holds(self, now: datetime) -> bool:
        """Whether it has not expired."""
        return self.expires_at is None or now < self.expires_at

    def to_wire(self) -> Any:
        """The decision as a call carries it in `_meta`, with its expiry if it has one."""
        until = vocabulary.format_instant(self.expires_at)
        return self.decision if until is None else {"decision": self.decision, "expires_at": until}


Approved: TypeAlias = bool | PermissionDecision | Grant | None
"""True approves, False denies, None defers the decision."""
ApprovePermission: TypeAlias = Callable[[str, str, str], Approved | Awaitable[Approved]]

# The decision about a permission that is not in `granted`, by the policies that ask nobody.
_OTHERS: dict[str, PermissionDecision] = {"auto_approve": "approved", "deny_all": "denied", "config_only": "deferred"}


class PermissionApprover:
    """One policy. `granted` is approved under every policy. `interactive` asks `approve`, or else the person."""

    def __init__(self, policy: PermissionPolicy, granted: Sequence[str], approve: ApprovePermission | None) -> None:
        if policy not in get_args(PermissionPolicy):
            raise UsageError(
                f"approval={policy!r} is not a policy", fix=f"use one of {', '.join(get_args(PermissionPolicy))}"
            )
        if isinstance(granted, str):
            raise UsageError(f"granted={granted!r} is not a list", fix=f"write granted=[{granted!r}]")
        self.policy, self._approve = policy, approve
        self._granted = frozenset(require_permission_name(name, "Mgp(granted=…)") for name in granted)

    def can_ask(self, answers: Answers) -> bool:
        """Whether a person or function can decide. Then it makes sense to ask again about a deferred permission."""
        return self.policy == "interactive" and (self._approve is not None or answers.ask is not None)

    async def decide(self, permission: str, server: str, answerer: Answers) -> Grant:
        """The decision about one permission of one server."""
        if self._granted.issuperset(PERMISSION_FAMILIES.get(permission, (permission,))):
            return Grant("approved")
        if self.policy != "interactive":
            return Grant(_OTHERS[self.policy])
        if self._approve is None:
            what = f"{escape_unprintable(permission)} ({get_permission_risk(permission)})"
            question = f"Allow {escape_unprintable(server)} to use {what}?"
            return _grant(await ask_yes_or_no(answerer, question, "approved"))
        return _grant(await maybe_await(self._approve(permission, get_permission_risk(permission), server)))


def get_permission_risk(permission: str) -> str:
    """The risk of a permission (§3.2); of a family, the highest one. An unknown permission counts as dangerous."""
    risks = {PERMISSION_RISKS.get(member, "dangerous") for member in PERMISSION_FAMILIES.get(permission, (permission,))}
    return next(risk for risk in ("dangerous", "moderate", "safe") if risk in risks)


def _grant(answer: Any) -> Grant:
    if isinstance(answer, Grant):
        if answer.expires_at is not None and answer.expires_at.tzinfo is None:
            raise UsageError(f"the expiry of {answer!r} has no time zone", fix="use datetime(…, tzinfo=UTC)")
        return answer
    if answer is None or isinstance(answer, bool):
        return Grant("deferred" if answer is None else "approved" if answer else "denied")
    if answer not in get_args(PermissionDecision):
        raise UsageError(
            f"approve returned {answer!r}",
            fix=f"return True, False, None, a Grant, or one of {get_args(PermissionDecision)}",
        )
    return Grant(answer)


# -- MGP §3.4–3.6: decides about the permissions of a server before its first call, and keeps the grants.
#
# In a session the server is told before `initialized`. Without a session each call carries the grants.


DEFERRED: Final = Grant("deferred")


class ServerGrants:
    """What one server may use. `send` tells the server; it is None if the server is not told."""

    def __init__(self, approval: PermissionApprover, answers: Answers, audit: MgpAuditTrail) -> None:
        self._approval, self._answers, self._audit = approval, answers, audit
        self._grants: dict[str, Grant] = {}
        self._deciding = asyncio.Lock()
        self.send: Send | None = None

    @property
    def grants(self) -> dict[str, PermissionDecision]:
        """The current decision about each permission. An expired one is `deferred`."""
        return {name: self._find_grant(name).decision for name in self._grants}

    async def decide_open_permissions(self, names: Iterable[str], server: str) -> None:
        """Decide about permissions that are open or expired, and tell the server."""
        async with self._deciding:  # two calls at once must not ask the person twice
            wanting = [name for name in dict.fromkeys(names) if not self._is_settled(name)]
            if not wanting:
                return
            id, policy = str(uuid4()), self._approval.policy
            if self.send is not None:
                # §3.5: only a person may let the server wait. The other policies decide at once.
                told = "Waiting for operator approval" if policy == "interactive" else f"Decided by the policy {policy}"
                asked = PermissionRequest(request_id=id, permissions=wanting, policy=policy, message=told)
                await send_known(self.send, PERMISSION_REQUEST_METHODS, asked.to_wire())
            await self.change_decisions(
                {name: await self._approval.decide(name, server, self._answers) for name in wanting}, id
            )

    async def change_decisions(self, decided: Mapping[str, Grant], request_id: str | None = None) -> None:
        """Decide about permissions anew, and tell the server. What is deferred is asked for again when it is needed.

        `request_id` is that of our request for these decisions, if there was one.
        """
        self._grants.update(decided)
        for decision, event, result in (
            ("approved", "PERMISSION_GRANTED", "SUCCESS"),
            ("denied", "PERMISSION_DENIED", "DENIED"),
        ):
            if names := [name for name, grant in decided.items() if grant.decision == decision]:
                details = {"permissions": names, "policy": self._approval.policy}
                self._audit.report(event, result=result, details=details)
        if self.send is not None:
            await send_grants(self.send, request_id or str(uuid4()), decided, self._audit.actor)

    def require_approved(self, tool: str, names: Sequence[str]) -> None:
        """Raises PermissionDenied unless all of these are approved."""
        missing = {name: held.decision for name in names if (held := self._find_grant(name)).decision != "approved"}
        if not missing:
            return
        listed = "; ".join(f"{name}: {decision}" for name, decision in missing.items())
        if "denied" in missing.values():
            why = f"needs what this client does not grant ({listed}): approve it"
        else:
            why = f"waits for a decision of this client ({listed}): decide and call again"
        raise PermissionDenied(
            f"{tool} {why}, or list it in Mgp(granted=[…])",
            details={"tool": tool, "missing": missing},
            retryable="denied" not in missing.values(),
        )

    def check_server_permissions(self, server: str, names: Sequence[str]) -> None:
        """Raises PermissionDenied for a server that needs what a policy denies it: it is not connected (§3.4)."""
        denied = {name: "denied" for name in names if self._find_grant(name).decision == "denied"}
        if denied and self._approval.policy == "deny_all":
            raise PermissionDenied(
                f"{server} needs {', '.join(denied)}, which the policy {self._approval.policy} denies:"
                " list it in Mgp(granted=[…]), or use another policy",
                details={"server": server, "missing": denied},
            )

    def make_grants_meta(self) -> dict[str, Any]:
        """What a call carries in `_meta` if there is no session."""
        grants = {name: grant.to_wire() for name, grant in self._grants.items()}
        return {GRANT_META_KEYS[0]: grants} if grants else {}

    def _find_grant(self, name: str) -> Grant:
        """The decision about a permission: its own, or the one about its whole family."""
        families = (family for family, members in PERMISSION_FAMILIES.items() if name in members)
        found = next((self._grants[each] for each in (name, *families) if each in self._grants), DEFERRED)
        return found if found.holds(vocabulary.utc_now()) else DEFERRED

    def _is_settled(self, name: str) -> bool:
        held = self._find_grant(name)
        is_deferred_for_good = self._grants.get(name) == held and not self._approval.can_ask(self._answers)
        return held.decision != "deferred" or is_deferred_for_good


# -- MGP §3.5, §3.6 on the wire: a server is asked to wait for decisions, and told of them. Each method has two names.


Send = Callable[[str, Mapping[str, Any]], Awaitable[Any]]

# The same request by its older and its newer name, in the order they are tried.
PERMISSION_REQUEST_METHODS: Final = ("mgp/permission/request", "mgp/permission/await")
TELL_METHODS: Final = ("mgp/permission/grant", "mgp/permission/response")

log = get_logger("client")


async def send_grants(send: Send, id: str, decided: Mapping[str, Grant], by: str) -> None:
    """Tell a server what was decided about its permissions."""
    # §3.6 has one expiry for all grants of a message.
    for until in dict.fromkeys(grant.expires_at for grant in decided.values()):
        grants = {name: grant.decision for name, grant in decided.items() if grant.expires_at == until}
        told = {"request_id": id, "grants": grants, "approved_by": by}
        await send_known(send, TELL_METHODS, {**told, "expires_at": vocabulary.format_instant(until)})


async def send_known(send: Send, methods: Sequence[str], params: Mapping[str, Any]) -> None:
    """Send it under the first name that the server knows. Our own refusals apply in any case."""
    for method in methods:
        try:
            await send(method, params)
            return
        except PeerError as error:
            if type(error) is not PeerError:
                raise
            if error.code != MethodNotFound.code:
                log.warning("the server did not take %s: %s", method, error)
                return
    log.warning("the server does not know %s", " or ".join(methods))
