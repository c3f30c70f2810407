"""Policies: who a token belongs to, which topics it may enter, what it may send, its limits. And their file."""

from __future__ import annotations

import os
import re
import secrets
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol

from defserve.auth.bearer_tokens import StaticTokens, TokenVerifier, make_credential_name
from defserve.auth.principals import Principal, is_token_principal_id
from defserve.auth.signed_tokens import JWT
from defserve.base.secret_references import read_secret_setting
from defserve.core.json_values import is_array, is_object
from defserve.errors import UsageError, did_you_mean
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
        topics = _parse_texts(principal.claims.get(self._topics, ALL_TOPICS))
        capabilities = self._capabilities_of(principal)
        # A claim that cannot be read must not count as a missing one.
        if topics is None or capabilities is None or not is_matched_by_pattern(topics, topic):
            return None
        expires = principal.claims.get("exp")
        return Admission(principal.id, capabilities, expires=expires if isinstance(expires, int | float) else None)

    def _capabilities_of(self, principal: Principal) -> tuple[str, ...] | None:
        if self._capabilities in principal.claims:
            return _parse_texts(principal.claims[self._capabilities])
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


def _parse_texts(value: object) -> tuple[str, ...] | None:
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
        for each in fields(self):
            value: object = getattr(self, each.name)
            wanted = int if each.type == "int" else int | float
            if isinstance(value, bool) or not isinstance(value, wanted) or not 0 < value < float("inf"):
                raise UsageError(
                    f"the gateway's limit {each.name} cannot be {value!r}",
                    fix="leave it out, or give a number above 0",
                )


# -- The TOML file of a gateway: participants, capabilities, limits. Every mistake in it is reported before it serves.


MATCHING: Final = ("wildcards", "reference")
MAX_HISTORY: Final = 1_000

_SETTINGS: Final = {
    "profile", "topics", "matching", "allowed_hosts", "allowed_origins", "trusted_proxy", "tokens_in_urls", "history",
    "participants", "profiles", "jwt", "admins", "limits", "guests",
}  # fmt: skip
HISTORY: Final = 100
HOURS: Final = 12
_TOKEN: Final = ("token", "token_env", "token_file")
_JWT: Final = {"issuer", "audience", "key_file", "jwks_url", "algorithms"}
_CLAIMS: Final = {"capabilities_claim": "capabilities", "profile_claim": "profile", "topics_claim": "topics"}


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """The content of a gateway's file. Without `admins` there is no administration.

    `issued` are the tokens that the gateway gives out itself.
    """

    policy: AdmissionPolicy
    limits: GatewayLimits = field(default_factory=GatewayLimits)
    admins: StaticTokens | None = None
    strict: bool = False
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    trusted_proxy: bool = False
    issued: IssuedTokenPolicy | None = None
    tokens_in_urls: bool = False
    history: int = HISTORY


