from __future__ import annotations

import pytest

from defserve import ToolError
from defserve.client import Mcpl
from defserve.testing import SyncClient


def test_any_client_goes_back_to_a_version(client: SyncClient):
    client.call("replace", old="", new="Dear Ann,")
    client.call("replace", old="", new=" the tea is bad.")
    assert client.call("replace", old="bad", new="good") == "Dear Ann, the tea is good."
    assert client.call("versions") == ["1: Dear Ann,", "2: Dear Ann, the tea is bad.", "3: Dear Ann, the tea is good."]
    assert client.call("restore", version=1) == "Dear Ann,"
    assert client.call("restore", version=3) == "Dear Ann, the tea is good."
    with pytest.raises(ToolError, match="There are 5 versions"):
        client.call("restore", version=9)


def test_any_client_takes_its_changes_back_one_by_one(client: SyncClient):
    for text in ("Dear Ann,", " the tea", " is good."):
        client.call("replace", old="", new=text)
    assert client.call("undo") == "Dear Ann, the tea"
    assert client.call("undo") == "Dear Ann,"
    assert client.call("redo") == "Dear Ann, the tea"
    assert client.call("undo") == "Dear Ann,"
    assert client.call("undo") == ""
    assert client.call("undo") == "There is nothing to undo."


def test_a_change_that_is_refused_leaves_no_version(client: SyncClient):
    client.call("replace", old="", new="tea tea")
    with pytest.raises(ToolError, match="occurs 2 times"):
        client.call("replace", old="tea", new="coffee")
    assert client.call("versions") == ["1: tea tea"]


@pytest.mark.eras("handshake")
@pytest.mark.serves(mcpl=Mcpl(audit=[]))
def test_a_host_rolls_back_by_itself(client: SyncClient):
    client.call("replace", old="", new="Dear Ann,")
    before = client.mcpl.state("drafts.state").checkpoint
    client.call("replace", old="Ann", new="Bob")
    assert before is not None
    assert client.mcpl.rollback("drafts.state", before).success
    assert client.call("replace", old="", new=" hello") == "Dear Ann, hello"
