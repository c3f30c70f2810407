"""Policies: who a token belongs to, which topics it may enter, and what it may send."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Literal, Protocol

from defserve.auth.principals import Principal, is_token_id
from defserve.auth.verifiers import StaticTokens, TokenVerifier
from defserve.errors import UsageError
from defserve.protocols.mcpx.capabilities import PROFILES
from defserve.wire.jsonvalue import is_array

Routing = Literal["all", "directed"]
ROUTINGS: Final[tuple[Routing, ...]] = ("all", "directed")

START: Final = "proposal-only"
"""§7.1: a participant without other capabilities may only propose."""

EVERY_TOPIC: Final = ("*",)
_TOPIC: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,127}")


@dataclass(frozen=True, slots=True)
class Admission:
    """Who a connection belongs to, what it may send, and what it receives unless it asks for something else."""

    participant: str
    capabilities: tuple[str, ...] = PROFILES[START]
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

    capabilities: tuple[str, ...] = PROFILES[START]
    topics: tuple[str, ...] = EVERY_TOPIC
    routing: Routing = "all"


class StaticPolicy:
    """A fixed list: token → participant → entry. It keeps only digests of tokens."""

    def __init__(self, tokens: Mapping[str, str], entries: Mapping[str, ParticipantEntry]) -> None:
        for name in entries:
            if not is_participant(name):
                raise UsageError(f"a participant cannot be called {name[:80]!r}", fix=PARTICIPANT_FIX)
        self._tokens, self._entries = StaticTokens(tokens), dict(entries)

    async def admit(self, token: str | None, topic: str) -> Admission | None:
        principal = None if token is None else await self._tokens.verify(token)
        entry = None if principal is None else self._entries.get(principal.id)
        if principal is None or entry is None or not covers(entry.topics, topic):
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
        profiles: Mapping[str, Sequence[str]] = PROFILES,
        default: Sequence[str] = PROFILES[START],
    ) -> None:
        self._verifier, self._default = verifier, tuple(default)
        self._capabilities, self._profile, self._topics = capabilities, profile, topics
        self._profiles = {name: tuple(held) for name, held in profiles.items()}

    async def admit(self, token: str | None, topic: str) -> Admission | None:
        principal = None if token is None else await self._verifier.verify(token)
        if principal is None or not is_participant(principal.id):
            return None
        topics = _texts(principal.claims.get(self._topics, EVERY_TOPIC))
        capabilities = self._capabilities_of(principal)
        # A claim that cannot be read must not count as a missing one.
        if topics is None or capabilities is None or not covers(topics, topic):
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
        return await self._policy.admit(token, topic) if covers(self._topics, topic) else None


PARTICIPANT_FIX: Final = "use 1 to 256 characters without spaces; it must not begin with `system:`"


def is_participant(name: str) -> bool:
    """Whether a participant may have this name. Nobody may have a name of the gateway."""
    return is_token_id(name) and " " not in name and not name.startswith("system:")


def is_topic(name: str) -> bool:
    """Whether a topic may have this name."""
    return _TOPIC.fullmatch(name) is not None


def covers(patterns: Iterable[str], topic: str) -> bool:
    return any(fnmatchcase(topic, pattern) for pattern in patterns)


def _texts(value: object) -> tuple[str, ...] | None:
    if not is_array(value) or not all(isinstance(item, str) and item for item in value):
        return None
    return tuple(value)
