"""`defserve diff`: what changed between two servers, and what of it breaks clients."""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from defserve.base.redaction import escape_unprintable
from defserve.cli.content import TOKEN_COST_NOTES
from defserve.cli.exits import EXIT_FAILURE, EXIT_OK
from defserve.cli.parser import CommandArgument, CommandParser, make_flag
from defserve.cli.screen import LISTING_STEP, ProgressDisplay, show_stderr, show_stdout
from defserve.cli.screen_blocks import JsonBlock, ScreenBlock, StyledLine, StyledText, format_count
from defserve.cli.target import (
    ServerTarget,
    find_project_target,
    redirect_stdout_to_stderr,
    resolve_only_target,
    split_server_command,
)
from defserve.cli.target_connection import CONNECTION_OPTIONS, load_target_listing
from defserve.client.targets import is_code_target, is_file_target, is_server_address
from defserve.errors import UsageError
from defserve.tooling.listing import MAX_SNAPSHOT_BYTES, ServerListing, parse_snapshot
from defserve.tooling.server_diff import DIFF_LEVELS, DIFF_RULES, DiffLevel, ServerChange, ServerDiff, compare_servers

ABOUT: Final = """Compare two servers: what was added, removed and changed, what breaks clients, and what it costs.

Exits with 0. With --fail-on it exits with 1 if there is such a change."""
EXAMPLES: Final = """  defserve diff old.json server.py                    old.json: defserve inspect server.py --json
  defserve diff https://example.com/mcp server.py     what runs there, and what would replace it
  defserve diff ../released/server.py server.py
  defserve diff old.json -- npx some-mcp-server       the new one is the command
  defserve diff old.json server.py --fail-on breaking
  defserve diff old.json server.py --format markdown  for a pull request
  defserve diff --rules
"""
SIDE_HELP: Final = (
    "OLD and NEW: server.py, server.py:name, module:name, the name of a server, an address, a kernel's mgp.toml, or a"
    " .json that `defserve inspect --json` wrote. NEW may be `-- command args`, or nothing in a project with one server"
)
FORMATS: Final = ("text", "markdown", "json")
FAIL_ON: Final[dict[str, DiffLevel]] = {"breaking": "breaking", "risky": "risky", "any": "compatible"}
"""A value of --fail-on → the mildest level that it fails for."""

LEVEL_STYLES: Final[dict[DiffLevel, tuple[str, str]]] = {
    "breaking": ("breaks", "bad"),
    "risky": ("risky", "warning"),
    "compatible": ("fine", "good"),
}
"""The word for a level, and its style."""


def run_diff(argv: list[str]) -> int:
    before, command = split_server_command(argv)
    options = CommandParser("defserve diff", ABOUT, EXAMPLES).parse_options(
        before,
        CommandArgument("targets", nargs="*", metavar="TARGET", help=SIDE_HELP),
        CommandArgument(
            "--fail-on", choices=FAIL_ON, help="exit with 1 for changes that break clients, that are risky, or for any"
        ),
        CommandArgument("--format", choices=FORMATS, default="text", help="how it is printed (default: text)"),
        make_flag("--json", help="the same as --format json"),
        make_flag("--rules", help="show the rules, and why each matters"),
        *(option for option in CONNECTION_OPTIONS if "-m" not in option.names),
    )
    if options.rules:
        rules = {name: rule._asdict() for name, rule in DIFF_RULES.items()}
        show_stdout(*([JsonBlock(rules)] if options.json else rules_page()))
        return EXIT_OK
    old, new = _name_sides(options.targets, command)
    with redirect_stdout_to_stderr(), ProgressDisplay(LISTING_STEP):
        listings = _list_side(old, None, options, alone=True), _list_side(new, command, options)
    found = compare_servers(*listings)
    show_stdout(*PAGES["json" if options.json else options.format](found))
    show_stderr(*(f"note: {note}" for listing in listings for note in listing.notes))
    return EXIT_FAILURE if options.fail_on and found.is_at_least(FAIL_ON[options.fail_on]) else EXIT_OK


def _name_sides(words: Sequence[str], command: list[str] | None) -> tuple[str, str | None]:
    """The words of both sides. None for the second, if it is a command or the server of the project."""
    if not words:
        raise UsageError("no server is given", fix="name both: defserve diff old.json server.py")
    if len(words) > (2 if command is None else 1):
        raise UsageError(
            f"two servers at a time; {words[-1]!r} is unexpected", fix="name the old one, then the new one"
        )
    if len(words) == 1 and command is None and find_project_target() is None:
        raise UsageError(
            "only the old server is given", fix=f"name the new one too: defserve diff {words[0]} server.py"
        )
    return words[0], words[1] if len(words) == 2 else None


def _list_side(
    word: str | None, command: list[str] | None, options: Namespace, *, alone: bool = False
) -> ServerListing:
    """What one side lists. With `alone`, code is loaded in another process: two versions of a module do not mix."""
    if word is not None and word.endswith(".json"):
        return _read_snapshot(word)
    if word is not None and alone and _is_code(word):
        return _list_in_child(word, options)
    target: ServerTarget = resolve_only_target([word] if word is not None else [], None, command)
    return load_target_listing(target, options)


def _is_code(word: str) -> bool:
    return not is_server_address(word) and (is_file_target(word) or is_code_target(word)) and not word.endswith(".toml")


def _read_snapshot(path: str) -> ServerListing:
    try:
        with open(path, "rb") as file:
            return parse_snapshot(file.read(MAX_SNAPSHOT_BYTES + 1), path)
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", fix="name a file that `defserve inspect --json` wrote"
        ) from None


