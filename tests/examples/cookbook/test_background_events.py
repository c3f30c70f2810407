from __future__ import annotations

import json
from pathlib import Path

import pytest

from defserve import Server
from defserve.host import Mcpl
from defserve.testing import SyncClient
from examples.cookbook import background_events
from tests.at_address import fresh
from tests.waiting import wait_until


@pytest.fixture
def server(folder: Path) -> Server:
    (folder / "old.txt").touch()
    made = fresh("cookbook.background_events")
    background_events.SECONDS = 0.01
    return made


@pytest.mark.eras("handshake")
@pytest.mark.serves(mcpl=Mcpl(audit=[]))
def test_a_host_is_told_of_a_file_that_arrives(client: SyncClient, folder: Path):
    assert client.call("list_arrivals") == ["old.txt"]
    (folder / "half.part").touch()
    (folder / "new.txt").touch()
    event = client.mcpl.next_event(within=30)
    assert (event.feature_set, event.id) == ("arrivals.files", "arrived:new.txt")
    assert event.origin == {"file": "new.txt"}


def test_any_other_client_finds_it_in_the_inbox(client: SyncClient, folder: Path):
    def arrived() -> list[str]:
        return [one["eventId"] for one in json.loads(client.read_text("inbox://arrivals.files"))["events"]]

    assert arrived() == []
    (folder / "new.txt").touch()
    wait_until(lambda: arrived() == ["arrived:new.txt"])
