"""What mgp.toml says, as objects, and what differs between two readings. Nothing is a secret until it is filled in.

Texts keep their `${NAME}`; variables are filled in when a server starts, and hidden in what is shown. So are secrets
that stand elsewhere: `${file:/run/secrets/NAME}`, `${command:op read …}`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final
from urllib.parse import quote

from defserve.base.redaction import REDACTION_MASK, is_secret_name
from defserve.base.secret_references import SecretReader
from defserve.errors import UsageError
from defserve.protocols.mcp.transforms import MountPrefix
from defserve.proxying.mounted import RestartPolicy, make_outer_name
from defserve.search.entries import ToolBudget


@dataclass(frozen=True, slots=True)
class ServerLaunch:
    """How a server is reached: a `command` or a `url`. If two are equal, nothing has to be started again."""

    command: str = ""
    args: tuple[str, ...] = field(default=(), repr=False)
    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    url: str = field(default="", repr=False)
    auth_token: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    per: str = ""
    timeout: float | None = None
    in_flight: int | None = None
    version: str | None = None
    spares: int | None = None

    def list_texts_with_variables(self) -> list[str]:
        """Every text in which variables are filled in."""
        plain = (self.command, *self.args, self.cwd, self.url, self.auth_token)
        return [*plain, *self.env.values(), *self.headers.values()]

    def fill_variables(self, environ: Mapping[str, str], secrets: SecretReader | None = None) -> ServerLaunch:
        """The same with its variables filled in, and its secrets, if there is a reader of them.

        Raises UnsetVariable, and UsageError for a secret that cannot be read. Show this to nobody.
        """

        def one(text: str) -> str:
            return expand_variables(text, environ, secrets)

        def each(values: Mapping[str, str]) -> dict[str, str]:
            return {name: one(value) for name, value in values.items()}

        return ServerLaunch(
            one(self.command),
            tuple(map(one, self.args)),
            expand_path_variables(self.cwd, environ, secrets),
            each(self.env),
            one(self.url),
            one(self.auth_token),
            each(self.headers),
            self.per,
            self.timeout,
            self.in_flight,
            self.version,
            self.spares,
        )

    def list_secret_references(self) -> list[str]:
        """Where its secrets are that stand elsewhere."""
        found = (match for text in self.list_texts_with_variables() for match in SECRET_REFERENCE.finditer(text))
        return list(dict.fromkeys(match[2] for match in found if not match[1]))

    def make_redactor(self, environ: Mapping[str, str], secrets: SecretReader | None = None) -> Hidden:
        """Hides what was filled in, and the literal secrets of the file."""
        named = {**self.env, **self.headers, "auth_token": self.auth_token}
        secret = [value for name, value in named.items() if is_secret_name(name)]
        defaults = find_variable_defaults(secret)
        used = dict(defaults)
        used |= {name: environ[name] for name in names_in(self.list_texts_with_variables()) if name in environ}
        known = {name: secrets.list_recent_values(name) for name in self.list_secret_references()} if secrets else {}
        used |= {name: values[0] for name, values in known.items() if values}
        # Of a secret that has changed, the value before may still be in what a server writes.
        former = [value for values in known.values() for value in values[1:]]
        literal = [value for value in secret if "${" not in value]
        # Of `Bearer …` the second word may stand alone in what a server writes.
        filled = [value for name, value in used.items() if name in known or name in names_in(secret)]
        words = [found[1] for value in (*literal, *filled, *former) if (found := AUTHORIZATION_VALUE.fullmatch(value))]
        return Hidden(used, [*literal, *words, *former, *(value for _, value in defaults)])

    @property
    def credential(self) -> str:
        """The setting that makes whoever calls the server its operator: a token, a key. Empty: it has none."""
        if self.auth_token:
            return "auth_token"
        named = (("headers", self.headers), ("env", self.env))
        return next((f"{table}.{name}" for table, values in named for name in values if is_secret_name(name)), "")

    @property
    def shown(self) -> str:
        """The command line or address, as the file has it."""
        return self.url or " ".join((self.command, *self.args))


@dataclass(frozen=True, slots=True)
class OperatorToolMarks:
    """What the operator says of tools. None and empty: nothing."""

    risk: str | None = None
    permissions: tuple[str, ...] = ()
    effects: tuple[str, ...] = ()
    validator: str | None = None
    reversible: bool | None = None
    confirm: bool | None = None
    categories: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MgpEntry:
    """`[servers.mgp]`. `tools` are marks by name or pattern, in the order of the file; the first match counts."""

    extensions: tuple[str, ...] = ()
    permissions_required: tuple[str, ...] = ()
    trust_level: str | None = None
    on_change: str | None = None
    tools: Mapping[str, OperatorToolMarks] = field(default_factory=dict[str, OperatorToolMarks])


@dataclass(frozen=True, slots=True)
class ToolFilter:
    """Which tools are passed on. An empty `allow` means all that `deny` does not name. Names may be patterns."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class HealthRules:
    """When a server that still runs counts as failed."""

    interval_secs: float = 30
    timeout_secs: float = 5
    failures: int = 3


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """One server of the file. `mgp` is None for plain MCP. `where` is its place in the file, for people."""

    id: str
    launch: ServerLaunch
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    display_name: str = ""
    prefix: str | None = None
    enabled: bool = True
    start: str = "eager"
    idle_stop: float = 0
    overlap: bool = True
    tools: ToolFilter = field(default_factory=ToolFilter)
    pinned: tuple[str, ...] = ()
    default_policy: str | None = None
    health: HealthRules = field(default_factory=HealthRules)
    mgp: MgpEntry | None = None
    where: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class RegisterRules:
    """Which servers callers may add while the kernel runs."""

    enabled: bool = False
    commands: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """`[kernel.group]`: the store that several kernels share, and where the others reach this one.

    Both keep their variables, as a server's texts do: the store may have a password, and each machine has an address.
    """

    store: str = field(repr=False)
    link: str = "127.0.0.1:0"


