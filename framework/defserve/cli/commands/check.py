"""`defserve check` and `defserve export`: problems in what a server lists, and documents made from it."""

from __future__ import annotations

import asyncio
import json
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from defserve.cli.content import TOKEN_COST_NOTES, explain_write_errors
from defserve.cli.exits import format_located_error, print_error
from defserve.cli.parser import RESULT_JSON_FLAG, CommandArgument, CommandParser, make_flag
from defserve.cli.screen import LISTING_STEP, ProgressDisplay, format_problem, show_stderr, show_stdout
from defserve.cli.screen_blocks import JsonBlock, StyledLine, format_count
from defserve.cli.target import (
    TARGET_HELP,
    ServerTarget,
    redirect_stdout_to_stderr,
    resolve_only_target,
    split_server_command,
)
from defserve.cli.target_connection import CONNECTION_OPTIONS, load_target_listing
from defserve.errors import DefserveError, UsageError, did_you_mean
from defserve.protocols.mgp.security import UnguardedParameter
from defserve.server.openapi_document import build_openapi_document
from defserve.tooling.lint.client_rules import CLIENT_RULES, LINTED_CLIENTS, find_client_problems
from defserve.tooling.lint.definitions import (
    LintFinding,
    ServerDefinitions,
    parse_tool_call,
    problems,
    read_listed_definitions,
)
from defserve.tooling.lint.rules import LINT_RULES, RuleFinding, run_lint_rules
from defserve.tooling.lint.store_rules import STORE_CHECKS, STORE_RULE_SETS, build_submission, find_store_problems
from defserve.tooling.listing import ServerListing, catalogue, collect_tool_schemas, format_mgp_entry
from defserve.tooling.vendor_shapes import VENDOR_SHAPES, estimate_json_tokens, shape_tool, shape_tools

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
  defserve check server.py --for claude --for gemini  what these clients would refuse or leave out
  defserve check server.py --store openai             what this store would refuse
  defserve check -- npx some-mcp-server
  defserve check weather                              one in .mcp.json
  defserve check --rules
