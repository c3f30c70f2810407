"""Notes in Postgres, found by their words. Async: a thousand calls may wait for the database in one thread."""

import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from psycopg import AsyncConnection
from psycopg.rows import class_row
from psycopg_pool import AsyncConnectionPool
from pydantic import BaseModel, Field

from defserve import Context, Depends, Server

TABLE = """create table if not exists notes (id bigint generated always as identity primary key, text text not null,
    words tsvector generated always as (to_tsvector('english', text)) stored);
create index if not exists notes_words on notes using gin (words)"""


class Note(BaseModel):
    id: int
    text: str


@asynccontextmanager
async def lifespan(server: Server) -> AsyncGenerator[AsyncConnectionPool]:
    async with AsyncConnectionPool[AsyncConnection](os.environ["DATABASE_URL"], min_size=1, max_size=8) as pool:
        async with pool.connection() as connection:
            await connection.execute(TABLE)
        yield pool


async def database(ctx: Context) -> AsyncIterator[AsyncConnection]:
    async with ctx.lifespan.connection() as connection:  # commits at the end; rolls back if the call fails
        yield connection


server = Server("notes", "1.0.0", lifespan=lifespan)
Database = Annotated[AsyncConnection, Depends(database)]
Query = Annotated[str, 'As people type it: red -green, "a phrase", tea or coffee.']
Limit = Annotated[int, Field(ge=1, le=50, description="How many at most.")]


@server.tool
async def add_note(text: Annotated[str, "What to keep."], db: Database) -> str:
    """Keep a note."""
    await db.execute("insert into notes (text) values (%s)", (text,))
    return "kept"


@server.tool
async def search_notes(query: Query, db: Database, limit: Limit = 10) -> list[Note]:
    """Find notes by their words, the newest first."""
    find = "select id, text from notes where words @@ websearch_to_tsquery('english', %s) order by id desc limit %s"
    async with db.cursor(row_factory=class_row(Note)) as cursor:
        return await (await cursor.execute(find, (query, limit))).fetchall()


if __name__ == "__main__":
    server.main()
