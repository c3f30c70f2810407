"""A client's entries as the text of an mgp.toml."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from defserve.host.addresses import OLDER_PATH, is_address
from defserve.kernel.config.fields import HEADER, VARIABLE
from defserve.kernel.importing.secrets import KeptOut
from defserve.kernel.importing.sources import ClientSettings
from defserve.tooling.export.mgp_entry import toml_value
from defserve.wire.jsonvalue import is_array, is_object

ADDRESSES: Final = ("url", "serverUrl", "httpUrl")
HEADERS: Final = ("headers", "http_headers")
APPROVALS: Final = ("autoApprove", "alwaysAllow", "trust")
KNOWN: Final = {
    "type", "transport", "command", "args", "env", "cwd", "disabled", "enabled", "bearer_token_env_var",
    *ADDRESSES, *HEADERS, *APPROVALS,
}  # fmt: skip
_BEARER: Final = re.compile(r"Bearer\s+(\S+)", re.IGNORECASE)
_CLIENT_VARIABLE: Final = re.compile(r"\$\{(env:|input:)?([^}:]+)(:-[^}]*)?\}")


class Imported(NamedTuple):
    """The text of the file; the variables that have to be set; the servers that were left out."""

    text: str
    variables: list[str]
    left_out: list[str]


def imported(settings: ClientSettings) -> Imported:
    """The servers of a client as an mgp.toml. What could not be taken over stands in it as a comment."""
    kept = KeptOut()
    parts: list[str] = []
    left_out: list[str] = []
    taken: set[str] = set()
    for name, entry in settings.entries.items():
        id = _legal(name, taken)
        try:
            parts.append("\n".join(_Entry(id, entry, settings.folder, kept).lines()) + "\n")
        except _NotTaken as problem:
            left_out.append(name)
            parts.append(f"# {_comment(name)} was left out: {problem}\n")
    head = [f"# Made from {_comment(settings.path.name)} by `defserve kernel import`."]
    head += [f"# A secret was left out. Set it before the kernel starts: export {name}=…" for name in kept.names]
    return Imported("\n".join(("\n".join((*head, "")), *parts)), kept.names, left_out)


class _NotTaken(Exception):
    """Why an entry cannot be taken over."""


class _Entry:
    """One server on its way into the file."""

    def __init__(self, id: str, entry: Any, folder: Path, kept: KeptOut) -> None:
        if not is_object(entry):
            raise _NotTaken("it is not an object")
        self.id, self.entry, self.folder, self.kept = id, entry, folder, kept
        self.comments: list[str] = []

    def lines(self) -> Iterator[str]:
        members = {"id": self.id, "prefix": re.sub(r"[^A-Za-z0-9_-]", "_", self.id)}
        url = next((self.entry[name] for name in ADDRESSES if isinstance(self.entry.get(name), str)), "")
        tables = self._address(url, members) if url else self._command(members)
        if others := self.entry.keys() - KNOWN:
            self.comments.append(f"not taken over: {_names(sorted(others))}")
        if approved := [name for name in APPROVALS if self.entry.get(name)]:
            self.comments.append(f"{', '.join(approved)} of the client grants nothing here")
        yield from (f"# {_comment(text)}" for text in self.comments)
        yield "[[servers]]"
        yield from (f"{name} = {toml_value(value)}" for name, value in members.items())
        if self.entry.get("disabled") is True or self.entry.get("enabled") is False:
            yield "enabled = false"
        for name, table in tables.items():
            if table:
                yield f"[servers.{name}]"
                yield from (f"{toml_value(key)} = {toml_value(value)}" for key, value in table.items())

    def _command(self, members: dict[str, Any]) -> dict[str, dict[str, str]]:
        command = self.entry.get("command")
        if not isinstance(command, str) or not command:
            raise _NotTaken("it has neither a command nor a url")
        given = self.entry.get("args")
        args = [self._text(str(word)) for word in given] if is_array(given) else []
        members |= {
            "command": self.kept.text(self.id, "command", self._text(command)),
            "args": self.kept.args(self.id, args),
        }
        if cwd := self.entry.get("cwd"):
            members["cwd"] = self.kept.text(self.id, "cwd", self._text(str(cwd)))
        return {"env": self.kept.env(self.id, self._texts(("env",), VARIABLE))}

    def _address(self, url: str, members: dict[str, Any]) -> dict[str, dict[str, str]]:
        kind = self.entry.get("type") or self.entry.get("transport")
        if kind == "sse" and not urlsplit(url).path.rstrip("/").endswith(OLDER_PATH):
            raise _NotTaken(f"it speaks HTTP+SSE of 2024 at an address that does not end with {OLDER_PATH}")
        address = self._text(url)
        if not is_address(address):
            raise _NotTaken("its address has no http://, https://, ws:// or wss://")
        members["url"] = self.kept.text(self.id, "url", address)
        headers = self._texts(HEADERS, HEADER)
        token = self._token(headers)
        if token:
            members["auth_token"] = token
        return {"headers": self.kept.headers(self.id, headers)}

    def _token(self, headers: dict[str, str]) -> str:
        if isinstance(variable := self.entry.get("bearer_token_env_var"), str) and re.fullmatch(VARIABLE, variable):
            return f"${{{variable}}}"
        name = next((name for name in headers if name.lower() == "authorization"), None)
        found = None if name is None else _BEARER.fullmatch(headers[name])
        if name is None or found is None:
            return ""
        del headers[name]
        return self.kept.text(self.id, f"{self.id}_token", found[1], is_secret=True)

    def _texts(self, names: tuple[str, ...], pattern: str) -> dict[str, str]:
        nothing: Mapping[str, Any] = {}
        given = next((table for name in names if is_object(table := self.entry.get(name))), nothing)
        odd = [name for name in given if not re.fullmatch(pattern, name)]
        if odd:
            self.comments.append(f"not taken over: {_names(odd)}")
        return {name: self._text(str(value)) for name, value in given.items() if name not in odd}

    def _text(self, text: str) -> str:
        """A text with the client's variables in the words of mgp.toml."""
        return _CLIENT_VARIABLE.sub(self._variable, text)

    def _variable(self, found: re.Match[str]) -> str:
        kind: str | None = found[1]
        name, default = str(found[2]), found[3] or ""
        if name in ("workspaceFolder", "workspaceRoot") and kind is None:
            return str(self.folder)
        legal = re.sub(r"\W", "_", name)
        if kind == "input:":
            legal = f"INPUT_{legal.upper()}"
            self.comments.append(f"the client asks a person for {name}: export {legal}=…")
        elif not re.fullmatch(VARIABLE, name):
            self.comments.append(f"${{{name}}} is a variable of the client: export {legal}=…")
        return f"${{{legal if not legal[:1].isdigit() else f'_{legal}'}{default}}}"


def _legal(name: str, taken: set[str]) -> str:
    """An id made from a client's name for a server, and not taken yet."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:50].strip("-._") or "server"
    id = next(id for id in (plain, *(f"{plain}-{number}" for number in range(2, len(taken) + 3))) if id not in taken)
    taken.add(id)
    return id


def _comment(text: str) -> str:
    """A text that cannot end its comment."""
    return re.sub(r"[\x00-\x1f\x7f]", " ", text)[:300]


def _names(found: Sequence[str]) -> str:
    """Names for a comment. One that is not made as names are may hold anything, a secret too."""
    plain = [name for name in found if _MEMBER.fullmatch(name)]
    odd = len(found) - len(plain)
    return ", ".join([*plain, *([f"{odd} with an unusual name"] if odd else [])])


_MEMBER: Final = re.compile(r"[A-Za-z][A-Za-z_-]{0,40}")
