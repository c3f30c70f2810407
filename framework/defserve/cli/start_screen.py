"""What a server shows at a terminal when it begins to serve: who it is, what it costs, where it is. The same for all.

Elsewhere the line that scripts wait for is printed instead: `serving on ADDRESS`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

from defserve.cli.screen import show_stderr
from defserve.cli.screen_blocks import StyledLine

LABEL_WIDTH: Final = 11


def show_start_at_terminal(server: Any) -> None:
    """When the server serves at an address, a person at the terminal sees its start; a log gets the usual line."""

    def show_address(address: str) -> None:
        show_stderr(*format_server_start(server, address))

    def show_note(line: str) -> None:
        show_stderr(format_note(line))

    if sys.stderr.isatty() and hasattr(server, "show_address"):
        server.show_address, server.show_note = show_address, show_note


def format_server_start(server: Any, address: str) -> Iterator[StyledLine]:
    """The start of a server of this process."""
    from defserve.errors import PeerError
    from defserve.tooling.lint.definitions import count_definition_tokens
    from defserve.tooling.listing import server_listing

    try:
        listed = server_listing(server.composition)
    except PeerError:  # it refuses to list for a stranger
        listed = None
    tokens = sum(map(count_definition_tokens, listed.tools)) if listed is not None else 0
    facts = [format_tools(len(listed.tools), tokens)] if listed is not None else []
    version = str(listed.info.get("version") or "") if listed is not None else ""
    yield from format_start(server.name, version, "Ctrl-C ends it", [*facts, format_fact("address", address)])


def format_start(name: str, version: str, note: str, facts: Iterable[StyledLine]) -> Iterator[StyledLine]:
    """The name with a note beside it, and facts below."""
    yield StyledLine()
    yield StyledLine("  ", (name, "title"), f" {version}" if version else "", (f"  {note}", "faint"))
    yield StyledLine()
    yield from facts
    yield StyledLine()


def format_tools(number: int, tokens: int) -> StyledLine:
    return format_fact("tools", f"{number:,}", f", about {tokens:,} tokens in every request")


def format_fact(label: str, value: str, note: str = "") -> StyledLine:
    """One fact. It is not wrapped, so that an address can be opened or copied whole."""
    return StyledLine("  ", (f"{label:{LABEL_WIDTH}}", "faint"), (value, "name"), (note, "faint"), hang=None)


def format_note(line: str) -> StyledLine:
    """A line for the operator below the facts: `warning: …`, with lines below it that are indented."""
    text = line.lstrip()
    head, colon, rest = text.partition(":")
    style = "fix" if head == "fix" else "faint" if line != text else "warning"
    return StyledLine(" " * (2 + len(line) - len(text)), (head + colon, style), rest)


def format_time(seconds: float) -> str:
    """`41 ms`, `1.2 s`."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
