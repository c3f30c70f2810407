"""What happens in a topic, as lines for a person or as JSON."""

from __future__ import annotations

import json
from typing import Any, Final

from defserve.protocols.mcpx.proposals import Proposal
from defserve.protocols.mcpx.topic import (
    Chat,
    GatewayProblem,
    Heard,
    Presence,
    ProposalRejected,
    ProposalWithdrawn,
    Spoofed,
    TopicRequest,
    TopicResponse,
    Welcome,
)

LONGEST: Final = 300

EVENTS: Final[dict[type, str]] = {
    Welcome: "welcome",
    Presence: "presence",
    GatewayProblem: "problem",
    Chat: "chat",
    Proposal: "proposal",
    ProposalRejected: "rejected",
    ProposalWithdrawn: "withdrawn",
    TopicRequest: "asked",
    TopicResponse: "answered",
    Spoofed: "spoofed",
}
"""What `--json` calls them."""


def describe(heard: Heard, number: int | None = None) -> str:
    """One line for a person."""
    match heard:
        case Chat():
            return f"{heard.sender}: {heard.text}"
        case Presence():
            return f"{heard.participant} {'is here' if heard.joined else 'has left'}"
        case Proposal():
            what = short({"method": heard.method, **heard.params})
            return f"[{number}] {heard.proposer} proposes to {', '.join(heard.to) or 'anyone'}: {what}"
        case ProposalRejected():
            ends = "" if heard.final else "; it still waits for others"
            return f"[{number}] {heard.envelope.sender} rejects it{_because(heard.reason)}{ends}"
        case ProposalWithdrawn():
            return f"[{number}] {heard.envelope.sender} withdraws it{_because(heard.reason)}"
        case TopicRequest():
            fulfils = f", as {heard.fulfils.proposer} proposed" if heard.fulfils else ""
            return f"{heard.envelope.sender} asks {', '.join(heard.envelope.to) or 'everyone'}: {heard.kind}{fulfils}"
        case TopicResponse():
            body = heard.envelope.body
            return f"{heard.envelope.sender} answers {heard.kind}: {short(body.get('result', body.get('error')))}"
        case Spoofed():
            return f"{heard.envelope.sender} sent a message that does not match its kind ({heard.kind}): {heard.reason}"
        case GatewayProblem():
            return f"{'gone' if heard.error == 'replaced' else 'refused'}: {heard.message or heard.error}"
        case _:
            return "your capabilities have changed"


def facts(heard: Heard) -> dict[str, Any]:
    """What `--json` adds to the line."""
    match heard:
        case Chat():
            return {"from": heard.sender, "to": heard.to, "id": heard.id, "about": heard.about}
        case Presence():
            return {"participant": heard.participant, "joined": heard.joined}
        case Proposal():
            return heard.wire()
        case ProposalRejected() | ProposalWithdrawn():
            return {"from": heard.envelope.sender, "reason": heard.reason, **heard.proposal.wire()}
        case TopicRequest() | TopicResponse() | Spoofed():
            envelope = heard.envelope
            return {"from": envelope.sender, "to": envelope.to, "kind": envelope.kind, "id": envelope.id}
        case GatewayProblem():
            return {"error": heard.error, "about": heard.about}
        case _:
            return {}


def _because(reason: str) -> str:
    return f": {reason[:LONGEST]}" if reason else ""


def short(value: Any) -> str:
    """A value as JSON, cut after LONGEST characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
