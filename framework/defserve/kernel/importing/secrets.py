"""Literal secrets kept out of a file: each becomes a variable that a person has to set."""

from __future__ import annotations

import re
from collections.abc import Mapping

from defserve.redaction import is_secret_name, redact_text


class KeptOut:
    """The variables that stand for secrets in one file. The secrets themselves are told to nobody."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    @property
    def names(self) -> list[str]:
        return sorted(self._values)

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
        """The value, or a variable in its place. A value that names a variable already holds no secret."""
        if not value or "${" in value or not (is_secret or redact_text(value, limit=len(value)) != value):
            return value
        return f"${{{self._variable(server, name, value)}}}"

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
