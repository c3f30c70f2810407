"""Everybody has notes of their own. Who is calling comes from their key, never from an argument."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Annotated, NamedTuple

from defserve import ApiKeys, Context, Depends, Server, ToolError

server = Server("notes", "1.0.0", auth=ApiKeys("keys.json"))
TABLE = "create table if not exists notes (id integer primary key, owner text not null, text text not null)"


class Notes(NamedTuple):
    """The notes of one caller. Every statement names the owner, so no tool can forget it."""

    db: sqlite3.Connection
    owner: str

    def add(self, text: str) -> int | None:
        return self.db.execute("insert into notes (owner, text) values (?, ?)", (self.owner, text)).lastrowid

    def all(self) -> dict[int, str]:
        return dict(self.db.execute("select id, text from notes where owner = ? order by id", (self.owner,)).fetchall())

    def remove(self, id: int) -> bool:
        return self.db.execute("delete from notes where owner = ? and id = ?", (self.owner, id)).rowcount == 1


def notes_of_caller(ctx: Context) -> Iterator[Notes]:
    with closing(sqlite3.connect("notes.db")) as connection, connection:
        connection.execute(TABLE)
        yield Notes(connection, ctx.principal)


MyNotes = Annotated[Notes, Depends(notes_of_caller)]


@server.tool
def add_note(text: Annotated[str, "What to keep."], notes: MyNotes) -> str:
    """Keep a note for yourself."""
    return f"note {notes.add(text)} is kept"


@server.tool
def list_notes(notes: MyNotes) -> list[str]:
    """Your own notes."""
    return [f"{id}: {text}" for id, text in notes.all().items()]


@server.tool
def remove_note(id: Annotated[int, "Its number in the list."], notes: MyNotes) -> str:
    """Remove one of your own notes."""
    if not notes.remove(id):
        raise ToolError(f"You have no note {id}.")
    return "removed"


if __name__ == "__main__":
    server.main()
