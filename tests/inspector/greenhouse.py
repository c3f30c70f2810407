"""A made-up greenhouse: a server with everything that a form, a result and a mark can have.

`python -m tests.inspector.greenhouse` serves it over stdio.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import AsyncIterator
from datetime import date, datetime
from enum import Enum
from math import sin
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from defserve import Audio, Context, Image, Link, PublicUrl, Server, ToolError, dangerous, moderate, safe

server = Server("greenhouse", "0.4.2", instructions="Ask before you water.")
climate = server.feature_set("climate.read", "Read the climate")
beds = server.feature_set("beds.edit", "Plant and move")
irrigation = server.feature_set("irrigation", "Water and vents")

CLICK = b"RIFF\x25\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x40\x1f\0\0\1\0\x08\0data\1\0\0\0\x80"
PLANTS = {
    "north-1": ("basil", "thyme"),
    "north-2": ("tomato", "pepper"),
    "fern": ("maidenhair", "staghorn", "bird's nest"),
}


class Unit(Enum):
    celsius = "celsius"
    fahrenheit = "fahrenheit"


class Range(BaseModel):
    low: float
    high: Annotated[float, Field(le=60)]


class Plant(BaseModel):
    kind: Literal["plant"] = "plant"
    name: str
    count: Annotated[int, Field(ge=1)] = 1


class Seed(BaseModel):
    kind: Literal["seed"] = "seed"
    grams: float


class Reading(BaseModel):
    bed: str
    plant: str
    degrees: Annotated[float, Field(title="°C")]
    humidity: Annotated[int, Field(title="humidity %")]
    state: Literal["ok", "warm"]


def day_picture(width: int = 520, height: int = 178) -> bytes:
    """A picture of three lines, as PNG."""
    rows = [bytearray(b"\xff\xff\xff" * width) for _ in range(height)]
    for top, colour in ((60, (36, 96, 200)), (44, (169, 78, 11)), (96, (11, 116, 121))):
        for x in range(36, width - 12):
            y = int(top + 30 * sin((x - 36) / 150 + 2))
            for thick in (0, 1):
                rows[y + thick][x * 3 : x * 3 + 3] = bytes(colour)
    raw = b"".join(b"\0" + bytes(row) for row in rows)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


@climate.tool
@safe
def list_sensors() -> list[str]:
    """All sensors and when each last reported."""
    return [f"{bed} {plant}" for bed, plants in PLANTS.items() for plant in plants]


@climate.tool
@moderate("network.outbound")
async def survey(
    ctx: Context,
    where: Annotated[int | list[str], Field(description="A bed by its number, or several by their names.")],
    day: date = date(2026, 11, 15),
    unit: Unit = Unit.celsius,
    wanted: Range | None = None,
    draw: Annotated[bool, Field(description="Add a picture of the day.")] = False,
    mask: bytes | None = None,
    station: PublicUrl | None = None,
    hold: Annotated[bool, Field(description="Stop before the last bed, until the call is cancelled.")] = False,
) -> AsyncIterator[Reading | Image]:
    """Read every sensor of some beds and draw the day."""
    names = list(PLANTS)[:where] if isinstance(where, int) else where
    ctx.log.info("station north answered, 5 sensors")
    if draw:
        yield Image(day_picture())
    number = 0
    for place, bed in enumerate(names):
        if bed not in PLANTS:
            raise ToolError(f"there is no bed {bed!r}\n  fix: use one of {', '.join(PLANTS)}")
        for plant in PLANTS[bed]:
            number += 1
            degrees = 19.8 + number * 1.3
            warm = wanted is not None and degrees > wanted.high
            yield Reading(
                bed=bed, plant=plant, degrees=round(degrees, 1), humidity=50 + number, state="warm" if warm else "ok"
            )
        ctx.progress(place + 1, total=len(names), message=f"Reading {bed}, bed {place + 1} of {len(names)}")
        if hold and place == len(names) - 2:
            ctx.log.warning("pepper: last value is 14 minutes old")
            await asyncio.sleep(3600)


@climate.tool
def forecast(days: Annotated[int, Field(ge=1, le=14)] = 3) -> str:
    """The weather for the next days."""
    said = f"The next **{days} days**:\n\n- *mild*\n- see [the map](https://example.com/map)"
    return f"# Forecast\n\n{said}\n\n<b>not bold</b>"


@beds.tool
@safe
def add_plant(
    bed: str,
    what: Annotated[Plant | Seed, Field(discriminator="kind")],
    at: datetime | None = None,
    ranges: list[Range] | None = None,
    labels: dict[str, str] | None = None,
) -> dict[str, object]:
    """Put a plant into a bed."""
    return {
        "bed": bed,
        "what": what.model_dump(),
        "at": at and at.isoformat(),
        "ranges": len(ranges or ()),
        "labels": labels,
    }


@beds.tool
@moderate
def set_target(bed: str, wanted: Range) -> Range:
    """Set the wanted range of a bed."""
    return wanted


@beds.tool
@dangerous
def clear_bed(bed: str) -> str:
    """Take every plant out of a bed."""
    return f"{bed} is empty"


@irrigation.tool
@dangerous("shell.execute", effects=["process"])
def run_script(script: str) -> str:
    """Run a maintenance script."""
    return script


@irrigation.tool
async def water(ctx: Context, bed: str) -> str:
    """Water a bed, after a question."""
    litres = await ctx.ask(f"How many litres for {bed}?", int)
    return f"{litres} litres for {bed}"


@server.tool
def chime() -> Audio:
    """The bell at the door."""
    return Audio(CLICK)


@server.tool
def manual() -> Link:
    """Where to read on."""
    return Link("text://manual", title="The manual", mime_type="text/plain")


@server.tool
def help() -> str:
    """What this server can do."""
    return "Ask for the climate, edit beds, water them."


@server.resource("text://manual")
def manual_text() -> str:
    """The manual."""
    return "Water in the morning."


if __name__ == "__main__":
    server.main()
