"""MGP §3.3: who approves the permissions that a server asks for. The server is told the decision; it cannot decide."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from defserve.errors import UsageError
from defserve.host.answers import Answers, settled
from defserve.host.person import agrees
from defserve.protocols.mgp import instants
from defserve.protocols.mgp.permissions.grants import PermissionDecision
from defserve.protocols.mgp.security.vocabulary import FAMILIES, PERMISSIONS, checked_permission
from defserve.redaction import printable

Policy = Literal["interactive", "auto_approve", "deny_all", "config_only"]
WAITING = {"interactive": "Waiting for operator approval"}
"""Policy → what the server is told while it waits (§3.5). The other policies decide at once."""


class Grant(NamedTuple):
    """A decision, and when it expires."""

    decision: PermissionDecision
    expires_at: datetime | None = None

    def holds(self, now: datetime) -> bool:
        """Whether it has not expired."""
        return self.expires_at is None or now < self.expires_at

    def wire(self) -> Any:
        """The decision as a call carries it in `_meta`, with its expiry if it has one."""
        until = instants.wire(self.expires_at)
        return self.decision if until is None else {"decision": self.decision, "expires_at": until}


Approved: TypeAlias = bool | PermissionDecision | Grant | None
"""True approves, False denies, None defers the decision."""
Approve: TypeAlias = Callable[[str, str, str], Approved | Awaitable[Approved]]

# The decision about a permission that is not in `granted`, by the policies that ask nobody.
_OTHERS: dict[str, PermissionDecision] = {"auto_approve": "approved", "deny_all": "denied", "config_only": "deferred"}


class Approval:
    """One policy. `granted` is approved under every policy. `interactive` asks `approve`, or else the person."""

    def __init__(self, policy: Policy, granted: Sequence[str], approve: Approve | None) -> None:
        if policy not in get_args(Policy):
            raise UsageError(f"approval={policy!r} is not a policy", fix=f"use one of {', '.join(get_args(Policy))}")
        if isinstance(granted, str):
            raise UsageError(f"granted={granted!r} is not a list", fix=f"write granted=[{granted!r}]")
        self.policy, self._approve = policy, approve
        self._granted = frozenset(checked_permission(name, "Mgp(granted=…)") for name in granted)

    def can_ask(self, answers: Answers) -> bool:
        """Whether a person or function can decide. Then it makes sense to ask again about a deferred permission."""
        return self.policy == "interactive" and (self._approve is not None or answers.ask is not None)

    @property
    def message(self) -> str:
        """What a server is told with the request for its permissions."""
        return WAITING.get(self.policy, f"Decided by the policy {self.policy}")

    @property
    def rejects(self) -> bool:
        """Whether a server that is denied a permission of its own is not used at all (§3.3, §3.4)."""
        return self.policy == "deny_all"

    async def decide(self, permission: str, server: str, answers: Answers) -> Grant:
        """The decision about one permission of one server."""
        if self._granted.issuperset(FAMILIES.get(permission, (permission,))):
            return Grant("approved")
        if self.policy != "interactive":
            return Grant(_OTHERS[self.policy])
        if self._approve is None:
            question = f"Allow {printable(server)} to use {printable(permission)} ({risk_of(permission)})?"
            return _grant(await agrees(answers, question, "approved"))
        return _grant(await settled(self._approve(permission, risk_of(permission), server)))


def risk_of(permission: str) -> str:
    """The risk of a permission (§3.2); of a family, the highest one. An unknown permission counts as dangerous."""
    risks = {PERMISSIONS.get(member, "dangerous") for member in FAMILIES.get(permission, (permission,))}
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
