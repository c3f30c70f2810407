"""The params of the three methods, checked as they are read. All is bounded, and nothing unknown is passed over."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from defserve.errors import InvalidParams
from defserve.guard.text import hidden
from defserve.protocols.mcp.params import optional_fields, text
from defserve.protocols.mgp.agreed import SECTIONS
from defserve.protocols.mgp.security.vocabulary import is_permission
from defserve.wire.jsonvalue import is_array
from defserve.wire.messages import Params

ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
STATUSES: Final = ("registered", "connecting", "connected", "draining", "restarting", "disconnected", "error", "all")
TRANSPORTS: Final = {"stdio": "command", "http": "url", "streamable-http": "url"}
LEVELS: Final = ("trusted", "standard", "sandboxed", "core", "experimental", "untrusted")
MOST: Final = 64
LONGEST_TEXT, LONGEST_WORD = 2_000, 4_096
REGISTER: Final = frozenset(
    {"id", "command", "args", "url", "transport", "mgp", "created_by", "justification", "keep", "trace_id", "_meta"}
)
MGP: Final = frozenset({"extensions", "permissions_required", "trust_level"})


@dataclass(frozen=True, slots=True)
class ServerFilter:
    """What `mgp/discovery/list` asks for. A server must have all extensions and all permissions. None: any status."""

    extensions: frozenset[str] = frozenset()
    permissions: frozenset[str] = frozenset()
    status: str | None = None

    @classmethod
    def of(cls, params: Params) -> ServerFilter:
        """Raises InvalidParams."""
        given = optional_fields(params, "filter") or {}
        _only(given, ("extensions", "permissions", "status"), "filter.")
        status = given.get("status")
        # The reference kernel writes states with a capital letter in places.
        status = status.lower() if isinstance(status, str) else status
        if status is not None and status not in STATUSES:
            raise InvalidParams(f"Invalid params: filter.status must be one of {', '.join(STATUSES)}")
        wanted = (frozenset(_texts(given, name, "filter.")) for name in ("extensions", "permissions"))
        return cls(*wanted, status=None if status == "all" else status)


@dataclass(frozen=True, slots=True)
class Registration:
    """What `mgp/discovery/register` asks for: a `command` with `args`, or a `url`. `created_by` is only a claim."""

    id: str
    command: str = ""
    args: tuple[str, ...] = ()
    url: str = ""
    extensions: tuple[str, ...] = ()
    permissions: tuple[str, ...] = ()
    trust_level: str = "sandboxed"
    created_by: str = ""
    justification: str = ""
    keep: bool = False

    @classmethod
    def of(cls, params: Params) -> Registration:
        """Raises InvalidParams."""
        _only(params, REGISTER)
        mgp = optional_fields(params, "mgp") or {}
        _only(mgp, MGP, "mgp.")
        if ("command" in params) == ("url" in params):
            raise InvalidParams("Invalid params: give a command or a url, and not both")
        kind = "command" if "command" in params else "url"
        if TRANSPORTS.get(str(params.get("transport", "stdio" if kind == "command" else "http"))) != kind:
            raise InvalidParams(f"Invalid params: transport does not fit a {kind}")
        if kind == "url" and params.get("args"):
            raise InvalidParams("Invalid params: args belong to a command")
        level, keep = mgp.get("trust_level", "sandboxed"), params.get("keep", False)
        if level not in LEVELS or not isinstance(keep, bool):
            raise InvalidParams(f"Invalid params: mgp.trust_level is one of {', '.join(LEVELS)}, keep is true or false")
        extensions, permissions = _texts(mgp, "extensions", "mgp."), _texts(mgp, "permissions_required", "mgp.")
        if unknown := [name for name in extensions if name not in SECTIONS]:
            raise InvalidParams(f"Invalid params: {unknown[0][:60]!r} is no extension of MGP")
        if unknown := [name for name in permissions if not is_permission(name)]:
            raise InvalidParams(f"Invalid params: {unknown[0][:60]!r} is no permission")
        return cls(
            read_id(params),
            _word(params["command"], "command") if kind == "command" else "",
            tuple(_word(each, "args") for each in _list(params.get("args", []), "args")),
            _word(params["url"], "url") if kind == "url" else "",
            extensions,
            permissions,
            level,
            read_prose(params, "created_by"),
            read_prose(params, "justification"),
            keep,
        )


def read_id(params: Params) -> str:
    """The id of a server. Raises InvalidParams."""
    if not ID.fullmatch(found := text(params, "id")):
        raise InvalidParams("Invalid params: id must have 1 to 128 letters, digits, dots, dashes and underscores")
    return found


def read_prose(params: Params, name: str) -> str:
    """An optional text for people. Raises InvalidParams."""
    found = params.get(name, "")
    if not isinstance(found, str) or len(found) > LONGEST_TEXT or any(True for _ in hidden(found)):
        raise InvalidParams(f"Invalid params: {name} must be a line of at most {LONGEST_TEXT} printable characters")
    return found


def _word(value: Any, name: str) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_WORD or any(True for _ in hidden(value)):
        raise InvalidParams(f"Invalid params: {name} must be text of at most {LONGEST_WORD} printable characters")
    if not value and name != "args":
        raise InvalidParams(f"Invalid params: {name} must not be empty")
    return value


def _texts(params: Params, name: str, at: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_word(each, at + name) for each in _list(params.get(name, []), at + name)))


def _list(value: Any, name: str) -> list[Any]:
    if not is_array(value) or len(value) > MOST:
        raise InvalidParams(f"Invalid params: {name} must be a list of at most {MOST} texts")
    return list(value)


def _only(params: Params, known: Collection[str], at: str = "") -> None:
    if unknown := sorted(set(params) - set(known)):
        raise InvalidParams(f"Invalid params: {at}{unknown[0][:60]} is not known; known are {', '.join(sorted(known))}")
