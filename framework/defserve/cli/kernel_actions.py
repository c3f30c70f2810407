"""`defserve kernel VERB`: the command line of each verb of a kernel that runs, and how its answers are printed.

Words, options and help come from the table in `kernel/control.py`.
What servers wrote is only data here, so everything that is printed is escaped.
"""

from __future__ import annotations

import re
import shlex
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, TypeAlias

from defserve.base.redaction import escape_unprintable
from defserve.cli.exits import EXIT_FAILURE, EXIT_OK
from defserve.cli.parser import JSON_LINES_FLAG, CommandArgument, CommandParser, parse_positive_int
from defserve.cli.screen import show_block_stream
from defserve.cli.screen_blocks import JsonBlock, StyledText, Table, style_state
from defserve.core.json_values import is_object
from defserve.kernel.control import KERNEL_VERBS, VERB_GROUPS, KernelVerb, ask_kernel, locate_running_kernel_file

CONFIG_HELP: Final = "the kernel's file (default: $MGP_CONFIG_PATH, ./mgp.toml, ~/.config/mgp/servers.toml)"


MAX_NOTE_LENGTH: Final = 200

Show: TypeAlias = Callable[[Iterable[Any]], Iterable[str]]
"""Makes lines of a kernel's answers, as they come."""


def show_each_answer(show: Callable[[Any], str]) -> Show:
    """One line for each answer. Servers choose many of the words in it, so it is escaped."""
    return lambda answers: (escape_unprintable(show(answer)) for answer in answers)


# -- Access, permissions, pins, health and the audit log, for a terminal.


def health_lines(answers: Iterable[Any]) -> Iterable[str]:
    cells = (
        (
            (row["id"], "title"),
            style_state(row["state"]),
            row["status"] or "-",
            f"{row['latency_ms']} ms" if "latency_ms" in row else "-",
            format_duration(row["uptime_secs"]) if row.get("uptime_secs") is not None else "-",
            calls({**row, "calls": row.get("pending_requests")}),
            format_exit_note(str(row.get("problem") or ""))[:MAX_NOTE_LENGTH],
        )
        for row in answers
    )
    return Table(("ID", "STATE", "HEALTH", "ANSWERED IN", "UP", "CALLS", "PROBLEM"), cells, fit=("PROBLEM",))


def _audit_line(row: dict[str, Any]) -> str:
    if "ok" in row:
        what = f"intact: {row['events']:,} events" if row["ok"] else f"broken: {row['reason']}"
        return f"{row['log']}: {what}"
    actor: dict[str, Any] = row.get("actor") or {}
    target: dict[str, Any] = row.get("target") or {}
    words = (
        *(row.get(name) for name in ("seq", "timestamp", "event_type", "result")),
        actor.get("id"),
        *(target.get(name) for name in ("server_id", "tool_name")),
    )
    return "  ".join(str(word) for word in words if word)


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
    return Table(("CALLER", "SERVER", "TOOL", "ACCESS", "BY", "UNTIL", "REASON"), rows, fit=("REASON",))


def _entry_line(entry: dict[str, Any]) -> str:
    what = f"{entry['server_id']} {entry['tool_name'] or ''}".rstrip()
    if entry.get("revoked"):
        return f"{entry['agent_id']}: the entry for {what} is removed"
    return f"{entry['agent_id']}: {entry['permission']} {what}"


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
        yield escape_unprintable(f"{row['id']}: {row['tool']} is {row['change']} and held")
        yield from (f"  {escape_unprintable(line)}" for line in row["difference"])
        words = shlex.join((row["id"], row["tool"], "--digest", row["now"]))
        if row["left_out"]:
            yield f"  {row['left_out']} lines are not shown: only with --unseen can it be accepted"
        yield escape_unprintable(f"  accept it as it is here: defserve kernel pins accept {words}")
    several = Counter(row["id"] for row in rows)
    for id, digest in {row["id"]: row["all"] for row in rows if several[row["id"]] > 1}.items():
        words = shlex.join((id, "--digest", digest))
        yield escape_unprintable(
            f"accept all {several[id]} of {id} as they are here: defserve kernel pins accept {words}"
        )
    if not rows:
        yield "No tool is held."


UNITS: Final = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s"))


def calls(row: dict[str, Any]) -> str:
    """All calls, and how many of them run."""
    return f"{row.get('calls_total', '-')}" + (f" ({row['calls']} run)" if row.get("calls") else "")


