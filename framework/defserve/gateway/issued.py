"""Tokens that the gateway itself gives out, at `POST /v0.1/auth/token`. They are kept in memory, as digests."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from defserve.auth.bearer import credential_of
from defserve.gateway.policy import EVERY_TOPIC, START, Admission, AdmissionPolicy, covers
from defserve.protocols.mcpx.capabilities import PROFILES

MOST_TOKENS: Final = 10_000


@dataclass(frozen=True, slots=True)
class GuestRules:
    """`[guests]` of a gateway's file: who gets a token without showing one."""

    names: tuple[str, ...] = ("guest-*",)
    topics: tuple[str, ...] = EVERY_TOPIC
    capabilities: tuple[str, ...] = PROFILES[START]

    def may_be_called(self, name: str) -> bool:
        return covers(self.names, name)

    def may_enter(self, topic: str) -> bool:
        return covers(self.topics, topic)


class IssuedToken(NamedTuple):
    participant: str
    topic: str
    capabilities: tuple[str, ...]
    expires: float
    is_guest: bool


class IssuedTokens:
    """The policy for tokens of our own, and for all others through `others`.

    A participant has one such token for a topic: a new one ends the one before. A guest's name belongs to guests alone:
    any other token that names it is refused.
    """

    def __init__(
        self,
        others: AdmissionPolicy,
        guests: GuestRules | None,
        *,
        seconds: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.guests, self._others, self._seconds, self._clock = guests, others, seconds, clock
        self._issued: dict[str, IssuedToken] = {}

    async def admit(self, token: str | None, topic: str) -> Admission | None:
        credential = credential_of(token) if token is not None else ""
        issued = self._issued.get(credential)
        if issued is None:
            found = await self._others.admit(token, topic)
            return None if found is not None and self.is_guests(found.participant) else found
        if issued.topic != topic or issued.expires <= self._clock():
            return None
        holder = credential if issued.is_guest else ""
        return Admission(
            issued.participant, issued.capabilities, expires=issued.expires, holder=holder, is_guest=issued.is_guest
        )

    def issue(
        self,
        participant: str,
        topic: str,
        capabilities: tuple[str, ...],
        *,
        is_guest: bool,
        is_connected: Callable[[str, str], bool],
    ) -> str | None:
        """A new token; None if there are too many. Then guests that are not connected give way."""
        self._sweep(participant, topic)
        if len(self._issued) >= MOST_TOKENS:
            idle = next((key for key, one in self._issued.items() if one.is_guest and not is_connected(*one[:2])), None)
            if idle is None:
                return None
            del self._issued[idle]
        token = secrets.token_urlsafe(32)
        expires = self._clock() + self._seconds
        self._issued[credential_of(token)] = IssuedToken(participant, topic, capabilities, expires, is_guest)
        return token

    def take_back(self, token: str) -> None:
        self._issued.pop(credential_of(token), None)

    def _sweep(self, participant: str, topic: str) -> None:
        now = self._clock()
        for key, one in list(self._issued.items()):
            if one.expires <= now or one[:2] == (participant, topic):
                del self._issued[key]

    def is_guests(self, name: str) -> bool:
        """Whether guests may take this name."""
        return self.guests is not None and self.guests.may_be_called(name)
