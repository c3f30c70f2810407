"""`defserve audit`: check that an audit log is whole, and read it."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentTypeError, Namespace
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, Final

from defserve.cli import complain
from defserve.cli.parser import Parser
from defserve.errors import UsageError
from defserve.redaction import printable
from defserve.stores.audit.chain import AuditReport, numbered_lines, parse_line, reason_of, verify
from defserve.stores.audit.key import VARIABLE, audit_key
from defserve.wire.jsonvalue import is_object

WHOLE: Final = 0
BROKEN: Final = 1
UNKNOWN: Final = 2
"""Not even looked at: no such file, no key, wrong usage."""

VERIFY_EXAMPLES: Final = """  defserve audit verify audit.log
  defserve audit verify audit.log --key-file /etc/shop/audit.key --json
  defserve audit verify audit.log --head /mnt/witness/audit.log.head
"""
SHOW_EXAMPLES: Final = """  defserve audit show audit.log --last 20
  defserve audit show audit.log --type TOOL_BLOCKED --type CODE_REJECTED
  defserve audit show audit.log --trace 550e8400-e29b-41d4-a716-446655440000 --json
"""

VERIFY_ABOUT: Final = """Check every line of an audit log, and that its end was not cut off.

Exits with 0 if it is whole, 1 if it is broken, 2 if it could not be checked."""
SHOW_ABOUT: Final = (
    """Show the events of an audit log, the oldest first. It is not checked: that is what `verify` does."""
)
KEY_HELP: Final = f"the key the log was written with (else ${VARIABLE}, else ~/.config/defserve/audit.key)"

COLUMNS: Final = ("seq", "time", "type", "result", "actor", "target", "trace")


def main(argv: list[str]) -> int:
    if argv and argv[0] in ACTIONS:
        return ACTIONS[argv[0]](argv[1:])
    parser = Parser("defserve audit", "Check that an audit log is whole, and read it.", VERIFY_EXAMPLES + SHOW_EXAMPLES)
    parser.add_argument("action", choices=ACTIONS, help="`defserve audit ACTION --help` says more")
    parser.parse_args(argv)
    return UNKNOWN


def verify_log(argv: list[str]) -> int:
    """`defserve audit verify`."""
    try:
        options = _verify_options(argv)
        report = _report(options)
    except SystemExit as stop:
        return UNKNOWN if stop.code else WHOLE
    except UsageError as error:
        return complain(str(error), UNKNOWN)
    if options.json:
        print(json.dumps({"file": options.file, **report._asdict()}, indent=2))
    else:
        print("\n".join(page(report)))
    return WHOLE if report.ok else BROKEN


def _verify_options(argv: list[str]) -> Namespace:
    parser = Parser("defserve audit verify", VERIFY_ABOUT, VERIFY_EXAMPLES)
    parser.add_argument("file", metavar="FILE", help="the audit log")
    parser.add_argument("--key-file", metavar="F", help=KEY_HELP)
    parser.add_argument("--head", metavar="F", help="a signed head that was kept elsewhere (else FILE.head)")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    return parser.parse_args(argv)


def _report(options: Namespace) -> AuditReport:
    key = audit_key(options.key_file)
    _opened(options.file).close()
    return verify(options.file, key, head=options.head)


def page(report: AuditReport) -> Iterator[str]:
    """The findings for a terminal, line by line."""
    if report.ok:
        yield f"whole: {_count(report.events)}"
    else:
        where = f"line {report.first_bad_line}: " if report.first_bad_line else ""
        yield f"broken: {where}{report.reason}"
        yield f"  {_count(report.events)} before that are whole"
    if report.unsigned:
        yield f"  {_count(report.unsigned)} came after the last signed head: whether more followed cannot be known"
    if report.lost:
        yield f"  {_count(report.lost)} could not be written in their time, as the log itself says"


def show_log(argv: list[str]) -> int:
    """`defserve audit show`."""
    parser = Parser("defserve audit show", SHOW_ABOUT, SHOW_EXAMPLES)
    parser.add_argument("file", metavar="FILE", help="the audit log")
    parser.add_argument("--type", metavar="T", action="append", help="only events of this type; may be repeated")
    parser.add_argument("--trace", metavar="ID", help="only events of this trace")
    parser.add_argument("--last", metavar="N", type=_positive, help="only the newest N of them")
    parser.add_argument("--json", action="store_true", help="print JSON, one object a line")
    options = parser.parse_args(argv)
    with _opened(options.file) as file:
        bad: list[int] = []
        wanted = (record for record in _records(file, bad) if _is_wanted(record, options))
        records = deque(wanted, options.last)
    for line in map(json.dumps, records) if options.json else table(records):
        print(line)
    if bad:
        print(f"note: line {bad[0]} is not a record; see defserve audit verify {options.file}", file=sys.stderr)
    return WHOLE


ACTIONS: Final = {"verify": verify_log, "show": show_log}


def table(records: Iterable[dict[str, Any]]) -> Iterator[str]:
    """The records for a terminal, line by line. What they hold may come from an attacker, so it is escaped."""
    rows = [COLUMNS, *(tuple(printable(cell) for cell in _row(record)) for record in records)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


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
    """What each line says, without its seals; the numbers of lines that say nothing are added to `bad`."""
    for number, line in numbered_lines(file):
        whole = parse_line(line) or {}
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


def _opened(path: str) -> BinaryIO:
    try:
        return open(path, "rb")
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {reason_of(error)}", fix="name an audit log") from None


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def _count(events: int) -> str:
    return f"{events:,} event{'' if events == 1 else 's'}"
