"""Policies: who a token belongs to, which topics it may enter, what it may send, and within which limits."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Final, Literal, NamedTuple, Protocol

from defserve.auth.bearer_tokens import StaticTokens, TokenVerifier, make_credential_name
from defserve.auth.principals import Principal, is_token_principal_id
from defserve.core.json_values import is_array
from defserve.errors import UsageError
from defserve.protocols.mcpx.envelope import CAPABILITY_PROFILES

Routing = Literal["all", "directed"]
ROUTING_MODES: Final[tuple[Routing, ...]] = ("all", "directed")

DEFAULT_CAPABILITY: Final = "proposal-only"
"""§7.1: a participant without other capabilities may only propose."""

ALL_TOPICS: Final = ("*",)
_TOPIC: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,127}")


@dataclass(frozen=True, slots=True)
class Admission:
    """Who a connection belongs to, what it may send, and what it receives unless it asks for something else."""

    participant: str
    capabilities: tuple[str, ...] = CAPABILITY_PROFILES[DEFAULT_CAPABILITY]
    routing: Routing = "all"
    expires: float | None = None
    """When the token ends, in seconds since 1970; the connection ends with it."""
    holder: str = ""
    """Who gets what an administrator adds: the one token of a guest, whose name anybody may take. Empty: the name."""
    is_guest: bool = False
    """Whether it was let in without showing a credential. Servers take a guest for a stranger."""


class AdmissionPolicy(Protocol):
    """Decides who may enter a topic, and as which participant."""

    async def admit(self, token: str | None, topic: str) -> Admission | None:
        """The admission of a bearer token to this topic; None to refuse it. `token` is None if the request has none."""
        ...


@dataclass(frozen=True, slots=True)
class ParticipantEntry:
    """One participant of a fixed list. `topics` are names, or patterns with `*` and `?`."""

    capabilities: tuple[str, ...] = CAPABILITY_PROFILES[DEFAULT_CAPABILITY]
    topics: tuple[str, ...] = ALL_TOPICS
    routing: Routing = "all"


class StaticPolicy:
    """A fixed list: token → participant → entry. It keeps only digests of tokens."""

    def __init__(self, tokens: Mapping[str, str], entries: Mapping[str, ParticipantEntry]) -> None:
        for name in entries:
            if not is_participant_name(name):
                raise UsageError(f"a participant cannot be called {name[:80]!r}", fix=PARTICIPANT_NAME_FIX)
        self._tokens, self._entries = StaticTokens(tokens), dict(entries)

    async def admit(self, token: str | None, topic: str) -> Admission | None:
        principal = None if token is None else await self._tokens.verify(token)
        entry = None if principal is None else self._entries.get(principal.id)
        if principal is None or entry is None or not is_matched_by_pattern(entry.topics, topic):
            return None
        return Admission(principal.id, entry.capabilities, entry.routing)


class TokenPolicy:
    """Tokens that name their bearer (`sub`), such as JWTs.

    The claim `capabilities` (a list), or else `profile`, says what it may send; a token with neither gets `default`.
    A token with the claim `topics` may enter only these.
    """

    def __init__(
        self,
        verifier: TokenVerifier,
        *,
        capabilities: str = "mcpx_capabilities",
        profile: str = "mcpx_profile",
        topics: str = "mcpx_topics",
        profiles: Mapping[str, Sequence[str]] = CAPABILITY_PROFILES,
        default: Sequence[str] = CAPABILITY_PROFILES[DEFAULT_CAPABILITY],
    ) -> None:
        self._verifier, self._default = verifier, tuple(default)
        self._capabilities, self._profile, self._topics = capabilities, profile, topics
        self._profiles = {name: tuple(held) for name, held in profiles.items()}

    async def admit(self, token: str | None, topic: str) -> Admission | None:
        principal = None if token is None else await self._verifier.verify(token)
        if principal is None or not is_participant_name(principal.id):
            return None
        topics = _texts(principal.claims.get(self._topics, ALL_TOPICS))
        capabilities = self._capabilities_of(principal)
        # A claim that cannot be read must not count as a missing one.
        if topics is None or capabilities is None or not is_matched_by_pattern(topics, topic):
            return None
        expires = principal.claims.get("exp")
        return Admission(principal.id, capabilities, expires=expires if isinstance(expires, int | float) else None)

    def _capabilities_of(self, principal: Principal) -> tuple[str, ...] | None:
        if self._capabilities in principal.claims:
            return _texts(principal.claims[self._capabilities])
        if self._profile not in principal.claims:
            return self._default
        name = principal.claims[self._profile]
        return self._profiles.get(name) if isinstance(name, str) else None


class FirstMatchPolicy:
    """Several policies; the first one that admits the token decides."""

    def __init__(self, policies: Iterable[AdmissionPolicy]) -> None:
        self._policies = tuple(policies)

    async def admit(self, token: str | None, topic: str) -> Admission | None:
        for policy in self._policies:
            if (admission := await policy.admit(token, topic)) is not None:
                return admission
        return None


class TopicsPolicy:
    """A policy for some topics only. All other topics are refused, as if they did not exist."""

    def __init__(self, policy: AdmissionPolicy, topics: Sequence[str]) -> None:
        self._policy, self._topics = policy, tuple(topics)

    async def admit(self, token: str | None, topic: str) -> Admission | None:
        return await self._policy.admit(token, topic) if is_matched_by_pattern(self._topics, topic) else None


PARTICIPANT_NAME_FIX: Final = "use 1 to 256 characters without spaces; it must not begin with `system:`"


def is_participant_name(name: str) -> bool:
    """Whether a participant may have this name. Nobody may have a name of the gateway."""
    return is_token_principal_id(name) and " " not in name and not name.startswith("system:")


def is_topic_name(name: str) -> bool:
    """Whether a topic may have this name."""
    return _TOPIC.fullmatch(name) is not None


def is_matched_by_pattern(patterns: Iterable[str], topic: str) -> bool:
    return any(fnmatchcase(topic, pattern) for pattern in patterns)


def _texts(value: object) -> tuple[str, ...] | None:
    return tuple(value) if is_array(value) and all(isinstance(item, str) and item for item in value) else None


# -- Tokens that the gateway itself gives out, at `POST /v0.1/auth/token`. They are kept in memory, as digests.


MAX_TOKENS: Final = 10_000


@dataclass(frozen=True, slots=True)
class GuestRules:
    """`[guests]` of a gateway's file: who gets a token without showing one."""

    names: tuple[str, ...] = ("guest-*",)
    topics: tuple[str, ...] = ALL_TOPICS
    capabilities: tuple[str, ...] = CAPABILITY_PROFILES[DEFAULT_CAPABILITY]

    def is_guest_name(self, name: str) -> bool:
        return is_matched_by_pattern(self.names, name)


