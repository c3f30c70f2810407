from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from defserve import Server
from defserve.client import Mcpl
from defserve.testing import SyncClient
from examples.cookbook import background_events
from tests.at_address import fresh
from tests.waiting import DEADLINE, wait_until


@pytest.fixture
def looked(server: Server, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once the folder was looked at: what is put there from then on is new."""
    files, looked = background_events.files, threading.Event()

    def look() -> set[str]:
        found = files()
        looked.set()
        return found

    monkeypatch.setattr(background_events, "files", look)
    return looked


@pytest.fixture
def server(folder: Path) -> Server:
    (folder / "old.txt").touch()
    made = fresh("cookbook.background_events")
    background_events.SECONDS = 0.01
    return made


@pytest.mark.eras("handshake")
@pytest.mark.serves(mcpl=Mcpl(audit=[]))
def test_a_host_is_told_of_a_file_that_arrives(client: SyncClient, folder: Path, looked: threading.Event):
    client.ping()
    assert looked.wait(DEADLINE)
    (folder / "half.part").touch()
    (folder / "new.txt").touch()
    event = client.mcpl.next_event(within=DEADLINE)
    assert (event.feature_set, event.id) == ("arrivals.files", "arrived:new.txt")
    assert event.origin == {"file": "new.txt"}
    assert client.call("list_arrivals") == ["new.txt", "old.txt"]


def test_any_other_client_finds_it_in_the_inbox(client: SyncClient, folder: Path, looked: threading.Event):
    def arrived() -> list[str]:
        return [one["eventId"] for one in json.loads(client.read_text("inbox://arrivals.files"))["events"]]

    assert arrived() == []
    assert looked.wait(DEADLINE)
    (folder / "new.txt").touch()
    wait_until(lambda: arrived() == ["arrived:new.txt"])
