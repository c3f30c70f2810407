"""Where blocks go: drawn at a terminal, plain text everywhere else.

At a terminal with `rich` installed, blocks are coloured and fitted to its width. Everywhere else (a pipe, a dumb
terminal, no `rich`) they are plain text that stays the same, so scripts can read it. `NO_COLOR` turns colours off.
`rich` is imported only when something is drawn (`screen_drawing`). Text of servers cannot move the cursor: it is
escaped. Below: progress while something runs, and what a server shows when it starts.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from threading import Lock, Timer
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TextIO

from defserve.cli.screen_blocks import ScreenBlock, StyledLine, Table, iter_plain_lines
from defserve.core.json_values import is_object

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn


HEADING: Final = re.compile(r"[a-z]++(?: [a-z]++)*+ ?:(?= |$)")
SIZE: Final = re.compile("[0-9]{1,4}")
FIX: Final = re.compile(r"( *+)fix:")
# A command in the examples, up to what is said of it.
EXAMPLE: Final = re.compile(r"  defserve (?:\S++ )*+ +(?=\S)")
OPTION: Final = re.compile(r"  -[\w-]*+(?:,? [\w\[\]:…-]++)*+|  [a-z-]++(?=  )")


def show_stdout(*blocks: ScreenBlock) -> None:
    """Print to stdout."""
    _print(sys.stdout, blocks)


def show_block_stream(blocks: Table | Iterable[ScreenBlock]) -> None:
    """Print blocks to stdout as they come. A table is one block."""
    for block in (blocks,) if isinstance(blocks, Table) else blocks:
        show_stdout(block)
        sys.stdout.flush()


def show_stderr(*blocks: ScreenBlock) -> None:
    """Print to stderr, which is for what is not the result."""
    _print(sys.stderr, blocks)


def show_input_prompt(line: StyledLine) -> None:
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


# -- Work under way, drawn on stderr while it lasts: a spinner, or a bar if it is known how much there is.


PATIENCE_SECONDS: Final = 0.3
"""What is done sooner is not drawn: it would only flicker."""
PLAIN_SECONDS: Final = 1.0
"""Lines of progress in a pipe or a file are at least so far apart, except the last."""
LISTING_STEP: Final = "Asking the server what it offers"
LEVELS: Final = {
    "debug": "faint",
    "notice": "good",
    "warning": "warning",
    **dict.fromkeys(("error", "critical", "alert", "emergency"), "error"),
}


class ProgressDisplay:
    """`with ProgressDisplay("Calling add") as work`: drawn until the block ends, then gone. Only at a terminal."""

    def __init__(self, what: str) -> None:
        self._what, self._lock = what, Lock()
        self._bar: Progress | None = None
        self._task: Any = None
        self._ended = self._paused = False
        self._timer: Timer | None = None
        self._next_line = 0.0
        self._held: StyledLine | None = None
        self.is_drawn = can_draw(sys.stderr)

    def __enter__(self) -> ProgressDisplay:
        if self.is_drawn:
            self._timer = Timer(PATIENCE_SECONDS, self._begin)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._ended = True
            if self._bar is not None:
                self._bar.stop()
        if self._held is not None:
            show_stderr(self._held)

    def show_step(self, what: str) -> None:
        """Say what is being done now."""
        self._what = what
        if self._bar is not None:
            self._bar.update(self._task, description=StyledLine(what))

    def show_progress(self, value: float, total: float | None = None, message: str | None = None) -> None:
        """How far it has come; for `on_progress` of a client."""
        if not self.is_drawn:
            self._progress_line(value, total, message)
            return
        self._begin()
        if self._bar is not None:
            self._bar.columns = _columns(with_bar=total is not None)
            self._bar.update(self._task, completed=value, total=total, description=StyledLine(message or self._what))

    def show_log(self, params: dict[str, Any]) -> None:
        """A log message, above what is drawn; for `on_log` of a client."""
        level, data = str(params.get("level", "info")), params.get("data")
        rest = dict(data) if is_object(data) else {"message": data}
        message = rest.pop("message", "")
        told = "".join(f" {name}={value}" for name, value in rest.items())
        line = StyledLine((f"{level:7}", LEVELS.get(level, "name")), f" {message}", (told, "faint"), hang=8)
        if not self.is_drawn:
            show_stderr(line)
            return
        from defserve.cli.screen_drawing import draw_blocks

        with self._lock:
            draw_blocks(self._bar.console if self._bar is not None else make_console(sys.stderr), [line])

    @contextmanager
    def pause_drawing(self) -> Generator[None]:
        """Nothing is drawn while the block runs: somebody is asked a question."""
        with self._lock:
            self._paused = True
            if self._bar is not None:
                self._bar.stop()
        try:
            yield
        finally:
            with self._lock:
                self._paused = False
                if self._bar is not None and not self._ended:
                    self._bar.start()

    def _progress_line(self, value: float, total: float | None, message: str | None) -> None:
        now = monotonic()
        far = f"{value:g}" if total is None else f"{value:g} of {total:g}"
        self._held = StyledLine(f"{message or self._what}: {far}")
        if now >= self._next_line and not self._paused:
            self._next_line = now + PLAIN_SECONDS
            show_stderr(self._held)
            self._held = None

    def _begin(self) -> None:
        if not self.is_drawn:
            return
        with self._lock:
            if self._bar is not None or self._ended or self._paused:
                return
            from rich.progress import Progress

            self._bar = Progress(*_columns(with_bar=False), console=make_console(sys.stderr), transient=True)
            self._task = self._bar.add_task(StyledLine(self._what), total=None)
            self._bar.start()


def _columns(*, with_bar: bool) -> tuple[ProgressColumn, ...]:
    """A spinner, what is done, and how long it took so far; a bar only if it is known how much there is."""
    from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

    bar = (BarColumn(bar_width=30), TaskProgressColumn()) if with_bar else ()
    return SpinnerColumn(), TextColumn("{task.description}", markup=False), *bar, TimeElapsedColumn()


# -- What a server shows at a terminal when it begins to serve: who it is, what it costs, where it is. The same for all.


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
    from defserve.tooling.listing import estimate_definition_tokens, server_listing

    try:
        listed = server_listing(server.composition)
    except PeerError:  # it refuses to list for a stranger
        listed = None
    tokens = sum(map(estimate_definition_tokens, listed.tools)) if listed is not None else 0
    facts = [format_tool_count(len(listed.tools), tokens)] if listed is not None else []
    version = str(listed.info.get("version") or "") if listed is not None else ""
    yield from format_start_banner(server.name, version, "Ctrl-C stops it", [*facts, format_fact("address", address)])


def format_start_banner(name: str, version: str, note: str, facts: Iterable[StyledLine]) -> Iterator[StyledLine]:
    """The name with a note beside it, and facts below."""
    yield StyledLine()
    yield StyledLine("  ", (name, "title"), f" {version}" if version else "", (f"  {note}", "faint"))
    yield StyledLine()
    yield from facts
    yield StyledLine()


def format_tool_count(number: int, tokens: int) -> StyledLine:
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
