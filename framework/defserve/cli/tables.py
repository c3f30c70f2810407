"""Tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from defserve.redaction import printable


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Lines whose columns line up. Cells are escaped, because their text may come from an attacker."""
    cells = [list(head), *([printable(str(cell)) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
