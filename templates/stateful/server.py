"""{{ cookiecutter.description }}"""

from defserve import Server, State, ToolError
from pydantic import BaseModel

server = Server("{{ cookiecutter.project_slug }}")
notes = server.feature_set("notes.edit", "Write and delete notes")


class Notebook(BaseModel):
    """What is kept for each caller. A call that fails leaves it as it was."""

    notes: list[str] = []


notebooks = notes.state(Notebook)


@notes.tool
def add_note(text: str, book: State[Notebook]) -> int:
    """Write a note; gives back its number.

    Args:
        text: What to write down.
    """
    if not text.strip():
        raise ToolError("A note needs a text.")
    book.notes.append(text)
    return len(book.notes)


@notes.tool
def delete_note(number: int, book: State[Notebook]) -> str:
    """Delete a note.

    Args:
        number: Its number, from 1.
    """
    if not 1 <= number <= len(book.notes):
        raise ToolError(f"There is no note {number}; there are {len(book.notes)}.")
    return book.notes.pop(number - 1)


@notes.tool
def list_notes(book: State[Notebook]) -> list[str]:
    """All notes, in order."""
    return book.notes


if __name__ == "__main__":
    server.main()
