"""An mgp.toml made from the settings of an MCP client.

It guesses nothing and grants nothing. Literal secrets are left out, and a comment names the variables that take their
place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from defserve.base.hidden_characters import is_printable_line
from defserve.base.redaction import escape_unprintable, is_secret_name, redact_text
from defserve.client.known_clients import KNOWN_CLIENTS, SettingsFormat, SettingsScope
from defserve.client.targets import LEGACY_SSE_PATH, is_server_address
from defserve.core.json_values import is_array, is_object
from defserve.errors import UsageError, did_you_mean
from defserve.kernel.config.entries import SECRET_REFERENCE, VARIABLE_REFERENCE
from defserve.kernel.config.settings import HEADER_NAME_PATTERN, VARIABLE_NAME_PATTERN
from defserve.tooling.client_settings import read_settings
from defserve.tooling.listing import format_toml_value

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


def convert_client_settings(settings: ClientSettings) -> Imported:
    """The servers of a client as an mgp.toml. What could not be taken over stands in it as a comment."""
    kept = KeptOut()
    parts: list[str] = []
    left_out: list[str] = []
    taken: set[str] = set()
    for name, entry in settings.entries.items():
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:50].strip("-._") or "server"
        numbered = (f"{plain}-{number}" for number in range(2, len(taken) + 3))
        id = next(id for id in (plain, *numbered) if id not in taken)
        taken.add(id)
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
        url = next((self.entry[name].strip() for name in ADDRESSES if isinstance(self.entry.get(name), str)), "")
        tables = self._address(url, members) if url else self._command(members)
        if others := self.entry.keys() - KNOWN:
            self.comments.append(f"not taken over: {_names(sorted(others))}")
        if approved := [name for name in APPROVALS if self.entry.get(name)]:
            self.comments.append(f"{', '.join(approved)} of the client grants nothing here")
        yield from (f"# {_comment(text)}" for text in self.comments)
        yield "[[servers]]"
        yield from (f"{name} = {format_toml_value(value)}" for name, value in members.items())
        if self.entry.get("disabled") is True or self.entry.get("enabled") is False:
            yield "enabled = false"
        for name, table in tables.items():
            if table:
                yield f"[servers.{name}]"
                yield from (f"{format_toml_value(key)} = {format_toml_value(value)}" for key, value in table.items())

    def _command(self, members: dict[str, Any]) -> dict[str, dict[str, str]]:
        command = self.entry.get("command")
        if not isinstance(command, str) or not command:
            raise _NotTaken("it has neither a command nor a url")
        given = self.entry.get("args")
        args = [self._text(str(word)) for word in given] if is_array(given) else []
        members |= {
            "command": self.kept.replace_secret(self.id, "command", self._text(command)),
            "args": self.kept.args(self.id, args),
        }
        if cwd := self.entry.get("cwd"):
            members["cwd"] = self.kept.replace_secret(self.id, "cwd", self._text(str(cwd)))
        return {"env": self.kept.replace_secrets(self.id, self._texts(("env",), VARIABLE_NAME_PATTERN))}

    def _address(self, url: str, members: dict[str, Any]) -> dict[str, dict[str, str]]:
        kind = self.entry.get("type") or self.entry.get("transport")
        if kind == "sse" and not urlsplit(url).path.rstrip("/").endswith(LEGACY_SSE_PATH):
            raise _NotTaken(f"it speaks HTTP+SSE of 2024 at an address that does not end with {LEGACY_SSE_PATH}")
        if not is_printable_line(url):
            raise _NotTaken("its url has a line break or another character that cannot be seen")
        address = self._text(url)
        if not is_server_address(address):
            raise _NotTaken("its address has no http://, https://, ws:// or wss://")
        members["url"] = self.kept.replace_secret(self.id, "url", address)
        headers = self._texts(HEADERS, HEADER_NAME_PATTERN)
        token = self._token(headers)
        if token:
            members["auth_token"] = token
        return {"headers": self.kept.replace_secrets(self.id, headers)}

    def _token(self, headers: dict[str, str]) -> str:
        if isinstance(variable := self.entry.get("bearer_token_env_var"), str) and re.fullmatch(
            VARIABLE_NAME_PATTERN, variable
        ):
            return f"${{{variable}}}"
        name = next((name for name in headers if name.lower() == "authorization"), None)
        found = None if name is None else _BEARER.fullmatch(headers[name])
        if name is None or found is None:
            return ""
        del headers[name]
        return self.kept.replace_secret(self.id, f"{self.id}_token", found[1], is_secret=True)

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
        elif not re.fullmatch(VARIABLE_NAME_PATTERN, name):
            self.comments.append(f"${{{name}}} is a variable of the client: export {legal}=…")
        return f"${{{legal if not legal[:1].isdigit() else f'_{legal}'}{default}}}"


def _comment(text: str) -> str:
    """A text that cannot end its comment."""
    return re.sub(r"[\x00-\x1f\x7f]", " ", text)[:300]


def _names(found: Sequence[str]) -> str:
    """Names for a comment. One that is not made as names are may hold anything, a secret too."""
    plain = [name for name in found if _MEMBER.fullmatch(name)]
    odd = len(found) - len(plain)
    return ", ".join([*plain, *([f"{odd} with an unusual name"] if odd else [])])


_MEMBER: Final = re.compile(r"[A-Za-z][A-Za-z_-]{0,40}")


# -- Literal secrets kept out of a file: each becomes a variable that a person has to set.
#
# A text that names a variable is judged like any other: by what stands beside its variables, and by their defaults.


# What may stand beside the variable of a secret: how the secret is sent, and signs.
_BESIDE: Final = re.compile(
    r"\W*+(?:(?:bearer|basic|token|digest|negotiate|api-?key|key)\s++)?[\W_]*+", re.IGNORECASE | re.ASCII
)
_NAMED: Final = re.compile(r"([\w-]+)\s*[:=](.*)", re.DOTALL)
_USER: Final = re.compile(r"://([^\s/?#@]+)@")
MIN_TOKEN: Final = 16
"""Characters of a user in a URL that are taken for a token rather than for a name."""
_QUERY: Final = re.compile(r"[?&#;]([^=&#;\s]+)=([^&#;\s]+)")
_QUERY_SECRETS: Final = frozenset(("key", "sig", "signature", "code", "auth", "hash"))
"""Names in the query of a URL that only there stand for secrets."""

_SECRET_WORDS: Final = frozenset(
    "apikey auth bearer credential credentials hook jwt key license otp pass passwd password pat pin psk pw pwd salt"
    " secret session sid signature signing sk token webhook".split()
)
_SECRET_FLAGS: Final = frozenset(("-p", "-u", "-H", "--user", "--header"))
"""Flags whose value is, or has, a password: `curl -u user:…`, `mysql -p …`, `-H "X-Auth: …"`."""
_INSIDE: Final = (
    re.compile(r"([A-Za-z][\w.-]{0,63})[\"']?\s*[:=]\s*[\"']?([^\s,;}\"']{1,4096})"),
    re.compile(r"--?([A-Za-z][\w-]{0,63})\s+([^\s-]\S{0,4096})"),
)
"""A name and a value inside of a word: `{"token": "…"}`, `Server=h;Pwd=…`, and `x --token …` for a shell."""
_PLAIN: Final = re.compile(
    r"[+-]?[0-9]{1,10}(?:\.[0-9]{1,10})?(?:ms|s|m|h|d|[kmg]i?b)?|true|false|yes|no|on|off|none|null|auto|default"
    r"|trace|debug|info|notice|warn(?:ing)?|error|fatal|critical|silent|verbose"
    r"|prod(?:uction)?|dev(?:elopment)?|test(?:ing)?|staging|local|stdio|sse|https?|streamable-http"
    r"|[a-z]{2}[_-][A-Z]{2}(?:\.UTF-8)?|utf-?8|application/json(?:, ?text/event-stream)?|text/[a-z-]{1,32}",
    re.IGNORECASE,
)
"""Values that say nothing: numbers, switches, levels of logs, languages, types of contents."""
_PLAIN_NAMES: Final = frozenset(
    "accept accept-language content-type user-agent lang language lc_all tz path home user username node_env log_level"
    " loglevel region aws_region aws_default_region host hostname port database db_name db_host db_port"
    " mcp-protocol-version pythonpath pythonunbuffered virtual_env http_proxy https_proxy no_proxy workspace"
    " project_id profile".split()
)
"""Names of values that are usually no secrets, if nothing in the value looks like one."""
_LONG_PART: Final = re.compile(r"[\w-]{16}")
"""A part of the path of a URL that may be a token."""
MAX_SHORT: Final = 7
"""Characters of a value that is too short for a secret, unless its name says that it is one."""
_PATH: Final = re.compile(r"(?:~|\.{1,2}|[A-Za-z]:)?[/\\][^\0\r\n]{0,1024}")


class KeptOut:
    """The variables that stand for secrets in one file. The secrets themselves are told to nobody."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._without_default: set[str] = set()

    @property
    def names(self) -> list[str]:
        return sorted(self._values.keys() | self._without_default)

    def replace_secrets(self, server: str, values: Mapping[str, str]) -> dict[str, str]:
        """The variables of a program, or the headers of requests, without their secrets."""
        return {
            name: self.replace_secret(server, name, value, not is_harmless(name, value))
            for name, value in values.items()
        }

    def args(self, server: str, args: list[str]) -> list[str]:
        """A command line, without what follows `--token` or looks like a secret."""
        found: list[str] = []
        for before, word in zip(["", *args], args, strict=False):
            flag, equals, value = word.partition("=")
            if _is_secret_flag(before) and not word.startswith("-"):
                found.append(self.replace_secret(server, before, word, True))
            elif equals and _has_secret_word(flag):
                found.append(f"{flag}={self.replace_secret(server, flag, value, True)}")
            else:
                found.append(self.replace_secret(server, "argument", word))
        return found

    def replace_secret(self, server: str, name: str, value: str, is_secret: bool = False) -> str:
        """The value, or a variable in its place. Of variables that it names, defaults that are secrets are dropped."""
        # Other clients mean something else by these, and nothing that is copied may start a program or read a file.
        value = SECRET_REFERENCE.sub(lambda found: found[0] if found[1] else f"${found[0]}", value)
        value = VARIABLE_REFERENCE.sub(lambda found: self._without_secret(found, is_secret), value)
        literal = VARIABLE_REFERENCE.sub(lambda found: found[0] if found[1] else "", value)
        if not literal or (literal != value and is_secret and _BESIDE.fullmatch(literal) is not None):
            return value
        named = _NAMED.fullmatch(literal)
        if literal != value and named is not None and is_secret_name(named[1]) and _BESIDE.fullmatch(named[2]):
            return value
        if not (is_secret or _looks_secret(literal) or _has_secret_in_url(value)):
            return value
        return f"${{{self._variable(server, name, value)}}}"

    def _without_secret(self, found: re.Match[str], is_secret: bool) -> str:
        """A variable as it may stand in the file."""
        name, default = str(found[2]), found[3]
        if (
            found[1]
            or not default
            or not (is_secret or is_secret_name(name) or _looks_secret(default) or _has_secret_in_url(default))
        ):
            return found[0]
        self._without_default.add(name)
        return f"${{{name}}}"

    def _variable(self, server: str, name: str, value: str) -> str:
        short = re.sub(r"\W+", "_", name).strip("_").upper() or "SECRET"
        own = re.sub(r"\W+", "_", f"{server}_{short}").upper()
        wanted = [short, own] if re.match(r"[A-Z_]", short) and name != "argument" else [own]
        numbered = (f"{own}_{number}" for number in range(2, len(self._values) + 3))
        for candidate in (*wanted, *numbered):
            legal = candidate if re.match(r"[A-Z_]", candidate) else f"_{candidate}"
            if self._values.setdefault(legal, value) == value:
                return legal
        raise AssertionError("one of so many names is free")


