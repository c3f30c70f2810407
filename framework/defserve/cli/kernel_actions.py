"""The actions of `defserve kernel` that ask a running kernel something, with their options and how answers are printed.

What servers wrote is only data here, so everything that is printed is escaped.
"""

from __future__ import annotations

import shlex
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeAlias

from defserve.base.redaction import printable
from defserve.cli.exits import OK, WRONG
from defserve.cli.parser import CommandParser, positive
from defserve.cli.screen import show_each
from defserve.cli.screen_blocks import Data, Part, Table, state
from defserve.core.json_values import is_object
from defserve.kernel.control import ask, locate_kernel

CONFIG_HELP: Final = "the kernel's file (default: $MGP_CONFIG_PATH, ./mgp.toml, ~/.config/mgp/servers.toml)"


# -- What an action of `defserve kernel` is: its words, its options, and how answers are shown.


Show: TypeAlias = Callable[[Iterable[Any]], Iterable[str]]

ID: Final[dict[str, dict[str, Any]]] = {"id": {"metavar": "ID", "help": "the id of a server, as `ps` shows it"}}
HELD: Final = ID | {
    "tool": {"metavar": "TOOL", "nargs": "?", "help": "only this tool, by the server's name of it"},
    "--digest": {"default": "", "metavar": "HEX", "help": "what is accepted: the digest that `pins list` shows"},
    "--unseen": {"action": "store_true", "help": "also what was too long to be shown"},
}


class KernelAction(NamedTuple):
    """`show` makes lines of the answers as they come. Arguments of the command line are fields of the request."""

    about: str
    show: Show
    arguments: dict[str, dict[str, Any]] = {}


def each(show: Callable[[Any], str]) -> Show:
    """One line for each answer."""
    return lambda answers: (show(answer) for answer in answers)


# -- The actions by which an operator governs a kernel that runs: access, permissions, pins, health and the audit log.


OPTIONAL_ID: Final[dict[str, dict[str, Any]]] = {"id": {**ID["id"], "nargs": "?"}}


def health_lines(answers: Iterable[Any]) -> Iterable[str]:
    cells = (
        (
            (row["id"], "title"),
            state(row["state"]),
            row["status"] or "-",
            f"{row['latency_ms']} ms" if "latency_ms" in row else "-",
            duration(row["uptime_secs"]) if row.get("uptime_secs") is not None else "-",
            calls({**row, "calls": row.get("pending_requests")}),
            str(row.get("problem") or "").partition("\n")[0][:MAX_NOTE_LENGTH],
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
            (row["justification"] or "")[:MAX_NOTE_LENGTH],
        )
        for row in answers
    ]
    return Table(("AGENT", "SERVER", "TOOL", "ACCESS", "BY", "UNTIL", "REASON"), rows, fit=("REASON",))


def _entry_line(entry: dict[str, Any]) -> str:
    what = f"{entry['server_id']} {entry['tool_name'] or ''}".rstrip()
    if entry.get("revoked"):
        return printable(f"{entry['agent_id']}: the entry for {what} is removed")
    return printable(f"{entry['agent_id']}: {entry['permission']} {what}")


# -- What a kernel answers, for a terminal.

MAX_NOTE_LENGTH: Final = 100

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
PERMISSION: Final[dict[str, dict[str, Any]]] = {
    **ID,
    "permission": {"metavar": "PERMISSION", "nargs": "?", "help": "default: all that nobody has decided about"},
    "--reason": {"metavar": "TEXT", "default": "", "help": "why; it is kept and audited"},
}


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


PERMISSIONS: Final[Mapping[str, KernelAction]] = {
    "list": KernelAction("show which permissions servers need, and what is decided", permission_lines, OPTIONAL_ID),
    "approve": KernelAction("let a server's tools use a permission", permission_lines, PERMISSION),
    "deny": KernelAction("keep a server's tools from a permission", permission_lines, PERMISSION),
}


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
UNITS: Final = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s"))


