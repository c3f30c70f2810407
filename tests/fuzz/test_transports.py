"""The same calls give the same answers over every transport and through a kernel, in each era.

By default a sample that is always the same; `make properties` makes calls at random, over pipes too.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defserve.client import Client
from defserve.core.json_values import is_array, is_object
from defserve.errors import PeerError
from tests.fuzz.compared_server import CALLS
from tests.fuzz.roads import LONG_ROADS, ROADS, Connect, connected
from tests.fuzz.targets.sessions import ODD
from tests.raw import ERAS
from tests.strange_messages import changed, places

SERVER = "tests.fuzz.compared_server:server"
SAMPLE = 60
MISMATCH, INVALID = -32020, -32602
# Trace ids, and ids under which something was logged.
_OWN = re.compile(r'"trace_id": "[^"]*"|\(id [0-9a-f]+\)')
# Who answered; and what a kernel adds: whose the error is, under which id, and what it thinks of a tool.
_KERNELS = ("io.modelcontextprotocol/serverInfo", "server_id", "inner_trace_id", "dev.defserve/security")

Question = tuple[str, Any]


def changed_at_random(question: Question, random: Random | Any) -> Question:
    """The question with up to two parts of its params replaced by something odd."""
    method, params = copy.deepcopy(question)
    for _ in range(random.randrange(3)):
        where = [place for place in places(params) if place]
        if where:
            params = changed(params, random.choice(where), random.choice(ODD))
    return method, params


async def outcome(client: Client, question: Question) -> tuple[int, str]:
    """The code of the error, or 0, and everything that was said."""
    method, params = question
    try:
        code, said = 0, await client.request(method, params)
    except PeerError as error:
        code, said = error.code, {"message": error.message, "data": error.data}
    return code, _OWN.sub("", json.dumps(without(said), sort_keys=True))


def without(said: Any) -> Any:
    """What was said without what differs rightly."""
    if is_array(said):
        return [without(item) for item in said]
    if is_object(said):
        kept = {name: without(item) for name, item in said.items() if name not in _KERNELS}
        return {name: item for name, item in kept.items() if name != "_meta" or item}
    return said


def check(said: dict[str, tuple[int, str]], question: Question, era: str) -> None:
    if any(code == MISMATCH for code, _ in said.values()):
        # Over HTTP a name is in a header, too. What is no text cannot be there, and that is found first.
        said = {road: (INVALID, "") if one[0] in (MISMATCH, INVALID) else one for road, one in said.items()}
    if len(set(said.values())) != 1:
        lines = "\n".join(f"  {road:12} {code} {text[:600]}" for road, (code, text) in said.items())
        pytest.fail(f"{question[0]} {json.dumps(question[1])[:600]} in {era}:\n{lines}")


async def compare(clients: dict[tuple[str, str], Client], roads: dict[str, Connect], question: Question) -> None:
    for era in ERAS:
        check({road: await outcome(clients[road, era], question) for road in roads}, question, era)


@pytest.mark.anyio
async def test_the_same_calls_give_the_same_answers_over_every_transport():
    random = Random(5)
    async with connected(ROADS, SERVER) as clients:
        for question in CALLS:
            await compare(clients, ROADS, question)
        for _ in range(SAMPLE):
            await compare(clients, ROADS, changed_at_random(random.choice(CALLS), random))


@pytest.mark.slow
@pytest.mark.hypothesis
def test_calls_at_random_give_the_same_answers_over_every_transport():
    with asyncio.Runner() as runner:
        roads = connected(LONG_ROADS, SERVER)
        clients = runner.run(roads.__aenter__())  # type: ignore[arg-type]

        @settings(deadline=None)
        @given(st.sampled_from(CALLS), st.randoms(use_true_random=False))
        def ask(question: Question, random: Random) -> None:
            runner.run(compare(clients, LONG_ROADS, changed_at_random(question, random)))

        try:
            ask()
        finally:
            runner.run(roads.__aexit__(None, None, None))  # type: ignore[arg-type]
