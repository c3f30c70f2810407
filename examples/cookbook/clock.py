"""Books are lent for some days. What time it is comes from one function, which a test replaces."""

from datetime import UTC, date, datetime, timedelta
from typing import Annotated

from pydantic import Field

from defserve import Server, ToolError

server = Server("loans", "1.0.0")
loans: dict[str, date] = {}
Days = Annotated[int, Field(ge=1, le=60, description="For how many days.")]


def today() -> date:
    return datetime.now(UTC).date()


@server.tool
def lend(title: Annotated[str, "Its whole title."], days: Days = 14) -> date:
    """Lend a book; the day on which it is due."""
    if title in loans:
        raise ToolError(f"{title} is lent until {loans[title]}.")
    loans[title] = today() + timedelta(days=days)
    return loans[title]


@server.tool
def overdue() -> list[str]:
    """The books that should be back, the latest last."""
    late = sorted((due, title) for title, due in loans.items() if due < today())
    return [f"{title}, days late: {(today() - due).days}" for due, title in late]


if __name__ == "__main__":
    server.main()
