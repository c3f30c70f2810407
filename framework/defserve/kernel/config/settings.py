"""Every setting of mgp.toml, as data: what the reader accepts and what the schema for editors says.

How it works: a kind of setting checks a value, names its mistakes, and describes itself as JSON Schema. The table of
all settings is made of these kinds; the reader and the schema both come from it.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Final, NamedTuple, TypeAlias

from defserve.core.json_values import is_array, is_object
from defserve.errors import find_nearest_names
from defserve.protocols.mcp.versions import HANDSHAKE_VERSIONS, STATELESS_VERSIONS
from defserve.proxying.mounted import MAX_RESTARTS, RESTART_STRATEGIES

SettingPath: TypeAlias = tuple[str | int, ...]
"""Where a value stands in the file: `("servers", 0, "mgp", "trust_level")`."""


class ConfigMistake(NamedTuple):
    """What is wrong at a place of the file, and how to correct it."""

    path: SettingPath
    problem: str
    fix: str = ""


ReportMistake: TypeAlias = Callable[[ConfigMistake], None]
INVALID_VALUE: Final = object()
"""What `parse_value` returns for a value that it has reported."""
_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class Setting(ABC):
    """One setting. `about` is what an editor shows."""

    about: str

    @abstractmethod
    def parse_value(self, value: Any, path: SettingPath, report: ReportMistake) -> Any:
        """The checked value, or INVALID_VALUE after reporting why."""

    def schema(self) -> dict[str, Any]:
        """Its JSON Schema."""
        return {"description": self.about, **self._type()}

    @abstractmethod
    def _type(self) -> dict[str, Any]:
        """The part of it that says which values there are."""

    def _wrong(self, path: SettingPath, report: ReportMistake, problem: str, fix: str) -> Any:
        report(ConfigMistake(path, problem, fix))
        return INVALID_VALUE


@dataclass(frozen=True, slots=True)
class Text(Setting):
    """A text: one of `choices` or `aliases` (other spellings of a choice), or one that matches `pattern`."""

    choices: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    pattern: str = ""
    example: str = ""

    def parse_value(self, value: Any, path: SettingPath, report: ReportMistake) -> Any:
        if not isinstance(value, str) or not value:
            return self._wrong(path, report, "must be a text that is not empty", self._fix(path))
        chosen = self.aliases.get(value, value)
        if (self.choices and chosen not in self.choices) or (self.pattern and not re.fullmatch(self.pattern, value)):
            return self._wrong(path, report, f"cannot be {_format_value(value)}", self._fix(path))
        return chosen

    def _fix(self, path: SettingPath) -> str:
        if self.choices:
            return f"use one of {', '.join(self.choices)}"
        return f'write {path[-1]} = "{self.example or "…"}"'

    def _type(self) -> dict[str, Any]:
        if self.choices:
            return {"enum": [*self.choices, *self.aliases]}
        return {"type": "string", "minLength": 1, **({"pattern": f"^(?:{self.pattern})$"} if self.pattern else {})}


@dataclass(frozen=True, slots=True)
class Number(Setting):
    """A number from `least` to `most`; with `whole`, without a fraction."""

    least: float = 0
    most: float = 1_000_000
    whole: bool = False

    def parse_value(self, value: Any, path: SettingPath, report: ReportMistake) -> Any:
        kinds = int if self.whole else int | float
        # A comparison with NaN is false, so it is refused as well.
        if isinstance(value, bool) or not isinstance(value, kinds) or not self.least <= value <= self.most:
            what = "whole number" if self.whole else "number"
            return self._wrong(
                path,
                report,
                f"cannot be {_format_value(value)}",
                f"give a {what} from {self.least:.12g} to {self.most:.12g}",
            )
        return value

    def _type(self) -> dict[str, Any]:
        return {"type": "integer" if self.whole else "number", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True, slots=True)
class Flag(Setting):
    """True or false."""

    def parse_value(self, value: Any, path: SettingPath, report: ReportMistake) -> Any:
        if not isinstance(value, bool):
            return self._wrong(path, report, f"cannot be {_format_value(value)}", "write true or false")
        return value

    def _type(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Texts(Setting):
    """A list of texts, which becomes a tuple. Empty ones are allowed where `blank` says so."""

    choices: tuple[str, ...] = ()
    blank: bool = False

    def parse_value(self, value: Any, path: SettingPath, report: ReportMistake) -> Any:
        if not is_array(value) or not all(isinstance(item, str) and (item or self.blank) for item in value):
            return self._wrong(path, report, "must be a list of texts", f'write {path[-1]} = ["…"]')
        for item in value:
            if self.choices and item not in self.choices:
                return self._wrong(
                    path, report, f"cannot contain {_format_value(item)}", f"use some of {', '.join(self.choices)}"
                )
        return tuple(value)

    def _type(self) -> dict[str, Any]:
        items: dict[str, Any] = {"enum": list(self.choices)} if self.choices else {"type": "string"}
        return {"type": "array", "items": items}


@dataclass(frozen=True, slots=True)
class TextTable(Setting):
    """A table whose names match `pattern` and whose values are texts."""

    pattern: str = r".+"

    def parse_value(self, value: Any, path: SettingPath, report: ReportMistake) -> Any:
        if not is_object(value):
            return self._wrong(path, report, "must be a table", f'write {path[-1]} = {{ NAME = "…" }}')
        for name, item in value.items():
            if not isinstance(item, str):
                return self._wrong((*path, name), report, "must be a text", f'write {name} = "…"')
            if not re.fullmatch(self.pattern, name):
                return self._wrong((*path, name), report, f"cannot be called {_format_value(name)}", "use a plain name")
        return dict(value)

    def _type(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": {"type": "string"}}


@dataclass(frozen=True, slots=True)
class Table(Setting):
    """A table of named settings. The values that are wrong are left out of what `parse_value` returns."""

    settings: Mapping[str, Setting]
    required: tuple[str, ...] = ()

    def parse_value(self, value: Any, path: SettingPath, report: ReportMistake) -> Any:
        if not is_object(value):
            return self._wrong(path, report, "must be a table", f"write [{path[-1]}] on a line of its own")
        for name in self.required:
            if name not in value:
                report(ConfigMistake(path, f"has no {name}", f'add {name} = "…"'))
        read: dict[str, Any] = {}
        for name, item in value.items():
            known = self.settings.get(name)
            if known is None:
                report(ConfigMistake((*path, name), "is not a setting", _find_right_name(name, self.settings)))
            elif (checked := known.parse_value(item, (*path, name), report)) is not INVALID_VALUE:
                read[name] = checked
        return read

    def _type(self) -> dict[str, Any]:
        properties = {name: setting.schema() for name, setting in self.settings.items()}
        required = {"required": list(self.required)} if self.required else {}
        return {"type": "object", "additionalProperties": False, "properties": properties, **required}


@dataclass(frozen=True, slots=True)
class Tables(Setting):
    """A table of tables with names of the operator's choice, all of one form."""

    each: Table

    def parse_value(self, value: Any, path: SettingPath, report: ReportMistake) -> Any:
        if not is_object(value):
            return self._wrong(path, report, "must be a table", f"write [{path[-1]}.NAME] on a line of its own")
        read = {name: self.each.parse_value(item, (*path, name), report) for name, item in value.items()}
        return {name: item for name, item in read.items() if item is not INVALID_VALUE}

    def _type(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": self.each.schema()}


@dataclass(frozen=True, slots=True)
class Either(Setting):
    """A table, or something simpler in its place."""

    table: Table
    other: Setting

    def parse_value(self, value: Any, path: SettingPath, report: ReportMistake) -> Any:
        return (self.table if is_object(value) else self.other).parse_value(value, path, report)

    def _type(self) -> dict[str, Any]:
        return {"anyOf": [self.other.schema(), self.table.schema()]}


@dataclass(frozen=True, slots=True)
class Anything(Setting):
    """What is accepted and has no effect here."""

    def parse_value(self, value: Any, path: SettingPath, report: ReportMistake) -> Any:
        return value

    def _type(self) -> dict[str, Any]:
        return {}


def _format_value(value: Any) -> str:
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or too long a number
        return "so large a value"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _find_right_name(name: str, known: Mapping[str, Setting]) -> str:
    """What to write instead of a setting that its table doesn't have."""
    if (meant := OTHER_NAMES.get(name)) in known:
        return f"did you mean {meant}?"
    return _find_right_table(name) or _instead(name, known)


def _find_right_table(name: str) -> str:
    """Where a setting belongs that stands in another table; empty if there is none of this name."""
    tables = {
        "[kernel]": KERNEL,
        "[[servers]]": SERVER_SETTINGS,
        "[servers.mgp]": MGP,
        "[servers.tools]": TOOLS,
        "[servers.health]": HEALTH,
    }
    homes = [label for label, table in tables.items() if name in table.settings]
    return f"write it in {' or '.join(homes)}" if homes else ""


def _instead(name: str, known: Mapping[str, Setting]) -> str:
    names = [*known, "servers"] if known is FILE_SETTINGS.settings else [*known]
    close = find_nearest_names(name, names)
    return f"did you mean {close[0]}?" if close else f"use some of {', '.join(names)}"


# -- Every setting of mgp.toml, as data: what the reader accepts and what the schema for editors says.


# What clients' own files call a setting of ours.
OTHER_NAMES: Final = {"name": "id", "cmd": "command", "arguments": "args", "environment": "env", "type": "transport"}

ID: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
VARIABLE_NAME_PATTERN: Final = r"[A-Za-z_][A-Za-z0-9_]*"
HEADER_NAME_PATTERN: Final = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
PREFIX: Final = r"[A-Za-z0-9_.-]{1,64}"

TRANSPORTS: Final = ("stdio", "http")
TRUST_LEVELS: Final = ("trusted", "standard", "sandboxed", "core", "experimental", "untrusted")
RISKS: Final = ("safe", "moderate", "dangerous")
POLICIES: Final = ("opt-in", "opt-out")
APPROVALS: Final = ("auto_approve", "interactive")
CHANGES: Final = ("allow", "warn", "hold")
LEVELS: Final = ("auto", "L0", "L1", "L2", "L3")

RESTART: Final = {
    "max_restarts": Number("how many restarts within the window are allowed", 0, MAX_RESTARTS, whole=True),
    "restart_window_secs": Number("the length of the window, in seconds", 1, 86_400),
    "backoff_base_ms": Number("the wait before the first restart, in milliseconds", 0, 3_600_000),
    "backoff_max_ms": Number("the longest wait, in milliseconds", 0, 3_600_000),
}
STRATEGY: Final = Text("when the server is started again after it ended", RESTART_STRATEGIES)

MARKS: Final = Table(
    "what the operator says of tools whose names match; it replaces what the server says of them",
    {
        "risk": Text("how dangerous the tools are", RISKS),
        "permissions": Texts("the permissions that they need"),
        "effects": Texts("their side effects"),
        "validator": Text("the validator that their arguments pass"),
        "reversible": Flag("whether what they do can be undone"),
        "confirm": Flag("whether a person has to confirm each call"),
        "categories": Texts("the categories under which they are found"),
        "keywords": Texts("further words under which they are found"),
    },
)

MGP: Final = Table(
    "what MGP adds; without it the server is plain MCP, and still supervised and guarded",
    {
        "extensions": Texts("the extensions that may be negotiated"),
        "permissions_required": Texts("the permissions that the server needs"),
        "trust_level": Text("how far the server is trusted; it may claim less, never more", TRUST_LEVELS),
        "restart_policy": STRATEGY,
        **RESTART,
        "on_change": Text("what happens when a tool's definition changes after it was first seen", CHANGES),
        "tools": Tables("marks for tools, by name or pattern", MARKS),
    },
)

TOOLS: Final = Table(
    "which tools of the server are passed on, and under which names",
    {
        "allow": Texts("only tools that match one of these names or patterns"),
        "deny": Texts("no tool that matches one of these names or patterns"),
        "rename": TextTable("the server's name of a tool = its name here"),
    },
)

HEALTH: Final = Table(
    "how the kernel finds out that the server hangs",
    {
        "interval_secs": Number("seconds between two probes; 0: no probes", 0, 86_400),
        "timeout_secs": Number("seconds within which a probe is answered", 0.05, 600),
        "failures": Number("so many late answers in a row are a failure", 1, 1000, whole=True),
    },
)

SERVER_SETTINGS: Final = Table(
    "a server that the kernel runs or connects to",
    {
        "id": Text("its name for operators, access, audit and search", pattern=ID, example="office.mail"),
        "display_name": Text("its name for people"),
        "transport": Text("how it is reached; the default follows from command or url", TRANSPORTS,
                          {"streamable-http": "http", "sse": "http"}),
        "command": Text("the program that is started; it speaks on standard input and output", example="uvx"),
        "args": Texts("its arguments", blank=True),
        "cwd": Text("the folder that it starts in; the default is the folder of this file"),
        "env": TextTable("variables of the program, beside PATH, HOME and the like", VARIABLE_NAME_PATTERN),
        "url": Text("the address of a server that runs already", pattern=r"(?:(?:https?|wss?)://|\$\{).+",
                    example="https://example.org/mcp"),
        "auth_token": Text("a bearer token for the address"),
        "headers": TextTable("further headers for the address", HEADER_NAME_PATTERN),
        "enabled": Flag("false: the server is listed and not started"),
        "start": Text("lazy: once its tools are known, it ends until its first call", ("eager", "lazy")),
        "idle_stop": Number("seconds without a call after which it stops until the next use; 0: never", 0, 604_800),
        "overlap": Flag("false: a restart ends the old process first, for servers that own a port or a lock"),
        "prefix": Text("tool `x` becomes `prefix_x`; an empty one is written by leaving it out", pattern=PREFIX),
        "tools": TOOLS,
        "per": Text("one conversation for each client, one for all clients, or one for each call",
                    ("client", "shared", "call")),
        "spares": Number("processes that wait for callers, each for one caller", 0, 64, whole=True),
        "timeout": Number("seconds for a call", 0.05, 86_400),
        "in_flight": Number("calls at once", 1, 100_000, whole=True),
        "version": Text("the protocol version to speak with it; the default is the newest that both know",
                        HANDSHAKE_VERSIONS + STATELESS_VERSIONS),
        "pinned": Texts("tools that are always listed"),
        "default_policy": Text("whether callers need a grant (opt-in) or not (opt-out)", POLICIES),
        "health": HEALTH,
        "mgp": MGP,
        "restart_policy": Either("the same as in [servers.mgp], or a table",
                                 Table("strategy, window and back-off", {"strategy": STRATEGY, **RESTART}), STRATEGY),
        "auto_restart": Flag("true is restart_policy = \"on_failure\", false is \"never\""),
        "required_permissions": Texts("the same as permissions_required in [servers.mgp]"),
        "seal": Anything("accepted; it has no effect here"),
        "isolation": Anything("accepted; it has no effect here"),
    },
    required=("id",),
)  # fmt: skip
SETTINGS_WITHOUT_EFFECT: Final = ("seal", "isolation")

KERNEL: Final = Table(
    "the kernel itself",
    {
        "name": Text("the name that clients see"),
        "instructions": Text("what clients are told about the whole"),
        "on": Text("where it serves unless --on says otherwise", example="http://127.0.0.1:8000/mcp"),
        "level": Text("how much of the tools a list shows (MGP §16.3); auto: as much as the budget allows", LEVELS),
        "default_policy": Text("whether callers need a grant (opt-in) or not (opt-out)", POLICIES),
        "permissions": Text(
            "whether permissions that no operator has decided about are approved for callers that are "
            "vouched for (auto_approve), or wait for an operator (interactive)",
            APPROVALS,
        ),
        "admins": Texts("principals that may operate the kernel over the network"),
        "audit": Text(
            "where audit events go: a file, or the address of a store (sqlite:///…, redis://…, postgres://…)",
            example="audit.jsonl",
        ),
        "keys": Text("callers over the network need a key of this store, made by `defserve keys`", example="keys.json"),
        "on_change": Text("what happens when a tool's definition changes after it was first seen", CHANGES),
        "code_mode": Flag("true: clients may run Python that calls the tools of all servers"),
        "events": Text(
            "relay events of the servers (MCP Events, a draft), and keep them here: memory, or the address of a store",
            example="sqlite:///events.db",
        ),
        "group": Table(
            "several kernels with this file behind one address",
            {
                "store": Text("the store that they share; variables are filled in", example="redis://localhost:6379/0"),
                "link": Text(
                    "where the other kernels reach this one; variables are filled in", example="${POD_IP}:8300"
                ),
            },
            required=("store",),
        ),
        "watch": Flag("whether the kernel reads this file again when it changes"),
        "drain_secs": Number("seconds for calls under way when a server is stopped", 0, 3600),
        "budget": Table(
            "tokens for tool definitions (MGP §16.8)",
            {
                name: Number(about, 0, 10_000_000, whole=True)
                for name, about in {
                    "max_tokens": "in all",
                    "pinned_reserve": "kept for pinned tools",
                    "discovery_reserve": "kept for search results",
                    "cache_limit": "for tools that a conversation has loaded",
                }.items()
            },
        ),
        "tools": Table("all servers' tools", {"pinned": Texts("tools that are always listed: `office.mail.send`")}),
        "register": Table(
            "servers that callers add while the kernel runs",
            {
                "enabled": Flag("whether callers may add servers at all"),
                "commands": Texts("the programs that they may start"),
                "hosts": Texts("the hosts that they may connect to"),
            },
        ),
    },
)

FILE_SETTINGS: Final = Table(
    "The servers of a kernel, as MGP §15.2 has them.",
    {
        "include": Texts("further files with [[servers]]; paths start from the folder of this file"),
        "kernel": KERNEL,
        "paths": Anything("accepted; it has no effect here"),
    },
)
"""Without `servers`: a list of tables, whose items the reader takes one by one."""


# -- The JSON Schema of mgp.toml, for editors. It comes from the same table as the reader.


NAME: Final = "mgp.schema.json"


def schema() -> dict[str, Any]:
    """The schema, made from the table of settings."""
    whole = FILE_SETTINGS.schema()
    servers = {"description": SERVER_SETTINGS.about, "type": "array", "items": SERVER_SETTINGS.schema()}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "mgp.toml",
        **whole,
        "properties": {**whole["properties"], "servers": servers},
    }


def read_shipped_schema() -> str:
    """The schema as the file that comes with the package."""
    return files("defserve.kernel.config").joinpath(NAME).read_text(encoding="utf-8")


def format_schema() -> str:
    """The text that the shipped file must have."""
    return json.dumps(schema(), indent=2) + "\n"
