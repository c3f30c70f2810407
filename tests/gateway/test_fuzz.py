"""Whatever participants send, a gateway stays whole, and passes on nothing but what its sender may say."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defserve.protocols.mcpx.envelope import MCPX_PROTOCOL
from tests.effort import examples
from tests.gateway.in_memory import CAPABILITIES, topic_of_three
from tests.gateway.topics import envelope, gateway

pytestmark = pytest.mark.hypothesis

names = st.sampled_from([*CAPABILITIES, "system:gateway", "", "nobody"])
kinds = st.sampled_from(
    [
        "chat",
        "mcp/request:tools/call",
        "mcp/request:tools/call:a:b",
        "mcp/proposal:tools/call:x",
        "mcp/response:ping",
        "system/welcome",
        "system",
        "presence",
        "system/",
        "mcp/",
        "",
        "chat:",
        "SYSTEM/error",
    ]
) | st.text(max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
fields = {
    "protocol": st.just(MCPX_PROTOCOL) | values,
    "id": st.text(min_size=1, max_size=8) | values,
    "from": names | values,
    "kind": kinds | values,
    "payload": st.dictionaries(st.text(max_size=4), values, max_size=3) | values,
}
extras = {"to": st.lists(names, max_size=3) | values, "correlation_id": st.text(max_size=4) | values, "ts": values}
likely = st.fixed_dictionaries(fields, optional=extras).map(lambda made: json.dumps(made).encode())


@st.composite
def mangled(draw: st.DrawFn) -> bytes:
    """A good frame with a cut, a stutter or a foreign byte in it."""
    data = json.dumps(envelope(draw(kinds), draw(names), {"text": draw(st.text(max_size=8))})).encode()
    at, until = sorted((draw(st.integers(0, len(data))), draw(st.integers(0, len(data)))))
    return data[:at] + draw(st.sampled_from([b"", data[at:until] * 2, b"\x00", b"\xff", b'"', b"}"])) + data[until:]


frames = st.binary(max_size=64) | likely | mangled() | values.map(lambda value: json.dumps(value).encode())


@given(st.lists(st.tuples(st.sampled_from(list(CAPABILITIES)), frames), max_size=8))
@settings(max_examples=examples(20))
def test_only_what_its_sender_may_say_is_passed_on_and_unchanged(said: list[tuple[str, bytes]]):
    made, members, ears = topic_of_three()
    for name, frame in said:
        before = {who: len(ear.heard) for who, ear in ears.items()}
        made.relay_frame(members[name], frame)
        fresh = {who: ear.heard[before[who] :] for who, ear in ears.items()}
        passed = all(heard == [frame] for heard in fresh.values())
        if passed:
            whole: dict[str, Any] = json.loads(frame)
            assert whole["from"] == name and whole["protocol"] == MCPX_PROTOCOL
            assert not whole["kind"].startswith("system") and isinstance(whole["payload"], dict)
            assert members[name].capabilities.allows_kind(whole["kind"])
        else:
            refusal = json.loads(fresh[name][0])
            assert len(fresh[name]) == 1 and ("error" in refusal or refusal["kind"] == "system/error")
            assert all(not heard for who, heard in fresh.items() if who != name)
    assert set(made.topics["demo"].members) == set(CAPABILITIES)
    assert all(ear.ended is None for ear in ears.values())


@given(st.lists(frames, min_size=1, max_size=12))
@settings(max_examples=examples(8))
def test_over_a_socket_too_the_topic_is_none_the_worse(said: list[bytes]):
    async def talk() -> None:
        limits = {"rate": 1e6, "burst": 1_000_000, "malformed_in_a_row": 1_000_000}
        async with gateway(limits=limits) as running, running.joined("worker") as worker:
            async with running.joined("admin") as admin:
                for frame in said:
                    await admin.raw(frame)
                await admin.is_well()
                await worker.is_well()

    asyncio.run(talk())


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=4))
@settings(max_examples=examples(12))
def test_what_is_no_handshake_harms_nobody(data: bytes, cuts: list[int]):
    async def talk() -> None:
        async with gateway(limits={"farewell": 0.05}) as running, running.joined("worker") as worker:
            _, writer = await asyncio.open_connection("127.0.0.1", running.port)
            places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
            for start, end in itertools.pairwise(places):
                writer.write(data[start:end])
                await asyncio.sleep(0)
            writer.close()
            await worker.is_well()

    asyncio.run(talk())
