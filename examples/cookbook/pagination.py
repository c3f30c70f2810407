"""A table too big for one answer: a page at a time, each after the last row of the page before."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Annotated

from pydantic import BaseModel, Field

from defserve import Depends, Server, safe

server = Server("orders", "1.0.0")

FILL = """
create table if not exists orders (id integer primary key, customer text not null, cents integer not null);
insert or ignore into orders with recursive n(id) as (select 1 union all select id + 1 from n where id < 10000)
    select id, 'customer ' || (id % 97), id * 7 % 9973 from n;
"""


class Order(BaseModel):
    id: int
    customer: str
    cents: int


class Page(BaseModel):
    orders: list[Order]
    next_after: int | None = Field(description="Call again with after= this for the next page; null on the last one.")


def database() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(os.environ.get("ORDERS_DB", "orders.db"))) as connection:
        connection.row_factory = sqlite3.Row
        if not connection.execute("select 1 from sqlite_master where name = 'orders'").fetchone():
            connection.executescript(FILL)
        yield connection


@server.tool
@safe
def list_orders(
    db: Annotated[sqlite3.Connection, Depends(database)],
    after: Annotated[int, Field(ge=0)] = 0,
    limit: Annotated[int, Field(ge=1, le=100)] = 50,
) -> Page:
    """List orders by their number, a page at a time.

    Args:
        after: The `next_after` of the page before; leave it out for the first page.
        limit: How many orders at most.
    """
    rows = db.execute("select * from orders where id > ? order by id limit ?", (after, limit + 1)).fetchall()
    orders = [Order.model_validate(dict(row)) for row in rows[:limit]]
    return Page(orders=orders, next_after=orders[-1].id if len(rows) > limit else None)


if __name__ == "__main__":
    server.main()
