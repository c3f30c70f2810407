"""MGP §3: permission declarations. What a caller's tools may use: what policy grants, unless the client decided.

The client's word is the last, and it wears off: `denied` and `deferred` hold against the operator's policy, and an
approval whose time is over is as good as none. Grants live as long as the session. Without sessions they travel with
each request, in `_meta`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeGuard, get_args

from defserve.core.call import Call
from defserve.errors import InvalidParams, LimitExceeded, MethodNotFound, UsageError
from defserve.protocols.mcp.authorization.authorization import identity
from defserve.protocols.mcp.failures import VENDOR
from defserve.protocols.mcp.params import fields, meta
from defserve.protocols.mgp import instants
from defserve.protocols.mgp.agreed import EXTENSION_ID
from defserve.protocols.mgp.errors import PermissionDenied
from defserve.protocols.mgp.extension import guarded, sections
from defserve.protocols.mgp.options import Policy
from defserve.protocols.mgp.security.security import CUSTOM, PERMISSIONS, checked_permission
from defserve.wire.jsonvalue import is_array, is_object
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.auth.principals import Principal
    from defserve.protocols.mcp.tools.tools import Tool
    from defserve.protocols.mgp.extension import MGP

Decision = Literal["approved", "denied", "deferred"]

OPERATOR = "operator"
GRANT_KEYS = (EXTENSION_ID + "/grants", VENDOR + "grants")
MOST_NAMES = LONGEST_TEXT = 256

# §2.3 shows bare family names where §3.2 has none: on the way in they stand for the whole family.
FAMILIES: Mapping[str, tuple[str, ...]] = {
    family: tuple(name for name in PERMISSIONS if name.startswith(family + "."))
    for family in dict.fromkeys(name.partition(".")[0] for name in PERMISSIONS if "." in name)
}


class Standing(NamedTuple):
    """How it stands with one permission of one caller; `why` completes "shell.execute: …" where it is not approved."""

    decision: Decision
    by: str | None = None
    expires_at: datetime | None = None
    why: str = ""


UNDECIDED = Standing("deferred", why="nobody has granted it")
GRANTED = Standing("approved", OPERATOR)
NOT_THEIRS = Standing("denied", why="an anonymous client can give permissions up, not grant them")
UNKNOWN = Standing("denied", why="there is no such permission")
_WHY: Mapping[Decision, str] = {
    "approved": "",
    "denied": "the client denied it",
    "deferred": "the client has put off its decision",
}


class Decided:
    """What the client of a session has decided, by permission."""

    __slots__ = ("standings",)

    def __init__(self) -> None:
        self.standings: dict[str, Standing] = {}


class Permissions:
    """`mgp/permission/*`, and the gate before every tool that declares permissions. `clock` is the wall clock."""

    def __init__(self, mgp: MGP, *, clock: Callable[[], datetime] = instants.now) -> None:
        self._mgp, self.clock = mgp, clock
        policy, granted = mgp.options.permissions, mgp.options.granted
        if policy is not None and policy not in get_args(Policy):
            raise UsageError(f"permissions={policy!r} is not a policy", fix=f"use one of {', '.join(get_args(Policy))}")
        if isinstance(granted, str):
            raise UsageError(f"granted={granted!r} is not a list", fix=f"write granted=[{granted!r}]")
        self._granted = frozenset(checked_permission(name, "Server(granted=…)") for name in granted)

    def required(self, tools: Iterable[Tool]) -> list[str]:
        """Every permission that one of the tools needs."""
        found = [guard.security.permissions for tool in tools if (guard := guarded(tool)) is not None]
        return sorted(frozenset[str]().union(*found))

    def admit(self, call: Call, tool: Tool) -> None:
        """Raises PermissionDenied unless everything the tool needs is approved."""
        guard = guarded(tool)
        if guard is None or not guard.security.permissions:
            return
        standings = self.standings(call, guard.security.permissions)
        missing = {name: standing for name, standing in standings.items() if standing.decision != "approved"}
        if missing:
            raise self._missing(call, tool, missing)
        if _is_stateless(call):
            self._report_sent_along(call, tool, standings)

    def standings(self, call: Call, names: Iterable[str]) -> dict[str, Standing]:
        """How it stands now with each of these permissions."""
        decided, caller, now = self._decided(call), identity(call.session), self.clock()
        found: dict[str, Standing] = {}
        for name in names:
            standing = decided.get(name)
            if standing is None:
                standing = GRANTED if self._policy_grants(caller, name) else UNDECIDED
            elif standing.expires_at is not None and standing.expires_at <= now:
                standing = Standing("deferred", why=f"what was decided held until {instants.wire(standing.expires_at)}")
            found[name] = standing
        return found

    # -- methods (§3.5, §3.6) ----------------------------------------------------------------------------

    def request(self, call: Call, params: Params) -> Params:
        """How it stands with the permissions a client names. Asking changes nothing."""
        request_id, names = _request_id(params), params.get("permissions")
        if not is_array(names) or not all(isinstance(name, str) for name in names):
            raise InvalidParams("Invalid params: permissions must be a list of names")
        _check_size(names)
        meant = [permission for name in names for permission in _meant_by(name)]
        return request_id | _answer(self.standings(call, meant), _unknown(names))

    def grant(self, call: Call, params: Params) -> Params:
        """The client's decision, kept until the session ends. Whoever it says approved: it is the caller who did."""
        if _is_stateless(call):
            raise MethodNotFound(
                f"{call.method}: nothing is remembered between requests; send grants along as _meta[{GRANT_KEYS[0]!r}]"
            )
        request_id, sent = _request_id(params), fields(params, "grants")
        decisions = self._read(call, sent, instants.read(params.get("expires_at"), "expires_at"))
        kept = call.session.local(Decided).standings
        if len(kept.keys() | decisions) > MOST_NAMES:
            raise LimitExceeded(f"more than {MOST_NAMES} permissions in one session", data={"limit": "permissions"})
        before = self.standings(call, decisions)
        kept.update(decisions)
        after = self.standings(call, decisions)
        self._report(call, before, after)
        return request_id | _answer(after, _unknown(sent))

    # -- who says what -----------------------------------------------------------------------------------

    def _policy_grants(self, caller: Principal, name: str) -> bool:
        default: Policy = "config_only" if caller.kind == "anonymous" else "operator"
        policy = self._mgp.options.permissions or default
        return policy == "operator" or (policy == "config_only" and name in self._granted)

    def _decided(self, call: Call) -> Mapping[str, Standing]:
        if "permissions" not in sections(call):
            return {}
        if not _is_stateless(call):
            found = call.session.peek(Decided)
            return found.standings if found is not None else {}
        sent = meta(call.params)
        grants = next((sent[key] for key in GRANT_KEYS if key in sent), None)
        if grants is None:
            return {}
        if not is_object(grants):
            raise InvalidParams(f"Invalid params: _meta[{GRANT_KEYS[0]!r}] must be an object")
        return self._read(call, grants, None)

    def _read(self, call: Call, grants: Params, expires_at: datetime | None) -> dict[str, Standing]:
        """What a client's grants amount to, by full names; a permission named in full is not subject to its family."""
        caller, found = identity(call.session), dict[str, Standing]()
        is_stranger = caller.kind == "anonymous" and not caller.is_shared_identity
        _check_size(grants)
        for name in sorted(grants, key=FAMILIES.__contains__, reverse=True):
            decision, until = _decision(name, grants[name], expires_at)
            for meant in _meant_by(name):
                may = decision != "approved" or not is_stranger or self._policy_grants(caller, meant)
                found[meant] = Standing(decision, caller.id, until, _WHY[decision]) if may else NOT_THEIRS
        return found

    # -- telling -----------------------------------------------------------------------------------------

    def _missing(self, call: Call, tool: Tool, missing: Mapping[str, Standing]) -> PermissionDenied:
        told = "; ".join(f"{name}: {standing.why}" for name, standing in missing.items())
        plural = "permissions" if len(missing) > 1 else "a permission"
        return PermissionDenied(
            f"{tool.name} needs {plural} it does not have ({told}). {self._road(call, list(missing))}",
            details={"tool": tool.name, "missing": {name: standing.decision for name, standing in missing.items()}},
        )

    def _road(self, call: Call, names: list[str]) -> str:
        caller = identity(call.session)
        if caller.kind == "anonymous" and not caller.is_shared_identity:
            return f"Authenticate, or have the operator add it to Server(granted={names!r})."
        if "permissions" not in sections(call):
            return f'The operator grants it: Server(permissions="config_only", granted={names!r}).'
        if _is_stateless(call):
            return f"The client grants it by sending _meta[{GRANT_KEYS[0]!r}] along."
        return "The client grants it with mgp/permission/grant."

    def _report(self, call: Call, before: Mapping[str, Standing], after: Mapping[str, Standing]) -> None:
        events: dict[str, list[str]] = {}
        for name, standing in after.items():
            event = _event(before[name], standing)
            if event is not None:
                events.setdefault(event, []).append(name)
        for event, names in events.items():
            details: Params = {"permissions": names}
            expiries = {name: instants.wire(after[name].expires_at) for name in names if after[name].expires_at}
            if expiries:
                details["expires_at"] = expiries
            result = "DENIED" if event == "PERMISSION_DENIED" else "SUCCESS"
            self._mgp.audit.report(call, event, result=result, details=details)

    def _report_sent_along(self, call: Call, tool: Tool, standings: Mapping[str, Standing]) -> None:
        given = [name for name, standing in standings.items() if standing.by != OPERATOR]
        if given:
            self._mgp.audit.report(call, "PERMISSION_GRANTED", tool=tool.name, details={"permissions": given})


