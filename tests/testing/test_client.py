from __future__ import annotations

import pytest

from defserve.errors import PeerError
from defserve.testing import SyncClient
from tests.testing.calculator import server


@pytest.mark.parametrize(("tool", "note"), [("ad", "did you mean 'add'?"), ("xyzzy", "its tools are add")])
def test_a_tool_that_is_misspelt_in_a_test_is_met_with_a_suggestion(tool: str, note: str):
    with SyncClient(server) as client, pytest.raises(PeerError, match=f"Unknown tool: {tool}") as caught:
        client.call(tool)
    assert caught.value.__notes__[0].startswith(note)