def format_duration(seconds: float) -> str:
    """`2h10m`, `4m03s`, `12s`."""
    for size, unit, smaller_size, smaller in UNITS:
        if seconds >= size:
            return f"{int(seconds // size)}{unit}{int(seconds % size // smaller_size):02}{smaller}"
    return f"{max(int(seconds), 0)}s"


COLUMNS: Final = ("ID", "STATE", "ERA", "TOOLS", "CALLS", "UP", "RESTARTS", "NOTE")


def ps_lines(answers: Iterable[Any]) -> Iterable[str]:
    rows = list(answers)
    if not rows:
        return ("The file names no servers.",)
    return Table(COLUMNS, map(_row, rows), fit=("NOTE",), right=("TOOLS",))


def _row(row: dict[str, Any]) -> tuple[StyledText, ...]:
    held = ", ".join(row.get("held") or ())
    note = format_member_note(row) or (f"held until approved: {held}" if held else "")
    return (
        (row["id"], "title"),
        style_state(row["state"]),
        row.get("era") or "-",
        str(row.get("tools") or (0 if row["state"] == "connected" else "-")),
        calls(row),
        _up(row),
        _restarts(row),
        note if len(note) <= MAX_NOTE_LENGTH else f"{note[:MAX_NOTE_LENGTH]}…",
    )


def format_member_note(row: Mapping[str, Any]) -> str:
    """What is wrong with a server of `ps`: whether the kernel gave it up, and how it ended."""
    note = format_exit_note(str(row.get("note") or ""))
    if not row.get("gave_up"):
        return note
    return f"{row['gave_up']} (start it: defserve kernel start {shlex.quote(row['id'])}): {note}"


EXCEPTION_NAME: Final = re.compile(r"^defserve\.errors\.\w+: ")
"""What stands before the text of an error of ours in a traceback. It tells nobody anything."""


def format_exit_note(text: str) -> str:
    """How it ended, and the last line that it wrote: what a traceback ends with, and the fix that stands below it."""
    first, *rest = (line.strip(" |") for line in text.strip().split("\n"))
    fix = f"; {rest.pop()}" if rest and rest[-1].startswith("fix:") else ""
    first = first.removesuffix("; its last words:")
    return f"{first}: {EXCEPTION_NAME.sub('', rest[-1])}{fix}" if rest else f"{first}{fix}"


def _up(row: dict[str, Any]) -> str:
    if row["state"] != "connected" or "since" not in row:
        return "-"
    return format_duration(time.time() - datetime.fromisoformat(row["since"]).timestamp())


def _restarts(row: dict[str, Any]) -> str:
    """All restarts; while some are within the window, how many of those that are allowed."""
    if not row.get("recent_restarts") or row.get("max_restarts") is None:
        return str(row.get("restarts", "-"))
    return f"{row['recent_restarts']}/{row['max_restarts']}"


def journal_line(line: dict[str, Any]) -> str:
    mark = "|" if line["kind"] == "stderr" else "*"
    return f"{line['time']}  {line['id']}  {mark} {line['text']}"


def reload_lines(answers: Iterable[Any]) -> Iterator[str]:
    for answer in answers:
        done = [
            f"{name}: {', '.join(answer[name])}"
            for name in ("added", "removed", "restarted", "adjusted")
            if answer[name]
        ]
        yield from map(escape_unprintable, done or ["no server has changed"])
        for id, problem in answer["failed"].items():
            yield escape_unprintable(f"not changed: {id}: {problem}")
        if answer["needs_start"]:
            yield escape_unprintable(f"these settings of [kernel] need a new start: {', '.join(answer['needs_start'])}")


def search_lines(answers: Iterable[Any]) -> Iterable[str]:
    rows = list(answers)
    if not rows:
        return ("No tool fits.",)
    cells: list[tuple[StyledText, ...]] = [
        (
            (str(row.get("name", "")), "title"),
            f"{row.get('relevance_score', 0):.2f}",
            row.get("server_id") or "-",
            style_state(str(row.get("risk_level") or "-")),
            str(row.get("description") or "").partition("\n")[0][:MAX_NOTE_LENGTH],
        )
        for row in rows
    ]
    return Table(("NAME", "SCORE", "SERVER", "RISK", "DESCRIPTION"), cells, fit=("DESCRIPTION",))


