"""`defserve audit`: check that an audit log is intact, and read it."""

from __future__ import annotations

import json
from argparse import Namespace
from collections import deque
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

from defserve.cli.exits import print_error
from defserve.cli.parser import (
    JSON_LINES_FLAG,
    RESULT_JSON_FLAG,
    CommandArgument,
    CommandParser,
    parse_positive_int,
    run_action,
)
from defserve.cli.screen import format_problem, show_stderr, show_stdout
from defserve.cli.screen_blocks import JsonBlock, StyledLine, Table, format_count
from defserve.core.json_values import is_object
from defserve.errors import UsageError
from defserve.stores.audit.chain import (
    AuditReport,
    describe_chain_error,
    iter_numbered_lines,
    parse_log_line,
    verify_audit_log,
)
from defserve.stores.audit.log_file import AUDIT_KEY_VARIABLE, load_audit_key

INTACT: Final = 0
BROKEN: Final = 1
UNKNOWN: Final = 2
"""The log was not checked: no such file, no key, wrong usage."""

VERIFY_EXAMPLES: Final = """  defserve audit verify audit.log
  defserve audit verify audit.log --key-file /etc/shop/audit.key --json
  defserve audit verify audit.log --head /mnt/witness/audit.log.head
  defserve audit verify audit.log --anchor redis://witness.example --anchor /mnt/witness/audit.head
"""
SHOW_EXAMPLES: Final = """  defserve audit show audit.log --last 20
  defserve audit show audit.log --type TOOL_BLOCKED --type CODE_REJECTED
  defserve audit show audit.log --trace 550e8400-e29b-41d4-a716-446655440000 --json
"""

VERIFY_ABOUT: Final = """Check every line of an audit log, and that its end was not cut off.

Exits with 0 if the log is intact, 1 if it is broken, 2 if it could not be checked."""
SHOW_ABOUT: Final = "Show the events of an audit log, oldest first. The log is not checked; `verify` does that."
KEY_HELP: Final = (
    f"the key the log was written with (default: ${AUDIT_KEY_VARIABLE}, then ~/.config/defserve/audit.key)"
)

ANCHOR_HELP: Final = "where the log's heads are kept elsewhere: a file, or the address of a store; repeatable"


def main(argv: list[str]) -> int:
    about, examples = "Check that an audit log is intact, and read it.", VERIFY_EXAMPLES + SHOW_EXAMPLES
    return run_action("defserve audit", about, examples, {"verify": verify_log, "show": show_log}, argv)


def verify_log(argv: list[str]) -> int:
    """`defserve audit verify`."""
    try:
        options = CommandParser("defserve audit verify", VERIFY_ABOUT, VERIFY_EXAMPLES).parse_options(
            argv,
            CommandArgument("file", metavar="FILE", help="the audit log"),
            CommandArgument("--key-file", metavar="FILE", help=KEY_HELP),
            CommandArgument("--head", metavar="FILE", help="a signed head from another place (default: FILE.head)"),
            CommandArgument("--anchor", metavar="ANCHOR", action="append", default=[], help=ANCHOR_HELP),
            RESULT_JSON_FLAG,
        )
        if not options.anchor:
            _open_log(options.file).close()
        key = load_audit_key(options.key_file)
        report = verify_audit_log(options.file, key, head=options.head, anchors=tuple(options.anchor))
    except SystemExit as stop:
        return UNKNOWN if stop.code else INTACT
    except UsageError as error:
        return print_error(str(error), UNKNOWN)
    show_stdout(*([JsonBlock({"file": options.file, **report._asdict()})] if options.json else page(report)))
    return INTACT if report.ok else BROKEN


def page(report: AuditReport) -> Iterator[StyledLine]:
    """The report for a terminal, line by line."""
    if report.ok:
        yield StyledLine(("intact:", "good"), f" {format_count(report.events, 'event')}")
    else:
        where = f"line {report.first_bad_line}: " if report.first_bad_line else ""
        yield StyledLine(("broken:", "error"), f" {where}{report.reason}")
        yield StyledLine(f"  intact before that: {format_count(report.events, 'event')}")
        advice = "keep the file as evidence; put back a copy that is intact, or begin a log with another name"
        yield StyledLine("  ", ("fix:", "fix"), f" {advice}")
    if report.unsigned:
        after = "after the last signed head: nobody can tell whether more were cut off"
        yield StyledLine(f"  {format_count(report.unsigned, 'event')} {after}")
    if report.lost:
        yield StyledLine(
            f"  {format_count(report.lost, 'event')} could not be written when they happened; the log says so itself"
        )


def show_log(argv: list[str]) -> int:
    """`defserve audit show`."""
    options = CommandParser("defserve audit show", SHOW_ABOUT, SHOW_EXAMPLES).parse_options(
        argv,
        CommandArgument("file", metavar="FILE", help="the audit log"),
        CommandArgument("--type", metavar="TYPE", action="append", help="only events of this type; repeatable"),
        CommandArgument("--trace", metavar="ID", help="only events of this trace"),
        CommandArgument("--last", metavar="N", type=parse_positive_int, help="only the newest N of them"),
        JSON_LINES_FLAG,
    )
    with _open_log(options.file) as file:
        bad: list[int] = []
        records = deque((record for record in _records(file, bad) if _is_wanted(record, options)), options.last)
    if options.json:
        show_stdout(*(JsonBlock(record, compact=True) for record in records))
    else:
        head = ("seq", "time", "type", "result", "actor", "target", "trace")
        show_stdout(Table(head, map(_row, records), fit=("actor", "target", "trace")))
    if bad:
        show_stderr(*format_problem("note", f"line {bad[0]} is not a record; run defserve audit verify {options.file}"))
    return INTACT


def _row(record: dict[str, Any]) -> tuple[str, ...]:
    seq = str(record["seq"])
    if "log" in record:
        remark = {name: value for name, value in record["log"].items() if name not in ("type", "time")}
        return (seq, str(record["log"].get("time", "")), _type(record), json.dumps(remark), "", "", "")
    event: dict[str, Any] = record["event"]
    actor, target = event.get("actor"), event.get("target")
    return (
        seq,
        str(event.get("timestamp", "")),
        _type(record),
        str(event.get("result", "")),
        _words(actor, "type", "id"),
        _words(target, "server_id", "tool_name"),
        str(event.get("trace_id", "")),
    )


def _words(value: Any, *names: str) -> str:
    if is_object(value):
        return " ".join(str(value[name]) for name in names if value.get(name)) or json.dumps(value)
    return "" if value is None else str(value)


def _records(file: BinaryIO, bad: list[int]) -> Iterator[dict[str, Any]]:
    """The record of each line, without `prev` and `mac`. Numbers of lines without a record are added to `bad`."""
    for number, line in iter_numbered_lines(file):
        whole = parse_log_line(line) or {}
        kind = "event" if "event" in whole else "log"
        if is_object(whole.get(kind)):
            yield {"seq": whole.get("seq"), kind: whole[kind]}
        else:
            bad.append(number)


def _is_wanted(record: dict[str, Any], options: Namespace) -> bool:
    if options.type and _type(record) not in options.type:
        return False
    return options.trace is None or record.get("event", {}).get("trace_id") == options.trace


def _type(record: dict[str, Any]) -> str:
    return str(record["event"].get("event_type", "")) if "event" in record else str(record["log"].get("type", ""))


def _open_log(path: str) -> BinaryIO:
    try:
        return open(path, "rb")
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {describe_chain_error(error)}", fix="name an audit log") from None
