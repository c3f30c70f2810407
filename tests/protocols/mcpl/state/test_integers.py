"""Integers past 2^53, which change on their way through a host written in JavaScript."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from defserve import Server, State, UsageError
from defserve.protocols.mcpl.state.states import big_integer, with_texts
from tests.protocols.mcpl.hosts import hosting
from tests.raw import STATELESS, text_of
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

SNOWFLAKE = 1_305_123_456_789_012_345


class Members(BaseModel):
    ids: list[int] = []


def members(big_integers: Literal["refuse", "text"] | None = None, **options: Any) -> Server:
    server = Server("members", "1")
    joining = server.feature_set("members.join", "Join")
    joining.state(Members, big_integers=big_integers, **options)

    @joining.tool
    async def join(id: int, state: State[Members]) -> str:
        state.ids.append(id)
        return f"{sum(state.ids)}"

    @joining.tool
    async def leave(state: State[Members]) -> str:
        state.ids.clear()
        return "none"

    return server


def through_javascript(value: Any) -> Any:
    """What such a host makes of a state."""
    return json.loads(json.dumps(value), parse_int=lambda digits: int(float(digits)))


@for_each_row("big_integers", [None, "refuse"])
async def test_they_are_refused_and_nothing_is_lost(big_integers: Any):
    async with hosting(members(big_integers)) as host:
        assert text_of(await host.call("join", {"id": 2**53})) == str(2**53)
        for id in (2**53 + 1, -(2**53) - 1, SNOWFLAKE):
            result = await host.call("join", {"id": id})
            assert result["isError"] and "/ids/1 is past 2^53" in text_of(result)
        assert text_of(await host.call("join", {"id": 1})) == str(2**53 + 1)


@for_each_row("version", ["2025-11-25", STATELESS])
async def test_as_text_they_survive_every_host(version: str):
    async with hosting(members("text"), version) as host:
        more: dict[str, Any] = {}
        for count in (1, 2, 3):
            result = await host.call("join", {"id": SNOWFLAKE}, **more)
            assert text_of(result) == str(count * SNOWFLAKE)
            state = result["state"]
            if "data" in state:
                assert state["data"] == {"ids": [str(SNOWFLAKE)] * count}
                more = {"checkpoint": state["checkpoint"], "state": through_javascript(state["data"])}
            else:
                more = {"checkpoint": state["checkpoint"]}


async def test_a_state_that_hosts_never_see_keeps_them():
    async with hosting(members(mode="opaque")) as host:
        assert text_of(await host.call("join", {"id": SNOWFLAKE})) == str(SNOWFLAKE)


def test_there_is_no_third_way():
    with pytest.raises(UsageError, match="big_integers"):
        members("round")  # pyright: ignore[reportArgumentType]


NUMBERS = st.integers(-(2**70), 2**70)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text() | st.from_regex(r"\A[0-9]{10,30}\Z"),
    lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(), below, max_size=4),
    max_leaves=10,
)


@given(JSON)
def test_the_text_survives_what_numbers_do_not(value: Any):
    text = json.dumps(value).encode()
    safe = with_texts(text)
    assert through_javascript(json.loads(safe)) == json.loads(safe)
    assert big_integer(safe) is None
    assert (big_integer(text) is None) is (safe == text)
