"""`defserve audit`: check that an audit log is intact, read it, and send it to an OpenTelemetry collector."""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, BinaryIO, Final

from defserve.base.redaction import redact_text
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
    AuditKeys,
    AuditLogBroken,
    AuditReport,
    describe_chain_error,
    iter_numbered_lines,
    parse_log_line,
    verify_audit_log,
)
from defserve.stores.audit.log_file import (
    AUDIT_KEY_VARIABLE,
    AuditLogReader,
    AuditPage,
    AuditUnavailable,
    load_audit_key,
)

INTACT: Final = 0
BROKEN: Final = 1
UNKNOWN: Final = 2
"""The log was not checked: no such file, no key, wrong usage."""

VERIFY_EXAMPLES: Final = """  defserve audit verify audit.log
  defserve audit verify audit.log --key-file /etc/shop/audit.key --json
  defserve audit verify audit.log --head /mnt/witness/audit.log.head
  defserve audit verify sqlite:///shop.db#name=shop
  defserve audit verify audit.log --anchor redis://witness.example --anchor /mnt/witness/audit.head
"""
SHOW_EXAMPLES: Final = """  defserve audit show audit.log --last 20
  defserve audit show audit.log --type TOOL_BLOCKED --type CODE_REJECTED
  defserve audit show audit.log --trace 550e8400-e29b-41d4-a716-446655440000 --json
"""

EXPORT_EXAMPLES: Final = """  defserve audit export audit.log --to http://localhost:4318 --follow
  defserve audit export sqlite:///shop.db#audit --server shop --to https://otel.example
"""

VERIFY_ABOUT: Final = """Check every line of an audit log, and that its end was not cut off.

Exits with 0 if the log is intact, 1 if it is broken, 2 if it could not be checked."""
SHOW_ABOUT: Final = "Show the events of an audit log, oldest first. The log is not checked; `verify` does that."
EXPORT_ABOUT: Final = """Send an audit log to an OpenTelemetry collector (OTLP), from where the last export ended.

The position is kept in a store. While the collector is away, nothing is lost: the records wait in the log. A record
that was sent twice, because this was killed, has the same log.record.uid. Ends when all is sent; with --follow never.
OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_EXPORTER_OTLP_HEADERS name the collector and its token, if nothing else does."""
KEY_HELP: Final = (
    f"the key the log was written with (default: ${AUDIT_KEY_VARIABLE}, then ~/.config/defserve/audit.key)"
)

LOG_HELP: Final = "the audit log: a file, or the address of a store (sqlite:///audit.db#NAME), as audit= has it"
ANCHOR_HELP: Final = "where the log's heads are kept elsewhere: a file, or the address of a store; repeatable"


def main(argv: list[str]) -> int:
    about = "Check that an audit log is intact, read it, and send it to a collector."
    examples = VERIFY_EXAMPLES + SHOW_EXAMPLES + EXPORT_EXAMPLES
    actions = {"verify": verify_log, "show": show_log, "export": export_log}
    return run_action("defserve audit", about, examples, actions, argv)


def verify_log(argv: list[str]) -> int:
    """`defserve audit verify`."""
    try:
        options = CommandParser("defserve audit verify", VERIFY_ABOUT, VERIFY_EXAMPLES).parse_options(
            argv,
            CommandArgument("file", metavar="LOG", help=LOG_HELP),
            CommandArgument("--key-file", metavar="FILE", help=KEY_HELP),
            CommandArgument("--head", metavar="FILE", help="a signed head from another place (default: LOG.head)"),
            CommandArgument("--anchor", metavar="ANCHOR", action="append", default=[], help=ANCHOR_HELP),
            RESULT_JSON_FLAG,
        )
        report = _check_log(options)
    except SystemExit as stop:
        return UNKNOWN if stop.code else INTACT
    except UsageError as error:
        return print_error(str(error), UNKNOWN)
    show_stdout(
        *(
            [JsonBlock({"file": redact_text(options.file), **report._asdict()})]
            if options.json
            else iter_report_lines(report)
        )
    )
    return INTACT if report.ok else BROKEN


def _check_log(options: Namespace) -> AuditReport:
    """Raises UsageError if the log cannot be checked."""
    if _is_in_store(options.file):
        from defserve.stores.audit.stored_log import verify_stored_log

        if options.head or options.anchor:
            raise UsageError(
                "--head and --anchor are for logs in files: one in a store has its head there", fix="leave them out"
            )
        return asyncio.run(verify_stored_log(options.file, load_audit_key(options.key_file)))
    if not options.anchor:
        _open_log(options.file).close()
    key = load_audit_key(options.key_file)
    return verify_audit_log(options.file, key, head=options.head, anchors=tuple(options.anchor))


def iter_report_lines(report: AuditReport) -> Iterator[StyledLine]:
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
        CommandArgument("file", metavar="LOG", help=LOG_HELP),
        CommandArgument("--type", metavar="TYPE", action="append", help="only events of this type; repeatable"),
        CommandArgument("--trace", metavar="ID", help="only events of this trace"),
        CommandArgument("--last", metavar="N", type=parse_positive_int, help="only the newest N of them"),
        JSON_LINES_FLAG,
    )
    bad: list[int] = []
    records = deque[dict[str, Any]](maxlen=options.last)
    if _is_in_store(options.file):
        asyncio.run(_add_stored_records(records, bad, options))
    else:
        with _open_log(options.file) as file:
            _add_records(records, iter_numbered_lines(file), bad, options)
    if options.json:
        show_stdout(*(JsonBlock(record, compact=True) for record in records))
    else:
        head = ("seq", "time", "type", "result", "actor", "target", "trace")
        show_stdout(Table(head, map(_row, records), fit=("actor", "target", "trace")))
    if bad:
        log = redact_text(options.file)
        show_stderr(*format_problem("note", f"line {bad[0]} is not a record; run defserve audit verify {log}"))
    return INTACT


