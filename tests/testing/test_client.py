from __future__ import annotations

import re
from typing import Any

import pytest

from defserve.errors import PeerError, UsageError
from defserve.testing import SyncClient
from defserve.testing.blocking import FOREIGN_CLIENT_METHOD_HINTS
from tests.testing.calculator import server


@pytest.mark.parametrize(("tool", "note"), [("ad", "did you mean 'add'?"), ("xyzzy", "its tools are add")])
def test_a_tool_that_is_misspelt_in_a_test_is_met_with_a_suggestion(tool: str, note: str):
    with SyncClient(server) as client, pytest.raises(PeerError, match=f"Unknown tool: {tool}") as caught:
        client.call(tool)
    assert caught.value.__notes__[0].startswith(note)


@pytest.mark.parametrize(("name", "fix"), FOREIGN_CLIENT_METHOD_HINTS.items())
def test_a_verb_of_another_client_is_met_with_ours(name: str, fix: str):
    client: Any = SyncClient(server)
    with pytest.raises(AttributeError, match=re.escape(f"this client has no attribute {name!r}\n  fix: {fix}")):
        getattr(client, name)
    for verb in re.findall(r"\bclient\.(\w+)", fix):
        assert hasattr(SyncClient, verb)


def test_a_misspelt_verb_is_met_with_the_nearest():
    client: Any = SyncClient(server)
    with pytest.raises(AttributeError, match="did you mean .notif"):
        _ = client.notifi
    with pytest.raises(AttributeError, match="no attribute '_nothing'$"):
        _ = client._nothing


@pytest.mark.parametrize("verb", ["call", "start", "render", "stream_parts", "prompt"])
def test_arguments_in_a_dictionary_are_met_with_how_they_are_written(verb: str):
    run: Any = getattr(SyncClient(server), verb)
    with pytest.raises(UsageError, match=rf"client.{verb}\('add', {{'a': 1}}\): arguments have names") as refused:
        run("add", {"a": 1})
    assert refused.value.fix == f"client.{verb}('add', key=value), or client.{verb}('add', **arguments)"
