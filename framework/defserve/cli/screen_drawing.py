"""Blocks drawn by `rich`, fitted to the width of the terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.highlighter import JSONHighlighter
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from defserve.base.redaction import escape_unprintable
from defserve.cli.screen_blocks import (
    DiffBlock,
    DocumentBlock,
    JsonBlock,
    RecordsBlock,
    ScreenBlock,
    StyledLine,
    Table,
    format_count,
    is_tabular,
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
            for piece in split_table(block, screen.width):
                screen.print(piece)
        elif isinstance(block, RecordsBlock):
            _draw_records(screen, block.value)
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


def render_blocks(blocks: Iterable[ScreenBlock], screen: Console) -> Group:
    """Blocks for a part of the screen that is drawn again and again."""
    drawn: list[RenderableType] = []
    for block in blocks:
        if isinstance(block, Table):
            drawn += split_table(block, screen.width)
        elif isinstance(block, StyledLine):
            drawn += _wrap_line(screen, block)
        else:
            drawn += [Text(line) for line in iter_plain_lines(block)]
    return Group(*drawn)


def split_table(block: Table, width: int) -> list[RenderableType]:
    """A table without lines. If little room is left for its last column, that stands below each row instead.

    Each row is a list if even less is left for another column that gives way: `rich` would not draw that at all.
    """
    texts = ([text for text, _ in row] for row in block.rows)
    widths = [max(map(cell_len, column)) for column in zip(block.head, *texts, strict=True)]
    room = width - sum(widths[:-1]) - GAP * len(widths[:-1])
    is_whole = block.head[-1] not in block.fit or widths[-1] <= room or room >= NARROW
    kept = block if is_whole else Table(block.head[:-1], (), fit=block.fit, right=block.right)
    if not _can_give_way(kept, widths, width):
        heads = [Text(name) for name in block.head]
        return _rows_as_lists(heads, [[Text(text, style) for text, style in row] for row in block.rows], width)
    if is_whole:
        return [_grid(block, block.rows)]
    drawn: list[RenderableType] = [_grid(kept, (), widths)]
    for *row, (note, style) in block.rows:
        drawn.append(_grid(kept, (row,), widths, head=False))
        if note:
            drawn.append(Padding(Text(note, style or "about"), (0, 0, 0, INDENT)))
    return drawn


def _can_give_way(block: Table, widths: Sequence[int], width: int) -> bool:
    """Whether the columns that `fit` names stay wide enough to be read."""
    columns = zip(block.head, widths[: len(block.head)], strict=True)
    needed = sum(min(natural, MIN_TEXT_WIDTH) if name in block.fit else natural for name, natural in columns)
    return block.fit.isdisjoint(block.head) or needed + GAP * (len(block.head) - 1) <= width


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
    for row in _wrap_line(screen, line):
        screen.print(row, soft_wrap=True)


def _wrap_line(screen: Console, line: str) -> list[Text]:
    """A line, and what does not fit into it below, indented."""
    text = Text.assemble(*line.parts) if isinstance(line, StyledLine) else Text(line)
    hang = line.hang if isinstance(line, StyledLine) else 0
    if text.cell_len <= screen.width or hang is None:
        return [text]
    indent = len(line) - len(line.lstrip(" "))
    first, *more = text[indent:].wrap(screen, max(screen.width - indent, MIN_TEXT_WIDTH), overflow="fold")
    rows = [first]
    if more:
        rest = text[indent + len(first) :]
        rest = rest[len(rest) - len(rest.plain.lstrip(" ")) :]
        rows += rest.wrap(screen, max(screen.width - indent - hang, MIN_TEXT_WIDTH), overflow="fold")
    for row in rows:
        row.rstrip()
    return [Text(" " * (indent + (hang if number else 0))) + row for number, row in enumerate(rows)]


def _draw_written(screen: Console, block: DocumentBlock) -> None:
    # Tabs and line ends are layout; nothing else that is not printable reaches the terminal.
    safe = "\n".join(map(escape_unprintable, block.text.expandtabs(4).splitlines()))
    if block.kind.startswith(MARKDOWN):
        _draw_markdown(screen, safe)
    elif not block.kind.startswith(JSON):
        screen.print(Text(safe), soft_wrap=True)
    elif is_tabular(value := _parse_short_json(block.text)):
        _draw_records(screen, value)
    else:
        screen.print(_json(safe), soft_wrap=True)


def _parse_short_json(text: str) -> Any:
    """None for what is no JSON, or too long to be a table."""
    try:
        return json.loads(text) if len(text) <= MAX_TABLE_TEXT_LENGTH else None
    except (ValueError, RecursionError):
        return None


def _json(text: str) -> Text:
    return JSONHighlighter()("\n".join(map(escape_unprintable, text.split("\n"))))


# -- Lists of objects, as tables: columns are narrowed to fit, and where that is not enough, each row is a list.


MAX_ROWS: Final = 200
MAX_TABLE_TEXT_LENGTH: Final = 1_000_000
MAX_CELL_WIDTH: Final = 60
MIN_CELL_WIDTH: Final = 8
CUT: Final = "…"


def _draw_records(screen: Console, rows: list[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    shown = rows[:MAX_ROWS]
    cells = [[_make_cell(row[name]) if name in row else Text("") for name in names] for row in shown]
    heads = [Text(escape_unprintable(name), "heading") for name in names]
    natural = [max(head.cell_len, *(row[at].cell_len for row in cells)) for at, head in enumerate(heads)]
    widths = fit_columns(natural, screen.width)
    notes: list[str] = []
    if widths is None:
        for piece in _rows_as_lists(heads, cells, screen.width):
            screen.print(piece)
    else:
        drawn = RichTable(box=None, pad_edge=False, padding=(0, GAP, 0, 0), show_edge=False)
        for at, (head, width) in enumerate(zip(heads, widths, strict=True)):
            is_number = all(_is_number(row.get(names[at])) for row in shown)
            drawn.add_column(
                head, width=width, justify="right" if is_number else "left", no_wrap=True, overflow="ellipsis"
            )
        for row in cells:
            drawn.add_row(*row)
        screen.print(drawn)
        notes += ["cells that end in … are cut"] if any(map(int.__gt__, natural, widths)) else []
    if len(rows) > MAX_ROWS:
        notes.append(f"{format_count(len(rows) - MAX_ROWS, 'row')} more")
    if notes:
        screen.print(Text(f"{'; '.join(notes)}: --json prints all", "faint"), soft_wrap=True)


def _rows_as_lists(heads: list[Text], cells: list[list[Text]], width: int) -> list[RenderableType]:
    """Each row as lines of name and value, for a terminal that is too narrow for columns."""
    indent = min(max(head.cell_len for head in heads) + GAP, width // 2)
    drawn: list[RenderableType] = []
    for row in cells:
        grid = RichTable.grid(padding=(0, GAP, 0, 0))
        grid.add_column(width=indent - GAP, no_wrap=True, overflow="ellipsis")
        grid.add_column(overflow="fold")
        for head, cell in zip(heads, row, strict=True):
            grid.add_row(Text(head.plain, "faint"), cell)
        drawn += [Text(), grid] if drawn else [grid]
    return drawn


def fit_columns(natural: Sequence[int], room: int) -> list[int] | None:
    """How wide columns are so that they fit into the room: the widest give way first. None if they cannot fit."""
    widths = [min(width, MAX_CELL_WIDTH) for width in natural]
    room -= GAP * (len(widths) - 1)
    while sum(widths) > room:
        widest = max(widths)
        if widest <= MIN_CELL_WIDTH:
            return None
        widths[widths.index(widest)] = widest - 1
    return widths


def _make_cell(value: Any) -> Text:
    """A text as it is; other values as JSON writes them."""
    if isinstance(value, str):
        return Text(escape_unprintable(value))
    kind = {True: "json.bool_true", False: "json.bool_false", None: "json.null"}
    style = kind[value] if value is None or isinstance(value, bool) else "json.number" if _is_number(value) else ""
    return Text(escape_unprintable(json.dumps(value, ensure_ascii=False)), style)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# -- Markdown, by rich, without its boxes: headings stand at the left, and code has no colours of its own.


def _draw_markdown(screen: Console, text: str) -> None:
    from rich.markdown import CodeBlock, Heading, Markdown

    class LeftHeading(Heading):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            yield self.text

    class PlainCode(CodeBlock):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            yield Padding(Text(str(self.text).rstrip(), "markdown.code_block"), (0, 0, 0, INDENT))

    class TerminalMarkdown(Markdown):
        elements: ClassVar = {
            **Markdown.elements,
            "heading_open": LeftHeading,
            "fence": PlainCode,
            "code_block": PlainCode,
        }

    # Links are shown with their address, because a text can name any other.
    screen.print(TerminalMarkdown(text, hyperlinks=False, justify="left"))
