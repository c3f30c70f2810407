"""What a command gives to be printed: lines, tables, data, diffs, with the styles of their parts, and counts in words.

Every block knows its plain text; how it is drawn is the job of `screen_drawing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias, cast
from unicodedata import combining, east_asian_width

from defserve.base.redaction import escape_unprintable, escape_unprintable_json, escape_unprintable_lines
from defserve.core.json_values import is_array, is_object

MAX_COLUMNS: Final = 12
"""Columns of a table. An object with more members is easier to read as JSON."""

StyledText: TypeAlias = str | tuple[str, str]
"""A text, or a text and its style."""


def get_plain_text(part: StyledText) -> str:
    return part[0] if isinstance(part, tuple) else part


def measure_text_width(text: str) -> int:
    """The columns that a text takes: characters of East Asia and emoji take two, marks upon others none."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


class StyledLine(str):
    """One line of parts with styles. As a `str` it is the plain text. Control characters in it are escaped.

    If it is too long for the terminal, the rest is indented by `hang` more than its begin. Without a `hang` it is left
    to the terminal, so that an address or a command can be copied whole.
    """

    __slots__ = ("hang", "parts")

    parts: tuple[StyledText, ...]
    hang: int | None

    def __new__(cls, *parts: StyledText, hang: int | None = 2) -> StyledLine:
        safe = tuple(
            (escape_unprintable(part[0]), part[1]) if isinstance(part, tuple) else escape_unprintable(part)
            for part in parts
            if part
        )
        made = super().__new__(cls, "".join(map(get_plain_text, safe)))
        made.parts, made.hang = safe, hang
        return made


class Table:
    """Columns that line up. A cell is a part, or anything with a `str`. Cells are escaped: an attacker may write them.

    `fit` names the columns that give way if the terminal is narrow; others are cut only if that is not enough.
    `right` names the columns of numbers.
    """

    def __init__(
        self,
        head: Sequence[str],
        rows: Iterable[Sequence[object]],
        *,
        fit: Iterable[str] = (),
        right: Iterable[str] = (),
    ) -> None:
        self.head, self.fit, self.right = tuple(head), frozenset(fit), frozenset(right)
        self.rows: list[tuple[tuple[str, str], ...]] = [tuple(map(_cell, row)) for row in rows]

    def __iter__(self) -> Iterator[str]:
        """The plain lines, as wide as they need to be."""
        cells = [list(self.head), *([text for text, _ in row] for row in self.rows)]
        widths = [max(map(measure_text_width, column)) for column in zip(*cells, strict=True)]
        for row in cells:
            padded = (cell + " " * (width - measure_text_width(cell)) for cell, width in zip(row, widths, strict=True))
            yield "  ".join(padded).rstrip()


class JsonBlock:
    """A JSON value, on several lines unless it is `compact`. Unprintable characters are escaped as JSON does it."""

    def __init__(self, value: Any, *, compact: bool = False) -> None:
        self.value, self.compact = value, compact

    def __iter__(self) -> Iterator[str]:
        import json

        yield escape_unprintable_json(json.dumps(self.value, indent=None if self.compact else 2, ensure_ascii=False))


class RecordsBlock(JsonBlock):
    """A list of objects, as `is_tabular` says: a table at a terminal, and JSON everywhere else."""


def is_tabular(value: Any) -> bool:
    """Whether a value is a list of objects that a table shows whole: no objects in them, and not too many columns."""
    return (
        is_array(value)
        and bool(value)
        and all(is_object(row) and row and all(map(_fits_a_cell, row.values())) for row in value)
        and len({name for row in value for name in row}) <= MAX_COLUMNS
    )


def _fits_a_cell(value: Any) -> bool:
    return not is_object(value) and not (is_array(value) and any(is_object(each) or is_array(each) for each in value))


class DocumentBlock:
    """A text that somebody else wrote, of many lines. `kind` is its media type: Markdown and JSON are drawn as such.

    A pipe gets it as it is, if `is_exact`; a terminal gets it escaped.
    """

    def __init__(self, text: str, kind: str = "text/plain") -> None:
        self.text, self.kind, self.is_exact = text, kind, True

    def __iter__(self) -> Iterator[str]:
        yield self.text if self.is_exact else escape_unprintable_lines(self.text)


class DiffBlock:
    """A unified diff, as one text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __iter__(self) -> Iterator[str]:
        yield from self.text.splitlines()


ScreenBlock: TypeAlias = str | Table | JsonBlock | DocumentBlock | DiffBlock


def iter_plain_lines(block: ScreenBlock) -> Iterator[str]:
    """The plain text of a block."""
    yield from (block,) if isinstance(block, str) else block


def _cell(cell: object) -> tuple[str, str]:
    text, style = cast("tuple[str, str]", cell) if isinstance(cell, tuple) else (str(cell), "")
    return escape_unprintable(text), style


# -- The looks of everything that commands print: a name for each, and what it is drawn with.


# Only the sixteen colours that every terminal has and lets its user choose.
STYLES: Final = {
    "heading": "bold",
    "title": "bold cyan",
    "name": "cyan",
    "type": "green",
    "default": "magenta",
    "about": "dim",
    "faint": "dim",
    "good": "green",
    "warning": "yellow",
    "bad": "bold red",
    "error": "bold red",
    "fix": "bold green",
    "added": "green",
    "removed": "red",
    "option": "cyan",
    "danger": "bold red",
    # Markdown, with the names that rich uses. Code has no background: we do not know that of the terminal.
    "markdown.h1": "bold cyan",
    "markdown.h2": "bold",
    "markdown.h3": "bold",
    "markdown.h4": "bold dim",
    "markdown.code": "cyan",
    "markdown.code_block": "cyan",
    "markdown.table.header": "bold",
    "markdown.table.border": "dim",
    "markdown.link_url": "dim",
    "markdown.item.bullet": "cyan",
    "markdown.item.number": "cyan",
    "markdown.block_quote": "dim",
    # Progress, with the names that rich uses.
    "bar.back": "dim",
    "bar.complete": "cyan",
    "bar.finished": "green",
    "progress.spinner": "cyan",
    "progress.percentage": "default",
    "progress.elapsed": "dim",
    # JSON, with the names that rich's highlighter uses.
    "json.key": "cyan",
    "json.str": "green",
    "json.number": "magenta",
    "json.bool_true": "yellow",
    "json.bool_false": "yellow",
    "json.null": "dim",
    "json.brace": "default",
}

STATE_STYLES: Final = {
    **dict.fromkeys(("connected", "healthy", "ok", "low", "safe"), "good"),
    **dict.fromkeys(
        ("connecting", "restarting", "starting", "draining", "held", "degraded", "moderate", "missing"), "warning"
    ),
    **dict.fromkeys(("error", "failed", "unhealthy", "dangerous", "broken", "critical", "high"), "bad"),
    **dict.fromkeys(("stopped", "disabled", "idle", "unused", "-"), "faint"),
}
"""A word that says how something is → its style."""


def style_state(word: str) -> tuple[str, str]:
    """A word with the style of what it says."""
    return word, STATE_STYLES.get(word, "")


# -- Numbers of things, in words.


def format_count(number: Any, noun: str) -> str:
    """`1 tool`, `2,000 tools`. What is no number stands as it is."""
    shown = f"{number:,}" if isinstance(number, int | float) else str(number)
    return f"{shown} {noun}" if number == 1 else f"{shown} {noun}s"
