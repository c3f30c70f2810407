"""Permissions of a server (MGP §3): who approves them, and what was granted.

The server is told the decision and cannot change it. An expired grant does not count.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args
from uuid import uuid4

from defserve.base.redaction import escape_unprintable
from defserve.client.answers import Answers, ask_yes_or_no, maybe_await
from defserve.client.audit import MgpAuditTrail
from defserve.errors import MethodNotFound, PeerError, UsageError
from defserve.protocols.mgp import vocabulary
from defserve.protocols.mgp.errors import PermissionDenied
from defserve.protocols.mgp.vocabulary import (
    GRANT_META_KEYS,
    PERMISSION_FAMILIES,
    PERMISSION_RISKS,
    PermissionDecision,
    PermissionRequest,
    check_permission,
)

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


class PermissionApproval:
    """One policy. `granted` is approved under every policy. `interactive` asks `approve`, or else the person."""

    def __init__(self, policy: PermissionPolicy, granted: Sequence[str], approve: ApprovePermission | None) -> None:
        if policy not in get_args(PermissionPolicy):
            raise UsageError(
                f"approval={policy!r} is not a policy", fix=f"use one of {', '.join(get_args(PermissionPolicy))}"
            )
        if isinstance(granted, str):
            raise UsageError(f"granted={granted!r} is not a list", fix=f"write granted=[{granted!r}]")
        self.policy, self._approve = policy, approve
        self._granted = frozenset(check_permission(name, "Mgp(granted=…)") for name in granted)

    def can_ask(self, answers: Answers) -> bool:
        """Whether a person or function can decide. Then it makes sense to ask again about a deferred permission."""
        return self.policy == "interactive" and (self._approve is not None or answers.ask is not None)

    async def decide(self, permission: str, server: str, answers: Answers) -> Grant:
        """The decision about one permission of one server."""
        if self._granted.issuperset(PERMISSION_FAMILIES.get(permission, (permission,))):
            return Grant("approved")
        if self.policy != "interactive":
            return Grant(_OTHERS[self.policy])
        if self._approve is None:
            what = f"{escape_unprintable(permission)} ({get_permission_risk(permission)})"
            question = f"Allow {escape_unprintable(server)} to use {what}?"
            return _grant(await ask_yes_or_no(answers, question, "approved"))
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

    def __init__(self, approval: PermissionApproval, answers: Answers, audit: MgpAuditTrail) -> None:
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
                await send_known(self.send, ASK_METHODS, asked.to_wire())
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
ASK_METHODS: Final = ("mgp/permission/request", "mgp/permission/await")
TELL_METHODS: Final = ("mgp/permission/grant", "mgp/permission/response")

log = logging.getLogger("defserve.client")


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