SHOWN_BY: Final[Mapping[str, Show]] = {
    "ps": ps_lines,
    "logs": show_each_answer(journal_line),
    **dict.fromkeys(
        ("restart", "start", "stop"), show_each_answer(lambda answer: f"{answer['id']} is {answer['state']}")
    ),
    "approve": show_each_answer(lambda answer: f"{answer['id']}: {answer['tool']} is approved"),
    "reload": reload_lines,
    "search": search_lines,
    "health": health_lines,
    "audit": show_each_answer(_audit_line),
    "access list": access_lines,
    **dict.fromkeys(("access grant", "access deny", "access revoke"), show_each_answer(_entry_line)),
    **dict.fromkeys(("permissions list", "permissions approve", "permissions deny"), permission_lines),
    "pins list": pin_lines,
    "pins accept": show_each_answer(lambda answer: f"{answer['id']}: {answer['tool']} is accepted"),
}
"""How the answers to a verb look. Those of other verbs are printed as JSON."""


# -- The command line of a verb, made from its row in the table of verbs.


ADDRESS_OPTIONS: Final = ("--to", "--at", "--on", "--url", "--address", "--host", "--port")
"""What people try in order to name a kernel by its address."""


def list_kernel_commands() -> dict[str, str]:
    """The words after `defserve kernel` that ask one that runs, and what each does."""
    alone = {verb.name: verb.about for verb in KERNEL_VERBS.values() if verb.about and " " not in verb.name}
    return {**alone, **VERB_GROUPS}


def run_kernel_verb(word: str, argv: list[str]) -> int:
    """Ask the kernel and print what it answers. An answer that says that something is not `ok` is a failure."""
    name, argv = _find_in_group(word, argv) if word in VERB_GROUPS else (word, argv)
    options = _parse_options(KERNEL_VERBS[name], argv)
    fields = {key: value for key, value in vars(options).items() if key not in ("config", "pid", "json")}
    failed = list[Any]()

    def answers() -> Iterator[Any]:
        for answer in ask_kernel(locate_running_kernel_file(options.config), {"verb": name, **fields}, options.pid):
            if is_object(answer) and answer.get("ok") is False:
                failed.append(answer)
            yield answer

    is_json = options.json or name not in SHOWN_BY
    show_block_stream(
        (JsonBlock(answer, compact=True) for answer in answers()) if is_json else SHOWN_BY[name](answers())
    )
    return EXIT_FAILURE if failed else EXIT_OK


def _find_in_group(group: str, argv: list[str]) -> tuple[str, list[str]]:
    """The verb of a group, and the rest. Without a word it is that which lists."""
    actions = {verb.name.split()[1]: verb for verb in KERNEL_VERBS.values() if verb.name.startswith(f"{group} ")}
    if argv and argv[0] in actions:
        return actions[argv[0]].name, argv[1:]
    if not {"-h", "--help"} & set(argv) and all(word.startswith("-") for word in argv[:1]):
        return f"{group} list", argv
    told = "\n".join(f"  {name:8} {verb.about}" for name, verb in actions.items())
    parser = CommandParser(f"defserve kernel {group}", f"{_sentence(VERB_GROUPS[group])}\n\nactions:\n{told}")
    action = CommandArgument("action", nargs="?", choices=actions, default="list", help="default: list")
    return f"{group} {parser.parse_options(argv, action).action}", []


def _parse_options(verb: KernelVerb, argv: list[str]) -> Namespace:
    parser = CommandParser(f"defserve kernel {verb.name}", _sentence(verb.about))
    parser.elsewhere = dict.fromkeys(ADDRESS_OPTIONS, "a kernel is named by its file: write --config mgp.toml")
    for one in verb.parameters:
        details: dict[str, Any] = {"action": "store_true"}
        if one.type is not bool:
            type = parse_positive_int if one.type is int else str
            details = {"type": type, "default": one.default, "metavar": one.metavar or one.name.upper()}
        if one.option:
            parser.add_argument(one.option, dest=one.name, required=one.default is ..., help=one.help, **details)
        else:
            parser.add_argument(one.name, nargs=None if one.default is ... else "?", help=one.help, **details)
    return parser.parse_options(
        argv,
        CommandArgument("--config", metavar="FILE", help=CONFIG_HELP),
        CommandArgument("--pid", type=parse_positive_int, metavar="PID", help="which kernel, if several use this file"),
        JSON_LINES_FLAG,
    )


def _sentence(about: str) -> str:
    return f"{about[0].upper()}{about[1:]}."
