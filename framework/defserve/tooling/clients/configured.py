"""The servers in the `.mcp.json` of a project, and how to reach each of them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from defserve.errors import UsageError, did_you_mean
from defserve.host.clients.table import Launch
from defserve.tooling.clients import jsonc
from defserve.wire.jsonvalue import is_array, is_mapping

FILE: Final = ".mcp.json"
# The key of `.mcp.json` and most clients, and that of VS Code.
KEYS: Final = ("mcpServers", "servers")
VARIABLE: Final = re.compile(r"\$\{(?:env:)?([^}:]+)(?::-([^}]*))?\}")


class ConfiguredServer(NamedTuple):
    """A server as the file `path` has it, with its variables not filled in."""

    name: str
    path: str
    launch: Launch
    cwd: str = ""

    @property
    def folder(self) -> str:
        """The folder that it starts in and that its paths start from. Raises UsageError if it does not exist."""
        folder = os.path.join(os.path.dirname(self.path), self._fill(self.cwd))
        if not os.path.isdir(folder):
            raise UsageError(f"{self.name!r} in {self.path}: there is no folder {folder!r}", fix='correct its "cwd"')
        return folder

    def filled(self) -> Launch:
        """How to reach it from here. Raises UsageError for a variable that is not set."""
        fill, how = self._fill, self.launch
        command = fill(how.command)
        if os.path.dirname(command):
            command = os.path.join(self.folder, command)
        return Launch(
            command,
            tuple(map(fill, how.args)),
            {name: fill(value) for name, value in how.env.items()},
            fill(how.url),
            {name: fill(value) for name, value in how.headers.items()},
        )

    def _fill(self, text: str) -> str:
        return VARIABLE.sub(self._value, text)

    def _value(self, found: re.Match[str]) -> str:
        variable: str = found[1]
        default: str | None = found[2]
        value = os.path.dirname(self.path) if variable == "workspaceFolder" else os.environ.get(variable, default)
        if value is None:
            raise UsageError(
                f"{self.name!r} in {self.path} needs the variable {variable}, which is not set",
                fix=f"export {variable}=…, or write ${{{variable}:-default}} in the file",
            )
        return value


def nearest() -> str | None:
    """The `.mcp.json` of the current folder, or of the nearest folder above that has one."""
    here = os.getcwd()
    while not os.path.isfile(os.path.join(here, FILE)):
        if here == os.path.dirname(here):
            return None
        here = os.path.dirname(here)
    return os.path.join(here, FILE)


def find(target: str) -> ConfiguredServer | None:
    """The server that `target` names: NAME in the nearest `.mcp.json`, `path/.mcp.json:NAME` in that file.

    None if the nearest file has no such NAME. Raises UsageError if a named file has none, or the entry cannot be used.
    """
    folder, json, name = target.rpartition(".json:")
    path = os.path.abspath(folder + ".json") if json else nearest()
    if path is None:
        return None
    known = _entries(path)
    if name in known:
        return _configured(name, path, known[name])
    if json:
        raise UsageError(
            f"{path} has no server {name!r}", fix=did_you_mean(name, known) if known else "it has no servers"
        )
    return None


def known() -> dict[str, str]:
    """The names in the nearest `.mcp.json`, each with its command or address. Raises UsageError for a broken file."""
    path = nearest()
    if path is None:
        return {}
    return {
        name: str(entry.get("url") or " ".join((str(entry.get("command")), *_args(entry))))
        for name, entry in _entries(path).items()
        if is_mapping(entry)
    }


def _entries(path: str) -> Mapping[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            whole = jsonc.parse(file.read())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", fix="check the path before :NAME") from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}", fix="correct the file") from None
    for key in KEYS:
        if is_mapping(whole) and is_mapping(section := whole.get(key)):
            return section
    return {}


def _configured(name: str, path: str, entry: Any) -> ConfiguredServer:
    """Raises UsageError for an entry that has neither a command nor an address."""
    place = f"{name!r} in {path}"
    if not is_mapping(entry):
        raise UsageError(f"{place} is not an object", fix='write {"command": …, "args": […]} or {"url": …}')
    command, url = entry.get("command"), entry.get("url")
    if not (command or url) or not all(isinstance(text, str) for text in (command or "", url or "")):
        raise UsageError(f"{place} has neither a command nor a url", fix='give it "command" and "args", or "url"')
    launch = Launch(command or "", _args(entry), _texts(entry.get("env")), url or "", _texts(entry.get("headers")))
    return ConfiguredServer(name, path, launch, str(entry.get("cwd") or ""))


def _args(entry: Mapping[str, Any]) -> tuple[str, ...]:
    given = entry.get("args")
    return tuple(map(str, given)) if is_array(given) else ()


def _texts(given: Any) -> dict[str, str]:
    return {str(name): str(value) for name, value in given.items()} if is_mapping(given) else {}
