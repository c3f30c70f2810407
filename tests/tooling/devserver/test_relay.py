"""Whatever a client or a child says, the relay of `defserve dev` goes on."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from defserve.tooling.devserver.client_relay import Relay
from tests.effort import examples
from tests.strange_messages import ODD_IDS, Json, messages
from tests.waiting import until

META = {"io.modelcontextprotocol/subscriptionId": 5}
REAL: list[Json] = [
    {"id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25", "capabilities": {}}},
    {"method": "notifications/initialized", "params": {}},
    {"id": 2, "method": "tools/call", "params": {"name": "x", "arguments": {}}},
    {"id": 3, "method": "logging/setLevel", "params": {"level": "info"}},
    {"id": 4, "method": "resources/subscribe", "params": {"uri": "a:b"}},
    {"id": 5, "method": "subscriptions/listen", "params": {"notifications": {"toolsListChanged": True}}},
    {"method": "notifications/cancelled", "params": {"requestId": 2}},
    {"id": "defserve-child-1", "result": {}},
    {"id": 2, "result": {"content": []}},
    {"id": 2, "error": {"code": 1, "message": "no"}},
    {"id": 7, "method": "elicitation/create", "params": {"message": "?"}},
    {"method": "notifications/subscriptions/acknowledged", "params": {"_meta": META}},
    {"method": "notifications/progress", "params": {"progressToken": 2, "progress": 1}},
]


class PretendChild:
    """A child that answers pings and `initialize`, and says what it is told to."""

    def __init__(self) -> None:
        self.output = asyncio.StreamReader()
        self.heard: list[bytes] = []

    def write(self, data: bytes) -> None:
        for line in data.splitlines():
            self.heard.append(line)
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if isinstance(message, dict) and message.get("method") in ("ping", "initialize") and "id" in message:
                self.say(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {"capabilities": {}}}).encode())

    async def send(self, line: bytes) -> None:
        self.write(line)

    def say(self, line: bytes) -> None:
        self.output.feed_data(line + b"\n")

    async def stop(self, seconds: float = 0) -> None:
        self.output.feed_eof()


async def outlives(client_says: list[bytes], child_says: list[bytes]) -> None:
    written: list[bytes] = []

    async def write(line: bytes) -> None:
        written.append(line)

    relay, children = Relay(write, grace=0.0), [PretendChild(), PretendChild()]
    first, second = children
    relay_child: Any = first
    await relay.wait_until_ready(relay_child)
    relay.switch_to_child(relay_child, None)
    await until(lambda: not relay._holding)
    for line in client_says:
        await relay.from_client(line + b"\n")
    for line in child_says:
        first.say(line)
    # A reload, and then an ordinary request: it is answered.
    later: Any = second
    await relay.wait_until_ready(later)
    relay.switch_to_child(later, relay_child)
    await relay.from_client(b'{"jsonrpc":"2.0","id":"the ping","method":"ping"}\n')
    await until(lambda: any(b'"the ping"' in line for line in written))
    await relay.close(0)
    await until(lambda: not relay._links)


@given(st.lists(messages(REAL), max_size=3), st.lists(messages(REAL), max_size=3))
@settings(max_examples=examples(20), deadline=None)
def test_whatever_either_side_says_the_relay_goes_on(client_says: list[bytes], child_says: list[bytes]):
    asyncio.run(outlives(client_says, child_says))


def test_a_value_of_the_wrong_type_does_not_end_the_relay():
    lines = [
        json.dumps({"jsonrpc": "2.0", **message}).encode()
        for odd in ODD_IDS
        for message in (
            {"method": "notifications/cancelled", "params": {"requestId": odd}},
            {"method": "notifications/subscriptions/acknowledged", "params": {"_meta": {next(iter(META)): odd}}},
            {"id": odd, "result": {}},
            {"id": odd, "method": "ping"},
            {"id": 1, "method": odd},
            {"method": "notifications/cancelled", "params": odd},
        )
    ]
    asyncio.run(outlives(lines, lines))
