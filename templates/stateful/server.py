"""{{ cookiecutter.description }}"""

from defserve import Server, State, ToolError, moderate, safe
from pydantic import BaseModel

server = Server("{{ cookiecutter.project_slug }}")


class Notebook(BaseModel):
    """What is kept for each caller. A call that fails leaves it as it was."""

    notes: list[str] = []


notebooks = server.state(Notebook)


@server.tool(title="Add a note")
@moderate(effects=["database"])
def add_note(text: str, book: State[Notebook]) -> int:
    """Write a note; gives back its number.

    Args:
        text: What to write down.
    """
    if not text.strip():
        raise ToolError("A note needs a text.")
    book.notes.append(text)
    return len(book.notes)


@server.tool(title="Edit a note")
@moderate(effects=["database"])
def edit_note(number: int, text: str, book: State[Notebook]) -> str:
    """Write a note anew; gives back what it said before.

    Args:
        number: Its number, from 1.
        text: What it is to say.
    """
    if not 1 <= number <= len(book.notes):
        raise ToolError(f"There is no note {number}; there are {len(book.notes)}.")
    before, book.notes[number - 1] = book.notes[number - 1], text
    return before


@server.tool(title="List the notes")
@safe
def list_notes(book: State[Notebook]) -> list[str]:
    """All notes, in order."""
    return book.notes


@server.tool(title="Undo the last change")
@moderate(effects=["database"])
async def undo(book: State[Notebook]) -> list[str]:
    """Take the last change back; gives back the notes as they are then. Again: the change before it."""
    if not await notebooks.undo():
        raise ToolError("There is nothing to undo.")
    return book.notes


if __name__ == "__main__":
    server.main()
