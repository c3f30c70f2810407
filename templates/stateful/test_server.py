import pytest
from defserve import ToolError
from defserve.host import Mcpl
from defserve.testing import SyncClient

pytestmark = pytest.mark.serves("{{ cookiecutter.package_name }}.server:server", mcpl=Mcpl())


def test_notes_are_kept_and_deleted(client: SyncClient) -> None:
    number = client.call("add_note", text="milk")
    assert client.call("list_notes")[number - 1] == "milk"
    assert client.call("delete_note", number=number) == "milk"
    assert len(client.call("list_notes")) == number - 1


def test_a_note_that_is_not_there_cannot_be_deleted(client: SyncClient) -> None:
    with pytest.raises(ToolError, match="There is no note 99"):
        client.call("delete_note", number=99)


@pytest.mark.eras("handshake")
def test_a_host_goes_back_to_a_checkpoint(client: SyncClient) -> None:
    before = client.call_raw("add_note", {"text": "first"})["state"]
    notes = client.call("list_notes")
    client.call("add_note", text="second")
    rolled_back = client.request("state/rollback", {"featureSet": "notes.edit", "checkpoint": before["checkpoint"]})
    assert rolled_back["success"]
    assert client.call("list_notes") == notes
