"""A server whose tools commit: beds with plants, and mails that cannot be taken back."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from defserve import Server, State
from defserve.state import CannotUndo, Checkpoint

BEDS, MAIL = "beds.edit", "mail.send"


class Bed(BaseModel):
    wanted: int = 18
    plants: list[str] = []


class House(BaseModel):
    beds: dict[str, Bed] = {}


class Outbox(BaseModel):
    sent: int = 0


def greenhouse(store: str = "memory:") -> Server:
    server = Server("greenhouse", "0.4.2", store=store)
    beds = server.feature_set(BEDS, "Beds and their plants")
    mail = server.feature_set(MAIL, "Mails that were sent")
    server.feature_set("weather.read", "The weather outside")
    beds.state(House)
    mail.state(Outbox, mode="opaque")

    @beds.tool
    def add_bed(name: str, house: State[House]) -> str:
        """Add a bed."""
        house.beds[name] = Bed()
        return name

    @beds.tool
    def add_plant(bed: str, plant: str, house: State[House]) -> int:
        """Put a plant into a bed."""
        house.beds[bed].plants.append(plant)
        return len(house.beds[bed].plants)

    @beds.tool
    def set_target(bed: str, wanted: int, house: State[House]) -> int:
        """How warm a bed should be."""
        house.beds[bed].wanted = wanted
        return wanted

    @mail.tool
    def send_mail(text: str, box: State[Outbox]) -> int:
        """Send a mail."""
        box.sent += 1
        return box.sent

    @mail.on_rollback
    async def undo(to: Checkpoint) -> None:
        raise CannotUndo("A mail that was sent cannot be taken back")

    declared: list[Any] = [add_bed, add_plant, set_target, send_mail, undo]
    assert declared
    return server
