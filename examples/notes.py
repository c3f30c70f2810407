"""State: a notebook for every caller, with checkpoints a host can go back to and branch from.

Changes of a call that fails, is cancelled or stops to ask are as if they had never been made. With
`NOTES_STORE=sqlite:///notes.db` (or `redis://…`) they outlive the process.
"""

import os

from pydantic import BaseModel

from defserve import Context, Server, State, ToolError

server = Server("notes", "1.0.0", store=os.environ.get("NOTES_STORE", "memory:"))
notes = server.feature_set("notes.edit", "Manage notes")


class Note(BaseModel):
    id: int
    text: str


class Notebook(BaseModel):
    notes: list[Note] = []


notebooks = notes.state(Notebook)


@notes.tool
def add_note(text: str, book: State[Notebook]) -> str:
    """Write a note."""
    book.notes.append(Note(id=len(book.notes) + 1, text=text))
    if not text:
        raise ToolError("an empty note is none")  # and nothing was added
    return "Note added"


@notes.tool
def list_notes(book: State[Notebook]) -> list[str]:
    """All notes, in order."""
    return [note.text for note in book.notes]


@notes.tool
async def clear(book: State[Notebook], ctx: Context) -> str:
    """Throw all notes away, if a person agrees."""
    count = len(book.notes)
    book.notes.clear()
    if not await ctx.confirm(f"Throw {count} notes away?"):
        raise ToolError("kept")
    return f"{count} notes gone"


@notes.tool
async def versions() -> list[int]:
    """How many notes there were at each checkpoint of this caller."""
    return [len((await notebooks.at(checkpoint)).notes) for checkpoint in await notebooks.checkpoints()]


if __name__ == "__main__":
    server.main()
