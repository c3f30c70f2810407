"""{{ cookiecutter.description }}"""

import random
from pathlib import Path
from typing import Annotated

from defserve import Server, safe
from pydantic import BaseModel, Field

server = Server("{{ cookiecutter.project_slug }}")

HowMany = Annotated[int, Field(ge=1, le=10)]


class Roll(BaseModel):
    """What the dice show."""

    dice: list[int]
    total: int


# A view has no network unless you name origins: csp={"connect": ["https://api.example.com"]}.
@server.app("ui://{{ cookiecutter.project_slug }}/dice", border=True)
def dice() -> Path:
    """The dice, and a button to roll them again."""
    return Path("view.html")


@server.tool(title="Roll dice", app=dice)
@safe
def roll(count: HowMany = 2) -> Roll:
    """Roll dice.

    Args:
        count: How many.
    """
    rolled = [random.randint(1, 6) for _ in range(count)]
    return Roll(dice=rolled, total=sum(rolled))


@server.tool(title="Roll again", visible_to="app")
@safe
def roll_again(count: HowMany) -> Roll:
    """Roll again. Only the view calls it.

    Args:
        count: How many.
    """
    return roll(count)


if __name__ == "__main__":
    server.main()
