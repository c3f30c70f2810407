"""MGP for a client, as one object: `Client(link, mgp=Mgp(approval="config_only", granted=["network.outbound"]))`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from defserve.host.answers import Answers
from defserve.host.mgp.approval import Approval, Approve, Policy
from defserve.host.mgp.confirming import Confirm
from defserve.host.mgp.validating import Checks, Validating
from defserve.protocols.mgp.agreed import EXTENSION_ID, VERSION
from defserve.protocols.mgp.audit.sinks import AuditLogger, AuditSink, AuditSinks, sinks_of

if TYPE_CHECKING:
    from defserve.host.client import Client
    from defserve.host.conversation import Conversation
    from defserve.host.mgp.peer import MgpPeer

# Older and newer names: a server of either age finds its own.
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
    """How a host guards what it calls. Holds no connection: one will do for many clients.

    approval    who approves permissions: "interactive", "auto_approve", "deny_all" or "config_only" (§3.3)
    approve     of `interactive`: (permission, risk, server id) to True, False, None (later), a decision or a Grant;
                without it the client's `answers` are asked
    granted     permissions that are approved under every policy
    confirm     (tool, arguments, security) to True or False before a dangerous call (§4.4); without it the client's
                `answers` are asked
    confirm_moderate  ask before moderate calls, too
    validators  tool, or "*", to standard validators, functions, or "none", on top of what tools declare (§4.5)
    audit       sinks or file names of the audit trail (§6); the logger `defserve.audit` unless something is given
    retry       try again, and the fallback tool last, as the server says (§14.6)
    extensions  what to offer; None offers all there is, callbacks only with answers that can be asked

    Validators, permissions and confirmation hold for servers without MGP, too; nothing of MGP is sent to those.
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
        self.validating = Validating(validators or {})
        self.retry, self.extensions = retry, extensions
        self._audit = audit

    @cached_property
    def sinks(self) -> tuple[AuditSink, ...]:
        """Where the audit trail goes; files are opened with the first connection."""
        return sinks_of(self._audit if self._audit is not None else AuditLogger())

    def peer(self, conversation: Conversation, client: Client, actor: str) -> MgpPeer:
        """The same, applied to one conversation."""
        from defserve.host.mgp.peer import MgpPeer

        return MgpPeer(self, conversation, client, actor)

    def offered(self, answers: Answers) -> tuple[str, ...]:
        """The extensions this client offers."""
        if self.extensions is not None:
            return tuple(self.extensions)
        return EXTENSIONS + ASKING if answers.ask is not None else EXTENSIONS

    def capabilities(self, answers: Answers) -> dict[str, dict[str, Any]]:
        """Era → the client capabilities that make the offer (§2.2)."""
        block = {"version": VERSION, "extensions": list(self.offered(answers))}
        return {
            "handshake": {"mgp": block, "experimental": {"mgp": block}},
            "stateless": {"extensions": {EXTENSION_ID: block}},
        }
