"""Accounts in Postgres: connections come from a pool, and a transfer happens as a whole or not at all."""

import os
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Annotated

from psycopg import Connection
from psycopg_pool import ConnectionPool
from pydantic import Field

from defserve import Context, Depends, Server, ToolError

TABLE = "create table if not exists accounts (name text primary key, cents bigint not null check (cents >= 0))"


@asynccontextmanager
async def lifespan(server: Server) -> AsyncGenerator[ConnectionPool]:
    with ConnectionPool[Connection](os.environ["DATABASE_URL"], min_size=1, max_size=8) as pool:
        with pool.connection() as connection:
            connection.execute(TABLE)
        yield pool


def database(ctx: Context) -> Iterator[Connection]:
    with ctx.lifespan.connection() as connection:  # commits at the end; rolls back if the call fails
        yield connection


server = Server("accounts", "1.0.0", lifespan=lifespan)
Database = Annotated[Connection, Depends(database)]
Cents = Annotated[int, Field(gt=0, description="An amount in cents.")]
Name = Annotated[str, "Whose account."]


@server.tool
def open_account(name: Name, cents: Cents, db: Database) -> str:
    """Open an account with some money in it."""
    if db.execute("insert into accounts values (%s, %s) on conflict do nothing", (name, cents)).rowcount == 0:
        raise ToolError(f"{name} has an account already.")
    return f"{name} has {cents} cents"


@server.tool
def transfer(source: Name, target: Name, cents: Cents, db: Database) -> dict[str, int]:
    """Move money from one account to another; what is in both of them afterwards."""
    move = "update accounts set cents = cents + %s where name = %s and cents + %s >= 0 returning cents"
    left = dict[str, int]()
    for name, change in sorted([(source, -cents), (target, cents)]):
        row = db.execute(move, (change, name, change)).fetchone()
        if row is None:
            raise ToolError(f"{name} has no account, or too little money. Nothing was moved.")
        left[name] = row[0]
    return left


if __name__ == "__main__":
    server.main()