def is_harmless(name: str, value: str) -> bool:
    """Whether the value of a variable, or header, is known to be no secret, by its form or by its name.

    There are more names for secrets than anybody can list. So what is not known to be harmless is kept out.
    """
    literal = VARIABLE_REFERENCE.sub(lambda found: found[0] if found[1] else found[3] or "", value)
    if not literal:
        return not _has_secret_word(name)
    if _has_secret_word(name) or _looks_secret(literal) or _has_secret_in_url(value):
        return False
    if _PLAIN.fullmatch(literal) is not None or name.lower() in _PLAIN_NAMES:
        return True
    if "://" in literal:
        return _LONG_PART.search(literal.partition("://")[2].partition("/")[2]) is None
    return len(literal) <= MAX_SHORT or _PATH.fullmatch(literal) is not None


def _has_secret_word(name: str) -> bool:
    """Whether one of the words of a name stands for a secret: `GITHUB_PAT`, `X-Auth`, `dbPass`."""
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", unquote(name)).lower()
    return is_secret_name(name) or not _SECRET_WORDS.isdisjoint(re.split(r"[^a-z0-9]+", words))


def _is_secret_flag(flag: str) -> bool:
    """Whether the next word of a command line is a secret."""
    return flag.startswith("-") and "=" not in flag and (flag in _SECRET_FLAGS or _has_secret_word(flag))


