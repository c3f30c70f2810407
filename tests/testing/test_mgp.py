"""A test's client with MGP: the same server as a plain client and one that guards its calls see it."""

from __future__ import annotations

import pytest

from defserve.client import Mgp
from defserve.errors import DefserveError, Rejected
from defserve.protocols.mgp.permissions import NotConfirmed
from defserve.testing import Decline, SyncClient, UnansweredQuestion
from tests.rows import for_each_row

SERVER = "tests.client.mgp.guarded:server"
ROADS = ("memory", "stdio", "http", "ws")
ERAS = ("handshake", "stateless")


@pytest.mark.slow
@for_each_row("era", ERAS)
@for_each_row("over", ROADS)
def test_a_plain_client_is_asked_by_the_server(era: str, over: str):
    with SyncClient(SERVER, era, over=over) as client:
        client.will_answer({"value": True})
        assert client.mgp is None
        assert client.call("run", command="git status") == "git status"


def test_a_dangerous_tool_that_a_test_does_not_confirm_says_how_to_confirm_it():
    with pytest.raises(UnansweredQuestion, match=r"fix: client\.will_answer\(True\) before the call"):
        with SyncClient(SERVER, "stateless") as client:
            client.call("run", command="git status")


@for_each_row("era", ERAS)
@for_each_row("over", ROADS[2:])
@for_each_row("mgp", [None, Mgp("auto_approve", confirm=lambda *_: True, audit=[])], ids=["plain", "mgp"])
def test_without_a_token_the_client_is_a_stranger(era: str, over: str, mgp: Mgp | None):
    with SyncClient(SERVER, era, over=over, mgp=mgp, token=None) as client:
        assert client.call("add", a=1, b=2) == 3
        with pytest.raises(DefserveError, match="run needs a permission"):
            client.call("run", command="git status")


@pytest.mark.slow
@for_each_row("era", ERAS)
@for_each_row("over", ROADS)
def test_an_mgp_client_confirms_by_itself(era: str, over: str):
    mgp = Mgp("auto_approve", confirm=lambda *_: True, audit=[])
    with SyncClient(SERVER, era, over=over, mgp=mgp) as client:
        assert client.mgp is not None and client.mgp.version
        assert client.call("run", command="git status") == "git status"
        with pytest.raises(Rejected):
            client.call("run", command="rm -rf /")


@for_each_row("era", ERAS)
def test_an_mgp_client_without_confirm_asks_the_test(era: str):
    with SyncClient(SERVER, era, mgp=Mgp("auto_approve", audit=[])) as client:
        client.will_answer({"value": True}, Decline)
        assert client.call("run", command="git status") == "git status"
        with pytest.raises(NotConfirmed):
            client.call("run", command="git status")


def test_the_mark_of_a_server_takes_mgp(suite: pytest.Pytester):
    suite.makepyfile(
        toy="""
        from defserve import Server, dangerous
        server = Server("toy")

        @server.tool
        @dangerous("camera")
        def look() -> str:
            "Look."
            return "seen"
        """,
        test_toy="""
        import pytest
        from defserve.client import Mgp

        @pytest.mark.serves("toy:server", mgp=Mgp("auto_approve", confirm=lambda *_: True, audit=[]))
        def test_look(client):
            assert client.call("look") == "seen"
            assert client.mgp.grants == {"camera": "approved"}
        """,
    )
    suite.runpytest("-p", "no:cacheprovider").assert_outcomes(passed=2)