# -- reading and answering -------------------------------------------------------------------------------


def _is_stateless(call: Call) -> bool:
    return call.terms.offer is not None and call.terms.offer.stateless


def _meant_by(name: str) -> tuple[str, ...]:
    """The permissions a peer's word stands for; none for one nobody knows."""
    return FAMILIES.get(name) or ((name,) if name in PERMISSIONS or CUSTOM.fullmatch(name) else ())


def _unknown(names: Iterable[str]) -> list[str]:
    return [name for name in names if not _meant_by(name)]


def _check_size(names: Collection[str]) -> None:
    if len(names) > MOST_NAMES or any(len(name) > LONGEST_TEXT for name in names):
        raise InvalidParams(f"Invalid params: at most {MOST_NAMES} permissions of {LONGEST_TEXT} characters each")


def _decision(name: str, value: Any, expires_at: datetime | None) -> tuple[Decision, datetime | None]:
    """One decision in any of its forms: `"approved"`, `{"decision": "approved"}`, `{"granted": true}`."""
    given = value
    if is_object(value) and ("decision" in value) != ("granted" in value):
        granted = value.get("granted")
        given = ("approved" if granted else "denied") if isinstance(granted, bool) else value.get("decision")
        expires_at = instants.read(value.get("expires_at"), f"grants[{name!r}].expires_at") or expires_at
    if not _is_decision(given):
        raise InvalidParams(f"Invalid params: grants[{name!r}] must be one of {', '.join(get_args(Decision))}")
    return given, expires_at


