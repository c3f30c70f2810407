from __future__ import annotations

from typing import Any

import pytest

from defserve import Context, Server
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio


class Odd:
    def __str__(self) -> str:
        return "odd"


async def test_a_log_line_with_values_json_does_not_know_never_fails_the_call():
    server, told = Server("s", "1"), list[Any]()

    @server.tool
    async def work(ctx: Context) -> str:
        ctx.log.warning("strange", thing=Odd(), error=ValueError("no"), number=float("nan"), many={1})
        return "done"

    async with server.connect(version="2025-11-25", on_log=told.append) as client:
        assert await client.call("work") == "done"
    fields = {"message": "strange", "thing": "odd", "error": "no", "number": None, "many": [1]}
    assert [(log["level"], log["data"]) for log in told] == [("warning", fields)]


class Mute:
    def __str__(self) -> str:
        raise RuntimeError("no words")


async def test_a_log_line_with_values_that_cannot_even_be_written_never_fails_the_call():
    server, told = Server("s", "1"), list[Any]()
    knot: list[Any] = []
    knot.append(knot)

    @server.tool
    async def work(ctx: Context) -> str:
        for value in (Mute(), b"\xff", knot):
            ctx.log.warning("strange", thing=value)
        return "done"

    async with server.connect(version="2025-11-25", on_log=told.append) as client:
        assert await client.call("work") == "done"
    assert [log["data"]["thing"] for log in told] == ["<Mute>", "b'\\xff'", "[[...]]"]


@for_each_row(
    "message, args, sent",
    [
        ("hi %s", (3,), "hi 3"),
        ("%d of %d", (1, 2), "1 of 2"),
        ("%(a)s", ({"a": 1},), "1"),
        ("100%", (), "100%"),
        ("hi", (3,), "hi (3,)"),
        ("%d", ("x",), "%d ('x',)"),
        (Odd(), (), "odd"),
    ],
)
async def test_a_message_is_filled_as_those_of_logging_are_and_never_fails_the_call(
    message: Any, args: tuple[Any, ...], sent: str
):
    server, told = Server("s", "1"), list[Any]()

    @server.tool
    async def work(ctx: Context) -> str:
        ctx.log.info(message, *args)
        ctx.log.info(message, *args, n=1)
        return "done"

    async with server.connect(version="2025-11-25", on_log=told.append) as client:
        assert await client.call("work") == "done"
    assert [log["data"] for log in told] == [sent, {"message": sent, "n": 1}]


@pytest.mark.req("MCP-4.4g")
async def test_progress_that_does_not_grow_or_is_no_number_is_not_told():
    server, told = Server("s", "1"), list[Any]()

    @server.tool
    async def work(ctx: Context) -> str:
        for value in (float("nan"), 1, 1, 0.5, float("inf"), 2):
            ctx.progress(value, float("inf"))
        return "done"

    def step(value: float, total: float | None, message: str | None) -> None:
        told.append((value, total))

    async with server.connect() as client:
        await client.call_raw("work", on_progress=step)
        assert told == [(1, None), (2, None)]
        assert (await client.call_raw("work"))["content"][0]["text"] == "done"