def _looks_secret(text: str) -> bool:
    # JSON, and the command line in a word for a shell, name their secrets inside.
    return redact_text(text, limit=len(text)) != escape_unprintable(text) or any(
        _has_secret_word(name) and _literal(value) and _PLAIN.fullmatch(value) is None
        for pattern in _INSIDE
        for name, value in pattern.findall(_literal(text))
    )


def _has_secret_in_url(text: str) -> bool:
    """Whether the user, the password or the query of a URL holds a secret, beside variables."""
    if "://" not in text:
        return False
    for found in _USER.finditer(text):
        # A default may hold a colon too.
        user, _, password = VARIABLE_REFERENCE.sub("\0", found[1]).partition(":")
        if password.strip("\0") or len(user.strip("\0")) >= MIN_TOKEN:
            return True
    return any(
        _literal(value)
        and (_has_secret_word(name) or unquote(name).lower() in _QUERY_SECRETS or len(_literal(value)) >= MIN_TOKEN)
        for name, value in _QUERY.findall(unquote(text))
    )


def _literal(text: str) -> str:
    return VARIABLE_REFERENCE.sub("", text)


# -- The servers in the settings of a client: a file, or the client's name.


KEYS: Final = ("mcpServers", "servers", "mcp_servers", "context_servers")
EDITOR_FOLDERS: Final = (".vscode", ".cursor", ".zed", ".gemini")


