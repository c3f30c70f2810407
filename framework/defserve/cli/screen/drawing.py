"""Blocks drawn by `rich`, fitted to the width of the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, Group
from rich.highlighter import JSONHighlighter
from rich.table import Table as RichTable
from rich.text import Text

from defserve.cli.screen.blocks import Block, Data, Diff, Line, Part, Table, Written, lines
from defserve.redaction import printable

DIFF_STYLES = {"+": "added", "-": "removed", "@": "faint"}
MARKDOWN, JSON = "text/markdown", "application/json"


def draw(screen: Console, blocks: Iterable[Block]) -> None:
    for block in blocks:
        if isinstance(block, Table):
            screen.print(grid(block))
        elif isinstance(block, Data):
            # Soft: a long line that is copied stays one line.
            screen.print(_json(next(iter(block))), soft_wrap=True)
        elif isinstance(block, Diff):
            for line in lines(block):
                screen.print(Text(printable(line), DIFF_STYLES.get(line[:1], "")), soft_wrap=True)
        elif isinstance(block, Written):
            _draw_written(screen, block)
        else:
            for line in [block] if isinstance(block, Line) else block.split("\n"):
                _draw_line(screen, line)


def rendered(blocks: Iterable[Block]) -> Group:
    """Blocks for a part of the screen that is drawn again and again: each line is cut, none is wrapped."""
    drawn: list[Text | RichTable] = []
    for block in blocks:
        if isinstance(block, Table):
            drawn.append(grid(block))
        elif isinstance(block, Line):
            drawn.append(styled(block.parts))
        else:
            drawn += [Text(line) for line in lines(block)]
    return Group(*drawn)


def grid(block: Table) -> RichTable:
    """A table without lines, in which the columns that `fit` names give way first."""
    drawn = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="heading", show_edge=False)
    for name in block.head:
        drawn.add_column(
            name,
            justify="right" if name in block.right else "left",
            no_wrap=name not in block.fit,
            overflow="fold" if name in block.fit else "ellipsis",
        )
    for row in block.rows:
        drawn.add_row(*(Text(text, style) for text, style in row))
    return drawn


def styled(parts: Iterable[Part]) -> Text:
    return Text.assemble(*parts)


def _draw_line(screen: Console, line: str) -> None:
    """A line, and what does not fit into it below, indented."""
    text = styled(line.parts) if isinstance(line, Line) else Text(line)
    if text.cell_len <= screen.width:
        screen.print(text, soft_wrap=True)
        return
    indent = len(line) - len(line.lstrip(" "))
    hang = line.hang if isinstance(line, Line) else 0
    width = max(screen.width - indent - hang, 20)
    for number, row in enumerate(text[indent:].wrap(screen, width, overflow="fold")):
        row.rstrip()
        screen.print(Text(" " * (indent + (hang if number else 0))) + row, soft_wrap=True)


def _draw_written(screen: Console, block: Written) -> None:
    # Tabs and line ends are layout; nothing else that is not printable reaches the terminal.
    safe = "\n".join(map(printable, block.text.expandtabs(4).splitlines()))
    if block.kind.startswith(MARKDOWN):
        from rich.markdown import Markdown

        # Links are shown with their address, because a text can name any other.
        screen.print(Markdown(safe, hyperlinks=False))
    elif block.kind.startswith(JSON):
        screen.print(_json(safe), soft_wrap=True)
    else:
        screen.print(Text(safe), soft_wrap=True)


def _json(text: str) -> Text:
    return JSONHighlighter()("\n".join(map(printable, text.split("\n"))))
