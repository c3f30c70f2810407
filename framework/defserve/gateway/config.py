"""The TOML file of a gateway: participants, capabilities, limits. Every mistake in it is reported before it serves."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from defserve.auth.bearer_tokens import StaticTokens
from defserve.auth.signed_tokens import JWT
from defserve.base.secret_references import read_setting
from defserve.core.json_values import is_array, is_object
from defserve.errors import UsageError
from defserve.gateway.policy import (
    ALL_TOPICS,
    DEFAULT_CAPABILITY,
    ROUTING_MODES,
    AdmissionPolicy,
    FirstMatchPolicy,
    GatewayLimits,
    GuestRules,
    IssuedTokenPolicy,
    ParticipantEntry,
    StaticPolicy,
    TokenPolicy,
    TopicsPolicy,
)
from defserve.protocols.mcpx.envelope import CAPABILITY_PROFILES

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
        raise UsageError(f"{file} is not TOML: {error}") from None
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
    return read_setting(value, f"{where}.token")


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
            raise UsageError(f"{where} has {name!r}, which is not a setting", fix=f"use {', '.join(sorted(names))}")
    return table