"""


def run_check(argv: list[str]) -> int:
    try:
        return _main(argv)
    except SystemExit as stop:
        return UNKNOWN if stop.code else CLEAN
    except DefserveError as error:
        return print_error(format_located_error(error), UNKNOWN)


def _main(argv: list[str]) -> int:
    before, command = split_server_command(argv)
    options = CommandParser("defserve check", ABOUT, EXAMPLES).parse_options(
        before,
        CommandArgument("target", nargs="*", help=TARGET_HELP),
        make_flag("--strict", help="warnings count as errors, for CI"),
        CommandArgument("--ignore", action="append", default=[], metavar="RULE", help="skip a rule; repeatable"),
        CommandArgument("--calls", metavar="FILE", help="also check calls against the tools: one JSON object per line"),
        CommandArgument(
            "--for",
            dest="clients",
            action="append",
            default=[],
            choices=LINTED_CLIENTS,
            help="also check what a client would refuse or leave out; repeatable",
        ),
        CommandArgument(
            "--store",
            dest="stores",
            action="append",
            default=[],
            choices=STORE_RULE_SETS,
            help="also check the rules of a store; repeatable",
        ),
        make_flag("--rules", help="show the rules"),
        RESULT_JSON_FLAG,
        *CONNECTION_OPTIONS,
    )
    if options.rules:
        rules = {name: (rule.level, rule.about) for name, rule in LINT_RULES.items()}
        rules |= CLIENT_RULES if options.clients else {}
        rules |= {name: check[:2] for name, check in STORE_CHECKS.items()} if options.stores else {}
        shown = [JsonBlock({name: {"level": level, "about": about} for name, (level, about) in rules.items()})]
        show_stdout(*(shown if options.json else _rules_page(rules)))
        return CLEAN
    ignored = _parse_ignored_rules(options.ignore)
    with redirect_stdout_to_stderr(), warnings.catch_warnings(), ProgressDisplay(LISTING_STEP):
        # Registration warns about some of this; here everything is reported in one place.
        warnings.simplefilter("ignore", UnguardedParameter)
        target = resolve_only_target(options.target, options.module, command)
        listed = load_target_listing(target, options)
        found = definitions(target, listed)
        made = run_lint_rules(found, ignored)
        for client in options.clients:
            made += [RuleFinding(*one) for one in find_client_problems(found, client) if one.rule not in ignored]
        if options.stores:
            submission = build_submission(found)
            for one in dict.fromkeys(one for store in options.stores for one in find_store_problems(submission, store)):
                made += [RuleFinding(*one)] if one.rule not in ignored else []
        if options.calls and BAD_CALL not in ignored:
            made += bad_calls(options.calls, listed)
    _show(made, found, options)
    _show_auth_warnings(target)
    return FOUND if any(options.strict or complaint.level == "error" for complaint in made) else CLEAN


def _show_auth_warnings(target: ServerTarget) -> None:
    """What is to be done before the server is run. It is no fault of the definitions, so it does not count as one."""
    if (auth := getattr(target.server, "auth", None)) is None:
        return
    from defserve.auth.auth_options import list_operator_warnings

    for problem, fix in asyncio.run(list_operator_warnings(auth, opens_stores=False)):
        show_stderr(*format_problem("note", f"{problem}\n  fix: {fix}"))


def _rules_page(rules: Mapping[str, tuple[str, str]]) -> Iterator[StyledLine]:
    for name, (level, about) in rules.items():
        yield StyledLine((f"{name:30}", "title"), " ", (f"{level:8}", LEVELS[level]), f" {about}", hang=40)


def _parse_ignored_rules(given: list[str]) -> set[str]:
    names = {name for text in given for name in text.split(",")}
    for name in names - {*LINT_RULES, *CLIENT_RULES, *STORE_CHECKS, BAD_CALL}:
        raise UsageError(f"there is no rule {name!r}", fix=did_you_mean(name, LINT_RULES, "run defserve check --rules"))
    return names


def definitions(target: ServerTarget, listed: ServerListing) -> ServerDefinitions:
    """The definitions of a server. A server in this process shows more than a remote one."""
    if target.server is None:
        return read_listed_definitions(listed)
    from defserve.server.server import Server
    from defserve.tooling.lint.rules import read_server_definitions

    return (
        read_server_definitions(target.server, listed)
        if isinstance(target.server, Server)
        else read_listed_definitions(listed)
    )


def bad_calls(path: str, listed: ServerListing) -> Iterator[RuleFinding]:
    """The calls of a file that the list of tools does not allow."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.readlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "it is not UTF-8")
        raise UsageError(f"cannot read {path}: {why}", fix="name a file of JSON lines") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        call = _call(line)
        if call is None:
            finding = LintFinding("the line", where, "is not a call", 'write {"name": "add", "arguments": {"a": 1}}')
            yield RuleFinding(BAD_CALL, "error", finding)
            continue
        for problem in problems(listed.tools, *call):
            fix = "correct the call, or the tool"
            yield RuleFinding(BAD_CALL, "error", LintFinding(f"call of {call[0]!r}", where, problem, fix))


def _call(line: str) -> Any:
    try:
        return parse_tool_call(json.loads(line))
    except ValueError:
        return None


def _show(made: list[RuleFinding], found: ServerDefinitions, options: Namespace) -> None:
    if options.json:
        show_stdout(JsonBlock({"tokens": found.tokens, "findings": [complaint.to_wire() for complaint in made]}))
        return
    for rule, level, (subject, where, problem, fix) in made:
        place = f"{where}: " if where else ""
        show_stdout(
            StyledLine(
                (place, "faint"), (f"{level}:", LEVELS[level]), f" {subject}: {problem} ", (f"[{rule}]", "faint")
            ),
            StyledLine("  ", ("fix:", "fix"), f" {fix}"),
        )
    show_stdout(StyledLine((summary(made, found), "" if made else "good")))


