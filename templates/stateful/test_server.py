import pytest
from defserve import ToolError
from defserve.client import Mcpl
from defserve.testing import SyncClient

pytestmark = pytest.mark.serves("{{ cookiecutter.package_name }}.server:server", mcpl=Mcpl())


def test_notes_are_kept_and_edited(client: SyncClient) -> None:
    number = client.call("add_note", text="milk")
    assert client.call("list_notes")[number - 1] == "milk"
    assert client.call("edit_note", number=number, text="bread") == "milk"
    assert client.call("list_notes")[number - 1] == "bread"


def test_a_note_that_is_not_there_cannot_be_edited(client: SyncClient) -> None:
    with pytest.raises(ToolError, match="There is no note 99"):
        client.call("edit_note", number=99, text="bread")


def test_each_undo_goes_one_change_further_back(client: SyncClient) -> None:
    for text in ("milk", "tea", "jam"):
        client.call("add_note", text=text)
    *before, _ = notes = client.call("list_notes")
    assert client.call("undo") == before
    assert client.call("undo") == notes[:-2]


@pytest.mark.eras("handshake")
def test_a_host_goes_back_to_a_checkpoint(client: SyncClient) -> None:
    client.call("add_note", text="first")
    before, checkpoint = client.call("list_notes"), client.mcpl.state("{{ cookiecutter.project_slug }}.state").checkpoint
    client.call("add_note", text="second")
    assert checkpoint is not None and client.mcpl.rollback("{{ cookiecutter.project_slug }}.state", checkpoint).success
    assert client.call("list_notes") == before