def load_gateway_config(path: str | Path) -> GatewayConfig:
    """Read the file. Relative paths in it start from its folder. Raises UsageError for a mistake in it."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}", fix="give the gateway's TOML file") from None
    try:
        return parse_config(tomllib.loads(text), file.parent)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file} is not TOML: {error}", fix="correct that line") from None
    except UsageError as error:
        raise UsageError(error.problem, where=error.where or str(file), fix=error.fix) from None


def parse_config(table: Mapping[str, Any], folder: Path = Path()) -> GatewayConfig:
    """The configuration in a decoded file."""
    _check_settings(table, _SETTINGS, "the file")
    profiles = {
        **CAPABILITY_PROFILES,
        **{name: _texts(given, f"profiles.{name}") for name, given in _table(table, "profiles").items()},
    }
    start = _capabilities({"profile": table.get("profile", DEFAULT_CAPABILITY)}, "the file", profiles, ())
    policies = [*_participants(_table(table, "participants"), folder, profiles, start)]
    if "jwt" in table:
        policies.append(_jwt(_table(table, "jwt"), folder, profiles, start))
    guests = _guests(_table(table, "guests"), profiles, start) if "guests" in table else None
    if not policies and guests is None:
        raise UsageError("the gateway's file lets nobody in", fix="add [participants.NAME] with a token, or [jwt]")
    if guests is not None and (taken := next(filter(guests.is_guest_name, _table(table, "participants")), None)):
        raise UsageError(
            f"participants.{taken} has a name that guests may take", fix="give guests.names patterns of their own"
        )
    issued = IssuedTokenPolicy(
        FirstMatchPolicy(policies),
        guests,
        seconds=_number(_table(table, "guests").get("hours", HOURS), "guests.hours", 24 * 366) * 3600,
    )
    matching = table.get("matching", MATCHING[0])
    if matching not in MATCHING:
        raise UsageError(f"matching cannot be {matching!r}", fix=f"use one of {', '.join(MATCHING)}")
    return GatewayConfig(
        TopicsPolicy(issued, _texts(table.get("topics", ALL_TOPICS), "topics")),
        GatewayLimits(
            **_check_settings(_table(table, "limits"), {each.name for each in fields(GatewayLimits)}, "limits")
        ),
        _admins(_table(table, "admins"), folder),
        strict=matching == "reference",
        allowed_hosts=_texts(table.get("allowed_hosts", ()), "allowed_hosts"),
        allowed_origins=_texts(table.get("allowed_origins", ()), "allowed_origins"),
        trusted_proxy=table.get("trusted_proxy", False) is True,
        issued=issued,
        tokens_in_urls=table.get("tokens_in_urls", False) is True,
        history=int(_number(table.get("history", HISTORY), "history", MAX_HISTORY)),
    )


def _participants(
    table: Mapping[str, Any], folder: Path, profiles: Mapping[str, Sequence[str]], start: tuple[str, ...]
) -> list[AdmissionPolicy]:
    tokens: dict[str, str] = {}
    entries: dict[str, ParticipantEntry] = {}
    for name in table:
        where = f"participants.{name}"
        about = _check_settings(_table(table, name), {*_TOKEN, "profile", "capabilities", "topics", "routing"}, where)
        token = _token(about, where, folder)
        if token in tokens:
            raise UsageError(
                f"{where} has the token of {tokens[token]}", fix="give each participant a token of its own"
            )
        tokens[token] = name
        routing = about.get("routing", "all")
        if routing not in ROUTING_MODES:
            raise UsageError(f"{where}.routing cannot be {routing!r}", fix=f"use one of {', '.join(ROUTING_MODES)}")
        topics = _texts(about.get("topics", ALL_TOPICS), f"{where}.topics")
        entries[name] = ParticipantEntry(_capabilities(about, where, profiles, start), topics, routing)
    return [StaticPolicy(tokens, entries)] if entries else []


def _jwt(
    about: Mapping[str, Any], folder: Path, profiles: Mapping[str, Sequence[str]], start: tuple[str, ...]
) -> AdmissionPolicy:
    _check_settings(about, _JWT | _CLAIMS.keys(), "jwt")
    given = {name: value for name, value in about.items() if name in _JWT and name != "key_file"}
    if missing := {"issuer", "audience"} - given.keys():
        raise UsageError(f"jwt has no {min(missing)}", fix="name the issuer and the audience of the tokens")
    if "key_file" in about:
        given["key"] = _file(about["key_file"], "jwt.key_file", folder)
    claims: dict[str, str] = {option: about[name] for name, option in _CLAIMS.items() if name in about}
    return TokenPolicy(JWT(**given), profiles=profiles, default=start, **claims)


def _guests(about: Mapping[str, Any], profiles: Mapping[str, Sequence[str]], start: tuple[str, ...]) -> GuestRules:
    _check_settings(about, {"names", "topics", "profile", "capabilities", "hours"}, "guests")
    return GuestRules(
        _texts(about.get("names", GuestRules().names), "guests.names"),
        _texts(about.get("topics", ALL_TOPICS), "guests.topics"),
        _capabilities(about, "guests", profiles, start),
    )


def _admins(table: Mapping[str, Any], folder: Path) -> StaticTokens | None:
    tokens: dict[str, str] = {}
    for name in table:
        where = f"admins.{name}"
        tokens[_token(_check_settings(_table(table, name), set(_TOKEN), where), where, folder)] = name
    return StaticTokens(tokens) if tokens else None


def _capabilities(
    about: Mapping[str, Any], where: str, profiles: Mapping[str, Sequence[str]], start: tuple[str, ...]
) -> tuple[str, ...]:
    if "profile" in about and "capabilities" in about:
        raise UsageError(f"{where} has both a profile and capabilities", fix="give one of the two")
    if "capabilities" in about:
        return _texts(about["capabilities"], f"{where}.capabilities")
    if "profile" not in about:
        return start
    name = about["profile"]
    if not isinstance(name, str) or name not in profiles:
        raise UsageError(f"{where}: there is no profile {name!r}", fix=f"use one of {', '.join(profiles)}")
    return tuple(profiles[name])


def _token(about: Mapping[str, Any], where: str, folder: Path) -> str:
    given = [name for name in _TOKEN if name in about]
    if len(given) != 1 or not isinstance(about[given[0]], str):
        raise UsageError(f"{where} needs one token", fix=f"give one of {', '.join(_TOKEN)}")
    value: str = about[given[0]]
    if given[0] == "token_env":
        if not os.environ.get(value):
            raise UsageError(f"{where}: the variable {value} is not set", fix=f"set {value} to the token")
        return os.environ[value]
    if given[0] == "token_file":
        return _file(value, f"{where}.token_file", folder).strip()
    return read_secret_setting(value, f"{where}.token")


def _file(name: object, where: str, folder: Path) -> str:
    try:
        return (folder / str(name)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{where}: {name} cannot be read: {error}", fix="name a text file that this user may read"
        ) from None


def _number(value: object, where: str, most: int) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise UsageError(f"{where} cannot be {value!r}", fix=f"give a number from 0 to {most}")
    return value


def _table(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = table.get(name, {})
    if not is_object(value):
        raise UsageError(f"{name} must be a table", fix=f"write [{name}] on a line of its own")
    return value


def _texts(value: object, where: str) -> tuple[str, ...]:
    if is_array(value) and all(isinstance(item, str) and item for item in value):
        return tuple(value)
    raise UsageError(f"{where} must be a list of strings", fix=f'{where} = ["…"]')


def _check_settings(table: Mapping[str, Any], names: set[str], where: str) -> Mapping[str, Any]:
    """The same table. Raises UsageError if it has a setting that is not one of `names`."""
    for name in table:
        if name not in names:
            fix = did_you_mean(name, sorted(names), f"use {', '.join(sorted(names))}")
            raise UsageError(f"{where} has {name!r}, which is not a setting", fix=fix)
    return table
