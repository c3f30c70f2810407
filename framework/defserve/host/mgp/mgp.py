"""MGP for a client, as one object: `Client(link, mgp=Mgp(approval="config_only", granted=["network.outbound"]))`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from defserve.host.answers import Answers
from defserve.host.mgp.permissions.approval import Approval, Approve, Policy
from defserve.host.mgp.said import mgp_offer
from defserve.host.mgp.security.confirmation import Confirm
from defserve.host.mgp.security.validation import CallValidation, Checks
from defserve.protocols.mgp.audit.sinks import AuditLogger, AuditSink, AuditSinks, sinks_of

# Older and newer names, so that old and new servers each find their own.
EXTENSIONS: Final = (
    "security",
    "permissions",
    "tool_security",
    "access_control",
    "audit",
    "code_safety",
    "events",
    "streaming",
    "lifecycle",
)
ASKING: Final = ("bidirectional", "callbacks")


class Mgp:
    """How a host guards its calls. It holds no connection: many clients may share one.

    approval    who approves permissions: "interactive", "auto_approve", "deny_all" or "config_only" (§3.3);
                "deny_all" does not connect to a server that needs what is not in `granted`
    approve     for `interactive`: (permission, risk, server id) to True, False, None (later), a decision or a Grant;
                without it the client's `answers` are asked
    granted     permissions that are approved under every policy
    confirm     (tool, arguments, security) to True or False before a dangerous call (§4.4); without it the client's
                `answers` are asked
    confirm_moderate  ask before moderate calls, too
    validators  tool, or "*", to standard validators, functions, or "none", added to what tools declare (§4.5)
    audit       sinks or file names of the audit trail (§6); the default is the logger `defserve.audit`
    retry       retry as the server says, and then call its fallback tool (§14.6)
    extensions  what to offer; None offers everything, but callbacks only if `answers` can be asked

    Validators, permissions and confirmation also apply to servers without MGP. Those get no MGP messages.
    """

    def __init__(
        self,
        approval: Policy = "interactive",
        approve: Approve | None = None,
        granted: Sequence[str] = (),
        confirm: Confirm | None = None,
        *,
        confirm_moderate: bool = False,
        validators: Mapping[str, Checks] | None = None,
        audit: AuditSinks | None = None,
        retry: bool = True,
        extensions: Sequence[str] | None = None,
    ) -> None:
        self.approval = Approval(approval, granted, approve)
        self.confirm, self.confirm_moderate = confirm, confirm_moderate
        self.validation = CallValidation(validators or {})
        self.retry, self.extensions, self._audit = retry, extensions, audit

    @cached_property
    def sinks(self) -> tuple[AuditSink, ...]:
        """Where the audit trail goes. Files are opened with the first connection."""
        return sinks_of(self._audit if self._audit is not None else AuditLogger())

    def offered(self, answers: Answers) -> tuple[str, ...]:
        """The extensions that this client offers."""
        if self.extensions is not None:
            return tuple(self.extensions)
        return EXTENSIONS + ASKING if answers.ask is not None else EXTENSIONS

    def capabilities(self, answers: Answers) -> dict[str, dict[str, Any]]:
        """Era → the client capabilities that offer MGP (§2.2)."""
        return mgp_offer(self.offered(answers))
