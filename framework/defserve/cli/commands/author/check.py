"""`defserve check`: find problems in a server's definitions, and in calls of its tools."""

from __future__ import annotations

import json
import warnings
from argparse import Namespace
from collections.abc import Iterator
from typing import Any, Final

from defserve.cli.exits import complain, placed
from defserve.cli.parser import CommandParser
from defserve.cli.screen.blocks import Data, Line
from defserve.cli.screen.counts import counted
from defserve.cli.screen.progress import ASKING, Working
from defserve.cli.screen.screen import show
from defserve.cli.signatures import WHEN
from defserve.cli.target.connection import add_connection_options
from defserve.cli.target.listing import target_listing
from defserve.cli.target.target import TARGET_HELP, ServerTarget, quiet, resolve_only, split_command
from defserve.errors import DefserveError, UsageError, did_you_mean
from defserve.protocols.mgp.security.tool_security import UnguardedParameter
from defserve.tooling.lint.calls import problems, read_call
from defserve.tooling.lint.definitions import Definitions, of_wire
from defserve.tooling.lint.finding import LintFinding
from defserve.tooling.lint.report import Complaint, complaints
from defserve.tooling.lint.rules import RULES
from defserve.tooling.listing import ServerListing

CLEAN: Final = 0
FOUND: Final = 1
UNKNOWN: Final = 2
"""Nothing was checked: no such server, no such rule."""

BAD_CALL: Final = "bad-call"
LEVELS: Final = {"error": "error", "warning": "warning"}
"""How bad a finding is → its style."""

ABOUT: Final = """Find problems in the definitions of a server, without starting it.

Exits with 0 if there are none, 1 for errors (with --strict also for warnings), 2 if the server could not be checked."""
EXAMPLES: Final = """  defserve check server.py
  defserve check server.py --strict --ignore vague-name
  defserve check -m shop --json
  defserve check server.py --calls calls.jsonl        each line {"name": "add", "arguments": {"a": 1}}
  defserve check -- npx some-mcp-server
  defserve check weather                              one in .mcp.json
  defserve check --rules
"""


def main(argv: list[str]) -> int:
    try:
        return _main(argv)
    except SystemExit as stop:
        return UNKNOWN if stop.code else CLEAN
    except DefserveError as error:
        return complain(placed(error), UNKNOWN)


def _main(argv: list[str]) -> int:
    before, command = split_command(argv)
    options = _parser().parse_args(before)
    if options.rules:
        if options.json:
            show(Data({name: {"level": rule.level, "about": rule.about} for name, rule in RULES.items()}))
            return CLEAN
        show(
            *(
                Line((f"{name:30}", "title"), " ", (f"{rule.level:8}", LEVELS[rule.level]), f" {rule.about}", hang=40)
                for name, rule in RULES.items()
            )
        )
        return CLEAN
    ignored = _ignored(options.ignore)
    with quiet(), warnings.catch_warnings(), Working(ASKING):
        # Registration warns about some of this; here everything is reported in one place.
        warnings.simplefilter("ignore", UnguardedParameter)
        target = resolve_only(options.target, options.module, command)
        listed = target_listing(target, options)
        found = definitions(target, listed)
        made = complaints(found, ignored)
        if options.calls and BAD_CALL not in ignored:
            made += bad_calls(options.calls, listed)
    _show(made, found, options)
    return FOUND if any(options.strict or complaint.level == "error" for complaint in made) else CLEAN


def _parser() -> CommandParser:
    parser = CommandParser("defserve check", ABOUT, EXAMPLES)
    parser.add_argument("target", nargs="*", help=TARGET_HELP)
    parser.add_argument("--strict", action="store_true", help="warnings count as errors, for CI")
    parser.add_argument("--ignore", action="append", default=[], metavar="RULE", help="skip a rule; repeatable")
    parser.add_argument("--calls", metavar="FILE", help="also check calls against the tools: one JSON object per line")
    parser.add_argument("--rules", action="store_true", help="show the rules")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_connection_options(parser)
    return parser


def _ignored(given: list[str]) -> set[str]:
    names = {name for text in given for name in text.split(",")}
    for name in names - {*RULES, BAD_CALL}:
        raise UsageError(f"there is no rule {name!r}", fix=did_you_mean(name, RULES, "run defserve check --rules"))
    return names


def definitions(target: ServerTarget, listed: ServerListing) -> Definitions:
    """The definitions of a server. A server in this process shows more than a remote one."""
    if target.server is None:
        return of_wire(listed)
    from defserve.server.server import Server
    from defserve.tooling.lint.reading import of_server

    return of_server(target.server, listed) if isinstance(target.server, Server) else of_wire(listed)


def bad_calls(path: str, listed: ServerListing) -> Iterator[Complaint]:
    """The calls of a file that the list of tools does not allow."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.readlines()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", fix="name a file of JSON lines") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        call = _call(line)
        if call is None:
            finding = LintFinding("the line", where, "is not a call", 'write {"name": "add", "arguments": {"a": 1}}')
            yield Complaint(BAD_CALL, "error", finding)
            continue
        for problem in problems(listed.tools, *call):
            fix = "correct the call, or the tool"
            yield Complaint(BAD_CALL, "error", LintFinding(f"call of {call[0]!r}", where, problem, fix))


def _call(line: str) -> Any:
    try:
        return read_call(json.loads(line))
    except ValueError:
        return None


def _show(made: list[Complaint], found: Definitions, options: Namespace) -> None:
    if options.json:
        shown = {"tokens": found.tokens, "findings": [complaint.wire() for complaint in made]}
        show(Data(shown))
        return
    for rule, level, (subject, where, problem, fix) in made:
        place = f"{where}: " if where else ""
        show(
            Line((place, "faint"), (f"{level}:", LEVELS[level]), f" {subject}: {problem} ", (f"[{rule}]", "faint")),
            Line("  ", ("fix:", "fix"), f" {fix}"),
        )
    show(Line((summary(made, found), "" if made else "good")))


def summary(made: list[Complaint], found: Definitions) -> str:
    errors = sum(complaint.level == "error" for complaint in made)
    problems = f"{counted(errors, 'error')}, {counted(len(made) - errors, 'warning')}" if made else "no problems"
    when = WHEN[found.is_searched]
    cost = f"{counted(len(found.tools), 'tool')}, about {found.tokens} tokens {when} (characters/4)"
    return f"{problems}; {cost}"
