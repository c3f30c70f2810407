"""What participants of a topic (MCPx) import: people and programs that talk, propose and approve in one place."""

from defserve.protocols.mcpx.participant import NotCapable, NotPresent, NotWelcome, Participant, ProposalNotPending
from defserve.protocols.mcpx.proposals import ApprovalRules, Proposal
from defserve.protocols.mcpx.topic import Chat, Presence, ProposalRejected, ProposalWithdrawn, Welcome

__all__ = [
    "ApprovalRules",
    "Chat",
    "NotCapable",
    "NotPresent",
    "NotWelcome",
    "Participant",
    "Presence",
    "Proposal",
    "ProposalNotPending",
    "ProposalRejected",
    "ProposalWithdrawn",
    "Welcome",
]
