from __future__ import annotations

from typing import Any

import pytest

from defserve import ToolError
from defserve.errors import PeerError
from defserve.testing import Decline, SyncClient
from examples.cookbook import confirm


def test_a_person_sees_what_it_is_about_and_decides(client: SyncClient):
    questions = list[str]()

    def no(message: str, schema: dict[str, Any]) -> dict[str, Any]:
        questions.append(message)
        return {"value": False}

    client.will_answer(no)
    with pytest.raises(ToolError, match="The person said no. Nothing was deleted"):
        client.call("delete_mails", sender="shop")
    assert questions == ["Delete 2 mails?\nshop: 20% off\nshop: 30% off"]
    client.will_answer({"value": True})
    assert client.call("delete_mails", sender="shop") == {"numbers": [1, 3]}
    assert list(confirm.mails) == [2, 4]
    with pytest.raises(ToolError, match="There are no mails from 'shop'"):
        client.call("delete_mails", sender="shop")


def test_a_marked_tool_is_confirmed_before_it_runs(client: SyncClient):
    client.will_answer(Decline, {"value": True})
    with pytest.raises(ToolError, match="not confirmed"):
        client.call("empty_mailbox")
    assert client.call("empty_mailbox") == "4 mails are gone"


def test_without_anybody_to_ask_nothing_is_deleted(client: SyncClient):
    client.offers()
    for tool, given in (("delete_mails", {"sender": "shop"}), ("empty_mailbox", {})):
        with pytest.raises((ToolError, PeerError)):
            client.call(tool, **given)
    assert len(confirm.mails) == 4
