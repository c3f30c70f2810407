"""MGP §3: permission declarations. The client's decision counts; without one, the operator's policy does.

The client decides last. Its `denied` and `deferred` hold against the operator's policy, and an expired approval counts
as none. Grants live as long as the session. Without sessions they travel with each request, in `_meta`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, get_args

from defserve.auth.authority import REMEDY, is_stranger
from defserve.core.call import Call
from defserve.errors import InvalidParams, LimitExceeded, MethodNotFound, UsageError
from defserve.protocols.mcp.authorization.authorization import identity
from defserve.protocols.mcp.params import fields, meta
from defserve.protocols.mgp import instants
from defserve.protocols.mgp.agreed import sections, tool_security
from defserve.protocols.mgp.errors import PermissionDenied
from defserve.protocols.mgp.options import PermissionPolicy, SecurityOptions
from defserve.protocols.mgp.permissions.grants import (
    DENIED,
    GRANT_KEYS,
    GRANTED,
    MOST_NAMES,
    NOT_THEIRS,
    OPERATOR,
    UNDECIDED,
    WHY,
    PermissionStatus,
    answer,
    change_event,
    check_request,
    check_size,
    decision_in,
    meant_by,
    remembered,
    request_id,
    written,
)
from defserve.protocols.mgp.security.vocabulary import FAMILIES, checked_permission
from defserve.wire.jsonvalue import is_object
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.auth.principals import Principal
    from defserve.core.session import Session
    from defserve.protocols.mcp.tools.tools import Tool
    from defserve.protocols.mgp.audit.trail import AuditTrail


DECISION_MS = 2000
"""A person decides in this time, if at all soon. A client waits so long before it tries again."""


class SessionGrants(dict[str, dict[str, PermissionStatus]]):
    """What the client of a session has decided: credential → permission → status. It holds for that credential."""


class PermissionSection:
    """`mgp/permission/*`, and the gate before every tool that declares permissions. `clock` is the wall clock."""

    def __init__(self, options: SecurityOptions, audit: Callable[[], AuditTrail]) -> None:
        self._policy, self._audit, self.clock = options.permissions, audit, instants.now
        policies, granted = get_args(PermissionPolicy), options.granted
        if self._policy is not None and self._policy not in policies:
            raise UsageError(f"permissions={self._policy!r} is not a policy", fix=f"use one of {', '.join(policies)}")
        if isinstance(granted, str):
            raise UsageError(f"granted={granted!r} is not a list", fix=f"write granted=[{granted!r}]")
        self._granted = frozenset(checked_permission(name, "Server(granted=…)") for name in granted)

    def required(self, tools: Iterable[Tool]) -> list[str]:
        """Every permission that one of the tools needs."""
        needed = [found.security.permissions for tool in tools if (found := tool_security(tool)) is not None]
        return sorted(frozenset[str]().union(*needed))

    def admit(self, call: Call, tool: Tool) -> None:
        """Raises PermissionDenied unless everything the tool needs is approved."""
        found = tool_security(tool)
        if found is None or not found.security.permissions:
            return
        statuses = self.statuses(call, found.security.permissions, tool.server_id)
        missing = {name: status for name, status in statuses.items() if status.decision != "approved"}
        if missing:
            raise self._missing(call, tool, missing)
        sent = [name for name, status in statuses.items() if status.by != OPERATOR] if _is_stateless(call) else []
        if sent:
            self._audit().report(call, "PERMISSION_GRANTED", tool=tool.name, details={"permissions": sent})

    def statuses(self, call: Call, names: Iterable[str], server_id: str | None = None) -> dict[str, PermissionStatus]:
        """The status of each of these permissions now. `server_id` is the server behind this one that needs them."""
        decided, caller, now = self._decided(call), identity(call), self.clock()
        open_question = DENIED if self._policy == "deny_all" else UNDECIDED
        found: dict[str, PermissionStatus] = {}
        for name in names:
            if (status := decided.get(name)) is None:
                status = GRANTED if self._policy_grants(caller, name) else open_question
            elif status.expires_at is not None and status.expires_at <= now:
                expired = instants.wire(status.expires_at)
                status = PermissionStatus("deferred", why=f"the client's decision expired at {expired}")
            found[name] = status
        return found

    # -- methods (§3.5, §3.6) ----------------------------------------------------------------------------

    def request(self, call: Call, params: Params) -> Params:
        """The status of the permissions a client names. Asking changes nothing.

        Approved is what somebody has granted: the client, or the operator by name or policy. Without either, known
        callers may use everything until their client denies it. That is no grant, so the answer is `deferred`.
        """
        repeated, names = request_id(params), check_request(params)
        statuses = self.statuses(call, [permission for name in names for permission in meant_by(name)])
        if self._policy is None:
            decided = self._decided(call)
            statuses |= {name: UNDECIDED for name in statuses if name not in decided and name not in self._granted}
        return repeated | answer(statuses, names)

    def grant(self, call: Call, params: Params) -> Params:
        """The client's decision, kept until the session ends. `approved_by` is always the caller, never from params."""
        if _is_stateless(call):
            raise MethodNotFound(
                f"{call.method}: nothing is remembered between requests; send grants along as _meta[{GRANT_KEYS[0]!r}]"
            )
        repeated, sent = request_id(params), fields(params, "grants")
        decisions = self._read(call, sent, instants.read(params.get("expires_at"), "expires_at"))
        kept = call.session.local(SessionGrants).setdefault(identity(call).credential, {})
        if len(kept.keys() | decisions) > MOST_NAMES:
            raise LimitExceeded(f"more than {MOST_NAMES} permissions in one session", data={"limit": "permissions"})
        before = self.statuses(call, decisions)
        kept.update(decisions)
        call.session.kept_changed()
        after = self.statuses(call, decisions)
        self._report_changes(call, before, after)
        return repeated | answer(after, sent)

    def credential_ended(self, session: Session, credential: str) -> None:
        """Forget what was granted with a key or token that is no longer good."""
        if (kept := session.peek(SessionGrants)) is not None and kept.pop(credential, None) is not None:
            session.kept_changed()

    def kept(self, session: Session) -> Params:
        """What the client of a session has decided, for another process: a name for each decision."""
        grants = session.peek(SessionGrants) or SessionGrants()
        return {f"{name}\n{who}": written(each) for who, mine in grants.items() for name, each in mine.items()}

    def restore(self, session: Session, kept: Mapping[str, Any]) -> None:
        """What another process has `kept`."""
        if not kept and session.peek(SessionGrants) is None:
            return
        grants = session.local(SessionGrants)
        grants.clear()
        for name, value in kept.items():
            permission, _, credential = name.partition("\n")
            grants.setdefault(credential, {})[permission] = remembered(value)

    # -- who says what -----------------------------------------------------------------------------------

    def _policy_grants(self, caller: Principal, name: str) -> bool:
        policy = self._policy or ("config_only" if is_stranger(caller) else "operator")
        return policy == "operator" or (policy == "config_only" and name in self._granted)

    def _decided(self, call: Call) -> Mapping[str, PermissionStatus]:
        if "permissions" not in sections(call):
            return {}
        if not _is_stateless(call):
            kept = call.session.peek(SessionGrants)
            return kept.get(identity(call).credential, {}) if kept is not None else {}
        sent = meta(call.params)
        grants = next((sent[key] for key in GRANT_KEYS if key in sent), None)
        if grants is None:
            return {}
        if not is_object(grants):
            raise InvalidParams(f"Invalid params: _meta[{GRANT_KEYS[0]!r}] must be an object")
        return self._read(call, grants, None)

    def _read(self, call: Call, grants: Params, expires_at: datetime | None) -> dict[str, PermissionStatus]:
        """A client's grants by full permission name. A permission named in full takes precedence over its family."""
        caller, found = identity(call), dict[str, PermissionStatus]()
        counts = not is_stranger(caller)
        check_size(grants)
        for name in sorted(grants, key=FAMILIES.__contains__, reverse=True):
            decision, until = decision_in(name, grants[name], expires_at)
            for meant in meant_by(name):
                if counts or decision != "approved":
                    found[meant] = PermissionStatus(decision, caller.id, until, WHY[decision])
                elif self._policy_grants(caller, meant):
                    found[meant] = GRANTED._replace(expires_at=until)
                else:
                    found[meant] = NOT_THEIRS
        return found

    # -- telling -----------------------------------------------------------------------------------------

    def _missing(self, call: Call, tool: Tool, missing: Mapping[str, PermissionStatus]) -> PermissionDenied:
        told = "; ".join(f"{name}: {status.why}" for name, status in missing.items())
        plural = "permissions" if len(missing) > 1 else "a permission"
        details = {"tool": tool.name, "missing": {name: status.decision for name, status in missing.items()}}
        remedy = self._remedy(call, list(missing), tool.server_id)
        is_denied = any(status.decision == "denied" for status in missing.values())
        if is_denied or is_stranger(identity(call)) or "permissions" not in sections(call):
            return PermissionDenied(f"{tool.name} needs {plural} it does not have ({told}). {remedy}", details=details)
        # §3.6: a decision that is put off may still come, so this call may be tried again.
        return PermissionDenied(
            f"{tool.name} waits for a decision ({told}). {remedy} Then call it again.",
            details=details,
            retryable=True,
            retry_after_ms=DECISION_MS,
            retry_strategy="fixed_delay",
            max_retries=3,
        )

    def _remedy(self, call: Call, names: list[str], server_id: str | None) -> str:
        if is_stranger(identity(call)):
            return f"Have the operator add it to Server(granted={names!r}), or {REMEDY}."
        if "permissions" not in sections(call):
            return f'The operator grants it: Server(permissions="config_only", granted={names!r}).'
        if _is_stateless(call):
            return f"The client grants it by sending _meta[{GRANT_KEYS[0]!r}] along."
        return "The client grants it with mgp/permission/grant."

    def _report_changes(
        self, call: Call, before: Mapping[str, PermissionStatus], after: Mapping[str, PermissionStatus]
    ) -> None:
        events: dict[str, list[str]] = {}
        for name, status in after.items():
            if (event := change_event(before[name], status)) is not None:
                events.setdefault(event, []).append(name)
        for event, names in events.items():
            details: Params = {"permissions": names}
            if expiries := {name: instants.wire(after[name].expires_at) for name in names if after[name].expires_at}:
                details["expires_at"] = expiries
            result = "DENIED" if event == "PERMISSION_DENIED" else "SUCCESS"
            self._audit().report(call, event, result=result, details=details)


def _is_stateless(call: Call) -> bool:
    return call.terms.offer is not None and call.terms.offer.stateless