@dataclass(frozen=True, slots=True)
class KernelSettings:
    """`[kernel]`."""

    name: str = "kernel"
    instructions: str = ""
    on: str = ""
    level: str = "auto"
    default_policy: str = "opt-out"
    permissions: str = "auto_approve"
    admins: tuple[str, ...] = ()
    audit: str = field(default="", repr=False)
    keys: str = field(default="", repr=False)
    on_change: str = "warn"
    code_mode: bool = False
    events: str = field(default="", repr=False)
    watch: bool = True
    drain_secs: float = 30
    budget: ToolBudget = field(default_factory=ToolBudget)
    pinned: tuple[str, ...] = ()
    register: RegisterRules = field(default_factory=RegisterRules)
    group: GroupSettings | None = None


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """A whole file with its includes. `files` are all that were read. `notes` are what an operator should know."""

    path: Path
    settings: KernelSettings = field(default_factory=KernelSettings)
    servers: tuple[ServerEntry, ...] = ()
    files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()

    def list_pinned_tools(self) -> tuple[str, ...]:
        """The tools that are always listed, by their names outside: `pinned` of servers, and `id.tool` of [kernel]."""
        wanted = [(entry, tool) for entry in self.servers for tool in entry.pinned]
        wanted += [
            (entry, text.removeprefix(f"{entry.id}."))
            for text in self.settings.pinned
            for entry in self.servers
            if text.startswith(f"{entry.id}.")
        ]
        names = (
            make_outer_name(MountPrefix(entry.prefix), entry.tools.rename.get(tool, tool)) for entry, tool in wanted
        )
        return tuple(dict.fromkeys(names))

    def find_restart_changes(self, other: KernelConfig) -> list[str]:
        """The settings of `[kernel]` that differ and that only a start of the kernel takes over."""
        mine, its = self.settings, other.settings
        live = ("watch", "drain_secs", "pinned", "permissions", "default_policy")
        changed = [
            each.name
            for each in fields(KernelSettings)
            if each.name not in live and getattr(mine, each.name) != getattr(its, each.name)
        ]
        return changed if self.list_pinned_tools() == other.list_pinned_tools() else [*changed, "pinned"]

    def unset(self, environ: Mapping[str, str] = os.environ) -> dict[str, list[str]]:
        """Server → the variables that it needs and that are not set."""
        found = {
            entry.id: list_unset_variables(entry.launch.list_texts_with_variables(), environ)
            for entry in self.servers
            if entry.enabled
        }
        return {id: names for id, names in found.items() if names}


# -- `${NAME}` and `${NAME:-default}` in a server's settings: filled in when it starts, and hidden in what is shown.


VARIABLE_REFERENCE: Final = re.compile(r"(\$?)\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")

SECRET_REFERENCE: Final = re.compile(r"(\$?)\$\{((?:file|command):[^}]+)\}")
"""A secret that stands elsewhere. As `$${…}` it is a text."""

AUTHORIZATION_VALUE: Final = re.compile(r"[A-Za-z]+ +(\S+)")
SQLITE: Final = "sqlite:///"

# A shorter value is hidden only where it stands alone: as a part of other words it would hide half of the text.
_SHORT: Final = 4


class UnsetVariable(UsageError):
    """A variable is not set and has no default. `variable` is its name."""

    def __init__(self, variable: str) -> None:
        self.variable = variable
        super().__init__(
            f"the variable {variable} is not set",
            fix=f"export {variable}=… and start the kernel again, or write ${{{variable}:-default}}",
        )


