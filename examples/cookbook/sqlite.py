"""Books in SQLite: a connection for each call, committed if the call succeeds and rolled back if it fails."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Annotated

from pydantic import BaseModel, Field

from defserve import Depends, Server, ToolError

server = Server("books", "1.0.0")

TABLE = "create table if not exists books (title text primary key, author text not null, year integer not null)"


class Book(BaseModel):
    title: str
    author: str
    year: int = Field(ge=1450, description="When it came out.")


def database() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(os.environ.get("BOOKS_DB", "books.db"))) as connection, connection:
        connection.execute(TABLE)
        connection.row_factory = sqlite3.Row
        yield connection


Database = Annotated[sqlite3.Connection, Depends(database)]
Limit = Annotated[int, Field(ge=1, le=100, description="How many at most.")]


@server.tool
def add_books(books: Annotated[list[Book], "What to add."], db: Database) -> str:
    """Add books: all of them or, if one is there already, none."""
    for book in books:
        try:
            db.execute("insert into books values (:title, :author, :year)", book.model_dump())
        except sqlite3.IntegrityError:
            raise ToolError(f"{book.title!r} is there already. Nothing was added.") from None
    return f"{len(books)} added"


@server.tool
def find_books(words: Annotated[str, "In upper or lower case."], db: Database, limit: Limit = 20) -> list[Book]:
    """Find books by a part of their title."""
    rows = db.execute("select * from books where instr(lower(title), lower(?)) order by year limit ?", (words, limit))
    return [Book.model_validate(dict(row)) for row in rows]


if __name__ == "__main__":
    server.main()