def export_log(argv: list[str]) -> int:
    """`defserve audit export`."""
    options = CommandParser("defserve audit export", EXPORT_ABOUT, EXPORT_EXAMPLES).parse_options(
        argv,
        CommandArgument("log", metavar="LOG", help="the file, or the address of the store (sqlite:///audit.db#NAME)"),
        CommandArgument("--to", metavar="URL", help="the collector, such as http://localhost:4318"),
        CommandArgument("--follow", action="store_true", help="go on with what comes"),
        CommandArgument("--server", metavar="NAME", help="whose log it is (default: the name of the log)"),
        CommandArgument("--name", metavar="NAME", help="the name of the log in its records (default: its file name)"),
        CommandArgument("--store", metavar="STORE", help="where the position is kept (default: LOG.export.db)"),
        CommandArgument("--from", dest="first", metavar="SEQ", type=parse_positive_int, help="begin with this record"),
        CommandArgument("--key-file", metavar="FILE", help=KEY_HELP),
    )
    from defserve.stores.audit.export import ExportRefused

    try:
        sent = asyncio.run(_export(options))
    except (ExportRefused, AuditUnavailable) as error:
        return print_error(
            f"{error}\n  fix: see what the collector logs; what was sent is kept, so run this again", BROKEN
        )
    except KeyboardInterrupt:
        return INTACT
    show_stderr(StyledLine(f"sent: {format_count(sent, 'event')}"))
    return INTACT


async def _export(options: Namespace) -> int:
    from defserve.stores.audit.export import AuditExport, ExportedLog, ExportPosition, make_collector
    from defserve.stores.audit.stored_log import StoredAuditLog, is_audit_store_address
    from defserve.stores.identity import make_server_store, parse_identity

    collector, key = make_collector(options.to), load_audit_key(options.key_file)
    address, _, log_name = options.log.partition("#")
    stored: StoredAuditLog | None = None
    if ":" in options.log and is_audit_store_address(options.log):
        stored = StoredAuditLog(options.log, key=key)
        name, kept_at = log_name or stored.name, options.store or address
    else:
        _open_log(options.log).close()
        name, kept_at = Path(options.log).name, options.store or f"sqlite:///{options.log}.export.db"
    name = options.name or name
    identity = parse_identity(options.server or name)
    store = make_server_store(kept_at, identity)
    reader = AuditLogReader(Path(options.log), AuditKeys(key)) if stored is None else None

    def read_page(first: int, limit: int) -> AuditPage:
        if stored is not None:
            return stored.replay(first, None, limit)
        assert reader is not None
        try:
            return reader.read_page(first, None, limit)
        except (OSError, AuditLogBroken) as error:
            raise AuditUnavailable(f"the audit log cannot be read: {describe_chain_error(error)}") from None

    export = AuditExport(
        read_page,
        ExportPosition(store, name, collector.url),
        collector.send,
        ExportedLog(identity.label, options.server or name, name),
    )
    try:
        if options.first is not None:
            await export.restart_from_record(options.first)
        if options.follow:
            await export.follow()
        return await export.export_available(is_patient=False)
    finally:
        await store.close()
        if stored is not None:
            stored.close()


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


def _add_records(
    records: deque[dict[str, Any]], lines: Iterable[tuple[int, bytes]], bad: list[int], options: Namespace
) -> None:
    """Add the records that are wanted, without `prev` and `mac`. Numbers of lines without a record go to `bad`."""
    for number, line in lines:
        whole = parse_log_line(line) or {}
        kind = "event" if "event" in whole else "log"
        if not is_object(whole.get(kind)):
            bad.append(number)
        elif _is_wanted(record := {"seq": whole.get("seq"), kind: whole[kind]}, options):
            records.append(record)


async def _add_stored_records(records: deque[dict[str, Any]], bad: list[int], options: Namespace) -> None:
    from defserve.stores.audit.stored_log import iter_stored_lines

    async with aclosing(iter_stored_lines(options.file)) as lines:
        async for line in lines:
            _add_records(records, (line,), bad, options)


def _is_wanted(record: dict[str, Any], options: Namespace) -> bool:
    if options.type and _type(record) not in options.type:
        return False
    return options.trace is None or record.get("event", {}).get("trace_id") == options.trace


def _type(record: dict[str, Any]) -> str:
    return str(record["event"].get("event_type", "")) if "event" in record else str(record["log"].get("type", ""))


def _is_in_store(log: str) -> bool:
    """Whether this is an address and not a file. Raises UsageError for a store that is not there."""
    if ":" not in log:
        return False
    from defserve.cli.commands.state import require_existing_store
    from defserve.stores.audit.stored_log import is_audit_store_address

    return is_audit_store_address(log) and bool(require_existing_store(log.partition("#")[0]))


def _open_log(path: str) -> BinaryIO:
    try:
        return open(path, "rb")
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {describe_chain_error(error)}", fix="name an audit log") from None
