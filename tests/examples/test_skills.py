from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from anyio import run_process

from defserve.errors import ToolError

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import ConnectTo

pytestmark = pytest.mark.anyio


async def test_the_skill_is_listed_and_whole(connect_to: ConnectTo):
    async with connect_to("skills") as client:
        (entry,) = await client.skills()
        assert entry["uri"] in (client.instructions or "")
        assert entry["frontmatter"]["metadata"] == {"owner": "billing", "reviewed": "2026-10-01"}
        files = await client.read_verified(entry)
        assert files.keys() == {"SKILL.md", "examples/email.md", "scripts/deadline.py"}
        assert entry == await client.skill("skill://refunds/SKILL.md")


async def test_the_skill_speaks_of_what_there_is(connect_to: ConnectTo, tmp_path: Path):
    async with connect_to("skills") as client:
        skill = await client.load_skill(await client.skill("skill://refunds/SKILL.md"))
        assert all(path in skill.text for path in skill.paths if path != "SKILL.md")
        assert "`order`" in skill.text and [tool["name"] for tool in await client.tools()] == ["order"]
        script = tmp_path / "deadline.py"
        script.write_bytes(await skill.read("scripts/deadline.py"))
        done = await run_process([sys.executable, str(script), "2026-10-01"])
        assert done.stdout.split() == [b"2026-10-31"]


async def test_orders_are_looked_up(connect_to: ConnectTo):
    async with connect_to("skills") as client:
        assert await client.call("order", number=7) == {
            "customer": "Ada",
            "amount": "12.50 EUR",
            "ordered": "2026-10-01",
        }
        with pytest.raises(ToolError, match="there is no order 9"):
            await client.call("order", number=9)