def calls(row: dict[str, Any]) -> str:
    """All calls, and how many of them run."""
    return f"{row.get('calls_total', '-')}" + (f" ({row['calls']} run)" if row.get("calls") else "")


def duration(seconds: float) -> str:
    """`2h10m`, `4m03s`, `12s`."""
    for size, unit, smaller_size, smaller in UNITS:
        if seconds >= size:
            return f"{int(seconds // size)}{unit}{int(seconds % size // smaller_size):02}{smaller}"
    return f"{max(int(seconds), 0)}s"


GOVERNING_ACTIONS: Final[Mapping[str, KernelAction]] = {
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

COLUMNS: Final = ("ID", "STATE", "ERA", "TOOLS", "CALLS", "UP", "RESTARTS", "NOTE")


def ps_lines(answers: Iterable[Any]) -> Iterable[str]:
    rows = list(answers)
    if not rows:
        return ("The file names no servers.",)
    return Table(COLUMNS, map(_row, rows), fit=("NOTE",), right=("TOOLS",))


def _row(row: dict[str, Any]) -> tuple[Part, ...]:
    held = ", ".join(row.get("held") or ())
    note = note_of(str(row.get("note") or "")) or (f"held until approved: {held}" if held else "")
    return (
        (row["id"], "title"),
        state(row["state"]),
        row.get("era") or "-",
        str(row.get("tools") or (0 if row["state"] == "connected" else "-")),
        calls(row),
        _up(row),
        _restarts(row),
        note if len(note) <= MAX_NOTE_LENGTH else f"{note[:MAX_NOTE_LENGTH]}…",
    )


def note_of(text: str) -> str:
    """How it ended, and the last line that it wrote: what a traceback ends with."""
    first, _, rest = text.strip().partition("\n")
    last = rest.rpartition("\n")[2].strip(" |")
    return f"{first.removesuffix('; its last words:')}: {last}" if rest and "fix:" not in last else first


def _up(row: dict[str, Any]) -> str:
    if row["state"] != "connected" or "since" not in row:
        return "-"
    return duration(time.time() - datetime.fromisoformat(row["since"]).timestamp())


def _restarts(row: dict[str, Any]) -> str:
    """All restarts; while some are within the window, how many of those that are allowed."""
    if not row.get("recent_restarts") or row.get("max_restarts") is None:
        return str(row.get("restarts", "-"))
    return f"{row['recent_restarts']}/{row['max_restarts']}"


def journal_line(line: dict[str, Any]) -> str:
    mark = "|" if line["kind"] == "stderr" else "*"
    return printable(f"{line['time']}  {line['id']}  {mark} {line['text']}")


def state_line(answer: dict[str, Any]) -> str:
    return printable(f"{answer['id']} is {answer['state']}")


def reload_lines(answers: Iterable[Any]) -> Iterator[str]:
    for answer in answers:
        done = [
            f"{name}: {', '.join(answer[name])}"
            for name in ("added", "removed", "restarted", "adjusted")
            if answer[name]
        ]
        yield from map(printable, done or ["no server has changed"])
        for id, problem in answer["failed"].items():
            yield printable(f"not changed: {id}: {problem}")
        if answer["needs_start"]:
            yield printable(f"these settings of [kernel] need a new start: {', '.join(answer['needs_start'])}")


def search_lines(answers: Iterable[Any]) -> Iterable[str]:
    rows = list(answers)
    if not rows:
        return ("No tool fits.",)
    cells: list[tuple[Part, ...]] = [
        (
            (str(row.get("name", "")), "title"),
            f"{row.get('relevance_score', 0):.2f}",
            row.get("server_id") or "-",
            state(str(row.get("risk_level") or "-")),
            str(row.get("description") or "").partition("\n")[0][:MAX_NOTE_LENGTH],
        )
        for row in rows
    ]
    return Table(("NAME", "SCORE", "SERVER", "RISK", "DESCRIPTION"), cells, fit=("DESCRIPTION",))


ACTIONS: Final[Mapping[str, KernelAction]] = {
    "ps": KernelAction("show the servers of a kernel and their states", ps_lines),
    "logs": KernelAction(
        "show what servers wrote to standard error, and how their states changed",
        each(journal_line),
        {
            "id": {"metavar": "ID", "nargs": "?", "help": "only this server"},
            "-f": {"dest": "follow", "action": "store_true", "help": "go on with what comes"},
        },
    ),
    "restart": KernelAction(
        "start a server again; the next one is open before the old one ends",
        each(state_line),
        ID | {"--now": {"action": "store_true", "help": "do not wait for calls under way"}},
    ),
    "start": KernelAction("start a server that does not run", each(state_line), ID),
    "stop": KernelAction("let the calls of a server finish, and end it", each(state_line), ID),
    "approve": KernelAction(
        "let tools be used that are held because they changed",
        each(lambda answer: f"{answer['id']}: {answer['tool']} is approved"),
        HELD,
    ),
    "reload": KernelAction("have a kernel read its file again", reload_lines),
    "search": KernelAction(
        "find tools by what they do",
        search_lines,
        {
            "query": {"metavar": "QUERY", "help": "what the tool should do"},
            "--top": {"type": positive, "default": 5, "metavar": "N", "help": "at most so many (default: 5)"},
        },
    ),
    **GOVERNING_ACTIONS,
}
WORDS: Final[Mapping[str, str]] = {
    **{name: action.about for name, action in ACTIONS.items() if " " not in name},
    **{name: about for name, (about, _) in GROUPS.items()},
}
"""The words after `defserve kernel` that ask one that runs, and what each does."""


def run(word: str, argv: list[str]) -> int:
    """Ask the kernel and print what it answers. An answer that says that something is not `ok` is a failure."""
    name = word
    if word in GROUPS:
        name, argv = _within(word, argv)
    action = ACTIONS[name]
    options = _options(name, action, argv)
    fields = {key: value for key, value in vars(options).items() if key not in ("config", "pid", "json")}
    failed = list[Any]()

    def answers() -> Iterator[Any]:
        for answer in ask(locate_kernel(options.config), {"verb": name, **fields}, options.pid):
            if is_object(answer) and answer.get("ok") is False:
                failed.append(answer)
            yield answer

    show_each((Data(answer, compact=True) for answer in answers()) if options.json else action.show(answers()))
    return WRONG if failed else OK


def _within(group: str, argv: list[str]) -> tuple[str, list[str]]:
    """The action of a group, and the rest. Without a word it is that which lists."""
    about, actions = GROUPS[group]
    if argv and argv[0] in actions:
        return f"{group} {argv[0]}", argv[1:]
    if not {"-h", "--help"} & set(argv) and all(word.startswith("-") for word in argv[:1]):
        return f"{group} list", argv
    told = "\n".join(f"  {name:8} {action.about}" for name, action in actions.items())
    parser = CommandParser(f"defserve kernel {group}", f"{about[0].upper()}{about[1:]}.\n\nactions:\n{told}")
    parser.add_argument("action", nargs="?", choices=actions, default="list", help="default: list")
    return f"{group} {parser.parse_args(argv).action}", []


def _options(name: str, action: KernelAction, argv: list[str]) -> Namespace:
    parser = CommandParser(f"defserve kernel {name}", f"{action.about[0].upper()}{action.about[1:]}.")
    for argument, details in action.arguments.items():
        parser.add_argument(argument, **details)
    parser.add_argument("--config", metavar="FILE", help=CONFIG_HELP)
    parser.add_argument("--pid", type=positive, metavar="PID", help="which kernel, if several serve this file")
    parser.add_argument("--json", action="store_true", help="print JSON, one object per line")
    return parser.parse_args(argv)
