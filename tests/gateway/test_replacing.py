"""Two processes with one token: the newer has the name, the older is told and stays out until the name is free."""

from __future__ import annotations

import asyncio
import logging

import pytest

from defserve.serve.outbound import OutboundRunner, ReplacedBackoff, run_outbound
from defserve.server.serving import WAIT
from tests.at_address import fresh
from tests.gateway.topics import gateway
from tests.raw import until

pytestmark = pytest.mark.anyio


async def test_the_older_is_told_why_it_is_closed_and_the_newer_that_it_took_a_place():
    async with gateway() as running, running.joined("admin") as older:
        async with running.open("t-admin") as newer:
            welcome = await newer.until("system/welcome")
            assert welcome["payload"]["replaced"] is True
            told = await older.error()
            assert (told["to"], told["payload"]["error"]) == (["admin"], "replaced")
            assert await older.closed() == (1000, "replaced by a newer connection")
    async with gateway() as running, running.open("t-admin") as first:
        assert "replaced" not in (await first.until("system/welcome"))["payload"]


async def test_who_asks_to_wait_is_let_in_only_when_the_name_is_free():
    async with gateway() as running:
        async with running.joined("admin") as older:
            async with running.open("t-admin", running.topic(if_taken="wait")) as polite:
                assert await polite.closed() == (1013, "another connection has this name")
            await older.is_well()
        await until(lambda: not running.gateway.topics)
        async with running.joined("admin", if_taken="wait") as polite:
            await polite.is_well()
        async with running.open("t-admin", running.topic(if_taken="sometimes")) as wrong:
            assert await wrong.closed() == (1008, "if_taken is one of replace, wait")


async def test_a_server_that_was_replaced_stays_out_and_comes_back_when_the_name_is_free(
    caplog: pytest.LogCaptureFixture,
):
    server = fresh("hello")
    async with gateway() as running:
        carrier = server.mcpx.new_carrier()
        place = OutboundRunner(
            server.composition,
            carrier,
            running.topic(),
            token="t-worker",
            return_url=running.topic(if_taken="wait"),
            backoff=ReplacedBackoff(0.01, 0.02),
        )
        refused = running.gateway.metrics.counts
        with caplog.at_level(logging.WARNING, "defserve"):
            async with run_outbound(place):
                async with running.joined("worker") as newer:
                    await until(lambda: refused["turned_away_total", "taken"] >= 3)
                    await newer.is_well()
                    assert refused["left_total", "replaced"] == 1
                await asyncio.wait_for(carrier.admitted.wait(), 10)
        assert "stays out until the name is free" in caplog.text


def test_a_server_comes_back_with_a_url_that_takes_no_place():
    from defserve.server import serving as topics

    server = fresh("hello")
    url = "mcpx+ws://127.0.0.1:1/ws?topic=demo"
    placed = topics.make_topic_runner(server.composition, server.mcp, None, server.mcpx.new_carrier(), url, "t")
    assert placed.return_url == f"ws://127.0.0.1:1/ws?topic=demo&{WAIT}"


async def test_a_server_that_has_joined_says_where_and_as_whom(capsys: pytest.CaptureFixture[str]):
    from defserve.server import serving as topics

    server = fresh("hello")
    async with gateway() as running:
        url = f"mcpx+{running.topic()}"
        for is_announced in (False, True):
            carrier = server.mcpx.new_carrier()
            place = topics.make_topic_runner(
                server.composition, server.mcp, None, carrier, url, "t-worker", is_announced=is_announced
            )
            async with run_outbound(place):
                told = capsys.readouterr()
            line = f"defserve: joined the topic 'demo' at 127.0.0.1:{running.port} as 'worker'\n"
            assert (told.out, told.err) == ("", line if is_announced else "")
