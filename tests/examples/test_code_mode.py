from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from defserve.client import Answers, Decline
from defserve.errors import ToolError
from defserve.sandbox import monty

if TYPE_CHECKING:
    from .conftest import ConnectTo

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.usefixtures("borrowed_workers"),
    pytest.mark.skipif(not monty.is_installed(), reason="pydantic-monty is not installed in the tested version"),
]

RESTOCK = """
low = [article for article in [look(name) for name in articles()] if article["stock"] < 10]
done = []
for article in low:
    try:
        done.append(order(article["name"], 10))
    except PermissionError:
        done.append("kept " + article["name"])
done
"""


async def test_code_filters_asks_for_each_order_and_gives_only_its_result(connect_to: ConnectTo):
    asked: list[str] = []

    def person(message: str, schema: dict[str, Any]) -> Any:
        asked.append(message)
        return Decline if "teapot" in message else {"value": True}

    async with connect_to("code_mode", known=True, answers=Answers(ask=person)) as client:
        done = await client.call("run_code", code=RESTOCK)
        assert done == {"result": ["ordered 10 × kettle", "kept teapot"]}
        assert (await client.call("look", name="kettle"))["stock"] == 14
    assert asked == [
        "Run order?\n  name: kettle\n  count: 10",
        "Run order?\n  name: teapot\n  count: 10",
    ]


async def test_a_question_in_the_middle_does_not_begin_the_code_again(connect_to: ConnectTo):
    async with connect_to("code_mode", answers=Answers(ask=lambda message, schema: {"value": "Ada"})) as client:
        code = "print('once')\nname = customer()\nprint('for', name)\nlook('mug')['price'] * 2"
        assert await client.call("run_code", code=code) == {"result": 15.0, "printed": "once\nfor Ada\n"}


async def test_a_failure_names_the_line_and_what_was_called(connect_to: ConnectTo):
    async with connect_to("code_mode") as client:
        with pytest.raises(ToolError, match=r"line 2\nRuntimeError: there is no spoon\nThese tools .*: articles, look"):
            await client.call("run_code", code="articles()\nlook('spoon')")
        described = await client.call("describe_tools", names=["look", "order"])
    assert described.splitlines()[1].startswith("def order(name: str, count: int) -> str: Order an article.")
