"""Literal secrets kept out of a file: each becomes a variable that a person has to set.

A text that names a variable is judged like any other: by what stands beside its variables, and by their defaults.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

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
        return {name: self.text(server, name, value, is_secret_name(name)) for name, value in env.items()}

    def args(self, server: str, args: list[str]) -> list[str]:
        """A command line, without what follows `--token` or looks like a secret."""
        found: list[str] = []
        for before, word in zip(["", *args], args, strict=False):
            flag, equals, value = word.partition("=")
            if before.startswith("-") and "=" not in before and is_secret_name(before):
                found.append(self.text(server, before, word, True))
            elif equals and is_secret_name(flag):
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


def _is_secret(text: str) -> bool:
    return _looks_secret(text) or _has_secret_in_url(text)


def _looks_secret(text: str) -> bool:
    return redact_text(text, limit=len(text)) != printable(text)


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
        _literal(value) and (is_secret_name(name) or name.lower() in _QUERY_SECRETS)
        for name, value in _QUERY.findall(text)
    )


def _literal(text: str) -> str:
    return VARIABLE.sub("", text)
