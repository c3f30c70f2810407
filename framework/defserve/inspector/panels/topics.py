"""The Topics panel: to sit in a topic of a gateway, see who is there, and approve or reject what is proposed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from defserve.errors import PeerGone, UsageError
from defserve.host.mcpx.participant import join_topic
from defserve.inspector.inspection import Inspection
from defserve.inspector.panels.verb import Verb
from defserve.inspector.protocol import BadMessage, Request
from defserve.inspector.topic import JoinedTopic, address_of

MOST_SEATS: Final = 8
MOST_TEXT: Final = 4_000


async def follow(inspection: Inspection, request: Request) -> Any:
    """Join a topic, and tell of it as parts until it is cancelled, which leaves it. The token is not kept."""
    address, token = address_of(request.text("url"), request.text("topic", "")), request.text("token", "") or None
    if len(inspection.seats) >= MOST_SEATS:
        raise UsageError(f"{MOST_SEATS} topics are open", fix="leave one of them")
    async with join_topic(address, token=token) as me:
        number = max(inspection.seats, default=0) + 1
        seat = inspection.seats[number] = JoinedTopic(me)
        listening, told = asyncio.create_task(seat.listen(), name="defserve.inspector topic"), None
        try:
            while not me.over.is_set():
                if (found := seat.told()) != told:
                    told = found
                    request.part({"seat": number, **found})
                await seat.change()
        finally:
            del inspection.seats[number]
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
    raise PeerGone(f"the gateway has closed the connection: {me.end_reason}".rstrip(": "))


async def approve(inspection: Inspection, request: Request) -> Any:
    """Have a proposal done: the `result`; or, if it must be said by whom, those who are `able`."""
    return await _seat(inspection, request).approve(request.text("proposal"), request.text("name", ""))


async def decline(inspection: Inspection, request: Request) -> Any:
    seat = _seat(inspection, request)
    seat.me.decline(seat.proposal(request.text("proposal")), request.text("reason", "")[:MOST_TEXT])


async def say(inspection: Inspection, request: Request) -> Any:
    _seat(inspection, request).me.chat(request.text("text")[:MOST_TEXT])


def _seat(inspection: Inspection, request: Request) -> JoinedTopic:
    if (seat := inspection.seats.get(request.whole("seat"))) is None:
        raise BadMessage("you are not in this topic any more", fix="join it again")
    return seat


VERBS: Final[Mapping[str, Verb]] = {
    "topics.follow": follow,
    "topics.approve": approve,
    "topics.decline": decline,
    "topics.say": say,
}
