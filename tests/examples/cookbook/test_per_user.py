from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from defserve import Server, ToolError
from defserve.auth import ApiKeys
from defserve.errors import PeerError
from defserve.testing import SyncClient
from tests.at_address import fresh

As = Callable[[str | None], SyncClient]


@pytest.fixture
def server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setenv("DEFSERVE_KEYS_PEPPER", "p" * 43)
    return fresh("cookbook.per_user")


@pytest.fixture
def signed_in(server: Server) -> Iterator[As]:
    """A client of somebody who has a key, or of somebody without one."""
    with ExitStack() as clients:

        def client(name: str | None) -> SyncClient:
            made = name and asyncio.run(ApiKeys("keys.json").create(name, permissions=["ToolInvoke(*)"])).token
            return clients.enter_context(SyncClient(server, "stateless", over="http", token=made))

        yield client


def test_everybody_sees_and_removes_their_own_notes_alone(signed_in: As):
    ada, bob = signed_in("ada"), signed_in("bob")
    assert ada.call("add_note", text="tea") == "note 1 is kept"
    assert bob.call("add_note", text="coffee") == "note 2 is kept"
    assert (ada.call("list_notes"), bob.call("list_notes")) == (["1: tea"], ["2: coffee"])
    with pytest.raises(ToolError, match="You have no note 1"):
        bob.call("remove_note", id=1)
    assert ada.call("remove_note", id=1) == "removed"
    assert signed_in("bob").call("list_notes") == ["2: coffee"]


def test_nobody_says_who_they_are_by_an_argument_and_nobody_comes_in_without_a_key(signed_in: As):
    with pytest.raises(ToolError, match="unknown argument"):
        signed_in("ada").call("list_notes", owner="bob")
    with pytest.raises(PeerError, match="401"):
        signed_in(None).call("list_notes")