class ClientSettings(NamedTuple):
    """The servers as a file has them. `folder` is that of the project, which `${workspaceFolder}` names."""

    path: Path
    folder: Path
    entries: Mapping[str, Any]


def load_client_settings(source: str, scope: SettingsScope | None = None) -> ClientSettings:
    """The servers in a file, or in the settings of the client with that name. Raises UsageError if there are none."""
    app = KNOWN_CLIENTS.get(source)
    path = app.path(scope, Path.cwd()) if app is not None else Path(source).absolute()
    if not path.is_file():
        what = f"{app.title} has no settings" if app is not None else f"there is no file {source}"
        others = f"name a file, or one of the clients {', '.join(KNOWN_CLIENTS)}"
        fix = others if app is not None else did_you_mean(source, KNOWN_CLIENTS, others)
        raise UsageError(f"{what}{f' at {path}' if app else ''}", fix=fix)
    format: SettingsFormat = app.format if app is not None else "toml" if path.suffix == ".toml" else "json"
    whole = read_settings(path, format)
    for key in (app.key,) if app is not None else KEYS:
        section = whole.get(key) if is_object(whole) else None
        if is_object(section) and section:
            folder = path.parent.parent if path.parent.name in EDITOR_FOLDERS else path.parent
            return ClientSettings(path, folder, section)
    raise UsageError(f"{path} has no servers", fix=f"look for one of the keys {', '.join(KEYS)} in it")
