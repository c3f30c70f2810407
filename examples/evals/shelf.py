"""A small library whose `return_book` is described too much like `lend`: see docs/evals.md."""

from defserve import Server, safe

server = Server("shelf", "1.0.0")
AUTHORS = {"Solaris": "Lem", "Fiasco": "Lem", "Emma": "Austen", "Persuasion": "Austen"}
LENT: dict[str, str] = {}


@server.tool
@safe
def find_books(text: str, limit: int = 10) -> list[str]:
    """Find books by author or title.

    Args:
        text: A part of the author's name or of the title.
        limit: How many at most.
    """
    return [title for title, author in AUTHORS.items() if text.lower() in f"{author} {title}".lower()][:limit]


@server.tool
def lend(title: str, person: str) -> str:
    """Give a book to a person.

    Args:
        title: Which book.
        person: Who takes it.
    """
    LENT[title] = person
    return f"{person} has {title}"


@server.tool
def return_book(title: str) -> str:
    """Take a book back from a person.

    Args:
        title: Which book.
    """
    LENT.pop(title, None)
    return f"{title} is back"


if __name__ == "__main__":
    server.main()