def _is_decision(value: object) -> TypeGuard[Decision]:
    return isinstance(value, str) and value in get_args(Decision)


def _event(before: Standing, after: Standing) -> str | None:
    if after.decision == "approved":
        return "PERMISSION_GRANTED"
    if before.decision == "approved":
        return "PERMISSION_REVOKED"
    return "PERMISSION_DENIED" if after.decision == "denied" else None


def _answer(standings: Mapping[str, Standing], unknown: Iterable[str]) -> Params:
    """The result of §3.6. `reasons`, an addition, says of what is denied why."""
    told = {**standings, **dict.fromkeys(unknown, UNKNOWN)}
    approved = [standing for standing in told.values() if standing.decision == "approved"]
    answer: Params = {
        "grants": {name: standing.decision for name, standing in told.items()},
        "approved_by": ", ".join(sorted({standing.by for standing in approved if standing.by})) or None,
        "expires_at": instants.wire(min((s.expires_at for s in approved if s.expires_at), default=None)),
    }
    reasons = {name: standing.why for name, standing in told.items() if standing.decision == "denied"}
    if reasons:
        answer["reasons"] = reasons
    return answer


def _request_id(params: Params) -> Params:
    found = params.get("request_id")
    if found is None:
        return {}
    if isinstance(found, bool) or not isinstance(found, str | int):
        raise InvalidParams("Invalid params: request_id must be a string or an integer")
    if isinstance(found, str) and len(found) > LONGEST_TEXT:
        raise InvalidParams(f"Invalid params: request_id is longer than {LONGEST_TEXT} characters")
    return {"request_id": found}