def _list_in_child(word: str, options: Namespace) -> ServerListing:
    """What the server of a file or module lists, from a process of its own."""
    era = ["--era", options.era] if options.era else []
    line = [sys.executable, "-m", "defserve", "inspect", word, "--json", *era]
    try:
        made = subprocess.run(
            line, capture_output=True, timeout=options.timeout, check=False, env={**os.environ, "NO_COLOR": "1"}
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"{word} was not listed in {options.timeout:g} s", fix="--timeout waits longer") from None
    if made.returncode:
        problem, _, fix = made.stderr.decode(errors="replace").rpartition("error: ")[2].strip().partition("\n  fix: ")
        raise UsageError(problem or f"{word} cannot be listed", fix=fix or f"defserve inspect {word} says more")
    return parse_snapshot(made.stdout, word)


# -- For a terminal: item by item, the worst first.


def iter_diff_lines(found: ServerDiff) -> Iterator[StyledLine]:
    yield StyledLine((_format_sides(found), "heading"))
    yield StyledLine((_format_cost(found), "faint"))
    told: set[str] = set()
    for (kind, name), changes in _group_by_item(found.changes):
        yield StyledLine()
        yield StyledLine((name, "title"), (f"  {kind}{_format_item_cost(found, kind, name)}", "faint"), hang=4)
        for change in changes:
            word, style = LEVEL_STYLES[change.level]
            # Why a rule matters is said where it is met first.
            why: StyledText = (f"  {change.reason}", "faint") if change.reason and change.rule not in told else ""
            told.add(change.rule)
            yield StyledLine("  ", (f"{word:6}", style), f"  {change.describe()}", why, hang=8)
    yield StyledLine()
    counts = found.counts
    style = "bad" if counts["breaking"] else "warning" if counts["risky"] else "good"
    yield StyledLine((_format_verdict(found), style))
    if found.left_out:
        yield StyledLine((f"{format_count(found.left_out, 'more change')}, not shown", "faint"))


def rules_page() -> Iterator[StyledLine]:
    for level in DIFF_LEVELS:
        for name, rule in DIFF_RULES.items():
            if rule.level == level:
                text = rule.text.format(where="NAME", before="OLD", after="NEW")
                word, style = LEVEL_STYLES[level]
                yield StyledLine(
                    (f"{name:24}", "title"), (f" {word:6}", style), f"  {text}. ", (rule.reason, "faint"), hang=33
                )


def _group_by_item(changes: Sequence[ServerChange]) -> list[tuple[tuple[str, str], list[ServerChange]]]:
    """The changes of each item together, items with the worst change first."""

    def item(change: ServerChange) -> tuple[str, str]:
        return change.kind, change.name

    places = {key: place for place, key in reversed(list(enumerate(map(item, changes))))}
    ordered = sorted(changes, key=lambda change: places[item(change)])
    return [(key, list(group)) for key, group in groupby(ordered, key=item)]


def _format_sides(found: ServerDiff) -> str:
    was, now = (" ".join(filter(None, (side.name or "unnamed server", side.version))) for side in found[:2])
    return was if was == now else f"{was} → {now}"


def _format_cost(found: ServerDiff) -> str:
    was, now = found.before, found.after
    tools = _format_change(len(was.costs), len(now.costs))
    by = now.tokens - was.tokens
    step = f" ({by:+,})" if by else ""
    tokens = f"about {_format_change(was.tokens, now.tokens)} tokens{step}"
    return f"tools {tools}; {tokens} {TOKEN_COST_NOTES[now.is_searched]}"


def _format_item_cost(found: ServerDiff, kind: str, name: str) -> str:
    was, now = found.before.costs.get(name, 0), found.after.costs.get(name, 0)
    if kind != "tool" or was == now:
        return ""
    return f", ~{was:,} → ~{now:,} tokens" if was and now else f", ~{was or now:,} tokens"


def _format_change(was: int, now: int) -> str:
    return f"{was:,}" if was == now else f"{was:,} → {now:,}"


def _format_verdict(found: ServerDiff) -> str:
    breaking, risky, compatible = found.counts.values()
    if not found.changes:
        return "nothing changed"
    begin = (
        f"{format_count(breaking, 'change')} {'breaks' if breaking == 1 else 'break'} clients"
        if breaking
        else "nothing breaks clients"
    )
    rest = [f"{risky} risky" if risky else "", f"{compatible} compatible" if compatible else ""]
    return ", ".join(filter(None, (begin, *rest)))


# -- As Markdown, for a pull request. What servers wrote stands in code, so that it names nobody and links nowhere.


def markdown_page(found: ServerDiff) -> Iterator[str]:
    yield f"### {_format_code(_format_sides(found))}"
    yield ""
    verdict = _format_verdict(found)
    yield f"**{verdict[0].upper()}{verdict[1:]}.** {_format_cost(found).capitalize()}."
    if found.changes:
        yield ""
        yield "| | what | change | why it matters |"
        yield "|---|---|---|---|"
    for change in found.changes:
        level = f"**{change.level}**" if change.level == "breaking" else change.level
        what = f"{change.kind} {_format_code(change.name)}"
        yield f"| {level} | {what} | {change.describe(_format_code)} | {change.reason} |"
    if found.left_out:
        yield ""
        yield f"{format_count(found.left_out, 'more change')}, not shown."


STAND_INS: Final = str.maketrans({"`": "'", "|": "¦"})


def _format_code(text: str) -> str:
    """A text as code in a table cell. Backticks and bars cannot end either."""
    return f"`{escape_unprintable(text).translate(STAND_INS)}`"


def json_page(found: ServerDiff) -> Iterator[ScreenBlock]:
    yield JsonBlock(found.to_wire())


PAGES: Final = {"text": iter_diff_lines, "markdown": markdown_page, "json": json_page}
