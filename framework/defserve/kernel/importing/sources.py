"""The servers in the settings of a client: a file, or the client's name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from defserve.errors import UsageError, did_you_mean
from defserve.host.clients.table import CLIENTS, Format, Scope
from defserve.tooling.clients import files
from defserve.wire.jsonvalue import is_object

KEYS: Final = ("mcpServers", "servers", "mcp_servers", "context_servers")
EDITOR_FOLDERS: Final = (".vscode", ".cursor", ".zed", ".gemini")


class ClientSettings(NamedTuple):
    """The servers as a file has them. `folder` is that of the project, which `${workspaceFolder}` names."""

    path: Path
    folder: Path
    entries: Mapping[str, Any]


def client_settings(source: str, scope: Scope | None = None) -> ClientSettings:
    """The servers in a file, or in the settings of the client with that name. Raises UsageError if there are none."""
    app = CLIENTS.get(source)
    path = app.path(scope, Path.cwd()) if app is not None else Path(source).absolute()
    if not path.is_file():
        what = f"{app.title} has no settings" if app is not None else f"there is no file {source}"
        others = f"name a file, or one of the clients {', '.join(CLIENTS)}"
        fix = others if app is not None else did_you_mean(source, CLIENTS, others)
        raise UsageError(f"{what}{f' at {path}' if app else ''}", fix=fix)
    format: Format = app.format if app is not None else "toml" if path.suffix == ".toml" else "json"
    whole = files.holds(path, format)
    for key in (app.key,) if app is not None else KEYS:
        section = whole.get(key) if is_object(whole) else None
        if is_object(section) and section:
            folder = path.parent.parent if path.parent.name in EDITOR_FOLDERS else path.parent
            return ClientSettings(path, folder, section)
    raise UsageError(f"{path} has no servers", fix=f"look for one of the keys {', '.join(KEYS)} in it")
