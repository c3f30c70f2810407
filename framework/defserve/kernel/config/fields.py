"""Every setting of mgp.toml, as data: what the reader accepts and what the schema for editors says."""

from __future__ import annotations

from typing import Final

from defserve.kernel.config.settings import Anything, Either, Flag, Number, Table, Tables, Text, Texts, TextTable
from defserve.protocols.mcp.versions import HANDSHAKE_VERSIONS, STATELESS_VERSIONS
from defserve.proxying.restarts import MOST_RESTARTS, STRATEGIES

ID: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
VARIABLE: Final = r"[A-Za-z_][A-Za-z0-9_]*"
HEADER: Final = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
PREFIX: Final = r"[A-Za-z0-9_.-]{1,64}"

TRANSPORTS: Final = ("stdio", "http")
TRUST_LEVELS: Final = ("trusted", "standard", "sandboxed", "core", "experimental", "untrusted")
RISKS: Final = ("safe", "moderate", "dangerous")
POLICIES: Final = ("opt-in", "opt-out")
APPROVALS: Final = ("auto_approve", "interactive")
CHANGES: Final = ("allow", "warn", "hold")
LEVELS: Final = ("auto", "L0", "L1", "L2", "L3")

RESTART: Final = {
    "max_restarts": Number("how many restarts within the window are allowed", 0, MOST_RESTARTS, whole=True),
    "restart_window_secs": Number("the length of the window, in seconds", 1, 86_400),
    "backoff_base_ms": Number("the wait before the first restart, in milliseconds", 0, 3_600_000),
    "backoff_max_ms": Number("the longest wait, in milliseconds", 0, 3_600_000),
}
STRATEGY: Final = Text("when the server is started again after it ended", STRATEGIES)

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

SERVER: Final = Table(
    "a server that the kernel runs or connects to",
    {
        "id": Text("its name for operators, access, audit and search", pattern=ID, example="office.mail"),
        "display_name": Text("its name for people"),
        "transport": Text("how it is reached; the default follows from command or url", TRANSPORTS,
                          {"streamable-http": "http", "sse": "http"}),
        "command": Text("the program that is started; it speaks on standard input and output", example="uvx"),
        "args": Texts("its arguments", blank=True),
        "cwd": Text("the folder that it starts in; the default is the folder of this file"),
        "env": TextTable("variables of the program, beside PATH, HOME and the like", VARIABLE),
        "url": Text("the address of a server that runs already", pattern=r"(?:(?:https?|wss?)://|\$\{).+",
                    example="https://example.org/mcp"),
        "auth_token": Text("a bearer token for the address"),
        "headers": TextTable("further headers for the address", HEADER),
        "enabled": Flag("false: the server is listed and not started"),
        "start": Text("lazy: once its tools are known, it ends until its first call", ("eager", "lazy")),
        "idle_stop": Number("seconds without a call after which it stops until the next use; 0: never", 0, 604_800),
        "overlap": Flag("false: a restart ends the old process first, for servers that own a port or a lock"),
        "prefix": Text("tool `x` becomes `prefix_x`; an empty one is written by leaving it out", pattern=PREFIX),
        "tools": TOOLS,
        "per": Text("one conversation for each client, one for all clients, or one for each call",
                    ("client", "shared", "call")),
        "timeout": Number("seconds for a call", 0.05, 86_400),
        "in_flight": Number("calls at once", 1, 100_000, whole=True),
        "version": Text("the protocol version to speak with it; the default is the newest that both know",
                        HANDSHAKE_VERSIONS + STATELESS_VERSIONS),
        "pinned": Texts("tools that are always listed"),
        "default_policy": Text("whether agents need a grant (opt-in) or not (opt-out)", POLICIES),
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
WITHOUT_EFFECT: Final = ("seal", "isolation")

KERNEL: Final = Table(
    "the kernel itself",
    {
        "name": Text("the name that clients see"),
        "instructions": Text("what clients are told about the whole"),
        "on": Text("where it serves unless --on says otherwise", example="http://127.0.0.1:8000/mcp"),
        "level": Text("how much of the tools a list shows (MGP §16.3); auto: as much as the budget allows", LEVELS),
        "default_policy": Text("whether agents need a grant (opt-in) or not (opt-out)", POLICIES),
        "permissions": Text(
            "whether permissions that no operator has decided about are approved for callers that are "
            "vouched for (auto_approve), or wait for an operator (interactive)",
            APPROVALS,
        ),
        "admins": Texts("principals that may operate the kernel over the network"),
        "audit": Text(
            "where audit events go: a file, or the address of a store (sqlite:///…, redis://…)", example="audit.jsonl"
        ),
        "keys": Text("callers over the network need a key of this store, made by `defserve keys`", example="keys.json"),
        "on_change": Text("what happens when a tool's definition changes after it was first seen", CHANGES),
        "code_mode": Flag("true: clients may run Python that calls the tools of all servers"),
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
            "servers that agents add while the kernel runs",
            {
                "enabled": Flag("whether agents may add servers at all"),
                "commands": Texts("the programs that they may start"),
                "hosts": Texts("the hosts that they may connect to"),
            },
        ),
    },
)

FILE: Final = Table(
    "The servers of a kernel, as MGP §15.2 has them.",
    {
        "include": Texts("further files with [[servers]]; paths start from the folder of this file"),
        "kernel": KERNEL,
        "paths": Anything("accepted; it has no effect here"),
    },
)
"""Without `servers`: a list of tables, whose items the reader takes one by one."""
