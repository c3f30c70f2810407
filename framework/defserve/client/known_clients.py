"""The MCP clients of others: where each keeps its settings, what it calls itself, and how it writes a server there.

The command line writes such an entry, and the page for browsers shows it. Nothing here reads or writes a file.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

from defserve.client.targets import LEGACY_SSE_PATH
from defserve.errors import UsageError

SettingsScope = Literal["user", "project"]
SettingsFormat = Literal["json", "toml"]
SETTINGS_SCOPES: Final[tuple[SettingsScope, ...]] = ("user", "project")


class LaunchCommand(NamedTuple):
    """How a client reaches a server: with a command, or at an address."""

    command: str = ""
    args: Sequence[str] = ()
    env: Mapping[str, str] = {}
    url: str = ""
    headers: Mapping[str, str] = {}


Entry = Callable[[LaunchCommand], dict[str, Any]]


class ClientApp(NamedTuple):
    """An MCP client. `paths` gives the settings file of each scope; a relative one starts in the folder of the project.

    `then` is what a person has to do before the client sees the server. `adds` is the client's own command that adds a
    server at an address, if it has one.
    """

    title: str
    key: str
    entry: Entry
    paths: Mapping[SettingsScope, Callable[[], Path]]
    format: SettingsFormat = "json"
    then: str = ""
    adds: str = ""

    def is_shared(self, scope: SettingsScope | None) -> bool:
        """Whether these settings belong to a project, and so to everybody who works on it."""
        return (scope or next(iter(self.paths))) == "project"

    def path(self, scope: SettingsScope | None, project: Path) -> Path:
        """The settings file. Raises UsageError for a scope that the client does not have."""
        chosen: SettingsScope = scope or next(iter(self.paths))
        if chosen not in self.paths:
            raise UsageError(
                f"{self.title} has no {chosen} settings", fix=f"use --scope {next(iter(self.paths))}, or leave it out"
            )
        return project / self.paths[chosen]()


def find_known_client(name: str) -> ClientApp:
    """The client of that name. Raises UsageError if there is none."""
    if name not in KNOWN_CLIENTS:
        raise UsageError(f"there is no client {name!r}", fix=f"use one of {', '.join(KNOWN_CLIENTS)}")
    return KNOWN_CLIENTS[name]


# -- places ----------------------------------------------------------------------------------------------
def _home(*parts: str) -> Callable[[], Path]:
    return lambda: Path(os.path.expanduser("~"), *parts)


def _here(*parts: str) -> Callable[[], Path]:
    return lambda: Path(*parts)


def _application(mac: str, windows: str, linux: str, *parts: str) -> Callable[[], Path]:
    """Below the folder where applications of this system keep their settings."""

    def path() -> Path:
        if sys.platform == "darwin":
            return Path(os.path.expanduser("~"), "Library", "Application Support", mac, *parts)
        if sys.platform == "win32":
            return Path(os.environ.get("APPDATA") or os.path.expanduser(r"~\AppData\Roaming"), windows, *parts)
        return _xdg(linux, *parts)

    return path


def _xdg(*parts: str) -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), *parts)


def _find_zed_settings() -> Path:
    # On a Mac it is where it is on Linux.
    windows = sys.platform == "win32"
    return _application("Zed", "Zed", "zed", "settings.json")() if windows else _xdg("zed", "settings.json")


# -- entries ---------------------------------------------------------------------------------------------
def _drop_empty_members(**members: Any) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value}


def _format_command_entry(launch: LaunchCommand) -> dict[str, Any]:
    return {"command": launch.command, "args": list(launch.args), **_drop_empty_members(env=dict(launch.env))}


def _plain(launch: LaunchCommand, headers: str = "headers") -> dict[str, Any]:
    return (
        {"url": launch.url, **_drop_empty_members(**{headers: dict(launch.headers)})}
        if launch.url
        else _format_command_entry(launch)
    )


def _format_typed_entry(launch: LaunchCommand) -> dict[str, Any]:
    """With the name of the transport; only some of these clients know `ws`."""
    if not launch.url:
        return {"type": "stdio", **_format_command_entry(launch)}
    return {"type": "ws" if launch.url.startswith("ws") else _http_type(launch), **_plain(launch)}


def _http_type(launch: LaunchCommand) -> str:
    return "sse" if urlsplit(launch.url).path.rstrip("/").endswith(LEGACY_SSE_PATH) else "http"


def _gemini(launch: LaunchCommand) -> dict[str, Any]:
    return {**_plain(launch), "type": _http_type(launch)} if launch.url else _plain(launch)


def _windsurf(launch: LaunchCommand) -> dict[str, Any]:
    entry = _plain(launch)
    return {"serverUrl": entry.pop("url"), **entry} if launch.url else entry


def _desktop(launch: LaunchCommand) -> dict[str, Any]:
    if launch.url:
        raise UsageError("Claude Desktop only starts commands", fix="add the address in its settings dialog")
    return _format_command_entry(launch)


KNOWN_CLIENTS: Final[Mapping[str, ClientApp]] = {
    "claude-desktop": ClientApp(
        "Claude Desktop",
        "mcpServers",
        _desktop,
        {"user": _application("Claude", "Claude", "Claude", "claude_desktop_config.json")},
        then="restart it",
    ),
    "claude-code": ClientApp(
        "Claude Code",
        "mcpServers",
        _format_typed_entry,
        {"user": _home(".claude.json"), "project": _here(".mcp.json")},
        then="/mcp shows it in a new session",
        adds="claude mcp add --transport http {name} {url}",
    ),
    "vscode": ClientApp(
        "VS Code",
        "servers",
        _format_typed_entry,
        {"project": _here(".vscode", "mcp.json"), "user": _application("Code", "Code", "Code", "User", "mcp.json")},
        then="`MCP: List Servers` shows it",
    ),
    "cursor": ClientApp(
        "Cursor",
        "mcpServers",
        _plain,
        {"user": _home(".cursor", "mcp.json"), "project": _here(".cursor", "mcp.json")},
        then="Settings, MCP shows it",
    ),
    "windsurf": ClientApp(
        "Windsurf",
        "mcpServers",
        _windsurf,
        {"user": _home(".codeium", "windsurf", "mcp_config.json")},
        then="press Refresh in its MCP panel",
    ),
    "zed": ClientApp(
        "Zed",
        "context_servers",
        _plain,
        {"user": _find_zed_settings, "project": _here(".zed", "settings.json")},
        then="its agent panel shows it",
    ),
    "gemini": ClientApp(
        "Gemini CLI",
        "mcpServers",
        _gemini,
        {"user": _home(".gemini", "settings.json"), "project": _here(".gemini", "settings.json")},
        then="/mcp shows it in a new session",
    ),
    "codex": ClientApp(
        "Codex",
        "mcp_servers",
        partial(_plain, headers="http_headers"),
        {"user": lambda: Path(os.environ.get("CODEX_HOME") or os.path.expanduser("~/.codex"), "config.toml")},
        format="toml",
        then="/mcp shows it in a new session",
    ),
    "mcp-json": ClientApp(
        ".mcp.json",
        "mcpServers",
        _format_typed_entry,
        {"project": _here(".mcp.json")},
        then="Claude Code and others read it in this folder; VS Code does not: --client vscode writes .vscode/mcp.json",
    ),
}


# -- Names of servers where they become keys or files: in the settings of clients, in documents and in new projects.
#
# Clients are written in many languages and read JSON, TOML and YAML. A name must mean the same in all of them. It is no
# key that an object of JavaScript has by itself, no word that YAML takes for a value, and no device of Windows.


MAX_SERVER_NAME: Final = 64
RESERVED_NAMES: Final = frozenset(
    (
        *("constructor", "prototype", "hasownproperty", "isprototypeof", "propertyisenumerable", "tolocalestring"),
        *("tostring", "valueof", "null", "true", "false", "yes", "no", "on", "off", "nan", "inf", "undefined"),
        *("con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10))),
    )
)
"""In lower case. What begins with two underscores is refused anyhow."""

_NAME: Final = re.compile(rf"[A-Za-z][A-Za-z0-9_-]{{0,{MAX_SERVER_NAME - 1}}}")

# The ids of MGP have dots.
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._:/@+-]{0,127}")
_SHOWN: Final = 60


def check_server_name(name: str) -> str:
    """The name, if every client can have a server of that name. Raises UsageError."""
    if not _NAME.fullmatch(name) or is_reserved(name):
        raise UsageError(
            f"{_quote_name(name)} cannot be the name of a server in a client{_explain_name(name)}",
            fix=f"use at most {MAX_SERVER_NAME} letters, digits, - and _, a letter first; for example --name weather",
        )
    return name


def check_server_id(name: str) -> str:
    """The id under which a document names a server. Raises UsageError."""
    if not _ID.fullmatch(name) or is_reserved(name):
        raise UsageError(
            f"the server calls itself {_quote_name(name)}, which cannot be an id{_explain_name(name)}",
            fix='give it a plain name: Server("weather"), or server_id="com.example.weather"',
        )
    return name


def make_server_name(own: str) -> str:
    """A name for clients, made from what a server calls itself."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", own[:1_000]).strip("-_")[:MAX_SERVER_NAME]
    return name if _NAME.fullmatch(name) and not is_reserved(name) else f"server-{name}"[:MAX_SERVER_NAME].strip("-")


def is_reserved(name: str) -> bool:
    """Whether a name means something else in a language or a system that reads it."""
    return name.lower() in RESERVED_NAMES


def _explain_name(name: str) -> str:
    return ": it means something else to programs that read it" if is_reserved(name) or name.startswith("__") else ""


def _quote_name(name: str) -> str:
    return repr(name) if len(name) <= _SHOWN else f"{name[:_SHOWN]!r}… ({len(name):,} characters)"
