"""The same calls give the same answers over memory, HTTP and WebSocket, in each era; `make properties`: pipes too."""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import AsyncGenerator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defserve.errors import PeerError
from defserve.host import Client
from defserve.testing.transports import connect_over
from tests.effort import EXAMPLES, examples
from tests.fuzz.targets.sessions import CALLS, ODD
from tests.raw import ERAS
from tests.strange_messages import changed, places

SERVER = "tests.fuzz.targets.sessions:server"
ROADS = ("memory", "http", "ws")
# A process of its own, for `make fuzz`.
LONG_ROADS = (*ROADS, "stdio")
ASKED = [
    call
    for call in CALLS
    if call.get("method", "notifications/").startswith(
        ("tools/", "resources/read", "resources/list", "prompts/", "comp")
    )
    and call["params"].get("name") != "ask"
]
MISMATCH, INVALID = -32020, -32602
# Trace ids, and ids under which something was logged.
_OWN = re.compile(r'"trace_id": "[^"]*"|\(id [0-9a-f]+\)')


@st.composite
def questions(draw: st.DrawFn) -> tuple[str, Any]:
    """A method and its params, of which parts may be changed."""
    asked = draw(st.sampled_from(ASKED))
    params: Any = {name: value for name, value in copy.deepcopy(asked["params"]).items() if name != "_meta"}
    for _ in range(draw(st.integers(0, 2))):
        where = [place for place in places(params) if place]
        if where:
            params = changed(params, draw(st.sampled_from(where)), draw(st.sampled_from([*ODD])))
    return asked["method"], params


@asynccontextmanager
async def connected(roads: tuple[str, ...]) -> AsyncGenerator[dict[tuple[str, str], Client]]:
    async with AsyncExitStack() as stack:
        found: dict[tuple[str, str], Client] = {}
        for road in roads:
            for era in ERAS:
                found[road, era] = await stack.enter_async_context(connect_over(road, SERVER, {"version": era}))
        yield found


async def outcome(client: Client, method: str, params: dict[str, Any]) -> str:
    try:
        said: Any = await client.request(method, params)
    except PeerError as error:
        if error.code in (MISMATCH, INVALID):
            # Over HTTP a name is in a header, too. What is no text cannot be there, and that is found first.
            return "invalid"
        said = {"code": error.code, "message": error.message, "data": error.data}
    return _OWN.sub("", json.dumps(said, sort_keys=True))


@pytest.mark.hypothesis
def test_the_same_calls_give_the_same_answers_over_every_transport():
    default = settings.default
    assert default is not None
    roads = LONG_ROADS if default.max_examples > EXAMPLES else ROADS

    with asyncio.Runner() as runner:
        clients = connected(roads)
        opened = runner.run(_entered(clients))

        @settings(max_examples=examples(40), deadline=None)
        @given(questions())
        def ask(question: tuple[str, dict[str, Any]]) -> None:
            for era in ERAS:
                said = {road: runner.run(outcome(opened[road, era], *question)) for road in roads}
                assert len(set(said.values())) == 1, said

        try:
            ask()
        finally:
            runner.run(_left(clients))


def _entered(clients: Any) -> Coroutine[Any, Any, dict[tuple[str, str], Client]]:
    return clients.__aenter__()


def _left(clients: Any) -> Coroutine[Any, Any, None]:
    return clients.__aexit__(None, None, None)
