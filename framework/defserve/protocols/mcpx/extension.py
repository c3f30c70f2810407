"""MCPx as an extension: what an author declares for topics. It changes nothing for other peers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from defserve.core.call import Call
from defserve.core.extension import Extension, is_coroutine_function
from defserve.errors import NoBackChannel
from defserve.protocols.mcpx.carrier import ReceivedRequest, TopicCarrier, TopicMembership
from defserve.protocols.mcpx.envelope import Envelope
from defserve.protocols.mcpx.kinds import CHAT
from defserve.protocols.mcpx.participant import Participant
from defserve.protocols.mcpx.proposals import Proposal
from defserve.protocols.mcpx.topic import Chat

ChatHandler: TypeAlias = Callable[[Chat, Participant], Awaitable[None] | None]
ProposalHandler: TypeAlias = Callable[[Proposal, Participant], Awaitable[bool | None] | bool | None]


class MCPX(Extension):
    """Handlers for chat and proposals, and a carrier for each topic.

    It has no `carrier()` of its own: only the connection to a gateway carries envelopes, and the same server may be
    served elsewhere at the same time.
    """

    name = "mcpx"

    def __init__(self) -> None:
        self.chat_handlers: list[ChatHandler] = []
        self.decisions: list[ProposalHandler] = []
        self.carriers: list[TopicCarrier] = []

    def new_carrier(self) -> TopicCarrier:
        """The carrier for one more topic."""
        carrier = TopicCarrier(on_chat=self._chat, on_proposal=self._decide)
        self.carriers.append(carrier)
        return carrier

    async def _chat(self, participant: Participant, chat: Chat) -> None:
        for handler in self.chat_handlers:
            await _called(handler, chat, participant)

    async def _decide(self, participant: Participant, proposal: Proposal) -> None:
        """The first handler that says yes or no decides; None leaves it to the next, and to other participants."""
        for decide in self.decisions:
            answer = await _called(decide, proposal, participant)
            if proposal.status != "pending":
                return
            if answer is True:
                await participant.fulfil(proposal)
            elif answer is False:
                participant.decline(proposal)
            if answer is not None:
                return


def participant_of(call: Call) -> Participant | None:
    """This server's participant in the topic that a call came from; None if the call did not come from a topic."""
    membership = call.session.peek(TopicMembership)
    return membership.participant if membership is not None else None


def chat(call: Call, text: str, to: str | Sequence[str] | None, format: str) -> Envelope:
    """Say something in the topic that a call came from, as part of that call's thread."""
    if (participant := participant_of(call)) is None:
        raise NoBackChannel("chat: this call did not come from a topic")
    about = call.envelope.id if isinstance(call.envelope, ReceivedRequest) else None
    recipients = to if to is None or isinstance(to, str) else tuple(to)
    return participant.chat(text, recipients, format=format, about=about)


def can_chat(call: Call) -> bool:
    participant = participant_of(call)
    return participant is not None and participant.may(CHAT)


async def _called(handler: Callable[..., Any], *args: Any) -> Any:
    if is_coroutine_function(handler):
        return await handler(*args)
    import asyncio

    return await asyncio.to_thread(handler, *args)
