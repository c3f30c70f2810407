"""Blocks drawn by `rich`, fitted to the width of the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.highlighter import JSONHighlighter
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from defserve.base.redaction import escape_unprintable
from defserve.cli.screen_blocks import (
    DiffBlock,
    DocumentBlock,
    JsonBlock,
    ScreenBlock,
    StyledLine,
    Table,
    iter_plain_lines,
)

GAP, INDENT = 2, 4
NARROW = 30
"""A last column with less room stands below its row."""
MIN_TEXT_WIDTH = 20
"""Characters in a line, however narrow the terminal is."""
DIFF_STYLES = {"+": "added", "-": "removed", "@": "faint"}
MARKDOWN, JSON = "text/markdown", "application/json"


def draw_blocks(screen: Console, blocks: Iterable[ScreenBlock]) -> None:
    for block in blocks:
        if isinstance(block, Table):
            for piece in pieces(block, screen.width):
                screen.print(piece)
        elif isinstance(block, JsonBlock):
            # Soft: a long line that is copied stays one line.
            screen.print(_json(next(iter(block))), soft_wrap=True)
        elif isinstance(block, DiffBlock):
            for line in iter_plain_lines(block):
                screen.print(Text(escape_unprintable(line), DIFF_STYLES.get(line[:1], "")), soft_wrap=True)
        elif isinstance(block, DocumentBlock):
            _draw_written(screen, block)
        else:
            for line in [block] if isinstance(block, StyledLine) else block.split("\n"):
                _draw_line(screen, line)


def render_blocks(blocks: Iterable[ScreenBlock], width: int) -> Group:
    """Blocks for a part of the screen that is drawn again and again."""
    drawn: list[RenderableType] = []
    for block in blocks:
        if isinstance(block, Table):
            drawn += pieces(block, width)
        elif isinstance(block, StyledLine):
            drawn.append(Text.assemble(*block.parts))
        else:
            drawn += [Text(line) for line in iter_plain_lines(block)]
    return Group(*drawn)


def pieces(block: Table, width: int) -> list[RenderableType]:
    """A table without lines. If little room is left for its last column, that stands below each row instead."""
    texts = ([text for text, _ in row] for row in block.rows)
    widths = [max(map(cell_len, column)) for column in zip(block.head, *texts, strict=True)]
    room = width - sum(widths[:-1]) - GAP * len(widths[:-1])
    if block.head[-1] not in block.fit or widths[-1] <= room or room >= NARROW:
        return [_grid(block, block.rows)]
    kept = Table(block.head[:-1], (), fit=block.fit, right=block.right)
    drawn: list[RenderableType] = [_grid(kept, (), widths)]
    for *row, (note, style) in block.rows:
        drawn.append(_grid(kept, (row,), widths, head=False))
        if note:
            drawn.append(Padding(Text(note, style or "about"), (0, 0, 0, INDENT)))
    return drawn


def _grid(
    block: Table, rows: Iterable[Iterable[tuple[str, str]]], widths: Sequence[int] = (), *, head: bool = True
) -> RichTable:
    """The columns that `fit` names give way first. With `widths`, columns are at least so wide."""
    drawn = RichTable(
        box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="heading", show_edge=False, show_header=head
    )
    for number, name in enumerate(block.head):
        drawn.add_column(
            name,
            justify="right" if name in block.right else "left",
            no_wrap=name not in block.fit,
            overflow="fold" if name in block.fit else "ellipsis",
            min_width=widths[number] if widths else None,
        )
    for row in rows:
        drawn.add_row(*(Text(text, style) for text, style in row))
    return drawn


def _draw_line(screen: Console, line: str) -> None:
    """A line, and what does not fit into it below, indented."""
    text = Text.assemble(*line.parts) if isinstance(line, StyledLine) else Text(line)
    hang = line.hang if isinstance(line, StyledLine) else 0
    if text.cell_len <= screen.width or hang is None:
        screen.print(text, soft_wrap=True)
        return
    indent = len(line) - len(line.lstrip(" "))
    first, *more = text[indent:].wrap(screen, max(screen.width - indent, MIN_TEXT_WIDTH), overflow="fold")
    rows = [first]
    if more:
        rest = text[indent + len(first) :]
        rest = rest[len(rest) - len(rest.plain.lstrip(" ")) :]
        rows += rest.wrap(screen, max(screen.width - indent - hang, MIN_TEXT_WIDTH), overflow="fold")
    for number, row in enumerate(rows):
        row.rstrip()
        screen.print(Text(" " * (indent + (hang if number else 0))) + row, soft_wrap=True)


def _draw_written(screen: Console, block: DocumentBlock) -> None:
    # Tabs and line ends are layout; nothing else that is not printable reaches the terminal.
    safe = "\n".join(map(escape_unprintable, block.text.expandtabs(4).splitlines()))
    if block.kind.startswith(MARKDOWN):
        from rich.markdown import Markdown

        # Links are shown with their address, because a text can name any other.
        screen.print(Markdown(safe, hyperlinks=False, justify="left"))
    else:
        screen.print(_json(safe) if block.kind.startswith(JSON) else Text(safe), soft_wrap=True)


def _json(text: str) -> Text:
    return JSONHighlighter()("\n".join(map(escape_unprintable, text.split("\n"))))
