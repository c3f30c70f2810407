"""Names of servers where they become keys or files: in the settings of clients, in documents and in new projects.

Clients are written in many languages and read JSON, TOML and YAML. A name must mean the same in all of them. It is no
key that an object of JavaScript has by itself, no word that YAML takes for a value, and no device of Windows.
"""

from __future__ import annotations

import re
from typing import Final

from defserve.errors import UsageError

LONGEST: Final = 64
RESERVED: Final = frozenset(
    (
        *("constructor", "prototype", "hasownproperty", "isprototypeof", "propertyisenumerable", "tolocalestring"),
        *("tostring", "valueof", "null", "true", "false", "yes", "no", "on", "off", "nan", "inf", "undefined"),
        *("con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10))),
    )
)
"""In lower case. What begins with two underscores is refused anyhow."""

_NAME: Final = re.compile(rf"[A-Za-z][A-Za-z0-9_-]{{0,{LONGEST - 1}}}")
# The ids of MGP have dots.
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._:/@+-]{0,127}")
_SHOWN: Final = 60


def checked_server_name(name: str) -> str:
    """The name, if every client can have a server of that name. Raises UsageError."""
    if not _NAME.fullmatch(name) or is_reserved(name):
        raise UsageError(
            f"{_shown(name)} cannot be the name of a server in a client{_why(name)}",
            fix=f"use at most {LONGEST} letters, digits, - and _, a letter first; for example --name weather",
        )
    return name


def checked_server_id(name: str) -> str:
    """The id under which a document names a server. Raises UsageError."""
    if not _ID.fullmatch(name) or is_reserved(name):
        raise UsageError(
            f"the server calls itself {_shown(name)}, which cannot be an id{_why(name)}",
            fix='give it a plain name: Server("weather"), or server_id="com.example.weather"',
        )
    return name


def server_name_of(own: str) -> str:
    """A name for clients, made from what a server calls itself."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", own[:1_000]).strip("-_")[:LONGEST]
    return name if _NAME.fullmatch(name) and not is_reserved(name) else f"server-{name}"[:LONGEST].strip("-")


def is_reserved(name: str) -> bool:
    """Whether a name means something else in a language or a system that reads it."""
    return name.lower() in RESERVED


def _why(name: str) -> str:
    return ": it means something else to programs that read it" if is_reserved(name) or name.startswith("__") else ""


def _shown(name: str) -> str:
    return repr(name) if len(name) <= _SHOWN else f"{name[:_SHOWN]!r}… ({len(name):,} characters)"
