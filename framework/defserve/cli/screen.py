"""Where blocks go: drawn at a terminal, plain text everywhere else.

At a terminal with `rich` installed, blocks are coloured and fitted to its width. Everywhere else (a pipe, a dumb
terminal, no `rich`) they are plain text that stays the same, so scripts can read it. `NO_COLOR` turns colours off.
`rich` is imported only when something is drawn (`screen_drawing`). Text of servers cannot move the cursor: it is
escaped.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, TextIO

from defserve.cli.screen_blocks import ScreenBlock, StyledLine, Table, iter_plain_lines

if TYPE_CHECKING:
    from rich.console import Console


HEADING: Final = re.compile(r"[a-z]++(?: [a-z]++)*+ ?:(?= |$)")
SIZE: Final = re.compile("[0-9]{1,4}")
FIX: Final = re.compile(r"( *+)fix:")
# A command in the examples, up to what is said of it.
EXAMPLE: Final = re.compile(r"  defserve (?:\S++ )*+ +(?=\S)")
OPTION: Final = re.compile(r"  -[\w-]*+(?:,? [\w\[\]:…-]++)*+|  [a-z-]++(?=  )")


def show_stdout(*blocks: ScreenBlock) -> None:
    """Print to stdout."""
    _print(sys.stdout, blocks)


def show_each(blocks: Table | Iterable[ScreenBlock]) -> None:
    """Print blocks to stdout as they come. A table is one block."""
    for block in (blocks,) if isinstance(blocks, Table) else blocks:
        show_stdout(block)
        sys.stdout.flush()


def show_stderr(*blocks: ScreenBlock) -> None:
    """Print to stderr, which is for what is not the result."""
    _print(sys.stderr, blocks)


def show_prompt(line: StyledLine) -> None:
    """Print to stderr without a line end: what is typed follows."""
    if can_draw(sys.stderr):
        from rich.text import Text

        make_console(sys.stderr).print(Text.assemble(*line.parts), end="", soft_wrap=True)
    else:
        print(line, end="", file=sys.stderr)
    sys.stderr.flush()


def can_draw(stream: TextIO) -> bool:
    """Whether what goes there is drawn: a terminal that can do it, and `rich`. `FORCE_COLOR` counts as a terminal."""
    if os.environ.get("TERM") == "dumb" or not (os.environ.get("FORCE_COLOR") or stream.isatty()):
        return False
    return find_spec("rich") is not None


def make_console(stream: TextIO, *, width: int | None = None) -> Console:
    """The console that draws to a stream for which `can_draw`. `NO_COLOR` leaves the layout and drops the colours."""
    from rich.console import Console
    from rich.theme import Theme

    from defserve.cli.screen_blocks import STYLES

    colours = None if os.environ.get("NO_COLOR") else "auto"
    return Console(
        file=stream,
        force_terminal=True,
        color_system=colours,
        theme=Theme(STYLES),
        highlight=False,
        markup=False,
        emoji=False,
        width=width or _stand_in("COLUMNS", 80),
        height=_stand_in("LINES", 25),
    )


def _stand_in(variable: str, usual: int) -> int | None:
    """What a size of the terminal is taken for if its variable holds no size; None if it does, or is not set."""
    text = os.environ.get(variable)
    return None if not text or (SIZE.fullmatch(text) and int(text)) else usual


def format_problem(kind: str, text: str) -> list[StyledLine]:
    """`error: what happened` with its `fix:` line. Only the two words are styled; the rest is text from anywhere."""
    first, *rest = text.splitlines() or [""]
    made = [StyledLine((f"{kind}:", "warning" if kind in ("warning", "note") else "error"), f" {first.expandtabs(4)}")]
    lines = [line.expandtabs(4) for line in rest]
    # Several problems stand below each other. What has indents of its own, such as a traceback, is left as it is.
    has_indents = any(line.startswith(" ") for line in lines if not FIX.match(line))
    below = "" if has_indents else " " * len(f"{kind}: ")
    for line in lines:
        fix = FIX.match(line)
        made.append(StyledLine(fix[1], ("fix:", "fix"), line[fix.end() :]) if fix else StyledLine(below, line))
    return made


def format_help(text: str) -> Iterator[StyledLine]:
    """The text of `--help`: headings and options are styled."""
    for line in text.splitlines():
        if heading := HEADING.match(line):
            yield StyledLine((heading[0], "heading"), line[heading.end() :])
        elif option := OPTION.match(line):
            after = line[option.end() :]
            yield StyledLine((option[0], "option"), after, hang=len(line) - len(after.lstrip()) - 2)
        elif example := EXAMPLE.match(line):
            yield StyledLine(line, hang=example.end() - 2)
        else:
            yield StyledLine(line, hang=0)


def _print(stream: TextIO, blocks: tuple[ScreenBlock, ...]) -> None:
    if can_draw(stream):
        from defserve.cli.screen_drawing import draw_blocks

        draw_blocks(make_console(stream), blocks)
        return
    for block in blocks:
        for line in iter_plain_lines(block):
            print(line, file=stream)