class IssuedToken(NamedTuple):
    participant: str
    topic: str
    capabilities: tuple[str, ...]
    expires: float
    is_guest: bool


class IssuedTokenPolicy:
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
        credential = make_credential_name(token) if token is not None else ""
        issued = self._issued.get(credential)
        if issued is None:
            found = await self._others.admit(token, topic)
            return None if found is not None and self.is_guest_name(found.participant) else found
        if issued.topic != topic or issued.expires <= self._clock():
            return None
        return Admission(
            issued.participant,
            issued.capabilities,
            expires=issued.expires,
            holder=credential if issued.is_guest else "",
            is_guest=issued.is_guest,
        )

    def issue_token(
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
        if len(self._issued) >= MAX_TOKENS:
            idle = next((key for key, one in self._issued.items() if one.is_guest and not is_connected(*one[:2])), None)
            if idle is None:
                return None
            del self._issued[idle]
        token = secrets.token_urlsafe(32)
        expires = self._clock() + self._seconds
        self._issued[make_credential_name(token)] = IssuedToken(participant, topic, capabilities, expires, is_guest)
        return token

    def revoke_token(self, token: str) -> None:
        self._issued.pop(make_credential_name(token), None)

    def _sweep(self, participant: str, topic: str) -> None:
        now = self._clock()
        for key, one in list(self._issued.items()):
            if one.expires <= now or one[:2] == (participant, topic):
                del self._issued[key]

    def is_guest_name(self, name: str) -> bool:
        """Whether guests may take this name."""
        return self.guests is not None and self.guests.is_guest_name(name)


# -- The token of a connection, which is verified again while the connection is open.


class TopicCredential:
    """A token, the topic it was shown for, and what it was good for then."""

    __slots__ = ("key", "_policy", "_token", "_topic", "_admission")

    def __init__(self, policy: AdmissionPolicy, token: str | None, topic: str, admission: Admission) -> None:
        self.key = (make_credential_name(token or ""), topic)
        self._policy, self._token, self._topic, self._admission = policy, token, topic, admission

    async def verify(self) -> Admission | None:
        return await self._policy.admit(self._token, self._topic)

    def is_still_valid(self, found: Admission | None) -> bool:
        """A token that is good for less than before has ended."""
        known = self._admission
        return (
            found is not None
            and found.participant == known.participant
            and set(found.capabilities) >= set(known.capabilities)
        )


# -- The limits of a gateway, per participant and per topic. Sizes are bytes, times are seconds.


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """`[limits]` of a gateway's file; replace single fields."""

    message: int = 1024 * 1024
    waiting: int = 4 * 1024 * 1024
    """Bytes that may wait for one reader. A reader with more is dropped, so that it does not hold up its topic.

    Half of them are for those who send little: who has sent much lately waits for a reader for which more waits.
    """
    patience: float = 2.0
    """How long such a sender waits. A reader that is behind for longer is dropped."""
    participants: int = 1_000
    """In one topic."""
    topics: int = 1_000
    rate: float = 100.0
    """Messages per second of one participant, after `burst` at once."""
    burst: int = 200
    byte_rate: float = 2.0 * 1024 * 1024
    """Bytes per second of one participant, after `byte_burst` at once. What comes faster is read later."""
    byte_burst: int = 4 * 1024 * 1024
    malformed_in_a_row: int = 16
    opening: float = 10.0
    farewell: float = 2.0
    ping: float = 20.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value: object = getattr(self, field.name)
            wanted = int if field.type == "int" else int | float
            if isinstance(value, bool) or not isinstance(value, wanted) or not 0 < value < float("inf"):
                raise UsageError(
                    f"the gateway's limit {field.name} cannot be {value!r}",
                    fix="leave it out, or give a number above 0",
                )