def summary(made: list[RuleFinding], found: ServerDefinitions) -> str:
    errors = sum(complaint.level == "error" for complaint in made)
    problems = (
        f"{format_count(errors, 'error')}, {format_count(len(made) - errors, 'warning')}" if made else "no problems"
    )
    when = TOKEN_COST_NOTES[found.is_searched]
    cost = f"{format_count(len(found.tools), 'tool')}, about {found.tokens:,} tokens {when} (characters/4)"
    return f"{problems}; {cost}"


# -- `defserve export`: documents made from what a server lists.


MAX_NAMES: Final = 5
"""Tools that a note names."""
EXPORT_EXAMPLES: Final = """  defserve export server.py --format catalog -o tools.json
  defserve export server.py --format openapi
  defserve export server.py --format mgp --env API_KEY >> mgp.toml
  defserve export -m shop --format schemas
  defserve export server.py --format anthropic        the tools as a model sees them; also openai, openai-chat, gemini
"""


def run_export(argv: list[str]) -> int:
    before, command = split_server_command(argv)
    parser = CommandParser(
        "defserve export", "Write a document about what a server offers, without starting it.", EXPORT_EXAMPLES
    )
    options = parser.parse_options(
        before,
        CommandArgument("target", nargs="*", help=TARGET_HELP),
        CommandArgument("--format", choices=FORMATS, required=True, help="which document"),
        CommandArgument("-o", "--output", metavar="FILE", help="write to this file instead of standard output"),
        CommandArgument("--author", default="", help="catalog: the author of tools that name none"),
        CommandArgument(
            "--env",
            action="append",
            default=[],
            metavar="NAME",
            help="mgp: a variable that the server needs; repeatable",
        ),
        *CONNECTION_OPTIONS,
    )
    words: list[str] = options.target
    start = ["defserve", "run", *(["-m", options.module] if options.module else words[:1])]
    with redirect_stdout_to_stderr(), ProgressDisplay(LISTING_STEP):
        target = resolve_only_target(words, options.module, command)
        options.start = target.command or start
        options.address = target.address
        listed = load_target_listing(target, options)
        text = FORMATS[options.format](listed, options)
    if options.output is None:
        print(text, end="")
    else:
        with (
            explain_write_errors("name a file that you can write"),
            open(options.output, "w", encoding="utf-8") as file,
        ):
            file.write(text)
    if options.format in VENDOR_SHAPES:
        show_stderr(*_describe_shapes(options.format, listed))
    return 0


def _describe_shapes(vendor: str, listed: ServerListing) -> Iterator[str]:
    """What a vendor's shape of the tools costs, and what is lost in it."""
    shaped = {str(tool.get("name")): shape_tool(vendor, tool) for tool in listed.tools}
    tokens = estimate_json_tokens(shape_tools(vendor, listed.tools))
    yield f"note: {format_count(len(shaped), 'tool')}, about {tokens:,} tokens (characters/4)"
    for member in dict.fromkeys(member for one in shaped.values() for member in one.lost):
        names = [name for name, one in shaped.items() if member in one.lost]
        yield StyledLine(f"note: {VENDOR_SHAPES[vendor].title} is not told {member} of {_format_names(names)}")
    for name, one in shaped.items():
        for problem in one.problems:
            yield StyledLine(("warning:", "warning"), f" {name}: {problem}")


def _format_names(names: list[str]) -> str:
    return ", ".join(names[:MAX_NAMES]) + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _make_shape_format(vendor: str) -> Callable[[ServerListing, Namespace], str]:
    return lambda listed, options: _json(shape_tools(vendor, listed.tools))


FORMATS: Final[dict[str, Callable[[ServerListing, Namespace], str]]] = {
    "catalog": lambda listed, options: _json(catalogue(listed.info, listed.tools, author=options.author)),
    "openapi": lambda listed, options: _json(build_openapi_document(listed.info, listed.tools)),
    "mgp": lambda listed, options: format_mgp_entry(
        listed.info, listed.mgp, command=options.start, url=options.address, env=options.env
    ),
    "schemas": lambda listed, options: _json(collect_tool_schemas(listed.tools)),
    **{vendor: _make_shape_format(vendor) for vendor in VENDOR_SHAPES},
}
