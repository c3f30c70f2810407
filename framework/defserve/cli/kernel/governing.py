"""The actions by which an operator governs a kernel that runs: access, permissions, pins, health and the audit log."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from defserve.cli.kernel.action import HELD, ID, KernelAction, each
from defserve.cli.kernel.lines import LONGEST_NOTE, calls, duration
from defserve.cli.option_types import positive
from defserve.cli.screen.blocks import Table
from defserve.cli.screen.styles import state
from defserve.redaction import printable

OPTIONAL_ID: Final[dict[str, dict[str, Any]]] = {"id": {**ID["id"], "nargs": "?"}}
ENTRY: Final[dict[str, dict[str, Any]]] = {
    "agent": {"metavar": "AGENT", "help": "whom: the principal's id, as keys and tokens name it"},
    **ID,
    "tool": {"metavar": "TOOL", "nargs": "?", "help": "only this tool, by the server's name of it"},
}
REASON: Final[dict[str, dict[str, Any]]] = {"--reason": {"metavar": "TEXT", "help": "why; it is kept and audited"}}
UNTIL: Final[dict[str, dict[str, Any]]] = {
    "--until": {"metavar": "TIME", "help": "when it ends, as 2027-01-31T12:00:00Z"}
}
FORCE: Final[dict[str, dict[str, Any]]] = {
    "--force": {"action": "store_true", "help": "also for a tool that the server does not have now"}
}
PERMISSION: Final[dict[str, dict[str, Any]]] = {
    **ID,
    "permission": {"metavar": "PERMISSION", "nargs": "?", "help": "default: all that nobody has decided about"},
    "--reason": {"metavar": "TEXT", "default": "", "help": "why; it is kept and audited"},
}


def access_lines(answers: Iterable[Any]) -> Iterable[str]:
    rows = [
        ("*", row["server_id"], "*", {"opt-in": "deny", "opt-out": "allow"}[row["default"]], "", "", "default_policy")
        if "default" in row
        else (
            row["agent_id"],
            row["server_id"],
            row["tool_name"] or "*",
            row["permission"],
            row["granted_by"],
            f"{row['expires_at'] or '-'}{' (over)' if row['expired'] else ''}",
            (row["justification"] or "")[:LONGEST_NOTE],
        )
        for row in answers
    ]
    return Table(("AGENT", "SERVER", "TOOL", "ACCESS", "BY", "UNTIL", "REASON"), rows, fit=("REASON",))


def _entry_line(entry: dict[str, Any]) -> str:
    what = f"{entry['server_id']} {entry['tool_name'] or ''}".rstrip()
    if entry.get("revoked"):
        return printable(f"{entry['agent_id']}: the entry for {what} is removed")
    return printable(f"{entry['agent_id']}: {entry['permission']} {what}")


def permission_lines(answers: Iterable[Any]) -> Iterable[str]:
    rows = list(answers)
    if not rows:
        return ("No tool needs a permission.",)
    cells = (
        (
            row["id"],
            row["permission"],
            row["risk_level"],
            row["decision"],
            row.get("by") or "-",
            f"{row['refused_calls']} by {row['asked_by']}" if "refused_calls" in row else "-",
            _few(row["tools"]),
        )
        for row in rows
    )
    return Table(("SERVER", "PERMISSION", "RISK", "DECISION", "BY", "REFUSED", "TOOLS"), cells, fit=("TOOLS",))


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def pin_lines(answers: Iterable[Any]) -> Iterator[str]:
    rows = list(answers)
    for row in rows:
        yield printable(f"{row['id']}: {row['tool']} is {row['change']} and held")
        yield from (f"  {printable(line)}" for line in row["difference"])
        words = shlex.join((row["id"], row["tool"], "--digest", row["now"]))
        if row["left_out"]:
            yield f"  {row['left_out']} lines are not shown: only with --unseen can it be accepted"
        yield printable(f"  accept it as it is here: defserve kernel pins accept {words}")
    several = Counter(row["id"] for row in rows)
    for id, digest in {row["id"]: row["all"] for row in rows if several[row["id"]] > 1}.items():
        words = shlex.join((id, "--digest", digest))
        yield printable(f"accept all {several[id]} of {id} as they are here: defserve kernel pins accept {words}")
    if not rows:
        yield "No tool is held."


def health_lines(answers: Iterable[Any]) -> Iterable[str]:
    cells = (
        (
            (row["id"], "title"),
            state(row["state"]),
            row["status"] or "-",
            f"{row['latency_ms']} ms" if "latency_ms" in row else "-",
            duration(row["uptime_secs"]) if row.get("uptime_secs") is not None else "-",
            calls({**row, "calls": row.get("pending_requests")}),
            str(row.get("problem") or "").partition("\n")[0][:LONGEST_NOTE],
        )
        for row in answers
    )
    return Table(("ID", "STATE", "HEALTH", "ANSWERED IN", "UP", "CALLS", "PROBLEM"), cells, fit=("PROBLEM",))


def _audit_line(row: dict[str, Any]) -> str:
    if "ok" in row:
        what = f"intact: {row['events']:,} events" if row["ok"] else f"broken: {row['reason']}"
        return printable(f"{row['log']}: {what}")
    actor: dict[str, Any] = row.get("actor") or {}
    target: dict[str, Any] = row.get("target") or {}
    words = (
        *(row.get(name) for name in ("seq", "timestamp", "event_type", "result")),
        actor.get("id"),
        *(target.get(name) for name in ("server_id", "tool_name")),
    )
    return printable("  ".join(str(word) for word in words if word))


ACCESS: Final[Mapping[str, KernelAction]] = {
    "list": KernelAction(
        "show who may use which server and tool",
        access_lines,
        OPTIONAL_ID | {"--agent": {"metavar": "AGENT", "help": "only entries of this one"}},
    ),
    "grant": KernelAction("let an agent use a server or a tool", each(_entry_line), ENTRY | REASON | UNTIL | FORCE),
    "deny": KernelAction("keep an agent from a server or a tool", each(_entry_line), ENTRY | REASON | UNTIL | FORCE),
    "revoke": KernelAction("remove what was granted or denied", each(_entry_line), ENTRY),
}
PERMISSIONS: Final[Mapping[str, KernelAction]] = {
    "list": KernelAction("show which permissions servers need, and what is decided", permission_lines, OPTIONAL_ID),
    "approve": KernelAction("let a server's tools use a permission", permission_lines, PERMISSION),
    "deny": KernelAction("keep a server's tools from a permission", permission_lines, PERMISSION),
}
PINS: Final[Mapping[str, KernelAction]] = {
    "list": KernelAction("show tools that are held because they changed, and the difference", pin_lines, OPTIONAL_ID),
    "accept": KernelAction(
        "let held tools be used as they are now",
        each(lambda answer: f"{answer['id']}: {answer['tool']} is accepted"),
        HELD,
    ),
}
GROUPS: Final[Mapping[str, tuple[str, Mapping[str, KernelAction]]]] = {
    "access": ("show and change who may use which server and tool", ACCESS),
    "permissions": ("show and decide which permissions servers have", PERMISSIONS),
    "pins": ("show and accept tools that are held because they changed", PINS),
}
ACTIONS: Final[Mapping[str, KernelAction]] = {
    "health": KernelAction("ask servers whether they answer", health_lines, OPTIONAL_ID),
    "audit": KernelAction(
        "show the kernel's audit log, or check that it is intact",
        each(_audit_line),
        {
            "-n": {"dest": "last", "type": positive, "default": 20, "metavar": "N", "help": "the last N (default: 20)"},
            "--follow": {"action": "store_true", "help": "go on with what comes"},
            "--verify": {"action": "store_true", "help": "check every record, and show none"},
        },
    ),
    **{f"{group} {name}": action for group, (_, actions) in GROUPS.items() for name, action in actions.items()},
}
