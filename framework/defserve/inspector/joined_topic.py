"""A seat in a topic of a gateway: who is there, what is proposed, what was said. The person at the page decides."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import Any, Final

from pydantic_core import to_json

from defserve.base.peer_bounds import RecentItems
from defserve.client.topic_client import ProposalText, TopicClient
from defserve.errors import UsageError
from defserve.inspector.protocol import Json
from defserve.inspector.recording.masking import mask_value
from defserve.protocols.mcpx.proposals import Proposal
from defserve.protocols.mcpx.topic import Chat, GatewayRefusal, Presence, TopicEvent

MAX_CHAT_MESSAGES: Final = 200
MAX_PROPOSALS: Final = 100
MAX_TEXT_LENGTH: Final = 4_000
SETTLE_SECONDS: Final = 0.1
TICK_SECONDS: Final = 5.0
"""Proposals expire without a message."""


class JoinedTopic:
    """What one participant of a topic knows, for the page."""

    def __init__(self, me: TopicClient) -> None:
        self.me = me
        self._said: RecentItems[Json] = RecentItems(MAX_CHAT_MESSAGES)
        self._changed = asyncio.Event()

    async def listen(self) -> None:
        """Take what happens, until the gateway leaves."""
        async for heard in self.me.heard():
            if (line := _line(heard)) is not None:
                self._said.append({"time": time.time(), **line})
            self._changed.set()
        self._changed.set()

    async def wait_for_change(self) -> None:
        """Wait until something has happened, or may have expired. Several things are told as one."""
        try:
            async with asyncio.timeout(TICK_SECONDS):
                await self._changed.wait()
        except TimeoutError:
            return
        await asyncio.sleep(SETTLE_SECONDS)
        self._changed.clear()

    def describe_topic(self) -> Json:
        """Everything that the page shows."""
        me = self.me
        present = {me.id: me.capabilities, **me.participants}
        return {
            "me": me.id,
            "participants": [{"name": name, "may": list(held.patterns)[:50]} for name, held in present.items()],
            "proposals": [_describe_proposal(each, present) for each in list(me.topic.proposals)[-MAX_PROPOSALS:]],
            "said": list(self._said),
        }

    def proposal(self, digest: str) -> Proposal:
        """The one that was shown with this digest. Raises UsageError for one that is over and forgotten."""
        if (found := next((each for each in self.me.topic.proposals if each.digest == digest), None)) is None:
            raise UsageError("this proposal is over", fix="ask its proposer to propose it again")
        return found

    async def approve(self, digest: str, name: str) -> Json:
        """Have it done: by whom it names, else by `name`, else by the only one who can."""
        proposal = self.proposal(digest)
        target = name or proposal.target
        if target is None:
            able = await self.me.candidates(proposal)
            if len(able) != 1:
                return {"able": able}
            target = able[0]
        return {"result": await self.me.fulfil(proposal, to=target), "by": target}


def _describe_proposal(proposal: Proposal, present: Collection[str]) -> Json:
    text = ProposalText(proposal, present)
    return {
        "digest": proposal.digest,
        "status": proposal.status,
        "proposer": text.proposer,
        "to": text.who,
        "what": text.what,
        "arguments": "\n".join(line.removeprefix("  ") for line in text.lines),
        "warning": text.warning,
        "created": proposal.created,
        "by": proposal.fulfiller,
        "reason": proposal.reason[:MAX_TEXT_LENGTH],
        "error": str((proposal.error or {}).get("message", ""))[:MAX_TEXT_LENGTH],
        "result": _short(proposal.result) if proposal.result is not None else "",
    }


def _short(value: Any) -> str:
    """As JSON, laid out here: the page would read numbers less exactly than who is asked to do it."""
    text = to_json(mask_value(value), indent=2).decode()
    return text if len(text) <= MAX_TEXT_LENGTH else f"{text[:MAX_TEXT_LENGTH]}…"


def _line(heard: TopicEvent) -> Json | None:
    match heard:
        case Chat():
            return {"kind": "chat", "who": heard.sender, "text": heard.text[:MAX_TEXT_LENGTH]}
        case Presence():
            return {"kind": "presence", "who": heard.participant, "text": "is here" if heard.joined else "has left"}
        case GatewayRefusal():
            return {"kind": "problem", "who": "gateway", "text": (heard.message or heard.error)[:MAX_TEXT_LENGTH]}
        case _:
            return None
