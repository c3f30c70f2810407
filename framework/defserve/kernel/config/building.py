"""Checked tables of mgp.toml made into entries, with the rules that hold between settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from defserve.errors import UsageError
from defserve.kernel.config import settings
from defserve.kernel.config.entries import (
    HealthRules,
    KernelSettings,
    MgpEntry,
    RegisterRules,
    ServerEntry,
    ServerLaunch,
    ToolFilter,
    ToolMarks,
)
from defserve.kernel.config.settings import Mistake, Report
from defserve.proxying.restarts import RestartPolicy
from defserve.search.budget import ToolBudget
from defserve.wire.jsonvalue import is_object

# setting of the file → (field of RestartPolicy, how many of its units make a second)
RESTART: Final = {
    "max_restarts": ("max_restarts", 1),
    "restart_window_secs": ("window", 1),
    "backoff_base_ms": ("base", 1000),
    "backoff_max_ms": ("cap", 1000),
}
SQLITE: Final = "sqlite:///"
ONLY_COMMAND: Final = ("args", "cwd", "env", "overlap")
ONLY_URL: Final = ("auth_token", "headers")
LAUNCH: Final = ("command", "args", "env", "url", "auth_token", "headers", "per", "timeout", "in_flight", "version")
PLAIN: Final = (
    "display_name", "prefix", "enabled", "start", "idle_stop", "overlap", "pinned", "default_policy",
)  # fmt: skip


def server_entry(
    read: Mapping[str, Any], path: settings.Path, folder: Path, where: str, report: Report
) -> ServerEntry | None:
    """The entry of a server, or None after reporting what does not fit together."""
    if (problem := _launch_problem(read)) is not None:
        report(Mistake(path, *problem))
        return None
    mgp = read.get("mgp")
    try:
        restart = _restart(read, mgp or {})
    except UsageError as error:
        report(Mistake(path, f"has a restart policy that cannot work: {error.problem}", error.fix))
        return None
    given = {name: read[name] for name in LAUNCH if name in read}
    if "command" in read:
        given |= {"command": program_path(read["command"], folder), "cwd": str(folder / read.get("cwd", ""))}
    return ServerEntry(
        read["id"],
        ServerLaunch(**given),
        restart,
        tools=ToolFilter(**read.get("tools", {})),
        health=HealthRules(**read.get("health", {})),
        mgp=_mgp(read, mgp),
        where=where,
        **{name: read[name] for name in PLAIN if name in read},
    )


def kernel_settings(read: Mapping[str, Any], folder: Path, report: Report) -> KernelSettings:
    """`[kernel]`. The paths in it start from `folder`. What does not fit together is reported and left out."""
    given = dict(read)
    register = RegisterRules(**given.pop("register", {}))
    try:
        budget = ToolBudget(**given.pop("budget", {}))
    except UsageError as error:
        report(Mistake(("kernel", "budget"), f"cannot work: {error.problem}", error.fix))
        budget = ToolBudget()
    for name in ("audit", "keys"):
        if name in given:
            given[name] = _place(given[name], folder)
    pinned = given.pop("tools", {}).get("pinned", ())
    return KernelSettings(**given, budget=budget, register=register, pinned=pinned)


def _place(text: str, folder: Path) -> str:
    """A file, or the address of a store. A path in either starts from `folder`."""
    if text.startswith(SQLITE):
        return f"{SQLITE}{folder / text.removeprefix(SQLITE)}"
    return text if "://" in text else str(folder / text)


def _launch_problem(read: Mapping[str, Any]) -> tuple[str, str] | None:
    """What is wrong with how the server is reached, and how to correct it."""
    if "command" in read and "url" in read:
        return "has both a command and a url", "give one of the two"
    if "command" not in read and "url" not in read:
        return "has neither a command nor a url", 'add command = "…" or url = "https://…/mcp"'
    kind, others = ("url", ONLY_COMMAND) if "url" in read else ("command", ONLY_URL)
    needed = "command" if kind == "url" else "url"
    if (odd := next((name for name in others if name in read), None)) is not None:
        return (
            f"has {odd}, which belongs to a {needed}, and is reached by a {kind}",
            f"remove {odd}, or give a {needed}",
        )
    if "transport" in read and (read["transport"] == "stdio") != (kind == "command"):
        return f"has the transport {read['transport']} and a {kind}", f"remove transport: it follows from {kind}"
    return None


def program_path(command: str, folder: Path) -> str:
    """A command with a slash is a path, and starts from the folder of the file. Others are found on the PATH."""
    return str(folder / command) if "/" in command and not command.startswith("${") else command


def _restart(read: Mapping[str, Any], mgp: Mapping[str, Any]) -> RestartPolicy:
    """The policy from where it was given: `[servers.mgp]`, a table or a text at the server, `auto_restart`."""
    other = read.get("restart_policy")
    table: Mapping[str, Any] = other if is_object(other) else {} if other is None else {"strategy": other}
    said = [
        strategy
        for strategy in (
            mgp.get("restart_policy"),
            table.get("strategy"),
            {True: "on_failure", False: "never", None: None}[read.get("auto_restart")],
        )
        if strategy is not None
    ]
    if len(set(said)) > 1:
        raise UsageError(f"it is given as {' and as '.join(said)}", fix="say it once: restart_policy in [servers.mgp]")
    given = {**table, **mgp}
    values = {name: given[key] / unit for key, (name, unit) in RESTART.items() if key in given}
    if "max_restarts" in values:
        values["max_restarts"] = int(values["max_restarts"])
    elif "url" in read:
        # An address may come back at any time, and trying costs nothing.
        values["max_restarts"] = None
    if said:
        values["strategy"] = said[0]
    return RestartPolicy(**values)


def _mgp(read: Mapping[str, Any], mgp: Mapping[str, Any] | None) -> MgpEntry | None:
    required = read.get("required_permissions")
    if mgp is None:
        return None if required is None else MgpEntry(permissions_required=required)
    given = {name: mgp[name] for name in ("extensions", "trust_level", "on_change") if name in mgp}
    permissions = (*mgp.get("permissions_required", ()), *(required or ()))
    marks = {pattern: ToolMarks(**marks) for pattern, marks in mgp.get("tools", {}).items()}
    return MgpEntry(permissions_required=tuple(dict.fromkeys(permissions)), tools=marks, **given)
