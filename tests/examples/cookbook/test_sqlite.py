from __future__ import annotations

import pytest

from defserve import ToolError
from defserve.testing import SyncClient

EMMA = {"title": "Emma", "author": "Austen", "year": 1815}
SOLARIS = {"title": "Solaris", "author": "Lem", "year": 1961}


def test_books_are_added_and_found(client: SyncClient):
    assert client.call("add_books", books=[SOLARIS, EMMA]) == "2 added"
    assert client.call("find_books", words="S") == [SOLARIS]
    assert client.call("find_books", words="", limit=1) == [EMMA]


def test_of_books_of_which_one_is_there_none_is_added(client: SyncClient):
    client.call("add_books", books=[EMMA])
    with pytest.raises(ToolError, match="'Emma' is there already. Nothing was added."):
        client.call("add_books", books=[SOLARIS, EMMA])
    assert client.call("find_books", words="") == [EMMA]


def test_what_is_searched_for_is_never_part_of_a_statement(client: SyncClient):
    client.call("add_books", books=[EMMA])
    assert client.call("find_books", words="' or 1=1; drop table books; --%") == []
    assert client.call("find_books", words="emma") == [EMMA]
