"""What mgp.toml says, as objects. Texts keep their `${NAME}`; nothing here is a secret until it is filled in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from defserve.kernel.config.variables import Hidden, fill, names_in, unset_in
from defserve.protocols.mcp.prefixes import Prefix
from defserve.proxying.catalogue.names import outer_name
from defserve.proxying.restarts import RestartPolicy
from defserve.redaction import is_secret_name
from defserve.search.budget import ToolBudget


def _nothing() -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class ServerLaunch:
    """How a server is reached: a `command` or a `url`. If two are equal, nothing has to be started again."""

    command: str = ""
    args: tuple[str, ...] = field(default=(), repr=False)
    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=_nothing, repr=False)
    url: str = ""
    auth_token: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=_nothing, repr=False)
    per: str = ""
    timeout: float | None = None
    in_flight: int | None = None
    version: str | None = None

    def texts(self) -> list[str]:
        """Every text in which variables are filled in."""
        plain = (self.command, *self.args, self.cwd, self.url, self.auth_token)
        return [*plain, *self.env.values(), *self.headers.values()]

    def filled(self, environ: Mapping[str, str]) -> ServerLaunch:
        """The same with its variables filled in. Raises UnsetVariable. Show this to nobody."""

        def each(values: Mapping[str, str]) -> dict[str, str]:
            return {name: fill(value, environ) for name, value in values.items()}

        return ServerLaunch(
            fill(self.command, environ),
            tuple(fill(word, environ) for word in self.args),
            fill(self.cwd, environ),
            each(self.env),
            fill(self.url, environ),
            fill(self.auth_token, environ),
            each(self.headers),
            self.per,
            self.timeout,
            self.in_flight,
            self.version,
        )

    def hidden(self, environ: Mapping[str, str]) -> Hidden:
        """Hides what was filled in, and the literal secrets of the file."""
        used = {name: environ[name] for name in names_in(self.texts()) if name in environ}
        named = {**self.env, **self.headers, "auth_token": self.auth_token}
        literal = [value for name, value in named.items() if "${" not in value and is_secret_name(name)]
        return Hidden(used, literal)

    @property
    def shown(self) -> str:
        """The command line or address, as the file has it."""
        return self.url or " ".join((self.command, *self.args))


@dataclass(frozen=True, slots=True)
class ToolMarks:
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
    tools: Mapping[str, ToolMarks] = field(default_factory=dict[str, ToolMarks])


@dataclass(frozen=True, slots=True)
class ToolFilter:
    """Which tools are passed on. An empty `allow` means all that `deny` does not name. Names may be patterns."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=_nothing)


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
    """Which servers agents may add while the kernel runs."""

    enabled: bool = False
    commands: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


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
    audit: str = ""
    keys: str = ""
    on_change: str = "warn"
    code_mode: bool = False
    watch: bool = True
    drain_secs: float = 30
    budget: ToolBudget = field(default_factory=ToolBudget)
    pinned: tuple[str, ...] = ()
    register: RegisterRules = field(default_factory=RegisterRules)


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """A whole file with its includes. `files` are all that were read. `notes` are what an operator should know."""

    path: Path
    settings: KernelSettings = field(default_factory=KernelSettings)
    servers: tuple[ServerEntry, ...] = ()
    files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()

    def pinned(self) -> tuple[str, ...]:
        """The tools that are always listed, by their names outside: `pinned` of servers, and `id.tool` of [kernel]."""
        wanted = [(entry, tool) for entry in self.servers for tool in entry.pinned]
        for text in self.settings.pinned:
            wanted += [
                (entry, text.removeprefix(f"{entry.id}.")) for entry in self.servers if text.startswith(f"{entry.id}.")
            ]
        names = (outer_name(Prefix(entry.prefix), entry.tools.rename.get(tool, tool)) for entry, tool in wanted)
        return tuple(dict.fromkeys(names))

    def changed_at_start(self, other: KernelConfig) -> list[str]:
        """The settings of `[kernel]` that differ and that only a start of the kernel takes over."""
        mine, its = self.settings, other.settings
        live = ("watch", "drain_secs", "pinned", "permissions", "default_policy")
        changed = [
            each.name
            for each in fields(KernelSettings)
            if each.name not in live and getattr(mine, each.name) != getattr(its, each.name)
        ]
        return changed if self.pinned() == other.pinned() else [*changed, "pinned"]

    def unset(self, environ: Mapping[str, str] = os.environ) -> dict[str, list[str]]:
        """Server → the variables that it needs and that are not set."""
        found = {entry.id: unset_in(entry.launch.texts(), environ) for entry in self.servers if entry.enabled}
        return {id: names for id, names in found.items() if names}
