from __future__ import annotations

import asyncio
import tomllib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from defserve.client import TopicClient, join_topic
from defserve.topics import Proposal
from examples.cookbook.approvals import agent, payments
from tests.examples.cookbook.pages import PROGRAMS
from tests.gateway.topics import gateway

pytestmark = pytest.mark.anyio

CONFIG: dict[str, Any] = tomllib.loads((PROGRAMS / "approvals" / "gateway.toml").read_text())


@asynccontextmanager
async def office(folder: Path) -> AsyncGenerator[tuple[str, TopicClient]]:
    """The gateway of the recipe, with the server and a person in its topic: the topic's address, and the person."""
    for name in CONFIG["participants"]:
        (folder / f"{name}.token").write_text(f"{name}-token-of-the-test\n")
    async with gateway(**CONFIG, admins={}) as running:
        url = running.topic("office")
        async with payments.server.join(f"mcpx+{url}", token="payments-token-of-the-test"):
            async with join_topic(url, token="ann-token-of-the-test") as ann:
                yield url, ann


async def proposed(person: TopicClient) -> Proposal:
    async with asyncio.timeout(30):
        return await anext(event async for event in person.heard() if isinstance(event, Proposal))


@pytest.mark.parametrize("agrees", [True, False])
async def test_an_agent_pays_only_if_a_person_agrees(agrees: bool, folder: Path):
    payments.paid.clear()
    async with office(folder) as (url, ann):
        waiting = asyncio.ensure_future(proposed(ann))
        await asyncio.sleep(0)
        settling = asyncio.create_task(agent.settle(url, "agent-token-of-the-test", "Bob", 20))
        proposal = await waiting
        assert (proposal.proposer, proposal.context) == ("agent", "pay")
        assert proposal.arguments == {"to": "Bob", "euros": 20}
        assert payments.paid == []
        if agrees:
            await ann.fulfil(proposal)
        else:
            ann.decline(proposal, "too much")
        said = await settling
    assert payments.paid == (["20 euros to Bob"] if agrees else [])
    assert said == "paid 20 euros to Bob" if agrees else "too much" in said