def expand_variables(text: str, environ: Mapping[str, str], secrets: SecretReader | None = None) -> str:
    """The text with its variables filled in, and its secrets. `$${NAME}` stays as `${NAME}`.

    Without a reader, references to secrets stay as they are. Raises UnsetVariable, and what the reader raises.
    """

    def value(found: re.Match[str]) -> str:
        if found[1]:
            return found[0][1:]
        default: str | None = found[3]
        filled = environ.get(found[2], default)
        if filled is None:
            raise UnsetVariable(found[2])
        return filled

    def secret(found: re.Match[str]) -> str:
        if found[1]:
            return found[0][1:]
        return found[0] if secrets is None else secrets.read_secret(found[2], "mgp.toml")

    # In one pass: neither what a variable holds nor what a secret is may name a file or a program.
    filled, end = "", 0
    for found in SECRET_REFERENCE.finditer(text):
        filled += VARIABLE_REFERENCE.sub(value, text[end : found.start()]) + secret(found)
        end = found.end()
    return filled + VARIABLE_REFERENCE.sub(value, text[end:])


def expand_path_variables(text: str, environ: Mapping[str, str], secrets: SecretReader | None = None) -> str:
    """The same for a path that was put behind the folder of its file: a variable may hold a whole path instead.

    It may also be the address of a store.
    """
    scheme = SQLITE if text.startswith(SQLITE) else ""
    folder, mark, rest = text.partition("${")
    filled = expand_variables(mark + rest, environ, secrets)
    is_whole = folder.endswith(("/", os.sep)) and os.path.isabs(filled) and "://" not in folder.removeprefix(scheme)
    return f"{scheme}{filled}" if is_whole else expand_variables(text, environ, secrets)


def find_variable_defaults(texts: Iterable[str]) -> list[tuple[str, str]]:
    """Each variable with a default that a text gives for it. Two texts may give two."""
    found = (match for text in texts for match in VARIABLE_REFERENCE.finditer(text) if not match[1] and match[3])
    return [(match[2], match[3]) for match in found]


def names_in(texts: Iterable[str]) -> set[str]:
    """The variables that the texts use."""
    return {found[2] for text in texts for found in VARIABLE_REFERENCE.finditer(text) if not found[1]}


def list_unset_variables(texts: Iterable[str], environ: Mapping[str, str]) -> list[str]:
    """The variables without which `expand_variables` raises."""
    found = (
        match for text in texts for match in VARIABLE_REFERENCE.finditer(text) if not match[1] and match[3] is None
    )
    return sorted({match[2] for match in found} - environ.keys())


class Hidden:
    """Hides `values` in texts. A variable's value becomes `${NAME}` again; any other becomes `[redacted]`."""

    def __init__(self, variables: Mapping[str, str], others: Iterable[str] = ()) -> None:
        shown = dict.fromkeys(others, REDACTION_MASK) | {value: f"${{{name}}}" for name, value in variables.items()}
        forms = {form: instead for value, instead in shown.items() for form in _forms(value)}
        self.values, self._shown = tuple(shown), forms
        words = (
            re.escape(form) if len(form) >= _SHORT else rf"(?<!\w){re.escape(form)}(?!\w)"
            for form in sorted(forms, key=len, reverse=True)
        )
        self._pattern = re.compile("|".join(words)) if forms else None

    def __call__(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(lambda found: self._shown[found[0]], text)


def _forms(value: str) -> set[str]:
    """The value, and how it looks in JSON, in a Python literal and in a URL."""
    escaped = (json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1])
    return {value, *escaped, quote(value), quote(value, safe="")} if value.strip() else set()


# -- What differs between two readings of a file, server by server.


NAMES: Final = ("prefix", "tools", "enabled", "start")
"""Settings that make another set of tools. A server with other names is another server to its clients."""


@dataclass(frozen=True, slots=True)
class ConfigChanges:
    """Ids by what has to be done. Every id of either reading is in exactly one list."""

    added: list[str] = field(default_factory=list[str])
    removed: list[str] = field(default_factory=list[str])
    replaced: list[str] = field(default_factory=list[str])
    relaunched: list[str] = field(default_factory=list[str])
    adjusted: list[str] = field(default_factory=list[str])
    unchanged: list[str] = field(default_factory=list[str])


def find_server_changes(old: Mapping[str, ServerEntry], new: Mapping[str, ServerEntry]) -> ConfigChanges:
    """What has to be done so that the servers are as `new` says."""
    found = ConfigChanges()
    for id, entry in new.items():
        _list_for(found, old.get(id), entry).append(id)
    found.removed.extend(id for id in old if id not in new)
    return found


def _list_for(found: ConfigChanges, old: ServerEntry | None, new: ServerEntry) -> list[str]:
    if old is None:
        return found.added
    if old == new:
        return found.unchanged
    is_other_kind = bool(old.launch.url) != bool(new.launch.url) or old.launch.timeout != new.launch.timeout
    if is_other_kind or any(getattr(old, name) != getattr(new, name) for name in NAMES):
        return found.replaced
    return found.relaunched if old.launch != new.launch else found.adjusted
