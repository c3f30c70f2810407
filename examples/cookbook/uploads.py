"""A file that a person attaches: a table is added up while it comes in. Nothing is written to the disk."""

import csv
from collections.abc import AsyncIterator
from typing import Annotated

from defserve import Server, ToolError, safe
from defserve.guard import FileTypes, Upload

server = Server("tables", "1.0.0")

MAX_LINE = 100_000


async def read_rows(table: Upload) -> AsyncIterator[list[str]]:
    """The rows of a CSV file, one at a time."""
    rest = b""
    async for chunk in table:
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_LINE:
            raise ToolError(f"A line is longer than {MAX_LINE} bytes.")
        for row in filter(None, csv.reader(line.decode() for line in lines)):
            yield row
    for row in filter(None, csv.reader([rest.decode()])):
        yield row


@server.tool
@safe
async def add_up(
    table: Annotated[Upload, FileTypes("text/csv", "text/plain", max_size=100_000_000)], column: str
) -> str:
    """Add up a column of a table.

    Args:
        table: A CSV file with a header.
        column: The name of the column.
    """
    rows = read_rows(table)
    names = await anext(rows)
    if column not in names:
        raise ToolError(f"There is no column {column!r}, only {', '.join(names)}")
    total, count = 0.0, 0
    async for row in rows:
        try:
            total, count = total + float(row[names.index(column)]), count + 1
        except (ValueError, IndexError):
            raise ToolError(f"Row {count + 1} has no number in the column {column!r}") from None
    return f"{table.name}: {count} rows, {column} is {total:g} in all"


if __name__ == "__main__":
    server.main()
