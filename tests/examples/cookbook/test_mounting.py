from __future__ import annotations

from pathlib import Path

import pytest

from defserve import ToolError
from defserve.errors import PeerError
from defserve.testing import SyncClient
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("forked")


@pytest.mark.eras("stateless")
def test_only_the_chosen_tools_are_there_under_new_names(folder: Path, client: SyncClient):
    (folder / "keys.md").write_text("They are at the desk.")
    (folder / "notes.txt").touch()
    wait_until(lambda: len(client.tools()) == 2)  # a list does not wait for a child that is slow to start
    assert {tool["name"]: list(tool["inputSchema"]["properties"]) for tool in client.tools()} == {
        "list_pages": [],
        "read_page": ["page"],
    }
    assert client.call("list_pages") == ["keys.md"]
    assert client.call("read_page", page="keys.md") == "They are at the desk."
    for tool, arguments in (("list_pages", {"pattern": "*"}), ("read_page", {"path": "keys.md"})):
        with pytest.raises(ToolError, match="unknown argument"):
            client.call(tool, **arguments)
    for tool in ("write_file", "read_file"):
        with pytest.raises(PeerError, match=tool):
            client.call(tool, path="keys.md", text="gone")
    with pytest.raises(ToolError, match="Blocked"):
        client.call("read_page", page="../secret")
