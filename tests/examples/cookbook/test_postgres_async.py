from __future__ import annotations

import pytest

from defserve.testing import SyncClient

pytest.importorskip("psycopg_pool", reason="psycopg is not installed (pip install 'psycopg[binary,pool]')")
pytestmark = pytest.mark.usefixtures("database")


def test_notes_are_found_by_their_words(client: SyncClient):
    for text in ("Ada drinks green tea", "Bob likes red cups", "Green cups are sold out"):
        assert client.call("add_note", text=text) == "kept"

    def found(query: str, **more: int) -> list[str]:
        return [note["text"] for note in client.call("search_notes", query=query, **more)]

    assert found("cup") == ["Green cups are sold out", "Bob likes red cups"]
    assert found("green -cups") == ["Ada drinks green tea"]
    assert found('"red cups"') == ["Bob likes red cups"]
    assert found("cup", limit=1) == ["Green cups are sold out"]
    assert found("'); drop table notes; --") == []
    assert found("tea or sold") == ["Green cups are sold out", "Ada drinks green tea"]
