"""The server of the playground: beds with plants, and a state that can be rolled back."""

from typing import Literal

from pydantic import BaseModel

from defserve import Server, State, safe

server = Server("garden", "1.0.0", instructions="Look at the readings before you water.")
Bed = Literal["north", "fern", "herbs"]
PLANTS = {"north": ["tomato", "pepper"], "fern": ["maidenhair", "bird's nest"], "herbs": ["basil", "thyme", "mint"]}


class Garden(BaseModel):
    plants: dict[str, list[str]] = PLANTS
    litres: dict[str, int] = {}


class Reading(BaseModel):
    plant: str
    degrees: float
    humidity: int
    state: Literal["ok", "dry"]


server.state(Garden)


@server.tool
@safe
def readings(bed: Bed = "north", days: int = 2) -> list[Reading]:
    """Read the sensors of a bed for the last days."""
    found = list[Reading]()
    for day in range(days):
        for number, plant in enumerate(PLANTS[bed]):
            humidity = 61 - 7 * number - 4 * day
            degrees = 19.5 + number + 0.4 * day
            found.append(
                Reading(plant=plant, degrees=degrees, humidity=humidity, state="ok" if humidity > 50 else "dry")
            )
    return found


@server.tool
@safe
def forecast(days: int = 3) -> str:
    """The weather for the next days."""
    return f"# Forecast\n\nThe next **{days} days**:\n\n- mild, *some* wind\n- no frost"


@server.tool
@safe
def plant(garden: State[Garden], bed: Bed = "fern", name: str = "staghorn") -> list[str]:
    """Put a plant into a bed."""
    garden.plants.setdefault(bed, []).append(name)
    return garden.plants[bed]


@server.tool
@safe
def water(garden: State[Garden], bed: Bed = "herbs", litres: int = 2) -> int:
    """Water a bed. Returns the litres that it has got so far."""
    garden.litres[bed] = garden.litres.get(bed, 0) + litres
    return garden.litres[bed]


@server.resource("garden://rules", mime_type="text/markdown")
def rules() -> str:
    """What everybody in the garden keeps to."""
    return "# Rules\n\n1. Water in the evening.\n2. Close the vents before frost.\n"


@server.prompt
def plan_week(goal: str = "a bed of herbs") -> str:
    """Plan the week for a goal."""
    return f"Plan the work of this week, so that we get {goal}. Read the sensors first."


if __name__ == "__main__":
    server.main()
