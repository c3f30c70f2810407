"""The verb of the Latency panel."""

from __future__ import annotations

import pytest

from defserve.errors import ToolError
from defserve.inspector.era_connection import InspectionTarget
from defserve.inspector.inspection import Inspection
from defserve.serve.lifespans import connect_in_memory
from tests.inspector.asking import following
from tests.inspector.beds import greenhouse
from tests.waiting import until

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("era", ["handshake", "stateless"])
async def test_figures_come_as_calls_end(era: str):
    server = greenhouse()
    async with Inspection(
        InspectionTarget("it", ("it.py",), lambda: connect_in_memory(server.composition), era)
    ) as inspection:
        client = await inspection.client()
        await client.call("add_bed", name="fern")
        async with following(inspection, "latency.follow") as parts:
            await until(lambda: bool(parts))
            assert [(tool["tool"], tool["calls"], tool["errors"]) for tool in parts[0]["tools"]] == [("add_bed", 1, 0)]
            with pytest.raises(ToolError):
                await client.call("add_plant", bed="nowhere", plant="moss")
            await until(lambda: len(parts[-1]["tools"]) == 2)
            assert [(tool["tool"], tool["errors"]) for tool in parts[-1]["tools"]] == [("add_bed", 0), ("add_plant", 1)]
