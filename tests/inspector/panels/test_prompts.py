from __future__ import annotations

import pytest

from defserve import Server
from defserve.client.client import Client
from defserve.errors import DefserveError
from tests.inspector.conftest import Inspect, Run
from tests.inspector.library import library

pytestmark = pytest.mark.anyio

eras = pytest.mark.parametrize("era", ["handshake", "stateless"])


@eras
async def test_prompts_are_listed_completed_and_got(inspect: Inspect, do: Run, era: str):
    async with inspect(library()) as inspection:
        listed = await do(inspection, "prompts.list", era=era)
        assert listed["offered"] and listed["completes"]
        assert {prompt["name"] for prompt in listed["prompts"]} == {"plan_day", "hello"}
        ref = {"type": "ref/prompt", "name": "plan_day"}
        found = await do(
            inspection, "complete", era=era, ref=ref, argument="city", value="O", context={"country": "Italy", "n": 1}
        )
        assert found == {"values": ["Ostia"], "more": False}
        arguments = {"country": "Italy", "city": "Ostia"}
        got = await do(inspection, "prompts.get", era=era, prompt="plan_day", arguments=arguments)
        assert [message["role"] for message in got["messages"]] == ["user", "assistant", "user"]


@eras
async def test_wrong_arguments_are_sent_and_refused_by_the_server(inspect: Inspect, do: Run, era: str):
    async with inspect(library()) as inspection:
        with pytest.raises(DefserveError, match="city"):
            await do(inspection, "prompts.get", era=era, prompt="plan_day", arguments={"country": "Italy"})


async def test_a_server_without_prompts_says_so(inspect: Inspect, do: Run, monkeypatch: pytest.MonkeyPatch):
    async with inspect(Server("bare", "1")) as inspection:
        assert (await do(inspection, "prompts.list"))["prompts"] == []
        monkeypatch.setattr(Client, "capabilities", {})
        listed = await do(inspection, "prompts.list")
        assert (listed["offered"], listed["prompts"]) == (False, [])
