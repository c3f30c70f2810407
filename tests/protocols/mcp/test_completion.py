from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest
from pydantic import Field

from defserve import Server, UsageError
from defserve.errors import PeerError
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio


def dispatcher() -> Server:
    server = Server("s", "1")

    @server.prompt
    def route(start: str, goal: Annotated[str, Field(alias="to")], express: bool = False) -> str:
        return f"{start} {goal} {express}"

    return server


@pytest.mark.req("MCP-5.7")
async def test_at_most_a_hundred_values_travel_and_the_rest_is_counted():
    server = dispatcher()

    @server.completion("route", "start")
    def stops(value: str) -> list[str]:
        return [f"{value}{number}" for number in range(250)]

    async with server.connect() as client:
        found = await client.complete("route", argument="start", value="s")
        assert (len(found["values"]), found["values"][-1], found["total"], found["hasMore"]) == (100, "s99", 250, True)


async def test_one_text_is_one_value_and_none_is_none():
    server = dispatcher()

    @server.completion("route", "start")
    def only(value: str) -> Any:
        return "here" if value else None

    async with server.connect() as client:
        assert (await client.complete("route", argument="start", value="h"))["values"] == ["here"]
        assert (await client.complete("route", argument="start", value=""))["values"] == []


async def test_values_that_are_yielded_are_suggested():
    server = dispatcher()

    @server.completion("route", "start")
    def blocking(value: str) -> Iterator[str]:
        yield f"{value}1"
        yield f"{value}2"

    @server.completion("route", "to")
    async def waiting(value: str) -> AsyncIterator[str]:
        yield f"{value}3"

    async with server.connect() as client:
        assert (await client.complete("route", argument="start", value="s"))["values"] == ["s1", "s2"]
        assert (await client.complete("route", argument="to", value="s"))["values"] == ["s3"]


async def test_an_argument_is_completed_under_the_name_it_is_listed_with():
    server = dispatcher()

    @server.completion("route", "to")
    async def goals(value: str, start: str | None) -> list[str]:
        return [f"beyond {start}"]

    async with server.connect() as client:
        (route,) = await client.prompts()
        assert [argument["name"] for argument in route["arguments"]] == ["start", "to", "express"]
        found = await client.complete("route", argument="to", value="", context={"start": "A"})
        assert found["values"] == ["beyond A"]
        assert (await client.complete("route", argument="express", value="t"))["values"] == ["true"]
        assert (await client.complete("route", argument="start", value="t"))["values"] == []


@for_each_row(
    "params",
    [
        {},
        {"ref": "route", "argument": {"name": "to", "value": ""}},
        {"ref": {"type": "ref/tool", "name": "route"}, "argument": {"name": "to", "value": ""}},
        {"ref": {"type": "ref/prompt", "name": "rout"}, "argument": {"name": "to", "value": ""}},
        {"ref": {"type": "ref/resource", "uri": "a://{b}"}, "argument": {"name": "b", "value": ""}},
        {"ref": {"type": "ref/prompt", "name": "route"}, "argument": {"name": "goal", "value": ""}},
        {"ref": {"type": "ref/prompt", "name": "route"}, "argument": {"name": "to"}},
        {"ref": {"type": "ref/prompt", "name": "route"}, "argument": {"name": "to", "value": ""}, "context": []},
    ],
)
async def test_what_cannot_be_completed_is_a_broken_request(params: dict[str, Any]):
    async with dispatcher().connect() as client:
        with pytest.raises(PeerError) as refused:
            await client.request("completion/complete", params)
        assert refused.value.code == -32602


@pytest.mark.parametrize(
    ("target", "argument", "problem"),
    [
        ("rout", "to", "'rout' is no prompt or resource template"),
        ("route", "goal", "'route' has no argument 'goal'"),
        ("a://{b}", "b", "is no prompt or resource template"),
    ],
)
def test_a_completion_of_something_undeclared_is_refused_before_serving(target: str, argument: str, problem: str):
    server = dispatcher()

    @server.completion(target, argument)
    def nothing(value: str) -> list[str]:  # pyright: ignore[reportUnusedFunction]
        return []

    with pytest.raises(UsageError, match=problem) as refused:
        _ = server.composition
    assert "test_completion.py" in str(refused.value)
