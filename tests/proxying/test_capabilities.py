"""A tool that needs what its client did not offer: without sessions that is an error, behind a proxy too."""

from __future__ import annotations

import pytest

from defserve import Command, Remote, Server, ToolError
from defserve.errors import PeerError
from tests.at_address import at_address
from tests.proxying.backends import child
from tests.proxying.everything import everything
from tests.proxying.talkers import talker

pytestmark = pytest.mark.anyio

MISSING = -32021
# It asks whatever its client has offered, and says in its result that it was refused.
ASKS = """
calling = None
for said in told():
    if said.get("method") == "tools/call":
        calling = said["id"]
        say(id="q", method="elicitation/create", params={"message": "?", "requestedSchema": {}})
    else:
        answer(calling, "it cannot ask", isError=True)
"""


def front(target: Command | Remote) -> Server:
    server = Server("front")
    server.mount(target, prefix="e")
    return server


async def missing(server: Server, tool: str) -> PeerError:
    async with server.connect("stateless") as client:
        with pytest.raises(PeerError) as raised:
            await client.call(tool)
    return raised.value


@pytest.mark.slow
async def test_a_tool_of_a_session_that_needs_a_capability_fails_as_it_would_without_a_proxy() -> None:
    direct = await missing(everything(), "order")
    through = await missing(front(child(version="handshake")), "e_order")
    assert (through.code, through.data["requiredCapabilities"]) == (MISSING, direct.data["requiredCapabilities"])
    async with at_address(everything()) as url:
        remote = await missing(front(Remote(url, version="handshake")), "e_order")
    assert (remote.code, remote.message) == (MISSING, through.message)


async def test_a_server_that_asks_for_what_was_not_offered_is_answered_with_the_same_error() -> None:
    error = await missing(front(talker(ASKS)), "e_talk")
    assert (error.code, error.data["requiredCapabilities"]) == (MISSING, {"elicitation": {}})


@pytest.mark.slow
async def test_a_client_with_a_session_reads_it_in_the_result() -> None:
    for target, tool in ((child(version="handshake"), "e_order"), (talker(ASKS), "e_talk")):
        async with front(target).connect("handshake") as client:
            with pytest.raises(ToolError):
                await client.call(tool)
