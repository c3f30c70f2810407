from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from defserve.errors import ToolError

if TYPE_CHECKING:
    from .conftest import ConnectTo

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("forked")]


async def test_the_calculator_is_part_of_the_desk_and_obeys_its_rules(connect_to: ConnectTo):
    async with connect_to("mounted") as client:
        assert sorted(tool["name"] for tool in await client.tools()) == ["calc_add", "calc_divide", "today"]
        assert await client.call("calc_add", a=2, b=3) == 5
        with pytest.raises(ToolError, match="cannot divide by zero"):
            await client.call("calc_divide", dividend=1, divisor=0)
        with pytest.raises(ToolError, match="up to a million"):
            await client.call("calc_add", a=2_000_000, b=3)
