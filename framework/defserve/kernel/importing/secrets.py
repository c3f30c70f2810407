"""Literal secrets kept out of a file: each becomes a variable that a person has to set.

A text that names a variable is judged like any other: by what stands beside its variables, and by their defaults.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

from defserve.kernel.config.variables import VARIABLE
from defserve.redaction import is_secret_name, printable, redact_text

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

    def env(self, server: str, env: Mapping[str, str]) -> dict[str, str]:
        """The variables of a program, without their secrets."""
        return {name: self.text(server, name, value, not is_harmless(name, value)) for name, value in env.items()}

    def headers(self, server: str, headers: Mapping[str, str]) -> dict[str, str]:
        """The headers of requests, without their secrets."""
        return self.env(server, headers)

    def args(self, server: str, args: list[str]) -> list[str]:
        """A command line, without what follows `--token` or looks like a secret."""
        found: list[str] = []
        for before, word in zip(["", *args], args, strict=False):
            flag, equals, value = word.partition("=")
            if _is_secret_flag(before) and not word.startswith("-"):
                found.append(self.text(server, before, word, True))
            elif equals and _has_secret_word(flag):
                found.append(f"{flag}={self.text(server, flag, value, True)}")
            else:
                found.append(self.text(server, "argument", word))
        return found

    def text(self, server: str, name: str, value: str, is_secret: bool = False) -> str:
        """The value, or a variable in its place. Of variables that it names, defaults that are secrets are dropped."""
        value = VARIABLE.sub(lambda found: self._without_secret(found, is_secret), value)
        literal = VARIABLE.sub(lambda found: found[0] if found[1] else "", value)
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
        if found[1] or not default or not (is_secret or is_secret_name(name) or _is_secret(default)):
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
    literal = VARIABLE.sub(lambda found: found[0] if found[1] else found[3] or "", value)
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


def _is_secret(text: str) -> bool:
    return _looks_secret(text) or _has_secret_in_url(text)


def _looks_secret(text: str) -> bool:
    # JSON, and the command line in a word for a shell, name their secrets inside.
    if redact_text(text, limit=len(text)) != printable(text):
        return True
    return any(
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
        user, _, password = VARIABLE.sub("\0", found[1]).partition(":")
        if password.strip("\0") or len(user.strip("\0")) >= MIN_TOKEN:
            return True
    return any(
        _literal(value)
        and (_has_secret_word(name) or unquote(name).lower() in _QUERY_SECRETS or len(_literal(value)) >= MIN_TOKEN)
        for name, value in _QUERY.findall(unquote(text))
    )


def _literal(text: str) -> str:
    return VARIABLE.sub("", text)
