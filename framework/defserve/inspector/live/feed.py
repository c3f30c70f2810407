"""What servers pushed and asked for, with what became of it. The person may be asked about each."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Final, Literal, TypeAlias, cast, get_args

from defserve.host.mcpl.channels.messages import ChannelMessage
from defserve.host.mcpl.push.receiver import EventAnswer, PushedEvent
from defserve.host.mcpl.scopes import Elevation
from defserve.inspector.protocol import BadMessage, Json
from defserve.protocols.mcpl.content import Content, blocks

Mode: TypeAlias = Literal["accept", "ask", "refuse"]
MODES: Final = get_args(Mode)
Version: TypeAlias = Literal["0.4", "0.5"]
VERSIONS: Final = get_args(Version)
MOST_EVENTS: Final = 300
MOST_MESSAGES: Final = 300
MOST_WAITING: Final = 100
LONGEST_TEXT: Final = 4_000


class LiveFeed:
    """The newest events, messages and asked scopes of all eras. `push` tells the pages, by the topic `live`.

    mode  what happens to an event: it is accepted, refused, or waits until the person decides
    off   the feature sets that the person switched off, for conversations that begin later, too
    offered  the version of MCPL that conversations offer
    """

    def __init__(self, push: Callable[[str, Any], object]) -> None:
        self.mode: Mode = "accept"
        self.offered: Version = "0.4"
        self.off: set[str] = set()
        self.scopes: dict[str, dict[str, list[str]]] = {}
        self.events: deque[Json] = deque(maxlen=MOST_EVENTS)
        self.messages: deque[Json] = deque(maxlen=MOST_MESSAGES)
        self.asked: dict[int, Json] = {}
        self._push, self._numbers = push, count(1)
        self._waiting: dict[int, asyncio.Future[bool]] = {}

    async def event(self, era: str, event: PushedEvent) -> EventAnswer:
        """Take an event. The receipt that the server gets says what became of it."""
        row: Json = {
            "number": next(self._numbers),
            "era": era,
            "id": event.id,
            "set": event.feature_set,
            "text": text_of(event.content),
            "at": time.time(),
            "state": "waits" if self.mode == "ask" else "accepted" if self.mode == "accept" else "refused",
            "reason": "" if self.mode != "refuse" else "the inspector refuses events",
        }
        self.events.append(row)
        self._push("live", {"kind": "event", "row": row})
        if self.mode == "ask":
            state, reason = "refused", "the server no longer waits"
            try:
                is_accepted = await self._decided(row["number"])
                state = "accepted" if is_accepted else "refused"
                reason = "" if is_accepted else "the person at the inspector refused it"
            finally:
                row["state"], row["reason"] = state, reason
                self._push("live", {"kind": "event", "row": row})
        return EventAnswer(row["state"] == "accepted", reason=row["reason"] or None)

    @contextmanager
    def inference(self, era: str, id: str, feature_set: str, text: str) -> Generator[None]:
        """Tell of an inference that a server asks for, and how it ended."""
        row: Json = {"number": next(self._numbers), "kind": "inference", "era": era, "id": id, "set": feature_set}
        row |= {"text": text[:LONGEST_TEXT], "at": time.time(), "state": "waits", "reason": ""}
        self.events.append(row)
        self._push("live", {"kind": "event", "row": row})
        state, reason = "refused", "it was not answered"
        try:
            yield
            state, reason = "answered", ""
        finally:
            row["state"], row["reason"] = state, reason
            self._push("live", {"kind": "event", "row": row})

    def message(self, era: str, message: ChannelMessage) -> None:
        """Take a message of a channel."""
        author = message.author
        name = (author.name or author.id) if author is not None else message.server_id
        self.said(era, message.channel_id, name, text_of(message.content), id=message.id)

    def said(self, era: str, channel: str, who: str, text: str, **more: Any) -> Json:
        """Keep a message, of a server or of ours."""
        row: Json = {"number": next(self._numbers), "era": era, "channel": channel, "who": who, "at": time.time()}
        row |= {"text": text[:LONGEST_TEXT], **more}
        self.messages.append(row)
        self._push("live", {"kind": "message", "row": row})
        return row

    async def scope(self, era: str, elevation: Elevation) -> bool:
        """Whether the person lets a set act in a scope that is on no list."""
        number = next(self._numbers)
        asked = {"number": number, "era": era, "set": elevation.feature_set, "label": elevation.label}
        self.asked[number] = {**asked, "at": time.time()}
        self._push("live", {"kind": "scope"})
        try:
            return await self._decided(number)
        finally:
            del self.asked[number]
            self._push("live", {"kind": "scope"})

    async def _decided(self, number: int) -> bool:
        """What the person says. No, if too much waits already."""
        if len(self._waiting) >= MOST_WAITING:
            return False
        self._waiting[number] = decision = asyncio.get_running_loop().create_future()
        try:
            return await decision
        finally:
            del self._waiting[number]

    def decide(self, number: int, is_allowed: bool) -> bool:
        """Answer an event or a scope that waits. False if it waits no longer."""
        waiting = self._waiting.get(number)
        if waiting is None or waiting.done():
            return False
        waiting.set_result(is_allowed)
        return True

    def offer(self, version: str) -> None:
        if version not in VERSIONS:
            raise BadMessage(f"'version' is one of {', '.join(VERSIONS)}")
        self.offered = cast(Version, version)

    def choose(self, mode: str) -> None:
        """Change what happens to events. Those that wait are decided by it. Raises BadMessage."""
        if mode not in MODES:
            raise BadMessage(f"there is no mode {mode!r}", fix=f"use one of {', '.join(MODES)}")
        self.mode = cast(Mode, mode)
        if mode != "ask":
            for row in self.events:
                self.decide(row["number"], mode == "accept")


def text_of(content: Sequence[Content]) -> str:
    """Content as one text. A part that is no text is named."""
    told = (block.get("text") if block.get("type") == "text" else f"[{block.get('type')}]" for block in blocks(content))
    return "\n".join(map(str, told))[:LONGEST_TEXT]
