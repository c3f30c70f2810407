"""A server that takes part in turns: hooks that inject and rewrite, a scoped set, pushed events, a channel."""

from __future__ import annotations

import asyncio
from typing import Any

from defserve import Context, Server, ToolError
from defserve.live import Channel, FinishedTurn, Injection, ReceivedMessage, Rewrite, Turn

WATCH, MEMORY, PRIVACY, WATER, ALERTS = "climate.watch", "beds.memory", "beds.privacy", "irrigation", "alerts.push"


def lively() -> Server:
    server = Server("greenhouse", "0.4.2")
    watch = server.feature_set(WATCH, "Tell the model the climate now.")
    memory = server.feature_set(MEMORY, "Recall what was planted.")
    privacy = server.feature_set(PRIVACY, "Keep names out of answers.")
    water = server.feature_set(WATER, "Water and open vents.", scoped=True)
    alerts = server.feature_set(ALERTS, "Push frost and heat warnings.", inbox=True, uses=["pushEvents"])
    season = server.feature_set("season.tips", "Suggest what to sow.", uses=["inferenceRequest"])

    @watch.before_inference
    async def climate(turn: Turn) -> list[Injection]:
        return [
            Injection("Sensors at 09:41: fern 19.8 °C, humidity 82 %. Outside 4 °C, falling."),
            Injection("Source of the values: greenhouse sensors, 4 minutes old.", position="after_user"),
        ]

    @memory.before_inference
    async def recall(turn: Turn) -> Injection | None:
        if "fern" not in (turn.user_message or ""):
            return None
        planted = "The fern bed holds maidenhair (since today) and staghorn. Last watered on Friday by Alice."
        return Injection(planted, position="before_user", metadata={"memoryIds": ["m1", "m7"]})

    @season.before_inference(timeout=0.3)
    async def slow(turn: Turn) -> str:
        if "slow" in (turn.user_message or ""):
            await asyncio.sleep(30)
        return "Sow cress now." if "sow" in (turn.user_message or "") else ""

    @privacy.after_inference(blocking=True)
    def hide(turn: FinishedTurn) -> Rewrite | None:
        if "broken" in turn.assistant_message:
            raise RuntimeError("the list of names is gone")
        names = turn.assistant_message.count("Alice")
        return Rewrite(turn.assistant_message.replace("Alice", "A."), metadata={"names": names}) if names else None

    def where(bed: str) -> str:
        return f"bed/{bed}"

    @water.tool(scope=where)
    def water_bed(bed: str) -> str:
        """Water a bed."""
        return f"{bed} is watered"

    @alerts.tool
    async def warn(text: str, ctx: Context) -> str:
        """Push a warning, and tell what became of it."""
        receipt = await alerts.push(text, to=ctx.session)
        return "accepted" if receipt.accepted else f"refused: {receipt.reason}"

    roof = server.channels("chat", feature_set=alerts)

    roof.add(Channel("chat:#roof", "#roof"))

    @roof.open
    def opened(address: dict[str, str]) -> Channel:
        if address["name"] == "full":
            raise ToolError("the room is full")
        return Channel(f"chat:#{address['name']}", f"#{address['name']}", address=address)

    @roof.publish
    async def published(channel: Channel, text: str) -> str:
        if "nobody" in text:
            raise RuntimeError("the roof does not answer")
        return "m1"

    @alerts.tool
    async def call_roof(text: str, ctx: Context) -> bool:
        """Write into the channel, as the gardener."""
        (receipt,) = await roof.incoming(ReceivedMessage("chat:#roof", text, author="gardener"), to=ctx.session)
        return receipt.accepted

    @season.tool
    async def advise(bed: str) -> str:
        """Have the host's model say what to sow."""
        asked = [{"role": "system", "content": "You know gardens."}, f"What grows in {bed}?"]
        return (await season.infer(asked)).content

    declared: list[Any] = [climate, recall, slow, hide, water_bed, warn, opened, published, call_roof, advise]
    assert declared
    return server
